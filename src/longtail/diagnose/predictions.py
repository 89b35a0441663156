"""Predictions with classes as indices in one order, checked."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail._checks import as_counts
from longtail.classes import Groups
from longtail.diagnose.files import IGNORED, Array, Kind, RunRecord, Source, Stored, are_indices, class_order, read_file


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of one split."""

    source: str
    kind: Kind
    labels: Tensor
    """True classes, int64 ``(N,)``."""
    predicted: Tensor
    """Predicted classes, int64 ``(N,)``."""
    logits: Tensor | None
    """float32 or float64 ``(N, C)``: logits, or logarithms of probabilities; ``None`` for labels only."""
    names: tuple[str, ...] | None
    """Class names, if they are known."""
    ignored: int
    """Samples without a label."""


def open_predictions(source: Source, split: str) -> Stored:
    """Read the predictions of a split, with the record of the run whose folder contains the file."""
    found = read_file(source, split)
    if isinstance(source, Mapping):
        return found
    run = _read_record(Path(source).parent / "result.json")
    if run is None or (found.scores is not None and found.scores.shape[1:] != (len(run.names),)):
        return found
    return found if sorted(found.names or run.names) != sorted(run.names) else replace(found, run=run)


def to_predictions(stored: Stored, names: Sequence[str] | None = None) -> Predictions:
    """Return predictions with classes as indices.

    ``names`` gives the order of the classes; default: that of the file.
    """
    source, own = stored.source, stored.names or (None if names is None else tuple(names))
    labels = _indices(stored, "labels", stored.labels, own)
    seen = labels != IGNORED
    if not bool(seen.any()):
        raise ValueError(f"Expected {source} to have samples with a label, but it has none.")
    logits, num_classes = None, None if own is None else len(own)
    if stored.scores is None:
        predicted = _indices(stored, "predicted classes", np.asarray(stored.predicted), own)
        if len(predicted) != len(labels):
            raise ValueError(f"Expected {source} to have {len(labels)} predicted classes, but got {len(predicted)}.")
        predicted = predicted[seen]
    else:
        logits = _logits(source, stored.scores, stored.kind, len(labels))[seen]
        if num_classes not in {None, logits.shape[1]}:
            raise ValueError(
                f"Expected {source} to have {num_classes} classes, but its {stored.kind} have {logits.shape[1]}."
            )
        predicted, num_classes = logits.argmax(1), logits.shape[1]
    labels = labels[seen]
    for what, values in (("labels", labels), ("predicted classes", predicted)):
        _check_range(source, what, values, num_classes)
    if own is not None and names is not None and own != tuple(names):
        order = torch.tensor(class_order(names, own, source))
        labels, predicted = order.argsort()[labels], order.argsort()[predicted]
        logits, own = None if logits is None else logits[:, order], tuple(names)
    return Predictions(source, stored.kind, labels, predicted, logits, own, int((~seen).sum()))


def read_counts(source: Path | str | Mapping[str, int] | Sequence[int]) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return training samples per class, and class names if the source has them: JSON, a mapping or a sequence."""
    found: Any = source
    where = "`counts`"
    if isinstance(source, Path | str):
        path, where = Path(source), str(source)
        if not path.is_file():
            raise FileNotFoundError(f"Expected class counts in {path}, but there is no such file.")
        try:
            found = json.loads(path.read_text(encoding="utf-8-sig"))
        except ValueError as error:
            raise ValueError(f"Expected {path} to be JSON, but it is not: {error}.") from None
    if isinstance(found, Mapping) and are_indices(list(map(str, found))):
        by_index = {str(name): number for name, number in found.items()}
        found = {str(place): by_index[str(place)] for place in range(len(by_index))}
    values = list(found.values()) if isinstance(found, Mapping) else found
    if isinstance(source, Path | str) and (
        not isinstance(values, list) or not values or not all(type(value) is int for value in values)
    ):
        raise ValueError(f"Expected {where} to hold whole numbers, as a list or by class name, but it does not.")
    return as_counts(values), tuple(map(str, found)) if isinstance(found, Mapping) else None


def class_names(
    stored: Mapping[str, Stored], listed: Mapping[str, tuple[str, ...]], unnamed_counts: str | None
) -> tuple[str, ...] | None:
    """Return class names in the order of the first source that lists them; ``None`` if classes have no names.

    If no source lists them, they are all names in the files, sorted.

    ``listed`` has the names in each source that lists them; counts without names need a known order.
    """
    if not listed:
        indexed = [one.source for one in stored.values() if not one.has_names(None)]
        if len(indexed) == len(stored) or unnamed_counts or any(one.scores is not None for one in stored.values()):
            return None
        if indexed:
            raise ValueError(f"Expected class names in {indexed[0]}, as in the other files, but got class indices.")
        return tuple(sorted(set.union(*(one.classes for one in stored.values()))))
    (first, names), *others = listed.items()
    for source, other in others:
        class_order(names, other, source)  # raises if they are not the same
    differing = next((source for source, other in others if other != names), None)
    if differing is not None:
        indexed = [
            one.source
            for one in stored.values()
            if one.names != names and (not one.has_names(names) or (one.scores is not None and one.names is None))
        ]
        if indexed or unnamed_counts:
            raise ValueError(
                f"Expected class names in {[*indexed, unnamed_counts][0]}, since {first} and {differing} list the "
                "classes in different orders, but got class indices."
            )
    return names


def _read_record(path: Path) -> RunRecord | None:
    """The record of a run; ``None`` if the file is missing or is something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        names, groups = tuple(map(str, found["classes"])), Groups.from_indices(**found["groups"])
        counts = tuple(as_counts(found["counts"], len(names)).tolist())
        posthoc, method = (str(found.get(name) or "") for name in ("posthoc", "method"))
        params = dict(found.get("params") or {})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return RunRecord(path, names, groups, counts, posthoc, method, params) if groups.num_classes == len(names) else None


def _indices(stored: Stored, what: str, values: Array, names: Sequence[str] | None) -> Tensor:
    """Class indices from whole numbers of any type, or from names."""
    subject = f"{what} of {stored.source}"
    if values.ndim != 1:
        raise ValueError(f"Expected {subject} to have one dimension, but got shape {values.shape}.")
    if stored.has_names(names):
        places = {str(IGNORED): IGNORED, **{name: place for place, name in enumerate(names or ())}}
        texts = [str(value) for value in values.tolist()]
        unknown = next((text for text in texts if text not in places), None)
        if unknown is not None:
            some = ", ".join((names or ())[:5]) + (", …" if len(names or ()) > 5 else "")
            wanted = f"among {some}" if names else "class indices, or names that the columns or --counts list"
            raise ValueError(f"Expected {subject} to be {wanted}, but got {unknown!r}.")
        return torch.tensor([places[text] for text in texts], dtype=torch.int64)
    if values.dtype.kind in "UO":
        return torch.tensor([int(value) for value in values.tolist()], dtype=torch.int64)
    if values.dtype.kind not in "iuf":
        raise ValueError(f"Expected {subject} to be whole numbers, but got type {values.dtype}.")
    wrong = values[values != np.floor(values)]
    if len(wrong):
        raise ValueError(f"Expected {subject} to be whole numbers, but got {wrong[0]}.")
    return torch.from_numpy(values.astype(np.int64))


def _check_range(source: str, what: str, values: Tensor, num_classes: int | None) -> None:
    wrong = (values < 0) | (values >= (num_classes if num_classes is not None else 1 << 31))
    if bool(wrong.any()):
        allowed = f"in 0…{num_classes - 1}" if num_classes is not None else ">= 0"
        place = int(wrong.nonzero()[0])
        raise ValueError(
            f"Expected {what} of {source} to be {allowed}, but got {int(values[place])} in sample {place}."
        )


def _logits(source: str, scores: Array, kind: Kind, samples: int) -> Tensor:
    """Logits, or logarithms of probabilities."""
    subject = f"{kind} of {source}"
    if scores.ndim != 2 or scores.dtype.kind not in "iuf":
        raise ValueError(f"Expected {subject} to be numbers of shape (N, C), but got {scores.dtype} {scores.shape}.")
    if scores.shape[0] != samples or scores.shape[1] < 2:
        raise ValueError(
            f"Expected {subject} to have {samples} rows, one per label, and at least two classes, but got shape "
            f"{scores.shape}."
        )
    found = torch.from_numpy(scores.astype(np.float32 if scores.dtype.itemsize <= 4 else np.float64))
    wrong = found.isnan() | (found == torch.inf)
    wrong |= (found == -torch.inf).all(1, keepdim=True)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        raise ValueError(f"Expected {subject} to be finite numbers, but got {found[wrong][0].item()} in sample {row}.")
    if kind == "logits":
        return found
    off = ((found < -1e-6) | (found > 1 + 1e-3)).any(1) | ((found.double().sum(1) - 1).abs() > 1e-2)
    if bool(off.any()):
        row = int(off.nonzero()[0])
        total = float(found[row].double().sum())
        raise ValueError(
            f"Expected {subject} to be in 0…1 with sum 1, but those of sample {row} sum to {total:.4g}; give logits as "
            "`logits`."
        )
    return found.double().clamp_min(1e-30).log()
