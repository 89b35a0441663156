"""Whether our numbers agree with the paper's, as sentences that end in yes or no."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

from longtail.study.runs import Cell, Run, by_data, find_cell
from longtail.study.stats import Summary
from reproduction import paper
from reproduction.tables import recall_as_published

__all__ = ["agreement", "far_off", "level_order", "level_orders", "same_order", "same_signs"]

_FAR = 2.0  # of the paper's SDs


def far_off(cells: Sequence[Cell]) -> list[str]:
    """One sentence per recall that differs from the paper's by more than two of its SDs."""
    found = []
    for data, of_data in by_data(cells).items():
        for cell in of_data:
            for group, published in paper.recalls_of(cell).items():
                if published is None or not published.sd > 0:
                    continue
                ours = cell.summary(partial(recall_as_published, group=group)).mean
                off = (ours - published.mean) / published.sd
                if abs(off) > _FAR:
                    side = "above" if off > 0 else "below"
                    found.append(
                        f"{data}, {cell.title}, {group}: {ours:.2f} here, {abs(ours - published.mean):.2f} {side} the "
                        f"paper's {published} ({abs(off):.1f} of its SDs)."
                    )
    return found


def level_order(softmax: float, balanced: float, cbs: float) -> bool:
    """Whether the level of CBS is lower than that of Balanced Softmax, and that lower than softmax's, as in the paper.

    Example:
        >>> level_order(41.41, 20.96, 12.62), level_order(41.41, 12.62, 20.96)
        (True, False)
    """
    return cbs < balanced < softmax


def level_orders(cells: Sequence[Cell]) -> list[str]:
    """For each data set and beta, whether the imbalance levels have the paper's order."""
    found = []
    for data, of_data in by_data(cells).items():
        softmax, balanced = find_cell(of_data, "softmax"), find_cell(of_data, "balanced-softmax")
        for cell in of_data:
            if cell.method != "cbs" or softmax is None or balanced is None:
                continue
            three = (cell, balanced, softmax)
            levels = [one.summary(Run.level).mean for one in three]
            shown = ", ".join(f"{one.title} {level:.2f}" for one, level in zip(three, levels, strict=True))
            few = "" if min(len(one.runs) for one in three) > 1 else " (a single run of some)"
            found.append(f"{data}: {shown}{few}: {_yes(level_order(*reversed(levels)))}")
    return found


def same_signs(ours: Mapping[str, float], theirs: Mapping[str, float]) -> bool:
    """Whether each group has the paper's sign.

    Example:
        >>> same_signs({"head": 0.5, "tail": -9.0}, {"head": 0.84, "tail": -20.1})
        True
    """
    return all(math.copysign(1, ours[group]) == math.copysign(1, theirs[group]) for group in theirs)


def same_order(ours: Mapping[str, float], theirs: Mapping[str, float]) -> bool:
    """Whether the groups have the paper's order.

    Example:
        >>> same_order({"head": 1.0, "medium": 2.0, "tail": 0.0}, {"head": 0.84, "medium": -2.5, "tail": -20.1})
        False
    """
    return sorted(theirs, key=lambda group: ours[group]) == sorted(theirs, key=lambda group: theirs[group])


def agreement(what: str, ours: Mapping[str, Summary], theirs: Mapping[str, float]) -> str:
    """Whether signs and order of the groups agree with the paper's, as a sentence."""
    means = {group: ours[group].mean for group in theirs}
    text = f"{what}: same sign as in the paper in each group: {_yes(same_signs(means, theirs))}"
    text += f" Same order of the groups: {_yes(same_order(means, theirs))}"
    near = [group for group in theirs if abs(means[group]) <= ours[group].sd]  # an SD of NaN (one run) tells nothing
    return text + (f" Within one SD of zero here, so the sign is chance: {', '.join(near)}." if near else "")


def _yes(holds: bool) -> str:
    return "**yes**." if holds else "**no**."
