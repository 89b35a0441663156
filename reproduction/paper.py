"""The paper's numbers: its tables, and what its figures were drawn from. Facts to compare with, in per cent."""

import json
from functools import cache
from pathlib import Path
from typing import Any

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
    "recalls",
    "tables",
]

AUTHORS_RUNS = 5
"""Runs of Balanced Softmax and of CBS behind the paper's means; everything else there is one run."""

ABSENT_AS_ZERO = frozenset({"LVIS"})
"""Data sets with classes without a test sample, whose recall is 0 in the paper's means; ours leave them out."""

QUOTED = ("CAL", "DisA")
"""Methods whose rows the paper takes from their own publications, DisA's with another cut of the groups."""


@cache
def figures() -> dict[str, Any]:
    """What the figures were drawn from, and the authors' betas, as their public repository states them."""
    return _read("figures.json")


@cache
def tables() -> dict[str, Any]:
    """The paper's tables."""
    return _read("tables.json")


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parent / "data" / name).read_text(encoding="utf-8"))
    return found


def beta(data: str) -> float | None:
    """The authors' beta for a data set of the paper.

    Example:
        >>> beta("C10-LT100")
        1.8
    """
    found: float | None = figures()["beta"].get(data)
    return found


def five_runs() -> dict[str, dict[str, list[float]]]:
    """Test recall over all classes in each of the five runs behind the box plots, for each data set and method."""
    return {name: runs for name, runs in figures()["test_recall_all_five_runs"].items() if name != "note"}


def recalls(data: str) -> dict[str, dict[str, Summary | None]]:
    """The paper's test recall of each method and group on a data set; empty where it has none.

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
    """The authors' model imbalance level of each method: a mean of five runs, but one run of softmax.

    Example:
        >>> imbalance_level("C10-LT100")
        {'softmax': 41.41, 'balanced-softmax': 20.96, 'cbs': 12.62}
    """
    return _column(figures()["imbalance_level_I"], data)


def gradient_balance(data: str) -> dict[str, dict[str, float]]:
    """The authors' balance of gradients, in per cent, for each method and group.

    Example:
        >>> gradient_balance("C10-LT100")["cbs"]
        {'head': -10.98, 'medium': -2.27, 'tail': -187.73}
    """
    found = figures()["gradient_balance_percent"]
    if data not in found["datasets"]:
        return {}
    place = found["datasets"].index(data)
    methods = [name for name in found if name not in {"note", "datasets"}]
    return {method: {group: values[place] for group, values in found[method].items()} for method in methods}


def _column(found: dict[str, Any], data: str) -> dict[str, float]:
    if data not in found["datasets"]:
        return {}
    place = found["datasets"].index(data)
    return {name: values[place] for name, values in found.items() if name != "datasets"}
