"""Recall of each group over beta, or over any strength: solid on training, dashed on test data."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from longtail.study.figures.style import INK, SPLITS, group_mark, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sensitivity"]

_WORDS = {"train": "training", "test": "test", "val": "validation"}


@styled
def sensitivity(
    strengths: Sequence[float],
    recalls: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    chosen: float | None = None,
    chosen_on: str = "validation data",
    what: str = "β",
) -> "Figure":
    """How recall depends on beta.

    Args:
        strengths: the betas, ascending.
        recalls: recall in per cent, for ``train``, ``val`` or ``test``, and each group of it.
        chosen: the beta that was chosen, drawn as a line.
        chosen_on: the data that it was chosen on, for the legend.
        what: what is on the horizontal axis.
    """
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra

    if not recalls or len(strengths) < 2:
        raise ValueError(f"Expected recalls of two strengths or more to draw, but got {len(strengths)}.")
    figure, axes = new_figure(height=3.6)
    names = list(dict.fromkeys(group for groups in recalls.values() for group in groups))
    for split, groups in recalls.items():
        for group, values in groups.items():
            mark = group_mark(group, names)
            axes.plot(
                strengths,
                values,
                color=mark.colour,
                linestyle=SPLITS[_WORDS[split]].line,
                marker=mark.marker,
                markerfacecolor=mark.colour if split == "train" else "#ffffff",
                markersize=4.5,
                markevery=max(1, len(strengths) // 10),
            )
    handles = [
        Line2D([], [], color=group_mark(n, names).colour, marker=group_mark(n, names).marker, label=n) for n in names
    ]
    if len(names) % 2:
        handles.append(Line2D([], [], linestyle="", label=" "))  # so that groups and data have columns of their own
    words = [_WORDS[split] for split in recalls]
    handles += [Line2D([], [], color=INK, linestyle=SPLITS[word].line, label=word) for word in words]
    if chosen is not None:
        axes.axvline(chosen, color=INK, linewidth=0.9, alpha=0.6)
        axes.set_title(f"line: {what} = {chosen:g}, chosen on {chosen_on}", fontsize=9.0, fontweight="normal")
    axes.set_xlabel(what)
    axes.set_ylabel("recall, %")
    figure.legend(handles=handles, loc="outside lower center", ncols=3, labelcolor=INK)
    return figure
