"""Pixels of small image files, and features, in files on disk, so that a second start does not open every image."""

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from longtail._io import read_tensors, write_tensors
from longtail._progress import note
from longtail.data import FileImages


def cache_folder(out: Path | str | None) -> Path:
    """The folder of the cache of a run or a study in ``out``."""
    return Path(out or "runs") / "image-cache"


def paths_of(images: FileImages) -> list[str]:
    """The paths of all files, with symbolic links resolved."""
    root = os.path.realpath(images.root)
    return [f"{root}/{name}" for name in images.names]


def stamp_of(path: str) -> tuple[str, int, int, int]:
    """Name, size, time of change and inode of a file."""
    stat = os.stat(path)  # noqa: PTH116 - a Path takes three times as long
    return path, stat.st_size, stat.st_mtime_ns, stat.st_ino


def read_cache(file: Path, key: str) -> dict[str, Tensor] | None:
    """The tensors that were written with this key; ``None`` if there are none, or if the file is damaged."""
    if not file.is_file():
        return None
    try:
        tensors, about = read_tensors(file)
        if about.get("key") != key:
            return None
        if about.get("checksum") == _checksum(tensors):
            return tensors
        problem = "its checksum differs"
    except (OSError, ValueError) as error:
        problem = str(error)
    note(f"The cache {file} is damaged ({problem.rstrip('.')}); it will be rebuilt.")
    return None


def write_cache(file: Path, key: str, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors with their key; errors are only noted, and the next start takes as long."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(file, tensors, {"key": key, "checksum": _checksum(tensors)})
    except OSError as error:
        note(f"The cache {file} cannot be written ({error.strerror or error}); the next start will take as long.")


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    """A checksum against damage; it reads memory at about a gigabyte per second."""
    found = 0
    for name in sorted(tensors):
        found = zlib.crc32(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode(), found)
        found = zlib.crc32(tensors[name].contiguous().numpy().data, found)
    return found
