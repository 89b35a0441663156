"""Run folders as records, and runs that differ in nothing but their seed as one cell of a table."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from longtail.data import data_title
from longtail.methods import METHODS
from longtail.study.stats import Summary, summarise
from longtail.train.folder import RunFolder
from longtail.train.recipe import Recipe, defaults, setting_types, settings_of

__all__ = [
    "Cell",
    "Measure",
    "Run",
    "by_data",
    "data_title",
    "find_cell",
    "group_runs",
    "groups_of",
    "held_out",
    "method_title",
    "one_cell",
    "read_run",
    "read_runs",
]

Held = Literal["val", "test"]
Part = Literal["train", "train_paper", Held]

HELD_WORDS: dict[Held, str] = {"test": "test data", "val": "validation data"}
"""What results are told of, in words."""

SEARCH_FILE = "beta.json"
"""What a search for beta leaves beside its runs."""


def method_title(name: str) -> str:
    """What a table calls a method; the name of one that is not registered here.

    Example:
        >>> method_title("balanced-softmax")
        'Balanced Softmax'
    """
    return METHODS[name].title if name in METHODS else name


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its settings and its measures."""

    path: Path
    recipe: Recipe
    result: dict[str, Any]

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.recipe.method

    @property
    def data(self) -> str:
        """The name of the data set in tables."""
        return data_title(self.recipe.data, self.recipe.imbalance)

    @property
    def trained(self) -> Part:
        """The part that training-set measures are taken from, as the run's ``train_stats`` says."""
        return "train_paper" if self.result["train_stats"] == "paper" else "train"

    @property
    def held_out(self) -> Held | None:
        """What its results are told of: test data, validation data where there is none; ``None`` without either."""
        known: tuple[Held, ...] = ("test", "val")
        return next((name for name in known if name in self.result["splits"]), None)

    def recall(self, group: str = "all", part: Part = "test") -> float:
        """Recall of a group, or over all classes, in per cent; NaN where there is none."""
        return 100 * self._number("splits", part, "recall", group)

    def level(self, part: Held = "test") -> float:
        """Model imbalance level I; NaN where it is undefined."""
        return self._number(f"preference_{part}", "model_imbalance_level")

    def shift(self, group: str) -> float:
        """Relative difference of class probability and class frequency on training data, in per cent."""
        return self._number("splits", self.trained, "probability_shift", group)

    def gradient_balance(self, group: str, form: Literal["bias", "weight"] = "weight") -> float:
        """Reward less penalty of the classifier's gradient over reward, on training data, in per cent."""
        return self._number("splits", self.trained, "gradient_balance", form, group)

    def log(self) -> list[dict[str, Any]]:
        """What was logged, a line an epoch; nothing where the log was not kept."""
        file = RunFolder(self.path).log_file
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]

    def _number(self, *place: str) -> float:
        found: Any = self.result
        for name in place:
            found = found.get(name) if isinstance(found, dict) else None
        return math.nan if found is None else float(found)


Measure = Callable[[Run], float]
"""A number of a run, such as ``Run.recall``."""


def read_run(path: Path | str) -> Run:
    """The finished run in a folder."""
    folder = RunFolder(path)
    return Run(folder.path, Recipe.from_settings(folder.settings(), unknown_methods=True), folder.result())


def read_runs(*paths: Path | str, searches: bool = False) -> list[Run]:
    """All finished runs in folders and below them.

    Args:
        paths: folders.
        searches: whether to read the runs of searches for beta too: those beside a ``beta.json``, and all that were
            trained on folds. They are not results.
    """
    found: dict[Path, Run] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise FileNotFoundError(f"Expected a folder of runs, but {path} is not there.")
        for result in sorted(path.rglob("result.json")):
            run = read_run(result.parent)
            if searches or not (run.recipe.folds or (run.path.parent / SEARCH_FILE).exists()):
                found[result.parent.resolve()] = run
    return list(found.values())


@dataclass(frozen=True, eq=False)
class Cell:
    """Runs of one setting, which differ in their seed."""

    runs: tuple[Run, ...]
    """In the order of their seeds."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the runs, ascending."""
        return tuple(run.recipe.seed for run in self.runs)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Seed and fold of each run: what runs of two methods must share to be paired."""
        return tuple((run.recipe.seed, run.recipe.fold) for run in self.runs)

    @property
    def recipe(self) -> Recipe:
        """The settings, with the first run's seed."""
        return self.runs[0].recipe

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.runs[0].method

    @property
    def data(self) -> str:
        """The name of the data set in tables."""
        return self.runs[0].data

    @property
    def title(self) -> str:
        """What a table calls it: the method and its beta."""
        return self.recipe.spec.label(self.recipe.params)

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that have a class."""
        return tuple(name for name, members in self.runs[0].result["groups"].items() if members)

    def values(self, measure: Measure) -> list[float]:
        """A measure of every run, in the order of the seeds."""
        return [measure(run) for run in self.runs]

    def summary(self, measure: Measure) -> Summary:
        """Mean and standard deviation of a measure."""
        return summarise(self.values(measure))


def _settings(run: Run) -> dict[str, Any]:
    """All settings that must be the same for runs to be averaged.

    With ``subset_seed = "run"`` the subset is part of what the seed draws, as the paper's authors had it.
    """
    settings = {name: value for name, value in settings_of(run.recipe).items() if name != "seed"}
    return settings | {"train_stats": run.result["train_stats"], "epochs": tuple(run.result["epochs"])}


def _differing(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    names = [name for name in {**first, **second} if name in setting_types()]
    return [f"`{n}` ({first.get(n)} and {second.get(n)})" for n in names if first.get(n) != second.get(n)]


def one_cell(runs: Iterable[Run], *, over_folds: bool = False) -> Cell:
    """Runs that are to be averaged; refused where they differ in more than their seed.

    Args:
        runs: of one method on one data set, each with a seed of its own.
        over_folds: whether they may differ in the fold that was held out, too.
    """
    given = sorted(runs, key=lambda run: (run.recipe.seed, run.recipe.fold))
    if not given:
        raise ValueError("Expected runs to average, but got none.")
    free = {"fold"} if over_folds else set()
    first = _settings(given[0])
    for run in given[1:]:
        differing = _differing(first, _settings(run) | {name: first[name] for name in free})
        if differing:
            raise ValueError(
                f"Expected runs of the same settings to average, but {given[0].path} and {run.path} differ in "
                f"{', '.join(differing)}."
            )
    for one, other in pairwise(given):
        if (one.recipe.seed, one.recipe.fold) == (other.recipe.seed, other.recipe.fold):
            raise ValueError(
                f"Expected one run a seed to average, but {one.path} and {other.path} both have seed {one.recipe.seed}."
            )
    return Cell(tuple(given))


def group_runs(runs: Iterable[Run]) -> list[Cell]:
    """Runs as cells, by everything except their seed, in the order in which their settings first appear."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(repr(sorted(_settings(run).items())), []).append(run)
    return [one_cell(of_one) for of_one in found.values()]


def held_out(cells: Iterable[Cell]) -> Held | None:
    """What the results of cells of one data set are told of: test data where any run has it, else validation data."""
    found = {run.held_out for cell in cells for run in cell.runs}
    known: tuple[Held, ...] = ("test", "val")
    return next((name for name in known if name in found), None)


def _shared(cell: Cell) -> dict[str, Any]:
    """Settings that methods must share to be compared: all but the method, its knobs, and the seed.

    What the data set's recipe gives a method of its own (BCL's batches, LDAM's weight decay) is the method's too.
    """
    recipe = cell.recipe
    shared = settings_of(recipe) | {"train_stats": cell.runs[0].result["train_stats"]}
    plain = _shipped(recipe.data, "softmax", recipe.imbalance)
    own = _shipped(recipe.data, recipe.method, recipe.imbalance) if recipe.method in METHODS else plain
    shared = {n: v for n, v in shared.items() if n not in {*recipe.spec.parameters, "method", "seed"}}
    return {name: plain[name] if value == own[name] != plain[name] else value for name, value in shared.items()}


@cache
def _shipped(data: str, method: str, imbalance: float | None) -> dict[str, Any]:
    return settings_of(defaults(data, method, imbalance))


def same_settings(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that may be compared: by all settings but the method, its knobs, and the seed."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(repr(sorted(_shared(cell).items())), []).append(cell)
    return list(found.values())


def distinct_titles(cells: Sequence[Cell]) -> list[str]:
    """What a table calls cells of one data set: method and beta, and what else tells them apart.

    Those are the settings that compared methods must share, where they differ, and all others in which cells differ
    that would be called the same. What is off, zero or not set is not told.
    """
    shared = [_shared(cell) for cell in cells]
    apart = {name for one in shared for name in one if one[name] != shared[0][name]}
    found: list[str] = []
    for cell in cells:
        own = _settings(cell.runs[0])
        alike = [_settings(one.runs[0]) for one in cells if one.title == cell.title]
        names = [name for name in own if name in apart or any(own[name] != other.get(name) for other in alike)]
        told = [_short(name, own[name]) for name in names if name not in _TITLED and own[name]]
        full = ", ".join([cell.title, *told])
        same = sum(one == full or one.startswith(f"{full}, no. ") for one in found)
        found.append(f"{full}, no. {same + 1}" if same else full)
    return found


_TITLED = {"data", "imbalance", "method", "beta"}  # a row says these already


def _short(name: str, value: Any) -> str:
    if value is True:
        return name
    shown = value if isinstance(value, list | tuple) else [value]
    return f"{name} {'+'.join(f'{one:g}' if isinstance(one, float) else str(one) for one in shown)}"


def ordered(cells: Iterable[Cell]) -> list[Cell]:
    """Cells by data set and imbalance, and within it in the order of ``longtail methods``; unknown ones come last."""
    places = {name: place for place, name in enumerate(METHODS)}

    def key(cell: Cell) -> tuple[Any, ...]:
        recipe = cell.recipe
        method = (places.get(recipe.method, len(places)), recipe.method)
        return recipe.data, recipe.imbalance or 0.0, *method, recipe.beta or 0.0

    return sorted(cells, key=key)


def check_same(cells: Sequence[Cell], names: Iterable[str], what: str) -> None:
    """Refuse cells that differ in settings which they must share."""
    for cell in cells[1:]:
        first, other = cells[0].recipe.settings(), cell.recipe.settings()
        differing = [f"`{name}` ({first[name]} and {other[name]})" for name in names if first[name] != other[name]]
        if differing:
            raise ValueError(
                f"Expected {what} the same data, but {cells[0].runs[0].path} and {cell.runs[0].path} differ in "
                f"{', '.join(differing)}."
            )


def by_data(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Cells of each data set, in the order of the tables."""
    found: dict[str, list[Cell]] = {}
    for cell in ordered(cells):
        found.setdefault(cell.data, []).append(cell)
    return found


def find_cell(cells: Sequence[Cell], method: str) -> Cell | None:
    """The cell of a method, the first where there are several betas; ``None`` where it was not run."""
    return next((cell for cell in cells if cell.method == method), None)


def groups_of(cells: Sequence[Cell]) -> tuple[str, ...]:
    """The groups of all cells, in their order."""
    if not cells:
        raise ValueError("Expected runs for a table, but got none.")
    return tuple(dict.fromkeys(name for cell in cells for name in cell.groups))
