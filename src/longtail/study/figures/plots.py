"""The figures: recall over epochs, beta and classes, imbalance level, tail against head."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from longtail.study.figures.style import (
    INK,
    SPLITS,
    WIDTH,
    Mark,
    clipped,
    legend_below,
    letters_in,
    marks_of,
    new_figure,
    panels,
    style,
    wrapped,
)
from longtail.study.stats import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 24
"""Up to this many classes are points of a line; of more, means of neighbours are drawn."""
MOST_BARS, MOST_NAMES, NAMED = 120, 50, 12
"""Up to these many classes have their own bars, have names in a wide figure, and in a narrow one."""
BINS = 60
"""Bars of means of neighbours."""

Array = np.ndarray[Any, Any]
Marks = Mapping[str, Mark] | None
Recalls = Mapping[str, Sequence[float]]
HeadAndTail = tuple[Summary, Summary]
"""Recall of a method in per cent, of the head and of the tail."""
_BAR: dict[str, Any] = {"edgecolor": "#ffffff", "linewidth": 0.5}
_POINT: dict[str, Any] = {"linestyle": "", "markeredgecolor": INK, "markeredgewidth": 0.6}


# Recall of the groups over epochs, or over beta


@dataclass(frozen=True)
class Curves:
    """Recall in per cent at some epochs, for each group, on training and on test (or validation) data."""

    epochs: Sequence[float]
    train: Recalls
    test: Recalls


@style()
def learning_curves(losses: Sequence[Sequence[float]], curves: Curves | None, *, split: str = "test") -> "Figure":
    """Draw the training loss over epochs, a thin line per run and their mean, and the recall of each group below it."""
    figure, all_axes = panels(1 if curves is None else 2, columns=1, height=2.4)
    epochs = np.arange(1, len(losses[0]) + 1)
    for row in losses if len(losses) > 1 else ():
        all_axes[0].plot(epochs, row, color=INK, linewidth=0.8, alpha=0.4)
    all_axes[0].plot(epochs, np.nanmean(losses, 0), color=INK)
    all_axes[0].set(ylabel="training loss")
    if curves is not None:
        marks = marks_of(list(curves.train))
        draw_recalls(all_axes[1], curves.epochs, curves.train, marks, "training")
        draw_recalls(all_axes[1], curves.epochs, curves.test, marks, split)
        all_axes[1].set(ylabel="recall, %", ylim=(-3, 103), xlim=all_axes[0].get_xlim())
        recall_legend(figure, all_axes[1], marks, ["training", split])
    all_axes[-1].set_xlabel("epoch")
    all_axes[-1].locator_params(axis="x", integer=True)
    return figure


@style()
def sensitivity(
    strengths: Sequence[float],
    recalls: Mapping[str, Recalls],
    *,
    chosen: float | None = None,
    chosen_on: str = "validation data",
    what: str = "β",
) -> "Figure":
    """Draw the recall of each group in per cent, by split and group, over beta or another strength, ascending."""
    figure, axes = new_figure(height=3.6)
    words = {"train": "training", "test": "test", "val": "validation"}
    marks = marks_of(list(dict.fromkeys(group for found in recalls.values() for group in found)))
    for split, found in recalls.items():
        draw_recalls(axes, strengths, found, marks, words[split])
    if chosen is not None:
        axes.axvline(chosen, color=INK, linewidth=0.9, alpha=0.6)
        axes.set_title(f"line: {what} = {chosen:g}, chosen on {chosen_on}", fontsize=9.0, fontweight="normal")
    axes.set(xlabel=what, ylabel="recall, %")
    recall_legend(figure, axes, marks, [words[split] for split in recalls])
    return figure


@style()
def beta_traces(traces: Sequence[Sequence[Sequence[float]]]) -> "Figure":
    """Draw the beta that held-out data needs over epochs, a line per run with a band of one standard error.

    ``traces`` has the epochs, the betas and the standard errors of each run.
    """
    figure, axes = new_figure(height=3.0)
    marks = marks_of([str(place) for place in range(len(traces))]).values()
    for mark, (epochs, betas, errors) in zip(marks, traces, strict=True):
        low, high = np.subtract(betas, errors), np.add(betas, errors)
        axes.fill_between(epochs, low, high, color=mark.color, alpha=0.15, linewidth=0)
        axes.plot(epochs, betas, markersize=4.5, markevery=max(1, len(epochs) // 8), **mark.options)
    axes.set(xlabel="epoch", ylabel="measured β")
    axes.locator_params(axis="x", integer=True)
    return figure


def draw_recalls(axes: "Axes", x: Sequence[float], recalls: Recalls, marks: Mapping[str, Mark], split: str) -> None:
    """Draw the recall of each group, with the line of the split."""
    for name, values in recalls.items():
        if name in marks:
            face = marks[name].color if split == "training" else "#ffffff"
            options = marks[name].options | {"linestyle": SPLITS[split], "markerfacecolor": face}
            axes.plot(x, values, markersize=4.5, markevery=max(1, len(x) // 8), **options)


def recall_legend(
    figure: "Figure", axes: "Axes", groups: Mapping[str, Mark], splits: Sequence[str], columns: int = 3
) -> None:
    """Add a legend: groups by colour and marker, then splits by line style, in separate columns."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra

    handles = [Line2D([], [], color=mark.color, marker=mark.marker, label=name) for name, mark in groups.items()]
    if columns == 3 and len(groups) % 2:
        handles.append(Line2D([], [], linestyle="", label=" "))
    handles += [Line2D([], [], color=INK, linestyle=SPLITS[split], label=split) for split in splits]
    legend_below(figure, axes, columns, handles=handles, labels=[str(one.get_label()) for one in handles])


# Classes, most frequent first


def _order(counts: Sequence[int]) -> Array:
    return np.argsort(-np.asarray(counts, dtype=np.float64), kind="stable")


def _bins(number: int, few: int) -> int:
    """The number of groups of neighbours, all of about the same size: at most 60 bars or 24 points."""
    return math.ceil(number / math.ceil(number / min(few, BINS)))


def _binned(values: Sequence[float], order: Array, few: int = FEW) -> tuple[Array, Array]:
    """Ranks and values, most frequent class first; of many classes, the means of groups of neighbours."""
    ranks, found = np.arange(1, len(order) + 1, dtype=np.float64), np.asarray(values, dtype=np.float64)[order]
    if len(found) <= few:
        return ranks, found
    bins = _bins(len(found), few)
    means = [v[~np.isnan(v)].mean() if not np.isnan(v).all() else np.nan for v in np.array_split(found, bins)]
    return np.array([r.mean() for r in np.array_split(ranks, bins)]), np.array(means)


def _name_classes(axes: "Axes", names: Sequence[str] | None, order: Array) -> None:
    """Write the names of few classes under the axis."""
    axes.set_xlabel("classes, most frequent first")
    if names is None or len(order) > MOST_NAMES:
        return
    labels, places = [names[c] for c in order], range(1, len(order) + 1)
    if len(order) > NAMED:
        axes.set_xticks(places, [clipped(name) for name in labels], fontsize=8.0, rotation=90)
        axes.figure.set_figheight(axes.figure.get_figheight() + 1.7)  # type: ignore[union-attr]
    elif max(map(len, labels)) <= letters_in(0.8 * 72 * WIDTH / len(order)):
        axes.set_xticks(places, labels)
    else:
        slanted: dict[str, Any] = {"rotation": 45, "rotation_mode": "anchor", "ha": "right", "va": "top"}
        axes.set_xticks(places, [wrapped(name, 14, most=2) for name in labels], fontsize=8.5, **slanted)
        axes.figure.set_figheight(axes.figure.get_figheight() + 0.4)  # type: ignore[union-attr]


@style()
def class_probability(
    counts: Sequence[int], models: Recalls, *, names: Sequence[str] | None = None, marks: Marks = None
) -> "Figure":
    """Draw the mean predicted probability of each class on training data (lines) over its frequency (bars)."""
    from matplotlib.ticker import LogLocator, NullLocator  # noqa: PLC0415 - an extra

    figure, axes = new_figure()
    ranks, frequency = _binned([count / max(1, sum(counts)) for count in counts], _order(counts))
    width = 0.8 * (ranks[1] - ranks[0] if len(ranks) > 1 else 1)
    axes.bar(ranks, frequency, width, color="#d9dce3", edgecolor=INK, linewidth=0.4, label="class frequency")
    marks = marks or marks_of(list(models))
    for name, values in models.items():
        ranks, shown = _binned(values, _order(counts))
        axes.plot(ranks, shown, markersize=4.5, markevery=max(1, len(ranks) // 12), label=name, **marks[name].options)
    _name_classes(axes, names if len(counts) <= NAMED else None, _order(counts))
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("mean probability\n(logarithmic)")
    legend_below(figure, axes, columns=2)
    return figure


@style()
def class_recall(
    counts: Sequence[int],
    models: Recalls,
    *,
    groups: Mapping[str, Sequence[int]] | None = None,
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
) -> "Figure":
    """Draw the recall of each class in per cent as bars, most frequent first, a panel per model.

    Classes without samples (NaN) are grey; those of a group have one colour. ``low`` and ``high`` are the intervals of
    the first model, drawn if there are few classes.
    """
    order, colors = _order(counts), np.full(len(counts), "#0072B2", dtype=object)
    marks = marks_of(list(groups or ()))
    for name, members in (groups or {}).items():
        colors[list(members)] = marks[name].color
    wide = len(counts) > NAMED
    figure, all_axes = panels(len(models), columns=1, width=WIDTH * (1 + wide), height=1.4 if len(models) > 1 else 2.6)
    bins = np.array_split(colors[order], _bins(len(counts), MOST_BARS) if len(counts) > MOST_BARS else len(counts))
    for place, (axes, (title, values)) in enumerate(zip(all_axes, models.items(), strict=True)):
        ranks, shown = _binned(values, order, MOST_BARS)
        width, unknown = 0.8 * (ranks[1] - ranks[0] if len(ranks) > 1 else 1), np.isnan(shown)
        axes.bar(ranks[unknown], 100, width, color="#d9dce3")
        axes.bar(ranks, np.nan_to_num(shown), width, color=[one[len(one) // 2] for one in bins])
        if place == 0 and low is not None and high is not None and len(counts) <= MOST_NAMES:
            ends = np.abs([np.subtract(values, low), np.subtract(high, values)])[:, order]
            lines: dict[str, Any] = {"fmt": "none", "ecolor": INK, "elinewidth": 0.8}
            axes.errorbar(ranks[~unknown], shown[~unknown], ends[:, ~unknown], **lines)
        axes.set(ylim=(0, 104), yticks=(0, 50, 100), xlim=(ranks[0] - width, ranks[-1] + width), ylabel="recall, %")
        axes.grid(visible=False, axis="x")
        axes.tick_params(labelbottom=place == len(models) - 1)
        if len(models) > 1:
            axes.set_title(title, loc="left", fontsize=9.5)
    _name_classes(all_axes[-1], names, order)
    if len(marks) > 1:
        from matplotlib.patches import Patch  # noqa: PLC0415 - an extra

        handles = [Patch(color=mark.color, label=name) for name, mark in marks.items()]
        legend_below(figure, all_axes[-1], len(marks), handles=handles, labels=list(marks))
    return figure


@style()
def confusion(shares: Sequence[Sequence[float]], counts: Sequence[int], names: Sequence[str]) -> "Figure":
    """Draw how often each class (row) is predicted as which (column), most frequent first; mistakes are red.

    ``shares`` are per cent of the samples of each class, ``(C, C)``; NaN in the row of a class without samples.
    """
    from matplotlib.collections import PolyCollection  # noqa: PLC0415 - an extra

    order, size = _order(counts), len(counts)
    values = np.nan_to_num(np.asarray(shares, dtype=np.float64))[order][:, order]
    side = WIDTH if size <= NAMED else 2 * WIDTH
    figure, axes = new_figure(side, side)
    rows, columns = np.nonzero(values >= 0.5)
    boxes = [[(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)] for y, x in zip(rows, columns, strict=True)]
    faces = ["#0072B2" if y == x else "#D55E00" for y, x in zip(rows, columns, strict=True)]
    strong = 0.1 + 0.9 * np.sqrt(values[rows, columns] / 100)  # a few per cent are visible
    axes.add_collection(PolyCollection(boxes, facecolors=faces, alpha=strong.tolist(), linewidths=0))
    if size <= NAMED:
        for y, x in zip(rows, columns, strict=True):
            axes.text(x + 0.5, y + 0.5, f"{values[y, x]:.0f}", ha="center", va="center", fontsize=8.0)
    axes.set(xlim=(0, size), ylim=(size, 0), xlabel="predicted class", ylabel="true class")
    size_of = 9.0 if size <= NAMED else max(5.5, 8.5 - size / 20)
    shown = [clipped(names[c]) for c in order]
    upright = 0 if max(map(len, shown)) < 3 else 90
    axes.set_xticks(np.arange(size) + 0.5, shown, rotation=upright, fontsize=size_of)
    axes.set_yticks(np.arange(size) + 0.5, shown, fontsize=size_of)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.set_aspect("equal")
    return figure


# Bars


@style()
def level_bars(levels: Mapping[str, Summary], *, marks: Marks = None) -> "Figure":
    """Draw model imbalance levels as horizontal bars, the lowest at the top."""
    marks = marks or marks_of(list(levels))
    figure, axes = new_figure(height=0.9 + 0.3 * len(levels))
    names = sorted(levels, key=lambda name: (math.isnan(levels[name].mean), levels[name].mean), reverse=True)
    for place, name in enumerate(names):
        one = levels[name]
        spread = 0.0 if math.isnan(one.sd) else one.sd
        errors: dict[str, Any] = {"xerr": spread or None, "error_kw": {"elinewidth": 0.9, "ecolor": INK}}
        axes.barh(place, one.mean, 0.7, color=marks[name].color, **errors, **_BAR)
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


# Methods as points


def _known(points: Mapping[str, HeadAndTail]) -> dict[str, HeadAndTail]:
    return {name: both for name, both in points.items() if not any(math.isnan(one.mean) for one in both)}


def frontier(points: Mapping[str, HeadAndTail]) -> list[str]:
    """Return the methods that no other method beats on both head and tail, by head recall.

    Example:
        >>> recalls = {"a": (90, 50), "b": (80, 70), "c": (79, 60)}
        >>> frontier({name: (Summary(head, 0, 1), Summary(tail, 0, 1)) for name, (head, tail) in recalls.items()})
        ['b', 'a']
    """
    known = {name: (head.mean, tail.mean) for name, (head, tail) in _known(points).items()}
    kept = [
        name
        for name, (head, tail) in known.items()
        if not any(h >= head and t >= tail and (h, t) != (head, tail) for h, t in known.values())
    ]
    return sorted(kept, key=lambda name: (known[name][0], -known[name][1]))


@style()
def trade_off(
    points: Mapping[str, HeadAndTail],
    *,
    head: str = "head",
    tail: str = "tail",
    split: str = "test",
    marks: Marks = None,
) -> "Figure":
    """Draw tail recall over head recall, a point per method; up and right is better."""
    known = _known(points)
    figure, axes = new_figure()
    marks = marks or marks_of(list(points))
    for name, (x, y) in known.items():
        errors: dict[str, Any] = {f"{axis}err": one.sd for axis, one in (("x", x), ("y", y)) if one.sd > 0}
        axes.errorbar(x.mean, y.mean, **errors, fmt="none", ecolor=marks[name].color, elinewidth=0.9, zorder=2)
        options = marks[name].options | _POINT
        axes.plot(x.mean, y.mean, markersize=7, label=name, zorder=3, clip_on=False, **options)
    best = [known[name] for name in frontier(known)]
    if len(best) > 1:
        line: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": (0, (3, 2)), "alpha": 0.7, "zorder": 1}
        axes.plot([x.mean for x, _ in best], [y.mean for _, y in best], label="frontier", **line)
    axes.margins(0.16)
    axes.set_xlim(max(0.0, axes.get_xlim()[0]), min(100.0, axes.get_xlim()[1]))
    axes.set_ylim(max(0.0, axes.get_ylim()[0]), min(100.0, axes.get_ylim()[1]))
    axes.set_xlabel(f"{head} recall, {split} data, %")
    axes.set_ylabel(f"{tail} recall, {split} data, %")
    rows = legend_below(figure, axes, columns=2)
    figure.set_size_inches(WIDTH, 3.0 + 0.19 * rows)
    return figure
