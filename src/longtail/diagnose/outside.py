"""Anybody's predictions: what is in their files, checked, with classes as numbers in one order."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail._checks import as_counts
from longtail.classes import Groups
from longtail.diagnose.outside_files import IGNORED, Kind, Opened, Record, are_places, places_of, read_file, words_of

__all__ = ["Outside", "open_outside", "read_counts", "read_outside", "settle"]


@dataclass(frozen=True, eq=False)
class Outside:
    """Predictions of one split."""

    source: str
    kind: Kind
    labels: Tensor
    """True classes, int64 ``(N,)``."""
    predicted: Tensor
    """Predicted classes, int64 ``(N,)``."""
    logits: Tensor | None
    """float32 or float64 ``(N, C)``: logits, or logarithms of probabilities; ``None`` where only labels are known."""
    names: tuple[str, ...] | None
    """Of the classes, where they are known."""
    left_out: int
    """Samples without a label."""


def read_outside(path: Path | str, split: str, names: Sequence[str] | None = None) -> Outside:
    """Read the predictions of a split; see :func:`open_outside` and :func:`settle`."""
    return settle(open_outside(path, split), names)


def open_outside(path: Path | str, split: str) -> Opened:
    """:func:`read_file <longtail.diagnose.outside_files.read_file>`, with what a run says of its
    classes in whose folder
    the file is.
    """
    path = Path(path)
    found = read_file(path, split)
    run = _record(path.parent / "result.json")
    return replace(found, run=run) if run is not None and _fits(found, run.names) else found


def settle(opened: Opened, names: Sequence[str] | None = None) -> Outside:
    """Predictions with their classes as numbers.

    Args:
        opened: what is in the file.
        names: of the classes, in the order in which they are numbered (default: as the file has them).
    """
    path = opened.path
    known = opened.names or (tuple(names) if names is not None else None)
    labels = _indices(opened, "labels", opened.labels, known)
    if not len(labels):
        raise ValueError(f"Expected {path} to have samples, but it has none.")
    seen = labels != IGNORED
    if not bool(seen.any()):
        raise ValueError(f"Expected {path} to have samples with a label, but all are {IGNORED}.")
    logits = None
    if opened.scores is not None:
        logits = _scores(path, opened.scores, opened.kind, len(labels))[seen]
        num_classes = logits.shape[1]
        if known is not None and len(known) != num_classes:
            raise ValueError(f"Expected {path} to have {len(known)} classes, but its {opened.kind} have {num_classes}.")
        _check_range(path, "labels", labels[seen], num_classes)
    predicted = _predicted(opened, labels, known)[seen] if logits is None else logits.argmax(1)
    labels = labels[seen]
    if opened.names is not None and names is not None and opened.names != tuple(names):
        order = torch.tensor(places_of(names, opened.names, str(path)))
        labels, predicted = order.argsort()[labels], order.argsort()[predicted]
        logits = None if logits is None else logits[:, order]
        known = tuple(names)
    return Outside(
        source=str(path),
        kind=opened.kind,
        labels=labels,
        predicted=predicted,
        logits=logits,
        names=known,
        left_out=int((~seen).sum()),
    )


def read_counts(path: Path | str) -> tuple[Tensor, tuple[str, ...] | None]:
    """Training samples of each class, and the classes' names where the file has them."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Expected class counts in {path}, but there is no such file.")
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"Expected {path} to be JSON, but it is not: {error}.") from None
    if isinstance(found, dict) and are_places(found):
        found = {str(place): found[str(place)] for place in range(len(found))}
    values = list(found.values()) if isinstance(found, dict) else found
    if not isinstance(values, list) or not values or not all(type(v) is int for v in values):
        raise ValueError(
            f"Expected {path} to hold a list of whole numbers, or class names with one each, but it does not."
        )
    return as_counts(values), tuple(map(str, found)) if isinstance(found, dict) else None


def _record(path: Path) -> Record | None:
    """What a run says of its classes; ``None`` where there is no such file, or one of another kind."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        names, groups = tuple(map(str, found["classes"])), Groups.from_indices(**found["groups"])
        counts = tuple(as_counts(found["counts"], len(names)).tolist())
        said = {name: str(found.get(name) or "") for name in ("posthoc", "method")}
        params = dict(found.get("params") or {})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return Record(path, names, groups, counts, **said, params=params) if groups.num_classes == len(names) else None


def _fits(opened: Opened, names: tuple[str, ...]) -> bool:
    """Whether a file's classes can be those of the run in whose folder it is."""
    if opened.names is not None:
        return sorted(opened.names) == sorted(names)
    if opened.scores is not None and opened.scores.shape[1:] != (len(names),):
        return False
    try:
        labels = _indices(opened, "labels", opened.labels, names)
        _check_range(opened.path, "labels", labels[labels != IGNORED], len(names))
        if opened.predicted is not None:
            _predicted(opened, labels, names)
    except ValueError:
        return False
    return True


# What it must be


def _predicted(opened: Opened, labels: Tensor, names: Sequence[str] | None) -> Tensor:
    """Predicted classes of a file that has no scores."""
    path = opened.path
    given = _indices(opened, "predicted classes", np.asarray(opened.predicted), names)
    if len(given) != len(labels):
        raise ValueError(f"Expected {path} to predict a class for each of {len(labels)} labels, but got {len(given)}.")
    seen = labels != IGNORED
    for what, values in (("labels", labels[seen]), ("predicted classes", given[seen])):
        _check_range(path, what, values, None if names is None else len(names))
    return given


def _indices(opened: Opened, what: str, values: "np.ndarray[Any, Any]", names: Sequence[str] | None) -> Tensor:
    """Class indices, from whole numbers in any type, or from names."""
    path = opened.path
    if values.ndim != 1:
        raise ValueError(f"Expected {what} of {path} to be one a sample, but got shape {values.shape}.")
    texts = words_of(values, names, opened.classes)
    if texts is not None:
        places = {str(IGNORED): IGNORED, **{str(name): place for place, name in enumerate(names or ())}}
        unknown = next((text for text in texts if text not in places), None)
        if unknown is not None:
            wanted = (
                f"among {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
                if names
                else "class indices, or named by the columns or --counts"
            )
            raise ValueError(f"Expected {what} of {path} to be {wanted}, but got {unknown!r}.")
        return torch.tensor([places[text] for text in texts], dtype=torch.int64)
    if values.dtype.kind in "USO":
        return torch.tensor([int(value) for value in values.tolist()], dtype=torch.int64)
    if values.dtype.kind == "f" and not bool((np.isfinite(values) & (values == np.floor(values))).all()):
        wrong = values[~(np.isfinite(values) & (values == np.floor(values)))][0]
        raise ValueError(f"Expected {what} of {path} to be whole numbers, but got {wrong}.")
    if values.dtype.kind not in "iuf":
        raise ValueError(f"Expected {what} of {path} to be whole numbers, but got type {values.dtype}.")
    return torch.from_numpy(values.astype(np.int64))


def _check_range(path: Path, what: str, values: Tensor, num_classes: int | None) -> None:
    end = num_classes if num_classes is not None else 1 << 31
    outside = (values < 0) | (values >= end)
    if bool(outside.any()):
        shown = f"in 0…{num_classes - 1}" if num_classes is not None else ">= 0"
        place = int(outside.nonzero()[0])
        raise ValueError(f"Expected {what} of {path} to be {shown}, but got {int(values[place])} in sample {place}.")


def _scores(path: Path, scores: "np.ndarray[Any, Any]", kind: Kind, samples: int) -> Tensor:
    """Logits, or logarithms of probabilities."""
    if scores.ndim != 2 or scores.dtype.kind not in "iuf":
        raise ValueError(
            f"Expected {kind} of {path} to be numbers of shape (N, C), but got {scores.dtype} of {scores.shape}."
        )
    if scores.shape[0] != samples or scores.shape[1] < 2:
        raise ValueError(
            f"Expected {kind} of {path} to have a row for each of {samples} labels and two classes or more, "
            f"but got shape {scores.shape}."
        )
    found = torch.from_numpy(scores.astype(np.float32 if scores.dtype.itemsize <= 4 else np.float64))
    wrong = found.isnan() | (found == torch.inf)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        raise ValueError(
            f"Expected {kind} of {path} to be finite numbers, but got {found[wrong][0].item()} in sample {row}."
        )
    if bool((found == -torch.inf).all(1).any()):
        raise ValueError(f"Expected {kind} of {path} to be finite for a class of each sample, but one has none.")
    if kind == "logits":
        return found
    off = ((found < -1e-6) | (found > 1 + 1e-3)).any(1) | ((found.double().sum(1) - 1).abs() > 1e-2)
    if bool(off.any()):
        row = int(off.nonzero()[0])
        total = float(found[row].double().sum())
        raise ValueError(
            f"Expected probabilities of {path} to be in 0…1 and to sum to 1, but those of sample {row} sum "
            f"to {total:.4g}; give logits as `logits`."
        )
    return found.double().clamp_min(1e-30).log()
