"""What is there of a plan: its runs, its searches for beta, and what is missing."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from longtail.study.captions import numbers
from longtail.study.conduct import Searches
from longtail.study.plan import PlannedRun, SearchKey, StudyPlan, read_plan
from longtail.study.runs import Run, data_title, method_title, read_run, read_runs
from longtail.study.search import search_runs
from longtail.train.recipe import differing_settings, settings_of

__all__ = ["Standing", "all_runs", "standing_of"]


@dataclass(frozen=True, eq=False)
class Standing:
    """A plan and what is there of it."""

    file: Path
    plan: StudyPlan
    """With the folder where small files are kept as its folder."""
    runs: tuple[Run, ...]
    """The plan's own."""
    more: tuple[Run, ...]
    """Other runs in the folder."""
    missing: tuple[PlannedRun, ...]
    found: Searches
    """Searches that are done."""
    open_searches: tuple[SearchKey, ...]
    trials: int
    """Runs on folds that are there."""

    @property
    def folder(self) -> Path:
        """Where its runs are kept."""
        return Path(self.plan.out)

    @property
    def whole(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing and not self.open_searches

    def other_settings(self) -> list[str]:
        """Settings in which runs differ from the plan, each once."""
        wanted = {run.path: settings_of(run.recipe) for run in _wanted(self.plan, self.found)}
        pairs = [(settings_of(run.recipe), wanted[run.path]) for run in self.runs]
        return sorted({text for there, here in pairs for text in differing_settings(there, here)})

    def seeds(self) -> dict[str, tuple[list[int], list[int]]]:
        """For each cell of the plan, by its name, the seeds that are there and those that are missing."""
        found: dict[str, tuple[list[int], list[int]]] = {}
        for place, recipes in enumerate(([run.recipe for run in self.runs], [run.recipe for run in self.missing])):
            for recipe in recipes:
                record = Run(self.folder, recipe, {})
                beta = "" if recipe.beta is None else f" (β = {recipe.beta:g})"
                name = f"{record.data} {method_title(record.method)}{beta}"
                found.setdefault(name, ([], []))[place].append(recipe.seed)
        return found

    def lacks(self) -> str:
        """What is missing, in words."""
        parts = [f"{name}, seed {numbers(seeds)}" for name, (_, seeds) in self.seeds().items() if seeds]
        parts += [
            f"the search for β of {method_title(p[2])} on {data_title(p[0], p[1])}, and its runs"
            for p in self.open_searches
        ]
        return "; ".join(parts)


def standing_of(file: Path | str, out: Path) -> Standing:
    """Look at what is kept of a plan in its folder below ``out``."""
    given = read_plan(file, to_run=False)
    plan = replace(given, out=str(out / Path(given.out).name))
    there = {run.path: run for run in read_runs(plan.out)} if Path(plan.out).is_dir() else {}
    found: Searches = {}
    unfinished: list[SearchKey] = []
    trials = 0
    for place in plan.searches:
        folder = plan.search_folder(place)
        trials += len(read_runs(folder, searches=True)) if folder.is_dir() else 0
        if not folder.is_dir() or not _follow(plan, place, found):
            unfinished.append(place)
    wanted = _wanted(plan, found)
    paths = {run.path for run in wanted}
    return Standing(
        Path(file),
        plan,
        tuple(read_run(run.path) for run in wanted if run.folder.done),
        tuple(run for path, run in there.items() if path not in paths),
        tuple(run for run in wanted if not run.folder.done),
        found,
        tuple(unfinished),
        trials,
    )


def _wanted(plan: StudyPlan, found: Searches) -> list[PlannedRun]:
    return plan.runs({place: one.beta for place, one in found.items()})


def _follow(plan: StudyPlan, place: SearchKey, found: Searches) -> bool:
    """Follow a search through the rounds that are there; whether it comes to its end."""
    rounds = search_runs(plan.base(*place), plan.search, plan.search_folder(place))
    try:
        while all(run.folder.done for run in next(rounds)):
            pass
    except StopIteration as end:
        found[place] = end.value
        return True
    return False


def all_runs(standings: Iterable[Standing]) -> list[Run]:
    """Every run of several plans."""
    return [run for one in standings for run in (*one.runs, *one.more)]
