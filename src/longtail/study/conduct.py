"""Plans carried out together: searches for beta round by round, and beside them every run whose beta is known."""

from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path

from longtail.study.execute import Outcome
from longtail.study.plan import Plan, Planned
from longtail.study.searching import Searched, searching

__all__ = ["Found", "More", "Place", "conduct", "search_folder"]

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

    Returns:
        what each plan's searches found, and how the plans' own runs went.
    """
    going = {
        (number, place): searching(plan.base(*place), plan.search, search_folder(plan, place))
        for number, plan in enumerate(plans)
        for place in plan.searches
    }
    asked: dict[_Key, list[Planned]] = {}
    found: list[Found] = [{} for _ in plans]
    own: dict[Path, Planned] = {}
    given: set[Path] = set()

    def more() -> list[Planned]:
        news = [_advance(key, going, asked, found, on_round) for key in list(going)]
        if given and not any(news):
            return []
        if not searches_only:
            own.update(_own(plans, found))
        runs = [*_ordered(run for runs in asked.values() for run in runs), *_ordered(own.values())]
        new = [run for run in runs if run.path not in given]
        given.update(run.path for run in new)
        return new

    outcomes = []
    while runs := more():
        outcomes.append(train(runs, more))
    failed = {path: why for outcome in outcomes for path, why in outcome.failed.items()}
    for runs in asked.values():
        _check_done(runs, failed)
    done = tuple(run for run in own.values() if run.folder.done)
    return found, Outcome(done, failed, tuple(run for outcome in outcomes for run in outcome.elsewhere))


def _own(plans: Sequence[Plan], found: Sequence[Found]) -> dict[Path, Planned]:
    """The plans' own runs, as far as their betas are known, each once."""
    runs: dict[Path, Planned] = {}
    for plan, of_plan in zip(plans, found, strict=True):
        for run in plan.runs({place: one.beta for place, one in of_plan.items()}):
            if runs.setdefault(run.path, run) != run:
                raise ValueError(f"Expected the plans to have one run in {run.path}, but they have two different ones.")
    return runs


def _ordered(runs: Iterable[Planned]) -> list[Planned]:
    return sorted(runs, key=lambda run: (not run.folder.begun, run.recipe.seed))


def _advance(
    key: _Key,
    going: dict[_Key, _Search],
    asked: dict[_Key, list[Planned]],
    found: Sequence[Found],
    on_round: Callable[[Place, Sequence[float]], None],
) -> bool:
    """Take a search to its next round that has something to train, or to its end; whether its round was done."""
    number, place = key
    if not all(run.folder.done for run in asked.get(key, ())):
        return False
    try:
        while all(run.folder.done for run in asked.get(key, ())):
            asked[key] = next(going[key])
        on_round(place, sorted({run.recipe.beta for run in asked[key] if run.recipe.beta is not None}))
    except StopIteration as end:
        found[number][place] = end.value
        del going[key]
        asked.pop(key, None)
    return True


def _check_done(runs: Sequence[Planned], failed: dict[str, str]) -> None:
    for run in runs:
        if not run.folder.done:
            why = failed.get(str(run.path), "another process is training it")
            raise ValueError(f"Expected all runs of a search to finish, but {run.path} did not: {why}")
