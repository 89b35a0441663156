"""What files of predictions hold: npz, safetensors, CSV, TSV or Parquet; logits, probabilities, or labels only."""

import csv
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from longtail.classes import Groups
from longtail.data.datasets.readers.files import read_lines, read_parquet

__all__ = ["FORMATS_HELP", "IGNORED", "Kind", "Opened", "Record", "are_places", "places_of", "read_file", "words_of"]

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
"""The label of samples that are left out."""
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
    method: str
    """What it was trained by; empty where it does not say."""
    params: Mapping[str, Any]
    """The method's settings."""

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

    @property
    def classes(self) -> "list[np.ndarray[Any, Any]]":
        """Labels, and predictions where it has them: by index both, or by name both."""
        return [values for values in (self.labels, self.predicted) if values is not None]

    def words(self) -> set[str]:
        """The names among its labels and predictions; empty where they are indices."""
        found = (words_of(values, None, self.classes) for values in self.classes)
        return {word for words in found for word in words or ()} - {str(IGNORED)}

    def goes_by_place(self, names: Sequence[str] | None) -> bool:
        """Whether it can be read only where the order of the classes is known: it has indices, or unnamed scores."""
        indexed = any(words_of(one, names, self.classes) is None for one in self.classes)
        return indexed or (self.scores is not None and self.names is None)


def read_file(path: Path, split: str) -> Opened:
    """Read what is in a file.

    Args:
        path: the file.
        split: ``train``, ``val`` or ``test``: which one, where the file has several, as a run's has.
    """
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
    return found


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


def words_of(
    values: "np.ndarray[Any, Any]", names: Sequence[str] | None, together: "Sequence[np.ndarray[Any, Any]]"
) -> list[str] | None:
    """Classes as text, where they are names, which numbers may be; ``None`` where they are indices.

    Numbers are names only where all numbers of ``together`` are: in one file they mean the same.
    """
    numbers = values.dtype.kind in "iu" and names is not None and all(name.isdecimal() for name in names)
    if values.dtype.kind not in "USO" and not numbers:
        return None
    texts, known = _texts(values), {*(names or ()), str(IGNORED)}
    every = {text for one in together for text in _texts(one) if text.lstrip("-").isdecimal()}
    if all(text.lstrip("-").isdecimal() for text in texts) and not known.issuperset(every):
        return None
    return texts


def _texts(values: "np.ndarray[Any, Any]") -> list[str]:
    decoded = np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values
    return [str(value) for value in decoded.tolist()]


def are_places(names: Collection[str]) -> bool:
    """Whether classes are numbered rather than named, in whatever order."""
    return set(names) == {str(place) for place in range(len(names))}


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
    from longtail._io import read_tensors  # noqa: PLC0415 - an extra

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
    def chosen(names: list[str]) -> list[str]:
        """Those that are read here; all where none is, to be told."""
        starts = tuple(f"{start}_" for start in SCORES)
        return [name for name in names if name in (*LABELS, *PREDICTED) or name.startswith(starts)] or names

    return _columns(path, {name: np.asarray(values) for name, values in read_parquet(path, chosen).items()})


def _columns(path: Path, columns: "Mapping[str, np.ndarray[Any, Any]]") -> Opened:
    labels = next((name for name in LABELS if name in columns), None)
    has = ", ".join(f"`{name}`" for name in list(columns)[:8]) + (", …" if len(columns) > 8 else "")
    if labels is None:
        raise ValueError(f"Expected {path} to have a column `label`, but it has {has}.")
    for start, kind in SCORES.items():
        of_class = [name for name in columns if name.startswith(f"{start}_")]
        if of_class:
            numbered = are_places([name.removeprefix(f"{start}_") for name in of_class])
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


def _check_there(path: Path, what: str, values: "np.ndarray[Any, Any]") -> None:
    """Refuse an empty cell, which would seem a class of that name."""
    if values.dtype.kind in "UO":
        missing = next((place for place, value in enumerate(values.tolist()) if value is None or value == ""), None)
        if missing is not None:
            raise ValueError(f"Expected {what} of {path} to be one a sample, but sample {missing} has none.")
