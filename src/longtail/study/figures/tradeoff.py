"""Tail recall against head recall, a point a method, with the frontier of those that none is better than in both."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


_PLACES = [(8, 0, "left"), (-8, 0, "right"), (0, 11, "center"), (0, -11, "center")]
_PLACES += [(7, 9, "left"), (7, -9, "left"), (-7, 9, "right"), (-7, -9, "right")]
_PLACES += [
    (7, 18, "left"),
    (7, -18, "left"),
    (-7, 18, "right"),
    (-7, -18, "right"),
    (0, 24, "center"),
    (0, -24, "center"),
]
_PLACES += [(10, 30, "left"), (10, -30, "left"), (-10, 30, "right"), (-10, -30, "right")]


def _label(axes: "Axes", points: Mapping[str, Point]) -> None:
    """Names beside points, each where it hides least."""
    figure = axes.figure
    size = figure.get_size_inches() * 72  # type: ignore[union-attr]
    low, high = axes.get_xlim(), axes.get_ylim()
    inner = (0.80 * size[0], 0.78 * size[1])  # about what the axes take up
    wide, tall = inner[0] / (low[1] - low[0]), inner[1] / (high[1] - high[0])
    spots = {name: ((p.head - low[0]) * wide, (p.tail - high[0]) * tall) for name, p in points.items()}
    taken = [(0.0, 0.0, 62.0, 16.0)]  # the legend
    for name, (x, y) in spots.items():
        sd = [(_spread(points[name].head_sd) or 0.0) * wide, (_spread(points[name].tail_sd) or 0.0) * tall]
        taken += [
            (x - 5, y - 5, x + 5, y + 5),
            (x - sd[0], y - 1, x + sd[0], y + 1),
            (x - 1, y - sd[1], x + 1, y + sd[1]),
        ]
    for name, (left, bottom) in sorted(spots.items(), key=lambda one: -one[1][1]):
        width, height = 5.4 * len(name) + 4, 11.0
        best, cost = _PLACES[0], math.inf
        for place in _PLACES:
            start = left + place[0] - {"left": 0.0, "right": width, "center": width / 2}[place[2]]
            box = (start, bottom + place[1] - height / 2, start + width, bottom + place[1] + height / 2)
            outside = max(0, -box[0]) + max(0, box[2] - inner[0]) + max(0, -box[1]) + max(0, box[3] - inner[1])
            found = 30 * outside + sum(_overlap(box, other) for other in taken) + 0.2 * math.hypot(place[0], place[1])
            if found < cost:
                best, cost, kept = place, found, box
        taken.append(kept)
        far = math.hypot(best[0], best[1]) > 15
        axes.annotate(
            name,
            (points[name].head, points[name].tail),
            best[:2],
            textcoords="offset points",
            ha=best[2],
            va="center",
            fontsize=9,
            bbox={"facecolor": "#ffffff", "alpha": 0.75, "linewidth": 0, "pad": 0.6},
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": INK} if far else None,
        )


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0
