"""The search for beta with real runs: cross-validation folds and seeds, trained together; its trace and tables."""

import json
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from longtail._io import write_json
from longtail.data import CATALOG, open_path
from longtail.study.beta import BetaSearch, search_rounds
from longtail.study.criteria import Criterion
from longtail.study.plan import Planned, SearchPlan
from longtail.study.runs import SEARCH_FILE, Cell, one_cell, read_run
from longtail.study.stats import Summary
from longtail.study.table import Row, Table, Value
from longtail.study.tables import sensitivity_table
from longtail.train.recipe import Recipe, defaults

__all__ = ["Searched", "fold_recipes", "searching", "trace_table"]

DEFAULT_FOLDS = 5


@dataclass(frozen=True, eq=False)
class Searched:
    """A search that was run."""

    found: BetaSearch
    cells: tuple[Cell, ...]
    """The runs of each beta, over folds and seeds."""
    plan: SearchPlan
    folds: int

    @property
    def selected(self) -> str:
        """How beta was chosen, for captions."""
        criterion = Criterion.parse(self.plan.criterion)
        runs = len(self.found.points[0].scores)
        where = f"{self.folds}-fold cross-validation within training data" if self.folds else "validation data"
        if self.plan.select_on == "test":
            where = "TEST data"
        return f"β chosen on {where} by {criterion}, {runs} run{'s' * (runs > 1)} a β"

    @property
    def beta(self) -> float:
        """The one that was chosen."""
        return self.found.choice.beta

    def sensitivity(self, command: str = "", *, wide: bool = True) -> Table:
        """Train, validation and test recall of each group for each beta."""
        note = self.selected
        note += "" if self.plan.select_on == "test" else "; test recall is shown, not used"
        note += f"; each model saw {self.folds - 1} of {self.folds} folds" if self.folds else ""
        return sensitivity_table(self.cells, wide=wide, selected=note, command=command)

    def record(self) -> dict[str, Any]:
        """The search as plain data."""
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
    """How many folds a search has: none where there is validation data, or the choice is made on test.

    The tenth that a recipe holds out by itself is not meant to choose beta on: it has hardly an image of a rare class.
    """
    if plan.folds is not None:
        return plan.folds
    usual = defaults(recipe.data, recipe.method, recipe.imbalance).validation
    asked = _has_validation(recipe) if recipe.validation != usual else _brings_validation(recipe)
    return 0 if plan.select_on == "test" or asked else DEFAULT_FOLDS


def _has_validation(recipe: Recipe) -> bool:
    return bool(recipe.validation) or _brings_validation(recipe)


def _brings_validation(recipe: Recipe) -> bool:
    """Whether the data set has a validation split of its own."""
    return "val" in CATALOG[recipe.data].sizes if recipe.data in CATALOG else open_path(recipe.data).val is not None


def fold_recipes(base: Recipe, beta: float, folds: int, seeds: Sequence[int]) -> list[Recipe]:
    """The runs of one beta: every fold with every seed."""
    if not folds:
        return [base.changed(beta=beta, seed=seed) for seed in seeds]
    return [
        base.changed(beta=beta, validation=0.0, folds=folds, fold=fold, seed=seed)
        for seed in seeds
        for fold in range(folds)
    ]


def searching(
    base: Recipe, plan: SearchPlan, out: Path | str, command: str | None = ""
) -> Generator[list[Planned], None, Searched]:
    """Search for a method's beta: gives the runs of each round, goes on when they are done, returns what it found.

    Args:
        base: the method's recipe.
        plan: how to search.
        out: where the runs go; ``beta.json`` there has the trace.
        command: what began it, for ``beta.json``; ``None``: nothing is written.

    Raises:
        ValueError: there is nothing to choose on; or runs of other settings are there, or a search that went by
            another criterion or chose on other data, whose record stays.
    """
    folds, criterion = folds_of(base, plan), Criterion.parse(plan.criterion)
    part = cast(Literal["val", "test"], plan.select_on)
    _check_chooses(base, plan, folds)
    cells: dict[float, Cell] = {}
    file = Path(out) / SEARCH_FILE
    begun = {"command": command or "", "select_on": plan.select_on, "criterion": plan.criterion}
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        _check_same_search(file, before, begun)
        begun["command"] = command or before.get("command", "")
    elif command is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"beta": None, "choice": "the search is not done", **begun})
    rounds = search_rounds(plan.settings)
    betas = next(rounds)
    while True:
        planned = {beta: _planned(base, beta, folds, range(plan.seeds), Path(out)) for beta in betas}
        asked = [run for runs in planned.values() for run in runs]
        for run in asked:
            run.folder.check(run.recipe)  # what an earlier search left may be of other settings
        yield asked
        for beta, runs in planned.items():
            cells[beta] = one_cell((read_run(run.path) for run in runs), over_folds=True)
        try:
            betas = rounds.send([[criterion.score(run, part) for run in cells[beta].runs] for beta in betas])
        except StopIteration as end:
            found: BetaSearch = end.value
            break
    searched = Searched(found, tuple(cells[point.beta] for point in found.points), plan, folds)
    if command is not None:
        write_json(file, {**begun, **searched.record()})
    return searched


def _check_same_search(file: Path, there: Mapping[str, Any], here: Mapping[str, str]) -> None:
    """Refuse to write over what another search chose."""
    names = [name for name in ("criterion", "select_on") if there.get(name, here[name]) != here[name]]
    if names:
        ours, theirs = (" and ".join(f"`{name}` {one[name]}" for name in names) for one in (here, there))
        raise ValueError(
            f"Expected a search with {ours} to have a folder of its own, but {file} is of one with {theirs}; --out "
            "names another."
        )


def _check_chooses(base: Recipe, plan: SearchPlan, folds: int) -> None:
    """Refuse a search that has nothing to choose on."""
    if plan.select_on == "val" and not folds and not _has_validation(base):
        raise ValueError(f"Expected validation data to choose beta on, but {base.data} has none and `folds` is 0.")


def _planned(base: Recipe, beta: float, folds: int, seeds: Sequence[int], out: Path) -> list[Planned]:
    recipes = fold_recipes(base, beta, folds, seeds)
    return [Planned(one, out / (one.label + (f"-fold{one.fold}of{folds}" if folds else ""))) for one in recipes]


def trace_table(searched: Searched, command: str = "") -> Table:
    """What was tried in which round, its mean, the quadratic's value, the imbalance level, and what was chosen."""
    found, rows, nan = searched.found, [], float("nan")
    criterion = Criterion.parse(searched.plan.criterion)
    sign_of = 1.0 if criterion.weights else -1.0  # the lower the level the better; it is shown as it is
    for point in found.points:
        number = next(place for place, betas in enumerate(found.rounds, 1) if point.beta in betas)
        smoothed = found.choice.smoothed.get(point.beta)
        mean, level = (value if math.isfinite(value) else nan for value in (sign_of * point.mean, point.level))
        runs = len(point.scores)
        values = [
            Value(Summary(mean, nan, runs), best=point.beta == found.choice.best),
            None if smoothed is None else Value(Summary(sign_of * smoothed, nan, 1)),
        ]
        values += [Value(Summary(level, nan, runs))] if criterion.weights else []
        sign = " chosen" if point.beta == found.choice.beta else " tied" if point.beta in found.choice.ties else ""
        rows.append(Row((str(number), f"{point.beta:g}{sign}"), tuple(values)))
    error = found.choice.standard_error
    caption = f"{searched.selected}. Chosen: {found.choice}."
    if not math.isnan(error):
        caption += f" Standard error {error:.2f}."
    elif len(found.points[0].scores) == 1:
        caption += " One run a β: no standard error."
    else:
        caption += " Fewer than two β have a defined value: no standard error."
    caption += f" No quadratic: {found.choice.unsmoothed}." if found.choice.unsmoothed else ""
    columns = (str(criterion), "quadratic", *(("I",) if criterion.weights else ()))
    return Table("The search for β", ("Round", "β"), columns, tuple(rows), caption, command=command)
