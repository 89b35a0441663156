"""Plans carried out together: searches for beta round by round, and beside them every run whose beta is known."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longtail.study.execute import Outcome
from longtail.study.plan import Plan, Planned
from longtail.study.searching import Searched, searching

__all__ = ["Ahead", "Found", "More", "Place", "conduct", "look_ahead", "search_folder"]

Place = tuple[str, float | None, str]
"""Data set, imbalance factor and method."""

Found = dict[Place, Searched]
"""What the searches of a plan found."""

More = Callable[[], Sequence[Planned]]
"""Asked while runs are trained: those that are to join them."""

_Search = Generator[list[Planned], None, Searched]
_Key = tuple[int, Place]  # the number of the plan


def search_folder(plan: Plan, place: Place) -> Path:
    """Where the runs of a search go."""
    data, imbalance, method = place
    parts = [Path(data).name, *([f"{imbalance:g}"] if imbalance else []), method]
    return Path(plan.out) / "search" / "-".join(parts)


def conduct(
    plans: Sequence[Plan],
    train: Callable[[Sequence[Planned], More], Outcome],
    *,
    on_round: Callable[[Place, Sequence[float]], None] = lambda _, __: None,
    searches_only: bool = False,
    command: str = "",
) -> tuple[list[Found], Outcome]:
    """Carry out plans.

    A fleet with few members starves, so nothing is trained alone. The searches, which others wait for, come first, and
    beside them all runs whose beta is known; the next round of a search, and what it found, join these as soon as a
    round is done. Of each kind what was begun comes before what was not, seed by seed.

    Args:
        plans: to be carried out.
        train: trains the runs that are not done and those that join them, such as
            :func:`longtail.study.execute.execute`.
        on_round: told the betas of each round before they are trained.
        searches_only: leave the plans' own runs out.
        command: what they are carried out by, which searches write down.

    Returns:
        what each plan's searches found, and how the plans' own runs went. Of a search that lost a run, or can choose
        nothing, there is nothing, and its plan's runs with that beta are left out.
    """
    searches = _Searches(plans, on_round, command=command)
    own: dict[Path, Planned] = {}
    given: set[Path] = set()

    def more() -> list[Planned]:
        if not searches.advance() and given:
            return []
        if not searches_only:
            own.update(_own(plans, searches.betas))
        runs = [*_ordered(searches.trials()), *_ordered(own.values())]
        new = [run for run in runs if run.path not in given]
        given.update(run.path for run in new)
        return new

    runs = more()
    searches.check()  # before anything is trained
    outcomes = []
    while runs:
        outcomes.append(train(runs, more))
        runs = more()
    failed = {path: why for outcome in outcomes for path, why in outcome.failed.items()}
    return searches.found, Outcome(
        done=tuple(run for run in own.values() if run.folder.done),
        failed=failed,
        elsewhere=tuple(run for outcome in outcomes for run in outcome.elsewhere),
        unsearched=searches.without_end(failed),
    )


@dataclass(frozen=True)
class Ahead:
    """Where a plan would go on."""

    runs: tuple[Planned, ...]
    """Its own whose betas are known, done or not."""
    betas: dict[Place, float]
    """What its searches that are done found."""
    rounds: dict[Place, tuple[Planned, ...]]
    """Of each other search the runs of the round that it is at, done or not."""


def look_ahead(plans: Sequence[Plan], *, searches_only: bool = False) -> list[Ahead]:
    """Where :func:`conduct` would go on. Nothing is trained, and nothing is written.

    Args:
        plans: to be looked at.
        searches_only: leave the plans' own runs out.
    """
    searches = _Searches(plans, command=None)
    searches.advance()
    searches.check()
    _own(plans, searches.betas)  # refuses two runs in one folder
    found = []
    for number, (plan, betas) in enumerate(zip(plans, searches.betas, strict=True)):
        rounds = {place: tuple(runs) for (of, place), runs in searches.asked.items() if of == number}
        found.append(Ahead(() if searches_only else tuple(plan.runs(betas)), betas, rounds))
    return found


def _own(plans: Sequence[Plan], betas: Sequence[Mapping[Place, float]]) -> dict[Path, Planned]:
    """The plans' own runs, as far as their betas are known, each once."""
    runs: dict[Path, Planned] = {}
    for plan, of_plan in zip(plans, betas, strict=True):
        for run in plan.runs(of_plan):
            if runs.setdefault(run.path, run) != run:
                raise ValueError(f"Expected the plans to have one run in {run.path}, but they have two different ones.")
    return runs


def _ordered(runs: Iterable[Planned]) -> list[Planned]:
    return sorted(runs, key=lambda run: (not run.folder.begun, run.recipe.seed))


class _Searches:
    """The searches of all plans, each at one of its rounds."""

    def __init__(
        self,
        plans: Sequence[Plan],
        on_round: Callable[[Place, Sequence[float]], None] = lambda _, __: None,
        *,
        command: str | None,
    ) -> None:
        self.on_round = on_round
        self.found: list[Found] = [{} for _ in plans]
        self._going = {
            (number, place): searching(plan.base(*place), plan.search, search_folder(plan, place), command)
            for number, plan in enumerate(plans)
            for place in plan.searches
        }
        self.asked: dict[_Key, list[Planned]] = {}
        """The runs of the round that each is at."""
        self.refused: list[str] = []
        """Why searches cannot go on, a sentence each."""

    @property
    def betas(self) -> list[dict[Place, float]]:
        """What those of each plan found."""
        return [{place: one.beta for place, one in of_plan.items()} for of_plan in self.found]

    def check(self) -> None:
        """Refuse searches that cannot go on."""
        if self.refused:
            raise ValueError("\n".join(self.refused))

    def trials(self) -> list[Planned]:
        """The runs that they wait for, and others of the same rounds."""
        return [run for runs in self.asked.values() for run in runs]

    def advance(self) -> bool:
        """Take those whose round is done to the next that has something to train, or to their end; whether any was."""
        ready = [key for key in self._going if all(run.folder.done for run in self.asked.get(key, ()))]
        for key in ready:
            self._take_on(key)
        return bool(ready)

    def _take_on(self, key: _Key) -> None:
        number, place = key
        try:
            while all(run.folder.done for run in self.asked.get(key, ())):
                self.asked[key] = next(self._going[key])
            self.on_round(place, sorted({run.recipe.beta for run in self.asked[key] if run.recipe.beta is not None}))
            return
        except StopIteration as end:
            self.found[number][place] = end.value
        except ValueError as error:  # nothing can be chosen; what else is under way goes on
            self.refused.append(str(error))
        del self._going[key]
        self.asked.pop(key, None)

    def without_end(self, failed: Mapping[str, str]) -> tuple[str, ...]:
        """Why searches did not end, a sentence each, once nothing is under way."""
        return (*self.refused, *(_unfinished(runs, failed) for runs in self.asked.values()))


def _unfinished(runs: Sequence[Planned], failed: Mapping[str, str]) -> str:
    """Which run keeps a search from going on."""
    run = next(run for run in runs if not run.folder.done)
    why = failed.get(str(run.path), "another process is training it")
    return f"Expected all runs of a search to finish, but {run.path} did not: {why}"
