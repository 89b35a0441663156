"""A data set: splits of labelled images, and what is known of its classes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from longtail._checks import Vector, as_tensor, check_integer, check_number, positive_counts
from longtail.classes import Groups, class_counts
from longtail.data.datasets.long_tail import (
    ClassOrder,
    Profile,
    classes_in_order,
    indices_by_class,
    long_tail_counts,
    long_tail_indices,
)

__all__ = [
    "ArrayImages",
    "DataSet",
    "FileImages",
    "Images",
    "Normalisation",
    "Split",
    "hold_out",
    "hold_out_fold",
    "long_tailed",
]


class Images(Protocol):
    """Raw images by index: what a map-style ``torch`` or Hugging Face data set gives."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: int, /) -> Tensor:
        """One of them, uint8 ``(channels, height, width)``."""

    def subset(self, indices: Tensor, /) -> "Images":
        """Some of them, in that order."""


@dataclass(frozen=True, eq=False)
class ArrayImages:
    """Images of one size that are in memory, which subsets share: a hundred runs take no more of it than one."""

    stored: Tensor
    """uint8 ``(N, channels, height, width)``."""
    rows: Tensor | None = None
    """Which of them, in which order; ``None``: all."""

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
        """All of them as one tensor, of a subset a new one each time."""
        return self.stored if self.rows is None else self.stored[self.rows]

    def subset(self, indices: Tensor, /) -> "ArrayImages":
        """Some of them, in that order."""
        rows = torch.arange(len(self.stored)) if self.rows is None else self.rows
        return ArrayImages(self.stored, rows[indices])


@dataclass(frozen=True, eq=False)
class FileImages:
    """Image files under a folder, decoded when they are asked for. Needs Pillow (``longtail[data]``)."""

    root: Path
    names: Sequence[str]
    """Paths relative to ``root``, with forward slashes."""

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int, /) -> Tensor:
        from longtail.data.loaders.decode import decode  # noqa: PLC0415 - needs an extra

        return decode(self.path(index))

    def path(self, index: int) -> Path:
        """Where an image lies."""
        return self.root / self.names[index]

    def subset(self, indices: Tensor, /) -> "FileImages":
        """Some of them, in that order."""
        return FileImages(self.root, [self.names[i] for i in indices.tolist()])


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels."""

    images: Images
    labels: Tensor
    """Class indices, int64 ``(N,)``."""

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise ValueError(f"Expected a label for each of {len(self.images)} images, but got {len(self.labels)}.")

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Vector) -> "Split":
        """Some of its samples, in that order."""
        chosen = as_tensor("indices", indices, what="indices").to(torch.int64)
        return Split(self.images.subset(chosen), self.labels[chosen])


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each channel, of pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True, eq=False)
class DataSet:
    """Splits of labelled images, and what is known of their classes."""

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split | None = None
    val: Split | None = None
    """The official validation split, or one cut from training data by :func:`hold_out`; never from test."""
    cut: Groups | None = None
    """Groups as the literature cuts this data set; default: by count, > 100, 20…100, < 20 training images."""
    normalisation: Normalisation = IMAGENET
    cut_by: Tensor | None = None
    """Counts to cut groups by, where they are not those of the training split, of which some may be held out."""

    def __post_init__(self) -> None:
        for name, split in self.splits.items():
            outside = (split.labels < 0) | (split.labels >= self.num_classes)
            if outside.any():
                raise ValueError(
                    f"Expected labels of {self.name} to be in 0…{self.num_classes - 1}, "
                    f"but got {int(split.labels[outside][0])} in {name}."
                )

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that there are, by name."""
        splits = {"train": self.train, "val": self.val, "test": self.test}
        return {name: split for name, split in splits.items() if split is not None}

    @cached_property
    def counts(self) -> Tensor:
        """Training images of each class."""
        return class_counts(self.train.labels, self.num_classes)

    @property
    def groups(self) -> Groups:
        """Head, medium and tail."""
        if self.cut is not None:
            return self.cut
        return Groups.from_counts(self.counts if self.cut_by is None else self.cut_by)


def hold_out(dataset: DataSet, fraction: float = 0.1, seed: int = 0) -> DataSet:
    """Cut a validation split from the training data, class by class.

    Args:
        dataset: what to cut; its own ``val``, if any, is replaced.
        fraction: the share of each class to hold out, rounded; a class always keeps a training image, and gives one
            where it has two or more.
        seed: which images.

    Example:
        >>> from longtail.data import load
        >>> digits = hold_out(load("digits-lt"), 0.2)
        >>> len(digits.train), len(digits.val)
        (272, 70)
    """
    fraction = check_number("fraction", fraction, below=1.0)
    generator = np.random.Generator(np.random.Philox(key=check_integer("seed", seed, minimum=0)))
    held = []
    for of_class in indices_by_class(dataset.train.labels, dataset.counts):
        number = min(max(round(fraction * len(of_class)), 1), len(of_class) - 1) if fraction else 0
        held.append(generator.permutation(of_class)[: max(number, 0)])
    return _cut_from_training(dataset, np.sort(np.concatenate(held)))


def hold_out_fold(dataset: DataSet, fold: int, folds: int, seed: int = 0) -> DataSet:
    """Cut one of several folds from the training data for validation, class by class.

    A class's images are shuffled and dealt to the folds in turn, so that every image is held out once. A class with
    fewer images than folds gives one to each fold, some more than once: no fold is without a class that has two images.
    The only image of a class stays in training.

    Args:
        dataset: what to cut; its own ``val``, if any, is replaced.
        fold: which fold is held out, 0…folds - 1.
        folds: how many there are.
        seed: which images go to which fold.

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
    held = []
    for c, of_class in enumerate(indices_by_class(dataset.train.labels, dataset.counts)):
        dealt = generator.permutation(of_class)
        place = fold + c  # the first fold would have all the remainders otherwise
        if len(dealt) >= folds:
            held.append(dealt[place % folds :: folds])
        elif len(dealt) >= 2:
            held.append(dealt[[place % len(dealt)]])
    return _cut_from_training(dataset, np.sort(np.concatenate([*held, np.empty(0, dtype=np.int64)])))


def _cut_from_training(dataset: DataSet, chosen: np.ndarray) -> DataSet:
    """A class does not change its group because a few of its images were held out."""
    rest = np.setdiff1d(np.arange(len(dataset.train)), chosen)
    return replace(dataset, train=dataset.train.subset(rest), val=dataset.train.subset(chosen), cut_by=dataset.counts)


def long_tailed(
    dataset: DataSet,
    imbalance_factor: float,
    *,
    profile: Profile = "exp",
    order: ClassOrder | Sequence[int] = "label",
    subset_seed: int = 0,
    largest: int | None = None,
) -> DataSet:
    """Any data set, made long-tailed: a subset of its training split whose class counts follow a profile.

    Args:
        dataset: what to cut; validation and test splits stay.
        imbalance_factor: how many times the smallest class is smaller than the largest, >= 1.
        profile: ``"exp"``, ``"step"`` or ``"pareto"``; see :func:`long_tail_counts`.
        order: which class is how frequent; see :func:`long_tail_counts`.
        subset_seed: which images; the literature's is 0.
        largest: images in the largest class; default: as many as every class has.

    Example:
        >>> from longtail.data import load
        >>> long_tailed(load("digits"), 10, profile="step").counts
        tensor([124, 124, 124, 124, 124,  12,  12,  12,  12,  12])
    """
    if largest is None:
        largest = int(positive_counts(dataset.counts).min())
    counts = long_tail_counts(
        dataset.num_classes, largest, imbalance_factor, profile=profile, order=order, seed=subset_seed
    )
    if not counts.all():
        none = dataset.class_names[int((counts == 0).nonzero()[0])]
        raise ValueError(
            f"Expected an imbalance factor of at most {largest} for {dataset.name}, whose largest class is to have "
            f"{largest} images, but got {imbalance_factor:g}, which leaves none of class {none!r}. Data of one's own "
            "may be long-tailed as it is: train on it without an imbalance factor."
        )
    train = dataset.train.subset(long_tail_indices(dataset.train.labels, counts, subset_seed))
    cut = dataset.cut
    if cut is not None:  # a cut by label is a cut by place: the first classes of the order are the head
        place = {c: k for k, c in enumerate(classes_in_order(order, dataset.num_classes, subset_seed))}
        cut = Groups(cut.names, tuple(cut.index[place[c]] for c in range(dataset.num_classes)))
    return replace(dataset, name=f"{dataset.name}-lt", train=train, cut=cut, cut_by=None)
