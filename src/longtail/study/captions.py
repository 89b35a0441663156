"""Captions of tables: runs, seeds, epochs, how beta was chosen, what was measured, and the command."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from longtail._io import map_files
from longtail._program import count
from longtail.classes import describe_groups
from longtail.methods import default_reference
from longtail.study.record import STUDY_FILE, Choice, missing_of, read_search, read_studies
from longtail.study.runs import HELD_WORDS, SEARCH_FILE, Cell, Run, find_cell, held_out, ordered
from longtail.train.recipe import Recipe

NO_DATA = "there is neither test nor validation data"
_UNKNOWN = "how β was chosen is not recorded"


@dataclass(frozen=True)
class Recorded:
    """What studies recorded about runs: how they are compared, how beta was chosen, and what is missing."""

    usual: str
    """The reference of runs that no study has recorded."""
    references: Mapping[Path, Sequence[str]] = field(default_factory=dict)
    """The references of the studies of each run."""
    choices: Mapping[Path, Sequence[Choice]] = field(default_factory=dict)
    """How the beta of each run was chosen."""
    commands: tuple[str, ...] = ()
    """The commands of the studies."""
    missing: str = ""
    """Which planned runs are missing, in words."""
    failed: tuple[str, ...] = ()
    """Runs that failed and are missing."""

    @property
    def unrecorded(self) -> frozenset[Path]:
        """Runs that no study has recorded."""
        return frozenset(path for path, found in self.references.items() if not found)

    def reference(self, cells: Sequence[Cell]) -> str:
        """Return the method that cells are tested against: that of most of their studies; in a tie, the latest."""
        recorded = [name for cell in cells for run in cell.runs for name in self.references.get(run.path, ())]
        here = [name for name in recorded if find_cell(cells, name) is not None] or recorded
        return max(reversed(here), key=here.count, default=self.usual)

    def selected(self, cells: Sequence[Cell]) -> str:
        """Return how the betas of cells were chosen, in words, on test data first; empty if nothing is recorded."""
        found: dict[Choice | None, list[str]] = {}
        for cell, name in named(cells):
            if cell.beta is not None:
                unknown: list[Choice | None] = [None]
                for choice in (one for run in cell.runs for one in self.choices.get(run.path) or unknown):
                    found.setdefault(choice, []).append(name)
        if not found.keys() - {None}:
            return ""
        order = sorted(found, key=lambda one: (one is None, one is not None and one.select_on != "test"))
        return "; ".join(f"{one or _UNKNOWN}: {', '.join(dict.fromkeys(found[one]))}" for one in order)

    def on_test(self, cells: Sequence[Cell]) -> bool:
        """Return whether a beta of the cells was chosen on test data."""
        choices = [one for cell in cells for run in cell.runs for one in self.choices.get(run.path, ())]
        return any(one.select_on == "test" for one in choices)


def recorded_for(paths: Sequence[Path | str], runs: Sequence[Run]) -> Recorded:
    """Return what the studies of runs recorded in a ``study.json`` in a folder above the runs.

    Missing runs are those of studies in ``paths``, the folders that were read.
    """
    roots = [Path(path).resolve() for path in paths]
    places = map_files(lambda run: run.path.resolve(), runs)
    study_of = {near: _study_of(near, roots) for near in dict.fromkeys(place.parent for place in places)}
    inside: dict[Path, dict[str, Run]] = {}  # the runs in the folder of each study, by the name in its record
    for run, place in zip(runs, places, strict=True):
        folder = study_of[place.parent]
        if folder is not None:
            inside.setdefault(folder, {})[place.relative_to(folder).as_posix()] = run
    references: dict[Path, list[str]] = {run.path: [] for run in runs}
    choices: dict[Path, list[Choice]] = {run.path: [] for run in runs}
    commands: list[str] = []
    missing: dict[Path, str] = {}
    failed: list[Path] = []
    for folder, of_folder in inside.items():
        studies = read_studies(folder)
        for study in studies:
            planned = [name for name in dict.fromkeys(study.planned) if name in of_folder]
            for name in planned:
                references[of_folder[name].path].append(study.reference)
                choices[of_folder[name].path] += study.selected.get(name, ())
            commands += [study.command] if planned and study.command else []
        if any(folder.is_relative_to(root) for root in roots):
            missing[folder] = missing_of(folder, studies)
            failed += [folder / name for study in studies for name in study.failed]
    searches_in = {near: _searches_in(near) for near in {run.path.parent for run in runs}}
    for run in (run for run in runs if run.beta is not None):
        choices[run.path] += [one for of, one in searches_in[run.path.parent] if of == (run.data, run.method, run.beta)]
    texts = [text if len(missing) == 1 else f"{folder.name}: {text}" for folder, text in missing.items() if text]
    return Recorded(
        usual=default_reference(run.method for run in runs),
        references=references,
        choices={path: tuple(dict.fromkeys(found)) for path, found in choices.items()},
        commands=tuple(dict.fromkeys(commands)),
        missing="; ".join(texts),
        failed=tuple(dict.fromkeys(path.name for path in failed if not (path / "result.json").exists())),
    )


def _study_of(near: Path, roots: Sequence[Path]) -> Path | None:
    """The nearest folder above runs with the record of a study: the next one, or one in the folders that were read."""
    folders = [near, *(one for one in near.parents if any(one.is_relative_to(root) for root in roots))]
    return next((one for one in folders if (one / STUDY_FILE).exists()), None)


def _searches_in(folder: Path) -> list[tuple[tuple[Any, ...], Choice]]:
    """Data, method and beta of the searches beside runs, and how they chose; a stopped study has not recorded it."""
    records = [read_search(file) for file in sorted(folder.glob(f"search/*/{SEARCH_FILE}"))]
    return [((one.get("data"), one.get("method"), one.get("beta")), Choice.of_search(one)) for one in records]


def measured_on(cells: Sequence[Cell]) -> str:
    """Return what the results of cells of one data set are measured on, in words."""
    split = held_out(cells) or "test"
    return HELD_WORDS[split] + (" (there is no test data)" if split == "val" else "")


def named(cells: Sequence[Cell]) -> list[tuple[Cell, str]]:
    """Return cells with their titles, and with their data if there are several data sets."""
    several = len({cell.data for cell in cells}) > 1
    return [(cell, f"{cell.title} on {cell.data}" if several else cell.title) for cell in cells]


def numbers(values: Sequence[int]) -> str:
    """Return integers in short.

    Example:
        >>> numbers([0, 1, 2, 3, 4]), numbers([0, 2, 7]), numbers([3])
        ('0…4', '0, 2, 7', '3')
    """
    ordered = sorted(set(values))
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}…{ordered[-1]}"
    return ", ".join(map(str, ordered))


def caption_of(cells: Sequence[Cell], *, selected: str = "") -> str:
    """Return how the runs of a table were made: runs, seeds, epochs, measures, data, selection."""
    beta = selected or f"{_UNKNOWN} with these runs"
    facts = [
        *_runs(cells),
        _epochs([run for cell in cells for run in cell.runs]),
        *map(_groups, cells),
        how_measured(cells),
        *_subsets([cell.recipe for cell in cells if cell.recipe.imbalance is not None]),
        *_held_out(cells),
        *([beta] if selected or any(cell.beta is not None for cell in cells) else []),
        *(f"{name}: {text}" for cell, name in named(cells) if (text := _measured_beta(cell))),
        *(f"{name}: {text}" for cell, name in named(cells) if (text := _chosen_decay(cell))),
        *(f"{name} {cell.predicts}" for cell, name in named(ordered(cells)) if cell.underfitted_runs),
    ]
    text = "; ".join(dict.fromkeys(facts))
    return text[0].upper() + text[1:] + "."


def _runs(cells: Sequence[Cell]) -> list[str]:
    """Seeds, folds, and the number of runs."""
    sizes = sorted({len(cell.runs) for cell in cells})
    seeds = {seed for cell in cells for seed in cell.seeds}
    over = f"seed{'s' * (len(seeds) > 1)} {numbers(list(seeds))}"
    folds = sorted({cell.recipe.folds for cell in cells if len({fold for _, fold in cell.places}) > 1})
    over = f"{', '.join(map(str, folds))} folds and {over}" if folds else over
    facts = [f"Mean ± SD over {over}" if sizes[-1] > 1 else f"One run each, {over}"]
    total = sum(len(cell.runs) for cell in cells)
    facts += [f"{total} runs in total"] if total > 1 else []
    return [*facts, f"{sizes[0]} to {sizes[-1]} runs per row"] if len(sizes) > 1 else facts


def _epochs(runs: Sequence[Run]) -> str:
    """How long training was, and which epoch is reported."""
    epochs = sorted({"+".join(map(str, run.result["epochs"])) for run in runs}, key=lambda text: (len(text), text))
    reported = ", ".join(sorted({run.result["reported"] for run in runs}))
    length = f"{', '.join(epochs)} epoch{'' if epochs == ['1'] else 's'}"
    early = any(run.recipe.patience for run in runs)
    return f"up to {length} with early stopping, {reported}" if early else f"{length}, {reported}"


def _groups(cell: Cell) -> str:
    """The groups of classes, their sizes, and how they were made."""
    result = cell.runs[0].result
    groups, made = result["groups"], result.get("groups_from", "")
    text = f"{'/'.join(groups)} of {'/'.join(str(len(one)) for one in groups.values())} classes"
    return f"{text} ({made}; {describe_groups(groups, result.get('counts'))})" if made else text


def _subsets(recipes: Sequence[Recipe]) -> list[str]:
    """How long-tailed subsets were drawn."""
    own = "drawn with the seed of each run"
    drawn = {own if recipe.subset_seed == "run" else f"seed {recipe.subset_seed}" for recipe in recipes}
    return [f"long-tailed subset: {', '.join(sorted(drawn))}"] if drawn else []


def _held_out(cells: Sequence[Cell]) -> list[str]:
    """What the runs held out of their data, in words."""
    found = []
    for part, words in (("val", "of training samples held out"), ("test", "of each class held out as test")):
        runs = {(_share(run, part), run.recipe.split_by) for cell in cells for run in cell.runs}
        shares = sorted({share for share, _ in runs if share})
        if shares:
            columns = sorted({by for share, by in runs if share and by is not None})
            by = f" (whole groups by {', '.join(columns)})" if columns else ""
            some = " in some rows" if any(share == 0 for share, _ in runs) else ""
            others = {run.recipe.test_seed for cell in cells for run in cell.runs} == {"run"}
            some += ", different for each seed" if part == "test" and others else ""
            found.append(f"{', '.join(f'{100 * share:g} %' for share in shares)} {words}{by}{some}")
    return found


def _share(run: Run, part: str) -> float:
    """The fraction that a run held out; results of older versions say nothing about it, but their recipe does."""
    unknown = {"val": run.recipe.validation}
    return float(run.result.get("held_out", unknown).get(part, 0.0))


def _measured_beta(cell: Cell) -> str:
    """How beta = auto was measured, and what came out; empty for other cells."""
    found: list[dict[str, Any]] = [run.result["auto_beta"] for run in cell.runs if "auto_beta" in run.result]
    if not found:
        return ""
    betas = [one["beta"] for one in found]
    value = f"{betas[0]:.2f}" if len(set(betas)) == 1 else f"{mean(betas):.2f} ({min(betas):.2f} to {max(betas):.2f})"
    pilots = sorted({one["pilots"] for one in found})
    same = " (also those of this table)" if held_out([cell]) == "val" else ""
    held = [f"validation data{same}"] if any(one["validation"] for one in found) else []
    if any(pilots):
        held.append(f"{'–'.join(map(str, pilots))} pilot run{'s' * (pilots != [1])} per run, a tenth held out")
    failed = [one["problem"] for one in found if "problem" in one]
    problem = f"; not measurable in {count(len(failed), 'run')}: {failed[0]}" if failed else ""
    measured = f", measured on {' and '.join(held)}" if held else ""
    return f"β = {value}{measured}{problem}"


def _chosen_decay(cell: Cell) -> str:
    """The weight decays that were chosen; empty for cells with a given one."""
    found = Counter(one["chosen"] for run in cell.runs if (one := run.result.get("auto_weight_decay")))
    each = ", ".join(f"{decay:g} ({count(number, 'run')})" for decay, number in sorted(found.items()))
    return f"weight decay {each}, chosen by recall on held-out data" if found else ""


def how_measured(cells: Sequence[Cell]) -> str:
    """Return how the measures on training data were taken."""
    stats = {run.result["train_stats"] for cell in cells for run in cell.runs}
    words = {"paper": "in training mode with augmentation, as in the paper", "eval": "in evaluation mode"}
    return f"training data measured {' or '.join(words[name] for name in sorted(stats))}"
