"""A diagnosis as a page with tables and figures. Needs ``longtail[report]``."""

import math

from longtail import __version__
from longtail.diagnose.diagnosis import Diagnosis
from longtail.diagnose.shift import TAUS
from longtail.report.classes import ClassView, class_grid, confusion_blocks, worst_cards
from longtail.report.page import (
    Block,
    Card,
    Cards,
    Cell,
    Column,
    Commands,
    Gallery,
    Grid,
    Page,
    Prose,
    Report,
    Section,
    number,
    picture,
)
from longtail.report.predictions import Confusions, Predicted
from longtail.study.captions import count, some_of
from longtail.study.figures import Drawing, class_probability, class_recall, sensitivity
from longtail.study.figures.plots import FEW

_WORDS = {"train": "training", "val": "validation", "test": "test"}


def report_of(found: Diagnosis, *, title: str = "", command: str = "") -> Report:
    """Return the page of a diagnosis."""
    view, test = _view(found), found.splits["test"]
    confusions = Confusions(len(found.names), [Predicted(test.labels, test.predicted)])
    drawings = {drawing.name: drawing for drawing in _drawings(found)}
    shift = drawings.get("shift")
    figures = Gallery([picture(one, one.name) for one in drawings.values() if one is not shift])
    lowest = Prose(["The classes with the lowest recall on test data."])
    caption = "Per cent of the test samples of each class."
    grid = class_grid(view, "classes-table", "Recall in per cent on each split; precision on test data.")
    sections = [
        Section("summary", "Summary", _summary(found)),
        Section("next", "What to try next", _next(found, shift)),
        Section("figures", "Figures", [figures]),
        Section("worst", "Worst classes", [lowest, worst_cards(view, confusions)], "Worst"),
        Section(
            "taken",
            f"What {found.rarest} classes are mistaken for",
            confusion_blocks(view, confusions, "taken-table", caption),
            "Mistakes",
        ),
        Section("classes", "All classes", [grid], "Classes"),
        Section("how", "Files and command", _files(found, command), "Files"),
    ]
    samples = ", ".join(f"{len(split.labels):,} {_WORDS[name]}" for name, split in found.splits.items())
    subtitle = f"{len(found.names):,} classes; predictions on {samples} samples. Recall is the share of the samples of "
    subtitle += "a class that are recognised, as a mean over classes."
    footer = "Made by longtail diagnose. This file needs no network."
    return Report(Page(title or "Diagnosis of a classifier", subtitle, sections, footer), drawings)


def _view(found: Diagnosis) -> ClassView:
    recalls = {
        f"{_WORDS[name]} data": [100 * v for v in found.recall_of(name).per_class.tolist()] for name in found.splits
    }
    test, classes = found.splits["test"], len(found.names)
    right = test.labels[test.labels == test.predicted].bincount(minlength=classes)
    return ClassView(
        names=found.names,
        counts=found.counts.tolist(),
        groups={name: found.groups.members(name) for name in found.filled},
        recalls=recalls,
        focus="test data",
        samples=test.labels.bincount(minlength=classes).tolist(),
        precision=(100 * right.double() / test.predicted.bincount(minlength=classes)).tolist(),
        unit="sample",
        mark_best=False,
    )


def _summary(found: Diagnosis) -> list[Block]:
    test = found.recall_of("test")
    cards = [Card(f"{100 * test.all:.1f}\u00a0%", "Recall over all classes", "test data")]
    for name in dict.fromkeys((found.commonest, found.rarest)):
        if name in test.groups:
            note = f"{count(found.groups.sizes[name], 'class')}, test data"
            cards.append(Card(f"{100 * test.groups[name]:.1f}\u00a0%", f"{name.capitalize()} recall", note))
    several, preference = found.commonest != found.rarest, found.preference
    if several and preference is not None and not math.isnan(preference.level):
        cards.append(Card(f"{preference.level:.1f}", "Model imbalance level I", "0 treats all groups equally"))
    notes = _notes(found)
    blocks: list[Block] = [Cards(cards), Prose(found.findings, "list"), _recall_grid(found)]
    return [*blocks, *([Prose(notes, "notes")] if notes else [])]


def _row(label: str, values: list[float]) -> list[Cell]:
    return [Cell(label, label), *(number(value, 2) for value in values)]


def _recall_grid(found: Diagnosis) -> Grid:
    columns = [Column("Data", numeric=False), *(Column(name.capitalize()) for name in (*found.filled, "all"))]
    rows = []
    for name, split in found.splits.items():
        recalls = found.recall_of(name)
        values = [recalls.groups.get(group, math.nan) for group in found.filled]
        accuracy = float((split.labels == split.predicted).double().mean())
        rows.append(_row(f"{_WORDS[name]} data", [100 * v for v in (*values, recalls.all, accuracy)]))
    if found.preference is not None:
        scores = [found.preference.score.get(group, math.nan) for group in found.filled]
        rows.append(_row("preference score P", [*scores, math.nan, math.nan]))
    error = found.calibration
    if error:
        errors = [error.get(group, math.nan) for group in found.filled]
        rows.append(_row("calibration error, test data", [*errors, error["all"], math.nan]))
    caption = f"Groups: {found.groups_from}. Accuracy weighs samples equally, recall weighs classes equally."
    if found.preference is not None:
        caption += " Preference score: training error plus the share of training recall that is lost on test data; "
        caption += "lower is better."
    return Grid("recall", "Recall, per cent", [*columns, Column("Accuracy")], rows, caption)


def _notes(found: Diagnosis) -> list[str]:
    notes = list(found.notes)
    for name, split in found.splits.items():
        if split.ignored:
            notes.append(f"{count(split.ignored, f'{_WORDS[name]} sample')} without a label (-100) ignored.")
    for split_name, classes in (
        ("test", found.recall_of("test").absent),
        ("training", [c for c, samples in enumerate(found.counts.tolist()) if not samples]),
    ):
        if classes:
            names = some_of([found.names[c] for c in classes], 4)
            out = " (left out of all means)" if split_name == "test" else ""
            notes.append(f"{count(len(classes), 'class')} without {split_name} samples{out}: {names}.")
    if "train" not in found.splits:
        notes.append("Without predictions on training data, the generalisation gap and imbalance level are unknown.")
    return notes


def _next(found: Diagnosis, drawing: Drawing | None) -> list[Block]:
    blocks: list[Block] = [Prose(found.next_steps, "list")]
    shift = found.shift
    if shift is None or drawing is None:
        return blocks
    if shift.strength:
        groups = [*(name for name in found.groups.names if name in shift.before["test"]), "all"]
        columns = [Column("Data", numeric=False), *(Column(name.capitalize()) for name in groups)]
        rows = []
        for split in ("val", "test"):
            for label, values in (("no shift", shift.before[split]), (f"τ = {shift.strength:g}", shift.after[split])):
                rows.append(_row(f"{_WORDS[split]} data, {label}", [values.get(g, math.nan) for g in groups]))
        caption = "τ is the smallest strength whose recall over all classes on validation data is within one standard "
        caption += "error of the highest, which is more than two above that without a shift. Test data was not used."
        blocks.append(Grid("shift-table", "Effect of the shift: recall, per cent", columns, rows, caption))
    blocks.append(Gallery([picture(drawing, drawing.name)]))
    if shift.strength:
        code = f"logits = adjust_logits(logits, counts, tau={shift.strength:g})  # then argmax"
        blocks.append(Commands(["from longtail import adjust_logits", code]))
    return blocks


def _drawings(found: Diagnosis) -> list[Drawing]:
    counts, names, test = found.counts.tolist(), found.names, found.recall_of("test")
    drawings = []
    if found.shift is not None:
        figure = sensitivity(TAUS, {"val": found.shift.trace}, chosen=found.shift.strength or None, what="τ")
        caption = "Recall of each group on validation data for every strength of the shift z - τ log prior."
        drawings.append(Drawing("shift", "Strengths of the shift", figure, caption))
    recalls = {"test": [100 * v for v in test.per_class.tolist()]}
    if "train" in found.splits:
        recalls["training"] = [100 * v for v in found.recall_of("train").per_class.tolist()]
    low, high = ([100 * v for v in ends.tolist()] for ends in (test.low, test.high))
    figure = class_recall(counts, recalls, low=low, high=high, names=names, split="")
    more = "means over neighbouring classes" if len(counts) > FEW else "shaded: 95 % intervals on test data"
    drawings.append(Drawing("class-recall", "Recall per class", figure, f"The most frequent class first; {more}."))
    trained = found.statistics.get("train")
    if trained is not None:
        values = {"predicted": (trained.probability_sum / trained.samples.sum()).tolist()}
        caption = "Mean predicted probability of each class on training data (line) and its frequency there (bars)."
        figure = class_probability(counts, values, names=names)
        drawings.append(Drawing("class-probability", "Predicted class frequencies", figure, caption))
    return drawings


def _files(found: Diagnosis, command: str) -> list[Block]:
    columns = [*(Column(name, numeric=False) for name in ("Data", "Source", "Content")), Column("Samples")]
    rows = [
        [*(Cell(text, text) for text in (_WORDS[name], one.source, one.kind)), number(len(one.labels), 0)]
        for name, one in found.splits.items()
    ]
    about = f"Training samples per class: {found.counts_from}. Groups: {found.groups_from}. longtail {__version__}."
    return [Prose([about]), Grid("files", "", columns, rows), *([Commands([command])] if command else [])]
