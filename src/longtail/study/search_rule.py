"""The search for beta, as the paper describes it, as a pure function of scores: what to try next, and what to choose.

The rule is fixed:

1. Start with 1.0, 1.1, 1.2, 1.3.
2. A score is the recall over all classes on held-out data in one run. The value of a beta is the mean of its scores
   over folds and seeds.
3. On each side of the best mean, go outwards one step at a time until that side is past the peak: a value there is
   lower than the best by more than one standard error, or two betas there have been tried, or the bound is reached. If
   several means are equal, the beta nearest to the middle of the start values counts as the best.
4. Smooth: fit a least-squares quadratic through the means within three steps of the best. If it has no maximum, use
   the means themselves.
5. Choose among the betas tried: of those whose smoothed value is within one standard error of the highest, take the one
   with the lowest mean imbalance level; if that is equal too, the smaller beta. A beta with an undefined score is never
   chosen; if every beta has one, the search fails.

The standard error is that of a mean over folds and seeds after the level of each fold and seed is subtracted, because
all betas see the same folds and seeds: with B betas, n scores each, and residuals r of the two-way layout,
``sqrt(sum r^2 / ((B - 1) (n - 1)) / n)``. With one score per beta it is undefined and counts as zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from longtail._checks import check_integer, check_number

START = (1.0, 1.1, 1.2, 1.3)
"""Where the paper's search starts."""

_BEYOND = 2  # betas tried past the best that end a side, whatever their values are
_NEAR = 3  # steps to either side of the best that the quadratic goes through
_FEWEST = 4  # betas that it needs
_DIGITS = 10  # betas are sums of steps
_MOST_RUNS = 10_000  # per beta


@dataclass(frozen=True)
class SearchPlan:
    """How beta is searched for."""

    folds: int | None = None
    """cross-validation folds of the training data; default: 5, or none if the data set has a validation split"""
    seeds: int = 1
    """seeds per fold"""
    select_on: Literal["val", "test"] = "val"
    """`test` chooses on test data, and every caption says so"""
    start: tuple[float, ...] = ()
    """the betas of the first round; default: 1.0, 1.1, 1.2, 1.3 within the bounds"""
    step: float = 0.1
    """distance between betas outside the start values"""
    bounds: tuple[float, float] = (0.0, 3.0)
    """the smallest and the largest beta that may be tried"""

    def __post_init__(self) -> None:
        for name, betas in (("bounds", self.bounds), ("start", self.start)):
            if not isinstance(betas, tuple | list):
                raise TypeError(f"Expected `{name}` to be a list of betas, but got {betas!r}.")
            for beta in betas:
                check_number(name, beta)
        if len(self.bounds) != 2 or self.bounds[0] >= self.bounds[1]:
            raise ValueError(f"Expected `bounds` to be a smaller and a larger beta, but got {self.bounds!r}.")
        low, high = self.bounds
        if not self.start:
            object.__setattr__(self, "start", tuple(beta for beta in START if low <= beta <= high))
        if not self.start or not all(low <= beta <= high for beta in self.start):
            raise ValueError(f"Expected `start` to be betas in {low:g}…{high:g}, but got {self.start!r}.")
        if check_number("step", self.step) == 0:
            raise ValueError("Expected `step` to be a number > 0, but got 0.")
        if self.folds is not None and check_integer("search.folds", self.folds, minimum=0) == 1:
            raise ValueError("Expected `search.folds` to be 0 or >= 2, but got 1.")
        if self.select_on not in {"val", "test"}:
            raise ValueError(f"Expected `select_on` to be val or test, but got {self.select_on!r}.")
        check_integer("search.seeds", self.seeds, minimum=1)
        runs = (self.folds or 1) * self.seeds
        if runs > _MOST_RUNS:
            raise ValueError(
                f"Expected `search.folds` x `search.seeds` to be at most {_MOST_RUNS:,}, but got {runs:,}."
            )


@dataclass(frozen=True)
class Score:
    """The score of one run."""

    value: float
    """Recall over all classes in per cent; NaN if it is undefined, which counts as worst."""
    level: float = math.nan
    """The model imbalance level on the same data, for ties."""


@dataclass(frozen=True)
class Trial:
    """A beta that was tried."""

    beta: float
    scores: tuple[Score, ...]

    @property
    def mean(self) -> float:
        """Mean score; minus infinity if one is undefined."""
        values = [score.value for score in self.scores]
        return float(np.mean(values)) if all(map(math.isfinite, values)) else -math.inf

    @property
    def level(self) -> float:
        """Mean imbalance level; infinite if one is undefined."""
        levels = [score.level for score in self.scores]
        return float(np.mean(levels)) if all(map(math.isfinite, levels)) else math.inf


@dataclass(frozen=True)
class BetaChoice:
    """The beta that the rule picks, and why."""

    beta: float
    best: float
    """The beta with the highest mean."""
    ties: tuple[float, ...]
    """Betas within one standard error of the highest smoothed value; the imbalance level decided among them."""
    standard_error: float
    """NaN if there is one score per beta, or fewer than two betas have defined scores."""
    smoothed: dict[float, float]
    """The quadratic's value at the betas that it goes through; empty if it has no maximum."""
    peak: float | None
    """Where the quadratic's maximum is."""
    at_bound: bool
    """Whether the best mean is at a bound, so that the peak may be beyond it."""

    @property
    def reason(self) -> str:
        """A sentence for users: the beta, and why it was chosen."""
        text = f"Use β = {self.beta:g}. It has the highest recall over all classes in the search"
        if len(self.ties) > 1:
            ties = ", ".join(f"{beta:g}" for beta in self.ties)
            text = f"Use β = {self.beta:g}. Recall over all classes is about the same for β = {ties}, "
            text += "and of these it has the lowest imbalance level"
        if self.at_bound:
            text += f"; the best mean is at a bound, β = {self.best:g}, so search again with wider --bounds"
        return f"{text}."

    def __str__(self) -> str:
        text = f"beta = {self.beta:g}"
        if len(self.ties) > 1:
            why = "equally good"
            if not math.isnan(self.standard_error):
                why = f"{'quadratic' if self.smoothed else 'mean'} within one standard error of the highest"
            ties = ", ".join(f"{beta:g}" for beta in self.ties)
            text += f", the lowest imbalance level (then the smallest) of {ties} ({why})"
        if self.at_bound:
            text += f"; the best mean is at the bound, {self.best:g}, and the peak may be beyond it"
        return text


def next_betas(trials: Sequence[Trial], settings: SearchPlan) -> tuple[float, ...]:
    """Return the betas to try next, ascending; empty when the search is over.

    All trials, which are in the order of beta, have the same number of scores.
    """
    tried = {trial.beta for trial in trials}
    left = sorted({round(beta, _DIGITS) for beta in settings.start} - tried)
    if left:
        return tuple(left)
    best, error = _best(trials, settings), _standard_error(trials)
    error = 0.0 if math.isnan(error) else error
    found = []
    for side in (-1, 1):
        further = [trial for trial in trials if side * (trial.beta - best.beta) > 0]
        if len(further) >= _BEYOND or any(best.mean - trial.mean > error for trial in further):
            continue
        end = max(tried, key=lambda beta: side * beta)
        beta = round(end + side * settings.step, _DIGITS)
        if settings.bounds[0] <= beta <= settings.bounds[1]:
            found.append(beta)
    return tuple(sorted(found))


def choose(trials: Sequence[Trial], settings: SearchPlan) -> BetaChoice:
    """Return the beta that the rule picks among those tried."""
    if not any(math.isfinite(trial.mean) for trial in trials):
        tried = ", ".join(f"{trial.beta:g}" for trial in trials)
        raise ValueError(f"Expected a beta whose recall is defined in every run, but got none among {tried}.")
    best, error = _best(trials, settings), _standard_error(trials)
    smoothed, peak = _quadratic(trials, best, settings.step)
    values = smoothed or {trial.beta: trial.mean for trial in trials}
    lowest = max(values.values()) - (1e-9 + (0.0 if math.isnan(error) else error))
    ties = [trial for trial in trials if values.get(trial.beta, -math.inf) >= lowest]
    reach = settings.step * (1 - 1e-9)
    beyond = best.beta - reach < settings.bounds[0] or best.beta + reach > settings.bounds[1]
    return BetaChoice(
        beta=min(ties, key=lambda trial: (trial.level, trial.beta)).beta,
        best=best.beta,
        ties=tuple(trial.beta for trial in ties),
        standard_error=error,
        smoothed=smoothed,
        peak=peak,
        at_bound=beyond and best.beta in {trials[0].beta, trials[-1].beta},
    )


def _best(trials: Sequence[Trial], settings: SearchPlan) -> Trial:
    middle = (min(settings.start) + max(settings.start)) / 2
    top = max(trial.mean for trial in trials)
    best = [trial for trial in trials if trial.mean == top]
    return min(best, key=lambda trial: (abs(trial.beta - middle), trial.beta))


def _standard_error(trials: Sequence[Trial]) -> float:
    rows = [[score.value for score in trial.scores] for trial in trials if math.isfinite(trial.mean)]
    table: np.ndarray[Any, Any] = np.array(rows, dtype=np.float64)
    if len(rows) < 2 or table.shape[1] < 2:
        return math.nan
    rest = table - table.mean(0, keepdims=True) - table.mean(1, keepdims=True) + table.mean()
    betas, runs = table.shape
    return math.sqrt(float((rest**2).sum()) / ((betas - 1) * (runs - 1)) / runs)


def _quadratic(trials: Sequence[Trial], best: Trial, step: float) -> tuple[dict[float, float], float | None]:
    """Fit a quadratic through the means around the best: its values there, and its maximum if it has one."""
    reach = _NEAR * step * (1 + 1e-9)
    near = [trial for trial in trials if abs(trial.beta - best.beta) <= reach and math.isfinite(trial.mean)]
    if len(near) < _FEWEST:
        return {}, None
    x = np.array([trial.beta - best.beta for trial in near])
    second, first, constant = np.polyfit(x, np.array([trial.mean for trial in near]), 2)
    if second >= -1e-9:
        return {}, None
    values = {trial.beta: float(second * t * t + first * t + constant) for trial, t in zip(near, x, strict=True)}
    return values, float(best.beta - first / (2 * second))
