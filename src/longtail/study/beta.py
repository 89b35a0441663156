"""The search for beta, as the paper describes it, as a pure function of scores: what to try next, and what to choose.

The rule, fixed:

1. Begin with 1.0, 1.1, 1.2, 1.3.
2. A score is the criterion on held-out data in one run; a beta's value is the mean of its scores over folds and seeds.
3. Go on outwards, a step at a time, on each side of the best mean, until that side is beyond the peak: a value there is
   lower than the best by more than one standard error, or two betas lie there, or the bound is reached. Equal means:
   the one nearest to the middle of where the search began counts as the best.
4. Smooth: a least-squares quadratic through the means within three steps of the best, if it has a maximum; otherwise
   the means themselves.
5. Choose among the betas tried: of those whose smoothed value is within one standard error of the highest, the one with
   the lowest mean imbalance level; if that is equal too, the smaller beta. A beta with an undefined score is never
   chosen; where every beta has one, nothing is.

The standard error is that of a mean over folds and seeds after each fold's and seed's own level is taken off, since all
betas see the same folds and seeds: with B betas, n scores each, and residuals r of the two-way layout,
``sqrt(sum r^2 / ((B - 1) (n - 1)) / n)``. With one score a beta there is none, and it counts as zero.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from longtail._checks import check_integer, check_number, told

__all__ = [
    "START",
    "BetaSearch",
    "Choice",
    "Point",
    "Score",
    "Settings",
    "choose",
    "next_betas",
    "search_beta",
    "search_rounds",
    "wrong_settings",
]

START = (1.0, 1.1, 1.2, 1.3)
"""Where the paper's search begins."""

_NEAR = 3  # steps to either side of the best that the quadratic goes through
_FEWEST = 4  # betas that it needs
_DIGITS = 10  # betas are sums of steps


@dataclass(frozen=True)
class Score:
    """What one run says of its beta."""

    value: float
    """The criterion, higher is better; NaN where it is undefined, which counts as worst."""
    level: float = math.nan
    """The model imbalance level on the same data, for ties."""


@dataclass(frozen=True)
class Point:
    """A beta that was tried."""

    beta: float
    scores: tuple[Score, ...]

    @property
    def mean(self) -> float:
        """Mean score; minus infinity where one is undefined."""
        values = [score.value for score in self.scores]
        return float(np.mean(values)) if all(map(math.isfinite, values)) else -math.inf

    @property
    def level(self) -> float:
        """Mean imbalance level; infinite where one is undefined."""
        levels = [score.level for score in self.scores]
        return float(np.mean(levels)) if all(map(math.isfinite, levels)) else math.inf


@dataclass(frozen=True)
class Settings:
    """How the search goes.

    Args:
        start: the betas it begins with.
        step: how far it goes outwards at a time.
        bounds: the smallest and the largest beta that may be tried.
        beyond: how many betas beyond the best end a side, whatever they say.
        ahead: steps outwards to be tried together, where they can be trained together.
    """

    start: tuple[float, ...] = START
    step: float = 0.1
    bounds: tuple[float, float] = (0.0, 3.0)
    beyond: int = 2
    ahead: int = 1

    def __post_init__(self) -> None:
        for error in wrong_settings(self.start, self.step, self.bounds, self.beyond, self.ahead):
            raise error


def wrong_settings(start: Any, step: Any, bounds: Any, beyond: Any = 2, ahead: Any = 1) -> list[TypeError | ValueError]:
    """All that is wrong with what :class:`Settings` takes."""
    found: list[TypeError | ValueError] = []

    def tried(check: Callable[[], object]) -> bool:
        try:
            check()
        except (TypeError, ValueError) as error:
            found.append(error)
            return False
        return True

    bounded = tried(lambda: _check_bounds(bounds))
    tried(lambda: _check_step(step))
    tried(lambda: _check_start(start, bounds if bounded else (0.0, math.inf)))
    tried(lambda: check_integer("beyond", beyond, minimum=1))
    tried(lambda: check_integer("ahead", ahead, minimum=1))
    return found


def _check_bounds(bounds: Any) -> None:
    if not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise ValueError(f"Expected `bounds` to be a smaller and a larger beta, but got {told(bounds)}.")
    low, high = (check_number("bounds", bound) for bound in bounds)
    if low >= high:
        raise ValueError(f"Expected `bounds` to be a smaller and a larger beta, but got {low:g} and {high:g}.")


def _check_step(step: Any) -> None:
    if isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step < math.inf:
        raise ValueError(f"Expected `step` to be a number > 0, but got {told(step)}.")


def _check_start(start: Any, bounds: tuple[float, float]) -> None:
    if not isinstance(start, Sequence) or isinstance(start, str):
        raise TypeError(f"Expected `start` to be several betas, but got {told(start)}.")
    low, high = bounds
    outside = [beta for beta in start if not low <= check_number("start", beta) <= high]
    if outside or not start:
        found = f"{outside[0]:g}" if outside else "none"
        raise ValueError(f"Expected `start` to have betas in {low:g}…{high:g}, but got {found}.")


@dataclass(frozen=True)
class Choice:
    """The beta that the rule picks, and why."""

    beta: float
    best: float
    """The beta with the highest mean."""
    ties: tuple[float, ...]
    """Betas within one standard error of the highest smoothed value, among which the imbalance level decided."""
    standard_error: float
    """NaN where there is one score a beta, or fewer than two betas whose scores are defined."""
    smoothed: dict[float, float]
    """The quadratic's value at the betas that it goes through; empty where it has no maximum."""
    peak: float | None
    """Where the quadratic's maximum is."""
    at_bound: bool
    """The best mean lies at a bound: the peak may be beyond it."""
    level_known: bool = True
    """Whether the chosen beta's imbalance level is defined, so that it could decide between ties."""
    unsmoothed: str = ""
    """Why there is no quadratic."""

    def __str__(self) -> str:
        text = f"beta = {self.beta:g}"
        if len(self.ties) > 1:
            least = (
                "the lowest imbalance level" if self.level_known else "the smallest, as no imbalance level is defined,"
            )
            text += f", {least} among {', '.join(f'{beta:g}' for beta in self.ties)}"
            text += f", {self._tied()}"
        if self.at_bound:
            text += f"; the best mean is at the bound, {self.best:g}, and the peak may lie beyond it"
        return text

    def _tied(self) -> str:
        """What makes the ties ties; the quadratic's values, where it has a maximum, and not the means."""
        if math.isnan(self.standard_error):
            return "which are equally good"
        if self.smoothed:
            return "whose values on the quadratic are within one standard error of its highest at a β tried"
        return "whose means are within one standard error of the highest"


@dataclass(frozen=True)
class BetaSearch:
    """A search: what was tried, round by round, and what was chosen."""

    points: tuple[Point, ...]
    """By beta."""
    rounds: tuple[tuple[float, ...], ...]
    choice: Choice
    settings: Settings = field(default_factory=Settings)


def search_beta(
    evaluate: Callable[[tuple[float, ...]], Sequence[Sequence[Score]]], settings: Settings | None = None
) -> BetaSearch:
    """Search for beta.

    Args:
        evaluate: gives the scores of each of several betas, one a fold and seed, always in the same order; a round's
            betas come together, so that they can be trained together.
        settings: how the search goes.

    Example:
        >>> def evaluate(betas):
        ...     return [[Score(80 - (beta - 1.6) ** 2, level=beta)] for beta in betas]
        >>> found = search_beta(evaluate)
        >>> found.rounds
        ((1.0, 1.1, 1.2, 1.3), (1.4,), (1.5,), (1.6,), (1.7,))
        >>> found.choice.beta
        1.6
    """
    rounds = search_rounds(Settings() if settings is None else settings)
    asked = next(rounds)
    while True:
        try:
            asked = rounds.send(evaluate(asked))
        except StopIteration as end:
            found: BetaSearch = end.value
            return found


def search_rounds(settings: Settings) -> Generator[tuple[float, ...], Sequence[Sequence[Score]], BetaSearch]:
    """The search as a generator: gives the betas of each round, is sent their scores, and returns what it found.

    So several searches can be held at the same round, and their runs trained together.
    """
    points: list[Point] = []
    rounds: list[tuple[float, ...]] = []
    while asked := next_betas(points, settings):
        scores = yield asked
        if len(scores) != len(asked):
            raise ValueError(f"Expected scores of {len(asked)} betas, but got {len(scores)}.")
        points += [Point(beta, tuple(found)) for beta, found in zip(asked, scores, strict=True)]
        points.sort(key=lambda point: point.beta)
        _check(points)
        rounds.append(asked)
    return BetaSearch(tuple(points), tuple(rounds), choose(points, settings), settings)


def next_betas(points: Sequence[Point], settings: Settings) -> tuple[float, ...]:
    """The betas to try next, ascending; none when the search is over."""
    tried = {point.beta for point in points}
    left = sorted({round(beta, _DIGITS) for beta in settings.start} - tried)
    if left:
        return tuple(left)
    best, error = _best(points, settings), _error(points)
    error = 0.0 if math.isnan(error) else error
    found = []
    for side in (-1, 1):
        further = [point for point in points if side * (point.beta - best.beta) > 0]
        if len(further) >= settings.beyond or any(best.mean - point.mean > error for point in further):
            continue
        end = max(tried, key=lambda beta: side * beta)
        for steps in range(1, settings.ahead + 1):
            beta = round(end + side * steps * settings.step, _DIGITS)
            if settings.bounds[0] <= beta <= settings.bounds[1]:
                found.append(beta)
    return tuple(sorted(found))


def choose(points: Sequence[Point], settings: Settings) -> Choice:
    """The beta that the rule picks among those tried; refused where every one of them has an undefined score."""
    _check(points)
    if not any(math.isfinite(point.mean) for point in points):
        tried = ", ".join(f"{point.beta:g}" for point in points)
        raise ValueError(f"Expected a beta whose criterion is defined in every run, but got none among {tried}.")
    best, error = _best(points, settings), _error(points)
    smoothed, peak, unsmoothed = _quadratic(points, best, settings.step)
    values = smoothed or {point.beta: point.mean for point in points}
    top = max(values.values())
    allowance = 1e-9 + (0.0 if math.isnan(error) else error)
    ties = [point for point in points if point.beta in values and values[point.beta] >= top - allowance]
    chosen = min(ties, key=lambda point: (point.level, point.beta))
    reach = settings.step * (1 - 1e-9)
    beyond = best.beta - reach < settings.bounds[0] or best.beta + reach > settings.bounds[1]
    at_bound = beyond and best.beta in {points[0].beta, points[-1].beta}
    known = math.isfinite(chosen.level)
    tied = tuple(point.beta for point in ties)
    return Choice(chosen.beta, best.beta, tied, error, smoothed, peak, at_bound, known, unsmoothed)


def _check(points: Sequence[Point]) -> None:
    numbers = {len(point.scores) for point in points}
    if len(numbers) != 1 or 0 in numbers:
        raise ValueError(f"Expected as many scores of every beta, one a fold and seed, but got {sorted(numbers)}.")


def _best(points: Sequence[Point], settings: Settings) -> Point:
    middle = (min(settings.start) + max(settings.start)) / 2
    top = max(point.mean for point in points)
    return min(
        (point for point in points if point.mean == top), key=lambda point: (abs(point.beta - middle), point.beta)
    )


def _error(points: Sequence[Point]) -> float:
    """Standard error of a mean, each fold's and seed's own level taken off."""
    rows = [[score.value for score in point.scores] for point in points if math.isfinite(point.mean)]
    table = np.array(rows, dtype=np.float64)
    if len(rows) < 2 or table.shape[1] < 2:
        return math.nan
    rest = table - table.mean(0, keepdims=True) - table.mean(1, keepdims=True) + table.mean()
    betas, runs = table.shape
    return math.sqrt(float((rest**2).sum()) / ((betas - 1) * (runs - 1)) / runs)


def _quadratic(points: Sequence[Point], best: Point, step: float) -> tuple[dict[float, float], float | None, str]:
    """A quadratic through the means around the best: its values there, where its maximum is, or why there is none."""
    near = [
        point
        for point in points
        if abs(point.beta - best.beta) <= _NEAR * step * (1 + 1e-9) and math.isfinite(point.mean)
    ]
    if len(near) < _FEWEST:
        return {}, None, f"it needs {_FEWEST} β within {_NEAR} steps of the best, and there are {len(near)}"
    x = np.array([point.beta - best.beta for point in near])
    second, first, constant = np.polyfit(x, np.array([point.mean for point in near]), 2)
    if second >= -1e-9:
        return {}, None, "that through the means around the best has no maximum"
    values = {point.beta: float(second * t * t + first * t + constant) for point, t in zip(near, x, strict=True)}
    return values, float(best.beta - first / (2 * second)), ""
