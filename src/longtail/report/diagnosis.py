"""A diagnosis of anybody's predictions as a page, the same as that of runs."""

import math

from longtail import __version__
from longtail.diagnose.diagnose import Diagnosis
from longtail.report.build import Report
from longtail.report.classes import ClassView, class_grid, confusion_grid, worst_cards
from longtail.report.page import (
    Block,
    Card,
    Cell,
    Column,
    Commands,
    Gallery,
    Grid,
    Notes,
    Page,
    Picture,
    Prose,
    Section,
    Stats,
    many,
    number,
)
from longtail.report.predictions import Confusions, Predicted
from longtail.report.words import next_steps, said_of
from longtail.study.captions import some_of
from longtail.study.figures.classwise import class_probability, class_recall, target_probability
from longtail.study.figures.drawing import Drawing
from longtail.study.figures.sensitivity import sensitivity
from longtail.study.figures.writing import inline_svg

__all__ = ["report_of_diagnosis"]

_WORDS = {"train": "training", "val": "validation", "test": "test"}


def report_of_diagnosis(found: Diagnosis, *, title: str = "", command: str = "") -> Report:
    """The page of a diagnosis.

    Args:
        found: the diagnosis.
        title: of the page.
        command: what made it, for the last section.
    """
    drawings: dict[str, Drawing] = {}
    view = _view(found)
    one = found.splits["test"]
    taken = Confusions(len(found.names), [Predicted(one.labels, one.predicted)])
    sections = [
        _summary(found),
        _next(found, drawings),
        Section("figures", "Figures", [Gallery([_picture(drawing, drawings) for drawing in _drawings(found)])]),
        Section(
            "worst",
            "The worst classes",
            [
                Prose(["Lowest recall on test data: classes below the mean, and no more than a third of all."]),
                worst_cards(view, taken, lambda _: ("", [])),
            ],
            short="Worst",
        ),
        Section(
            "taken",
            f"What {found.rarest} classes are taken for",
            confusion_grid(
                view,
                taken,
                "taken-table",
                f"{found.rarest.capitalize()} classes",
                "Per cent of the test samples of each class.",
            ),
            short="Taken for",
        ),
        Section(
            "classes",
            "Classes",
            [class_grid(view, "classes-table", "Every class", "Recall on each split; precision on test data.")],
        ),
        _how(found, command),
    ]
    samples = ", ".join(f"{len(split.labels):,} {_WORDS[name]}" for name, split in found.splits.items())
    subtitle = (
        f"{len(found.names):,} classes; predictions on {samples} samples. Recall is the mean over classes of the "
    )
    subtitle += "per cent that is recognised."
    footer = ("Made by longtail diagnose. This page is one file: it loads nothing, and needs no network.",)
    return Report(Page(title or "Diagnosis of a classifier", subtitle, sections, footer), drawings)


def _view(found: Diagnosis) -> ClassView:
    recalls = {
        f"{_WORDS[name]} data": [100 * v for v in found.recall_of(name).per_class.tolist()] for name in found.splits
    }
    test = found.splits["test"]
    samples = test.labels.bincount(minlength=len(found.names))
    right = test.labels[test.labels == test.predicted].bincount(minlength=len(found.names))
    precision = 100 * right.double() / test.predicted.bincount(minlength=len(found.names))
    groups = {name: found.groups.members(name) for name in found.groups.names if found.groups.members(name)}
    return ClassView(
        found.names,
        found.counts.tolist(),
        groups,
        recalls,
        "test data",
        samples.tolist(),
        precision.tolist(),
        "sample",
        compare=False,
    )


def _summary(found: Diagnosis) -> Section:
    test = found.recall_of("test")
    cards = [Card(f"{100 * test.all:.1f}\u00a0%", "Recall over all classes", "test data")]
    for name in dict.fromkeys((found.commonest, found.rarest)):
        size = found.groups.sizes[name]
        if name in test.groups:
            cards.append(
                Card(
                    f"{100 * test.groups[name]:.1f}\u00a0%",
                    f"{name.capitalize()} recall",
                    f"{many(size, 'class')}, test data",
                )
            )
    if found.compares and found.preference is not None and not math.isnan(found.preference.level):
        cards.append(Card(f"{found.preference.level:.1f}", "Model imbalance level I", "0 is even-handed"))
    blocks: list[Block] = [Stats(cards), Prose(said_of(found), points=True), _table(found)]
    notes = _notes(found)
    return Section("summary", "Summary", [*blocks, *([Notes(notes)] if notes else [])])


def _table(found: Diagnosis) -> Grid:
    groups = [name for name in found.groups.names if found.groups.members(name)]
    columns = [
        Column("Data", numeric=False),
        *(Column(name.capitalize()) for name in groups),
        Column("All"),
        Column("Accuracy"),
    ]
    rows = []
    for name, split in found.splits.items():
        shown = found.recall_of(name)
        right = 100 * float((split.labels == split.predicted).double().mean())
        cells = [number(100 * shown.groups.get(group, math.nan), 2) for group in groups]
        rows.append([Cell(_WORDS[name], _WORDS[name]), *cells, number(100 * shown.all, 2), number(right, 2)])
    if found.preference is not None:
        scores = [number(found.preference.score.get(group, math.nan), 2) for group in groups]
        rows.append([Cell("preference score P", "preference"), *scores, Cell("–", ""), Cell("–", "")])
    error = found.calibration()
    if error:
        cells = [number(error.get(group, math.nan), 2) for group in groups]
        rows.append([Cell("calibration error, test", "calibration"), *cells, number(error["all"], 2), Cell("–", "")])
    caption = (
        f"Groups: {found.cut}. Accuracy counts samples, recall counts classes. Preference score: training error plus "
    )
    caption += "the share of training recall that is lost on test data; lower is better served."
    return Grid("recall", "Recall, per cent", columns, rows, caption)


def _notes(found: Diagnosis) -> list[str]:
    notes = list(found.notes)
    for name, split in found.splits.items():
        if split.left_out:
            notes.append(f"{many(split.left_out, f'{_WORDS[name]} sample')} without a label (-100), left out.")
        absent = found.recall_of(name).absent
        if absent and name == "test":
            notes.append(
                f"{many(len(absent), 'class')} without a test sample, left out of every mean: "
                f"{some_of([found.names[c] for c in absent], 4)}."
            )
    if "train" not in found.splits:
        notes.append("Without predictions on training data there is no generalisation gap and no imbalance level.")
    never = [c for c, count in enumerate(found.counts.tolist()) if not count]
    if never:
        notes.append(
            f"{many(len(never), 'class')} without a training sample: {some_of([found.names[c] for c in never], 4)}."
        )
    return notes


def _next(found: Diagnosis, drawings: dict[str, Drawing]) -> Section:
    blocks: list[Block] = [Prose(next_steps(found), points=True)]
    shift = found.shift
    if shift is None:
        return Section("next", "What to try next", blocks)
    if shift.strength:
        groups = [name for name in found.groups.names if name in shift.before["test"]]
        columns = [Column("Data", numeric=False), *(Column(name.capitalize()) for name in (*groups, "all"))]
        rows = []
        for split in ("val", "test"):
            for word, values in (("as it is", shift.before[split]), (f"τ = {shift.strength:g}", shift.after[split])):
                label = f"{_WORDS[split]}, {word}"
                rows.append([Cell(label, label), *(number(values.get(g, math.nan), 2) for g in (*groups, "all"))])
        caption = (
            "τ: the smallest within one standard error of the highest recall over all classes on validation data, "
        )
        caption += "which is more than two above that without a shift. Test data had no say in it."
        blocks.append(Grid("shift-table", "The shift, and who pays for it: recall, per cent", columns, rows, caption))
    figure = sensitivity(shift.strengths, {"val": shift.trace}, chosen=shift.strength or None, what="τ")
    words = "Recall of each group on validation data for every strength of the shift z - τ log prior."
    blocks.append(Gallery([_picture(Drawing("shift", "Every strength", figure, words), drawings)]))
    if shift.strength:
        code = f"logits = adjust_logits(logits, counts, tau={shift.strength:g})  # then argmax"
        blocks.append(Commands(["from longtail import adjust_logits", code]))
    return Section("next", "What to try next", blocks)


def _picture(drawing: Drawing, drawings: dict[str, Drawing]) -> Picture:
    drawings[drawing.name] = drawing
    svg = inline_svg(drawing.figure, drawing.name, f"{drawing.title}. {drawing.caption}")
    return Picture(svg, drawing.caption, drawing.title)


def _drawings(found: Diagnosis) -> list[Drawing]:
    counts, names = found.counts.tolist(), found.names
    test = found.recall_of("test")
    recalls = {"test": [100 * v for v in test.per_class.tolist()]}
    if "train" in found.splits:
        recalls["training"] = [100 * v for v in found.recall_of("train").per_class.tolist()]
    many = "; means over neighbouring classes" if len(counts) > 120 else "; shaded: 95 % intervals on test data"
    low, high = ([100 * v for v in ends.tolist()] for ends in (test.low, test.high))
    figure = class_recall(counts, recalls, low=low, high=high, names=names, split="")
    drawings = [Drawing("class-recall", "Recall over classes", figure, f"The most frequent class first{many}.")]
    trained = found.statistics.get("train")
    if trained is not None:
        values = {"predicted": (trained.probability_sum / trained.samples.sum()).tolist()}
        words = "Mean predicted probability of each class on training data against its frequency in training."
        drawings.append(
            Drawing("class-probability", "Class probability", class_probability(counts, values, names=names), words)
        )
    targets = {
        _WORDS[name]: (found.statistics[name].target_probability_sum / found.statistics[name].samples).tolist()
        for name in ("test", "train")
        if name in found.statistics
    }
    if targets:
        words = "How much probability the true class gets, over the samples of each class."
        figure = target_probability(counts, targets, names=names, split="")
        drawings.append(Drawing("target-probability", "Target probability", figure, words))
    return drawings


def _how(found: Diagnosis, command: str) -> Section:
    rows = [
        [Cell(_WORDS[name], name), Cell(one.source, one.source), Cell(one.kind, one.kind), number(len(one.labels), 0)]
        for name, one in found.splits.items()
    ]
    columns = [
        Column("Data", numeric=False),
        Column("File", numeric=False),
        Column("Has", numeric=False),
        Column("Samples"),
    ]
    lines = [f"Training samples a class: {found.counts_from}. Groups: {found.cut}. longtail {__version__}."]
    blocks: list[Block] = [Prose(lines), Grid("files", "Files", columns, rows)]
    return Section("how", "How it was made", [*blocks, *([Commands([command])] if command else [])], short="Repeat")
