"""Finished runs, and cells: the runs of a table row, which differ only in the seed."""

import math
import os
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from longtail._io import map_files
from longtail.data import data_title
from longtail.methods import METHODS, parse_method
from longtail.study.stats import Summary, summarise
from longtail.train.folder import RunFolder
from longtail.train.measures import is_underfitted, predicted_classes, why_no_level
from longtail.train.recipe import Recipe, settings_of, usual_recipe

Held = Literal["val", "test"]
Part = Literal["train", "train_paper", Held]

HELD_WORDS: dict[Held, str] = {"test": "test data", "val": "validation data"}
"""The data that results are measured on, in words."""

SEARCH_FILE = "beta.json"
"""The record of a search for beta, beside its runs."""


def method_title(name: str) -> str:
    """Return the title of a method; the name of one that is not registered here.

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
    def beta(self) -> float | None:
        """The method's beta; that of a method which is not registered here is as its run recorded it."""
        found: float | None = self.recipe.beta if self.method in METHODS else self.result.get("beta")
        return found

    @property
    def title(self) -> str:
        """The method and its beta, as in tables; of a method which is not registered here, as its run recorded it."""
        made = self.recipe.spec.label(self.recipe.params)
        return made if self.method in METHODS else str(self.result.get("label", made))

    @property
    def data(self) -> str:
        """The name of the data set in tables."""
        return data_title(self.recipe.data, self.recipe.imbalance)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.title}, {self.data}, seed {self.recipe.seed})"

    @property
    def trained(self) -> Part:
        """The part that training-set measures are taken from, by the setting ``train_stats``."""
        return "train_paper" if self.result["train_stats"] == "paper" else "train"

    @property
    def held_out(self) -> Held | None:
        """What results are measured on: test data, else validation data; ``None`` without either."""
        return _first_held(self.result["splits"])

    def recall(self, group: str = "all", part: Part = "test") -> float:
        """Return the recall of a group, or over all classes, in per cent; NaN if it was not measured."""
        return 100 * self._number("splits", part, "recall", group)

    def share(self, name: str, part: Part = "test") -> float:
        """Return ``accuracy`` or ``macro_f1`` in per cent; NaN if it was not measured."""
        return 100 * self._number("splits", part, name)

    def level(self, part: Held = "test") -> float:
        """Return the model imbalance level I; NaN if it is undefined."""
        return math.nan if self.why_no_level(part) else self._number(f"preference_{part}", "model_imbalance_level")

    def why_no_level(self, part: Held = "test") -> str:
        """Return why the model imbalance level is undefined, in words; empty if it is defined."""
        return why_no_level(self.result, part)

    def shift(self, group: str) -> float:
        """Return the relative difference of class probability and frequency on training data, in per cent."""
        return self._number("splits", self.trained, "probability_shift", group)

    def gradient_balance(self, group: str, form: Literal["bias", "weight"] = "weight") -> float:
        """Return (reward - penalty) / reward of the classifier's gradient on training data, in per cent."""
        return self._number("splits", self.trained, "gradient_balance", form, group)

    def log(self) -> list[dict[str, Any]]:
        """Return the log, one entry per epoch; empty if the log was not kept."""
        return RunFolder(self.path).log_lines()

    def _number(self, *place: str) -> float:
        found: Any = self.result
        for name in place:
            found = found.get(name) if isinstance(found, dict) else None
        return math.nan if found is None else float(found)


Measure = Callable[[Run], float]
"""A number of a run, such as ``Run.recall``."""


def _first_held(parts: Container[Held | None]) -> Held | None:
    known: tuple[Held, ...] = ("test", "val")
    return next((name for name in known if name in parts), None)


def read_run(path: Path | str) -> Run:
    """Return the finished run in a folder."""
    folder = RunFolder(path)
    return Run(folder.path, folder.recipe(unknown_methods=True), folder.result())


def read_runs(*paths: Path | str, searches: bool = False) -> list[Run]:
    """Return all finished runs in folders and their subfolders.

    Args:
        paths: folders.
        searches: whether to include the runs of searches for beta, which are not results: those beside a ``beta.json``
            and those on folds.
    """
    found: dict[Path, Run] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise FileNotFoundError(f"Expected a folder of runs, but {path} does not exist.")
        folders, whole = [one for one in _run_folders(path) if not RunFolder(one).is_pilot], path.resolve()
        searched = {parent: (parent / SEARCH_FILE).exists() for parent in {one.parent for one in folders}}
        for run in map_files(read_run, folders):
            if searches or not (run.recipe.folds or searched[run.path.parent]):
                found[whole / run.path.relative_to(path)] = run
    return list(found.values())


def _run_folders(path: Path) -> list[Path]:
    """Return the folders of finished runs in a folder and its subfolders, which are read level by level."""
    found: list[Path] = []
    level = [path]
    while level:
        contents = map_files(_folder_content, level)
        found += [folder for folder, (done, _) in zip(level, contents, strict=True) if done]
        level = [folder for _, below in contents for folder in below]
    return sorted(found, key=lambda folder: folder / "result.json")


def _folder_content(folder: Path) -> tuple[bool, list[Path]]:
    """Return whether a folder has a result, and its subfolders but those in which a run keeps its own files."""
    try:
        with os.scandir(folder) as entries:
            inside = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except PermissionError:
        return False, []
    of_run = re.compile(r"checkpoints|tensorboard|image-cache|pilot\d") if "recipe.toml" in inside else re.compile("")
    below = [folder / name for name, is_folder in inside.items() if is_folder and not of_run.fullmatch(name)]
    return "result.json" in inside, below


@dataclass(frozen=True, eq=False)
class Cell:
    """Runs that differ only in the seed."""

    runs: tuple[Run, ...]
    """In the order of the seeds."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, ascending."""
        return tuple(run.recipe.seed for run in self.runs)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Seed and fold of each run, which runs of two methods must share to be paired."""
        return tuple((run.recipe.seed, run.recipe.fold) for run in self.runs)

    @property
    def recipe(self) -> Recipe:
        """The settings, with the seed of the first run."""
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
        """The method and its beta, as in tables."""
        return self.runs[0].title

    @property
    def beta(self) -> float | None:
        """The method's beta."""
        return self.runs[0].beta

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that have a class."""
        return tuple(name for name, members in self.runs[0].result["groups"].items() if members)

    @property
    def underfitted_runs(self) -> int:
        """How many runs are underfitted: :func:`longtail.train.measures.is_underfitted`."""
        return sum(run.held_out is not None and is_underfitted(run.result, run.held_out) for run in self.runs)

    @property
    def underfitted(self) -> bool:
        """Whether more than half of the runs are underfitted."""
        return 2 * self.underfitted_runs > len(self.runs)

    @property
    def predicts(self) -> str:
        """How many classes are predicted, if not all, in words; of several runs, an underfitted one or the fewest."""
        held = [(run, run.held_out) for run in self.runs if run.held_out is not None]
        if not held:
            return ""

        def few(one: tuple[Run, Held]) -> tuple[bool, int]:
            result, split = one[0].result, one[1]
            return is_underfitted(result, split), len(result["splits"][split].get("unpredicted_classes", ()))

        run, split = max(held, key=few)
        text, weak, runs = predicted_classes(run.result, split), self.underfitted_runs, len(self.runs)
        share = f"; {weak} of {runs} runs {'is' if weak == 1 else 'are'} underfitted" if weak else ""
        return f"{text} (seed {run.recipe.seed}{share})" if text and runs > 1 else text

    def values(self, measure: Measure) -> list[float]:
        """Return a measure of every run, in the order of the seeds."""
        return [measure(run) for run in self.runs]

    def summary(self, measure: Measure) -> Summary:
        """Return the mean and standard deviation of a measure."""
        return summarise(self.values(measure))


def _settings(run: Run) -> dict[str, Any]:
    """All settings that must be the same for runs to be averaged."""
    settings = {name: value for name, value in settings_of(run.recipe).items() if name != "seed"}
    return settings | {"train_stats": run.result["train_stats"], "epochs": tuple(run.result["epochs"])}


def differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that are not the same everywhere, and their values; ``None`` where one is missing.

    Example:
        >>> differing([{"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 0}])
        {'lr': [0.1, 0.2]}
    """
    values = {name: [one.get(name) for one in settings] for one in settings for name in one}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found)}


def one_cell(runs: Iterable[Run], *, over_folds: bool = False) -> Cell:
    """Return runs as a cell; runs that differ in more than their seed are refused.

    Args:
        runs: of one method on one data set, with different seeds.
        over_folds: whether they may also differ in the fold that was held out.
    """
    given = sorted(runs, key=lambda run: (run.recipe.seed, run.recipe.fold))
    if not given:
        raise ValueError("Expected runs to average, but got none.")
    first = _settings(given[0])
    for run in given[1:]:
        other = _settings(run) | ({"fold": first["fold"]} if over_folds else {})
        apart = [f"`{name}` ({one} and {two})" for name, (one, two) in differing([first, other]).items()]
        if apart:
            raise ValueError(
                f"Expected runs of the same settings to average, but {given[0].path} and {run.path} differ in "
                f"{', '.join(apart)}."
            )
    for one, next_one in pairwise(given):
        if (one.recipe.seed, one.recipe.fold) == (next_one.recipe.seed, next_one.recipe.fold):
            raise ValueError(
                f"Expected one run per seed, but {one.path} and {next_one.path} both have seed {one.recipe.seed}."
            )
    return Cell(tuple(given))


def group_runs(runs: Iterable[Run]) -> list[Cell]:
    """Return runs as cells, in the order in which their settings first appear."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(repr(sorted(_settings(run).items())), []).append(run)
    return [one_cell(of_one) for of_one in found.values()]


def held_out(cells: Iterable[Cell]) -> Held | None:
    """Return what the results of cells of one data set are measured on: test data if a run has it, else validation."""
    return _first_held({run.held_out for cell in cells for run in cell.runs})


def _shared(cell: Cell) -> dict[str, Any]:
    """Settings that methods must share to be compared: all but the method, its parameters, and the seed.

    Where the data set's recipe has a special setting for the method, such as another batch size, it counts as the usual
    one.
    """
    recipe = cell.recipe
    shared = settings_of(recipe) | {"train_stats": cell.runs[0].result["train_stats"]}
    for name in (*recipe.spec.parameters, "method", "seed"):
        shared.pop(name, None)
    usual = _shipped(recipe, None)
    special = _shipped(recipe, recipe.method) if recipe.method in METHODS else usual
    return shared | {name: usual[name] for name, value in shared.items() if value == special[name]}


@cache
def _shipped(recipe: Recipe, method: str | None) -> dict[str, Any]:
    return settings_of(usual_recipe(recipe, method=method)) | {"validation": 0.0}  # what is held out always counts


def same_settings(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return groups of cells that may be compared: they share all settings but the method, its parameters and seed."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(repr(sorted(_shared(cell).items())), []).append(cell)
    return list(found.values())


def distinct_titles(cells: Sequence[Cell]) -> list[str]:
    """Return the titles of cells of one data set in a table: method, beta, and the settings in which they differ.

    These are settings that compared methods must share, if they differ, and all settings in which cells with the same
    title differ. Settings that are off, zero or ``None`` are left out, but not parameters of the method that are zero.
    """
    apart = differing([_shared(cell) for cell in cells]).keys()
    settings = {cell: _settings(cell.runs[0]) for cell in cells}
    titles: list[str] = []
    for cell in cells:
        spec, own = cell.recipe.spec, settings[cell]
        names = apart | differing([settings[one] for one in cells if one.title == cell.title]).keys()
        names -= {"data", "imbalance", "method", spec.beta}  # a row has these already
        shown = {name: value for name, value in own.items() if name in names and value is not False}
        shown = {name: value for name, value in shown.items() if value or (name in spec.parameters and value == 0)}
        titles.append(", ".join([cell.title, *(_short(name, value) for name, value in shown.items())]))
    same = [titles[:place].count(title) for place, title in enumerate(titles)]
    return [f"{title}, no. {number + 1}" if number else title for title, number in zip(titles, same, strict=True)]


def _short(name: str, value: Any) -> str:
    if value is True:
        return name
    shown = value if isinstance(value, list | tuple) else [value]
    return f"{name} {'+'.join(f'{one:g}' if isinstance(one, float) else str(one) for one in shown)}"


def ordered(cells: Iterable[Cell]) -> list[Cell]:
    """Return cells by data set, imbalance and method, as ``longtail methods`` lists them; unknown methods come last."""
    places = {name: place for place, name in enumerate(METHODS)}

    def key(cell: Cell) -> tuple[Any, ...]:
        recipe = cell.recipe
        method = (places.get(recipe.method, len(places)), recipe.method)
        return recipe.data, recipe.imbalance or 0.0, *method, cell.beta or 0.0

    return sorted(cells, key=key)


def by_data(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Return the cells of each data set, in the order of tables."""
    found: dict[str, list[Cell]] = {}
    for cell in ordered(cells):
        found.setdefault(cell.data, []).append(cell)
    return found


def find_cell(cells: Sequence[Cell], method: str) -> Cell | None:
    """Return the first cell of a method, which is ``name`` or ``name:parameter=value``; ``None`` if it was not run."""
    name, _, given = method.partition(":")
    settings = parse_method(method)[1] if given and name in METHODS else {}
    for cell in cells:
        values = cell.recipe.settings()
        if cell.method == name and all(values.get(key) == value for key, value in settings.items()):
            return cell
    return None


def groups_of(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the groups of all cells, in their order."""
    if not cells:
        raise ValueError("Expected runs for a table, but got none.")
    return tuple(dict.fromkeys(name for cell in cells for name in cell.groups))
