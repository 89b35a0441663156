"""A data set: splits of labelled images with class names and groups."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from longtail._checks import Vector, as_tensor, check_integer, check_number, positive_counts
from longtail._program import count, printable, some_of
from longtail.classes import Groups, class_counts, cut_groups
from longtail.data.datasets.grouped import GroupTable, choose_groups, deal_groups
from longtail.data.datasets.long_tail import (
    Profile,
    indices_by_class,
    long_tail_counts,
    long_tail_indices,
)


class Images(Protocol):
    """Raw images by index, like a map-style ``torch`` data set.

    An optional method ``identity() -> bytes`` identifies the images, so that a run is not resumed on others.
    """

    def __len__(self) -> int:
        """Number of images."""

    def __getitem__(self, index: int, /) -> Tensor:
        """Return an image, uint8 ``(channels, height, width)``."""

    def subset(self, indices: Tensor, /) -> "Images":
        """Return the images at these indices, in this order."""


@dataclass(frozen=True, eq=False)
class ArrayImages:
    """Images of one size in memory; subsets share the memory."""

    stored: Tensor
    """uint8 ``(N, channels, height, width)``."""
    rows: Tensor | None = None
    """Which of the stored images, in which order; ``None``: all."""

    def __post_init__(self) -> None:
        if self.stored.ndim != 4 or self.stored.dtype != torch.uint8:
            raise ValueError(
                "Expected images to be uint8 of shape (N, channels, height, width), "
                f"but got {self.stored.dtype} of shape {tuple(self.stored.shape)}."
            )

    def __len__(self) -> int:
        return len(self.stored if self.rows is None else self.rows)

    def __getitem__(self, index: int, /) -> Tensor:
        return self.stored[index if self.rows is None else int(self.rows[index])]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.stored.shape[2], self.stored.shape[3]

    @property
    def pixels(self) -> Tensor:
        """All images as one tensor; a subset makes a new tensor each time."""
        return self.stored if self.rows is None else self.stored[self.rows]

    def subset(self, indices: Tensor, /) -> "ArrayImages":
        """Return the images at these indices, in this order."""
        rows = torch.arange(len(self.stored)) if self.rows is None else self.rows
        return replace(self, rows=rows[indices])

    def identity(self) -> bytes:
        """All pixels."""
        return self.pixels.contiguous().numpy().tobytes()


@dataclass(frozen=True, eq=False)
class FileImages:
    """Image files below a folder, decoded on access. Needs Pillow (``longtail[data]``)."""

    root: Path
    names: Sequence[str]
    """Paths relative to ``root``, with forward slashes."""

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int, /) -> Tensor:
        from longtail.data.loaders.decode import decode  # noqa: PLC0415 - needs an extra

        return decode(self.path(index))

    def path(self, index: int) -> Path:
        """Return the path of an image."""
        return self.root / self.names[index]

    def subset(self, indices: Tensor, /) -> "FileImages":
        """Return the images at these indices, in this order."""
        return FileImages(self.root, [self.names[i] for i in indices.tolist()])

    def identity(self) -> bytes:
        """All names."""
        return "\0".join(self.names).encode("utf-8", "surrogateescape")


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts in memory: in a data set they take the place of images, until `longtail embed` makes vectors of them.

    Example:
        >>> texts = Texts(("Who?", "How far?"))
        >>> len(texts), texts[1], texts.subset(torch.tensor([1])).stored
        (2, 'How far?', ('How far?',))
    """

    stored: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: int, /) -> Any:  # a text where the protocol has an image
        return self.stored[index]

    def subset(self, indices: Tensor, /) -> "Texts":
        """Return the texts at these indices, in this order."""
        return Texts(tuple(self.stored[i] for i in indices.tolist()))

    def identity(self) -> bytes:
        """All texts."""
        return "\0".join(self.stored).encode("utf-8", "surrogatepass")


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels."""

    images: Images
    labels: Tensor
    """Class indices, int64 ``(N,)``."""
    groups: Tensor | None = None
    """Groups that must not be split, such as patients or videos, int64 ``(N,)``: every hold-out keeps them together."""

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise ValueError(f"Expected a label for each of {len(self.images)} images, but got {len(self.labels)}.")
        if self.groups is not None and (self.groups.shape != self.labels.shape or self.groups.dtype != torch.int64):
            raise ValueError(
                f"Expected `groups` to be int64 with one number per image ({len(self.labels)}), but got "
                f"{self.groups.dtype} of shape {tuple(self.groups.shape)}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Vector) -> "Split":
        """Return the samples at these indices, in this order."""
        chosen = as_tensor("indices", indices, what="indices").to(torch.int64)
        groups = None if self.groups is None else self.groups[chosen]
        return Split(self.images.subset(chosen), self.labels[chosen], groups)


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each channel, of pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers = all(map(math.isfinite, (*self.mean, *self.std))) and all(one > 0 for one in self.std)
        if not self.mean or len(self.mean) != len(self.std) or not numbers:
            raise ValueError(
                "Expected `mean` and `std` to be a number per channel, and `std` > 0, but got "
                f"{self.mean} and {self.std}."
            )


IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True, eq=False)
class DataSet:
    """Splits of labelled images, with class names and groups."""

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split | None = None
    val: Split | None = None
    """The official validation split, or one that :func:`hold_out` took from the training data."""
    cut: Groups | str = "auto"
    """The usual groups of this data set, or how to make them (:func:`longtail.classes.cut_groups`)."""
    normalisation: Normalisation = IMAGENET
    cut_by: Tensor | None = None
    """Counts that define the groups if images of the training split were held out."""
    held_out: Mapping[str, float] = field(default_factory=dict)
    """The fraction of each class that :func:`hold_out` moved to ``val`` and ``test``."""
    group_names: tuple[str, ...] = ()
    """Names of ``Split.groups``; by default their numbers."""
    notes: tuple[str, ...] = ()
    """What should be known about how the data was opened and split, as sentences."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Files that were left out because they cannot be read, and why."""

    def __post_init__(self) -> None:
        _check_names("class names", self.class_names)
        for name, split in self.splits.items():
            if isinstance(split.images, FileImages):
                _check_names("paths of images", [str(split.images.root), *split.images.names])
            outside = (split.labels < 0) | (split.labels >= self.num_classes)
            if outside.any():
                raise ValueError(
                    f"Expected labels of {self.name} to be in 0…{self.num_classes - 1}, "
                    f"but got {int(split.labels[outside][0])} in {name}."
                )

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def splits(self) -> dict[str, Split]:
        """The existing splits by name."""
        splits = {"train": self.train, "val": self.val, "test": self.test}
        return {name: split for name, split in splits.items() if split is not None}

    @cached_property
    def counts(self) -> Tensor:
        """Training images per class."""
        return class_counts(self.train.labels, self.num_classes)

    def names_of(self, chosen: Tensor) -> tuple[str, ...]:
        """Return the names of the classes for which ``chosen`` ``(C,)`` is true."""
        return tuple(self.class_names[c] for c in chosen.nonzero().flatten().tolist())

    @property
    def can_hold_out(self) -> Tensor:
        """Whether each class has training images that can be held out: two, in different groups if there are any."""
        table = _group_table(self)
        return self.counts > 1 if table is None else torch.tensor(table.smallest) > 0

    @property
    def groups(self) -> Groups:
        """Head, medium and tail classes."""
        return self._cut[0]

    @property
    def groups_from(self) -> str:
        """How the groups were made, in words."""
        held = self.cut_by is not None and "training samples" in self._cut[1]
        return self._cut[1] + ", counting those held out for validation" * held

    @cached_property
    def _cut(self) -> tuple[Groups, str]:
        if isinstance(self.cut, Groups):
            return self.cut, "the usual ones of this data set"
        tested = None if self.test is None else set(self.test.labels.tolist())
        return cut_groups(self.cut, self.counts if self.cut_by is None else self.cut_by, self.class_names, tested)


def _check_names(what: str, names: Sequence[str]) -> None:
    """Raise if a name is not UTF-8: the results could not be written."""
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        bad = next(name for name in names if name.encode(errors="replace").decode() != name)
        raise ValueError(f"Expected {what} to be UTF-8, but got {printable(bad)}; rename it.") from None


def hold_out(
    dataset: DataSet, fraction: float = 0.1, seed: int = 0, *, part: Literal["val", "test"] = "val"
) -> DataSet:
    """Move a part of the training images of each class to the validation or the test split.

    If the training split has groups (``Split.groups``), whole groups are moved: those with which the classes come
    nearest to ``fraction``, or to their smallest group if it is larger. A class whose images are all in one group
    stays in training.

    Args:
        dataset: the data set; its ``val`` or ``test``, if any, is replaced.
        fraction: the share of each class to hold out, rounded. A class with two or more images gives at least one and
            keeps at least one.
        seed: chooses the images.
        part: the split that receives them. Head, medium and tail are cut by what remains without test images, and with
            validation images.

    Example:
        >>> from longtail.data import load
        >>> digits = hold_out(load("digits-lt"), 0.2)
        >>> len(digits.train), len(digits.val)
        (272, 70)
    """
    fraction = check_number("fraction", fraction, below=1.0)
    generator = np.random.Generator(np.random.Philox(key=check_integer("seed", seed, minimum=0)))
    held = np.zeros(len(dataset.train), dtype=bool)
    if not fraction:
        return _move(dataset, held, part)
    table = _group_table(dataset)
    if table is not None:
        held = choose_groups(table, fraction, generator)
    else:
        for of_class in indices_by_class(dataset.train.labels, dataset.counts):
            held[generator.permutation(of_class)[: number_held_out(len(of_class), fraction)]] = True
    cut = _move(dataset, held, part)
    held_out = {**dataset.held_out, part: fraction} if len(cut.splits[part]) else dataset.held_out
    note = _stays_whole(dataset, cut.splits[part], part)
    return replace(cut, held_out=held_out, notes=(*dataset.notes, note) if note else dataset.notes)


def number_held_out(number: int, fraction: float) -> int:
    """How many images :func:`hold_out` takes from a class without groups."""
    return max(min(max(round(fraction * number), 1), number - 1), 0) if fraction else 0


def hold_out_fold(dataset: DataSet, fold: int, folds: int, seed: int = 0) -> DataSet:
    """Move one of several folds of the training data to the validation split, stratified by class.

    The images of a class are shuffled and dealt to the folds in turn, so that every image is held out once. A class
    with fewer images than folds gives one image to each fold, some of them more than once. The only image of a class
    stays in training. If the training split has groups (``Split.groups``), whole groups are dealt.

    Args:
        dataset: the data set; its ``val``, if any, is replaced.
        fold: the fold that is held out, 0…folds - 1.
        folds: number of folds.
        seed: chooses the images of each fold.

    Example:
        >>> from longtail.data import load
        >>> digits = hold_out_fold(load("digits-lt"), 0, 5)
        >>> len(digits.train), len(digits.val), digits.counts.min()
        (273, 69, tensor(1))
    """
    folds = check_integer("folds", folds, minimum=2)
    if check_integer("fold", fold, minimum=0) >= folds:
        raise ValueError(f"Expected `fold` to be in 0…{folds - 1}, but got {fold}.")
    generator = np.random.Generator(np.random.Philox(key=check_integer("seed", seed, minimum=0)))
    table = _group_table(dataset)
    if table is not None:
        return _move(dataset, deal_groups(table, fold, folds, generator), "val")
    held = np.zeros(len(dataset.train), dtype=bool)
    for c, of_class in enumerate(indices_by_class(dataset.train.labels, dataset.counts)):
        dealt = generator.permutation(of_class)
        place = fold + c  # otherwise the first folds would get all remainders
        if len(dealt) >= folds:
            held[dealt[place % folds :: folds]] = True
        elif len(dealt) >= 2:
            held[dealt[place % len(dealt)]] = True
    return _move(dataset, held, "val")


def _group_table(dataset: DataSet) -> GroupTable | None:
    train = dataset.train
    return None if train.groups is None else GroupTable.of(train.labels, train.groups, dataset.num_classes)


def _move(dataset: DataSet, held: np.ndarray, part: Literal["val", "test"]) -> DataSet:
    """Move the images where ``held`` is true; the groups of classes stay those of all images but test images."""
    train, moved = (dataset.train.subset(np.flatnonzero(where)) for where in (~held, held))
    if part == "test":
        return replace(dataset, train=train, test=moved)
    cut_by = dataset.counts if dataset.cut_by is None else dataset.cut_by
    return replace(dataset, train=train, val=moved, cut_by=cut_by)


def _stays_whole(dataset: DataSet, moved: Split, part: str) -> str:
    """Return which classes with two images or more have none in a split, because groups are not split, as a sentence.

    It is empty if there are no such classes.
    """
    held = class_counts(moved.labels, dataset.num_classes)
    names = dataset.names_of((held == 0) & (dataset.counts > 1))
    if dataset.train.groups is None or not names:
        return ""
    words = {"val": "validation", "test": "test"}[part]
    return (
        f"No {words} image of {count(len(names), 'class')}, because groups are not split and theirs stay in training: "
        f"{some_of(names)}."
    )


def long_tailed(
    dataset: DataSet,
    imbalance_factor: float,
    *,
    profile: Profile = "exp",
    subset_seed: int = 0,
) -> DataSet:
    """Return a data set with a long-tailed subset of its training split.

    Its largest class has as many images as the smallest class of ``dataset``.

    Args:
        dataset: the data set; validation and test splits stay.
        imbalance_factor: size of the largest class over that of the smallest, >= 1.
        profile: ``"exp"``, ``"step"`` or ``"pareto"``; see :func:`long_tail_counts`.
        subset_seed: chooses the images; 0 in the literature.

    Example:
        >>> from longtail.data import load
        >>> long_tailed(load("digits"), 10, profile="step").counts
        tensor([124, 124, 124, 124, 124,  12,  12,  12,  12,  12])
    """
    largest = int(positive_counts(dataset.counts).min())
    counts = long_tail_counts(dataset.num_classes, largest, imbalance_factor, profile=profile)
    if not counts.all():
        none = dataset.names_of(counts == 0)[0]
        raise ValueError(
            f"Expected an imbalance factor of at most {largest} for {dataset.name}, whose largest class will have "
            f"{largest} images, but got {imbalance_factor:g}, which leaves no image of class {none!r}. If the data is "
            "already long-tailed, train on it without an imbalance factor."
        )
    train = dataset.train.subset(long_tail_indices(dataset.train.labels, counts, subset_seed))
    return replace(dataset, name=f"{dataset.name}-lt", train=train, cut_by=None)
