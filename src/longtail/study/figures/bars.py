"""Bars: model imbalance level, and the balance of the gradient of the classifier."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longtail.study.figures.style import (
    INK,
    Mark,
    group_mark,
    legend_below,
    marks_of,
    new_figure,
    panels,
    styled,
    wrapped,
)
from longtail.study.stats import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_END = 1000.0
"""Bars of gradients end here."""
_LINEAR = 20
"""Up to here, an axis with very different values is linear."""


def _looks(mark: Mark) -> dict[str, Any]:
    return {"color": mark.colour, "hatch": mark.hatch, "edgecolor": "#ffffff", "linewidth": 0.5}


def _spots(rows: int, series: int, place: int) -> list[float]:
    """Positions of the bars of one series beside those of the others."""
    return [row + (place - (series - 1) / 2) * 0.8 / series for row in range(rows)]


@styled
def level_bars(levels: Mapping[str, Summary], *, marks: Mapping[str, Mark] | None = None) -> "Figure":
    """Draw model imbalance levels as horizontal bars, the lowest at the top.

    Args:
        levels: the level of each method, with its SD over runs if there is one.
        marks: how methods are drawn.
    """
    if not levels:
        raise ValueError("Expected `levels` to have at least one method, but got none.")
    marks = marks or marks_of(list(levels))
    figure, axes = new_figure(height=0.9 + 0.3 * len(levels))
    names = sorted(levels, key=lambda name: (math.isnan(levels[name].mean), levels[name].mean), reverse=True)
    for place, name in enumerate(names):
        one = levels[name]
        spread = 0.0 if math.isnan(one.sd) else one.sd
        bars: dict[str, Any] = {"xerr": spread or None, "error_kw": {"elinewidth": 0.9, "ecolor": INK}}
        axes.barh(place, one.mean, 0.7, **bars, **_looks(marks[name]))
        text, end = ("undefined", 0.0) if math.isnan(one.mean) else (f"{one.mean:.1f}", one.mean + spread)
        axes.annotate(text, (end, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), [wrapped(name, 24, most=2) for name in names])
    axes.set_ylim(-0.65, len(names) - 0.35)
    axes.set_xlabel("imbalance level I")
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=6, prune="upper")
    axes.grid(visible=False, axis="y")
    return figure


@styled
def gradient_bars(values: Mapping[str, Mapping[str, Mapping[str, float]]], *, columns: int = 3) -> "Figure":
    """Draw (reward - penalty) / reward in per cent: below zero, the gradient pushes a group down more than up.

    If values differ much, the axis is linear around zero and logarithmic beyond; bars are cut at ±1,000 and have their
    number.

    Args:
        values: for each data set and method, the balance of each group.
        columns: panels per row.
    """
    if not values or not all(values.values()):
        raise ValueError("Expected `values` to have at least one method, but got none.")
    rows = max(len(methods) for methods in values.values())
    figure, all_axes = panels(len(values), columns=columns, height=1.3 + 0.4 * rows)
    groups = list(dict.fromkeys(g for methods in values.values() for found in methods.values() for g in found))
    everything = [v for methods in values.values() for found in methods.values() for v in found.values()]
    digits = None if any(abs(v) >= 100 for v in everything) else 1
    for axes, (data, methods) in zip(all_axes, values.items(), strict=True):
        known = [v for found in methods.values() for v in found.values() if math.isfinite(v)]
        for place, group in enumerate(groups):
            numbers = [found.get(group, math.nan) for found in methods.values()]
            ends = [min(max(number, -_END), _END) for number in numbers]
            spots = _spots(len(methods), len(groups), place)
            bars = axes.barh(spots, ends, 0.8 / len(groups), label=group, **_looks(group_mark(group, groups)))
            labels = ["" if math.isnan(number) else _number(number, digits) for number in numbers]
            axes.bar_label(bars, labels, padding=3, fontsize=8)
        note = ""
        if _differ_much(known):
            axes.set_xscale("symlog", linthresh=_LINEAR, linscale=0.4)
            ticks = [tick for tick in (-1000, -100, 0, 100, 1000) if min([*known, 0]) <= tick / 4 <= max([*known, 0])]
            axes.set_xticks(ticks, [_number(tick, 0) for tick in ticks], fontsize=8.5)
            axes.set_xticks([], minor=True)
            note = f"\nlogarithmic beyond ±{_LINEAR}"
        note += f"\nbars cut at ±{_END:,.0f}" if any(abs(number) > _END for number in known) else ""
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(methods)), [wrapped(name, 16, most=2) for name in methods])
        axes.invert_yaxis()
        axes.margins(x=0.3, y=0.02)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"(reward − penalty) / reward, %{note}")
        axes.set_title(data if len(values) > 1 else "")
    legend_below(figure, all_axes[0])
    return figure


def _number(number: float, digits: int | None = None) -> str:
    """A number with few digits: ``5.0``, ``−900``, ``−27,000``, ``−5e7``."""
    size = abs(number)
    if digits is not None:
        text = f"{size:,.{digits}f}"
    elif math.isinf(size):
        text = "∞"
    elif size < 10:
        text = f"{size:.1f}"
    elif size < 1e4:
        text = f"{size:,.0f}"
    else:
        text = (
            f"{float(f'{size:.1e}'):,.0f}" if size < 999_500 else f"{size:.0e}".replace("e+0", "e").replace("e+", "e")
        )
    return f"−{text}" if number < 0 and text.strip("0.") else text


def _differ_much(numbers: Sequence[float]) -> bool:
    """Whether the largest would be the only one to be seen on a linear axis."""
    sizes = sorted(map(abs, numbers))
    return len(sizes) > 1 and sizes[-1] > 8 * max(sizes[len(sizes) // 2], 1.0)
