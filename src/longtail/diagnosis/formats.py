"""Files of predictions: npz, safetensors, CSV and Parquet. No file can run code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail._checks import describe
from longtail._program import some_of
from longtail.data.datasets.features import read_arrays
from longtail.data.datasets.tables import TABLES, check_once, column, read_columns
from longtail.train.folder import RunFolder

Array = np.ndarray[Any, Any]
Source = Path | str | Mapping[str, Any]
"""A file of predictions, the folder of a run, or arrays by name."""

IGNORED = -100
"""The label of samples that are ignored."""
_PREFIXES = {"logits": "logit_", "probabilities": "probability_"}
"""How the columns of scores begin in a table."""
_MISSING_SPLIT = {
    "train": ": it keeps no predictions on large training sets; give --counts",
    "val": "; train with --validation 0.1 to have them",
    "test": "",
}

FORMATS_HELP = """The suffix of a file says its format:

  .npz, .safetensors  `labels` (N,) and one of `logits` (N, C), `probabilities` (N, C) or `predicted` (N,);
                      also the predictions.safetensors of a run
  a run folder        its predictions.safetensors; as --test, with the validation and training data in it
  .csv, .tsv,         one row per sample: a column `label`, and one column per class called `logit_NAME` or
  .parquet            `probability_NAME`, or a single column `predicted`

Labels are class indices 0…C-1 or class names. Names come from the columns, an array `classes`, the result.json of the
run folder that contains the file, or the keys of --counts; files list them in the same order, --counts in any order. If
nothing lists the names, the classes are all names in the files, sorted. Samples with the label -100 are ignored. Counts
are JSON: a list of C whole numbers, or an object that maps each class name to its number."""


@dataclass(frozen=True, eq=False)
class RawPredictions:
    """Predictions as they are stored, before classes become indices."""

    source: str
    kind: str
    labels: Array
    values: Array
    """Scores, or predicted classes."""
    names: tuple[str, ...] | None
    """Class names, if the source has them."""
    folder: Path | None
    """The folder of the file; ``None`` for arrays."""

    @property
    def has_scores(self) -> bool:
        """Whether there are logits or probabilities."""
        return self.kind != "predicted"

    @cached_property
    def classes(self) -> set[str]:
        """The classes among labels and predictions, as text."""
        columns = [self.labels] if self.has_scores else [self.labels, self.values]
        return {str(value) for column in columns for value in np.unique(column).tolist()} - {str(IGNORED)}

    def has_names(self, known: Sequence[str] | None) -> bool:
        """Return whether classes are names and not indices: all are known names, or some are not whole numbers."""
        if known is not None and self.classes.issubset(known):
            return True
        return self.labels.dtype.kind in "UO" and not all(text.lstrip("-").isdecimal() for text in self.classes)


def read_file(source: Source, split: str) -> RawPredictions:
    """The predictions on one split from a file, or from arrays."""
    if isinstance(source, Mapping):
        return _check_arrays(f"`{split}`", None, {name: _array(value) for name, value in source.items()})
    if not isinstance(source, str | Path):
        raise TypeError(
            f"Expected `{split}` to be a file, a run folder or a mapping such as {{'labels': …, 'logits': …}}, but got "
            f"{describe(source)}."
        )
    path = Path(source)
    path = RunFolder(path).predictions_file if path.is_dir() else path
    readers = {".npz": _read_arrays, ".safetensors": _read_arrays, **dict.fromkeys(TABLES, _read_table)}
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise ValueError(f"Expected {path} to end in {', '.join(readers)}, but it ends in {suffix or 'nothing'}.")
    if not path.is_file():
        raise FileNotFoundError(f"Expected predictions in {path}, but there is no such file.")
    arrays = readers[suffix](path)
    start = f"{split}."
    in_split = {name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)}
    if not in_split and any(name.startswith(("train.", "val.", "test.")) for name in arrays):
        raise ValueError(f"Expected {path} to have predictions on {split}, but it has none{_MISSING_SPLIT[split]}.")
    return _check_arrays(str(path), path.parent, in_split or arrays)


def _array(value: Any) -> Array:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()
    found: Array = np.asarray(value)
    return np.char.decode(found, "utf-8", "replace") if found.dtype.kind == "S" else found


def _read_arrays(path: Path) -> dict[str, Array]:
    return {name: _array(value) for name, value in read_arrays(path).items()}


def _read_table(path: Path) -> dict[str, Array]:
    def choose(names: Sequence[str]) -> Sequence[str]:
        if not {"label", "labels"} & set(map(column, names)):
            return names  # for the error
        return [one for one in names if _prefix(one) or column(one) in {"label", "labels", "predicted"}]

    columns = read_columns(path, choose, ["label"])
    if not all(columns.values()):
        raise ValueError(f"Expected {path} to have a row per sample, but it has none.")
    names = [_prefix(name) + name.strip()[len(_prefix(name)) :] if _prefix(name) else column(name) for name in columns]
    cells = [[cell.strip() if isinstance(cell, str) else cell for cell in values] for values in columns.values()]
    return _join_scores(path, dict(zip(check_once(path, names), map(np.array, cells), strict=True)))


def _prefix(name: str) -> str:
    """Return how the name of a column of scores begins; empty for another column."""
    return next((start for start in _PREFIXES.values() if column(name).startswith(start)), "")


def _join_scores(path: Path, columns: dict[str, Array]) -> dict[str, Array]:
    """Add the columns of scores as one array, and their names as ``classes``."""
    for kind, prefix in _PREFIXES.items():
        names = [name.removeprefix(prefix) for name in columns if name.startswith(prefix)]
        if not names:
            continue
        if are_indices(names):
            names.sort(key=int)
        else:
            columns["classes"] = np.array(names)
        try:
            columns[kind] = np.stack([columns[prefix + name].astype(np.float64) for name in names], 1)
        except ValueError:
            raise ValueError(f'Expected numbers in the columns "{prefix}…" of {path}, but got other text.') from None
        break  # of logits and probabilities, the logits are used
    return columns


def _check_arrays(source: str, folder: Path | None, arrays: Mapping[str, Array]) -> RawPredictions:
    has = some_of([f'"{name}"' for name in arrays], 8) or "nothing"
    label = next((name for name in ("labels", "label") if name in arrays), None)
    kind = next((name for name in (*_PREFIXES, "predicted") if name in arrays), None)
    if label is None:
        written = "; `longtail evaluate RUN --data DATA --predictions FILE` writes both" if "path" in arrays else ""
        raise ValueError(f'Expected {source} to have "labels", in a table "label", but it has {has}{written}.')
    if kind is None:
        raise ValueError(f'Expected {source} to have "logits", "probabilities" or "predicted", but it has {has}.')
    labels, values = arrays[label], arrays[kind]
    if labels.ndim != 1:
        raise ValueError(f"Expected labels of {source} to have one dimension, but got shape {labels.shape}.")
    if kind == "predicted" and values.shape != labels.shape:
        raise ValueError(f"Expected {source} to have {len(labels)} predicted classes, but got shape {values.shape}.")
    if kind != "predicted" and (
        values.ndim != 2 or values.dtype.kind not in "iuf" or len(values) != len(labels) or values.shape[1] < 2
    ):
        raise ValueError(
            f"Expected {kind} of {source} to be numbers of shape ({len(labels)}, C), with one row per label and at "
            f"least two classes, but got {values.dtype} of shape {values.shape}."
        )
    for name in (label, kind):
        if arrays[name].dtype.kind in "UO":  # an empty cell is not a class name
            empty = next((place for place, value in enumerate(arrays[name].tolist()) if value in (None, "")), None)
            if empty is not None:
                raise ValueError(f'Expected "{name}" of {source} for every sample, but sample {empty} has none.')
    names = tuple(map(str, arrays["classes"].tolist())) if "classes" in arrays else None
    return RawPredictions(source, kind, labels, values, names, folder)


def are_indices(names: Sequence[str]) -> bool:
    """Whether names are the numbers 0…C-1, in any order."""
    return set(names) == {str(place) for place in range(len(names))}
