"""Tests of differences between methods, over runs. Needs scipy (``longtail[study]``)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longtail._arguments import check_number

__all__ = ["Comparison", "compare", "holm"]


@dataclass(frozen=True)
class Comparison:
    """The difference between the means of two methods, and how sure it is."""

    difference: float
    """Mean of the first less mean of the second."""
    low: float
    """Lower end of the confidence interval of the difference."""
    high: float
    """Upper end of it."""
    p_value: float
    """Two-sided."""
    effect_size: float
    """Cohen's d with the pooled standard deviation; NaN where nothing varies."""
    runs: tuple[int, int]
    paired: bool
    """Paired t-test, or Welch's."""


def compare(first: Sequence[float], second: Sequence[float], *, paired: bool, confidence: float = 0.95) -> Comparison:
    """Compare two methods by a t-test, two-sided.

    Args:
        first: results of the first method's runs.
        second: results of the second's.
        paired: the runs at the same place share seed and draws (paired t-test); otherwise Welch's t-test.
        confidence: of the interval.

    Example:
        >>> result = compare([81.6, 81.1, 81.4], [78.3, 78.5, 79.1], paired=True)
        >>> f"{result.difference:.2f} ({result.low:.2f} to {result.high:.2f}), p = {result.p_value:.3f}"
        '2.73 (1.46 to 4.01), p = 0.012'
    """
    from scipy import stats  # noqa: PLC0415 - an extra

    confidence = check_number("confidence", confidence, below=1.0)
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.ndim != 1 or b.ndim != 1 or len(a) < 2 or len(b) < 2:
        raise ValueError(f"Expected two runs or more of each method to test, but got {a.shape} and {b.shape}.")
    if paired and len(a) != len(b):
        raise ValueError(f"Expected as many runs of each method to pair them, but got {len(a)} and {len(b)}.")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("Expected results to be finite numbers, but got one that is not.")
    difference = float(a.mean() - b.mean())
    pooled = float(((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / (len(a) + len(b) - 2)) ** 0.5
    effect_size = difference / pooled if pooled > 0 else float("nan")
    spread = float(np.std(a - b)) if paired else pooled
    if spread < 1e-12:  # no variation at all: the difference is what it is, and scipy would divide by zero
        p_value = 1.0 if abs(difference) < 1e-12 else 0.0
        return Comparison(difference, difference, difference, p_value, effect_size, (len(a), len(b)), paired)
    test = stats.ttest_rel(a, b) if paired else stats.ttest_ind(a, b, equal_var=False)
    interval = test.confidence_interval(confidence)
    return Comparison(
        difference=difference,
        low=float(interval.low),
        high=float(interval.high),
        p_value=float(test.pvalue),
        effect_size=effect_size,
        runs=(len(a), len(b)),
        paired=paired,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of p-values when several differences are tested: the chance of one false find stays below p.

    Args:
        p_values: one a difference.

    Returns:
        corrected p-values, in the same order.

    Example:
        >>> [round(p, 6) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected
