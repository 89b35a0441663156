"""``longtail study --dry-run``: what is done of plans, what is left, and about how long that takes."""

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from longtail.report.page import many
from longtail.study.conduct import Ahead, Place, look_ahead, search_folder
from longtail.study.estimate import Estimate, estimate
from longtail.study.execute import devices
from longtail.study.plan import Plan, Planned
from longtail.study.runs import data_title
from longtail.train.fleet import at_a_time
from longtail.train.loading import open_data

__all__ = ["dry_run"]

console = Console()


def dry_run(plans: Sequence[Plan], together: int | None, *, searches_only: bool = False) -> None:
    """Tell how far plans are; nothing is trained but a few steps, and nothing is written."""
    for plan, ahead in zip(plans, look_ahead(plans, searches_only=searches_only), strict=True):
        done = sum(run.folder.done for run in ahead.runs)
        _tell(
            f"{many(len(ahead.runs), 'run')}, {done} of them done, in {plan.out}:" if ahead.runs else f"In {plan.out}:"
        )
        for run in ahead.runs:
            _tell(f"  {'done' if run.folder.done else 'begun' if run.folder.begun else 'to do':<6} {run.path.name}")
        for place in plan.searches:
            _tell(_search(plan, ahead, place, then=0 if searches_only else len(plan.seeds)))
        found_later = [] if searches_only else [run for place in ahead.rounds for run in _with_found(plan, place)]
        trials = [run for runs in ahead.rounds.values() for run in runs]
        left = [run for run in (*ahead.runs, *trials, *found_later) if not run.folder.done]
        _tell(f"{'At least: ' if ahead.rounds else ''}{_time(left, plan.out, together)}")


def _search(plan: Plan, ahead: Ahead, place: Place, *, then: int) -> str:
    """How far a search is, in words; ``then`` is the number of runs with the beta that it finds."""
    of = f"the search for the beta of {place[2]} on {data_title(place[0], place[1])}"
    if place in ahead.betas:
        return f"  done   {of}: beta = {ahead.betas[place]:g}"
    runs = ahead.rounds[place]
    betas = sorted({run.recipe.beta for run in runs if run.recipe.beta is not None})
    tried = f"now with beta {', '.join(f'{beta:g}' for beta in betas)} ({many(len(runs) // len(betas), 'run')} each)"
    left = many(sum(not run.folder.done for run in runs), "run")
    most = "" if _finds_another(plan) else "up to "
    later = f", then {most}{many(then, 'run')} with the beta that it finds" if then else ""
    state = "begun" if search_folder(plan, place).exists() else "to do"
    return f"  {state:<6} {of}: {left} or more, {tried}{later}"


def _with_found(plan: Plan, place: Place) -> list[Planned]:
    """The runs with the beta that a search has yet to find, as far as they are known to be left."""
    base, folder = plan.base(*place), search_folder(plan, place)
    seeds = plan.seeds if _finds_another(plan) else ()
    return [Planned(replace(base, seed=seed), folder / f"found-seed{seed}") for seed in seeds]


def _finds_another(plan: Plan) -> bool:
    """Whether what a search finds cannot be a beta that the plan has anyway."""
    return plan.betas == ("search",)


def _time(left: Sequence[Planned], out: str, together: int | None) -> Estimate:
    places = devices(left)
    kinds = {(run.recipe.data, run.recipe.model): run.recipe for run in left}.values()
    most = together or min((at_a_time(recipe, open_data(recipe), places[0]) for recipe in kinds), default=1)
    return estimate(left, out, most, places, trial=True)


def _tell(line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
