"""A report from anybody's predictions: who is under-served, by how much, why, and what to try next."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from longtail._checks import as_counts
from longtail.classes import Groups, class_counts
from longtail.diagnose.advice import Shift, choose_shift
from longtail.diagnose.outside import Outside, open_outside, read_counts, settle
from longtail.diagnose.outside_files import Opened, Record, places_of
from longtail.metrics import (
    ClassStatistics,
    Preference,
    Recall,
    class_statistics,
    expected_calibration_error,
    preference_scores,
    recall,
)

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
    run: Record | None
    """That of the run in whose folder the predictions are."""
    notes: tuple[str, ...]
    """What was not given, and where it was taken from."""

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

    @property
    def compares(self) -> bool:
        """Whether there are two groups to compare."""
        return self.commonest != self.rarest

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
        test: predictions on test data; see ``FORMATS_HELP`` of :mod:`longtail.diagnose.outside`.
        train: predictions on training data, for the generalisation gap and the imbalance level.
        val: predictions on validation data, to choose a post-hoc shift on.
        counts: training samples of each class (default: counted in ``train``).
        head_over: classes with more training samples are head (default: 100).
        tail_under: classes with fewer are tail (default: 20).

    A file in a run's folder has the run's class names, its groups unless others are asked for, and its counts where
    neither ``train`` nor ``counts`` is given.
    """
    given, counted = (None, None) if counts is None else read_counts(counts)
    paths = {name: path for name, path in (("train", train), ("val", val), ("test", test)) if path is not None}
    opened = _with_runs({name: open_outside(path, name) for name, path in paths.items()}, counted)
    run = next((opened[name].run for name in ("test", "train", "val") if name in opened and opened[name].run), None)
    if counts is None and train is None and run is None:
        raise ValueError(
            "Expected `train` or `counts`, to know how many training samples each class has, but got neither."
        )
    named = {str(one.path): one.names for one in opened.values() if one.names is not None}
    if counted is not None:
        named[str(counts)] = counted
    names = _class_names(opened, named, listed=str(counts) if given is not None and counted is None else None)
    splits = {name: settle(one, names) for name, one in opened.items()}
    _check_apart(splits)
    _check_files(paths, splits)
    num_classes = _num_classes(splits, given, names)
    if run is not None and names is not None:
        run = run.ordered(names)
    if given is not None:
        number, source = as_counts(given, num_classes), f"from {counts}"
        if counted is not None and names is not None:
            number = number[places_of(names, counted, str(counts))]
    elif run is not None and "train" not in splits:
        number, source = torch.tensor(run.counts), f"from {run.path}"
    else:
        number, source = class_counts(splits["train"].labels, num_classes), "counted in the training predictions"
    asked = head_over is not None or tail_under is not None
    if run is not None and not asked:
        groups, cut = run.groups, f"those of the run, from {run.path}"
    else:
        groups, cut = _groups(number, head_over, tail_under)
    notes = () if run is None else _notes(run, "names" if asked else "names and groups")
    if names is not None and not named:
        notes = (f"The classes are the {len(names):,} names in {train}, sorted: nothing else names them.",)
    shift, why_not = _shift(splits, number, groups)
    shown = names or tuple(f"class {c}" for c in range(num_classes))
    return Diagnosis(splits, shown, number, source, groups, cut, shift, why_not, run, notes)


def _with_runs(opened: Mapping[str, Opened], counted: tuple[str, ...] | None) -> dict[str, Opened]:
    """Files in a run's folder with its class names, unless other names are given."""
    given = [counted, *(one.names for one in opened.values())]
    found = {}
    for split, one in opened.items():
        run = one.run
        if run is not None and any(sorted(names) != sorted(run.names) for names in given if names is not None):
            run = None
        found[split] = replace(one, run=run, names=one.names or (None if run is None else run.names))
    return found


def _class_names(
    opened: Mapping[str, Opened], named: Mapping[str, tuple[str, ...]], listed: str | None
) -> tuple[str, ...] | None:
    """The classes in the order in which they are numbered, which most sources have; ``None`` where they have no names.

    Args:
        opened: the files.
        named: the classes as each source that names them has them.
        listed: counts that have no names.
    """
    if not named:
        return _names_in_train(opened, listed)
    names = Counter(named.values()).most_common(1)[0][0]
    first = next(source for source, other in named.items() if other == names)
    for source, other in named.items():
        places_of(names, other, source)  # raises where they are not the same
    differing = next((source for source, other in named.items() if other != names), None)
    if differing is not None:
        by_place = (str(one.path) for one in opened.values() if one.names != names and one.goes_by_place(names))
        numbered = next(by_place, listed)
        if numbered is not None:
            raise ValueError(
                f"Expected classes by name in {numbered}, since {first} and {differing} have them in different orders, "
                "but it has them by number."
            )
    return names


def _names_in_train(opened: Mapping[str, Opened], listed: str | None) -> tuple[str, ...] | None:
    """The classes that labels and predictions of training data name, where nothing goes by their order."""
    words = opened["train"].words() if "train" in opened else set()
    if not words or listed is not None or any(one.scores is not None for one in opened.values()):
        return None
    if len(words) < 2:
        raise ValueError(f"Expected two classes or more in {opened['train'].path}, but it names only {min(words)!r}.")
    for one in opened.values():
        if one.goes_by_place(None):
            raise ValueError(
                f"Expected classes by name in {one.path}, since nothing says how they are numbered, but it has them by "
                "number."
            )
        unknown = min(one.words() - words, default=None)
        if unknown is not None:
            raise ValueError(
                f"Expected classes of {one.path} to be among those of {opened['train'].path}, but got {unknown!r}; "
                "counts that name every class would tell."
            )
    return tuple(sorted(words))


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


def _num_classes(splits: Mapping[str, Outside], counts: Tensor | None, names: tuple[str, ...] | None) -> int:
    """How many classes there are; all that say it must agree."""
    said: dict[str, int] = {}
    if counts is not None:
        said["the counts"] = len(counts)
    elif names is not None:
        said["the names"] = len(names)
    for one in splits.values():
        if one.logits is not None:
            said[one.source] = one.logits.shape[1]
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
    """By count; thirds of the classes where that would put all into one group and nothing was asked for."""
    head, tail = 100 if head_over is None else head_over, 20 if tail_under is None else tail_under
    found = Groups.from_counts(counts, head, tail)
    filled = [name for name, size in found.sizes.items() if size]
    asked = head_over is not None or tail_under is not None
    even = int(counts.min()) == int(counts.max())
    if asked or len(filled) > 1 or len(counts) < 3 or even:
        return found, f"head: more than {head:g} training samples, tail: fewer than {tail:g}, medium: between"
    order = sorted(range(len(counts)), key=lambda c: (-int(counts[c]), c))
    third = len(order) // 3
    cut = {"head": order[:third], "medium": order[third : 2 * third], "tail": order[2 * third :]}
    words = f"thirds of the classes by frequency, since by number (100 and 20) all would be {filled[0]}"
    return Groups.from_indices(**{name: sorted(members) for name, members in cut.items()}), words


def _shift(splits: Mapping[str, Outside], counts: Tensor, groups: Groups) -> tuple[Shift | None, str]:
    val, test = splits.get("val"), splits["test"]
    bare = [one.source for one in (val, test) if one is not None and one.logits is None]
    if bare:
        return None, (
            "A post-hoc shift needs logits or probabilities on validation and test data; "
            f"{' and '.join(bare)} {'has' if len(bare) == 1 else 'have'} predicted labels only."
        )
    if val is None:
        return None, (
            "No validation data was given, so no post-hoc shift was chosen: chosen on test data it would flatter "
            "itself. Give --val predictions on data that was neither trained nor tested on."
        )
    if not bool((counts > 0).any()):
        return None, "A post-hoc shift needs the number of training samples of each class, and all are 0."
    return choose_shift(val, test, counts, groups), ""


def _notes(run: Record, taken: str) -> tuple[str, ...]:
    """What was taken from a run, and what of it was not."""
    notes = [f"Class {taken} are those of the run, from {run.path}."]
    if run.posthoc:
        notes.append(f"The run’s own step after training, {run.posthoc}, is not in the logits that it stored.")
    return tuple(notes)
