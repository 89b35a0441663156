"""How runs were made: settings, versions, and the commands that repeat them."""

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longtail._program import program
from longtail.data import CATALOG
from longtail.methods import METHODS
from longtail.report.page import Cell, Column, Grid
from longtail.report.parts import Part
from longtail.study.captions import count
from longtail.study.runs import Cell as Runs
from longtail.study.runs import Run
from longtail.train.dataset import is_small
from longtail.train.recipe import HOUSEKEEPING, defaults

_LEFT_OUT = frozenset({"seed", "root", "device", "workers", "keep", "tensorboard", "evaluate_every"}) | HOUSEKEEPING


def repeat_command(cell: Runs) -> str:
    """Return the command that trains the runs of a cell again: what differs from the defaults, and the seeds."""
    recipe = cell.recipe
    small = recipe.data not in CATALOG and Path(recipe.data).exists() and is_small(recipe.data)
    known = recipe.method in METHODS
    base = defaults(recipe.data, recipe.method if known else "softmax", recipe.imbalance, small=small)
    words = ["train", "--data", recipe.data, "--method", recipe.method]
    usual = base.settings()
    for name, value in recipe.settings().items():
        if name in {"data", "method"} | _LEFT_OUT or value == usual.get(name):
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(_word, value if isinstance(value, list | tuple) else [value])]
    words += ["--seed", *dict.fromkeys(str(seed) for seed in cell.seeds)]
    folders = {run.path if len(cell.runs) == 1 else run.path.parent for run in cell.runs}
    words += ["--out", str(folders.pop())] if len(folders) == 1 else []
    typed = shlex.join(words)
    return (
        f"{program()} {typed}" if known else f"longtail --plugin FILE.py {typed}  # FILE.py registers {recipe.method}"
    )


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _shown(value: object) -> str:
    if value is None:
        return "–"
    return ", ".join(map(_word, value)) if isinstance(value, list | tuple) else _word(value)


def _two_columns(name: str, title: str, rows: Mapping[str, str], caption: str = "") -> Grid:
    columns = [Column(title, numeric=False), Column("Value", numeric=False)]
    return Grid(name, "", columns, [[Cell(key, key), Cell(value, value)] for key, value in rows.items()], caption)


def settings_grid(part: Part, name: str) -> Grid:
    """Return all settings; where methods differ, the value of each."""
    recipes = dict(zip(part.titles, (cell.recipe.settings() for cell in part.cells), strict=True))
    rows = {}
    for key in dict.fromkeys(name for recipe in recipes.values() for name in recipe if name not in _LEFT_OUT):
        values: dict[str, list[str]] = {}
        for title, recipe in recipes.items():
            values.setdefault(_shown(recipe.get(key)), []).append(title)
        if len(values) == 1 or key == "method":
            text = ", ".join(values)
        else:
            text = "; ".join(f"{value}: {', '.join(titles)}" for value, titles in values.items())
        if text != "–":
            rows[key] = text if len(text) <= 300 else text[:299] + "…"
    return _two_columns(name, "Setting", rows, "All settings, including defaults.")


def environment_grid(runs: Sequence[Run]) -> Grid | None:
    """Return the machines and versions of the runs; ``None`` if they were not recorded."""
    found: dict[str, Counter[str]] = {}
    for file in (run.path / "environment.json" for run in runs):
        about: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        facts = {key: about.get(key) for key in ("device", "python", "system")} | dict(about.get("versions", {}))
        for key, value in facts.items():
            if value is not None:
                found.setdefault(key, Counter())[str(value)] += 1
    rows = {
        key: "; ".join(f"{value} ({count(n, 'run')})" if len(numbers) > 1 else value for value, n in numbers.items())
        for key, numbers in found.items()
    }
    return _two_columns("versions", "Component", rows) if rows else None
