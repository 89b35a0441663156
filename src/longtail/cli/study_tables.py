"""``longtail study table``: a table of finished runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from longtail._io import write_text
from longtail.cli.study_flags import is_given, one_of, split_flags
from longtail.study.captions import told_of
from longtail.study.comparisons import check_reference
from longtail.study.runs import group_runs, read_runs
from longtail.study.table import FORMATS, Table, show, write
from longtail.study.tables import level_table, recall_table

__all__ = ["save_table", "table"]

console = Console()


def save_table(table: Table, folder: Path, name: str) -> None:
    """Write a table as Markdown, LaTeX and CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    for form, suffix in {"markdown": "md", "latex": "tex", "csv": "csv"}.items():
        write_text(folder / f"{name}.{suffix}", write(table, form))


def table(given: Sequence[str], command: str) -> int:
    """``longtail study table``: a table of the runs in folders."""
    alone, found = split_flags(given)
    form = one_of("format", found, ("terminal", *FORMATS))
    tests: dict[str, Any] = {}  # given here, they win over the study's
    if "reference" in found:
        tests["reference"] = _one_name(found.pop("reference"))
    if is_given("one_sided", found):
        tests["alternative"] = "greater"
    if is_given("no_one_sided", found):
        tests["alternative"] = "two-sided"
    tables: dict[str, Callable[..., Table]] = {"recall": recall_table, "level": level_table}
    what = one_of("what", found, tuple(tables))
    make = tables[what]
    if found:
        raise ValueError(f"Expected the flags that `longtail study --help` shows, but got --{next(iter(found))}.")
    if not alone:
        raise ValueError("Expected folders of runs, but got none.")
    runs = read_runs(*alone)
    if not runs:
        raise ValueError(f"Expected finished runs in {', '.join(alone)}, but there are none.")
    cells, told = group_runs(runs), told_of(alone, runs)
    if "reference" in tests:
        check_reference(tests["reference"], cells)
    commands = [*told.commands, *([command] if tests or told.untold else [])]
    if what == "recall":
        make = partial(make, **{"reference": told.reference, "alternative": told.alternative, **tests})
    selected = told.selected if what == "recall" else told.selected(cells)
    made = make(cells, selected=selected, command="; ".join(commands))
    made = replace(made, caption=f"{told.missing}. {made.caption}") if told.missing else made
    if form == "terminal":
        show(made, console)
    else:
        console.file.write(write(made, form))
    return 0


def _one_name(texts: Sequence[str]) -> str:
    if len(texts) != 1:
        raise ValueError(f"Expected a method after --reference, but got {' '.join(texts) or 'nothing'}.")
    return texts[0]
