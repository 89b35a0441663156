"""Calibration: whether confidence equals accuracy."""

from dataclasses import dataclass

import torch

from longtail._checks import Vector, as_tensor
from longtail.classes import Groups, GroupValues


@dataclass(frozen=True)
class CalibrationError:
    """Expected calibration error, as fractions in [0, 1]."""

    all: float
    """Over all samples; NaN without samples."""
    groups: GroupValues
    """Over the samples whose true class is in the group."""


def expected_calibration_error(
    bin_samples: Vector, bin_correct: Vector, bin_confidence: Vector, groups: Groups
) -> CalibrationError:
    r"""Return the expected calibration error of all samples and of each group.

    .. math:: ECE = \sum_b \frac{n_b}{n} \left| acc_b - conf_b \right|

    over bins :math:`b` of confidence. A group has the samples whose *true* class is in it.

    Args:
        bin_samples: samples per true class and bin, ``(C, bins)``, of
            :class:`ClassStatistics <longtail.metrics.ClassStatistics>`.
        bin_correct: how many of them are predicted correctly.
        bin_confidence: the sum of their confidences.
        groups: the groups.

    Example:
        >>> groups = Groups.from_indices(head=[0], tail=[1])
        >>> samples, correct = torch.tensor([[0, 10], [0, 10]]), torch.tensor([[0, 9], [0, 4]])
        >>> error = expected_calibration_error(samples, correct, torch.tensor([[0.0, 9.0], [0.0, 8.0]]), groups)
        >>> error
        CalibrationError(all=0.2, groups={'head': 0.0, 'tail': 0.4})
    """
    bin_samples, bin_correct = as_tensor("bin_samples", bin_samples), as_tensor("bin_correct", bin_correct)
    bin_confidence = as_tensor("bin_confidence", bin_confidence)
    if not bin_samples.shape == bin_correct.shape == bin_confidence.shape or bin_samples.ndim != 2:
        raise ValueError(
            "Expected `bin_samples`, `bin_correct` and `bin_confidence` of one shape (C, bins), but got "
            f"{tuple(bin_samples.shape)}, {tuple(bin_correct.shape)} and {tuple(bin_confidence.shape)}."
        )
    if len(bin_samples) != groups.num_classes:
        raise ValueError(
            f"Expected `bin_samples` to have {groups.num_classes} classes, as `groups` has, but got {len(bin_samples)}."
        )
    if (bin_correct > bin_samples).any():
        raise ValueError("Expected `bin_correct` to be at most `bin_samples`, but got a bin where it is larger.")
    samples, correct, confidence = (groups.sums(values) for values in (bin_samples, bin_correct, bin_confidence))
    # n_b / n * |acc_b - conf_b| is |correct_b - confidence_b| / n, so empty bins are no special case.
    errors = (correct - confidence).abs().sum(1) / samples.sum(1)
    kept = {name: e for name, e, n in zip(groups.names, errors.tolist(), samples.sum(1).tolist(), strict=True) if n > 0}
    overall = (correct.sum(0) - confidence.sum(0)).abs().sum() / samples.sum()
    return CalibrationError(
        all=float(overall) if samples.sum() > 0 else torch.nan,
        groups=GroupValues(kept, tuple(name for name in groups.names if name not in kept)),
    )
