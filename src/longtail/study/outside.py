"""Anybody's predictions, from files: npz, safetensors, CSV, TSV or Parquet; logits, probabilities, or labels only."""

import csv
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from longtail._arguments import as_counts
from longtail.data.readers.lists import read_lines
from longtail.data.readers.parquet import read_parquet

__all__ = ["FORMATS_HELP", "Outside", "read_counts", "read_outside"]

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

FORMATS_HELP = """Files of predictions, told by their suffix:

  .npz, .safetensors   `labels` (N,) and one of `logits` (N, C), `probabilities` (N, C) or `predicted` (N,);
                       the predictions.safetensors of a run folder does as it is
  .csv, .tsv, .parquet a row a sample: a column `label`, and columns `logit_NAME` or `probability_NAME`, one a class, in
                       the order of the classes, or one column `predicted`

Labels are class indices 0…C-1, or names where the columns or --counts name the classes. Samples labelled -100 are left
out. Counts are JSON: a list of C whole numbers, or an object from class name to number."""


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
    """Of the classes, where the file has them."""
    left_out: int
    """Samples without a label."""


@dataclass(frozen=True, eq=False)
class _Content:
    labels: "np.ndarray[Any, Any]"
    predicted: "np.ndarray[Any, Any] | None"
    scores: "np.ndarray[Any, Any] | None"
    kind: Kind
    names: tuple[str, ...] | None


def read_outside(path: Path | str, split: str, names: Sequence[str] | None = None) -> Outside:
    """Read the predictions of a split.

    Args:
        path: the file.
        split: ``train``, ``val`` or ``test``: which one, where the file has several, as a run's has.
        names: of the classes, where they are known from elsewhere, for files whose labels are names.
    """
    path = Path(path)
    readers = {".npz": _npz, ".safetensors": _safetensors, ".csv": _text, ".tsv": _text, ".parquet": _parquet}
    if path.suffix not in readers:
        raise ValueError(f"Expected {path} to end in {', '.join(readers)}, but it ends in {path.suffix or 'nothing'}.")
    if not path.is_file():
        raise FileNotFoundError(f"Expected predictions in {path}, but there is no such file.")
    content = readers[path.suffix](path, split)
    known = content.names or (tuple(names) if names is not None else None)
    labels = _indices(path, "labels", content.labels, known)
    if not len(labels):
        raise ValueError(f"Expected {path} to have samples, but it has none.")
    seen = labels != IGNORED
    if not bool(seen.any()):
        raise ValueError(f"Expected {path} to have samples with a label, but all are {IGNORED}.")
    logits = None
    if content.scores is not None:
        logits = _scores(path, content.scores, content.kind, len(labels))[seen]
        num_classes = logits.shape[1]
        if known is not None and len(known) != num_classes:
            raise ValueError(
                f"Expected {path} to have {len(known)} classes, but its {content.kind} have {num_classes}."
            )
        _check_range(path, "labels", labels[seen], num_classes)
        predicted = logits.argmax(1)
    else:
        given = _indices(path, "predicted classes", np.asarray(content.predicted), known)
        if len(given) != len(labels):
            raise ValueError(
                f"Expected {path} to predict a class for each of {len(labels)} labels, but got {len(given)}."
            )
        predicted = given[seen]
        for what, values in (("labels", labels[seen]), ("predicted classes", predicted)):
            _check_range(path, what, values, None if known is None else len(known))
    return Outside(
        source=str(path),
        kind=content.kind,
        labels=labels[seen],
        predicted=predicted,
        logits=logits,
        names=content.names,
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
    values = list(found.values()) if isinstance(found, dict) else found
    if not isinstance(values, list) or not values or not all(type(v) is int for v in values):
        raise ValueError(
            f"Expected {path} to hold a list of whole numbers, or class names with one each, but it does not."
        )
    return as_counts(values), tuple(map(str, found)) if isinstance(found, dict) else None


# What is in a file


def _npz(path: Path, split: str) -> _Content:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return _arrays(path, {name: file[name] for name in file.files}, split)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"Expected {path} to be a whole npz file, but it is damaged: {error}.") from None
    except ValueError as error:
        if "allow_pickle" in str(error) or "pickled" in str(error):
            raise ValueError(
                f"Expected {path} to hold arrays of numbers or text, but it holds Python objects."
            ) from None
        raise


def _safetensors(path: Path, split: str) -> _Content:
    from longtail.train.files import read_tensors  # noqa: PLC0415 - an extra

    tensors, _ = read_tensors(path)
    floats = (torch.bfloat16, torch.float16)
    return _arrays(path, {n: (t.float() if t.dtype in floats else t).numpy() for n, t in tensors.items()}, split)


def _arrays(path: Path, arrays: "Mapping[str, np.ndarray[Any, Any]]", split: str) -> _Content:
    if any(name.startswith(f"{split}.") for name in arrays):
        start = f"{split}."
        arrays = {name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)}
    has = ", ".join(f"`{name}`" for name in arrays) or "nothing"
    labels = next((name for name in LABELS if name in arrays), None)
    if labels is None:
        raise ValueError(f"Expected {path} to have `labels`, but it has {has}.")
    names = tuple(map(str, arrays["classes"].tolist())) if "classes" in arrays else None
    scores = next((name for name in SCORES if name in arrays), None)
    if scores is not None:
        return _Content(arrays[labels], None, arrays[scores], SCORES[scores], names)
    predicted = next((name for name in PREDICTED if name in arrays), None)
    if predicted is None:
        raise ValueError(f"Expected {path} to have `logits`, `probabilities` or `predicted`, but it has {has}.")
    return _Content(arrays[labels], arrays[predicted], None, "labels only", names)


def _text(path: Path, _: str) -> _Content:
    rows = list(csv.reader(read_lines(path), delimiter="\t" if path.suffix == ".tsv" else ","))
    rows = [[cell.removesuffix("\r") for cell in row] for row in rows if row]
    if len(rows) < 2:
        raise ValueError(f"Expected {path} to have a line of names and a line a sample, but it has {len(rows)} lines.")
    wrong = next((place for place, row in enumerate(rows, 1) if len(row) != len(rows[0])), None)
    if wrong is not None:
        raise ValueError(
            f"Expected {len(rows[0])} values in every line of {path}, but line {wrong} has {len(rows[wrong - 1])}."
        )
    columns = zip(*rows[1:], strict=True)
    return _columns(path, {name.strip(): np.array(values) for name, values in zip(rows[0], columns, strict=True)})


def _parquet(path: Path, _: str) -> _Content:
    return _columns(path, {name: np.asarray(values) for name, values in read_parquet(path).items()})


def _columns(path: Path, columns: "Mapping[str, np.ndarray[Any, Any]]") -> _Content:
    labels = next((name for name in LABELS if name in columns), None)
    has = ", ".join(f"`{name}`" for name in list(columns)[:8]) + (", …" if len(columns) > 8 else "")
    if labels is None:
        raise ValueError(f"Expected {path} to have a column `label`, but it has {has}.")
    for start, kind in SCORES.items():
        of_class = [name for name in columns if name.startswith(f"{start}_")]
        if of_class:
            try:
                scores = np.stack([columns[name].astype(np.float64) for name in of_class], 1)
            except ValueError:
                raise ValueError(
                    f"Expected numbers in the columns `{start}_…` of {path}, but got something else."
                ) from None
            names = tuple(name.removeprefix(f"{start}_") for name in of_class)
            return _Content(columns[labels], None, scores, kind, None if _are_places(names) else names)
    predicted = next((name for name in PREDICTED if name in columns), None)
    if predicted is None:
        raise ValueError(
            f"Expected {path} to have columns `logit_…`, `probability_…` or `predicted`, but it has {has}."
        )
    return _Content(columns[labels], columns[predicted], None, "labels only", None)


def _are_places(names: Sequence[str]) -> bool:
    """Whether columns are numbered rather than named."""
    return list(names) == [str(place) for place in range(len(names))]


# What it must be


def _indices(path: Path, what: str, values: "np.ndarray[Any, Any]", names: Sequence[str] | None) -> Tensor:
    """Class indices, from whole numbers in any type, or from names."""
    if values.ndim != 1:
        raise ValueError(f"Expected {what} of {path} to be one a sample, but got shape {values.shape}.")
    if values.dtype.kind in "US" or values.dtype.kind == "O":
        texts = [str(value) for value in values.tolist()]
        places = {str(name): place for place, name in enumerate(names or ())}
        if all(text.lstrip("-").isdecimal() for text in texts) and not all(text in places for text in texts):
            return torch.tensor([int(text) for text in texts], dtype=torch.int64)
        unknown = next((text for text in texts if text not in places), None)
        if unknown is not None:
            wanted = (
                f"among {', '.join(list(places)[:5])}{', …' if len(places) > 5 else ''}"
                if places
                else ("class indices, or named by the columns or --counts")
            )
            raise ValueError(f"Expected {what} of {path} to be {wanted}, but got {unknown!r}.")
        return torch.tensor([places[text] for text in texts], dtype=torch.int64)
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
