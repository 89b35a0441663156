"""Anybody's predictions, from files: npz, safetensors, CSV, TSV or Parquet; logits, probabilities, or labels only."""

import csv
import json
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from longtail._arguments import as_counts
from longtail.classes import Groups
from longtail.data.readers.lists import read_lines
from longtail.data.readers.parquet import read_parquet

__all__ = [
    "FORMATS_HELP",
    "Opened",
    "Outside",
    "Record",
    "open_outside",
    "places_of",
    "read_counts",
    "read_outside",
    "settle",
]

Kind = Literal["logits", "probabilities", "labels only"]

LABELS = ("labels", "label", "targets", "target", "y_true")
PREDICTED = ("predicted", "predictions", "prediction", "preds", "y_pred")
SCORES: dict[str, Kind] = {
    "logits": "logits",
    "logit": "logits",
    "probabilities": "probabilities",
    "probability": "probabilities",
    "probs": "probabilities",
}
IGNORED = -100
WITHOUT = {
    "train": ": those on much training data are not kept; give --counts",
    "val": "; train with --validation 0.1 to have them",
    "test": "",
}
"""What to do about a run's file that lacks a split."""

FORMATS_HELP = """Files of predictions, told by their suffix:

  .npz, .safetensors   `labels` (N,) and one of `logits` (N, C), `probabilities` (N, C) or `predicted` (N,);
                       the predictions.safetensors of a run folder does as it is
  .csv, .tsv, .parquet a row a sample: a column `label`, and columns `logit_NAME` or `probability_NAME`, one a class, in
                       the order of the classes, or one column `predicted`

Labels are class indices 0…C-1, or names. Who names the classes may do so in any order: columns, an array `classes`, an
object as counts, or the result.json of the run in whose folder a file is. Where nothing does, the classes are the names
in --train, sorted. Samples labelled -100 are left out. Counts are JSON: a list of C whole numbers, or an object from
class name to number."""


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


@dataclass(frozen=True)
class Record:
    """What a run says of its classes, to predictions in its folder."""

    path: Path
    names: tuple[str, ...]
    groups: Groups
    counts: tuple[int, ...]
    """Training samples of each class."""
    posthoc: str
    """The run's own step after training, which is not in the logits that it stored; empty where it had none."""

    def ordered(self, names: Sequence[str]) -> "Record":
        """The same with its classes in another order."""
        order = places_of(names, self.names, str(self.path))
        groups = Groups(self.groups.names, tuple(self.groups.index[place] for place in order))
        return replace(self, names=tuple(names), groups=groups, counts=tuple(self.counts[place] for place in order))


@dataclass(frozen=True, eq=False)
class Opened:
    """What is in a file, before its classes are put in order."""

    path: Path
    labels: "np.ndarray[Any, Any]"
    predicted: "np.ndarray[Any, Any] | None"
    scores: "np.ndarray[Any, Any] | None"
    kind: Kind
    names: tuple[str, ...] | None
    """Of the classes, where the file has them."""
    run: Record | None = None
    """That of the run in whose folder the file is."""

    def words(self) -> set[str]:
        """The names among its labels and predictions; empty where they are indices."""
        found = (_words(values, None) for values in (self.labels, self.predicted) if values is not None)
        return {word for words in found for word in words or ()} - {str(IGNORED)}

    def goes_by_place(self, names: Sequence[str] | None) -> bool:
        """Whether it can be read only where the order of the classes is known: it has indices, or unnamed scores."""
        values = (self.labels, self.predicted)
        indexed = any(one is not None and _words(one, names) is None for one in values)
        return indexed or (self.scores is not None and self.names is None)


def read_outside(path: Path | str, split: str, names: Sequence[str] | None = None) -> Outside:
    """Read the predictions of a split; see :func:`open_outside` and :func:`settle`."""
    return settle(open_outside(path, split), names)


def open_outside(path: Path | str, split: str) -> Opened:
    """Read what is in a file.

    Args:
        path: the file.
        split: ``train``, ``val`` or ``test``: which one, where the file has several, as a run's has.
    """
    path = Path(path)
    readers = {".npz": _npz, ".safetensors": _safetensors, ".csv": _text, ".tsv": _text, ".parquet": _parquet}
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise ValueError(f"Expected {path} to end in {', '.join(readers)}, but it ends in {path.suffix or 'nothing'}.")
    if not path.is_file():
        raise FileNotFoundError(f"Expected predictions in {path}, but there is no such file.")
    found = readers[suffix](path, split)
    _check_there(path, "labels", found.labels)
    if found.predicted is not None:
        _check_there(path, "predicted classes", found.predicted)
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
    labels = _indices(path, "labels", opened.labels, known)
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


def places_of(names: Sequence[str], among: Sequence[str], source: str) -> list[int]:
    """Where each of the names is among those of a source, which must be the same, in any order.

    Example:
        >>> places_of(["ant", "bee", "cow"], ["cow", "ant", "bee"], "counts.json")
        [1, 2, 0]
    """
    if tuple(names) == tuple(among):
        return list(range(len(among)))
    odd = min(set(names) ^ set(among), default=None)
    if odd is not None:
        where = "only" if odd in among else "not"
        raise ValueError(f"Expected the same classes everywhere, but {odd!r} is {where} among those of {source}.")
    place = {name: c for c, name in enumerate(among)}
    if not len(place) == len(names) == len(among):
        raise ValueError(f"Expected the classes in one order, or a name for each, but two of {source} share one.")
    return [place[name] for name in names]


def read_counts(path: Path | str) -> tuple[Tensor, tuple[str, ...] | None]:
    """Training samples of each class, and the classes' names where the file has them."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Expected class counts in {path}, but there is no such file.")
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"Expected {path} to be JSON, but it is not: {error}.") from None
    if isinstance(found, dict) and _are_places(found):
        found = {str(place): found[str(place)] for place in range(len(found))}
    values = list(found.values()) if isinstance(found, dict) else found
    if not isinstance(values, list) or not values or not all(type(v) is int for v in values):
        raise ValueError(
            f"Expected {path} to hold a list of whole numbers, or class names with one each, but it does not."
        )
    return as_counts(values), tuple(map(str, found)) if isinstance(found, dict) else None


# What is in a file


def _npz(path: Path, split: str) -> Opened:
    with path.open("rb") as file:
        begins_as_one = file.read(4) == b"PK\x03\x04"
    if not zipfile.is_zipfile(path) and not begins_as_one:
        raise ValueError(f"Expected {path} to be an npz file, but it is none.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"Expected {path} to be a whole npz file, but it is damaged: {error}.") from None
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise ValueError(
                f"Expected {path} to hold arrays of numbers or text, but it holds Python objects."
            ) from None
        raise ValueError(f"Expected {path} to be a whole npz file, but it is damaged: {error}.") from None
    return _arrays(path, {name: value for name, value in arrays.items() if isinstance(value, np.ndarray)}, split)


def _safetensors(path: Path, split: str) -> Opened:
    from longtail.train.files import read_tensors  # noqa: PLC0415 - an extra

    tensors, _ = read_tensors(path)
    floats = (torch.bfloat16, torch.float16)
    return _arrays(path, {n: (t.float() if t.dtype in floats else t).numpy() for n, t in tensors.items()}, split)


def _arrays(path: Path, arrays: "Mapping[str, np.ndarray[Any, Any]]", split: str) -> Opened:
    if any(name.startswith(f"{split}.") for name in arrays):
        start = f"{split}."
        arrays = {name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)}
    elif any(name.startswith(tuple(f"{other}." for other in WITHOUT)) for name in arrays):
        raise ValueError(f"Expected {path} to have predictions on {split}, but it has none{WITHOUT[split]}.")
    has = ", ".join(f"`{name}`" for name in arrays) or "nothing"
    labels = next((name for name in LABELS if name in arrays), None)
    if labels is None:
        raise ValueError(f"Expected {path} to have `labels`, but it has {has}.")
    names = tuple(map(str, arrays["classes"].tolist())) if "classes" in arrays else None
    scores = next((name for name in SCORES if name in arrays), None)
    if scores is not None:
        return Opened(path, arrays[labels], None, arrays[scores], SCORES[scores], names)
    predicted = next((name for name in PREDICTED if name in arrays), None)
    if predicted is None:
        raise ValueError(f"Expected {path} to have `logits`, `probabilities` or `predicted`, but it has {has}.")
    return Opened(path, arrays[labels], arrays[predicted], None, "labels only", names)


def _text(path: Path, _: str) -> Opened:
    rows = list(csv.reader(read_lines(path), delimiter="\t" if path.suffix.lower() == ".tsv" else ","))
    rows = [[cell.removesuffix("\r") for cell in row] for row in rows if row]
    if len(rows) < 2:
        raise ValueError(f"Expected {path} to have a line of names and a line a sample, but it has {len(rows)} lines.")
    wrong = next((place for place, row in enumerate(rows, 1) if len(row) != len(rows[0])), None)
    if wrong is not None:
        raise ValueError(
            f"Expected {len(rows[0])} values in every line of {path}, but line {wrong} has {len(rows[wrong - 1])}."
        )
    header = [name.strip() for name in rows[0]]
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise ValueError(f"Expected {path} to have one column `{twice}`, but it has {header.count(twice)}.")
    columns = zip(*rows[1:], strict=True)
    return _columns(path, {name: np.array(values) for name, values in zip(header, columns, strict=True)})


def _parquet(path: Path, _: str) -> Opened:
    return _columns(path, {name: np.asarray(values) for name, values in read_parquet(path).items()})


def _columns(path: Path, columns: "Mapping[str, np.ndarray[Any, Any]]") -> Opened:
    labels = next((name for name in LABELS if name in columns), None)
    has = ", ".join(f"`{name}`" for name in list(columns)[:8]) + (", …" if len(columns) > 8 else "")
    if labels is None:
        raise ValueError(f"Expected {path} to have a column `label`, but it has {has}.")
    for start, kind in SCORES.items():
        of_class = [name for name in columns if name.startswith(f"{start}_")]
        if of_class:
            numbered = _are_places([name.removeprefix(f"{start}_") for name in of_class])
            if numbered:
                of_class = [f"{start}_{place}" for place in range(len(of_class))]
            try:
                scores = np.stack([columns[name].astype(np.float64) for name in of_class], 1)
            except ValueError:
                raise ValueError(
                    f"Expected numbers in the columns `{start}_…` of {path}, but got something else."
                ) from None
            names = tuple(name.removeprefix(f"{start}_") for name in of_class)
            return Opened(path, columns[labels], None, scores, kind, None if numbered else names)
    predicted = next((name for name in PREDICTED if name in columns), None)
    if predicted is None:
        raise ValueError(
            f"Expected {path} to have columns `logit_…`, `probability_…` or `predicted`, but it has {has}."
        )
    return Opened(path, columns[labels], columns[predicted], None, "labels only", None)


def _are_places(names: Collection[str]) -> bool:
    """Whether classes are numbered rather than named, in whatever order."""
    return set(names) == {str(place) for place in range(len(names))}


def _record(path: Path) -> Record | None:
    """What a run says of its classes; ``None`` where there is no such file, or one of another kind."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        names, groups = tuple(map(str, found["classes"])), Groups.from_indices(**found["groups"])
        counts = tuple(as_counts(found["counts"], len(names)).tolist())
        posthoc = str(found.get("posthoc") or "")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return Record(path, names, groups, counts, posthoc) if groups.num_classes == len(names) else None


def _fits(opened: Opened, names: tuple[str, ...]) -> bool:
    """Whether a file's classes can be those of the run in whose folder it is."""
    if opened.names is not None:
        return sorted(opened.names) == sorted(names)
    if opened.scores is not None and opened.scores.shape[1:] != (len(names),):
        return False
    try:
        labels = _indices(opened.path, "labels", opened.labels, names)
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
    given = _indices(path, "predicted classes", np.asarray(opened.predicted), names)
    if len(given) != len(labels):
        raise ValueError(f"Expected {path} to predict a class for each of {len(labels)} labels, but got {len(given)}.")
    seen = labels != IGNORED
    for what, values in (("labels", labels[seen]), ("predicted classes", given[seen])):
        _check_range(path, what, values, None if names is None else len(names))
    return given


def _check_there(path: Path, what: str, values: "np.ndarray[Any, Any]") -> None:
    """Refuse an empty cell, which would seem a class of that name."""
    if values.dtype.kind in "UO":
        missing = next((place for place, value in enumerate(values.tolist()) if value is None or value == ""), None)
        if missing is not None:
            raise ValueError(f"Expected {what} of {path} to be one a sample, but sample {missing} has none.")


def _words(values: "np.ndarray[Any, Any]", names: Sequence[str] | None) -> list[str] | None:
    """Classes as text, where they are names, which numbers may be; ``None`` where they are indices."""
    numbers = values.dtype.kind in "iu" and names is not None and all(name.isdecimal() for name in names)
    if values.dtype.kind not in "USO" and not numbers:
        return None
    decoded = np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values
    texts = [str(value) for value in decoded.tolist()]
    known = {*(names or ()), str(IGNORED)}
    if all(text.lstrip("-").isdecimal() for text in texts) and not known.issuperset(texts):
        return None
    return texts


def _indices(path: Path, what: str, values: "np.ndarray[Any, Any]", names: Sequence[str] | None) -> Tensor:
    """Class indices, from whole numbers in any type, or from names."""
    if values.ndim != 1:
        raise ValueError(f"Expected {what} of {path} to be one a sample, but got shape {values.shape}.")
    texts = _words(values, names)
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
