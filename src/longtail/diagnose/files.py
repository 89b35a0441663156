"""Predictions as they are stored: in npz, safetensors, CSV, TSV or Parquet files, or in arrays."""

import csv
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from longtail.classes import Groups

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
names, the classes are all names in the files, sorted. Samples with the label -100 are ignored. Counts are JSON: a list
of C whole numbers, or an object that maps each class name to its number."""


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

    @cached_property
    def classes(self) -> set[str]:
        """The classes among labels and predictions, as text."""
        columns = [values for values in (self.labels, self.predicted) if values is not None]
        return {str(value) for values in columns for value in np.unique(values).tolist()} - {str(IGNORED)}

    def has_names(self, known: Sequence[str] | None) -> bool:
        """Return whether classes are names and not indices: all are known names, or some are not whole numbers."""
        if known is not None and self.classes.issubset(known):
            return True
        return self.labels.dtype.kind in "UO" and not all(text.lstrip("-").isdecimal() for text in self.classes)


def read_file(source: Source, split: str) -> Stored:
    """Read the predictions of one split from a file, or from arrays in a mapping."""
    if isinstance(source, Mapping):
        return _from_arrays(f"`{split}`", {name: _array(value) for name, value in source.items()})
    path = Path(source)
    readers = {".npz": _npz, ".safetensors": _safetensors, ".csv": _text, ".tsv": _text, ".parquet": _parquet}
    suffix = path.suffix.lower()
    if suffix not in readers:
        ending = path.suffix or "nothing"
        raise ValueError(f"Expected {path} to end in {', '.join(readers)}, but it ends in {ending}.")
    if not path.is_file():
        raise FileNotFoundError(f"Expected predictions in {path}, but there is no such file.")
    return _from_arrays(str(path), _of_split(path, readers[suffix](path), split))


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


def _array(value: Any) -> Array:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()
    found: Array = np.asarray(value)
    return np.char.decode(found, "utf-8", "replace") if found.dtype.kind == "S" else found


def _npz(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise ValueError("it is an npy file")
            arrays = {name: found[name] for name in found.files}
            return {name: _array(value) for name, value in arrays.items() if isinstance(value, np.ndarray)}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise ValueError(f"Expected {path} to be an npz file of numbers or text, but it is not: {error}.") from None


def _safetensors(path: Path) -> dict[str, Array]:
    from longtail._io import read_tensors  # noqa: PLC0415 - an extra

    return {name: _array(value) for name, value in read_tensors(path)[0].items()}


def _text(path: Path) -> dict[str, Array]:
    from longtail.data.datasets.image_files import read_lines  # noqa: PLC0415 - the data package is large

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
    return _join_scores(path, {name: np.array(values) for name, values in zip(header, columns, strict=True)})


def _parquet(path: Path) -> dict[str, Array]:
    from longtail.data.datasets.image_files import read_parquet  # noqa: PLC0415

    def chosen(names: list[str]) -> list[str]:
        starts = tuple(f"{start}_" for start in SCORES)
        return [name for name in names if name in (*LABELS, *PREDICTED) or name.startswith(starts)] or names

    return _join_scores(path, {name: np.asarray(values) for name, values in read_parquet(path, chosen).items()})


def _join_scores(path: Path, columns: dict[str, Array]) -> dict[str, Array]:
    """Replace the columns of scores with one array, and their names with ``classes``."""
    for start in SCORES:
        names = [name.removeprefix(f"{start}_") for name in columns if name.startswith(f"{start}_")]
        if not names:
            continue
        if are_indices(names):
            names = [str(place) for place in range(len(names))]
        else:
            columns["classes"] = np.array(names)
        try:
            columns[start] = np.stack([columns[f"{start}_{name}"].astype(np.float64) for name in names], 1)
        except ValueError:
            raise ValueError(f"Expected numbers in the columns `{start}_…` of {path}, but got other text.") from None
        break
    return columns


def _of_split(path: Path, arrays: Mapping[str, Array], split: str) -> Mapping[str, Array]:
    """The arrays of one split, if the file has several."""
    if any(name.startswith(f"{split}.") for name in arrays):
        start = f"{split}."
        return {name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)}
    if any(name.startswith(tuple(f"{other}." for other in _MISSING_SPLIT)) for name in arrays):
        raise ValueError(f"Expected {path} to have predictions on {split}, but it has none{_MISSING_SPLIT[split]}.")
    return arrays


def _from_arrays(source: str, arrays: Mapping[str, Array]) -> Stored:
    has = (", ".join(f"`{name}`" for name in list(arrays)[:8]) or "nothing") + (", …" if len(arrays) > 8 else "")
    labels, scores, predicted = (
        next((name for name in names if name in arrays), None) for names in (LABELS, SCORES, PREDICTED)
    )
    if labels is None:
        raise ValueError(f"Expected {source} to have `labels`, but it has {has}.")
    if scores is None and predicted is None:
        raise ValueError(f"Expected {source} to have `logits`, `probabilities` or `predicted`, but it has {has}.")
    for name in filter(None, (labels, None if scores else predicted)):
        if arrays[name].dtype.kind in "UO":  # an empty cell is not a class name
            empty = next((place for place, value in enumerate(arrays[name].tolist()) if value in (None, "")), None)
            if empty is not None:
                raise ValueError(f"Expected `{name}` of {source} for every sample, but sample {empty} has none.")
    names = tuple(map(str, arrays["classes"].tolist())) if "classes" in arrays else None
    if scores is not None:
        return Stored(source, arrays[labels], None, arrays[scores], SCORES[scores], names)
    return Stored(source, arrays[labels], arrays[str(predicted)], None, "labels only", names)
