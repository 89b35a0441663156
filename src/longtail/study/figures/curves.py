"""Recall of the groups over epochs, or over beta: solid on training data, dashed on test data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longtail.study.figures.style import SPLITS, group_mark, legend_below, new_figure, panels, starts_row, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Recalls = Mapping[str, Sequence[float]]
_WORDS = {"train": "training", "test": "test", "val": "validation"}


@dataclass(frozen=True)
class Curves:
    """Recall in per cent at some epochs, for each group, on training and on test data."""

    epochs: Sequence[float]
    train: Recalls
    test: Recalls


@styled
def recall_curves(methods: Mapping[str, Curves], *, columns: int = 3, split: str = "test") -> "Figure":
    """Draw recall over epochs, a panel per method.

    Args:
        methods: curves by the titles of the methods.
        columns: panels per row.
        split: ``"test"`` or ``"validation"``, the data beside training data.
    """
    if not methods:
        raise ValueError("Expected `methods` to have the curves of at least one method, but got none.")
    figure, all_axes = panels(len(methods), columns=columns, share_y=True)
    groups = list(dict.fromkeys(name for curves in methods.values() for name in curves.test if name != "all"))
    for axes, (title, curves) in zip(all_axes, methods.items(), strict=True):
        for recalls, word in ((curves.train, "training"), (curves.test, split)):
            _draw(axes, curves.epochs, {name: recalls[name] for name in groups if name in recalls}, groups, word)
        axes.set(title=title, xlabel="epoch", ylim=(-3, 103), ylabel="recall, %" if starts_row(axes) else "")
    _legend(figure, all_axes[0], groups, ["training", split], columns=3 if len(methods) == 1 else 6)
    return figure


@styled
def sensitivity(
    strengths: Sequence[float],
    recalls: Mapping[str, Recalls],
    *,
    chosen: float | None = None,
    chosen_on: str = "validation data",
    what: str = "β",
) -> "Figure":
    """Draw the recall of each group over beta, or over another strength.

    Args:
        strengths: the betas, ascending.
        recalls: recall in per cent by split (``train``, ``val``, ``test``) and group.
        chosen: the beta that was chosen, drawn as a line.
        chosen_on: the data on which it was chosen.
        what: label of the horizontal axis.
    """
    if not recalls or len(strengths) < 2:
        raise ValueError(f"Expected `strengths` to have at least two values, but got {len(strengths)}.")
    figure, axes = new_figure(height=3.6)
    groups = list(dict.fromkeys(group for found in recalls.values() for group in found))
    for split, found in recalls.items():
        _draw(axes, strengths, found, groups, _WORDS[split])
    if chosen is not None:
        axes.axvline(chosen, color=SPLITS["test"].colour, linewidth=0.9, alpha=0.6)
        axes.set_title(f"line: {what} = {chosen:g}, chosen on {chosen_on}", fontsize=9.0, fontweight="normal")
    axes.set(xlabel=what, ylabel="recall, %")
    _legend(figure, axes, groups, [_WORDS[split] for split in recalls])
    return figure


def _draw(axes: "Axes", x: Sequence[float], recalls: Recalls, groups: Sequence[str], word: str) -> None:
    for name, values in recalls.items():
        mark = group_mark(name, groups)
        looks: dict[str, Any] = {"color": mark.colour, "marker": mark.marker, "linestyle": SPLITS[word].line}
        face = mark.colour if word == "training" else "#ffffff"
        axes.plot(x, values, markersize=4.5, markevery=max(1, len(x) // 8), markerfacecolor=face, **looks)


def _legend(figure: "Figure", axes: "Axes", groups: Sequence[str], words: Sequence[str], columns: int = 3) -> None:
    """Groups by colour and marker, then splits by line style, in separate columns."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra

    marks = {name: group_mark(name, groups) for name in groups}
    handles = [Line2D([], [], color=mark.colour, marker=mark.marker, label=name) for name, mark in marks.items()]
    if columns == 3 and len(groups) % 2:
        handles.append(Line2D([], [], linestyle="", label=" "))
    ink = SPLITS["test"].colour
    handles += [Line2D([], [], color=ink, linestyle=SPLITS[word].line, label=word) for word in words]
    legend_below(figure, axes, columns, handles=handles, labels=[str(one.get_label()) for one in handles])
