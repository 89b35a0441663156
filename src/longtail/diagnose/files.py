"""Predictions as they are stored: in npz, safetensors, CSV, TSV or Parquet files, or in arrays."""

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

__all__ = [
    "FORMATS_HELP",
    "IGNORED",
    "Kind",
    "RunRecord",
    "Source",
    "Stored",
    "are_indices",
    "class_order",
    "read_file",
]

Kind = Literal["logits", "probabilities", "labels only"]
Array = np.ndarray[Any, Any]
Source = Path | str | Mapping[str, Any]
"""A file of predictions, or arrays by name."""

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
"""The label of samples that are ignored."""
_MISSING_SPLIT = {
    "train": ": it keeps no predictions on large training sets; give --counts",
    "val": "; train with --validation 0.1 to have them",
    "test": "",
}

FORMATS_HELP = """The suffix of a file says its format:

  .npz, .safetensors   `labels` (N,) and one of `logits` (N, C), `probabilities` (N, C) or `predicted` (N,);
                       also the predictions.safetensors of a run folder
  .csv, .tsv, .parquet one row per sample: a column `label`, and one column per class called `logit_NAME` or
                       `probability_NAME`, or a single column `predicted`

Labels are class indices 0…C-1 or class names. Names come from the columns, an array `classes`, the keys of --counts, or
the result.json of the run folder that contains the file; their order may differ between files. If nothing lists the
names, the classes are the names in --train, sorted. Samples with the label -100 are ignored. Counts are JSON: a list of
C whole numbers, or an object that maps each class name to its number."""


@dataclass(frozen=True)
class RunRecord:
    """What the result.json of a run says about its classes and its method."""

    path: Path
    names: tuple[str, ...]
    groups: Groups
    counts: tuple[int, ...]
    """Training samples per class."""
    posthoc: str
    """The post-hoc step of the run, which its stored logits do not include; empty without one."""
    method: str
    params: Mapping[str, Any]

    def ordered(self, names: Sequence[str]) -> "RunRecord":
        """Return the same record with its classes in another order."""
        order = class_order(names, self.names, str(self.path))
        groups = Groups(self.groups.names, tuple(self.groups.index[place] for place in order))
        return replace(self, names=tuple(names), groups=groups, counts=tuple(self.counts[place] for place in order))


@dataclass(frozen=True, eq=False)
class Stored:
    """The predictions of one split as they are stored, before classes become indices."""

    source: str
    labels: Array
    predicted: Array | None
    scores: Array | None
    kind: Kind
    names: tuple[str, ...] | None
    """Class names, if the source has them."""
    run: RunRecord | None = None
    """The run whose folder contains the file."""

    def texts(self, values: Array, names: Sequence[str] | None) -> list[str] | None:
        """Return classes as text if they are names; ``None`` if they are indices.

        Whole numbers are names only if all whole numbers among labels and predictions are known names.
        """
        numbers = values.dtype.kind in "iu" and names is not None and all(name.isdecimal() for name in names)
        if values.dtype.kind not in "USO" and not numbers:
            return None
        texts, known = _texts(values), {*(names or ()), str(IGNORED)}
        every = {text for one in self._classes for text in _texts(one) if text.lstrip("-").isdecimal()}
        if all(text.lstrip("-").isdecimal() for text in texts) and not known.issuperset(every):
            return None
        return texts

    @property
    def _classes(self) -> list[Array]:
        return [values for values in (self.labels, self.predicted) if values is not None]

    def names_used(self) -> set[str]:
        """Return the class names among labels and predictions; empty if they are indices."""
        return {text for values in self._classes for text in self.texts(values, None) or ()} - {str(IGNORED)}

    def needs_order(self, names: Sequence[str] | None) -> bool:
        """Return whether the order of the classes must be known: it has indices, or scores without class names."""
        indexed = any(self.texts(values, names) is None for values in self._classes)
        return indexed or (self.scores is not None and self.names is None)


def read_file(source: Source, split: str) -> Stored:
    """Read the predictions of one split from a file, or from arrays in a mapping.

    Args:
        source: the file or the arrays.
        split: ``train``, ``val`` or ``test``; selects the split if the file has several.
    """
    if isinstance(source, Mapping):
        found = _from_arrays(f"`{split}`", {name: _array(value) for name, value in source.items()})
    else:
        path = Path(source)
        readers = {".npz": _npz, ".safetensors": _safetensors, ".csv": _text, ".tsv": _text, ".parquet": _parquet}
        suffix = path.suffix.lower()
        if suffix not in readers:
            ending = path.suffix or "nothing"
            raise ValueError(f"Expected {path} to end in {', '.join(readers)}, but it ends in {ending}.")
        if not path.is_file():
            raise FileNotFoundError(f"Expected predictions in {path}, but there is no such file.")
        found = readers[suffix](path, split)
    for what, values in (("labels", found.labels), ("predicted classes", found.predicted)):
        if values is not None and values.dtype.kind in "UO":  # an empty cell is not a class name
            empty = next((place for place, value in enumerate(values.tolist()) if value is None or value == ""), None)
            if empty is not None:
                raise ValueError(f"Expected {what} of {found.source} for every sample, but sample {empty} has none.")
    return found


def class_order(names: Sequence[str], among: Sequence[str], source: str) -> list[int]:
    """Return the position of each name in ``among``, which must have the same names in any order.

    Example:
        >>> class_order(["ant", "bee", "cow"], ["cow", "ant", "bee"], "counts.json")
        [1, 2, 0]
    """
    if tuple(names) == tuple(among):
        return list(range(len(among)))
    odd = min(set(names) ^ set(among), default=None)
    if odd is not None:
        where = "only" if odd in among else "not"
        raise ValueError(f"Expected the same classes in all files, but {odd!r} is {where} in {source}.")
    place = {name: c for c, name in enumerate(among)}
    if not len(place) == len(names) == len(among):
        raise ValueError(f"Expected each class to have its own name, but two classes in {source} share one.")
    return [place[name] for name in names]


def are_indices(names: Collection[str]) -> bool:
    """Return whether names are the numbers 0…C-1, in any order."""
    return set(names) == {str(place) for place in range(len(names))}


def _texts(values: Array) -> list[str]:
    decoded = np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values
    return [str(value) for value in decoded.tolist()]


def _array(value: Any) -> Array:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()
    found: Array = np.asarray(value)
    return found


def _npz(path: Path, split: str) -> Stored:
    with path.open("rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    if not zipfile.is_zipfile(path) and not is_zip:
        raise ValueError(f"Expected {path} to be an npz file, but it is not.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        if "allow_pickle" in str(error):
            raise ValueError(
                f"Expected {path} to hold arrays of numbers or text, but it holds Python objects."
            ) from None
        raise ValueError(f"Expected {path} to be a complete npz file, but it is damaged: {error}.") from None
    arrays = {name: value for name, value in arrays.items() if isinstance(value, np.ndarray)}
    return _from_arrays(str(path), _of_split(path, arrays, split))


def _safetensors(path: Path, split: str) -> Stored:
    from longtail._io import read_tensors  # noqa: PLC0415 - an extra

    arrays = {name: _array(value) for name, value in read_tensors(path)[0].items()}
    return _from_arrays(str(path), _of_split(path, arrays, split))


def _of_split(path: Path, arrays: Mapping[str, Array], split: str) -> Mapping[str, Array]:
    """The arrays of one split, if the file has several."""
    if any(name.startswith(f"{split}.") for name in arrays):
        start = f"{split}."
        return {name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)}
    if any(name.startswith(tuple(f"{other}." for other in _MISSING_SPLIT)) for name in arrays):
        raise ValueError(f"Expected {path} to have predictions on {split}, but it has none{_MISSING_SPLIT[split]}.")
    return arrays


def _from_arrays(source: str, arrays: Mapping[str, Array]) -> Stored:
    has = ", ".join(f"`{name}`" for name in arrays) or "nothing"
    labels = next((name for name in LABELS if name in arrays), None)
    if labels is None:
        raise ValueError(f"Expected {source} to have `labels`, but it has {has}.")
    names = tuple(map(str, arrays["classes"].tolist())) if "classes" in arrays else None
    scores = next((name for name in SCORES if name in arrays), None)
    if scores is not None:
        return Stored(source, arrays[labels], None, arrays[scores], SCORES[scores], names)
    predicted = next((name for name in PREDICTED if name in arrays), None)
    if predicted is None:
        raise ValueError(f"Expected {source} to have `logits`, `probabilities` or `predicted`, but it has {has}.")
    return Stored(source, arrays[labels], arrays[predicted], None, "labels only", names)


def _text(path: Path, _: str) -> Stored:
    from longtail.data.datasets.readers.files import read_lines  # noqa: PLC0415 - the data package is large

    rows = list(csv.reader(read_lines(path), delimiter="\t" if path.suffix.lower() == ".tsv" else ","))
    rows = [[cell.removesuffix("\r") for cell in row] for row in rows if row]
    if len(rows) < 2:
        raise ValueError(f"Expected {path} to have a header and a line per sample, but it has {len(rows)} lines.")
    wrong = next((place for place, row in enumerate(rows, 1) if len(row) != len(rows[0])), None)
    if wrong is not None:
        raise ValueError(
            f"Expected {len(rows[0])} values in every line of {path}, but line {wrong} has {len(rows[wrong - 1])}."
        )
    header = [name.strip() for name in rows[0]]
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"Expected {path} to have one column `{twice}`, but it has {header.count(twice)}.")
    columns = zip(*rows[1:], strict=True)
    return _from_columns(path, {name: np.array(values) for name, values in zip(header, columns, strict=True)})


def _parquet(path: Path, _: str) -> Stored:
    from longtail.data.datasets.readers.files import read_parquet  # noqa: PLC0415

    def chosen(names: list[str]) -> list[str]:
        starts = tuple(f"{start}_" for start in SCORES)
        return [name for name in names if name in (*LABELS, *PREDICTED) or name.startswith(starts)] or names

    return _from_columns(path, {name: np.asarray(values) for name, values in read_parquet(path, chosen).items()})


def _from_columns(path: Path, columns: Mapping[str, Array]) -> Stored:
    labels = next((name for name in LABELS if name in columns), None)
    has = ", ".join(f"`{name}`" for name in list(columns)[:8]) + (", …" if len(columns) > 8 else "")
    if labels is None:
        raise ValueError(f"Expected {path} to have a column `label`, but it has {has}.")
    for start, kind in SCORES.items():
        names = [name.removeprefix(f"{start}_") for name in columns if name.startswith(f"{start}_")]
        if not names:
            continue
        numbered = are_indices(names)
        if numbered:
            names = [str(place) for place in range(len(names))]
        try:
            scores = np.stack([columns[f"{start}_{name}"].astype(np.float64) for name in names], 1)
        except ValueError:
            raise ValueError(f"Expected numbers in the columns `{start}_…` of {path}, but got other text.") from None
        return Stored(str(path), columns[labels], None, scores, kind, None if numbered else tuple(names))
    predicted = next((name for name in PREDICTED if name in columns), None)
    if predicted is None:
        raise ValueError(
            f"Expected {path} to have columns `logit_…`, `probability_…` or `predicted`, but it has {has}."
        )
    return Stored(str(path), columns[labels], columns[predicted], None, "labels only", None)
