"""The search for beta, as the paper describes it, as a pure function of scores: what to try next, and what to choose.

The rule is fixed:

1. Start with 1.0, 1.1, 1.2, 1.3.
2. A score is the criterion on held-out data in one run. The value of a beta is the mean of its scores over folds and
   seeds.
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
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from longtail._checks import check_integer

if TYPE_CHECKING:
    from longtail.study.runs import Run

START = (1.0, 1.1, 1.2, 1.3)
"""Where the paper's search starts."""

_BEYOND = 2  # betas tried past the best that end a side, whatever their values are
_NEAR = 3  # steps to either side of the best that the quadratic goes through
_FEWEST = 4  # betas that it needs
_DIGITS = 10  # betas are sums of steps


@dataclass(frozen=True)
class Score:
    """The score of one run."""

    value: float
    """The criterion, higher is better; NaN if it is undefined, which counts as worst."""
    level: float = math.nan
    """The model imbalance level on the same data, for ties."""


@dataclass(frozen=True)
class Criterion:
    """What a search maximises.

    Args:
        weights: weights of groups (``all`` is recall over all classes); empty: minus the model imbalance level.
    """

    weights: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> "Criterion":
        """Return the criterion for ``all``, ``level``, or weights of groups.

        Example:
            >>> Criterion.parse("all").weights, Criterion.parse("head=1,tail=2").weights
            ({'all': 1.0}, {'head': 1.0, 'tail': 2.0})
        """
        wrong = f"Expected `criterion` to be all, level, or weights as in head=1,tail=2, but got {text!r}."
        if not isinstance(text, str):
            raise TypeError(wrong)
        if text in {"all", "level"}:
            return cls({"all": 1.0} if text == "all" else {})
        weights: dict[str, float] = {}
        for part in text.split(","):
            name, _, number = part.partition("=")
            try:
                weights[name.strip()] = float(number)
            except ValueError:
                raise ValueError(wrong) from None
        groups = ("head", "medium", "tail", "all")
        if any(name not in groups for name in weights):
            raise ValueError(f"Expected `criterion` to have weights of {', '.join(groups)}, but got {text!r}.")
        if any(not 0 <= weight < math.inf for weight in weights.values()) or not sum(weights.values()):
            raise ValueError(f"Expected `criterion` to have weights >= 0, not all zero, but got {text!r}.")
        return cls(weights)

    def __str__(self) -> str:
        if not self.weights:
            return "model imbalance level"
        if set(self.weights) == {"all"}:
            return "recall over all classes"
        return "recall weighted " + ", ".join(f"{name} {weight:g}" for name, weight in self.weights.items())

    def score(self, run: "Run", part: Literal["val", "test"]) -> Score:
        """Return the score of a run: recall in per cent, or minus the imbalance level."""
        level = run.level(part)
        if not self.weights:
            return Score(-level, level)
        total = sum(self.weights.values())
        return Score(sum(w * run.recall(group, part) for group, w in self.weights.items()) / total, level)


@dataclass(frozen=True)
class Point:
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
class SearchPlan:
    """How beta is searched for."""

    folds: int | None = None
    """cross-validation folds of the training data; default: 5, or none if the data set has a validation split"""
    seeds: int = 1
    """seeds per fold"""
    criterion: str = "all"
    """recall over `all` classes, imbalance `level`, or weights of groups as in `head=1,tail=2`"""
    select_on: str = "val"
    """`val`; `test` chooses on test data, and every caption says so"""
    start: tuple[float, ...] = START
    """the betas of the first round"""
    step: float = 0.1
    """distance between betas outside the start values"""
    bounds: tuple[float, float] = (0.0, 3.0)
    """the smallest and the largest beta that may be tried"""

    def problems(self) -> list[str]:
        """Return everything that is wrong with the settings, one sentence each."""
        bounded = _is_list(self.bounds) and len(self.bounds) == 2 and 0 <= self.bounds[0] < self.bounds[1] < math.inf
        low, high = self.bounds if bounded else (0.0, math.inf)
        folds = self.folds is None or (isinstance(self.folds, int) and self.folds >= 0 and self.folds != 1)
        right = {
            f"Expected `bounds` to be a smaller and a larger beta >= 0, but got {self.bounds!r}.": bounded,
            f"Expected `step` to be a number > 0, but got {self.step!r}.": _is_number(self.step) and self.step > 0,
            f"Expected `start` to be betas in {low:g}…{high:g}, but got {self.start!r}.": _is_list(self.start)
            and len(self.start) > 0
            and all(low <= beta <= high for beta in self.start),
            f"Expected `search.folds` to be 0 or >= 2, but got {self.folds!r}.": folds,
            f"Expected `select_on` to be val or test, but got {self.select_on!r}.": self.select_on in {"val", "test"},
        }
        found = [problem for problem, holds in right.items() if not holds]
        found += problem_of(lambda: check_integer("search.seeds", self.seeds, minimum=1))
        return found + problem_of(lambda: Criterion.parse(self.criterion))


def problem_of(check: Callable[[], object]) -> list[str]:
    """Return the message of the error that a check raises, in a list; empty if it raises none."""
    try:
        check()
    except (TypeError, ValueError) as error:
        return [str(error)]
    return []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_list(value: object) -> bool:
    return isinstance(value, tuple | list) and all(map(_is_number, value))


@dataclass(frozen=True)
class Choice:
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
    level_known: bool = True
    """Whether the chosen beta's imbalance level is defined, so that it could decide between ties."""
    unsmoothed: str = ""
    """Why there is no quadratic."""

    def __str__(self) -> str:
        text = f"beta = {self.beta:g}"
        if len(self.ties) > 1:
            least = "the lowest imbalance level" if self.level_known else "the smallest (no imbalance level is defined)"
            why = "which are equally good"
            if not math.isnan(self.standard_error):
                values = "values on the quadratic" if self.smoothed else "means"
                why = f"whose {values} are within one standard error of the highest"
            text += f", {least} among {', '.join(f'{beta:g}' for beta in self.ties)}, {why}"
        if self.at_bound:
            text += f"; the best mean is at the bound, {self.best:g}, and the peak may be beyond it"
        return text


@dataclass(frozen=True)
class BetaSearch:
    """A search: what was tried, round by round, and what was chosen."""

    points: tuple[Point, ...]
    """By beta."""
    rounds: tuple[tuple[float, ...], ...]
    choice: Choice


def search_rounds(settings: SearchPlan) -> Generator[tuple[float, ...], Sequence[Sequence[Score]], BetaSearch]:
    """Yield the betas of each round, receive their scores, and return the finished search.

    As a generator, several searches can be held at the same round and their runs trained together.
    """
    for problem in settings.problems():
        raise ValueError(problem)
    points: list[Point] = []
    rounds: list[tuple[float, ...]] = []
    while betas := next_betas(points, settings):
        scores = yield betas
        if len(scores) != len(betas):
            raise ValueError(f"Expected scores of {len(betas)} betas, but got {len(scores)}.")
        points += [Point(beta, tuple(found)) for beta, found in zip(betas, scores, strict=True)]
        points.sort(key=lambda point: point.beta)
        _check_scores(points)
        rounds.append(betas)
    return BetaSearch(tuple(points), tuple(rounds), choose(points, settings))


def next_betas(points: Sequence[Point], settings: SearchPlan) -> tuple[float, ...]:
    """Return the betas to try next, ascending; empty when the search is over."""
    tried = {point.beta for point in points}
    left = sorted({round(beta, _DIGITS) for beta in settings.start} - tried)
    if left:
        return tuple(left)
    best, error = _best(points, settings), _standard_error(points)
    error = 0.0 if math.isnan(error) else error
    found = []
    for side in (-1, 1):
        further = [point for point in points if side * (point.beta - best.beta) > 0]
        if len(further) >= _BEYOND or any(best.mean - point.mean > error for point in further):
            continue
        end = max(tried, key=lambda beta: side * beta)
        beta = round(end + side * settings.step, _DIGITS)
        if settings.bounds[0] <= beta <= settings.bounds[1]:
            found.append(beta)
    return tuple(sorted(found))


def choose(points: Sequence[Point], settings: SearchPlan) -> Choice:
    """Return the beta that the rule picks among those tried."""
    _check_scores(points)
    if not any(math.isfinite(point.mean) for point in points):
        tried = ", ".join(f"{point.beta:g}" for point in points)
        raise ValueError(f"Expected a beta whose criterion is defined in every run, but got none among {tried}.")
    best, error = _best(points, settings), _standard_error(points)
    smoothed, peak, unsmoothed = _quadratic(points, best, settings.step)
    values = smoothed or {point.beta: point.mean for point in points}
    top = max(values.values())
    allowance = 1e-9 + (0.0 if math.isnan(error) else error)
    ties = [point for point in points if point.beta in values and values[point.beta] >= top - allowance]
    chosen = min(ties, key=lambda point: (point.level, point.beta))
    reach = settings.step * (1 - 1e-9)
    beyond = best.beta - reach < settings.bounds[0] or best.beta + reach > settings.bounds[1]
    return Choice(
        beta=chosen.beta,
        best=best.beta,
        ties=tuple(point.beta for point in ties),
        standard_error=error,
        smoothed=smoothed,
        peak=peak,
        at_bound=beyond and best.beta in {points[0].beta, points[-1].beta},
        level_known=math.isfinite(chosen.level),
        unsmoothed=unsmoothed,
    )


def _check_scores(points: Sequence[Point]) -> None:
    numbers = {len(point.scores) for point in points}
    if len(numbers) != 1 or 0 in numbers:
        raise ValueError(f"Expected the same number of scores for every beta, but got {sorted(numbers)}.")


def _best(points: Sequence[Point], settings: SearchPlan) -> Point:
    middle = (min(settings.start) + max(settings.start)) / 2
    top = max(point.mean for point in points)
    best = [point for point in points if point.mean == top]
    return min(best, key=lambda point: (abs(point.beta - middle), point.beta))


def _standard_error(points: Sequence[Point]) -> float:
    rows = [[score.value for score in point.scores] for point in points if math.isfinite(point.mean)]
    table: np.ndarray[Any, Any] = np.array(rows, dtype=np.float64)
    if len(rows) < 2 or table.shape[1] < 2:
        return math.nan
    rest = table - table.mean(0, keepdims=True) - table.mean(1, keepdims=True) + table.mean()
    betas, runs = table.shape
    return math.sqrt(float((rest**2).sum()) / ((betas - 1) * (runs - 1)) / runs)


def _quadratic(points: Sequence[Point], best: Point, step: float) -> tuple[dict[float, float], float | None, str]:
    """Fit a quadratic through the means around the best: its values there, its maximum, or why there is none."""
    reach = _NEAR * step * (1 + 1e-9)
    near = [point for point in points if abs(point.beta - best.beta) <= reach and math.isfinite(point.mean)]
    if len(near) < _FEWEST:
        return {}, None, f"it needs {_FEWEST} β within {_NEAR} steps of the best, and there are {len(near)}"
    x = np.array([point.beta - best.beta for point in near])
    second, first, constant = np.polyfit(x, np.array([point.mean for point in near]), 2)
    if second >= -1e-9:
        return {}, None, "the fit through the means around the best has no maximum"
    values = {point.beta: float(second * t * t + first * t + constant) for point, t in zip(near, x, strict=True)}
    return values, float(best.beta - first / (2 * second)), ""
