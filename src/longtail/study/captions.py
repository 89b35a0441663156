"""What every caption says: runs, seeds, epochs, how things were chosen and measured, and the command."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.data import CATALOG
from longtail.study.runs import Cell, Run
from longtail.study.stats import Alternative

__all__ = ["Told", "caption_of", "how_measured", "numbers", "study_record", "told_of", "with_selected"]


@dataclass(frozen=True)
class Told:
    """What studies wrote down of how their runs are compared and how beta was chosen."""

    reference: str = "balanced-softmax"
    alternative: Alternative = "two-sided"
    selected: str = ""


def told_of(paths: Sequence[Path | str], runs: Sequence[Run]) -> Told:
    """What the studies that made runs wrote down, each in the ``study.json`` beside its runs or above them.

    Args:
        paths: the folders that were asked for; the tests are as in the study of the one that was.
        runs: those in them.
    """
    roots = [Path(path).resolve() for path in paths]
    above = {run.path: _study_of(run, roots) for run in runs}
    records = {folder: study_record(folder) for folder in sorted({one for one in above.values() if one is not None})}
    alone = len(set(above.values())) == len(records) == 1
    asked = study_record(roots[0]) if len(roots) == 1 else {}
    tested = asked or (next(iter(records.values())) if alone else {})
    chosen = [(folder.name, str(record.get("selected") or "")) for folder, record in records.items()]
    parts = [text if alone else f"{text} ({name})" for name, text in chosen if text]
    if records and any(run.recipe.beta is not None and above[run.path] is None for run in runs):
        parts.append("how β was chosen is not recorded with the other runs")
    return Told(
        str(tested.get("reference") or Told.reference),
        "greater" if tested.get("alternative") == "greater" else "two-sided",
        "; ".join(parts),
    )


def _study_of(run: Run, roots: Sequence[Path]) -> Path | None:
    """The nearest folder above a run that a study was written in: its own, or one further up that was asked for."""
    near, *far = run.path.resolve().parents
    folders = [near, *(one for one in far if any(one.is_relative_to(root) for root in roots))]
    return next((one for one in folders if (one / "study.json").exists()), None)


def study_record(path: Path) -> dict[str, Any]:
    """What ``longtail study`` wrote down of a folder; empty where it did not."""
    file = path / "study.json"
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"Expected {file} to be JSON, but it is damaged: {error}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"Expected {file} to hold the record of a study, but it holds something else.")
    return found


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


def caption_of(cells: Sequence[Cell], *, selected: str = "", command: str = "") -> str:
    """How the runs of a table were made, in sentences.

    Args:
        cells: the table's.
        selected: how beta, or anything else, was chosen.
        command: what repeats it.
    """
    runs = [run for cell in cells for run in cell.runs]
    of_cells = sorted({len(cell.runs) for cell in cells})
    seeds = numbers([seed for cell in cells for seed in cell.seeds])
    word = "seeds" if len({seed for cell in cells for seed in cell.seeds}) > 1 else "seed"
    folds = sorted({cell.recipe.folds for cell in cells if len({fold for _, fold in cell.places}) > 1})
    over = f"{', '.join(map(str, folds))} folds and {word} {seeds}" if folds else f"{word} {seeds}"
    parts = [f"Mean ± SD over {over}" if of_cells[-1] > 1 else f"One run each, {word} {seeds}"]
    parts[0] += f", {len(runs)} runs in all" if len(runs) > 1 else ""
    if len(of_cells) > 1:
        parts.append(f"{of_cells[0]} to {of_cells[-1]} runs a row")
    epochs = sorted({"+".join(map(str, run.result["epochs"])) for run in runs}, key=lambda text: (len(text), text))
    parts.append(f"{', '.join(epochs)} epochs, {', '.join(sorted({run.result['reported'] for run in runs}))}")
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
        only = f" ({', '.join(whose)} only)" if len(whose) < len(cells) else ""
        parts.append(f"{shares} of training images held out{only}")
    if selected or any(cell.recipe.beta is not None for cell in cells):
        parts.append(selected or "how β was chosen is not recorded with these runs")
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "." + (f" Command: {command}" if command else "")


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
