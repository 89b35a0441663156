"""Samples as the rows of a file: labels, classes, splits and groups of images, texts and features."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from longtail.data.datasets.splits import DataSet, Images, Split

SPLITS = dict.fromkeys(("train", "training", "train_set", "training_set"), "train")
SPLITS |= dict.fromkeys(("val", "valid", "validation", "dev", "val_set", "validation_set"), "val")
SPLITS |= dict.fromkeys(("test", "testing", "test_set"), "test")
"""Names of splits, and what we call them."""
_WHOLE = re.compile(r"(-?)0*([0-9]+)(?:\.0*)?")
_MISSING = "nan", "nat", "<na>"  # of float, of dates and of pandas
Samples = TypeVar("Samples", bound=Images)


@dataclass(frozen=True, eq=False)
class Rows(Generic[Samples]):
    """Samples, each with a label, a split and perhaps a group."""

    samples: Samples
    labels: list[str]
    """Names or indices of the classes; empty if the file has none and need not."""
    splits: list[str]
    """``train``, ``val`` or ``test`` for each row."""
    groups: list[str] = field(default_factory=list)
    """The group of each row, such as its patient; empty if rows may be split freely."""
    class_names: tuple[str, ...] | None = None
    """If the file has them; labels are then among them, or indices from 0 on."""
    notes: tuple[str, ...] = ()
    """How the file was read."""

    def dataset(self, name: str, path: Path) -> DataSet:
        """Return the rows as a data set; ``path`` is the file, for errors."""
        if "train" not in self.splits:
            found = f"only {', '.join(dict.fromkeys(self.splits))}" if self.splits else "no rows"
            raise ValueError(f"Expected {path} to have training rows, but got {found}.")
        class_names, classes = classes_of(self.labels, self.class_names, str(path))
        group_names, groups = numbered(self.groups)
        everything = Split(self.samples, torch.tensor(classes, dtype=torch.int64), groups if group_names else None)
        splits = {}
        for part in dict.fromkeys(self.splits):
            places = [place for place, found in enumerate(self.splits) if found == part]
            splits[part] = everything if len(places) == len(self.splits) else everything.subset(places)
        notes = (*self.notes, *describe_labels(class_names))
        return DataSet(name, class_names, **splits, group_names=group_names, notes=notes)  # type: ignore[arg-type]


def numbered(names: Iterable[str]) -> tuple[tuple[str, ...], Tensor]:
    """Return the different names, in the order in which they appear, and the position of each one given among them.

    Example:
        >>> numbered(["b", "a", "b"])
        (('b', 'a'), tensor([0, 1, 0]))
    """
    places: dict[str, int] = {}
    found = torch.tensor([places.setdefault(name, len(places)) for name in names], dtype=torch.int64)
    return tuple(places), found


def split_names(path: Path, given: Iterable[Any], only: str | None = None) -> list[str]:
    """Return the splits of the rows of a file by our names; a row without one is of training, or of the split ``only``.

    Args:
        path: the file, for errors.
        given: the split of each row.
        only: the split that all rows must be of.
    """
    found = [str(name or only or "train").lower() for name in given]
    for number, name in enumerate(found, 1):
        if name not in SPLITS or SPLITS[name] != (only or SPLITS[name]):
            wanted = only or "train, val or test"
            raise ValueError(f'Expected "split" in row {number} of {path} to be {wanted}, but got {name!r}.')
    return [SPLITS[name] for name in found]


# --- labels


def label_texts(values: Any, number: int, where: str) -> list[str]:
    """Return each label as a text: a name without surrounding spaces, or a number as it is written.

    Args:
        values: an array ``(N,)``, ``(N, 1)`` or ``(1, N)``, or a sequence, of whole numbers (floats as well), texts,
            UTF-8 bytes or booleans.
        number: how many labels are needed.
        where: the file and the array, for errors.

    Example:
        >>> label_texts(np.array([[2.0], [1.0]]), 2, "a.npz"), label_texts([b"cat", " dog"], 2, "a.npz")
        (['2', '1'], ['cat', 'dog'])
    """
    found = np.asarray(values)
    if found.ndim == 2 and 1 in found.shape:
        found = found.reshape(-1)
    if found.shape != (number,):
        hint = "; of one-hot rows save `labels.argmax(1)`" if found.ndim == 2 and len(found) == number else ""
        raise ValueError(f"Expected {number} labels in {where}, but got {found.dtype} of shape {found.shape}{hint}.")
    return [_text(value, row, where) for row, value in enumerate(found.tolist(), 1)]


def _text(value: Any, row: int, where: str) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, float) and not math.isnan(value):
        raise ValueError(f"Expected labels in {where} to be whole numbers or names, but row {row} has {value:g}.")
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"Expected labels in {where} in UTF-8, but row {row} has {value[:20]!r}.") from None
    if value is None or (not isinstance(value, str) and str(value).lower() in _MISSING) or value == "":
        raise ValueError(f"Expected a label in every row of {where}, but row {row} has none.")
    if not isinstance(value, str | int):  # a boolean is an int
        kind = type(value).__name__
        raise ValueError(f"Expected labels in {where} to be whole numbers or names, but row {row} has a {kind}.")
    return str(value).strip()


def classes_of(
    labels: Sequence[str], class_names: tuple[str, ...] | None, where: str
) -> tuple[tuple[str, ...], list[int]]:
    """Return the class names and the class of each label.

    The names are the labels themselves, in the order of their values if all of them are whole numbers (``7``, ``07``
    and ``7.0`` are one class) and of the alphabet otherwise.

    Args:
        labels: texts of :func:`label_texts`.
        class_names: if the data has them; labels are then names among them, or indices from 0 on.
        where: the file, for errors.

    Example:
        >>> classes_of(["1", "10", "2.0", "1"], None, "a.csv")
        (('1', '2', '10'), [0, 2, 1, 0])
    """
    wanted = dict.fromkeys(labels)
    if class_names is not None and wanted.keys() <= set(class_names):
        index = {name: c for c, name in enumerate(class_names)}
        return class_names, [index[label] for label in labels]
    found = {label: _WHOLE.fullmatch(label) for label in wanted}
    numbers = {label: f"{match[1]}{match[2]}" for label, match in found.items() if match is not None}
    if class_names is not None:
        index = {str(c): c for c in range(len(class_names))}
        wrong = next((label for label in wanted if numbers.get(label) not in index), None)
        if wrong is not None:
            last = len(class_names) - 1
            raise ValueError(
                f"Expected labels of {where} to be names of its classes, or indices in 0…{last}, but got {wrong!r}."
            )
        return class_names, [index[numbers[label]] for label in labels]
    if len(numbers) < len(wanted):
        names = tuple(sorted(wanted))
        index = {name: c for c, name in enumerate(names)}
        return names, [index[label] for label in labels]
    names = tuple(sorted(set(numbers.values()), key=lambda text: (text[0] != "-", len(text), text)))
    if names[0].startswith("-") and names != ("-1", "1"):
        raise ValueError(
            f"Expected labels of {where} to be 0 or more, but got {names[0]}; leave out rows without a label, or "
            "write names instead of numbers."
        )
    place = {name: c for c, name in enumerate(names)}
    return names, [place[numbers[label]] for label in labels]


def describe_labels(class_names: Sequence[str]) -> Iterable[str]:
    """Yield a sentence if the names are whole numbers other than 0, 1, 2, …"""
    if all(map(_WHOLE.fullmatch, class_names)) and list(class_names) != list(map(str, range(len(class_names)))):
        first, last = class_names[0], class_names[-1]
        yield f"Named {len(class_names):,} classes by their labels, {first} to {last}; index 0 is class {first}."
