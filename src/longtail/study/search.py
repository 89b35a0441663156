"""The search for beta with real runs: cross-validation folds and seeds, trained together; its trace and tables."""

import json
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from longtail._io import write_json
from longtail.data import CATALOG, open_path
from longtail.study.plan import PlannedRun
from longtail.study.rendering import Row, Table, Value
from longtail.study.runs import SEARCH_FILE, Cell, one_cell, read_run
from longtail.study.search_rule import BetaSearch, Criterion, SearchPlan, search_rounds
from longtail.study.stats import Summary
from longtail.study.tables import sensitivity_table
from longtail.train.recipe import Recipe, defaults

DEFAULT_FOLDS = 5


@dataclass(frozen=True, eq=False)
class SearchResult:
    """A finished search for beta, with its runs."""

    found: BetaSearch
    cells: tuple[Cell, ...]
    """The runs of each beta, over folds and seeds."""
    plan: SearchPlan
    folds: int

    @property
    def selected(self) -> str:
        """How beta was chosen, for captions."""
        runs = len(self.found.points[0].scores)
        where = f"{self.folds}-fold cross-validation within training data" if self.folds else "validation data"
        if self.plan.select_on == "test":
            where = "TEST data"
        return f"β chosen on {where} by {Criterion.parse(self.plan.criterion)}, {runs} run{'s' * (runs > 1)} per β"

    @property
    def beta(self) -> float:
        """The beta that was chosen."""
        return self.found.choice.beta

    def sensitivity(self, command: str = "", *, wide: bool = True) -> Table:
        """Return train, validation and test recall of each group for each beta."""
        note = self.selected
        note += "" if self.plan.select_on == "test" else "; test recall is shown, not used"
        note += f"; each model saw {self.folds - 1} of {self.folds} folds" if self.folds else ""
        return sensitivity_table(self.cells, wide=wide, selected=note, command=command)

    def record(self) -> dict[str, Any]:
        """Return the search as plain data, for ``beta.json``."""
        choice = self.found.choice
        return {
            "beta": choice.beta,
            "data": self.cells[0].data,
            "method": self.cells[0].method,
            "selected": self.selected,
            "select_on": self.plan.select_on,
            "criterion": self.plan.criterion,
            "folds": self.folds,
            "choice": str(choice),
            "best_mean": choice.best,
            "ties": choice.ties,
            "standard_error": choice.standard_error,
            "quadratic": {"peak": choice.peak, "values": choice.smoothed},
            "at_bound": choice.at_bound,
            "rounds": self.found.rounds,
            "points": [
                {"beta": p.beta, "scores": [s.value for s in p.scores], "levels": [s.level for s in p.scores]}
                for p in self.found.points
            ],
        }


def folds_of(recipe: Recipe, plan: SearchPlan) -> int:
    """Return the number of folds of a search: none if there is validation data or the choice is made on test data.

    The tenth that a recipe holds out by default is not used to choose beta: it has hardly any image of a rare class.
    """
    if plan.folds is not None:
        return plan.folds
    default = defaults(recipe.data, recipe.method, recipe.imbalance).validation
    held_out = _has_split(recipe) or (recipe.validation != default and recipe.validation > 0)
    return 0 if plan.select_on == "test" or held_out else DEFAULT_FOLDS


def _has_split(recipe: Recipe) -> bool:
    """Whether the data set itself has a validation split."""
    return "val" in CATALOG[recipe.data].sizes if recipe.data in CATALOG else open_path(recipe.data).val is not None


def fold_recipes(base: Recipe, beta: float, folds: int, seeds: Sequence[int]) -> list[Recipe]:
    """Return the recipes of one beta: every fold with every seed."""
    base = base.changed(**{str(base.spec.beta): beta})
    if not folds:
        return [base.changed(seed=seed) for seed in seeds]
    base = base.changed(validation=0.0, folds=folds)
    return [base.changed(fold=fold, seed=seed) for seed in seeds for fold in range(folds)]


def search_runs(
    base: Recipe, plan: SearchPlan, out: Path | str, command: str | None = ""
) -> Generator[list[PlannedRun], None, SearchResult]:
    """Search for a method's beta: yield the runs of each round, continue when they are done, return the result.

    Args:
        base: the method's recipe.
        plan: how to search.
        out: the folder of the runs and of ``beta.json``, which has the trace.
        command: the command that started the search, for ``beta.json``; ``None``: nothing is written.

    Raises:
        ValueError: there is no data to choose on; or the folder has runs of other settings, or the record of a search
            with another criterion or other data, which is kept.
    """
    folds, criterion = folds_of(base, plan), Criterion.parse(plan.criterion)
    part = cast(Literal["val", "test"], plan.select_on)
    if part == "val" and not folds and not base.validation and not _has_split(base):
        raise ValueError(f"Expected validation data to choose beta on, but {base.data} has none and `folds` is 0.")
    cells: dict[float, Cell] = {}
    file = Path(out) / SEARCH_FILE
    header = {"command": command or "", "select_on": plan.select_on, "criterion": plan.criterion}
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        _check_same_search(file, before, header)
        header["command"] = command or before.get("command", "")
    elif command is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"beta": None, "choice": "the search is not done", **header})
    rounds = search_rounds(plan)
    betas = next(rounds)
    while True:
        planned = {beta: _planned(fold_recipes(base, beta, folds, range(plan.seeds)), Path(out)) for beta in betas}
        needed = [run for runs in planned.values() for run in runs]
        for run in needed:
            run.folder.check(run.recipe)  # an earlier search may have left runs of other settings
        yield needed
        for beta, runs in planned.items():
            cells[beta] = one_cell((read_run(run.path) for run in runs), over_folds=True)
        try:
            betas = rounds.send([[criterion.score(run, part) for run in cells[beta].runs] for beta in betas])
        except StopIteration as end:
            found: BetaSearch = end.value
            break
    result = SearchResult(found, tuple(cells[point.beta] for point in found.points), plan, folds)
    if command is not None:
        write_json(file, {**header, **result.record()})
    return result


def _check_same_search(file: Path, there: Mapping[str, Any], here: Mapping[str, str]) -> None:
    names = [name for name in ("criterion", "select_on") if there.get(name, here[name]) != here[name]]
    if names:
        ours, theirs = (" and ".join(f"`{name}` {one[name]}" for name in names) for one in (here, there))
        raise ValueError(
            f"Expected {file} to be of a search with {ours}, but it is of one with {theirs}; choose another folder "
            "with --out."
        )


def _planned(recipes: Sequence[Recipe], out: Path) -> list[PlannedRun]:
    return [
        PlannedRun(one, out / (one.label + (f"-fold{one.fold}of{one.folds}" if one.folds else ""))) for one in recipes
    ]


def trace_table(result: SearchResult, command: str = "") -> Table:
    """Return what was tried in which round, its mean, the quadratic's value, the imbalance level, and the choice."""
    found, rows, nan = result.found, [], float("nan")
    criterion = Criterion.parse(result.plan.criterion)
    sign = 1.0 if criterion.weights else -1.0  # a search maximises minus the level; the table shows the level
    for point in found.points:
        number = next(place for place, betas in enumerate(found.rounds, 1) if point.beta in betas)
        smoothed = found.choice.smoothed.get(point.beta)
        mean, level = (value if math.isfinite(value) else nan for value in (sign * point.mean, point.level))
        runs = len(point.scores)
        values = [
            Value(Summary(mean, nan, runs), best=point.beta == found.choice.best),
            None if smoothed is None else Value(Summary(sign * smoothed, nan, 1)),
        ]
        values += [Value(Summary(level, nan, runs))] if criterion.weights else []
        note = " chosen" if point.beta == found.choice.beta else " tied" if point.beta in found.choice.ties else ""
        rows.append(Row((str(number), f"{point.beta:g}{note}"), tuple(values)))
    error = found.choice.standard_error
    caption = f"{result.selected}. Chosen: {found.choice}."
    if not math.isnan(error):
        caption += f" Standard error {error:.2f}."
    elif len(found.points[0].scores) == 1:
        caption += " One run per β: no standard error."
    else:
        caption += " Fewer than two β have a defined value: no standard error."
    caption += f" No quadratic: {found.choice.unsmoothed}." if found.choice.unsmoothed else ""
    columns = (str(criterion), "quadratic", *(("I",) if criterion.weights else ()))
    return Table("The search for β", ("Round", "β"), columns, tuple(rows), caption, command=command)
