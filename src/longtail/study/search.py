"""The search for beta with real runs on cross-validation folds, and its tables."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail._io import write_json
from longtail.data import CATALOG
from longtail.study.planning import PlannedRun
from longtail.study.record import Choice, read_search
from longtail.study.rendering import Row, Table, Value
from longtail.study.runs import SEARCH_FILE, Cell, one_cell, read_run
from longtail.study.search_rule import BetaChoice, Score, SearchPlan, Trial, choose, next_betas
from longtail.study.stats import Summary
from longtail.study.tables import sensitivity_table
from longtail.train.own import open_own
from longtail.train.recipe import Recipe, usual_recipe

DEFAULT_FOLDS = 5


@dataclass(frozen=True, eq=False)
class SearchResult:
    """A finished search for beta, with its runs."""

    trials: tuple[Trial, ...]
    """The betas that were tried, ascending."""
    rounds: tuple[tuple[float, ...], ...]
    """The betas of each round."""
    choice: BetaChoice
    cells: tuple[Cell, ...]
    """The runs of each trial, over folds and seeds."""
    plan: SearchPlan
    folds: int

    @property
    def selected(self) -> Choice:
        """How beta was chosen."""
        return Choice("search", self.plan.select_on, self.folds, len(self.trials[0].scores))

    @property
    def beta(self) -> float:
        """The beta that was chosen."""
        return self.choice.beta

    def sensitivity(self, command: str = "") -> Table:
        """Return train, validation and test recall of each group for each beta."""
        note = str(self.selected)
        note += "" if self.plan.select_on == "test" else "; test recall is shown, not used"
        note += f"; each model saw {self.folds - 1} of {self.folds} folds" if self.folds else ""
        return sensitivity_table(self.cells, selected=note, command=command)

    def record(self) -> dict[str, Any]:
        """Return the search as plain data, for ``beta.json``."""
        choice = self.choice
        return {
            "beta": choice.beta,
            "data": self.cells[0].data,
            "method": self.cells[0].method,
            "select_on": self.plan.select_on,
            "folds": self.folds,
            "choice": str(choice),
            "best_mean": choice.best,
            "ties": choice.ties,
            "standard_error": choice.standard_error,
            "quadratic": {"peak": choice.peak, "values": choice.smoothed},
            "at_bound": choice.at_bound,
            "rounds": self.rounds,
            "points": [
                {"beta": p.beta, "scores": [s.value for s in p.scores], "levels": [s.level for s in p.scores]}
                for p in self.trials
            ],
        }


def folds_of(recipe: Recipe, plan: SearchPlan) -> int:
    """Return the number of folds of a search: none if there is validation data or the choice is made on test data.

    The tenth that a recipe holds out by default is not used to choose beta: it has hardly any image of a rare class.
    """
    if plan.folds is not None:
        return plan.folds
    default = usual_recipe(recipe, method=recipe.method).validation
    held_out = _has_split(recipe) or (recipe.validation != default and recipe.validation > 0)
    return 0 if plan.select_on == "test" or held_out else DEFAULT_FOLDS


def _has_split(recipe: Recipe) -> bool:
    """Whether the data set itself has a validation split."""
    if recipe.data in CATALOG:
        return "val" in CATALOG[recipe.data].sizes
    return open_own(recipe.data, **recipe.opening).val is not None


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

    ``beta.json`` in the folder ``out`` has the trace; nothing is written if ``command`` is ``None``. A folder with runs
    of other settings, or with the record of a search that chose on other data, is refused and kept.
    """
    if base.test and base.test_seed == "run":
        raise ValueError(
            "Expected `test_seed` to be a number with a search for beta, which would see test data of other seeds, but "
            "got run."
        )
    folds, part = folds_of(base, plan), plan.select_on
    if part == "val" and not folds and not base.validation and not _has_split(base):
        raise ValueError(f"Expected validation data to choose beta on, but {base.data} has none and `folds` is 0.")
    file = Path(out) / SEARCH_FILE
    header = {"command": command or "", "select_on": part}
    if file.exists():
        before = read_search(file)
        if before.get("select_on", part) != part:
            raise ValueError(
                f"Expected {file} to be of a search with `select_on` {part}, but it is of one with "
                f"{before['select_on']}; choose another folder with --out."
            )
        header["command"] = command or before.get("command", "")
    elif command is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"beta": None, "choice": "the search is not done", **header})
    cells: dict[float, Cell] = {}
    trials: list[Trial] = []
    rounds: list[tuple[float, ...]] = []
    while betas := next_betas(trials, plan):
        planned = {beta: _planned(fold_recipes(base, beta, folds, range(plan.seeds)), Path(out)) for beta in betas}
        needed = [run for runs in planned.values() for run in runs]
        for run in needed:
            run.folder.check(run.recipe)  # an earlier search may have left runs of other settings
        yield needed
        for beta, runs in planned.items():
            cells[beta] = one_cell((read_run(run.path) for run in runs), over_folds=True)
            scores = (Score(run.recall(part=part), run.level(part)) for run in cells[beta].runs)
            trials.append(Trial(beta, tuple(scores)))
        trials.sort(key=lambda trial: trial.beta)
        rounds.append(betas)
    tried = tuple(cells[trial.beta] for trial in trials)
    result = SearchResult(tuple(trials), tuple(rounds), choose(trials, plan), tried, plan, folds)
    if command is not None:
        write_json(file, {**header, **result.record()})
    return result


def _planned(recipes: Sequence[Recipe], out: Path) -> list[PlannedRun]:
    return [
        PlannedRun(one, out / (one.label + (f"-fold{one.fold}of{one.folds}" if one.folds else ""))) for one in recipes
    ]


def trace_table(result: SearchResult, command: str = "") -> Table:
    """Return what was tried in which round, its mean, the quadratic's value, the imbalance level, and the choice."""
    choice, rows, nan = result.choice, [], math.nan
    for trial in result.trials:
        number = next(place for place, betas in enumerate(result.rounds, 1) if trial.beta in betas)
        mean, level = (value if math.isfinite(value) else nan for value in (trial.mean, trial.level))
        values = (
            Value(Summary(mean, nan, len(trial.scores)), best=trial.beta == choice.best),
            Value(Summary(choice.smoothed.get(trial.beta, nan), nan, 1)),
            Value(Summary(level, nan, len(trial.scores))),
        )
        note = " chosen" if trial.beta == choice.beta else " tied" if trial.beta in choice.ties else ""
        rows.append(Row((str(number), f"{trial.beta:g}{note}"), values))
    error = "undefined" if math.isnan(choice.standard_error) else f"{choice.standard_error:.2f}"
    caption = f"{result.selected}. Chosen: {choice}. Standard error: {error}."
    columns = ("recall over all classes", "quadratic", "I")
    return Table("The search for β", ("Round", "β"), columns, tuple(rows), caption, command=command)
