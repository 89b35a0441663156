"""How runs were made: commands, settings, machines and versions."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

from longtail._io import read_json
from longtail._program import count, program
from longtail.methods import METHODS
from longtail.report.data_results import DataResults
from longtail.report.page import Column, Grid
from longtail.study.runs import Cell, Run
from longtail.train.recipe import HOUSEKEEPING

_LEFT_OUT = frozenset({"seed"}) | HOUSEKEEPING


def repeat_command(cell: Cell) -> str:
    """Return the command that trains the runs of a cell again, from the recipe in their folder."""
    seeds = dict.fromkeys(str(seed) for seed in cell.seeds)
    words = shlex.join(["train", str(cell.runs[0].path / "recipe.toml"), "--seed", *seeds])
    if cell.method in METHODS:
        return f"{program()} {words}"
    return f"longtail --plugin FILE.py {words}  # FILE.py registers {cell.method}"


def settings_grid(results: DataResults, name: str) -> Grid:
    """Return all settings; where methods differ, the value of each."""
    recipes = {title: cell.recipe.settings() for cell, title in results.titles.items()}
    rows = {}
    for key in dict.fromkeys(name for recipe in recipes.values() for name in recipe if name not in _LEFT_OUT):
        values: dict[str, list[str]] = {}
        for title, recipe in recipes.items():
            values.setdefault(_text(recipe.get(key)), []).append(title)
        if len(values) == 1 or key == "method":
            rows[key] = ", ".join(values)
        else:
            rows[key] = "; ".join(f"{value}: {', '.join(titles)}" for value, titles in values.items())
    shown = {key: text if len(text) <= 300 else text[:299] + "…" for key, text in rows.items() if text != "–"}
    return _two_columns(name, "Setting", shown, "All settings, including defaults.")


def versions_grid(runs: Sequence[Run]) -> Grid | None:
    """Return the machines and versions of the runs; ``None`` if they were not recorded."""
    found: dict[str, Counter[str]] = {}
    for file in (run.path / "environment.json" for run in runs):
        about = read_json(file, {"versions?": dict}) if file.exists() else {}
        facts = {key: about.get(key) for key in ("device", "python", "system")} | about.get("versions", {})
        for key, value in facts.items():
            if value is not None:
                found.setdefault(key, Counter())[str(value)] += 1
    rows = {
        key: "; ".join(f"{value} ({count(n, 'run')})" if len(numbers) > 1 else value for value, n in numbers.items())
        for key, numbers in found.items()
    }
    return _two_columns("versions", "Component", rows) if rows else None


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return "–" if value is None else str(value)


def _two_columns(name: str, title: str, rows: Mapping[str, str], caption: str = "") -> Grid:
    return Grid(name, "", [Column(title), Column("Value")], list(rows.items()), caption)
