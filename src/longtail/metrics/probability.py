"""Class probabilities of a model on its training data, compared with class frequency."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail._checks import Vector, as_counts, as_vector, shown
from longtail.classes import Groups, GroupValues


@dataclass(frozen=True, eq=False)
class ProbabilityShift:
    r"""How the class probabilities :math:`p(y=c)` of a model differ from class frequency :math:`N_c / N`."""

    probability: Tensor
    r"""p(y=c), float64 ``(C,)``."""
    difference: Tensor
    """The paper's Δp (Δp̂ for an imbalanced model): relative difference to class frequency, in per cent, ``(C,)``."""
    groups: GroupValues
    """Means of it over the classes of each group."""
    slope: float
    r"""b of the fit log κ_c = b log N_c + const; NaN if all classes have the same count."""
    r_squared: float
    """How much of the variation of log κ over the classes the fit explains; NaN if it does not vary."""
    left_out: tuple[int, ...]
    """Classes that the fit leaves out: those with p(y=c) = 0 and those without a sample (which have no Δp)."""


def probability_shift(probability_sum: Vector, counts: Vector, groups: Groups) -> ProbabilityShift:
    r"""Return p(y=c) over the training set, its relative difference to class frequency, and a power-law fit.

    .. math:: p(y=c) = \frac{1}{N} \sum_n p(y=c \mid n), \qquad
              \Delta p_c = 100 \frac{p(y=c) - N_c / N}{N_c / N}, \qquad
              \kappa_c \propto \frac{p(y=c)}{N_c / N} \approx N_c^{b}

    The slope is :math:`\beta^b` for a model that was trained on balanced data and :math:`\beta^{ib}` for one that was
    trained on the long-tailed set with plain softmax, both measured on the long-tailed set. Their difference
    :math:`\beta^{ib} - \beta^b` is the beta that they imply. The fit is ordinary least squares over the classes.

    Args:
        probability_sum: sum of the softmax over the samples, ``(C,)``
            (``probability_sum`` of :class:`ClassStatistics <longtail.metrics.ClassStatistics>`).
        counts: samples per class, ``(C,)`` (its ``samples``).
        groups: the groups to average over.

    Example:
        >>> groups = Groups.from_indices(head=[0], tail=[1])
        >>> shift = probability_shift(torch.tensor([85.0, 15.0]), [90, 10], groups)
        >>> {name: round(value, 4) for name, value in shift.groups.items()}
        {'head': -5.5556, 'tail': 50.0}
        >>> round(shift.slope, 4)
        -0.2105
    """
    number = as_counts(counts, groups.num_classes).to("cpu", torch.float64)
    sums = _as_sums("probability_sum", probability_sum, groups)
    total = float(number.sum())
    if not math.isclose(float(sums.sum()), total, rel_tol=1e-3) or total == 0:
        raise ValueError(
            f"Expected `probability_sum` to add up to the number of samples, {total:g}, but got {float(sums.sum()):g}."
        )
    probability = sums / total
    present = number > 0
    difference = (probability / (number / total) - 1) * 100
    difference = difference.where(present, torch.nan)
    fitted = present & (probability > 0)
    slope, r_squared = _fit(number[fitted].log(), (probability / number)[fitted].log())
    return ProbabilityShift(
        probability=probability,
        difference=difference,
        groups=groups.means(difference, present),
        slope=slope,
        r_squared=r_squared,
        left_out=tuple((~fitted).nonzero().flatten().tolist()),
    )


def _as_sums(name: str, values: Vector, groups: Groups) -> Tensor:
    sums = as_vector(name, values, groups.num_classes).to("cpu", torch.float64)
    wrong = ~(sums.isfinite() & (sums >= 0))
    if wrong.any():
        raise ValueError(f"Expected `{name}` to hold finite numbers >= 0, but got {shown(sums[wrong].tolist())}.")
    return sums


def _fit(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return slope and R² of the least-squares line; NaN if x does not vary."""
    dx, dy = x - x.mean(), y - y.mean()
    if x.numel() < 2 or float(dx.abs().max()) < 1e-12:
        return math.nan, math.nan
    slope = (dx * dy).sum() / (dx * dx).sum()
    if float(dy.abs().max()) < 1e-9:  # a flat line up to rounding has no variation to explain
        return float(slope), math.nan
    return float(slope), float(1 - ((dy - slope * dx) ** 2).sum() / (dy * dy).sum())


@dataclass(frozen=True, eq=False)
class TargetProbability:
    """Mean probability of the true class."""

    per_class: Tensor
    """float64 ``(C,)``; NaN for a class without a sample."""
    groups: GroupValues
    """Means over the classes of each group that have a sample."""


def mean_target_probability(target_probability_sum: Vector, samples: Vector, groups: Groups) -> TargetProbability:
    r"""Return the mean probability of the true class per class, :math:`\frac{1}{N_c} \sum_{n \in N_c} p_{nc}`.

    Args:
        target_probability_sum: ``(C,)``, of :class:`ClassStatistics <longtail.metrics.ClassStatistics>`.
        samples: samples per class, ``(C,)``.
        groups: the groups to average over.

    Example:
        >>> groups = Groups.from_indices(head=[0], tail=[1])
        >>> mean_target_probability(torch.tensor([80.0, 3.0]), [100, 10], groups).groups
        {'head': 0.8, 'tail': 0.3}
    """
    number = as_counts(samples, groups.num_classes, name="samples").to("cpu", torch.float64)
    sums = _as_sums("target_probability_sum", target_probability_sum, groups)
    wrong = sums > number * (1 + 1e-6)
    if wrong.any():
        c = int(wrong.nonzero()[0])
        raise ValueError(
            "Expected `target_probability_sum` to be at most `samples`, "
            f"but got {sums[c]:g} of {number[c]:g} in class {c}."
        )
    present = number > 0
    means = (sums / number).where(present, torch.nan)
    return TargetProbability(means, groups.means(means, present))
