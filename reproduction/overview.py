"""The overview in the repository's README: recall before and after on all data sets, as a figure and a table."""

import csv
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from longtail.study.figures.style import INK, panels, style
from longtail.study.runs import Cell, Run, ordered
from reproduction import paper
from reproduction.collection import Collection

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["METHODS", "NATURAL", "Recalls", "before_and_after", "overview", "overview_table"]

GROUPS = ("head", "tail", "all")
METHODS = {"softmax": "Softmax", "balanced-softmax": "Balanced Softmax", "cbs": "CBS"}
NATURAL = {"trec": "TREC", "goemotions": "GoEmotions", "gtsrb": "GTSRB", "ham10000": "HAM10000"}
"""Titles of the natural data sets, by the names of their files."""
_OTHERS = ("crt", "ldam-drw", "bcl+balanced-softmax", "proco+balanced-softmax")
"""Methods, besides the main ones, that the README mentions."""

Recalls = dict[str, dict[str, dict[str, float]]]
"""For each data set and method the mean recall on test data of each group, in per cent."""


def overview(runs: Collection, natural: Path) -> Recalls:
    """Return the recalls of the main methods; beta of CBS is searched on CIFAR-10-LT and measured on natural data.

    Args:
        runs: the runs on CIFAR-10-LT.
        natural: the table of the runs on natural data, with one row per run; it need not exist.
    """
    found: Recalls = {}
    for data in runs.main_data:
        roles = runs.roles(data)
        cells = {method: roles.get("CBS, β searched" if method == "cbs" else METHODS[method]) for method in METHODS}
        if all(cells.values()):
            found[data] = {method: _means(cell) for method, cell in cells.items() if cell is not None}
    if natural.is_file():
        with natural.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        for name, title in NATURAL.items():
            found[title] = {
                method: {
                    group: mean(
                        float(row[f"recall_{group}"])
                        for row in rows
                        if Path(row["data"]).stem == name and row["method"] == method
                    )
                    for group in GROUPS
                }
                for method in METHODS
            }
    return found


def _means(cell: Cell) -> dict[str, float]:
    return {group: cell.summary(partial(Run.recall, group=group)).mean for group in GROUPS}


def overview_table(recalls: Recalls, runs: Collection) -> str:
    """Return the table in Markdown, and what is needed to read it."""
    lines = ["| data | " + " | ".join(METHODS.values()) + " |", "| --- |" + " ---: |" * len(METHODS)]
    for data, methods in recalls.items():
        best = max(METHODS, key=lambda method: round(methods[method]["all"], 1))
        row = [data]
        for method in METHODS:
            shown = {group: f"{value:.1f}" for group, value in methods[method].items()}
            overall = f"**{shown['all']}**" if method == best else shown["all"]
            row.append(f"{shown['head']} / {shown['tail']} / {overall}")
        lines.append(f"| {' | '.join(row)} |")
    cells = ordered([cell for found in runs.others.values() for cell in found if paper.method_key(cell) in _OTHERS])
    others = [f"{cell.title} {_means(cell)['all']:.1f}" for cell in cells if cell.data == "C10-LT100"]
    if others:
        lines += ["", f"Over all classes on C10-LT100 also: {', '.join(others)} (three runs each)."]
    return "\n".join(lines)


@style()
def before_and_after(recalls: Mapping[str, Mapping[str, Mapping[str, float]]]) -> "Figure":
    """Draw recall of softmax and of CBS on each data set, for the tail and for the head."""
    figure, all_axes = panels(2, width=2.9, height=0.9 + 0.3 * len(recalls))
    for axes, group in zip(all_axes, ("tail", "head"), strict=True):
        _dumbbells(
            axes, {data: [methods[one][group] for one in ("softmax", "cbs")] for data, methods in recalls.items()}
        )
        axes.set_title(f"{group} classes")
        axes.set_xlabel("recall, %")
    all_axes[0].set_yticks(range(len(recalls)), list(recalls))
    all_axes[1].set_yticks(range(len(recalls)), [])
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _dumbbells(axes: "Axes", values: Mapping[str, Sequence[float]]) -> None:
    places = range(len(values))
    before, after = ([pair[one] for pair in values.values()] for one in (0, 1))
    axes.hlines(places, before, after, color="#9aa0ac", linewidth=2, zorder=1)
    axes.plot(before, places, "o", color="#9aa0ac", markersize=8, label="softmax")
    axes.plot(after, places, "o", color="#D55E00", markersize=8, label="Class-Balanced Softmax")
    for place, (first, last) in enumerate(zip(before, after, strict=True)):
        for number, other in ((first, last), (last, first)):
            right = number >= other
            axes.annotate(
                f"{number:.0f}",
                (number, place),
                xytext=(7 if right else -7, 0),
                textcoords="offset points",
                ha="left" if right else "right",
                va="center",
                fontsize=9,
                color=INK,
            )
    axes.set_xlim(0, 112)
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
