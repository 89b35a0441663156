"""Plans carried out together: searches for beta round by round, together with every run whose beta is known.

:func:`conduct` decides what is trained next; the function ``train`` that it gets does the training. It can be
:func:`longtail.study.execute.execute`, or anything else that fills run folders, such as a cluster.
"""

import math
import os
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from longtail._io import map_files
from longtail._program import count
from longtail.data import data_title
from longtail.study.planning import PlannedRun, SearchKey, StudyPlan
from longtail.study.search import SearchResult, search_runs
from longtail.train.folder import RunFolder

Searches = dict[SearchKey, SearchResult]
"""The results of a plan's searches."""

OnRound = Callable[[SearchKey, Sequence[float]], None]
"""Called with data set, imbalance and method, and the betas that a search tries next."""

More = Callable[[], Sequence[PlannedRun]]
"""Called while runs are trained: returns runs that join them."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of the runs."""

    done: tuple[PlannedRun, ...]
    failed: dict[str, str]
    """Folders of runs that ended with an error, and the error."""
    elsewhere: tuple[PlannedRun, ...] = ()
    """Runs that another process is training."""
    unfinished: tuple[str, ...] = ()
    """Why searches for beta did not finish, one sentence each."""


Estimate = Callable[[Sequence[PlannedRun]], tuple[dict[Path, float], float]]
"""Returns the seconds of each run, and of all together."""

Train = Callable[[Sequence[PlannedRun], More], Outcome]
"""Trains the runs that are not done, and those that join them."""


def conduct(
    plans: Sequence[StudyPlan],
    train: Train,
    *,
    on_round: OnRound | None = None,
    searches_only: bool = False,
    command: str | None = "",
    spread: bool = False,
) -> tuple[list[Searches], Outcome]:
    """Carry out plans.

    Runs are faster in a large fleet than one after the other. So the searches, which other runs wait for, come first,
    together with all runs whose beta is known; the next round of a search, and the runs with the beta that it found,
    join them as soon as a round is done. In each of the two lists, runs that were started come before others, and then
    seed by seed.

    Args:
        plans: what to carry out.
        train: trains the runs that are not done and those that join them.
        on_round: called with the betas of each round before they are trained.
        searches_only: leave out the plans' own runs.
        command: the command that started this, which searches record; ``None``: nothing is written.
        spread: put the plans' own runs into a random order, so that many workers seldom meet at the same run.

    Returns:
        the results of each plan's searches, and the outcome of the plans' own runs. A search that lost a run, or cannot
        choose, has no result, and the runs with its beta are left out.
    """
    searches = _Searches(plans, on_round, command)
    own: dict[Path, PlannedRun] = {}
    given: set[Path] = set()

    def more() -> list[PlannedRun]:
        if not searches.advance() and given:
            return []
        if not searches_only:
            own.update(_own_runs(plans, searches.results))
        trials = [run for runs in searches.current.values() for run in runs]
        new = [[run for run in some if run.path not in given] for some in (trials, own.values())]
        given.update(run.path for some in new for run in some)
        return [*_ordered(new[0]), *_ordered(new[1], spread=spread)]

    runs = more()
    if searches.refused:  # before anything is trained
        raise ValueError(" ".join(searches.refused))
    outcomes = []
    while runs:
        outcomes.append(train(runs, more))
        runs = more()
    failed = {path: why for outcome in outcomes for path, why in outcome.failed.items()}
    done = {run.path for outcome in outcomes for run in outcome.done}
    done |= {run.path for run in done_of(run for run in own.values() if run.path not in done)}
    return searches.results, Outcome(
        done=tuple(run for run in own.values() if run.path in done),
        failed=failed,
        elsewhere=tuple(run for outcome in outcomes for run in outcome.elsewhere),
        unfinished=searches.unfinished(failed),
    )


def describe_plans(plans: Sequence[StudyPlan], *, searches_only: bool = False, estimate: Estimate | None = None) -> str:
    """Return what is done of plans and what comes next, one line per run; nothing is trained or written.

    Args:
        plans: the plans.
        searches_only: leave out the plans' own runs.
        estimate: how long runs take; see :func:`longtail.study.estimate.estimate`.
    """
    ahead, searches = _plan_ahead(plans, searches_only)
    left = [run for run in ahead if not run.folder.done]
    each, total = ({}, 0.0) if estimate is None else estimate(left)
    about = f"; about {timedelta(seconds=math.ceil(total))} left" if each else ""
    lines = [f"{count(len(ahead), 'run')}, {len(ahead) - len(left)} done{about}:"]
    for run in ahead:
        state = "done" if run.folder.done else "started" if run.folder.has_trained else "to do"
        seconds = f"  {timedelta(seconds=math.ceil(each[run.path]))}" if run.path in each else ""
        lines.append(f"  {state:<8} {run.path}{seconds}")
    for plan, found in zip(plans, searches, strict=True):
        for key in plan.searches:
            beta = f"beta = {found[key].beta:g}" if key in found else "not done, more runs will follow"
            lines.append(f"  search for the beta of {key[2]} on {data_title(key[0], key[1])}: {beta}")
    return "\n".join(lines)


def known_runs(plans: Sequence[StudyPlan]) -> list[PlannedRun]:
    """Return the runs of plans, done or not, with those of searches as far as they are known."""
    return _plan_ahead(plans)[0]


def _plan_ahead(plans: Sequence[StudyPlan], searches_only: bool = False) -> tuple[list[PlannedRun], list[Searches]]:
    ahead: list[PlannedRun] = []

    def train(runs: Sequence[PlannedRun], _: More) -> Outcome:
        ahead.extend(runs)
        return Outcome((), {})

    searches, _ = conduct(plans, train, searches_only=searches_only, command=None)
    return ahead, searches


def _own_runs(plans: Sequence[StudyPlan], searches: Sequence[Searches]) -> dict[Path, PlannedRun]:
    """The plans' own runs whose betas are known, each once."""
    runs: dict[Path, PlannedRun] = {}
    for plan, found in zip(plans, searches, strict=True):
        for run in plan.runs({key: one.beta for key, one in found.items()}):
            if runs.setdefault(run.path, run) != run:
                raise ValueError(f"Expected the plans to have one run in {run.path}, but they have two different ones.")
    return runs


def _ordered(runs: Sequence[PlannedRun], *, spread: bool = False) -> list[PlannedRun]:
    """Runs that were started come first, and then seed by seed, or at random."""
    begun = {run.path for run in _having(lambda folder: folder.begun, runs)}
    draw = random.Random()
    return sorted(runs, key=lambda run: (run.path not in begun, draw.random() if spread else run.recipe.seed))


class _Searches:
    """The searches of all plans, each at one of its rounds."""

    def __init__(self, plans: Sequence[StudyPlan], on_round: OnRound | None, command: str | None) -> None:
        self.on_round = on_round
        self.results: list[Searches] = [{} for _ in plans]
        self._going: dict[tuple[int, SearchKey], Generator[list[PlannedRun], None, SearchResult]] = {
            (number, key): search_runs(plan.base(*key), plan.search, plan.search_folder(key), command)
            for number, plan in enumerate(plans)
            for key in plan.searches
        }
        self.current: dict[tuple[int, SearchKey], list[PlannedRun]] = {}
        """The runs of each search's current round."""
        self.refused: list[str] = []
        """Why searches cannot continue, one sentence each."""

    def advance(self) -> bool:
        """Take searches whose round is done to the next round with something to train, or to their end."""
        ready = [search for search in self._going if _all_done(self.current.get(search, ()))]
        for search in ready:
            number, key = search
            try:
                while _all_done(self.current.get(search, ())):
                    self.current[search] = next(self._going[search])
            except StopIteration as end:
                self.results[number][key] = end.value
            except ValueError as error:  # nothing can be chosen; the other searches continue
                self.refused.append(str(error))
            else:
                if self.on_round is not None:
                    betas = {run.recipe.beta for run in self.current[search] if run.recipe.beta is not None}
                    self.on_round(key, sorted(betas))
                continue
            del self._going[search]
            self.current.pop(search, None)
        return bool(ready)

    def unfinished(self, failed: Mapping[str, str]) -> tuple[str, ...]:
        """Return why searches did not finish, one sentence each, once nothing is under way."""
        found = list(self.refused)
        for runs in self.current.values():
            lost = next((run for run in runs if str(run.path) in failed or not run.folder.done), runs[0])
            why = failed.get(str(lost.path), "another process is training it")
            found.append(f"Expected all runs of a search to finish, but {lost.path} did not: {why}")
        return tuple(found)


def done_of(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Return the runs that are done."""
    return _having(lambda folder: folder.done, runs)


def _having(test: Callable[[RunFolder], bool], runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Return the runs whose folders pass a test. Where many runs share a folder, it is listed to find what exists."""
    given = list(runs)
    sizes = Counter(run.path.parent for run in given)
    listed = {parent: set(_names(parent)) for parent, size in sizes.items() if size > _MANY}
    there = [run for run in given if run.path.parent not in listed or run.path.name in listed[run.path.parent]]
    return [run for run, found in zip(there, map_files(lambda run: test(run.folder), there), strict=True) if found]


def _names(folder: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return os.listdir(folder)  # noqa: PTH208 - only the names are needed
    return []


_MANY = 64


def _all_done(runs: Iterable[PlannedRun]) -> bool:
    return all(run.folder.done for run in runs)
