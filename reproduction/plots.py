"""Figures of the paper that reports do not have: recall over epochs, balance of the gradient, and single runs."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from longtail.study.figures.plots import Curves, draw_recalls, recall_legend
from longtail.study.figures.style import (
    INK,
    Mark,
    legend_below,
    letters_in,
    marks_of,
    panels,
    style,
    wrapped,
)
from longtail.study.stats import Alternative, compare, format_p

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Marks = Mapping[str, Mark] | None
_BAR: dict[str, Any] = {"edgecolor": "#ffffff", "linewidth": 0.5}
_POINT: dict[str, Any] = {"linestyle": "", "markeredgecolor": INK, "markeredgewidth": 0.6}
_CUT = 1000
"""Bars of gradients end here; each has its number."""


@style()
def recall_curves(methods: Mapping[str, Curves]) -> "Figure":
    """Draw recall over epochs, a panel per method: solid on training data, dashed on test data."""
    figure, all_axes = panels(len(methods), share_y=True)
    marks = marks_of(list(dict.fromkeys(name for curves in methods.values() for name in curves.test if name != "all")))
    for axes, (title, curves) in zip(all_axes, methods.items(), strict=True):
        draw_recalls(axes, curves.epochs, curves.train, marks, "training")
        draw_recalls(axes, curves.epochs, curves.test, marks, "test")
        axes.set(title=title, xlabel="epoch", ylim=(-3, 103), ylabel="recall, %" if starts_row(axes) else "")
    recall_legend(figure, all_axes[0], marks, ["training", "test"], columns=3 if len(methods) == 1 else 6)
    return figure


def starts_row(axes: "Axes") -> bool:
    """Return whether a panel is the first of its row, which has the label of the vertical axis."""
    place = axes.get_subplotspec()
    return place is not None and place.is_first_col()


@style()
def gradient_bars(values: Mapping[str, Mapping[str, Mapping[str, float]]]) -> "Figure":
    """Draw (reward - penalty) / reward in per cent: below zero, the gradient pushes a group down more than up.

    From 100 on, the axis is linear around zero and logarithmic beyond.

    Args:
        values: for each data set and method, the balance of each group.
    """
    if not values or not all(values.values()):
        raise ValueError("Expected `values` to have at least one method, but got none.")
    rows = max(len(methods) for methods in values.values())
    figure, all_axes = panels(len(values), height=1.3 + 0.4 * rows)
    groups = list(dict.fromkeys(g for methods in values.values() for found in methods.values() for g in found))
    marks = marks_of(groups)
    for axes, (data, methods) in zip(all_axes, values.items(), strict=True):
        for place, group in enumerate(groups):
            numbers = np.array([found.get(group, math.nan) for found in methods.values()])
            spots = np.arange(len(methods)) + (place - (len(groups) - 1) / 2) * 0.8 / len(groups)
            bars = axes.barh(
                spots, numbers.clip(-_CUT, _CUT), 0.8 / len(groups), label=group, color=marks[group].color, **_BAR
            )
            axes.bar_label(bars, [_number(number) for number in numbers], padding=3, fontsize=8)
        known = [v for found in methods.values() for v in found.values() if math.isfinite(v)]
        label = "(reward − penalty) / reward, %"
        if any(abs(v) >= 100 for v in known):
            axes.set_xscale("symlog", linthresh=20, linscale=0.4)
            ticks = [tick for tick in (-1000, -100, 0, 100, 1000) if min([*known, 0]) <= tick / 4 <= max([*known, 0])]
            axes.set_xticks(ticks, [f"{tick:,}".replace("-", "−") for tick in ticks], fontsize=8.5)
            axes.set_xticks([], minor=True)
            label += "\nlogarithmic beyond ±20"
        label += f"\nbars cut at ±{_CUT:,}" if any(abs(v) > _CUT for v in known) else ""
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(methods)), [wrapped(name, 16, most=2) for name in methods])
        axes.invert_yaxis()
        axes.margins(x=0.3, y=0.02)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(label)
        axes.set_title(data if len(values) > 1 else "")
    legend_below(figure, all_axes[0])
    return figure


def _number(number: float) -> str:
    """A number with few digits, such as ``5.0``, ``−900``, ``−27,431`` or ``−5e7``; empty for NaN."""
    if math.isnan(number):
        return ""
    size = abs(number)
    text = f"{number:z,.1f}" if size < 100 else f"{number:,.0f}" if size < 1e6 else f"{number:.0e}"
    return text.replace("-", "−").replace("e+0", "e").replace("e+", "e").replace("inf", "∞")


@style()
def box_plots(
    runs: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    against: str | None = None,
    paired: bool | Mapping[str, bool] = False,
    alternative: Alternative = "two-sided",
    marks: Marks = None,
) -> "Figure":
    """Draw every run as a point with the mean as a line, and from five runs on a box (quartiles, whiskers within 1.5
    of their distance). The title compares the last method with a reference: p, difference of means, Cohen's d.

    Args:
        runs: for each data set, the results of the runs of each method.
        against: the method that the last one is tested against (default: the first).
        paired: whether runs at the same position share seed and draws (paired t-test instead of Welch's); for all data
            sets, or by data set.
        alternative: of the test; ``"greater"`` is one-sided, and is labelled so.
        marks: how methods are drawn.
    """
    if not runs or not all(runs.values()):
        raise ValueError("Expected `runs` to have at least one method, but got none.")
    width = max(3.2 if len(runs) > 1 else 4.4, 0.8 * max(map(len, runs.values())))
    figure, all_axes = panels(len(runs), width=width, height=3.4)
    marks = marks or marks_of(list(dict.fromkeys(name for of_data in runs.values() for name in of_data)))
    for axes, (data, methods) in zip(all_axes, runs.items(), strict=True):
        for place, (name, values) in enumerate(methods.items(), 1):
            spots = place + (np.linspace(-0.12, 0.12, len(values)) if len(values) > 1 else np.zeros(1))
            if len(values) >= 5:
                ink: dict[str, Any] = {f"{part}props": {"color": INK} for part in ("whisker", "cap", "median")}
                box = {"facecolor": marks[name].color, "edgecolor": INK, "alpha": 0.45}
                axes.boxplot(
                    [values], positions=[place], widths=0.5, patch_artist=True, showfliers=False, boxprops=box, **ink
                )
            else:
                axes.hlines(np.mean(values), place - 0.25, place + 0.25, color=INK, linewidth=1.2)
            axes.plot(spots, values, markersize=4.5, **marks[name].options | _POINT)
        letters = letters_in(0.8 * 72 * width / len(methods))
        axes.set_xticks(range(1, len(methods) + 1), [wrapped(name, letters, most=4) for name in methods])
        axes.set_xlim(0.5, len(methods) + 0.5)
        axes.grid(visible=False, axis="x")
        title = _tested(methods, against, paired if isinstance(paired, bool) else paired[data], alternative)
        axes.set_title(f"{data}\n{title}" if len(runs) > 1 else title, fontsize=9.0, fontweight="normal")
        axes.set_ylabel("recall over all classes, %" if starts_row(axes) else "")
    return figure


def _tested(methods: Mapping[str, Sequence[float]], against: str | None, paired: bool, alternative: Alternative) -> str:
    reference = next(iter(methods)) if against is None else against
    last = next((name for name in reversed(list(methods)) if name != reference), None)
    if last is None or reference not in methods:
        return "nothing to compare"
    ours, theirs = methods[last], methods[reference]
    names = f"{last} against {reference}\n" if len(methods) > 2 else ""
    difference = f"Δμ = {np.mean(ours) - np.mean(theirs):+.2f}"
    if min(len(ours), len(theirs)) < 2:
        return f"{names}{difference}; no test with fewer than two runs"
    found = compare(ours, theirs, paired=paired, alternative=alternative)
    d = "undefined" if math.isnan(found.effect_size) else f"{found.effect_size:.2f}"
    side = " (one-sided)" if alternative == "greater" else ""
    runs = f"{len(ours)}" if len(ours) == len(theirs) else f"{len(theirs)} and {len(ours)}"
    return f"{names}p {format_p(found.p_value)}{side}, n = {runs}\n{difference}, d = {d}"
