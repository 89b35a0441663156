"""The runs behind the page: what exists of each plan, small copies of it, and the runs sorted by what they show."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from longtail._io import write_text
from longtail.data import data_title
from longtail.study.captions import numbers
from longtail.study.conduct import Searches
from longtail.study.planning import PlannedRun, SearchKey, StudyPlan, read_plan
from longtail.study.runs import (
    SEARCH_FILE,
    Cell,
    Run,
    by_data,
    find_cell,
    group_runs,
    method_title,
    ordered,
    read_run,
    read_runs,
)
from longtail.study.search import SearchResult, search_runs
from longtail.train.folder import RunFolder
from longtail.train.recipe import Recipe, differing_settings, settings_of, write_recipe
from reproduction import paper
from reproduction.measure import BALANCED_FILE, REDRAWN_FILE, UNTRAINED_FILE, is_balanced

__all__ = ["MAIN", "Collection", "PlanState", "all_runs", "collect", "keep", "state_of"]

MAIN = ("softmax", "balanced-softmax", "cbs")
"""The methods of the paper's CIFAR table; softmax is in its figures."""

_KEPT = ("environment.json", "log.jsonl", BALANCED_FILE, REDRAWN_FILE, UNTRAINED_FILE, "result.json")
"""Files of a run that are kept besides its recipe; the result, which marks the run as finished, comes last."""


def keep(source: Path, target: Path) -> int:
    """Copy the small files of all finished runs below a folder, and of its searches for beta.

    Weights, predictions and checkpoints are left out, and so are the logs of runs on folds. The recipe's data folder is
    set to the default. Files of another run with the same name are removed. A kept run counts as finished when it is
    copied back.

    Returns:
        the number of copied runs.
    """
    results = sorted(source.rglob("result.json")) if source.is_dir() else []
    results = [result for result in results if not RunFolder(result.parent).is_pilot]
    for result in results:
        folder = target / result.parent.relative_to(source)
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "result.json"
        if kept.exists() and kept.read_bytes() != result.read_bytes():
            for file in folder.iterdir():
                if file.is_file():
                    file.unlink()
        recipe = RunFolder(result.parent).recipe()
        if recipe.root == Recipe().root:
            _copy(result.parent / "recipe.toml", folder)
        else:
            write_text(folder / "recipe.toml", write_recipe(replace(recipe, root=Recipe().root)))
        for name in _KEPT:
            if not (recipe.folds and name == "log.jsonl"):
                _copy(result.parent / name, folder)
    for search in sorted(source.rglob(SEARCH_FILE)) if results else []:
        folder = target / search.parent.relative_to(source)
        folder.mkdir(parents=True, exist_ok=True)
        _copy(search, folder)
    return len(results)


def _copy(file: Path, folder: Path) -> None:
    if file.exists():
        write_text(folder / file.name, file.read_text(encoding="utf-8"))


@dataclass(frozen=True, eq=False)
class PlanState:
    """A plan, and the runs and searches of it that are finished or missing."""

    file: Path
    plan: StudyPlan
    """Its folder is the one where small files are kept."""
    runs: tuple[Run, ...]
    more: tuple[Run, ...]
    """Runs in the folder that the plan does not have."""
    missing: tuple[PlannedRun, ...]
    found: Searches
    """Finished searches."""
    open_searches: tuple[SearchKey, ...]

    @property
    def folder(self) -> Path:
        """The folder of its runs."""
        return Path(self.plan.out)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing and not self.open_searches

    def other_settings(self) -> list[str]:
        """Settings in which runs differ from the plan, each once."""
        wanted = {run.path: settings_of(run.recipe) for run in _wanted(self.plan, self.found)}
        pairs = [(settings_of(run.recipe), wanted[run.path]) for run in self.runs]
        return sorted({text for there, here in pairs for text in differing_settings(there, here)})

    def seeds(self) -> dict[str, tuple[list[int], list[int]]]:
        """The finished and the missing seeds of each cell of the plan."""
        found: dict[str, tuple[list[int], list[int]]] = {}
        for place, recipes in enumerate(([run.recipe for run in self.runs], [run.recipe for run in self.missing])):
            for recipe in recipes:
                cell = Cell((Run(self.folder, recipe, {}),))
                found.setdefault(f"{cell.data} {cell.title}", ([], []))[place].append(recipe.seed)
        return found

    def describe_missing(self) -> str:
        """The missing runs and searches, in words."""
        parts = [f"{name}, seed {numbers(seeds)}" for name, (_, seeds) in self.seeds().items() if seeds]
        parts += [
            f"the search for β of {method_title(method)} on {data_title(data, imbalance)}, and its runs"
            for data, imbalance, method in self.open_searches
        ]
        return "; ".join(parts)


def state_of(file: Path | str, out: Path) -> PlanState:
    """What is kept of a plan in its folder below ``out``."""
    given = read_plan(file, to_run=False)
    plan = replace(given, out=str(out / Path(given.out).name))
    there = {run.path: run for run in read_runs(plan.out)} if Path(plan.out).is_dir() else {}
    found: Searches = {}
    for place in plan.searches:
        searched = _finished(plan, place) if plan.search_folder(place).is_dir() else None
        found |= {} if searched is None else {place: searched}
    wanted = _wanted(plan, found)
    paths = {run.path for run in wanted}
    return PlanState(
        Path(file),
        plan,
        tuple(read_run(run.path) for run in wanted if run.folder.done),
        tuple(run for path, run in there.items() if path not in paths),
        tuple(run for run in wanted if not run.folder.done),
        found,
        tuple(place for place in plan.searches if place not in found),
    )


def _wanted(plan: StudyPlan, found: Searches) -> list[PlannedRun]:
    return plan.runs({place: one.beta for place, one in found.items()})


def _finished(plan: StudyPlan, place: SearchKey) -> SearchResult | None:
    """A search, if all its runs exist. Nothing is written."""
    rounds = search_runs(plan.base(*place), plan.search, plan.search_folder(place), command=None)
    try:
        while all(run.folder.done for run in next(rounds)):
            pass
    except StopIteration as end:
        result: SearchResult = end.value
        return result
    return None


def all_runs(states: Iterable[PlanState]) -> list[Run]:
    """Every run of several plans."""
    return [run for one in states for run in (*one.runs, *one.more)]


@dataclass(frozen=True, eq=False)
class Collection:
    """The runs of a page, sorted."""

    main: tuple[Cell, ...]
    """The plans' runs of the three main methods on the paper's data sets."""
    others: dict[str, list[Cell]]
    """All methods on the paper's data sets that have more than those three."""
    balanced: tuple[Cell, ...]
    rest: tuple[Cell, ...]
    """Runs on data sets that the paper does not have."""
    searches: tuple[SearchResult, ...]
    planned: frozenset[Path]
    """Folders of the plans' runs."""
    given: frozenset[Path]
    """Those whose beta is a number in the plan."""

    def is_planned(self, cell: Cell) -> bool:
        """Whether any of a cell's runs is in a plan."""
        return any(run.path in self.planned for run in cell.runs)

    @property
    def main_data(self) -> dict[str, list[Cell]]:
        """The main cells per data set."""
        return by_data(self.main)

    def roles(self, data: str) -> dict[str, Cell]:
        """The main cells of a data set under the same titles on all data sets: CBS by the origin of its beta."""
        cells = self.main_data[data]
        searched = {one.beta for one in self.searches if one.cells[0].data == data}
        found = {cell.title: cell for cell in cells if cell.method != "cbs"}
        for title, betas in (("CBS, the authors’ β", {paper.beta(data)}), ("CBS, β searched", searched)):
            cell = next((one for one in cells if one.method == "cbs" and one.recipe.beta in betas), None)
            found |= {} if cell is None else {title: cell}
        return found

    def authors_cbs(self, data: str) -> Cell | None:
        """CBS with the authors' beta, or with another if that was not run."""
        cells = [cell for cell in self.main_data.get(data, []) if cell.method == "cbs"]
        return next((cell for cell in cells if cell.recipe.beta == paper.beta(data)), find_cell(cells, "cbs"))

    def selected(self, cells: Sequence[Cell]) -> str:
        """How betas were chosen, for captions."""
        data = {cell.data for cell in cells if cell.recipe.beta is not None}
        theirs = [f"{name} {beta:g}" for name in by_data(cells) if name in data and (beta := paper.beta(name))]
        parts = [f"the authors’ β: {', '.join(theirs)}"] if theirs else []
        given = dict.fromkeys(f"{cell.data} {cell.recipe.beta:g}" for cell in ordered(cells) if self._is_given(cell))
        parts += [f"β as given: {', '.join(given)}"] if given else []
        of_data = [one for one in self.searches if one.cells[0].data in data]
        if of_data:
            betas = ", ".join(f"{one.cells[0].data} {one.beta:g}" for one in of_data)
            parts.append(f"{of_data[0].selected}: {betas}")
        return "; ".join(parts)

    def _is_given(self, cell: Cell) -> bool:
        """Whether a plan has the beta of a cell, and the authors do not have one."""
        return paper.beta(cell.data) is None and any(run.path in self.given for run in cell.runs)


def collect(states: Sequence[PlanState]) -> Collection:
    """Sort the runs of several plans."""
    planned, everything = [run for one in states for run in one.runs], all_runs(states)
    others = {
        data: cells
        for data, cells in by_data(group_runs(run for run in everything if _in_paper(run))).items()
        if any(cell.method not in MAIN for cell in cells)
    }
    return Collection(
        tuple(ordered(group_runs(run for run in planned if _in_paper(run) and run.method in MAIN))),
        others,
        tuple(ordered(group_runs(run for run in everything if is_balanced(run.recipe)))),
        tuple(ordered(group_runs(run for run in planned if not _in_paper(run) and not is_balanced(run.recipe)))),
        tuple(one.found[place] for one in states for place in one.plan.searches if place in one.found),
        frozenset(run.path for run in planned),
        frozenset(run.path for one in states for run, _, beta in one.plan.combinations() if not isinstance(beta, str)),
    )


def _in_paper(run: Run) -> bool:
    """Whether the paper has the long-tailed data set."""
    return bool(paper.imbalance_level(run.data))
