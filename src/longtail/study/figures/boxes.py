"""Box plots of runs, two methods a panel, with p, the difference of means and Cohen's d."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from longtail.study.figures.style import INK, Mark, letters_in, marks_of, panels, starts_row, styled, wrapped
from longtail.study.stats import Alternative, compare, format_p

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["box_plots"]


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
    """Boxes over quartiles, whiskers to the furthest run within 1.5 of their distance, and every run as a point.

    Args:
        runs: for each data set, the results of each method's runs.
        against: the method that the last one is tested against (default: the first).
        paired: the runs at the same place share seed and draws (paired t-test); otherwise Welch's. For all data sets,
            or by data set.
        alternative: of the test; ``"greater"`` is one-sided, as in the paper, and is labelled so.
        measure: what the numbers are.
        columns: panels in a row.
        marks: how methods are drawn (default: by their place).
    """
    if not runs or not all(runs.values()):
        raise ValueError("Expected runs of a method or more to draw, but got none.")
    width = max(3.2 if len(runs) > 1 else 4.4, 0.8 * max(map(len, runs.values())))
    figure, all_axes = panels(len(runs), columns=columns, width=width, height=3.4)
    marks = marks or marks_of(list(dict.fromkeys(name for of_data in runs.values() for name in of_data)))
    for axes, (data, methods) in zip(all_axes, runs.items(), strict=True):
        drawn = axes.boxplot(
            list(methods.values()),
            widths=0.5,
            patch_artist=True,
            showfliers=False,
            medianprops={"color": INK, "linewidth": 1.4},
            whiskerprops={"color": INK},
            capprops={"color": INK},
            boxprops={"edgecolor": INK},
        )
        for place, (name, values) in enumerate(methods.items()):
            drawn["boxes"][place].set(facecolor=marks[name].colour, alpha=0.45, hatch=marks[name].hatch)
            spots = place + 1 + np.linspace(-0.12, 0.12, len(values)) if len(values) > 1 else [place + 1]
            axes.plot(
                spots,
                values,
                linestyle="",
                marker=marks[name].marker,
                color=marks[name].colour,
                markersize=4.5,
                markeredgecolor=INK,
                markeredgewidth=0.5,
            )
        letters = letters_in(0.8 * 72 * width / len(methods))
        axes.set_xticks(range(1, len(methods) + 1), [wrapped(name, letters, most=4) for name in methods])
        axes.grid(visible=False, axis="x")
        pair = paired if isinstance(paired, bool) else paired[data]
        title = _tested(methods, against, pair, alternative)
        axes.set_title(title, fontsize=9.0, fontweight="normal")
        if len(runs) > 1:
            axes.annotate(
                data,
                (0.5, 1),
                (0, 10 + 11 * len(title.split("\n"))),
                xycoords="axes fraction",
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=10.5,
                fontweight="bold",
            )
        axes.set_ylabel(measure if starts_row(axes) else "")
    return figure


def _tested(methods: Mapping[str, Sequence[float]], against: str | None, paired: bool, alternative: Alternative) -> str:
    reference = next(iter(methods)) if against is None else against
    last = next((name for name in reversed(list(methods)) if name != reference), None)
    if last is None or reference not in methods:
        return "nothing to compare"
    ours, theirs = methods[last], methods[reference]
    whom = f"{last} against {reference}\n" if len(methods) > 2 else ""
    difference = f"Δμ = {np.mean(ours) - np.mean(theirs):+.2f}"
    if min(len(ours), len(theirs)) < 2:
        return f"{whom}{difference}; fewer than two runs, no test"
    found = compare(ours, theirs, paired=paired, alternative=alternative)
    d = "undefined" if math.isnan(found.effect_size) else f"{found.effect_size:.2f}"
    side = " (one-sided)" if alternative == "greater" else ""
    runs = f"{len(ours)}" if len(ours) == len(theirs) else f"{len(theirs)} and {len(ours)}"
    return f"{whom}p {format_p(found.p_value)}{side}, n = {runs}\n{difference}, d = {d}"
