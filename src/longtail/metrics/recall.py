"""Recall per class, per group, and over all classes; macro F1."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from longtail._checks import Vector, as_counts, check_choice, check_number
from longtail.classes import Groups, GroupValues

Absent = Literal["skip", "zero"]


@dataclass(frozen=True, eq=False)
class Recall:
    """Recall as fractions in [0, 1]."""

    per_class: Tensor
    """float64 ``(C,)``; NaN for an absent class (0 under ``absent="zero"``)."""
    low: Tensor
    """Lower end of the Wilson interval per class, ``(C,)``; NaN for an absent class."""
    high: Tensor
    """Upper end of the Wilson interval."""
    groups: GroupValues
    """Means over the classes of each group."""
    all: float
    """Mean over all classes."""
    absent: tuple[int, ...]
    """Classes without a sample, which are left out of the means or counted as 0."""


def recall(
    correct: Vector, samples: Vector, groups: Groups, *, absent: Absent = "skip", confidence: float = 0.95
) -> Recall:
    r"""Return recall per class, :math:`R_c = correct_c / samples_c`, its Wilson interval, and its means.

    Args:
        correct: correctly predicted samples per class, ``(C,)``.
        samples: samples per class, ``(C,)``.
        groups: the groups to average over.
        absent: leave a class without a sample out of the means (``"skip"``), or set its recall to 0 (``"zero"``, as in
            the paper's LVIS row).
        confidence: confidence level of the Wilson interval.

    Example:
        >>> groups = Groups.from_indices(head=[0], tail=[1, 2])
        >>> result = recall(torch.tensor([9, 1, 0]), torch.tensor([10, 4, 0]), groups)
        >>> result.groups, result.all, result.absent
        ({'head': 0.9, 'tail': 0.25}, 0.575, (2,))
        >>> recall(torch.tensor([9, 1, 0]), torch.tensor([10, 4, 0]), groups, absent="zero").groups
        {'head': 0.9, 'tail': 0.125}
    """
    check_choice("absent", absent, Absent)
    right = as_counts(correct, groups.num_classes, name="correct").cpu()
    total = as_counts(samples, groups.num_classes, name="samples").cpu()
    present = total > 0
    if not present.any() and absent == "skip":
        raise ValueError("Expected `samples` to have a class with a sample, but got 0 for every class.")
    low, high = wilson_interval(right, total, confidence)
    per_class = right.to(torch.float64) / total
    if absent == "zero":
        per_class = per_class.where(present, 0.0)
    counted = present if absent == "skip" else torch.ones_like(present)
    return Recall(
        per_class=per_class,
        low=low,
        high=high,
        groups=groups.means(per_class, counted),
        all=float(per_class.where(counted, 0.0).sum() / counted.sum()),
        absent=tuple((~present).nonzero().flatten().tolist()),
    )


def macro_f1(correct: Vector, samples: Vector, predicted: Vector) -> float:
    r"""Return the mean over classes of :math:`F_1 = 2\, correct_c / (samples_c + predicted_c)`, as scikit-learn does.

    A class that has no sample and is never predicted is left out; one that is predicted without a sample counts as 0.

    Args:
        correct: correctly predicted samples per class, ``(C,)``.
        samples: samples per class, ``(C,)``.
        predicted: samples of any class that are predicted as this class, ``(C,)``.

    Example:
        >>> round(macro_f1([9, 1, 0], [10, 4, 0], [12, 2, 0]), 3)
        0.576
    """
    total = as_counts(samples, name="samples").cpu() + as_counts(predicted, name="predicted").cpu()
    right, counted = as_counts(correct, total.numel(), name="correct").cpu(), total > 0
    if not counted.any():
        raise ValueError("Expected `samples` to have a class with a sample, but got 0 for every class.")
    return float((2 * right[counted].double() / total[counted]).mean())


def wilson_interval(correct: Vector, samples: Vector, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    r"""Return Wilson's score interval of a fraction :math:`\hat p` of :math:`n` samples; it is good for small n, too.

    .. math:: \frac{\hat p + z^2 / 2n \pm z \sqrt{\hat p (1 - \hat p) / n + z^2 / 4n^2}}{1 + z^2 / n}

    Args:
        correct: number of correct samples, ``(C,)``.
        samples: number of samples, ``(C,)``.
        confidence: confidence level.

    Returns:
        lower and upper ends, float64 ``(C,)``; NaN without a sample.

    Example:
        >>> wilson_interval([0, 9], [10, 10])
        (tensor([0.0000, 0.5958], dtype=torch.float64), tensor([0.2775, 0.9821], dtype=torch.float64))
    """
    confidence = check_number("confidence", confidence, below=1.0)
    total = as_counts(samples, name="samples").cpu()
    right = as_counts(correct, total.numel(), name="correct").cpu()
    if (right > total).any():
        worst = int((right - total).argmax())
        raise ValueError(
            f"Expected `correct` to be at most `samples`, but got {right[worst]} of {total[worst]} in class {worst}."
        )
    n = total.to(torch.float64)
    fraction = right / n
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = fraction + z**2 / (2 * n)
    half = z * (fraction * (1 - fraction) / n + z**2 / (4 * n**2)).sqrt()
    scale = 1 + z**2 / n
    low, high = (centre - half) / scale, (centre + half) / scale
    return low.where(fraction != 0, 0.0), high.where(fraction != 1, 1.0)  # exact, unlike the rounded formula
