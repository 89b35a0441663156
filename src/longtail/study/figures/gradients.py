"""Balance of reward and penalty in the classifier's gradient, per group and method."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from longtail.study.figures.style import INK, group_mark, legend_below, panels, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["gradient_bars"]

_END = 1000.0
"""Where bars are cut."""


@styled
def gradient_bars(values: Mapping[str, Mapping[str, Mapping[str, float]]], *, columns: int = 3) -> "Figure":
    """(reward - penalty) / reward in per cent: below zero, more of the gradient pushes a group down than up.

    Where values differ much the axis is linear around zero and logarithmic beyond; bars beyond 1,000 are cut there, and
    have their number.

    Args:
        values: for each data set and method, the balance of each group.
        columns: panels in a row.
    """
    if not values or not all(values.values()):
        raise ValueError("Expected the gradient balance of a method or more to draw, but got none.")
    rows = max(len(methods) for methods in values.values())
    figure, all_axes = panels(len(values), columns=columns, height=1.2 + 0.5 * rows)
    groups = list(dict.fromkeys(g for methods in values.values() for found in methods.values() for g in found))
    width = 0.8 / len(groups)
    for axes, (data, methods) in zip(all_axes, values.items(), strict=True):
        wide = _is_wide([v for found in methods.values() for v in found.values()])
        for place, group in enumerate(groups):
            mark = group_mark(group, groups)
            numbers = [found.get(group, math.nan) for found in methods.values()]
            ends = [min(max(number, -_END), _END) for number in numbers]
            spots = [row + (place - (len(groups) - 1) / 2) * width for row in range(len(methods))]
            axes.barh(
                spots,
                ends,
                width,
                color=mark.colour,
                hatch=mark.hatch,
                edgecolor="#ffffff",
                linewidth=0.4,
                label=group,
            )
            for spot, end, number in zip(spots, ends, numbers, strict=True):
                if not math.isnan(number):
                    axes.annotate(
                        _short(number),
                        (end, spot),
                        (3 if number >= 0 else -3, 0),
                        va="center",
                        textcoords="offset points",
                        ha="left" if number >= 0 else "right",
                        fontsize=8,
                    )
        if wide:
            axes.set_xscale("symlog", linthresh=20)
            ticks = [tick for tick in (-1000, -100, 0, 100, 1000) if _reached(tick, methods)]
            axes.set_xticks(ticks, [f"{tick}".replace("000", "k") for tick in ticks])
            axes.set_xticks([], minor=True)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(methods)), list(methods))
        axes.invert_yaxis()
        axes.margins(x=0.24 if wide else 0.16)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("(reward - penalty) / reward, %")
        if len(values) > 1:
            axes.set_title(data)
    legend_below(figure, all_axes[0])
    return figure


def _short(number: float) -> str:
    return f"{round(number)}" if abs(number) < 10 * _END else f"{number:.0e}".replace("e+0", "e").replace("e+", "e")


def _reached(tick: float, methods: Mapping[str, Mapping[str, float]]) -> bool:
    numbers = [v for found in methods.values() for v in found.values() if math.isfinite(v)]
    return tick == 0 or (tick > 0 and max(numbers) >= tick / 4) or (tick < 0 and min(numbers) <= tick / 4)


def _is_wide(numbers: list[float]) -> bool:
    """Whether the largest is so far from the others that a linear axis would show it alone."""
    sizes = sorted(abs(number) for number in numbers if math.isfinite(number))
    return len(sizes) > 1 and sizes[-1] > 8 * max(sizes[len(sizes) // 2], 1.0)
