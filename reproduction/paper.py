"""The numbers of the paper: its tables, the data behind its figures, and what other papers report. All in per cent."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from longtail.study.runs import Cell, method_title
from longtail.study.stats import Summary

__all__ = [
    "ABSENT_AS_ZERO",
    "AUTHORS_RUNS",
    "QUOTED",
    "beta",
    "figures",
    "five_runs",
    "gradient_balance",
    "imbalance_level",
    "method_key",
    "other_papers",
    "recalls",
    "recalls_of",
    "tables",
    "title",
]

AUTHORS_RUNS = 5
"""Number of runs behind the paper's means of Balanced Softmax and CBS; everything else in the paper is one run."""

ABSENT_AS_ZERO = frozenset({"LVIS"})
"""Data sets where some classes have no test sample. The paper counts their recall as 0; we leave them out."""

QUOTED = ("CAL", "DisA")
"""Methods whose rows the paper quotes from other publications."""


@cache
def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parent / "data" / name).read_text(encoding="utf-8"))
    return found


def figures() -> dict[str, Any]:
    """The data behind the figures, and the authors' betas, from their public repository."""
    return _read("figures.json")


def tables() -> dict[str, Any]:
    """The paper's tables."""
    return _read("tables.json")


def other_papers() -> dict[str, Any]:
    """Recall on C10-LT100 that other papers report."""
    return _read("published.json")


def beta(data: str) -> float | None:
    """The authors' beta for a data set.

    Example:
        >>> beta("C10-LT100")
        1.8
    """
    found: float | None = figures()["beta"].get(data)
    return found


def five_runs() -> dict[str, dict[str, list[float]]]:
    """Test recall over all classes in each of the five runs behind the box plots, per data set and method."""
    return {name: runs for name, runs in figures()["test_recall_all_five_runs"].items() if name != "note"}


def recalls(data: str) -> dict[str, dict[str, Summary | None]]:
    """The paper's test recall per method and group on a data set; empty if the paper does not have the data set.

    Example:
        >>> print(recalls("C10-LT100")["cbs"]["all"])
        81.43 ± 0.24
    """
    rows: dict[str, dict[str, list[float] | None]] = tables()["test_recall"].get(data, {})
    return {method: {group: _summary(cell) for group, cell in row.items()} for method, row in rows.items()}


def _summary(cell: list[float] | None) -> Summary | None:
    if cell is None:
        return None
    return Summary(cell[0], cell[1], AUTHORS_RUNS) if len(cell) == 2 else Summary(cell[0], float("nan"), 1)


def imbalance_level(data: str) -> dict[str, float]:
    """The authors' model imbalance level per method: a mean of five runs, except for softmax, which is one run.

    Example:
        >>> imbalance_level("C10-LT100")
        {'softmax': 41.41, 'balanced-softmax': 20.96, 'cbs': 12.62}
    """
    found = figures()["imbalance_level_I"]
    if data not in found["datasets"]:
        return {}
    column = found["datasets"].index(data)
    return {name: values[column] for name, values in found.items() if name != "datasets"}


def gradient_balance(data: str) -> dict[str, dict[str, float]]:
    """The authors' balance of gradients per method and group.

    Example:
        >>> gradient_balance("C10-LT100")["cbs"]
        {'head': -10.98, 'medium': -2.27, 'tail': -187.73}
    """
    found = figures()["gradient_balance_percent"]
    if data not in found["datasets"]:
        return {}
    column = found["datasets"].index(data)
    methods = [name for name in found if name not in {"note", "datasets"}]
    return {method: {group: values[column] for group, values in found[method].items()} for method in methods}


def title(method: str) -> str:
    """The title of a method of the paper's tables.

    Example:
        >>> title("balanced-softmax"), title("bcl+cbs"), title("CAL")
        ('Balanced Softmax', 'BCL + CBS', 'CAL')
    """
    return " + ".join(method_title(part) for part in method.split("+"))


def method_key(cell: Cell) -> str:
    """The name of a cell's method in the paper's tables: ``bcl+cbs`` for BCL with a beta other than 1."""
    name, strength = cell.recipe.method, cell.recipe.beta
    if name in {"bcl", "proco"}:
        return f"{name}+balanced-softmax" if strength in {None, 1.0} else f"{name}+cbs"
    return name


def recalls_of(cell: Cell) -> dict[str, Summary | None]:
    """The paper's recall per group for the data set and method of a cell."""
    name = method_key(cell)
    if cell.data in {"ImageNet-LT", "iNaturalist2018"}:  # the LDAM of these tables is LDAM-DRW
        name = {"ldam-drw": "ldam", "ldam": ""}.get(name, name)
    return recalls(cell.data).get(name, {})
