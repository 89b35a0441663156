"""What every caption says: runs, seeds, epochs, how things were chosen and measured, and the command."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longtail.data import CATALOG
from longtail.study.record import STUDY_FILE, missing_of, read_studies
from longtail.study.runs import HELD_WORDS, SEARCH_FILE, Cell, Run, held_out
from longtail.study.stats import Alternative

__all__ = [
    "NO_DATA",
    "Told",
    "caption_of",
    "how_measured",
    "measured_on",
    "numbers",
    "some_of",
    "told_of",
    "with_selected",
]

NO_DATA = "there is neither test nor validation data"
_UNTOLD = "how β was chosen is not recorded"


@dataclass(frozen=True)
class Told:
    """What studies wrote down of runs: how they are compared, how beta was chosen, and what is missing."""

    references: Mapping[Path, Sequence[str]] = field(default_factory=dict)
    """By run, the methods that its studies tested others against."""
    alternative: Alternative = "two-sided"
    ways: Mapping[Path, Sequence[str]] = field(default_factory=dict)
    """By run, how its beta was chosen."""
    commands: tuple[str, ...] = ()
    """Of the studies that the runs are of."""
    untold: frozenset[Path] = frozenset()
    """Runs that no study tells of."""
    missing: str = ""
    """Which planned runs are not there."""
    failed: tuple[str, ...] = ()
    """Runs that failed and are not there."""

    def reference(self, cells: Sequence[Cell]) -> str:
        """The method that cells are tested against: that of the studies of most of their runs, of equals the latest.

        Where no study says, it is Balanced Softmax, or plain softmax if that alone was run.
        """
        said = [name for cell in cells for run in cell.runs for name in self.references.get(run.path, ())]
        here = [name for name in said if any(cell.method == name for cell in cells)] or said
        run = {cell.method for cell in cells}
        usual = "softmax" if "softmax" in run and "balanced-softmax" not in run else "balanced-softmax"
        return max(reversed(here), key=here.count, default=usual)

    def selected(self, cells: Sequence[Cell]) -> str:
        """How the betas of cells were chosen, on test data first; empty where nothing is recorded of any."""
        betas: dict[str, list[str]] = {}
        for cell in cells:
            if cell.recipe.beta is None:
                continue
            for run in cell.runs:
                for way in self.ways.get(run.path) or [_UNTOLD]:
                    betas.setdefault(way, []).append(f"{cell.data} {cell.recipe.beta:g}")
        if not betas.keys() - {_UNTOLD}:
            return ""
        ways = sorted(betas, key=lambda way: ("TEST" not in way, way == _UNTOLD))
        return "; ".join(f"{way}: {', '.join(dict.fromkeys(betas[way]))}" for way in ways)


def told_of(paths: Sequence[Path | str], runs: Sequence[Run]) -> Told:
    """What the studies that made runs wrote down, each in the ``study.json`` beside its runs or above them.

    Args:
        paths: the folders that were asked for; what is missing is told of studies that lie in them.
        runs: those in them.
    """
    roots = [Path(path).resolve() for path in paths]
    above = {run.path: _study_of(run, roots) for run in runs}
    records = {folder: read_studies(folder) for folder in dict.fromkeys(above.values()) if folder is not None}
    ways: dict[Path, list[str]] = {}
    references: dict[Path, list[str]] = {}
    covering: set[int] = set()
    untold = set()
    for run in runs:
        folder = above[run.path]
        name = "" if folder is None else run.path.resolve().relative_to(folder).as_posix()
        found = [one for one in records.get(folder, []) if name in one.planned] if folder is not None else []
        said = [way for one in found for way in one.selected.get(name, ())]
        ways[run.path] = list(dict.fromkeys([*said, *_searched(run)]))
        untold |= set() if found else {run.path}
        references[run.path] = [one.reference for one in found]
        covering |= {id(one) for one in found}
    studies = [one for of_folder in records.values() for one in of_folder if id(one) in covering]
    inside = {folder: one for folder, one in records.items() if any(folder.is_relative_to(root) for root in roots)}
    lacking = [(missing_of(folder, of_folder), folder) for folder, of_folder in inside.items()]
    lacking = [(text, folder) for text, folder in lacking if text]
    return Told(
        references,
        "greater" if studies and all(one.alternative == "greater" for one in studies) else "two-sided",
        ways,
        tuple(dict.fromkeys(one.command for one in studies if one.command)),
        frozenset(untold),
        "; ".join(text if len(inside) == 1 else f"{folder.name}: {text}" for text, folder in lacking),
        tuple(
            dict.fromkeys(
                name
                for folder, of_folder in inside.items()
                for one in of_folder
                for name in one.failed
                if not (folder / name / "result.json").exists()
            )
        ),
    )


def _study_of(run: Run, roots: Sequence[Path]) -> Path | None:
    """The nearest folder above a run that a study was written in: its own, or one further up that was asked for."""
    near, *far = run.path.resolve().parents
    folders = [near, *(one for one in far if any(one.is_relative_to(root) for root in roots))]
    return next((one for one in folders if (one / STUDY_FILE).exists()), None)


def _searched(run: Run) -> list[str]:
    """How a search beside a run chose the beta that the run has; a study that was stopped has not told of it yet."""
    found = []
    for file in sorted(run.path.parent.glob(f"search/*/{SEARCH_FILE}")):
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if record.get("beta") is not None and (record.get("data"), record.get("method"), record["beta"]) == (
            run.data,
            run.method,
            run.recipe.beta,
        ):
            found.append(str(record["selected"]))
    return found


def measured_on(cells: Sequence[Cell]) -> str:
    """What the results of cells of one data set are told of, in words."""
    split = held_out(cells) or "test"
    return HELD_WORDS[split] + (" (there is no test data)" if split == "val" else "")


def some_of(names: Sequence[str], most: int = 3) -> str:
    """The first of several names, and how many more there are.

    Example:
        >>> some_of(["ant", "bee", "cow", "dog", "elk"])
        'ant, bee, cow and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def numbers(values: Sequence[int]) -> str:
    """Whole numbers in short.

    Example:
        >>> numbers([0, 1, 2, 3, 4]), numbers([0, 2, 7]), numbers([3])
        ('0…4', '0, 2, 7', '3')
    """
    ordered = sorted(set(values))
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}…{ordered[-1]}"
    return ", ".join(map(str, ordered))


def caption_of(cells: Sequence[Cell], *, selected: str = "") -> str:
    """How the runs of a table were made, in sentences.

    Args:
        cells: the table's.
        selected: how beta, or anything else, was chosen.
    """
    runs = [run for cell in cells for run in cell.runs]
    of_cells = sorted({len(cell.runs) for cell in cells})
    seeds = numbers([seed for cell in cells for seed in cell.seeds])
    word = "seeds" if len({seed for cell in cells for seed in cell.seeds}) > 1 else "seed"
    folds = sorted({cell.recipe.folds for cell in cells if len({fold for _, fold in cell.places}) > 1})
    over = f"{', '.join(map(str, folds))} folds and {word} {seeds}" if folds else f"{word} {seeds}"
    parts = [f"Mean ± SD over {over}" if of_cells[-1] > 1 else f"One run each, {word} {seeds}"]
    if len(runs) > 1:
        parts.append(f"{len(runs)} runs in all")
    if len(of_cells) > 1:
        parts.append(f"{of_cells[0]} to {of_cells[-1]} runs a row")
    epochs = sorted({"+".join(map(str, run.result["epochs"])) for run in runs}, key=lambda text: (len(text), text))
    reported = ", ".join(sorted({run.result["reported"] for run in runs}))
    parts.append(f"{', '.join(epochs)} epoch{'' if epochs == ['1'] else 's'}, {reported}")
    parts += _cuts(cells)
    parts.append(how_measured(cells))
    made = [cell.recipe for cell in cells if _made_here(cell)]
    if made:
        drawn = {"drawn with each run's seed" if r.subset_seed == "run" else f"seed {r.subset_seed}" for r in made}
        parts.append(f"long-tailed subset: {', '.join(sorted(drawn))}")
    held = {cell.recipe.validation for cell in cells if cell.recipe.validation}
    if held:
        shares = ", ".join(f"{100 * share:g} %" for share in sorted(held))
        whose = [cell.title for cell in cells if cell.recipe.validation]
        others = {cell.title for cell in cells if not cell.recipe.validation}
        only = f" ({', '.join(dict.fromkeys(whose))} only)" if others else ""
        only = " (rows that say so)" if others & set(whose) else only
        parts.append(f"{shares} of training images held out{only}")
    if selected or any(cell.recipe.beta is not None for cell in cells):
        parts.append(selected or f"{_UNTOLD} with these runs")
    text = "; ".join(dict.fromkeys(parts))
    return text[0].upper() + text[1:] + "."


def with_selected(caption: str, cells: Sequence[Cell], selected: str) -> str:
    """A caption that says how beta was chosen, where it is known and one of the methods shown has a beta."""
    return f"{caption} {selected}." if selected and any(cell.recipe.beta is not None for cell in cells) else caption


def how_measured(cells: Sequence[Cell]) -> str:
    """How the measures on training data were taken."""
    stats = {run.result["train_stats"] for cell in cells for run in cell.runs}
    words = {"paper": "in training mode, augmented, as the paper's authors did", "eval": "in evaluation mode"}
    return f"training-set measures taken {' or '.join(words[name] for name in sorted(stats))}"


def _made_here(cell: Cell) -> bool:
    data = cell.recipe.data
    return data in CATALOG and CATALOG[data].imbalance is not None


def _cuts(cells: Sequence[Cell]) -> list[str]:
    cuts: dict[str, None] = {}
    for cell in cells:
        groups = cell.runs[0].result["groups"]
        cuts["/".join(groups) + " of " + "/".join(str(len(members)) for members in groups.values()) + " classes"] = None
    return list(cuts)
