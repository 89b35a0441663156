"""Your own images: opening their path, and reading them into memory if they are small."""

import math
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from longtail._program import program
from longtail._registry import nearest
from longtail.data import CATALOG, ArrayImages, DataSet, FileImages, Images, Split, open_path
from longtail.data.loaders.decode import UnreadableImageError, image_size

__all__ = ["in_memory", "is_small", "open_own", "without_empty_splits"]

SMALL = 64
"""Images up to this side are small."""
_TOGETHER = 64  # images that a process reads at a time; they share little memory, as in a container
_FEW = 8  # times as many, up to which other processes do not help
_WORKERS = 16  # processes, at most


def open_own(path: Path | str) -> DataSet:
    """Your own data set; a run folder is refused."""
    if (Path(path) / "recipe.toml").exists():
        raise ValueError(
            f"Expected {path} to have class folders, but it is a run folder: `{program()} train --resume {path}` "
            "continues the run."
        )
    return without_empty_splits(open_path(path))


def without_empty_splits(dataset: DataSet) -> DataSet:
    """Remove empty splits: a folder may be empty, or every class may have one image and none to hold out."""
    return replace(dataset, val=dataset.val or None, test=dataset.test or None)  # an empty split is false


def is_small(path: Path | str) -> bool:
    """Whether your own images are small, square and of one size: then they are trained on like CIFAR.

    Files are read once per process, and again if the folder or the list has changed.
    """
    found = Path(path)
    if not found.exists():
        near = nearest(str(path), CATALOG)
        raise ValueError(
            f"Expected a data set that `longtail data list` shows, or a path, but got {str(path)!r}{near}."
        )
    return _is_small(found.resolve(), found.stat().st_mtime_ns)


@cache
def _is_small(path: Path, modified: int) -> bool:  # noqa: ARG001 - a key of the cache
    dataset = open_own(path)
    if in_memory(dataset) is not None:  # it will be trained on, so nothing is read twice
        return True
    sizes = _sizes(dataset)  # some may be unreadable
    first = next(sizes, None)
    return first is not None and _is_small_size(first) and all(size == first for size in sizes)


def _sizes(dataset: DataSet) -> Iterator[tuple[int, int]]:
    """Height and width of the images that can be read; of files, from their headers."""
    for split in dataset.splits.values():
        for place in range(len(split)):
            try:
                yield _size(split.images, place)
            except UnreadableImageError:
                continue  # treated as `bad_images` says


def _size(images: Images, place: int) -> tuple[int, int]:
    if isinstance(images, FileImages):
        return image_size(images.path(place))
    _, height, width = images[place].shape
    return height, width


def _is_small_size(size: tuple[int, int]) -> bool:
    return size[0] == size[1] <= SMALL


def in_memory(dataset: DataSet) -> DataSet | None:
    """The data set with its images in memory if they are small, square and of one size; else ``None``.

    The runs of a study share what was read last, unless a file has changed since.
    """
    first = next(_sizes(dataset), None)
    if first is None or not _is_small_size(first):
        return None
    stamps = _stamps(dataset)
    found = _read.get(stamps) or _decoded(dataset)
    if found is None:
        return None
    if stamps is not None:
        _read.clear()
        _read[stamps] = found
    splits = {name: Split(found[name], split.labels) for name, split in dataset.splits.items()}
    return replace(dataset, train=splits["train"], test=splits.get("test"), val=splits.get("val"))


_Stamps = tuple[tuple[str, int, int], ...]
_read: dict[_Stamps | None, dict[str, ArrayImages]] = {}


def _stamps(dataset: DataSet) -> _Stamps | None:
    """The files of a data set with sizes and times; ``None`` if its images are not files, or some are missing."""
    found = []
    for name, split in dataset.splits.items():
        if not isinstance(split.images, FileImages):
            return None
        root = split.images.root.resolve()
        for file in split.images.names:
            try:
                stat = (root / file).stat()
            except OSError:
                return None
            found.append((f"{name}: {root}/{file}", stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def _decoded(dataset: DataSet) -> dict[str, ArrayImages] | None:
    """All images, read by a process per core; ``None`` if one cannot be read, or if they differ in size."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if multiprocessing.current_process().daemon:  # it may start no other
        cores = 0
    found: dict[str, ArrayImages] = {}
    shape: torch.Size | None = None
    for name, split in dataset.splits.items():
        parts: list[Tensor] = []
        chunks = _Chunks(split.images)
        several = isinstance(split.images, FileImages) and len(chunks) > _FEW
        workers = min(cores, _WORKERS) if several else 0
        for part in DataLoader(chunks, batch_size=None, num_workers=workers):
            if part is None or part.shape[1:] != (shape or part.shape[1:]):
                return None  # streaming treats them as `bad_images` says
            shape = part.shape[1:]
            parts.append(part)
        if not parts:  # a split without images
            return None
        found[name] = ArrayImages(torch.cat(parts))
    return found


class _Chunks(Dataset[Tensor | None]):
    """Images in chunks, each a tensor; ``None`` if one cannot be read, or if they differ in size."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __len__(self) -> int:
        return math.ceil(len(self.images) / _TOGETHER)

    def __getitem__(self, number: int) -> Tensor | None:
        places = range(number * _TOGETHER, min((number + 1) * _TOGETHER, len(self.images)))
        try:
            images = [self.images[place] for place in places]
        except UnreadableImageError:
            return None
        return torch.stack(images) if len({image.shape for image in images}) == 1 else None
