"""How runs were made: settings, versions, and the commands that repeat them."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longtail._program import program
from longtail.data import CATALOG
from longtail.methods import METHODS
from longtail.report.page import Cell, Column, Grid
from longtail.report.parts import Part
from longtail.study.captions import with_selected
from longtail.study.runs import Cell as Runs
from longtail.study.runs import Run
from longtail.train.loading import is_small
from longtail.train.recipe import HOUSEKEEPING, defaults

__all__ = ["environments", "repeat_command", "settings_grid"]

_LEFT_OUT = frozenset({"seed", "root", "device", "workers", "keep", "tensorboard", "evaluate_every"}) | HOUSEKEEPING


def repeat_command(cell: Runs) -> str:
    """The command that trains a cell's runs again: what differs from the data set's recipe, and the seeds.

    Settings that say how a run is kept are left to whoever repeats it.
    """
    recipe = cell.recipe
    small = recipe.data not in CATALOG and Path(recipe.data).exists() and is_small(recipe.data)
    known = recipe.method in METHODS
    base = defaults(recipe.data, recipe.method if known else "softmax", recipe.imbalance, small=small)
    words = ["train", "--data", recipe.data, "--method", recipe.method]
    usual = base.settings()
    for name, value in recipe.settings().items():
        if name in {"data", "method"} | _LEFT_OUT or value == usual.get(name):
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{name.replace('_', '-')}")
        else:
            words += [flag, *map(_word, value if isinstance(value, list | tuple) else [value])]
    words += ["--seed", *dict.fromkeys(str(seed) for seed in cell.seeds)]
    typed = shlex.join([*words, *_where(cell)])
    return f"{program()} {typed}" if known else f"python FILE.py {typed}  # FILE.py: the file that adds {recipe.method}"


def _where(cell: Runs) -> list[str]:
    """The flag that names the runs' folder, where it is not the one that `longtail train` takes by itself."""
    if len(cell.runs) == 1:
        path = cell.runs[0].path
        return [] if path == Path("runs") / cell.recipe.label else ["--out", str(path)]
    folders = {run.path.parent for run in cell.runs}
    return ["--out", str(folders.pop())] if len(folders) == 1 and folders != {Path("runs")} else []


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def settings_grid(part: Part, name: str, selected: str = "") -> Grid:
    """All settings: one column where they are the same for all methods, otherwise one a method."""
    recipes = [cell.recipe.settings() for cell in part.cells]
    names = [name for name in dict.fromkeys(name for one in recipes for name in one) if name not in _LEFT_OUT]
    same = [name for name in names if len({repr(one.get(name)) for one in recipes}) == 1]
    different = [name for name in names if name not in same]
    columns = [Column("Setting", numeric=False), Column("Value", numeric=False)]
    rows = [[Cell(key, key), Cell(_shown(recipes[0][key]), "")] for key in same if recipes[0][key] is not None]
    for key in different:
        values: dict[str, list[str]] = {}
        for title, recipe in zip(part.titles, recipes, strict=True):
            values.setdefault(_shown(recipe.get(key)), []).append(title)
        text = "; ".join(f"{value}: {', '.join(titles)}" for value, titles in values.items())
        rows.append([Cell(key, key), Cell(_shorten(text) if key != "method" else ", ".join(values), "")])
    caption = with_selected("Resolved: what was not given is what the recipe has.", part.cells, selected)
    return Grid(name, f"Settings of {part.name}", columns, rows, caption)


def _shown(value: object) -> str:
    if value is None:
        return "–"
    return ", ".join(map(_word, value)) if isinstance(value, list | tuple) else _word(value)


def _shorten(text: str, most: int = 300) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def environments(runs: Sequence[Run]) -> Grid | None:
    """What the runs ran on, and with which versions; ``None`` where nothing was written down."""
    found: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        file = run.path / "environment.json"
        if not file.exists():
            continue
        about: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        facts = {key: about.get(key) for key in ("device", "python", "system")} | dict(about.get("versions", {}))
        for key, value in facts.items():
            if value is not None:
                found.setdefault(key, {}).setdefault(str(value), []).append(run.path.name)
    if not found:
        return None
    rows = [
        [Cell(key, key), Cell("; ".join(f"{v} ({len(n)} runs)" if len(values) > 1 else v for v, n in values.items()))]
        for key, values in found.items()
    ]
    return Grid(
        "versions", "Machine and versions", [Column("What", numeric=False), Column("Value", numeric=False)], rows
    )
