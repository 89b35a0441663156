"""The content of the page about a diagnosis. Needs ``longtail[report]``."""

import math
from typing import Any

import torch

from longtail import __version__
from longtail._program import count, some_of
from longtail.diagnosis.diagnosis import Diagnosis
from longtail.diagnosis.shift import recall_per_group, shifted
from longtail.metrics import macro_f1
from longtail.report.class_results import ClassResults, count_predictions
from longtail.report.page import Column, Grid, GridCell, Report
from longtail.study.figures.plots import MOST_BARS, MOST_NAMES, class_probability, class_recall, sensitivity
from longtail.study.figures.style import Drawing

_WORDS = {"train": "training", "val": "validation", "test": "test"}


def make_report(found: Diagnosis, *, title: str = "", command: str = "") -> Report:
    """Return the page of a diagnosis."""
    samples = ", ".join(f"{len(split.labels):,} {_WORDS[name]}" for name, split in found.splits.items())
    about = f"Training samples per class: {found.counts_from}. Groups: {found.groups_from}. longtail {__version__}."
    columns = [Column("Data"), Column("Source"), Column("Content"), Column("Samples", 0)]
    files: list[list[GridCell]] = [
        [_WORDS[name], one.source, one.kind, len(one.labels)] for name, one in found.splits.items()
    ]
    drawings = {drawing.name: drawing for drawing in _drawings(found)}
    classes = _class_results(found)
    heat_map = classes.confusion()
    drawings |= {} if heat_map is None else {heat_map.name: heat_map}
    content: dict[str, Any] = {
        "title": title or "Diagnosis of a classifier",
        "subtitle": f"{len(found.names):,} classes; predictions on {samples} samples. Recall is the share of the "
        "samples of a class that are recognised, as a mean over classes.",
        "found": found,
        "cards": _cards(found),
        "notes_on_data": _notes(found),
        "recall_grid": _recall_grid(found),
        "shift_grid": _shift_grid(found),
        "classes": classes,
        "about": about,
        "files": Grid("files", "", columns, files),
        "command": command,
    }
    return Report("diagnosis.html", content, drawings)


def _cards(found: Diagnosis) -> list[tuple[str, str, str]]:
    test, level = found.recalls["test"], math.nan if found.preference is None else found.preference.level
    cards = [(f"{100 * test.all:.1f} %", "Recall over all classes", "test data")]
    for name in dict.fromkeys((found.commonest, found.rarest)):
        if name in test.groups:
            note = f"{count(found.groups.sizes[name], 'class')}, test data"
            cards.append((f"{100 * test.groups[name]:.1f} %", f"{name.capitalize()} recall", note))
    if found.commonest != found.rarest and not math.isnan(level):
        cards.append((f"{level:.1f}", "Model imbalance level I", "0 treats all groups equally"))
    return cards


def _recall_grid(found: Diagnosis) -> Grid:
    names = (*(name.capitalize() for name in found.filled), "All", "Accuracy", "Macro F1")
    columns = [Column("Data"), *(Column(name, 2) for name in names)]
    rows: list[list[GridCell]] = []
    for name, recalls in found.recalls.items():
        one = found.statistics[name]
        of_groups = [recalls.groups.get(group, math.nan) for group in found.filled]
        values = [*of_groups, recalls.all, one.accuracy, macro_f1(one.correct, one.samples, one.predicted)]
        rows.append([f"{_WORDS[name]} data", *(100 * value for value in values)])
    caption = f"Groups: {found.groups_from}. Accuracy weighs samples equally, recall and macro F1 weigh classes equally"
    caption += "; -: undefined, or not measured there."
    if found.preference is not None:
        scores = [found.preference.score.get(group, math.nan) for group in found.filled]
        rows.append(["preference score P", *scores, *[math.nan] * 3])
        caption += " Preference score: training error plus the share of training recall that is lost on test data; "
        caption += "lower is better."
    error = found.calibration
    if error:
        errors = [error.get(group, math.nan) for group in found.filled]
        rows.append(["calibration error, test data", *errors, error["all"], math.nan, math.nan])
    return Grid("recall", "Recall, per cent", columns, rows, caption)


def _notes(found: Diagnosis) -> list[str]:
    notes = list(found.notes)
    for name, split in found.splits.items():
        if split.ignored:
            notes.append(f"{count(split.ignored, f'{_WORDS[name]} sample')} without a label (-100) ignored.")
    for without, classes in (
        ("test samples (left out of all means)", found.recalls["test"].absent),
        ("validation samples (left out of the fit)", found.recalls["val"].absent if found.shift is not None else ()),
        ("training samples", (found.counts == 0).nonzero().flatten().tolist()),
    ):
        if classes:
            names = some_of([found.names[c] for c in classes], 4)
            notes.append(f"{count(len(classes), 'class')} without {without}: {names}.")
    if "train" not in found.splits:
        notes.append("Without predictions on training data, the generalisation gap and imbalance level are unknown.")
    return notes


def _shift_grid(found: Diagnosis) -> Grid | None:
    shift = found.shift
    if shift is None or not shift.recommended:
        return None
    groups = [*(name for name in found.groups.names if name in shift.before["test"]), "all"]
    rows: list[list[GridCell]] = []
    for split in ("val", "test"):
        for label, values in (("no shift", shift.before[split]), (f"τ = {shift.tau:g}", shift.after[split])):
            rows.append([f"{_WORDS[split]} data, {label}", *(values.get(group, math.nan) for group in groups)])
    caption = (
        f"τ was fitted on validation data (standard error {shift.std_error:.2f}), with cross entropy in which all "
    )
    caption += "classes count the same. Test data was not used."
    columns = [Column("Data"), *(Column(name.capitalize(), 2) for name in groups)]
    return Grid("shift-table", "Effect of the shift: recall, per cent", columns, rows, caption)


def _class_results(found: Diagnosis) -> ClassResults:
    test, counted = found.splits["test"], found.statistics["test"]
    recalls = {name: (100 * one.per_class).tolist() for name, one in found.recalls.items()}
    return ClassResults(
        names=found.names,
        counts=found.counts.tolist(),
        groups={name: found.groups.members(name) for name in found.filled},
        recalls={f"{_WORDS[name]} data": values for name, values in recalls.items()},
        focus="test data",
        predictions=count_predictions([(test.labels, test.predicted)]),
        samples=counted.samples.tolist(),
        precision=(100 * counted.correct.double() / counted.predicted).tolist(),
        unit="sample",
        mark_best=False,
        caption="Recall in per cent on each split; precision on test data.",
        mistakes_caption="Per cent of the test samples of each class.",
    )


def _drawings(found: Diagnosis) -> list[Drawing]:
    counts, names, test = found.counts.tolist(), found.names, found.recalls["test"]
    drawings = []
    if found.shift is not None:
        tau, val = found.shift.tau, found.splits["val"]
        taus = torch.linspace(min(0.0, tau) - 0.5, max(0.0, tau) + 0.5, 21, dtype=torch.float64).tolist()
        recalls = [recall_per_group(shifted(val, strength, found.counts), found.groups) for strength in taus]
        trace = {group: [values[group] for values in recalls] for group in recalls[0]}
        figure = sensitivity(taus, {"val": trace}, chosen=tau if found.shift.recommended else None, what="τ")
        caption = "Recall of each group on validation data for every strength of the shift z - τ log N."
        drawings.append(Drawing("shift", "Strengths of the shift", figure, caption))
    per_class = {"test": (100 * test.per_class).tolist()}
    if "train" in found.splits:
        per_class["training"] = (100 * found.recalls["train"].per_class).tolist()
    low, high = ((100 * ends).tolist() for ends in (test.low, test.high))
    groups = {name: found.groups.members(name) for name in found.filled}
    figure = class_recall(counts, per_class, groups=groups, low=low, high=high, names=names)
    caption = "The most frequent class first"
    caption += "; lines: 95 % intervals on test data" if len(counts) <= MOST_NAMES else ""
    caption += "; means over neighbouring classes" if len(counts) > MOST_BARS else ""
    caption += "; grey: no samples" if len(counts) <= MOST_BARS and test.absent else ""
    drawings.append(Drawing("class-recall", "Recall per class", figure, f"{caption}."))
    if "train" in found.splits and found.splits["train"].logits is not None:
        trained = found.statistics["train"]
        values = {"predicted": (trained.probability_sum / trained.samples.sum()).tolist()}
        caption = "Mean predicted probability of each class on training data (line) and its frequency there (bars)."
        figure = class_probability(counts, values, names=names)
        drawings.append(Drawing("class-probability", "Predicted class frequencies", figure, caption))
    return drawings
