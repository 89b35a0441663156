"""Samples as the rows of a file: what lists of images, tables of texts and files of features have in common."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from longtail.data.datasets.image_files import SPLITS
from longtail.data.datasets.labels import classes_of, describe_labels
from longtail.data.datasets.splits import DataSet, Images, Split

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
            raise ValueError(f"Expected `split` in row {number} of {path} to be {wanted}, but got {name!r}.")
    return [SPLITS[name] for name in found]
