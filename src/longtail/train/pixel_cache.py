"""Pixels of small image files in one file on disk, so that a second start does not open every image."""

import hashlib
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from longtail._io import read_tensors, write_tensors
from longtail._progress import note
from longtail.data import DataSet, FileImages

__all__ = ["Stamps", "cache_folder", "checksum", "read_pixels", "stamps_of", "write_pixels"]

Stamps = tuple[tuple[str, int, int, int], ...]
"""Name, size, time of change and inode of each file."""

_FORMAT = 1


def cache_folder(out: Path | str | None) -> Path:
    """The folder of the cache of a run or a study in ``out``."""
    return Path(out or "runs") / "image-cache"


def stamps_of(dataset: DataSet) -> Stamps | None:
    """The stamps of a data set's files; ``None`` if its images are not files, or some are missing."""
    found = []
    for name, split in dataset.splits.items():
        if not isinstance(split.images, FileImages):
            return None
        root = os.path.realpath(split.images.root)
        for file in split.images.names:
            path = f"{root}/{file}"
            try:
                stat = os.stat(path)  # noqa: PTH116 - a Path takes three times as long
            except (OSError, ValueError):
                return None
            found.append((f"{name}: {path}", stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return tuple(found)


def read_pixels(folder: Path, dataset: DataSet, stamps: Stamps) -> dict[str, Tensor] | None:
    """The pixels of each split, ``None`` if they are not cached, if a file has changed, or if the cache is damaged."""
    file = _file(folder, dataset)
    try:
        if not file.is_file():
            return None
        tensors, about = read_tensors(file)
        if about.get("stamps") != _digest(stamps) or about.get("format") != _FORMAT:
            return None
        if about.get("checksum") == checksum(tensors) and tensors.keys() == dataset.splits.keys():
            return tensors
        problem = "its checksum differs"
    except (OSError, ValueError) as error:
        problem = str(error)
    note(f"The cache {file} is damaged ({problem.rstrip('.')}); images are read from their files.")
    return None


def write_pixels(folder: Path, dataset: DataSet, stamps: Stamps, pixels: Mapping[str, Tensor]) -> None:
    """Write the pixels of each split; a full disk or a folder without permission only costs the next start its time."""
    if stamps_of(dataset) != stamps:  # a file was changed while it was read
        return
    file = _file(folder, dataset)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        about = {"format": _FORMAT, "stamps": _digest(stamps), "checksum": checksum(pixels)}
        write_tensors(file, pixels, about)
    except OSError as error:
        note(f"The images are not cached in {file} ({error.strerror or error}); the next start reads them again.")


def _file(folder: Path, dataset: DataSet) -> Path:
    """A file per data set, named by where its images are."""
    roots = [os.path.realpath(one.images.root) for one in dataset.splits.values() if isinstance(one.images, FileImages)]
    named = hashlib.blake2b("\0".join([dataset.name, *roots]).encode("utf-8", "surrogateescape"), digest_size=8)
    return folder / f"{named.hexdigest()}.safetensors"


def _digest(stamps: Stamps) -> str:
    return hashlib.blake2b(repr(stamps).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def checksum(pixels: Mapping[str, Tensor]) -> int:
    """A checksum against damage; it reads memory at about a gigabyte per second."""
    found = 0
    for name in sorted(pixels):
        found = zlib.crc32(f"{name} {pixels[name].dtype} {tuple(pixels[name].shape)}".encode(), found)
        found = zlib.crc32(pixels[name].contiguous().numpy().data, found)
    return found
