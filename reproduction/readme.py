"""The part of the repository's README that is made from the results: a table and two figures, between two marks."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from longtail.study.runs import Cell, Run, ordered
from longtail.study.stats import Summary
from reproduction import paper
from reproduction.material import Material

__all__ = ["BEGIN", "END", "results_text", "with_results"]

BEGIN = "<!-- results: made by `make results-page` -->"
END = "<!-- results: end -->"

_SHOWN = ("crt", "ldam-drw", "bcl+balanced-softmax", "proco+balanced-softmax")
"""Other methods that have a row."""
_FIGURES = ("c10-lt100-trade-off", "imbalance-level")


def with_results(text: str, material: Material, out: Path) -> str:
    """A README with its part made anew."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"Expected the lines {BEGIN} and {END} in README, once each, but did not find them so.")
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    return f"{before}{BEGIN}\n{results_text(material, out)}\n{after}"


def results_text(material: Material, out: Path) -> str:
    """The table and the figures, in Markdown; figures that are not there are left out."""
    others = [cell for cells in material.others.values() for cell in cells if cell.method in _SHOWN]
    cells = ordered([*material.main, *others])
    lines = ["| data | method | runs | head | medium | tail | all | the paper | I | the paper |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    lines += [_row(cell) for cell in cells]
    if not cells:
        return "No runs yet."
    figures = [
        f"![{_alternative(name)}]({out.name}/figures/{name}.png)"
        for name in _FIGURES
        if (out / "figures" / f"{name}.png").exists()
    ]
    return "\n".join([*lines, "", *_chosen(material, cells), *figures])


def _chosen(material: Material, cells: Sequence[Cell]) -> list[str]:
    """Where the betas of the table come from, as a line under it."""
    selected = material.selected(cells)
    return [f"{selected[0].upper()}{selected[1:]}.", ""] if selected else []


def _row(cell: Cell) -> str:
    groups = ("head", "medium", "tail", "all")
    values = [cell.summary(partial(Run.recall, group=group)) for group in groups]
    theirs = paper.recalls(cell.data).get(cell.method, {}).get("all")
    level = paper.imbalance_level(cell.data).get(cell.method)
    parts = [cell.data, cell.title, str(len(cell.runs)), *map(_shown, values)]
    parts += ["" if theirs is None else _shown(theirs), _shown(cell.summary(Run.level))]
    return "| " + " | ".join([*parts, "" if level is None else f"{level:.1f}"]) + " |"


def _shown(value: Summary) -> str:
    return f"{value.mean:.1f}" + ("" if math.isnan(value.sd) else f" ± {value.sd:.1f}")


def _alternative(name: str) -> str:
    known = {"imbalance-level": "Model imbalance level of the methods", "trade-off": "Tail recall against head recall"}
    return next(text for end, text in known.items() if name.endswith(end))
