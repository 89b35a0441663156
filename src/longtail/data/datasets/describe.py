"""A description of a data set: class counts, duplicates, conflicting labels and unreadable files."""

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
from longtail.data.loaders.decode import UnreadableImageError

__all__ = ["Description", "describe", "draw_tail"]

_Place = tuple[str, int]  # a split and an index in it


@dataclass(frozen=True)
class Description:
    """The result of :func:`describe`."""

    name: str
    class_names: tuple[str, ...]
    sizes: dict[str, int]
    """Images per split."""
    counts: Tensor
    """Training images per class."""
    groups: Groups
    empty: tuple[str, ...]
    """Classes without training images."""
    across: tuple[tuple[str, ...], ...]
    """The same image in more than one split, as ``split: name``."""
    within: tuple[tuple[str, ...], ...]
    """The same image more than once in one split."""
    conflicting: tuple[tuple[str, ...], ...]
    """The same image with different labels, as ``split: name (label)``."""
    unreadable: tuple[str, ...]
    """Files that cannot be decoded, and why."""

    @property
    def imbalance_factor(self) -> float:
        """Largest class over smallest, among classes with images."""
        present = self.counts[self.counts > 0]
        return float(present.max() / present.min()) if present.numel() else float("nan")


def describe(
    dataset: DataSet, *, read_images: bool = True, progress: Callable[[int], None] | None = None, workers: int = 4
) -> Description:
    """Return a description of a data set.

    Args:
        dataset: the data set.
        read_images: read every image, to find duplicates and images that cannot be decoded.
        progress: called with the number of images read since the last call.
        workers: number of threads that read.

    Example:
        >>> from longtail.data import load
        >>> found = describe(load("digits-lt", imbalance=50))
        >>> found.sizes, found.imbalance_factor, found.across
        ({'train': 342, 'test': 500}, 62.0, ())
    """
    seen: dict[bytes, list[_Place]] = defaultdict(list)
    unreadable: list[str] = []
    if read_images:
        with ThreadPoolExecutor(workers) as pool:
            for part, split in dataset.splits.items():
                for index, found in enumerate(pool.map(lambda i, s=split: _digest(s, i), range(len(split)))):
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


def _digest(split: Split, index: int) -> bytes | UnreadableImageError:
    """Return a digest of the pixels, or the error."""
    try:
        pixels = split.images[index]
    except UnreadableImageError as error:
        return error
    return hashlib.sha1(str(tuple(pixels.shape)).encode() + pixels.numpy().tobytes(), usedforsecurity=False).digest()


def _name(dataset: DataSet, place: _Place) -> str:
    part, index = place
    images = dataset.splits[part].images
    return f"{part}: {images.names[index]}" if isinstance(images, FileImages) else f"{part}: {index}"


def _conflicting(dataset: DataSet, repeated: list[list[_Place]]) -> tuple[tuple[str, ...], ...]:
    found = []
    for places in repeated:
        labels = [dataset.class_names[dataset.splits[part].labels[index]] for part, index in places]
        if len(set(labels)) > 1:
            named = zip(places, labels, strict=True)
            found.append(tuple(f"{_name(dataset, place)} ({label})" for place, label in named))
    return tuple(found)


def draw_tail(description: Description, path: Path) -> None:
    """Save a figure of the training images per class. Needs matplotlib (``longtail[report]``)."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    counts = description.counts.numpy()
    order = np.argsort(-counts, kind="stable")
    group = np.asarray(description.groups.index)[order]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the font lacks the script of a class name
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
        axes.legend(frameon=False, loc="upper right")
        figure.savefig(path, dpi=150, format="png")
        plt.close(figure)
