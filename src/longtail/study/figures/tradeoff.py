"""Tail recall against head recall, a point a method, with the frontier of those that none is better than in both."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longtail.study.figures.labels import Box, Offset, is_crowded, is_far, place_labels
from longtail.study.figures.style import INK, WIDTH, Mark, legend_below, marks_of, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Point", "frontier", "trade_off"]

_TALL = 3.7


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
    split: str = "test",
    marks: Mapping[str, Mark] | None = None,
) -> "Figure":
    """Who pays for the tail: up and right is better.

    Args:
        points: by the methods' titles.
        head: the group on the horizontal axis.
        tail: the group on the vertical axis.
        split: the data that recall was measured on.
        marks: how methods are drawn (default: by their place).
    """
    known = {name: p for name, p in points.items() if not (math.isnan(p.head) or math.isnan(p.tail))}
    if not known:
        raise ValueError("Expected head and tail recall of a method or more to draw, but got none.")
    figure, axes = new_figure(height=_TALL)
    marks = marks or marks_of(list(points))
    best = frontier(known)
    axes.plot(
        [known[n].head for n in best],
        [known[n].tail for n in best],
        color=INK,
        linewidth=1.0,
        linestyle=(0, (3, 2)),
        alpha=0.7,
        label="frontier" if len(best) > 1 else "_",
        zorder=1,
    )
    for name, p in known.items():
        axes.errorbar(
            p.head,
            p.tail,
            xerr=_spread(p.head_sd),
            yerr=_spread(p.tail_sd),
            fmt="none",
            ecolor=marks[name].colour,
            elinewidth=0.9,
            zorder=2,
        )
        axes.plot(p.head, p.tail, **_looks(marks[name]), zorder=3, clip_on=False)
    axes.margins(0.16)
    axes.set_xlim(max(0.0, axes.get_xlim()[0]), min(100.0, axes.get_xlim()[1]))
    axes.set_ylim(max(0.0, axes.get_ylim()[0]), min(100.0, axes.get_ylim()[1]))
    axes.set_xlabel(f"{head} recall, {split} data, %")
    axes.set_ylabel(f"{tail} recall, {split} data, %")
    legend_below(figure, axes)
    _label(figure, axes, known, marks)
    return figure


def _looks(mark: Mark) -> dict[str, Any]:
    return {
        "marker": mark.marker,
        "color": mark.colour,
        "markersize": 7,
        "markeredgecolor": INK,
        "markeredgewidth": 0.6,
        "linestyle": "",
    }


def _spread(sd: float) -> float | None:
    return None if math.isnan(sd) or sd == 0 else sd


def _label(figure: "Figure", axes: "Axes", points: Mapping[str, Point], marks: Mapping[str, Mark]) -> None:
    """Names beside points; where there is no room for them numbers, and a key below."""
    placed, crowded = _placed(figure, axes, points)
    if crowded:
        numbers = {name: f"{place}" for place, name in enumerate(points, 1)}
        _key(figure, axes, {f"{numbers[name]}  {name}": marks[name] for name in points})
        points = {numbers[name]: point for name, point in points.items()}
        placed, _ = _placed(figure, axes, points)
    for name, offset in placed.items():
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
            zorder=4,
        )


def _placed(figure: "Figure", axes: "Axes", points: Mapping[str, Point]) -> tuple[dict[str, Offset], bool]:
    """Where names go in the figure as it is laid out, and whether that is too many of them."""
    figure.draw_without_rendering()
    box, scale = axes.get_window_extent(), 72 / figure.dpi

    def spot(x: float, y: float) -> tuple[float, float]:
        across, up = axes.transData.transform((x, y))
        return (across - box.x0) * scale, (up - box.y0) * scale

    inner = (box.width * scale, box.height * scale)
    spots = {name: spot(p.head, p.tail) for name, p in points.items()}
    taken: list[Box] = []
    for name, p in points.items():
        (x, y), (right, top) = spots[name], spot(p.head + (_spread(p.head_sd) or 0), p.tail + (_spread(p.tail_sd) or 0))
        taken += [(2 * x - right, y - 1, right, y + 1), (x - 1, 2 * y - top, x + 1, top)]
    placed = place_labels(spots, inner, taken)
    return placed, is_crowded(spots, inner, placed)


def _key(figure: "Figure", axes: "Axes", marks: Mapping[str, Mark]) -> None:
    """A legend below with a line for each point, in place of the one that is there; the figure grows by it."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra

    handles, names = axes.get_legend_handles_labels()
    for legend in figure.legends:
        legend.remove()
    handles = [Line2D([], [], **_looks(mark)) for mark in marks.values()] + handles
    figure.legend(
        handles,
        [*marks, *names],
        loc="outside lower center",
        ncols=2,
        labelcolor=INK,
        fontsize=9.0,
        labelspacing=0.3,
        handlelength=1.2,
        columnspacing=1.2,
    )
    figure.set_size_inches(WIDTH, _TALL + 0.19 * math.ceil(len(handles) / 2))


def _line(side: str) -> dict[str, Any]:
    """From a name's near end to its point."""
    near = {"left": 0.0, "center": 0.5, "right": 1.0}[side]
    return {"arrowstyle": "-", "linewidth": 0.5, "color": INK, "relpos": (near, 0.5)}
