"""A diagnosis of a classifier from its predictions: which classes it fails on, why, and what to try next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longtail._checks import as_counts
from longtail.classes import Groups, class_counts
from longtail.diagnose import words
from longtail.diagnose.files import RunRecord, Source, Stored, class_order
from longtail.diagnose.predictions import Predictions, class_names, open_predictions, read_counts, to_predictions
from longtail.diagnose.shift import Shift, choose_shift
from longtail.metrics import (
    ClassStatistics,
    Preference,
    Recall,
    class_statistics,
    expected_calibration_error,
    preference_scores,
    recall,
)

if TYPE_CHECKING:
    from longtail.report.page import Report


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """The predictions of a classifier and what they show. ``print`` and notebooks show the findings.

    ``diagnosis.report().write("diagnosis.html")`` writes a page with tables and figures (needs ``longtail[report]``).
    """

    splits: Mapping[str, Predictions]
    """``test``, and ``train`` and ``val`` if they were given."""
    names: tuple[str, ...]
    counts: Tensor
    """Training samples per class."""
    counts_from: str
    groups: Groups
    groups_from: str
    shift: Shift | None
    why_no_shift: str
    run: RunRecord | None
    """The record of the run whose folder contains the predictions."""
    notes: tuple[str, ...]
    """What was not given, and where it was found."""

    def recall_of(self, split: str) -> Recall:
        """Return the recall on a split."""
        one = self.splits[split]
        right = one.labels[one.labels == one.predicted]
        return recall(class_counts(right, len(self.names)), class_counts(one.labels, len(self.names)), self.groups)

    @cached_property
    def preference(self) -> Preference | None:
        """Preference scores and imbalance level; ``None`` without predictions on training data."""
        if "train" not in self.splits:
            return None
        train, test = self.recall_of("train").per_class, self.recall_of("test").per_class
        return preference_scores(train, test, self.groups)

    @cached_property
    def statistics(self) -> dict[str, ClassStatistics]:
        """Class statistics of the splits with logits or probabilities."""
        logits = {name: one.logits for name, one in self.splits.items() if one.logits is not None}
        return {name: class_statistics(found, self.splits[name].labels) for name, found in logits.items()}

    @cached_property
    def upwards(self) -> float:
        """The share of errors on the rarest group, in per cent, that go to classes with more training samples."""
        one = self.splits["test"]
        members = torch.zeros(len(self.names), dtype=torch.bool)
        members[list(self.groups.members(self.rarest))] = True
        wrong = (one.labels != one.predicted) & members[one.labels]
        more = self.counts[one.predicted[wrong]] > self.counts[one.labels[wrong]]
        return 100 * float(more.double().mean()) if bool(wrong.any()) else math.nan

    @property
    def filled(self) -> list[str]:
        """The groups that have classes, the most frequent first."""
        return [name for name in self.groups.names if self.groups.members(name)]

    @property
    def commonest(self) -> str:
        """The group of the most frequent classes."""
        return self.filled[0]

    @property
    def rarest(self) -> str:
        """The group of the rarest classes."""
        return self.filled[-1]

    @property
    def calibration(self) -> dict[str, float]:
        """Calibration error on test data in per cent, per group and ``all``; empty without logits."""
        found = self.statistics.get("test")
        if found is None:
            return {}
        error = expected_calibration_error(found.bin_samples, found.bin_correct, found.bin_confidence, self.groups)
        return {"all": 100 * error.all, **{name: 100 * value for name, value in error.groups.items()}}

    @property
    def findings(self) -> list[str]:
        """What is wrong, and by how much, in sentences."""
        return words.findings(self)

    @property
    def next_steps(self) -> list[str]:
        """What to try next, the cheapest first, in sentences."""
        return words.next_steps(self)

    def report(self, *, title: str = "", command: str = "") -> "Report":
        """Return a page about the diagnosis; ``command`` is the command that repeats it."""
        from longtail.diagnose.page import report_of  # noqa: PLC0415 - needs extras

        return report_of(self, title=title, command=command)

    def __str__(self) -> str:
        return "\n".join([*self.findings, *self.notes, *self.next_steps])

    def _repr_html_(self) -> str:
        def items(lines: Sequence[str]) -> str:
            return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"

        head = "".join(f"<th>{escape(name)}</th>" for name in ("recall, %", *self.filled, "all"))
        rows = ""
        for split in self.splits:
            found = self.recall_of(split)
            values = [*(found.groups.get(name, math.nan) for name in self.filled), found.all]
            rows += f"<tr><th>{split}</th>" + "".join(f"<td>{100 * value:.1f}</td>" for value in values) + "</tr>"
        table = f"<table><tr>{head}</tr>{rows}</table>"
        return f"{table}{items([*self.findings, *self.notes])}<b>What to try next</b>{items(self.next_steps)}"


def diagnose(
    test: Source,
    train: Source | None = None,
    val: Source | None = None,
    counts: Path | str | Mapping[str, int] | Sequence[int] | Tensor | None = None,
    *,
    head_over: float | None = None,
    tail_under: float | None = None,
) -> Diagnosis:
    """Diagnose a classifier from its predictions.

    Predictions are a file (npz, safetensors, CSV, TSV or Parquet; ``longtail diagnose --help`` describes the formats)
    or a mapping of arrays with ``labels`` and one of ``logits``, ``probabilities`` or ``predicted``, and optionally
    ``classes`` (their names). A file in the folder of a run has the class names and groups of the run, and its counts
    if neither ``train`` nor ``counts`` is given.

    Args:
        test: predictions on test data.
        train: predictions on training data, for the generalisation gap and the imbalance level.
        val: predictions on validation data, to choose a post-hoc shift; never the test data.
        counts: training samples per class, by name or in the order of the classes (default: counted in ``train``).
        head_over: classes with more training samples are head (default: 100).
        tail_under: classes with fewer training samples are tail (default: 20).

    Example:
        >>> test = {"labels": [0, 0, 0, 1, 1, 1], "predicted": [0, 0, 0, 0, 0, 1]}
        >>> found = diagnose(test, counts={"cat": 500, "fox": 5})
        >>> print(found.findings[1])
        On test data, recall is 66.7 points lower on the tail than on the head.
    """
    sources = {name: source for name, source in (("train", train), ("val", val), ("test", test)) if source is not None}
    given, counted = (None, None) if counts is None else read_counts(counts)  # type: ignore[arg-type]
    counts_source = str(counts) if isinstance(counts, Path | str) else "`counts`"
    stored = _with_run_names({name: open_predictions(source, name) for name, source in sources.items()}, counted)
    run = next((stored[name].run for name in ("test", "train", "val") if name in stored and stored[name].run), None)
    if counts is None and train is None and run is None:
        raise ValueError("Expected `train` or `counts`, to know the training samples per class, but got neither.")
    listed = {one.source: one.names for one in stored.values() if one.names is not None}
    if counted is not None:
        listed[counts_source] = counted
    names = class_names(stored, listed, counts_source if given is not None and counted is None else None)
    splits = {name: to_predictions(one, names) for name, one in stored.items()}
    _check_different(splits)
    num_classes = _num_classes(splits, given, names)
    if run is not None and names is not None:
        run = run.ordered(names)
    if given is not None:
        number, counts_from = as_counts(given, num_classes), f"from {counts_source}"
        if counted is not None and names is not None:
            number = number[class_order(names, counted, counts_source)]
    elif run is not None and "train" not in splits:
        number, counts_from = torch.tensor(run.counts), f"from {run.path}"
    else:
        number, counts_from = class_counts(splits["train"].labels, num_classes), "counted in the training predictions"
    bounds = head_over is not None or tail_under is not None
    if run is not None and not bounds:
        groups, groups_from = run.groups, f"those of the run ({run.path})"
    else:
        groups, groups_from = _groups(number, head_over, tail_under)
    notes = () if run is None else _notes(run, "names" if bounds else "names and groups")
    if names is not None and not listed:
        notes = (f"The classes are the {len(names):,} names in the files, sorted.",)
    shift, why_no_shift = _shift(splits, number, groups)
    shown = names or tuple(f"class {c}" for c in range(num_classes))
    return Diagnosis(splits, shown, number, counts_from, groups, groups_from, shift, why_no_shift, run, notes)


def _with_run_names(stored: Mapping[str, Stored], counted: tuple[str, ...] | None) -> dict[str, Stored]:
    """Give files in a run folder the class names of the run, unless other names are given."""
    given = [counted, *(one.names for one in stored.values())]
    found = {}
    for split, one in stored.items():
        run = one.run
        if run is not None and any(sorted(names) != sorted(run.names) for names in given if names is not None):
            run = None
        found[split] = replace(one, run=run, names=one.names or (None if run is None else run.names))
    return found


def _check_different(splits: Mapping[str, Predictions]) -> None:
    """Refuse the same predictions for two splits: a shift that is chosen on test data would look too good.

    Labels alone may be equal by chance, unless they are from one file.
    """
    for one, other in combinations(splits, 2):
        first, second = splits[one], splits[other]
        if not torch.equal(first.labels, second.labels) or not torch.equal(first.predicted, second.predicted):
            continue
        logits = first.logits is not None and second.logits is not None and torch.equal(first.logits, second.logits)
        if logits or Path(first.source).resolve() == Path(second.source).resolve():
            raise ValueError(
                f"Expected different data for each split, but got the same predictions for `{one}` and `{other}` "
                f"({first.source})."
            )


def _num_classes(splits: Mapping[str, Predictions], counts: Tensor | None, names: tuple[str, ...] | None) -> int:
    """The number of classes, on which all sources must agree."""
    known: dict[str, int] = {}
    if counts is not None:
        known["the counts"] = len(counts)
    elif names is not None:
        known["the names"] = len(names)
    known |= {one.source: one.logits.shape[1] for one in splits.values() if one.logits is not None}
    largest = 1 + max(int(max(one.labels.max(), one.predicted.max())) for one in splits.values())
    if not known:
        return max(largest, 2)
    first, number = next(iter(known.items()))
    for source, other in known.items():
        if other != number:
            raise ValueError(
                f"Expected the same number of classes, but got {number} in {first} and {other} in {source}."
            )
    if largest > number:
        raise ValueError(f"Expected classes in 0…{number - 1}, as in {first}, but got class {largest - 1}.")
    return number


def _groups(counts: Tensor, head_over: float | None, tail_under: float | None) -> tuple[Groups, str]:
    """Groups by count; thirds of the classes if the default bounds put all classes into one group."""
    head, tail = 100 if head_over is None else head_over, 20 if tail_under is None else tail_under
    found = Groups.from_counts(counts, head, tail)
    filled = [name for name, size in found.sizes.items() if size]
    bounds = head_over is not None or tail_under is not None
    even = int(counts.min()) == int(counts.max())
    if bounds or len(filled) > 1 or len(counts) < 3 or even:
        return found, f"head has more than {head:g} training samples per class, tail fewer than {tail:g}"
    order = sorted(range(len(counts)), key=lambda c: (-int(counts[c]), c))
    third = len(order) // 3
    thirds = {"head": order[:third], "medium": order[third : 2 * third], "tail": order[2 * third :]}
    text = f"thirds of the classes by frequency, since with the bounds 100 and 20 all classes would be {filled[0]}"
    return Groups.from_indices(**{name: sorted(members) for name, members in thirds.items()}), text


def _shift(splits: Mapping[str, Predictions], counts: Tensor, groups: Groups) -> tuple[Shift | None, str]:
    val, test = splits.get("val"), splits["test"]
    bare = [one.source for one in (val, test) if one is not None and one.logits is None]
    if bare:
        return None, (
            "A post-hoc shift needs logits or probabilities on validation and test data, but "
            f"{' and '.join(bare)} {'has' if len(bare) == 1 else 'have'} only predicted labels."
        )
    if val is None:
        return None, (
            "Without validation data, no post-hoc shift was chosen: chosen on test data, it would look too good. Give "
            "--val predictions on data that was used neither for training nor for testing."
        )
    if not bool((counts > 0).any()):
        return None, "A post-hoc shift needs the training samples per class, and all are 0."
    return choose_shift(val, test, counts, groups), ""


def _notes(run: RunRecord, what: str) -> tuple[str, ...]:
    notes = [f"Class {what} come from the run ({run.path})."]
    if run.posthoc:
        notes.append(f"The stored logits do not include the post-hoc step of the run, {run.posthoc}.")
    return tuple(notes)
