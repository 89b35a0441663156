"""Curves over classes, most frequent first: class probability against frequency, target probability, recall."""

import math
import textwrap
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

__all__ = ["class_probability", "class_recall", "target_probability"]

_FEW = 120  # classes that are drawn one by one; more are drawn as means of neighbours
_DECADES = 3  # that an axis has room for 2 and 5 in


def _order(counts: Sequence[int]) -> "np.ndarray[Any, Any]":
    """Classes, most frequent first; of equals the lower index."""
    return np.argsort(-np.asarray(counts, dtype=np.float64), kind="stable")


def _binned(values: "np.ndarray[Any, Any]") -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """Ranks and values; of many classes, means over neighbours."""
    ranks = np.arange(1, len(values) + 1, dtype=np.float64)
    if len(values) <= _FEW:
        return ranks, values
    parts = [(r.mean(), _mean(v)) for r, v in zip(np.array_split(ranks, 60), np.array_split(values, 60), strict=True)]
    return np.array([r for r, _ in parts]), np.array([v for _, v in parts])


def _mean(values: "np.ndarray[Any, Any]") -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _line(axes: "Axes", values: Sequence[float], order: "np.ndarray[Any, Any]", mark: Mark, label: str) -> None:
    ranks, shown = _binned(np.asarray(values, dtype=np.float64)[order])
    axes.plot(
        ranks,
        shown,
        color=mark.colour,
        linestyle=mark.line,
        marker=mark.marker,
        markersize=4.5,
        markevery=max(1, len(ranks) // 12),
        label=label,
    )


def _name_classes(axes: "Axes", order: "np.ndarray[Any, Any]", names: Sequence[str] | None) -> None:
    """Few classes by their names: upright where they fit, else slanted, in two lines where they are long."""
    axes.set_xlabel("classes, most frequent first")
    if names is None or len(order) > 12:
        return
    shown = [names[c] for c in order]
    places, room = range(1, len(order) + 1), letters_in(0.8 * 72 * WIDTH / len(order))
    if all(_fits(name, room) for name in shown):
        axes.set_xticks(places, [wrapped(name, room, most=2) for name in shown])
        return
    longest = max(map(len, shown))
    slant, line = (35, longest) if longest <= 14 else (60, 14)
    labels = [wrapped(name, line, most=2) for name in shown]
    looks: dict[str, Any] = {
        "rotation": slant,
        "rotation_mode": "anchor",
        "ha": "right",
        "va": "top",
        "linespacing": 0.9,
    }
    axes.set_xticks(places, labels, fontsize=9.0 if slant < 60 else 8.5, **looks)
    tall = 5.0 * min(longest, line) * math.sin(math.radians(slant)) / 72
    axes.figure.set_size_inches(WIDTH, HEIGHT + max(0.0, tall - 0.3))  # type: ignore[union-attr]


def _fits(name: str, letters: int) -> bool:
    lines = textwrap.wrap(name, letters, break_long_words=False)
    return len(lines) <= 2 and all(len(line) <= letters for line in lines)


def _check(counts: Sequence[int], models: Mapping[str, Sequence[float]]) -> None:
    if not models:
        raise ValueError("Expected values of a model or more to draw, but got none.")
    for name, values in models.items():
        if len(values) != len(counts):
            raise ValueError(f"Expected a value of each of {len(counts)} classes for {name}, but got {len(values)}.")


def _logarithmic(axes: "Axes") -> None:
    """A logarithmic axis, on which 2 and 5 of a decade have their numbers too where it has few decades."""
    from matplotlib.ticker import LogLocator  # noqa: PLC0415 - an extra

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    low, high = axes.get_ylim()
    few = high / low < 10**_DECADES
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5) if few else "auto"))
    axes.yaxis.set_minor_formatter("{x:g}" if few else "")


@styled
def class_probability(
    counts: Sequence[int],
    models: Mapping[str, Sequence[float]],
    *,
    names: Sequence[str] | None = None,
    marks: Mapping[str, Mark] | None = None,
) -> "Figure":
    """Class probability p(y=c) on training data against class frequency.

    Args:
        counts: training images of each class.
        models: p(y=c) of each class, by the models' titles, such as of a balanced and of an imbalanced one.
        names: of the classes, shown where they are few.
        marks: how models are drawn (default: by their place).
    """
    _check(counts, models)
    marks = marks or marks_of(list(models))
    figure, axes = new_figure()
    order = _order(counts)
    ranks, frequency = _binned(np.asarray(counts, dtype=np.float64)[order] / max(1, sum(counts)))
    axes.bar(
        ranks,
        frequency,
        width=0.8 * (ranks[1] - ranks[0] if len(ranks) > 1 else 1),
        color="#d9dce3",
        edgecolor=INK,
        linewidth=0.4,
        label="class frequency",
    )
    for title, values in models.items():
        _line(axes, values, order, marks[title], title)
    _logarithmic(axes)
    axes.set_ylabel("p(y = c) on training data\n(logarithmic)")
    _name_classes(axes, order, names)
    legend_below(figure, axes, columns=2)
    return figure


@styled
def target_probability(
    counts: Sequence[int],
    models: Mapping[str, Sequence[float]],
    *,
    names: Sequence[str] | None = None,
    split: str = "training",
    marks: Mapping[str, Mark] | None = None,
) -> "Figure":
    """Mean probability of the true class, over the samples of each class.

    Args:
        counts: training images of each class.
        models: the means, by the models' titles.
        names: of the classes, shown where they are few.
        split: the data that it was measured on; empty where the models say it.
        marks: how models are drawn (default: by their place).
    """
    _check(counts, models)
    marks = marks or marks_of(list(models))
    figure, axes = new_figure()
    order = _order(counts)
    for title, values in models.items():
        _line(axes, values, order, marks[title], title)
    axes.set_ylabel(f"target probability, {split}" if split else "target probability")
    axes.set_ylim(-0.03, 1.03)
    _name_classes(axes, order, names)
    legend_below(figure, axes, columns=2)
    return figure


@styled
def class_recall(
    counts: Sequence[int],
    models: Mapping[str, Sequence[float]],
    *,
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    split: str = "test",
    marks: Mapping[str, Mark] | None = None,
) -> "Figure":
    """Recall of each class, most frequent first.

    Args:
        counts: training images of each class.
        models: recall of each class, in per cent, by the models' titles; NaN where there is no sample.
        low: lower ends of the first model's intervals, where classes are few.
        high: upper ends of them.
        names: of the classes, shown where they are few.
        split: the data that it was measured on; empty where the models say it.
        marks: how models are drawn (default: by their place).
    """
    _check(counts, models)
    marks = marks or marks_of(list(models))
    figure, axes = new_figure()
    order = _order(counts)
    for place, (title, values) in enumerate(models.items()):
        _line(axes, values, order, marks[title], title)
        if place == 0 and low is not None and high is not None and len(counts) <= _FEW:
            ends = [np.asarray(end, dtype=np.float64)[order] for end in (low, high)]
            axes.fill_between(np.arange(1, len(order) + 1), *ends, color=marks[title].colour, alpha=0.18, linewidth=0)
    axes.set_ylabel(f"recall, {split} data, %" if split else "recall, %")
    axes.set_ylim(-3, 103)
    _name_classes(axes, order, names)
    if len(models) > 1:
        legend_below(figure, axes, columns=2)
    return figure
