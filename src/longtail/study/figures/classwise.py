"""Curves over classes, most frequent first: class probability and recall."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from longtail.study.figures.style import (
    HEIGHT,
    INK,
    WIDTH,
    Mark,
    legend_below,
    letters_in,
    marks_of,
    new_figure,
    styled,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 120
"""Up to this many classes are drawn one by one; more are drawn as means of neighbours."""

Values = Mapping[str, Sequence[float]]
Marks = Mapping[str, Mark] | None
Array = np.ndarray[Any, Any]


def _order(counts: Sequence[int]) -> Array:
    return np.argsort(-np.asarray(counts, dtype=np.float64), kind="stable")


def _binned(values: Sequence[float], order: Array) -> tuple[Array, Array]:
    """Ranks and values, most frequent class first; of many classes, the means of 60 groups of neighbours."""
    ranks = np.arange(1, len(order) + 1, dtype=np.float64)
    found = np.asarray(values, dtype=np.float64)[order]
    if len(found) <= FEW:
        return ranks, found
    means = [v[~np.isnan(v)].mean() if not np.isnan(v).all() else np.nan for v in np.array_split(found, 60)]
    return np.array([r.mean() for r in np.array_split(ranks, 60)]), np.array(means)


def _lines(axes: "Axes", counts: Sequence[int], models: Values, marks: Marks) -> Mapping[str, Mark]:
    """Draw a line per model; return the marks that were used."""
    if not models:
        raise ValueError("Expected `models` to have the values of at least one model, but got none.")
    for name, values in models.items():
        if len(values) != len(counts):
            raise ValueError(f"Expected `models` to have {len(counts)} values for {name}, but got {len(values)}.")
    marks, order = marks or marks_of(list(models)), _order(counts)
    for name, values in models.items():
        ranks, shown = _binned(values, order)
        mark, every = marks[name], max(1, len(ranks) // 12)
        looks: dict[str, Any] = {"color": mark.colour, "linestyle": mark.line, "marker": mark.marker}
        axes.plot(ranks, shown, markersize=4.5, markevery=every, label=name, **looks)
    return marks


def _name_classes(axes: "Axes", counts: Sequence[int], names: Sequence[str] | None) -> None:
    """Label up to twelve classes by name: upright if the names are short, otherwise slanted."""
    axes.set_xlabel("classes, most frequent first")
    if names is None or len(counts) > 12:
        return
    shown, places = [names[c] for c in _order(counts)], range(1, len(counts) + 1)
    longest, room = max(map(len, shown)), letters_in(0.8 * 72 * WIDTH / len(counts))
    if longest <= room:
        axes.set_xticks(places, shown)
        return
    labels = [wrapped(name, 14, most=2) for name in shown]
    looks: dict[str, Any] = {"rotation": 45, "rotation_mode": "anchor", "ha": "right", "va": "top", "linespacing": 0.9}
    axes.set_xticks(places, labels, fontsize=8.5, **looks)
    axes.figure.set_size_inches(WIDTH, HEIGHT + max(0.0, 0.05 * min(longest, 14) - 0.3))  # type: ignore[union-attr]


@styled
def class_probability(
    counts: Sequence[int], models: Values, *, names: Sequence[str] | None = None, marks: Marks = None
) -> "Figure":
    """Draw the mean predicted probability of each class on training data (lines) over its frequency (bars).

    Args:
        counts: training samples per class.
        models: mean probability of each class, by the titles of the models.
        names: class names, shown if there are at most twelve.
        marks: how models are drawn.
    """
    from matplotlib.ticker import LogLocator  # noqa: PLC0415 - an extra

    figure, axes = new_figure()
    ranks, frequency = _binned([count / max(1, sum(counts)) for count in counts], _order(counts))
    width = 0.8 * (ranks[1] - ranks[0] if len(ranks) > 1 else 1)
    axes.bar(ranks, frequency, width, color="#d9dce3", edgecolor=INK, linewidth=0.4, label="class frequency")
    _lines(axes, counts, models, marks)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    low, high = axes.get_ylim()
    few = high / low < 1000  # then 2 and 5 of each decade get a number too
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5) if few else "auto"))
    axes.yaxis.set_minor_formatter("{x:g}" if few else "")
    axes.set_ylabel("mean probability\n(logarithmic)")
    _name_classes(axes, counts, names)
    legend_below(figure, axes, columns=2)
    return figure


@styled
def class_recall(
    counts: Sequence[int],
    models: Values,
    *,
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    split: str = "test",
    marks: Marks = None,
) -> "Figure":
    """Draw the recall of each class, most frequent first.

    Args:
        counts: training samples per class.
        models: recall of each class in per cent, by the titles of the models; NaN for a class without samples.
        low: lower ends of the intervals of the first model, drawn if there are few classes.
        high: upper ends of them.
        names: class names, shown if there are at most twelve.
        split: the data that was evaluated; empty if the titles say it.
        marks: how models are drawn.
    """
    figure, axes = new_figure()
    used = _lines(axes, counts, models, marks)
    if low is not None and high is not None and len(counts) <= FEW:
        (ranks, lower), (_, upper) = (_binned(ends, _order(counts)) for ends in (low, high))
        axes.fill_between(ranks, lower, upper, color=used[next(iter(models))].colour, alpha=0.18, linewidth=0)
    axes.set_ylabel(f"recall, {split} data, %" if split else "recall, %")
    axes.set_ylim(-3, 103)
    _name_classes(axes, counts, names)
    if len(models) > 1:
        legend_below(figure, axes, columns=2)
    return figure
