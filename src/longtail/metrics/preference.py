"""Preference: how much worse a model works for some groups than for others."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail._checks import Vector, as_vector
from longtail.classes import Groups, GroupValues


@dataclass(frozen=True)
class Preference:
    """G, P and I of the paper, in per cent."""

    gap: GroupValues
    """Relative generalisation gap G per group, in per cent of its training recall."""
    score: GroupValues
    """Preference score P per group: training error plus G; lower is better."""
    level: float
    """Model imbalance level I, the range of P over the groups that have a class; NaN if a P is undefined, or if there
    are fewer than two groups to compare."""
    undefined: tuple[str, ...]
    """Groups with zero training recall, which have no G and no P."""


def preference_scores(train_recall: Vector, test_recall: Vector, groups: Groups) -> Preference:
    r"""Return preference scores and the model imbalance level.

    With :math:`R_g` the mean recall of group :math:`g`, in per cent,

    .. math:: G_g = 100 \frac{R^{tr}_g - R^{te}_g}{R^{tr}_g}, \qquad P_g = (100 - R^{tr}_g) + G_g,
              \qquad I = \max_g P_g - \min_g P_g.

    Args:
        train_recall: recall per class on the training data, ``(C,)``, as fractions in [0, 1]; NaN for a class without
            a sample.
        test_recall: the same on test data. A class without a sample in one of them is left out of both means, so that
            both are over the same classes.
        groups: head, medium and tail, or any other groups.

    Returns:
        G and P of the groups, and I. Groups without a class are in their ``skipped``. A group with zero training recall
        is in ``undefined`` and makes I NaN: it has no preference score, and without the worst group the range would
        show a balanced model.

    Example:
        >>> groups = Groups.from_indices(head=[0], medium=[1], tail=[2])
        >>> result = preference_scores([1.0, 0.8, 0.5], [0.9, 0.6, 0.2], groups)
        >>> {name: round(score, 6) for name, score in result.score.items()}
        {'head': 10.0, 'medium': 45.0, 'tail': 110.0}
        >>> round(result.level, 6)
        100.0
    """
    recalls = _recalls("train_recall", train_recall, groups), _recalls("test_recall", test_recall, groups)
    present = ~(recalls[0].isnan() | recalls[1].isnan())
    train, test = (groups.means(values, present) for values in recalls)
    skipped = train.skipped
    gap, score, undefined = {}, {}, []
    for name in train:
        if train[name] == 0:
            undefined.append(name)
            continue
        gap[name] = 100 * (train[name] - test[name]) / train[name]
        score[name] = (100 - 100 * train[name]) + gap[name]
    level = math.nan if undefined or len(score) < 2 else max(score.values()) - min(score.values())
    return Preference(GroupValues(gap, skipped), GroupValues(score, skipped), level, tuple(undefined))


def _recalls(name: str, recall: Vector, groups: Groups) -> Tensor:
    values = as_vector(name, recall, groups.num_classes).to("cpu", torch.float64)
    wrong = values[~values.isnan() & ~((values >= 0) & (values <= 1))]
    if wrong.numel():
        raise ValueError(f"Expected `{name}` to be fractions in [0, 1], not per cent, but got {wrong[0].item():g}.")
    return values
