"""The input of a diagnosis: predictions and counts from files or arrays, with classes as indices in one order."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail._checks import as_counts
from longtail._io import reading
from longtail._program import some_of
from longtail.classes import class_counts
from longtail.diagnosis.formats import IGNORED, Array, RawPredictions, Source, are_indices, read_file
from longtail.metrics import ClassStatistics, class_statistics
from longtail.study.runs import Run, read_run
from longtail.train.folder import RunFolder
from longtail.train.measures import PostHoc
from longtail.train.stored import read_statistics

Counts = Path | str | Mapping[str, int] | Sequence[int] | Tensor
"""A JSON file of training samples per class, a run folder, or the numbers in the order of the classes or by name."""
LOG_ZERO = math.log(1e-30)
"""The logarithm that stands for a probability of 0."""


@dataclass(frozen=True, eq=False)
class SplitPredictions:
    """The predictions on one split."""

    source: str
    kind: str
    """``logits``, ``probabilities`` or ``predicted``."""
    labels: Tensor
    """True classes, int64 ``(N,)``."""
    predicted: Tensor
    """Predicted classes, int64 ``(N,)``."""
    logits: Tensor | None
    """float32 or float64 ``(N, C)``: logits, or logarithms of probabilities; ``None`` if only classes were given."""
    ignored: int
    """Samples without a label."""

    @property
    def has_zeros(self) -> bool:
        """Whether a probability is 0, as those of forests often are."""
        return self.kind == "probabilities" and self.logits is not None and bool((self.logits <= LOG_ZERO).any())

    def statistics(self, num_classes: int) -> ClassStatistics:
        """Return the class statistics, with probabilities if there are logits."""
        if self.logits is None:
            return ClassStatistics.from_predictions(self.labels, self.predicted, num_classes)
        return class_statistics(self.logits, self.labels)


@dataclass(frozen=True, eq=False, repr=False)
class DiagnosedRun(Run):
    """The run whose folder contains the test predictions, or was given for the counts."""

    applied: bool | None = None
    """Whether its post-hoc step was applied to the test predictions here; ``None``: unknown."""

    @property
    def file(self) -> Path:
        """The file with its classes, counts and measures."""
        return self.path / "result.json"

    @property
    def names(self) -> tuple[str, ...]:
        """Its classes."""
        return tuple(self.result["classes"])

    @property
    def adjustment(self) -> float:
        """The strength of the run's logit adjustment; 0 if its post-hoc step is another, or if it has none."""
        kind, _, strength = (self.result["posthoc"] or "").partition("=")
        return float(strength) if kind == "adjust" else 0.0

    @property
    def adjusted(self) -> float:
        """The strength of the logit adjustment that the predictions are known to include."""
        return self.adjustment if self.applied else 0.0

    @property
    def measured_beta(self) -> float | None:
        """What ``beta = "auto"`` measured."""
        auto = self.result.get("auto_beta", {"problem": "none"})
        return None if "problem" in auto else auto["beta"]


@dataclass(frozen=True, eq=False)
class Inputs:
    """The input of a diagnosis, checked."""

    splits: Mapping[str, SplitPredictions]
    names: tuple[str, ...] | None
    """Class names; ``None`` if the classes have only indices."""
    notes: list[str]
    """Where the names come from, if no source lists them, and what was not used."""
    counts: Tensor
    """Training samples per class."""
    counts_from: str
    run: DiagnosedRun | None


def read_inputs(sources: Mapping[str, Source], counts: Counts | None) -> Inputs:
    """Read the predictions on each split and the counts, and give all of them the same classes."""
    raw = {split: read_file(source, split) for split, source in sources.items()}
    given, count_names = (None, None) if counts is None else read_counts(counts)
    counts_source = str(counts) if isinstance(counts, Path | str) else "`counts`"
    run, unused = _read_run(raw, count_names, counts)
    if run is None and given is None and "train" not in raw:
        hint = f"; {unused}" if unused else "."
        raise ValueError(
            "Expected `train` or `counts`, to know the training samples per class, but got neither; `counts` is a JSON "
            f'file such as [500, 80, 5] or {{"cat": 500, "fox": 5}}{hint}'
        )
    if run is not None:
        inside = [split for split, one in raw.items() if one.folder == run.path]
        raw |= {split: replace(raw[split], names=run.names) for split in inside}
        stored = {
            split: raw[split] for split in inside if Path(raw[split].source) == RunFolder(run.path).predictions_file
        }
        changed = _after_step(run, stored)
        raw, run = raw | changed, replace(run, applied="test" in changed if "test" in stored else None)
    listed = {} if run is None else {str(run.file): run.names}
    listed |= {one.source: one.names for one in raw.values() if one.names is not None}
    names, note = _class_names(raw.values(), listed, count_names, given is not None)
    if given is not None and count_names is not None and names is not None:
        _check_counts(raw.values(), names, count_names, counts_source)
        by_name = dict(zip(count_names, given, strict=True))
        given = torch.stack([by_name[name] for name in names])

    sizes = {} if given is None else {"the counts": len(given)}
    sizes |= {"the names": len(names)} if names is not None else {}
    sizes |= {one.source: one.values.shape[1] for one in raw.values() if one.has_scores}
    for source, size in sizes.items():
        first, expected = next(iter(sizes.items()))
        if size != expected:
            raise ValueError(
                f"Expected the same number of classes, but got {expected} in {first} and {size} in {source}."
            )
    num_classes, notes = next(iter(sizes.values()), None), [text for text in (note, unused) if text]
    splits = {split: to_predictions(one, names, num_classes) for split, one in raw.items()}
    if num_classes is None:
        num_classes = _count_classes(splits)

    if given is not None:
        return Inputs(splits, names, notes, given, f"from {counts_source}", run)
    if run is not None and "train" not in splits:
        return Inputs(splits, names, notes, as_counts(run.result["counts"]), f"from {run.file}", run)
    found = class_counts(splits["train"].labels, num_classes)
    return Inputs(splits, names, notes, found, "counted in the training predictions", run)


def _count_classes(splits: Mapping[str, SplitPredictions]) -> int:
    """The largest class index plus one; IDs are refused, because memory grows with the largest."""
    seen = np.unique(np.concatenate([values for one in splits.values() for values in (one.labels, one.predicted)]))
    largest, samples = int(seen[-1]), sum(len(one.labels) for one in splits.values())
    if largest >= 1000 + 100 * len(seen) or (len(seen) > 10_000 and 2 * len(seen) >= samples):
        sources = " and ".join(dict.fromkeys(one.source for one in splits.values()))
        raise ValueError(
            f"Expected class indices from 0 on in {sources}, but {samples:,} samples have {len(seen):,} different "
            f"ones, up to {largest}; is a column of IDs read as labels? If all are right, give `counts`."
        )
    return max(2, largest + 1)


def read_counts(source: Counts) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return training samples per class, and class names if the source has them."""
    found: Any = source
    if isinstance(source, Path | str) and Path(source).is_dir():
        result = RunFolder(source).result()
        found = dict(zip(result["classes"], result["counts"], strict=True))
    elif isinstance(source, Path | str):
        path = Path(source)
        if not path.is_file():
            raise FileNotFoundError(f"Expected class counts in {path}, but there is no such file.")
        with reading(path, "JSON"):
            found = json.loads(path.read_text(encoding="utf-8-sig"))
        values = list(found.values()) if isinstance(found, dict) else found
        if not isinstance(values, list) or not values or not all(type(value) is int for value in values):
            raise ValueError(f"Expected {path} to hold whole numbers, as a list or by class name, but it does not.")
    if not isinstance(found, Mapping):
        return as_counts(found), None
    by_name = {str(name): number for name, number in found.items()}
    names = sorted(by_name, key=int) if are_indices(list(by_name)) else list(by_name)
    return as_counts([by_name[name] for name in names]), tuple(names)


def _read_run(
    raw: Mapping[str, RawPredictions], count_names: tuple[str, ...] | None, counts: Counts | None
) -> tuple[DiagnosedRun | None, str]:
    """The run beside the test predictions, or else the one that the counts are from.

    ``None`` and a note if it has other classes.
    """
    test, own = raw["test"], Path(counts) if isinstance(counts, str | Path) else None
    folders = (RunFolder(one) for one in (test.folder, own) if one is not None)
    folder = next((one for one in folders if one.begun and one.done), None)
    if folder is None:
        return None, ""
    run = DiagnosedRun(**vars(read_run(folder.path)))
    fits = all(one.names in {None, run.names} for one in raw.values())
    fits &= count_names is None or sorted(count_names) == sorted(run.names)
    fits &= not test.has_scores or test.values.shape[1] == len(run.names)
    if fits:
        return run, ""
    # counts by name may have another order
    return None, "" if folder.path == own else f"{run.file} was not used: it has other classes."


def _after_step(run: Run, stored: Mapping[str, RawPredictions]) -> dict[str, RawPredictions]:
    """The stored predictions of a run after its post-hoc step; empty without a step or the statistics that it needs."""
    step, file = PostHoc.of(run.result), RunFolder(run.path).statistics_file
    if step is None or not file.exists():
        return {}
    classifier = read_statistics(file)[1]
    after = {split: step.apply(torch.from_numpy(one.values), classifier).numpy() for split, one in stored.items()}
    return {split: replace(one, values=after[split]) for split, one in stored.items()}


def _class_names(
    raw: Collection[RawPredictions],
    listed: Mapping[str, tuple[str, ...]],
    count_names: tuple[str, ...] | None,
    has_counts: bool,
) -> tuple[tuple[str, ...] | None, str]:
    """Class names, or ``None`` if classes have only indices, and a note if no source lists them."""
    for source, other in listed.items():
        first, names = next(iter(listed.items()))
        if other != names:
            raise ValueError(f"Expected the same classes in the same order, but {first} and {source} differ.")
    if listed or count_names is not None:
        return next(iter(listed.values()), count_names), ""
    indexed = [one.source for one in raw if not one.has_names(None)]
    if len(indexed) == len(raw) or has_counts or any(one.has_scores for one in raw):
        return None, ""
    if indexed:
        raise ValueError(f"Expected class names in {indexed[0]}, as in the other files, but got class indices.")
    names = tuple(sorted(set.union(*(one.classes for one in raw))))
    return names, f"The classes are the {len(names):,} names in the files, sorted."


def _check_counts(
    raw: Collection[RawPredictions], names: Sequence[str], count_names: Sequence[str], source: str
) -> None:
    """Raise unless the counts are of the same classes, and their order does not matter or is the same."""
    odd = min(set(names) ^ set(count_names), default=None)
    if odd is not None:
        where = "only" if odd in count_names else "not"
        raise ValueError(f"Expected the same classes in all files, but {odd!r} is {where} in {source}.")
    if len(set(count_names)) < len(names):
        raise ValueError("Expected each class to have its own name, but two classes share one.")
    indexed = [one.source for one in raw if one.names is None and (one.has_scores or not one.has_names(names))]
    if tuple(names) != tuple(count_names) and indexed:
        raise ValueError(
            f"Expected class names in {indexed[0]}, since {source} lists the classes in another order than the other "
            "files, but got class indices."
        )


def to_predictions(
    raw: RawPredictions, names: Sequence[str] | None = None, num_classes: int | None = None
) -> SplitPredictions:
    """Return predictions with classes as indices in the order of ``names``; default: that of the file."""
    source, names, logits = raw.source, names or raw.names, None
    labels = _indices(raw, "labels", raw.labels, names)
    if raw.has_scores:
        logits = _logits(raw)
        predicted, num_classes = logits.argmax(1), logits.shape[1]
    else:
        predicted = _indices(raw, "predicted classes", raw.values, names)
    seen = labels != IGNORED
    if not bool(seen.any()):
        raise ValueError(f"Expected {source} to have samples with a label, but it has none.")
    labels, predicted, logits = labels[seen], predicted[seen], None if logits is None else logits[seen]
    for what, values in (("labels", labels), ("predicted classes", predicted)):
        wrong = (values < 0) | (values >= (num_classes or 1 << 31))
        if bool(wrong.any()):
            allowed = f"in 0…{num_classes - 1}" if num_classes else ">= 0"
            place = int(wrong.nonzero()[0])
            raise ValueError(f"Expected {what} of {source} to be {allowed}, but got {values[place]} in sample {place}.")
    return SplitPredictions(source, raw.kind, labels, predicted, logits, int((~seen).sum()))


def _indices(raw: RawPredictions, what: str, values: Array, names: Sequence[str] | None) -> Tensor:
    """Class indices from whole numbers of any type, or from names."""
    if raw.has_names(names):
        places = {str(IGNORED): IGNORED, **{name: place for place, name in enumerate(names or ())}}
        texts = [str(value) for value in values.tolist()]
        unknown = next((text for text in texts if text not in places), None)
        if unknown is not None:
            wanted = f"among {some_of(names, 5)}" if names else "class indices, or names that columns or --counts list"
            raise ValueError(f"Expected {what} of {raw.source} to be {wanted}, but got {unknown!r}.")
        return torch.tensor([places[text] for text in texts], dtype=torch.int64)
    if values.dtype.kind == "b":
        raise ValueError(f"Expected {what} of {raw.source} to be whole numbers, but got type {values.dtype}.")
    numbers = values.astype(np.float64)
    wrong = values[(numbers != np.floor(numbers)) | (np.abs(numbers) > 2**53)]
    if len(wrong):
        raise ValueError(f"Expected {what} of {raw.source} to be whole numbers, but got {wrong[0]}.")
    return torch.from_numpy(numbers.astype(np.int64))


def _logits(raw: RawPredictions) -> Tensor:
    """Logits, or logarithms of probabilities."""
    subject = f"{raw.kind} of {raw.source}"
    found = torch.from_numpy(raw.values.astype(np.float32 if raw.values.dtype.itemsize <= 4 else np.float64))
    wrong = found.isnan() | (found == torch.inf) | (found == -torch.inf).all(1, keepdim=True)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        raise ValueError(f"Expected {subject} to be finite numbers, but got {found[wrong][0].item()} in sample {row}.")
    if raw.kind == "logits":
        return found
    sums = found.double().sum(1)
    off = ((found < -1e-6) | (found > 1 + 1e-3)).any(1) | ((sums - 1).abs() > 1e-2)
    if bool(off.any()):
        row = int(off.nonzero()[0])
        raise ValueError(
            f"Expected {subject} to be in 0…1 with sum 1, but those of sample {row} sum to {sums[row]:.4g}; give "
            "logits as `logits`."
        )
    return found.double().log().clamp_min(LOG_ZERO)
