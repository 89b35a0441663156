"""What there is in a data set: how long its tail is, and what is wrong with its files."""

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from longtail.classes import Groups
from longtail.data.datasets.dataset import DataSet, FileImages, Split
from longtail.data.loaders.decode import UnreadableImageError, decode

__all__ = ["Description", "describe", "draw_tail"]

Place = tuple[str, int]
"""A split's name and an index in it."""


@dataclass(frozen=True)
class Description:
    """What :func:`describe` found."""

    name: str
    class_names: tuple[str, ...]
    sizes: dict[str, int]
    """Images of each split."""
    counts: Tensor
    """Training images of each class."""
    groups: Groups
    empty: tuple[str, ...]
    """Classes without a training image."""
    across: tuple[tuple[str, ...], ...]
    """The same image in more than one split: names, split first."""
    within: tuple[tuple[str, ...], ...]
    """The same image more than once in a split."""
    conflicting: tuple[tuple[str, ...], ...]
    """The same image under different labels, in one split or several: names, with their labels."""
    unreadable: tuple[str, ...]
    """Files that the decoder refuses, and why."""

    @property
    def imbalance_factor(self) -> float:
        """Largest class over smallest, of those that have an image."""
        present = self.counts[self.counts > 0]
        return float(present.max() / present.min()) if present.numel() else float("nan")


def describe(
    dataset: DataSet, *, read_images: bool = True, progress: Callable[[int], None] | None = None, workers: int = 4
) -> Description:
    """Look through a data set.

    Args:
        dataset: what to look through.
        read_images: read every image, to find those that cannot be decoded and those that are there twice.
        progress: called with the number of images read since the last call.
        workers: threads that read.

    Example:
        >>> from longtail.data import load
        >>> found = describe(load("digits-lt", imbalance=50))
        >>> found.sizes, found.imbalance_factor, found.across
        ({'train': 342, 'test': 500}, 62.0, ())
    """
    seen: dict[bytes, list[Place]] = defaultdict(list)
    unreadable: list[str] = []
    if read_images:
        with ThreadPoolExecutor(workers) as pool:
            for part, split in dataset.splits.items():
                for index, found in enumerate(pool.map(lambda i, s=split: _look(s, i), range(len(split)))):
                    if isinstance(found, UnreadableImageError):
                        unreadable.append(str(found))
                    else:
                        seen[found].append((part, index))
                    if progress is not None:
                        progress(1)
    repeated = [places for places in seen.values() if len(places) > 1]
    counts = dataset.counts.tolist()
    named = [tuple(_name(dataset, place) for place in places) for places in repeated]
    spread = [len({part for part, _ in places}) > 1 for places in repeated]
    return Description(
        name=dataset.name,
        class_names=dataset.class_names,
        sizes={part: len(split) for part, split in dataset.splits.items()},
        counts=dataset.counts,
        groups=dataset.groups,
        empty=tuple(name for name, count in zip(dataset.class_names, counts, strict=True) if not count),
        across=tuple(names for names, several in zip(named, spread, strict=True) if several),
        within=tuple(names for names, several in zip(named, spread, strict=True) if not several),
        conflicting=_conflicting(dataset, repeated),
        unreadable=tuple(unreadable),
    )


def _look(split: Split, index: int) -> bytes | UnreadableImageError:
    """A digest of the image's pixels, or why it has none."""
    try:
        images = split.images
        pixels = decode(images.path(index)) if isinstance(images, FileImages) else images[index]
    except UnreadableImageError as error:
        return error
    return hashlib.sha1(str(tuple(pixels.shape)).encode() + pixels.numpy().tobytes(), usedforsecurity=False).digest()


def _name(dataset: DataSet, place: Place) -> str:
    part, index = place
    images = dataset.splits[part].images
    return f"{part}: {images.names[index]}" if isinstance(images, FileImages) else f"{part}: {index}"


def _conflicting(dataset: DataSet, repeated: list[list[Place]]) -> tuple[tuple[str, ...], ...]:
    found = []
    for places in repeated:
        labels = [dataset.class_names[dataset.splits[part].labels[index]] for part, index in places]
        if len(set(labels)) > 1:
            named = zip(places, labels, strict=True)
            found.append(tuple(f"{_name(dataset, place)} ({label})" for place, label in named))
    return tuple(found)


def draw_tail(description: Description, path: Path) -> None:
    """Training images of each class, most frequent first, as a figure. Needs matplotlib (``longtail[report]``)."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    counts = description.counts.numpy()
    order = np.argsort(-counts, kind="stable")
    group = np.asarray(description.groups.index)[order]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a name in a script that the font does not have
        figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
        colours = ("#0072b2", "#56b4e9", "#e69f00")
        for position, (name, colour) in enumerate(zip(description.groups.names, colours, strict=False)):
            places = np.flatnonzero(group == position)
            label = f"{name} ({len(places)} {'class' if len(places) == 1 else 'classes'})"
            axes.bar(places, counts[order][places], width=1.0, color=colour, label=label)
        axes.set_yscale("symlog", linthresh=1)
        axes.set(xlabel="classes, most frequent first", ylabel="training images")
        axes.set_title(description.name, parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(path, dpi=150, format="png")
        plt.close(figure)
