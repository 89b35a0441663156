"""Recall of head, medium and tail over epochs: solid on training data, dashed on test data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longtail.study.figures.style import INK, SPLITS, group_mark, legend_below, panels, starts_row, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Curves", "recall_curves"]


@dataclass(frozen=True)
class Curves:
    """Recall, in per cent, at some epochs: for each group on training and on test data."""

    epochs: Sequence[float]
    train: Mapping[str, Sequence[float]]
    test: Mapping[str, Sequence[float]]


@styled
def recall_curves(methods: Mapping[str, Curves], *, columns: int = 3, split: str = "test") -> "Figure":
    """One panel a method.

    Args:
        methods: curves by the methods' titles.
        columns: panels in a row.
        split: what the data beside training data is called: ``test``, or ``validation``.
    """
    if not methods:
        raise ValueError("Expected curves of a method or more to draw, but got none.")
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra

    figure, all_axes = panels(len(methods), columns=columns, share_y=True)
    names = list(dict.fromkeys(name for curves in methods.values() for name in curves.test if name != "all"))
    for axes, (title, curves) in zip(all_axes, methods.items(), strict=True):
        marker_every = max(1, len(curves.epochs) // 8)
        for name in names:
            mark = group_mark(name, names)
            for shown, word, hollow in ((curves.train, "training", False), (curves.test, split, True)):
                if name in shown:
                    axes.plot(
                        curves.epochs,
                        shown[name],
                        color=mark.colour,
                        linestyle=SPLITS[word].line,
                        marker=mark.marker,
                        markevery=marker_every,
                        markerfacecolor="#ffffff" if hollow else mark.colour,
                    )
        axes.set_title(title)
        axes.set_xlabel("epoch")
        axes.set_ylim(-3, 103)
        axes.set_ylabel("recall, %" if starts_row(axes) else "")
    handles = [
        Line2D([], [], color=group_mark(name, names).colour, marker=group_mark(name, names).marker, label=name)
        for name in names
    ]
    if len(methods) == 1 and len(names) % 2:
        handles.append(Line2D([], [], linestyle="", label=" "))  # so that groups and data have columns of their own
    handles += [Line2D([], [], color=INK, linestyle=SPLITS[word].line, label=word) for word in ("training", split)]
    for handle in handles:
        all_axes[0].add_line(handle)
    legend_below(figure, all_axes[0], columns=len(handles) if len(methods) > 1 else 3)
    for handle in handles:
        handle.remove()
    return figure
