"""Plans carried out together: searches for beta round by round, and beside them every run whose beta is known."""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from longtail.study.execute import Outcome
from longtail.study.plan import Plan, Planned
from longtail.study.searching import Searched, searching

__all__ = ["Found", "Place", "conduct", "search_folder"]

Place = tuple[str, float | None, str]
"""Data set, imbalance factor and method."""

Found = dict[Place, Searched]
"""What the searches of a plan found."""

_Search = Generator[list[Planned], None, Searched]


def search_folder(plan: Plan, place: Place) -> Path:
    """Where the runs of a search go."""
    data, imbalance, method = place
    parts = [Path(data).name, *([f"{imbalance:g}"] if imbalance else []), method]
    return Path(plan.out) / "search" / "-".join(parts)


def conduct(
    plans: Sequence[Plan],
    train: Callable[[Sequence[Planned]], Outcome],
    *,
    on_round: Callable[[Place, Sequence[float]], None] = lambda _, __: None,
    searches_only: bool = False,
) -> tuple[list[Found], Outcome]:
    """Carry out plans.

    A fleet with few members starves, so nothing is trained alone: a round of all searches is trained together, with
    all runs whose beta is known by then: these first, what was begun before what was not, seed by seed.

    Args:
        plans: to be carried out.
        train: trains the runs that are not done, such as :func:`longtail.study.execute.execute`.
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
    asked: dict[tuple[int, Place], list[Planned]] = {}
    found: list[Found] = [{} for _ in plans]
    for key, search in going.items():
        _advance(key, search, asked, found, on_round)
    while True:
        own = [] if searches_only else _own(plans, found)
        trials = [run for runs in asked.values() for run in runs]
        outcome = train([*_ordered(own), *_ordered(trials)])
        if not asked:
            return found, outcome
        for key, search in going.items():
            if key in asked:
                _check_done(asked[key], outcome)
                _advance(key, search, asked, found, on_round)


def _own(plans: Sequence[Plan], found: Sequence[Found]) -> list[Planned]:
    """The plans' own runs, as far as their betas are known, each once."""
    runs: dict[Path, Planned] = {}
    for plan, of_plan in zip(plans, found, strict=True):
        for run in plan.runs({place: one.beta for place, one in of_plan.items()}):
            if runs.setdefault(run.path, run) != run:
                raise ValueError(f"Expected the plans to have one run in {run.path}, but they have two different ones.")
    return list(runs.values())


def _ordered(runs: Sequence[Planned]) -> list[Planned]:
    return sorted(runs, key=lambda run: (not run.folder.begun, run.recipe.seed))


def _advance(
    key: tuple[int, Place],
    search: _Search,
    asked: dict[tuple[int, Place], list[Planned]],
    found: Sequence[Found],
    on_round: Callable[[Place, Sequence[float]], None],
) -> None:
    """Take a search to its next round that has something to train, or to its end."""
    number, place = key
    try:
        while all(run.folder.done for run in asked.get(key, ())):
            asked[key] = next(search)
        on_round(place, sorted({run.recipe.beta for run in asked[key] if run.recipe.beta is not None}))
    except StopIteration as end:
        found[number][place] = end.value
        asked.pop(key, None)


def _check_done(runs: Sequence[Planned], outcome: Outcome) -> None:
    for run in runs:
        if not run.folder.done:
            why = outcome.failed.get(str(run.path), "another process is training it")
            raise ValueError(f"Expected all runs of a search to finish, but {run.path} did not: {why}")
