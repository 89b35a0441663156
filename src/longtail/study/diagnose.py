"""A report from anybody's predictions: who is under-served, by how much, why, and what to try next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from longtail._arguments import as_counts
from longtail.classes import Groups, class_counts
from longtail.metrics import (
    ClassStatistics,
    Preference,
    Recall,
    class_statistics,
    expected_calibration_error,
    preference_scores,
    recall,
)
from longtail.study.advice import Shift, choose_shift
from longtail.study.outside import Outside, read_counts, read_outside

__all__ = ["Diagnosis", "diagnose"]


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Predictions of a classifier on its splits, and what can be said of them."""

    splits: Mapping[str, Outside]
    """``test``, and ``train`` and ``val`` where they were given."""
    names: tuple[str, ...]
    counts: Tensor
    """Training samples of each class."""
    counts_from: str
    groups: Groups
    cut: str
    """How the groups were cut."""
    shift: Shift | None
    why_no_shift: str

    def recall_of(self, split: str) -> Recall:
        """Recall on a split."""
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
        """Class statistics of the splits that have logits or probabilities."""
        return {
            name: class_statistics(one.logits, one.labels)
            for name, one in self.splits.items()
            if one.logits is not None
        }

    @cached_property
    def upwards(self) -> float:
        """Of the errors on the rarest group's test samples, the per cent that go to classes with more training data."""
        one, tail = self.splits["test"], self.rarest
        members = torch.zeros(len(self.names), dtype=torch.bool)
        members[list(self.groups.members(tail))] = True
        wrong = (one.labels != one.predicted) & members[one.labels]
        if not bool(wrong.any()):
            return math.nan
        more = self.counts[one.predicted[wrong]] > self.counts[one.labels[wrong]]
        return 100 * float(more.double().mean())

    @property
    def commonest(self) -> str:
        """The first group that has a class."""
        return next(name for name in self.groups.names if self.groups.members(name))

    @property
    def rarest(self) -> str:
        """The last group that has a class."""
        return next(name for name in reversed(self.groups.names) if self.groups.members(name))

    def calibration(self) -> dict[str, float]:
        """Calibration error on test data, over all samples and for each group, in per cent; empty without logits."""
        found = self.statistics.get("test")
        if found is None:
            return {}
        error = expected_calibration_error(found.bin_samples, found.bin_correct, found.bin_confidence, self.groups)
        return {"all": 100 * error.all, **{name: 100 * value for name, value in error.groups.items()}}


def diagnose(
    test: Path | str,
    train: Path | str | None = None,
    val: Path | str | None = None,
    counts: Path | str | None = None,
    *,
    head_over: float | None = None,
    tail_under: float | None = None,
) -> Diagnosis:
    """Look into a classifier's predictions.

    Args:
        test: predictions on test data; see ``FORMATS_HELP`` of :mod:`longtail.study.outside`.
        train: predictions on training data, for the generalisation gap and the imbalance level.
        val: predictions on validation data, to choose a post-hoc shift on.
        counts: training samples of each class (default: counted in ``train``).
        head_over: classes with more training samples are head (default: 100).
        tail_under: classes with fewer are tail (default: 20).
    """
    given, names = (None, None) if counts is None else read_counts(counts)
    if counts is None and train is None:
        raise ValueError(
            "Expected `train` or `counts`, to know how many training samples each class has, but got neither."
        )
    paths = {name: path for name, path in (("train", train), ("val", val), ("test", test)) if path is not None}
    splits = {name: read_outside(path, name, names) for name, path in paths.items()}
    _check_apart(splits)
    _check_files(paths, splits)
    names = names or next((one.names for one in splits.values() if one.names is not None), None)
    num_classes = _num_classes(splits, given, names)
    if given is None:
        number, source = class_counts(splits["train"].labels, num_classes), "counted in the training predictions"
    else:
        number, source = as_counts(given, num_classes), f"from {counts}"
    groups, cut = _groups(number, head_over, tail_under)
    shift, why_not = _shift(splits, number, groups)
    shown = names or tuple(f"class {c}" for c in range(num_classes))
    return Diagnosis(splits, shown, number, source, groups, cut, shift, why_not)


def _check_apart(splits: Mapping[str, Outside]) -> None:
    """Refuse validation data that is the test data, or the training data: what is chosen on it would flatter itself."""
    if "val" not in splits:
        return
    val = splits["val"]
    for name in ("test", "train"):
        other = splits.get(name)
        if other is None or val.logits is None or other.logits is None:
            continue
        if torch.equal(val.labels, other.labels) and torch.equal(val.logits, other.logits):
            raise ValueError(
                f"Expected validation data of its own to choose a shift on, but {val.source} holds the same "
                f"predictions as {other.source}."
            )


def _check_files(paths: Mapping[str, Path | str], splits: Mapping[str, Outside]) -> None:
    """Refuse a file given for two splits whose predictions are the same; a run's own file has each split apart."""
    for one, other in combinations(paths, 2):
        first, second = splits[one], splits[other]
        same = torch.equal(first.labels, second.labels) and torch.equal(first.predicted, second.predicted)
        if same and Path(paths[one]).resolve() == Path(paths[other]).resolve():
            raise ValueError(
                f"Expected predictions of its own for each split, but got {paths[other]} for both {one} and {other}."
            )


def _num_classes(splits: Mapping[str, Outside], counts: Tensor | None, names: Sequence[str] | None) -> int:
    """How many classes there are; all that say it must agree."""
    said: dict[str, int] = {}
    if counts is not None:
        said["the counts"] = len(counts)
    elif names is not None:
        said["the names"] = len(names)
    for one in splits.values():
        if one.logits is not None:
            said[one.source] = one.logits.shape[1]
        if one.names is not None and names is not None and tuple(one.names) != tuple(names):
            raise ValueError(
                f"Expected the same classes in the same order everywhere, but those of {one.source} differ."
            )
    largest = 1 + max(int(max(one.labels.max(), one.predicted.max())) for one in splits.values())
    if not said:
        return max(largest, 2)
    first, number = next(iter(said.items()))
    for source, other in said.items():
        if other != number:
            raise ValueError(f"Expected as many classes everywhere, but {first} has {number} and {source} has {other}.")
    if largest > number:
        raise ValueError(f"Expected classes in 0…{number - 1}, as {first} has {number}, but got class {largest - 1}.")
    return number


def _groups(counts: Tensor, head_over: float | None, tail_under: float | None) -> tuple[Groups, str]:
    """By count; thirds of the classes where that would put nearly all into one group and nothing was asked for."""
    head, tail = 100 if head_over is None else head_over, 20 if tail_under is None else tail_under
    found = Groups.from_counts(counts, head, tail)
    filled = [name for name, size in found.sizes.items() if size]
    asked = head_over is not None or tail_under is not None
    if asked or len(filled) > 1 or len(counts) < 3:
        return found, f"head: more than {head:g} training samples, tail: fewer than {tail:g}, medium: between"
    order = sorted(range(len(counts)), key=lambda c: (-int(counts[c]), c))
    third = len(order) // 3
    cut = {"head": order[:third], "medium": order[third : 2 * third], "tail": order[2 * third :]}
    words = f"thirds of the classes by frequency, since by number (100 and 20) all would be {filled[0]}"
    return Groups.from_indices(**{name: sorted(members) for name, members in cut.items()}), words


def _shift(splits: Mapping[str, Outside], counts: Tensor, groups: Groups) -> tuple[Shift | None, str]:
    val, test = splits.get("val"), splits["test"]
    if test.logits is None or (val is not None and val.logits is None):
        return None, "A post-hoc shift needs logits or probabilities; these files have predicted labels only."
    if val is None:
        return None, (
            "No validation data was given, so no post-hoc shift was chosen: chosen on test data it would flatter "
            "itself. Give --val predictions on data that was neither trained nor tested on."
        )
    if not bool((counts > 0).any()):
        return None, "A post-hoc shift needs the number of training samples of each class, and all are 0."
    return choose_shift(val, test, counts, groups), ""
