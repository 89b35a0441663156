"""Means over runs and t-tests of differences between methods. Needs scipy (``longtail[study]``)."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from longtail._checks import check_choice, check_integer

Alternative = Literal["two-sided", "greater"]
"""The alternative of a test: a difference either way, or the first above the second (the paper's choice)."""

_NOTHING = 1e-12  # a smaller spread is rounding
SIGNIFICANT = 0.05
"""A difference with a smaller p-value is called significant."""


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation over runs."""

    mean: float
    sd: float
    """With n - 1 in the denominator; NaN for one run."""
    runs: int

    def __post_init__(self) -> None:
        check_integer("runs", self.runs, minimum=1)

    def __str__(self) -> str:
        return f"{self.mean:z.2f}" if math.isnan(self.sd) else f"{self.mean:z.2f} ± {self.sd:.2f}"


def summarise(values: Sequence[float]) -> Summary:
    """Return the mean and standard deviation (ddof 1) over runs.

    Example:
        >>> print(summarise([78.32, 78.53, 79.09, 79.65, 79.53]))
        79.02 ± 0.59
        >>> print(summarise([78.32]))
        78.32
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not len(numbers):
        raise ValueError(f"Expected `values` to hold one number per run, but got shape {numbers.shape}.")
    return Summary(float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan, len(numbers))


@dataclass(frozen=True)
class Comparison:
    """The difference between the means of two methods, and its test."""

    difference: float
    """Mean of the first minus mean of the second."""
    low: float
    """Lower end of the two-sided 95 % confidence interval of the difference; NaN if nothing varies."""
    high: float
    """Upper end of the interval."""
    p_value: float
    """NaN if nothing varies, so that there is no test."""
    effect_size: float
    """Cohen's d with the pooled standard deviation; NaN if nothing varies."""
    runs: tuple[int, int]
    paired: bool
    """Whether it is the paired t-test, or Welch's."""
    alternative: Alternative = "two-sided"

    @property
    def kind(self) -> str:
        """The test's name."""
        return f"{'paired' if self.paired else 'Welch’s'} t-test"

    @property
    def test(self) -> str:
        """The test's name and its alternative."""
        return f"{self.kind}, {_SIDES[self.alternative]}"


_SIDES = {"two-sided": "two-sided", "greater": "one-sided"}


def compare(
    first: Sequence[float],
    second: Sequence[float],
    *,
    paired: bool,
    alternative: Alternative = "two-sided",
) -> Comparison:
    r"""Compare two methods with a t-test.

    Welch's is :math:`t = (\bar a - \bar b) / \sqrt{s_a^2 / n_a + s_b^2 / n_b}` with Welch and Satterthwaite's degrees
    of freedom; the paired test is Student's, of the differences. Cohen's :math:`d = (\bar a - \bar b) / s` has the
    pooled :math:`s^2 = ((n_a - 1) s_a^2 + (n_b - 1) s_b^2) / (n_a + n_b - 2)` in both.

    Args:
        first: results of the first method's runs.
        second: results of the second method's runs.
        paired: whether runs at the same position share their seed (paired t-test); otherwise Welch's t-test.
        alternative: ``"two-sided"``, or ``"greater"``: the first is above the second (one-sided, as in the paper).

    Example:
        >>> result = compare([81.6, 81.1, 81.4], [78.3, 78.5, 79.1], paired=True)
        >>> f"{result.difference:.2f} ({result.low:.2f} to {result.high:.2f}), p = {result.p_value:.3f}"
        '2.73 (1.46 to 4.01), p = 0.012'
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.ndim != 1 or b.ndim != 1 or len(a) < 2 or len(b) < 2:
        raise ValueError(f"Expected two or more runs of each method, but got {a.shape} and {b.shape}.")
    if paired and len(a) != len(b):
        raise ValueError(
            f"Expected the same number of runs of each method for a paired test, but got {len(a)} and {len(b)}."
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("Expected `first` and `second` to hold finite numbers, but got NaN or infinity.")
    from scipy import stats  # noqa: PLC0415 - an extra

    check_choice("alternative", alternative, Alternative)
    ours, theirs = summarise(first), summarise(second)
    squares = (ours.runs - 1) * ours.sd**2 + (theirs.runs - 1) * theirs.sd**2
    pooled = math.sqrt(squares / (ours.runs + theirs.runs - 2))
    spread = summarise((a - b).tolist()).sd if paired else max(ours.sd, theirs.sd)
    p_value = low = high = math.nan
    if spread > _NOTHING:  # otherwise, a few runs that agree by chance do not show how much others would differ
        test = partial(stats.ttest_rel, a, b) if paired else partial(stats.ttest_ind, a, b, equal_var=False)
        with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):  # one of the two has no spread
            p_value = float(test(alternative=alternative).pvalue)
            low, high = map(float, test().confidence_interval(0.95))
    return Comparison(
        difference=ours.mean - theirs.mean,
        low=low,
        high=high,
        p_value=p_value,
        effect_size=(ours.mean - theirs.mean) / pooled if pooled > _NOTHING else math.nan,
        runs=(ours.runs, theirs.runs),
        paired=paired,
        alternative=alternative,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values after Holm's correction for several tests; NaN stays NaN and does not count as a test.

    Example:
        >>> [round(p, 6) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    order = sorted((i for i, p in enumerate(p_values) if not math.isnan(p)), key=lambda i: p_values[i])
    corrected = [math.nan] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def format_p(p_value: float) -> str:
    """Return a p-value as text, with its sign.

    Example:
        >>> [format_p(p) for p in (0.92, 0.026, 0.00029, 0.000004)]
        ['= 0.92', '= 0.026', '= 0.0003', '< 0.0001']
    """
    if math.isnan(p_value):
        return "undefined"
    if p_value < 0.0001:
        return "< 0.0001"
    if p_value < 0.001:
        return f"= {p_value:.1g}"
    if p_value >= 0.095:
        return f"= {p_value:.2f}"
    text = f"{p_value:.2g}"
    return f"= {p_value:.3g}" if text == "0.05" else f"= {text}"


def sentence(
    first: str,
    second: str,
    found: Comparison,
    *,
    corrected: float | None = None,
    note: str = "",
) -> str:
    """Return a comparison as a sentence.

    Args:
        first: name of the first method.
        second: name of the second.
        found: the comparison.
        corrected: p-value after Holm's correction, if several methods were compared; it decides.
        note: about the runs, such as which are paired.

    Example:
        >>> found = compare([81.58, 81.13, 81.44], [78.32, 78.53, 79.09], paired=True)
        >>> sentence("CBS", "BS", found)
        'CBS is better than BS by 2.7 points, 95 % interval 1.6 to 3.9, p = 0.0097 (paired t-test), n = 3.'
    """
    runs = f"n = {found.runs[0]}" if found.runs[0] == found.runs[1] else f"n = {found.runs[0]} and {found.runs[1]}"
    runs += f" ({note})" if note else ""
    if math.isnan(found.p_value):
        return f"{first} and {second} are not tested: difference {_one(found.difference)} points, no spread, {runs}."
    p_value = found.p_value if corrected is None else corrected
    labels = [found.kind, *([_SIDES[found.alternative]] if found.alternative != "two-sided" else [])]
    labels += ["after Holm"] if corrected is not None else []
    corrected_away = p_value >= SIGNIFICANT > found.p_value  # the interval is not corrected and excludes zero
    if corrected_away:
        labels.append(f"{format_p(found.p_value).removeprefix('= ')} before")
    shown = f"p {format_p(p_value)} ({', '.join(labels)}), {runs}."
    if p_value >= SIGNIFICANT:
        return (
            f"{first} and {second} have no significant difference"
            f"{' after correction for the number of tests' * corrected_away}: "
            f"difference {_one(found.difference)} points, 95 % interval{' (not corrected)' * corrected_away} "
            f"{_one(found.low)} to {_one(found.high)}, {shown}"
        )
    wins = found.difference > 0
    low, high = (found.low, found.high) if wins else (-found.high, -found.low)
    return (
        f"{first} is {'better' if wins else 'worse'} than {second} by {_one(abs(found.difference))} points, "
        f"95 % interval {_one(low)} to {_one(high)}, {shown}"
    )


def _one(number: float) -> str:
    """One decimal; two if one would show zero."""
    text = f"{number:.1f}" if abs(number) >= 0.095 else f"{number:.2f}"
    return text.removeprefix("-") if float(text) == 0 else text
