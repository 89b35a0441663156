"""Runs and methods as points: box plots with a test, and tail recall over head recall."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from longtail.study.figures.style import (
    INK,
    WIDTH,
    Mark,
    legend_below,
    letters_in,
    marks_of,
    new_figure,
    panels,
    starts_row,
    styled,
    wrapped,
)
from longtail.study.stats import Alternative, compare, format_p

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BOX = 5
"""From this many runs on, there is a box; below, the points and their mean say it all."""


def _looks(mark: Mark) -> dict[str, Any]:
    return {
        "linestyle": "",
        "marker": mark.marker,
        "color": mark.colour,
        "markeredgecolor": INK,
        "markeredgewidth": 0.6,
    }


@styled
def box_plots(
    runs: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    against: str | None = None,
    paired: bool | Mapping[str, bool] = False,
    alternative: Alternative = "two-sided",
    measure: str = "recall over all classes, %",
    columns: int = 3,
    marks: Mapping[str, Mark] | None = None,
) -> "Figure":
    """Draw every run as a point with the mean as a line, and from five runs on a box (quartiles, whiskers within 1.5
    of their distance). The title compares the last method with a reference: p, difference of means, Cohen's d.

    Args:
        runs: for each data set, the results of the runs of each method.
        against: the method that the last one is tested against (default: the first).
        paired: whether runs at the same position share seed and draws (paired t-test instead of Welch's); for all data
            sets, or by data set.
        alternative: of the test; ``"greater"`` is one-sided, and is labelled so.
        measure: what the numbers are.
        columns: panels per row.
        marks: how methods are drawn.
    """
    if not runs or not all(runs.values()):
        raise ValueError("Expected `runs` to have at least one method, but got none.")
    width = max(3.2 if len(runs) > 1 else 4.4, 0.8 * max(map(len, runs.values())))
    figure, all_axes = panels(len(runs), columns=columns, width=width, height=3.4)
    marks = marks or marks_of(list(dict.fromkeys(name for of_data in runs.values() for name in of_data)))
    for axes, (data, methods) in zip(all_axes, runs.items(), strict=True):
        for place, (name, values) in enumerate(methods.items(), 1):
            spots = place + (np.linspace(-0.12, 0.12, len(values)) if len(values) > 1 else np.zeros(1))
            if len(values) >= _BOX:
                looks: dict[str, Any] = {f"{part}props": {"color": INK} for part in ("whisker", "cap", "median")}
                drawn = axes.boxplot(
                    [values], positions=[place], widths=0.5, patch_artist=True, showfliers=False, **looks
                )
                drawn["boxes"][0].set(facecolor=marks[name].colour, edgecolor=INK, alpha=0.45, hatch=marks[name].hatch)
            else:
                axes.hlines(np.mean(values), place - 0.25, place + 0.25, color=INK, linewidth=1.2)
            axes.plot(spots, values, markersize=4.5, **_looks(marks[name]))
        letters = letters_in(0.8 * 72 * width / len(methods))
        axes.set_xticks(range(1, len(methods) + 1), [wrapped(name, letters, most=4) for name in methods])
        axes.set_xlim(0.5, len(methods) + 0.5)
        axes.grid(visible=False, axis="x")
        title = _tested(methods, against, paired if isinstance(paired, bool) else paired[data], alternative)
        axes.set_title(f"{data}\n{title}" if len(runs) > 1 else title, fontsize=9.0, fontweight="normal")
        axes.set_ylabel(measure if starts_row(axes) else "")
    return figure


def _tested(methods: Mapping[str, Sequence[float]], against: str | None, paired: bool, alternative: Alternative) -> str:
    reference = next(iter(methods)) if against is None else against
    last = next((name for name in reversed(list(methods)) if name != reference), None)
    if last is None or reference not in methods:
        return "nothing to compare"
    ours, theirs = methods[last], methods[reference]
    names = f"{last} against {reference}\n" if len(methods) > 2 else ""
    difference = f"Δμ = {np.mean(ours) - np.mean(theirs):+.2f}"
    if min(len(ours), len(theirs)) < 2:
        return f"{names}{difference}; no test with fewer than two runs"
    found = compare(ours, theirs, paired=paired, alternative=alternative)
    d = "undefined" if math.isnan(found.effect_size) else f"{found.effect_size:.2f}"
    side = " (one-sided)" if alternative == "greater" else ""
    runs = f"{len(ours)}" if len(ours) == len(theirs) else f"{len(theirs)} and {len(ours)}"
    return f"{names}p {format_p(found.p_value)}{side}, n = {runs}\n{difference}, d = {d}"


@dataclass(frozen=True)
class Point:
    """Recall of a method in per cent, with SDs over runs if there are several."""

    head: float
    tail: float
    head_sd: float = math.nan
    tail_sd: float = math.nan


def frontier(points: Mapping[str, Point]) -> list[str]:
    """Return the methods that no other method beats on both head and tail, by head recall.

    Example:
        >>> frontier({"a": Point(90, 50), "b": Point(80, 70), "c": Point(79, 60)})
        ['b', 'a']
    """
    known = {name: (p.head, p.tail) for name, p in points.items() if not (math.isnan(p.head) or math.isnan(p.tail))}
    kept = [
        name
        for name, (head, tail) in known.items()
        if not any(h >= head and t >= tail and (h, t) != (head, tail) for h, t in known.values())
    ]
    return sorted(kept, key=lambda name: (known[name][0], -known[name][1]))


@styled
def trade_off(
    points: Mapping[str, Point],
    *,
    head: str = "head",
    tail: str = "tail",
    split: str = "test",
    marks: Mapping[str, Mark] | None = None,
) -> "Figure":
    """Draw tail recall over head recall, a point per method; up and right is better.

    Args:
        points: by the titles of the methods.
        head: the group on the horizontal axis.
        tail: the group on the vertical axis.
        split: the data that was evaluated.
        marks: how methods are drawn.
    """
    known = {name: p for name, p in points.items() if not (math.isnan(p.head) or math.isnan(p.tail))}
    if not known:
        raise ValueError("Expected `points` to have head and tail recall of at least one method, but got none.")
    figure, axes = new_figure()
    marks = marks or marks_of(list(points))
    for name, p in known.items():
        spread = {f"{axis}err": sd for axis, sd in (("x", p.head_sd), ("y", p.tail_sd)) if sd > 0}
        axes.errorbar(p.head, p.tail, **spread, fmt="none", ecolor=marks[name].colour, elinewidth=0.9, zorder=2)  # type: ignore[arg-type]
        axes.plot(p.head, p.tail, markersize=7, label=name, zorder=3, clip_on=False, **_looks(marks[name]))
    best = [known[name] for name in frontier(known)]
    if len(best) > 1:
        line: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": (0, (3, 2)), "alpha": 0.7, "zorder": 1}
        axes.plot([p.head for p in best], [p.tail for p in best], label="frontier", **line)
    axes.margins(0.16)
    axes.set_xlim(max(0.0, axes.get_xlim()[0]), min(100.0, axes.get_xlim()[1]))
    axes.set_ylim(max(0.0, axes.get_ylim()[0]), min(100.0, axes.get_ylim()[1]))
    axes.set_xlabel(f"{head} recall, {split} data, %")
    axes.set_ylabel(f"{tail} recall, {split} data, %")
    rows = legend_below(figure, axes, columns=2)
    figure.set_size_inches(WIDTH, 3.0 + 0.19 * rows)
    return figure
