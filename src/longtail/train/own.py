"""Your own images: opening their path, and reading them into memory if they are small."""

import hashlib
import math
import multiprocessing
import os
import statistics
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from longtail._program import program
from longtail._progress import phase
from longtail._registry import nearest
from longtail.data import (
    CATALOG,
    ArrayImages,
    DataSet,
    FeatureVectors,
    FileImages,
    Images,
    Split,
    Texts,
    is_features,
    open_path,
)
from longtail.data.datasets.splits import number_held_out
from longtail.data.loaders.decode import BadImages, UnreadableImageError, image_size
from longtail.train.cache import paths_of, read_cache, stamp_of, write_cache

SMALL = 64
"""Images up to this side are small."""
_TOGETHER = 2**18  # pixels that a process reads at a time: few messages, and little shared memory, as in a container
_FEW = 512  # images, up to which other processes do not help
_WORKERS = 16  # processes, at most
_VALIDATION = 0.1  # that is held out by default
_KEPT = 4  # data sets that stay in memory
_MOST = 2**33  # bytes of one of them: 700,000 images of 64 x 64 pixels
_SAMPLED = 64  # images whose headers say how large the images are, if they are not small


def open_own(path: Path | str, **opening: Any) -> DataSet:
    """Your own data set, opened with these options of :func:`open_path`; a run folder is refused."""
    if (Path(path) / "recipe.toml").exists():
        raise ValueError(
            f"Expected {path} to have class folders, but it is a run folder: `{program()} train --resume {path}` "
            "continues the run."
        )
    if is_features(path) and Path(path).is_file():
        return _open_features(Path(path).resolve(), _times(Path(path)), **opening)
    return without_empty_splits(open_path(path, **opening))


@lru_cache(maxsize=1)  # the runs of a study share the features
def _open_features(path: Path, times: tuple[int, ...], **opening: Any) -> DataSet:  # noqa: ARG001 - a key of the cache
    return without_empty_splits(open_path(path, **opening))


def _times(path: Path) -> tuple[int, ...]:
    """When a list or a folder, its subfolders, the files directly in it, and labels beside features were changed."""
    found = [path, *([path.with_suffix(".labels.npy"), path.with_name("labels.npy")] if path.is_file() else [])]
    for folder, folders, files in os.walk(path):
        found += [Path(folder, name) for name in (folders + files if Path(folder) == path else folders)]
    return tuple(one.stat().st_mtime_ns for one in found if one.exists())


def without_empty_splits(dataset: DataSet) -> DataSet:
    """Remove empty splits: a folder may be empty, or every class may have one image and none to hold out."""
    return replace(dataset, val=dataset.val or None, test=dataset.test or None)  # an empty split is false


def check_no_texts(data: DataSet | str) -> None:
    """Raise an error if a data set, or the one with this name, has texts: they are trained on as features."""
    if isinstance(data, str):
        name, texts = data, data in CATALOG and CATALOG[data].texts
    else:
        name, texts = data.name, isinstance(data.train.images, Texts)
    if texts:
        how = "`longtail.embedding.embed_texts`"
        if name in CATALOG:
            how = f"`{program()} embed {name} --model FOLDER --out {name}.npz`"
        raise ValueError(f"Expected images or features, but {name} has texts; {how} makes features to train on.")


@dataclass(frozen=True)
class OwnImages:
    """What the defaults for your own images or features depend on."""

    number: int
    """Training images, before any are held out."""
    classes: int
    height: int
    """In pixels; the median, if images differ in size."""
    width: int
    small: bool
    """Whether images are small, square and of one size: then the defaults are the CIFAR recipe."""
    features: int = 0
    """Length of the vectors, if they are features."""
    splits: frozenset[str] = frozenset()
    """``val`` and ``test``, if the data has them; otherwise they may be held out."""
    counts: tuple[int, ...] = ()
    """Training images per class, if they are known and any can be held out: they are not in groups."""

    def training(self, settings: Mapping[str, Any]) -> int:
        """The number of training images that hold-outs by these settings leave; without counts, about."""
        shares = {"test": settings.get("test") or 0.0, "val": settings.get("validation", _VALIDATION)}
        left = self.counts or (self.number,)
        for split, share in shares.items():
            if split not in self.splits:
                left = tuple(number - number_held_out(number, float(share)) for number in left)
        return max(sum(left), 1)


def listed_images(name: str) -> OwnImages | None:
    """What the defaults for a data set by name depend on, if they are fitted to it; its files are not needed."""
    entry = CATALOG.get(name)
    if entry is None or entry.image_size is None or entry.recipe is not None:
        return None
    splits = frozenset(entry.sizes) - {"train"}
    return OwnImages(entry.sizes["train"], entry.num_classes, *entry.image_size, small=False, splits=splits)


def measure_path(path: Path | str, cache: Path | None = None, *, quick: bool = False, **opening: Any) -> OwnImages:
    """What the defaults for the images in a folder or a list depend on.

    Files are read once per process, and again if the list, the folder or one of its subfolders has changed.

    Args:
        path: the folder or the list.
        cache: the folder of the cache on disk; ``None``: there is no cache.
        quick: take some headers for all, and do not read images that will not be used.
        **opening: options of :func:`longtail.data.open_path`.
    """
    found = Path(path)
    if not found.exists():
        near = nearest(str(path), CATALOG)
        raise ValueError(
            f"Expected a data set that `longtail data list` shows, or a path, but {str(path)!r} does not exist{near}."
        )
    key = (str(found.resolve()), _times(found), quick, *opening.items())
    if key not in _described:
        _described[key] = measure_images(open_own(found.resolve(), **opening), cache, quick=quick)
    return _described[key]


_described: dict[Hashable, OwnImages] = {}


def measure_images(dataset: DataSet, cache: Path | None = None, *, quick: bool = False) -> OwnImages:
    """What the defaults for your own data set depend on; arguments as for :func:`measure_path`."""
    numbers, splits = (len(dataset.train), dataset.num_classes), frozenset(dataset.splits) - {"train"}
    counts = tuple(dataset.counts.tolist()) if dataset.train.groups is None else ()
    if isinstance(dataset.train.images, FeatureVectors):
        length = len(dataset.train.images[0])
        return OwnImages(*numbers, 0, 0, small=False, features=length, splits=splits, counts=counts)
    pixels = None if quick else _small_pixels(dataset, cache)  # they will be trained on, so nothing is read twice
    if pixels is not None:
        height, width = pixels["train"].shape[2:]
        return OwnImages(*numbers, height, width, small=True, splits=splits, counts=counts)
    sizes = _sizes(dataset, quick)
    if not sizes and isinstance(dataset.train.images, FileImages):
        raise ValueError(
            f"Expected images in {dataset.name}, but none can be read, for example {dataset.train.images.path(0)}; if "
            "it does not exist, `image_root` sets the folder that the paths of a list are relative to."
        )
    small = bool(sizes) and _is_small_size(sizes[0]) and len(set(sizes)) == 1  # some are unreadable
    height, width = (round(statistics.median(side)) for side in zip(*sizes, strict=True)) if sizes else (0, 0)
    return OwnImages(*numbers, height, width, small, splits=splits, counts=counts)


def _sizes(dataset: DataSet, quick: bool) -> list[tuple[int, int]]:
    """Height and width of images that can be read, from their headers: of some, or of all if these are small."""
    all_ = _places(dataset)
    sizes = _readable_sizes(all_[:: max(1, len(all_) // _SAMPLED)])
    may_be_small = not quick and bool(sizes) and _is_small_size(sizes[0]) and len(set(sizes)) == 1
    return _readable_sizes(all_) if may_be_small else sizes


def _places(dataset: DataSet) -> list[tuple[Images, int]]:
    return [(split.images, place) for split in dataset.splits.values() for place in range(len(split))]


def _readable_sizes(places: Iterable[tuple[Images, int]]) -> list[tuple[int, int]]:
    """Sizes without those of unreadable images, which are treated as ``bad_images`` says."""
    found = []
    for images, place in places:
        with suppress(UnreadableImageError):
            found.append(image_size(images.path(place)) if isinstance(images, FileImages) else _shape(images[place]))
    return found


def _shape(image: Tensor) -> tuple[int, int]:
    _, height, width = image.shape
    return height, width


def _is_small_size(size: tuple[int, int]) -> bool:
    return size[0] == size[1] <= SMALL


def in_memory(dataset: DataSet, cache: Path | None = None, bad_images: BadImages = "error") -> DataSet | None:
    """The data set with its images in memory if they are small, square and of one size; else ``None``.

    More than 8 GiB of pixels stay in their files, and are read in every epoch. The runs of a process share what was
    read, unless a file has changed since.

    Args:
        dataset: the data set.
        cache: the folder of the cache on disk; ``None``: there is no cache.
        bad_images: raise an error that names the images that cannot be read, or leave them out; the data set then lists
            them in ``unreadable``.
    """
    if isinstance(dataset.train.images, FeatureVectors):
        return dataset
    pixels = _small_pixels(dataset, cache)
    if pixels is None:
        return None
    splits: dict[str, Split] = {}
    errors: list[UnreadableImageError] = []
    for name, split in dataset.splits.items():
        kept = pixels.get(f"{name}.kept")
        if kept is not None:
            errors += _errors(split.images, set(range(len(split))) - set(kept.tolist()))
            split = split.subset(kept)  # noqa: PLW2901
        splits[name] = replace(split, images=ArrayImages(pixels[name]))
    if errors and bad_images == "error":
        raise UnreadableImageError.of_several(errors, f"images of {dataset.name}")
    if not all(map(len, splits.values())):
        return None  # the loader of a split without a readable image raises an error
    unreadable = {str(error.path): error.reason for error in errors}
    return replace(dataset, **splits, unreadable=unreadable)  # type: ignore[arg-type]


def _errors(images: Images, places: Iterable[int]) -> Iterator[UnreadableImageError]:
    """Why the images at these places could not be read."""
    for place in sorted(places):
        try:
            images[place]
        except UnreadableImageError as error:
            yield error
        else:
            assert isinstance(images, FileImages)
            yield UnreadableImageError(images.path(place), "it could not be read at first")


def _small_pixels(dataset: DataSet, cache: Path | None) -> dict[str, Tensor] | None:
    """The pixels of each split, if they are small enough for :func:`in_memory`.

    If some images of a split cannot be read, the places of the others are in ``SPLIT.kept``.
    """
    check_no_texts(dataset)
    places = _places(dataset)
    size = next((size for place in places for size in _readable_sizes([place])), None)
    if size is None or not _is_small_size(size) or 3 * len(places) * math.prod(size) > _MOST:
        return None
    key = _key(dataset)
    found = _read.pop(key, None) if key else None
    if found is None and key and cache is not None:
        found = read_cache(_cache_file(cache, dataset), key)
    if found is None:
        found = _decoded(dataset, max(1, _TOGETHER // math.prod(size)))
        if found is not None and key and cache is not None and _key(dataset) == key:  # no file was changed meanwhile
            write_cache(_cache_file(cache, dataset), key, found)
    if found is not None and key:
        _read[key] = found
        while len(_read) > _KEPT:
            del _read[next(iter(_read))]  # the one that was used least recently
    return found


_read: dict[str, dict[str, Tensor]] = {}


def _key(dataset: DataSet) -> str:
    """A digest of the names, sizes and times of all files; empty if images are not files."""
    found = hashlib.blake2b(digest_size=16)
    for name, split in dataset.splits.items():
        if not isinstance(split.images, FileImages):
            return ""
        for path in paths_of(split.images):
            stamp: object = path
            with suppress(OSError, ValueError):  # it does not exist
                stamp = stamp_of(path)
            found.update(f"{name} {stamp}".encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def _cache_file(folder: Path, dataset: DataSet) -> Path:
    """A file per data set, named by where its images are."""
    roots = [os.path.realpath(one.images.root) for one in dataset.splits.values() if isinstance(one.images, FileImages)]
    named = hashlib.blake2b("\0".join([dataset.name, *roots]).encode("utf-8", "surrogateescape"), digest_size=8)
    return folder / f"pixels-{named.hexdigest()}.safetensors"


def _decoded(dataset: DataSet, together: int) -> dict[str, Tensor] | None:
    """The pixels of :func:`_small_pixels`, read by a process per core; ``None`` if images differ in size.

    Args:
        dataset: the images.
        together: how many a process reads at a time.
    """
    most = 0 if multiprocessing.current_process().daemon else _WORKERS  # it may start no other
    parts: dict[str, list[Tensor]] = {}
    found: dict[str, Tensor] = {}
    shape: torch.Size | None = None
    number = sum(map(len, dataset.splits.values()))
    with phase(f"Reading {number:,} images", number) as progress:
        for name, split in dataset.splits.items():
            parts[name], bad = [], list[int]()
            chunks = _Chunks(split.images, together)
            several = isinstance(split.images, FileImages) and len(split) > _FEW
            workers = min(cores(), most) if several else 0
            for chunk in DataLoader(chunks, batch_size=None, num_workers=workers):
                if chunk is None:
                    return None
                part, unread = chunk
                bad += unread
                progress.advance(len(part) + len(unread))
                if len(part):
                    shape = shape or part.shape[1:]
                    if part.shape[1:] != shape:
                        return None
                    parts[name].append(part)
            if bad:
                kept = torch.ones(len(split), dtype=torch.bool)
                kept[bad] = False
                found[f"{name}.kept"] = kept.nonzero().flatten()
    if shape is None:
        return None
    nothing = torch.empty(0, *shape, dtype=torch.uint8)
    return found | {name: torch.cat([nothing, *some]) for name, some in parts.items()}


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Chunks(Dataset[tuple[Tensor, list[int]] | None]):
    """Images in chunks: a tensor, and the places of those that cannot be read; ``None`` if they differ in size."""

    def __init__(self, images: Images, together: int) -> None:
        self.images, self.together = images, together

    def __len__(self) -> int:
        return math.ceil(len(self.images) / self.together)

    def __getitem__(self, number: int) -> tuple[Tensor, list[int]] | None:
        images, bad = [], []
        for place in range(number * self.together, min((number + 1) * self.together, len(self.images))):
            try:
                images.append(self.images[place])
            except UnreadableImageError:
                bad.append(place)
        if len({image.shape for image in images}) > 1:
            return None
        return torch.stack(images) if images else torch.empty(0), bad
