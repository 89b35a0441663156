"""Balance of reward and penalty in the classifier's gradient, per group and method."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from longtail.study.figures.style import INK, group_mark, legend_below, panels, styled, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["gradient_bars"]

_END = 1000.0
"""Where bars are cut."""
_CLOSE = 100
"""Where all values of a figure are below it, each has one decimal."""
_LINEAR = 20
"""Where an axis for values that differ much is linear."""
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@styled
def gradient_bars(values: Mapping[str, Mapping[str, Mapping[str, float]]], *, columns: int = 3) -> "Figure":
    """(reward - penalty) / reward in per cent: below zero, more of the gradient pushes a group down than up.

    Where values differ much the axis is linear around zero and logarithmic beyond, and says so; bars beyond 1,000 are
    cut there, and have their number.

    Args:
        values: for each data set and method, the balance of each group.
        columns: panels in a row.
    """
    if not values or not all(values.values()):
        raise ValueError("Expected the gradient balance of a method or more to draw, but got none.")
    rows = max(len(methods) for methods in values.values())
    figure, all_axes = panels(len(values), columns=columns, height=1.3 + 0.4 * rows)
    groups = list(dict.fromkeys(g for methods in values.values() for found in methods.values() for g in found))
    sizes = [abs(v) for methods in values.values() for found in methods.values() for v in found.values()]
    close = not any(size >= _CLOSE for size in sizes)
    width = 0.8 / len(groups)
    for axes, (data, methods) in zip(all_axes, values.items(), strict=True):
        everything = [v for found in methods.values() for v in found.values() if math.isfinite(v)]
        wide = _is_wide(everything)
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
                        _signed(f"{abs(number):.1f}", number) if close else _number(number),
                        (end, spot),
                        (3 if number >= 0 else -3, 0),
                        va="center",
                        textcoords="offset points",
                        ha="left" if number >= 0 else "right",
                        fontsize=8,
                    )
        if wide:
            axes.set_xscale("symlog", linthresh=_LINEAR, linscale=0.4)
            ticks = [tick for tick in (-1000, -100, 0, 100, 1000) if _reached(tick, everything)]
            axes.set_xticks(ticks, [_signed(f"{abs(tick):,}", tick) for tick in ticks], fontsize=8.5)
            axes.set_xticks([], minor=True)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(methods)), [wrapped(name, 16, most=2) for name in methods])
        axes.invert_yaxis()
        axes.margins(x=0.3 if wide else 0.2, y=0.02)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("(reward − penalty) / reward, %" + _said(everything))
        if len(values) > 1:
            axes.set_title(data)
    legend_below(figure, all_axes[0])
    return figure


def _said(numbers: list[float]) -> str:
    """What an axis must say of itself where it is not linear, or where bars are cut."""
    cut = any(abs(number) > _END for number in numbers)
    said = [f"logarithmic beyond ±{_LINEAR}"] * _is_wide(numbers) + [f"bars cut at ±{_END:,.0f}"] * cut
    return "".join(f"\n{one}" for one in said)


def _number(number: float) -> str:
    """In full up to a million, with two digits that count beyond ten thousand; larger ones as a power of ten."""
    size = abs(number)
    digits, power = ("", "0") if math.isinf(size) else f"{size:.1e}".split("e")
    if math.isinf(size):
        text = "∞"
    elif size < 10:
        text = f"{size:.1f}"
    elif size < 10_000:
        text = f"{size:,.0f}"
    elif int(power) < 6:
        text = f"{float(digits) * 10 ** int(power):,.0f}"
    else:
        digits, power = f"{size:.0e}".split("e")
        text = f"{digits}×10{str(int(power)).translate(_RAISED)}"
    return _signed(text, number)


def _signed(text: str, number: float) -> str:
    return f"−{text}" if number < 0 and text.strip("0.") else text


def _reached(tick: float, numbers: list[float]) -> bool:
    return tick == 0 or (tick > 0 and max(numbers) >= tick / 4) or (tick < 0 and min(numbers) <= tick / 4)


def _is_wide(numbers: list[float]) -> bool:
    """Whether the largest is so far from the others that a linear axis would show it alone."""
    sizes = sorted(map(abs, numbers))
    return len(sizes) > 1 and sizes[-1] > 8 * max(sizes[len(sizes) // 2], 1.0)
