"""Tail recall against head recall, a point a method, with the frontier of those that none is better than in both."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longtail.study.figures.labels import is_far, place_labels
from longtail.study.figures.style import INK, Mark, marks_of, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Point", "frontier", "trade_off"]


@dataclass(frozen=True)
class Point:
    """A method's recall, in per cent, with SDs over runs where there are several."""

    head: float
    tail: float
    head_sd: float = math.nan
    tail_sd: float = math.nan


def frontier(points: Mapping[str, Point]) -> list[str]:
    """Methods that no other equals or beats on both head and tail, by head recall.

    Example:
        >>> frontier({"a": Point(90, 50), "b": Point(80, 70), "c": Point(79, 60)})
        ['b', 'a']
    """
    known = {name: p for name, p in points.items() if not (math.isnan(p.head) or math.isnan(p.tail))}
    kept = [
        name
        for name, p in known.items()
        if not any(
            q.head >= p.head and q.tail >= p.tail and (q.head, q.tail) != (p.head, p.tail) for q in known.values()
        )
    ]
    return sorted(kept, key=lambda name: (known[name].head, -known[name].tail))


@styled
def trade_off(
    points: Mapping[str, Point],
    *,
    head: str = "head",
    tail: str = "tail",
    marks: Mapping[str, Mark] | None = None,
) -> "Figure":
    """Who pays for the tail: up and right is better.

    Args:
        points: by the methods' titles.
        head: the group on the horizontal axis.
        tail: the group on the vertical axis.
        marks: how methods are drawn (default: by their place).
    """
    known = {name: p for name, p in points.items() if not (math.isnan(p.head) or math.isnan(p.tail))}
    if not known:
        raise ValueError("Expected head and tail recall of a method or more to draw, but got none.")
    figure, axes = new_figure(height=3.7)
    marks = marks or marks_of(list(points))
    best = frontier(known)
    axes.plot(
        [known[n].head for n in best],
        [known[n].tail for n in best],
        color=INK,
        linewidth=1.0,
        linestyle=(0, (3, 2)),
        alpha=0.7,
        label="frontier",
        zorder=1,
    )
    for name, p in known.items():
        axes.errorbar(
            p.head,
            p.tail,
            xerr=_spread(p.head_sd),
            yerr=_spread(p.tail_sd),
            marker=marks[name].marker,
            color=marks[name].colour,
            markersize=7,
            markeredgecolor=INK,
            markeredgewidth=0.6,
            linestyle="",
            elinewidth=0.9,
            zorder=2,
        )
    axes.margins(0.16)
    axes.set_xlabel(f"{head} recall, test data, %")
    axes.set_ylabel(f"{tail} recall, test data, %")
    axes.legend(loc="lower left")
    _label(axes, known)
    return figure


def _spread(sd: float) -> float | None:
    return None if math.isnan(sd) or sd == 0 else sd


def _label(axes: "Axes", points: Mapping[str, Point]) -> None:
    """Names beside points."""
    figure = axes.figure
    size = figure.get_size_inches() * 72  # type: ignore[union-attr]
    low, high = axes.get_xlim(), axes.get_ylim()
    inner = (0.80 * size[0], 0.78 * size[1])  # about what the axes take up
    wide, tall = inner[0] / (low[1] - low[0]), inner[1] / (high[1] - high[0])
    spots = {name: ((p.head - low[0]) * wide, (p.tail - high[0]) * tall) for name, p in points.items()}
    taken = [(0.0, 0.0, 72.0, 18.0)]  # the legend
    for name, (x, y) in spots.items():
        across, up = (_spread(points[name].head_sd) or 0.0) * wide, (_spread(points[name].tail_sd) or 0.0) * tall
        taken += [(x - across, y - 1, x + across, y + 1), (x - 1, y - up, x + 1, y + up)]
    for name, offset in place_labels(spots, inner, taken).items():
        axes.annotate(
            name,
            (points[name].head, points[name].tail),
            offset[:2],
            textcoords="offset points",
            ha=offset[2],
            va="center",
            fontsize=9,
            bbox={"facecolor": "#ffffff", "alpha": 0.75, "linewidth": 0, "pad": 0.6},
            arrowprops=_line(offset[2]) if is_far(offset) else None,
        )


def _line(side: str) -> dict[str, Any]:
    """From a name's near end to its point."""
    near = {"left": 0.0, "center": 0.5, "right": 1.0}[side]
    return {"arrowstyle": "-", "linewidth": 0.5, "color": INK, "relpos": (near, 0.5)}
