"""Model imbalance level as bars, over data sets and methods."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from longtail.study.figures.style import INK, WIDTH, Mark, legend_below, marks_of, new_figure, styled, wrapped
from longtail.study.stats import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["level_bars"]


@styled
def level_bars(levels: Mapping[str, Mapping[str, Summary]], *, marks: Mapping[str, Mark] | None = None) -> "Figure":
    """The lower the bar, the fairer the model. One data set: a bar a method, with its name; several: bars side by side.

    Args:
        levels: for each data set, the level of each method, with its SD over runs where there is one.
        marks: how methods are drawn (default: by their place).
    """
    methods = list(dict.fromkeys(name for of_data in levels.values() for name in of_data))
    if not methods:
        raise ValueError("Expected the imbalance level of a method or more to draw, but got none.")
    if len(levels) == 1:
        return _one(next(iter(levels.values())), marks or marks_of(methods))
    figure, axes = new_figure(width=max(WIDTH, 0.75 * len(levels) + 0.8))
    marks, width = marks or marks_of(methods), 0.8 / len(methods)
    for place, method in enumerate(methods):
        found = [of_data.get(method) for of_data in levels.values()]
        heights = [math.nan if one is None else one.mean for one in found]
        errors = [0.0 if one is None or math.isnan(one.sd) else one.sd for one in found]
        spots = [data + (place - (len(methods) - 1) / 2) * width for data in range(len(levels))]
        axes.bar(
            spots,
            heights,
            width,
            yerr=errors if any(errors) else None,
            color=marks[method].colour,
            hatch=marks[method].hatch,
            edgecolor="#ffffff",
            linewidth=0.5,
            error_kw={"elinewidth": 0.9, "ecolor": INK},
            label=method,
        )
        for spot, one in zip(spots, found, strict=True):
            if one is not None and math.isnan(one.mean):
                axes.annotate(
                    "undefined",
                    (spot, 0),
                    (0, 3),
                    textcoords="offset points",
                    ha="center",
                    va="bottom",
                    rotation=90,
                    fontsize=8.5,
                )
    axes.set_xticks(
        range(len(levels)),
        list(levels),
        rotation=0 if len(levels) < 4 else 30,
        ha="center" if len(levels) < 4 else "right",
    )
    axes.set_ylabel("model imbalance level I")
    axes.set_ylim(bottom=0)
    axes.grid(visible=False, axis="x")
    legend_below(figure, axes)
    return figure


def _one(levels: Mapping[str, Summary], marks: Mapping[str, Mark]) -> "Figure":
    """Bars lie, so that names have room."""
    figure, axes = new_figure(height=0.9 + 0.3 * len(levels))
    names = sorted(levels, key=lambda name: (math.isnan(levels[name].mean), levels[name].mean), reverse=True)
    for place, name in enumerate(names):
        one = levels[name]
        spread = 0.0 if math.isnan(one.sd) else one.sd
        axes.barh(
            place,
            one.mean,
            0.7,
            xerr=spread or None,
            color=marks[name].colour,
            hatch=marks[name].hatch,
            edgecolor="#ffffff",
            linewidth=0.5,
            error_kw={"elinewidth": 0.9, "ecolor": INK},
        )
        text = "undefined" if math.isnan(one.mean) else f"{one.mean:.1f}"
        start = 0.0 if math.isnan(one.mean) else one.mean + spread
        axes.annotate(text, (start, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), [wrapped(name, 24, most=2) for name in names])
    axes.set_ylim(-0.65, len(names) - 0.35)
    axes.set_xlabel("imbalance level I")
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    return figure
