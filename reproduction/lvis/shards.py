"""Packed shards: images of one size as raw bytes in a few large files, with labels and source ids.

A shard is two files. ``shard-00000.bin`` holds uint8 pixels ``(n, channels, height, width)``; ``shard-00000.json`` has
their shape, labels and ids. Both are written under a temporary name and renamed, the JSON last, so that a shard whose
JSON exists is whole. ``index.json`` is written after the last shard.
"""

import copy
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail._checks import check_integer, describe
from longtail._io import read_json, write_text

__all__ = ["ShardImages", "ShardWriter"]

_INDEX = "index.json"
_PART = ".part"
_OPEN = 64  # shards mapped at a time: each holds a file descriptor


class ShardWriter:
    """Writes samples to shards and continues after the last whole shard of the folder.

    The end of its ``with`` block finishes the last shard and writes the index; an error discards the unfinished shard.
    After an error or a kill, a new writer of the same folder continues: add the samples from number ``written`` on, and
    all files will be the same as without the interruption.

    Args:
        folder: the folder to write; created if necessary.
        samples_per_shard: number of samples in a full shard.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with ShardWriter(folder.name, samples_per_shard=2) as writer:
        ...     for i in range(3):
        ...         writer.add(torch.full((1, 2, 2), i, dtype=torch.uint8), label=i % 2, source_id=10 + i)
        >>> images = ShardImages(folder.name)
        >>> len(images), images.labels, images.ids, images[2].flatten()
        (3, tensor([0, 1, 0]), tensor([10, 11, 12]), tensor([2, 2, 2, 2], dtype=torch.uint8))
        >>> folder.cleanup()
    """

    def __init__(self, folder: Path | str, samples_per_shard: int = 4096) -> None:
        self.folder = Path(folder)
        self.samples_per_shard = check_integer("samples_per_shard", samples_per_shard, minimum=1)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.written = 0
        """Samples in whole shards."""
        self.last_id: int | None = None
        """Source id of the last of these samples."""
        self.finished = (self.folder / _INDEX).exists()
        """Whether the index exists; then no sample can be added."""
        self._shape: tuple[int, ...] | None = None
        self._shards = 0
        self._file: BinaryIO | None = None
        self._labels: list[int] = []
        self._ids: list[int] = []
        self._notes: list[dict[str, Any]] = []
        for part in self.folder.glob(f"*{_PART}"):
            part.unlink()
        self._take_up()

    def _take_up(self) -> None:
        for shard in _headers(self.folder):
            if shard["samples_per_shard"] != self.samples_per_shard:
                raise ValueError(
                    f"Expected `samples_per_shard` to be {shard['samples_per_shard']}, as in {self.folder}, "
                    f"but got {self.samples_per_shard}."
                )
            size, *shape = shard["shape"]
            if size < self.samples_per_shard and not self.finished:  # killed before the index was written
                _shard(self.folder, self._shards, "json").unlink()
                break
            self._shape, self.last_id = tuple(shape), shard["ids"][-1]
            self.written += size
            self._shards += 1

    def add(self, image: Tensor | NDArray[np.uint8], label: int, source_id: int) -> None:
        """Append a sample, uint8 ``(channels, height, width)``; all samples have the same size."""
        pixels = np.ascontiguousarray(image.numpy() if isinstance(image, Tensor) else image)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape != (self._shape or pixels.shape):
            wanted = "(channels, height, width)" if self._shape is None else str(self._shape)
            raise ValueError(f"Expected `image` to be uint8 of shape {wanted}, but got {pixels.dtype} {pixels.shape}.")
        if self.finished:
            raise ValueError(f"Expected {self.folder} to be open for more samples, but its {_INDEX} is written.")
        self._shape = pixels.shape
        try:
            if self._file is None:
                self._file = _part(_shard(self.folder, self._shards, "bin")).open("wb")
            self._file.write(pixels.data)
        except OSError as error:
            raise self._full(error) from error
        self._labels.append(int(label))
        self._ids.append(int(source_id))
        if len(self._labels) == self.samples_per_shard:
            self._end_shard()

    def note(self, record: dict[str, Any]) -> None:
        """Store a JSON-able record with the current shard, for example about a sample that was left out."""
        self._notes.append(record)

    def close(self) -> None:
        """Finish the last shard and write the index."""
        if self.finished:
            return
        if self._labels:
            self._end_shard()
        index = {
            "samples": self.written,
            "samples_per_shard": self.samples_per_shard,
            "shards": self._shards,
            "shape": self._shape,
            "notes": self._notes,
        }
        try:
            write_text(self.folder / _INDEX, _dump(index))
        except OSError as error:
            raise self._full(error) from error
        self.finished = True

    def discard(self) -> None:
        """Discard the unfinished shard."""
        if self._file is not None:
            with suppress(OSError):  # closing flushes, which fails on a full disk
                self._file.close()
            _part(_shard(self.folder, self._shards, "bin")).unlink(missing_ok=True)
        self._file, self._labels, self._ids, self._notes = None, [], [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self.close()
        except BaseException:
            self.discard()
            raise

    def _end_shard(self) -> None:
        assert self._file is not None
        assert self._shape is not None
        path = _shard(self.folder, self._shards, "bin")
        header = {
            "shape": (len(self._labels), *self._shape),
            "samples_per_shard": self.samples_per_shard,
            "labels": self._labels,
            "ids": self._ids,
            "notes": self._notes,
        }
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            _part(path).replace(path)
            write_text(path.with_suffix(".json"), _dump(header))
        except OSError as error:
            raise self._full(error) from error
        self.written += len(self._labels)
        self.last_id = self._ids[-1]
        self._shards += 1
        self._file, self._labels, self._ids, self._notes = None, [], [], []

    def _full(self, error: OSError) -> OSError:
        return OSError(
            error.errno,
            f"Expected shard {self._shards} to be written, but got: {error.strerror}; "
            f"the {self.written} samples before it are safe, and the same call continues from there",
            str(self.folder),
        )


class ShardImages:
    """The images of a folder of shards, read on access through a memory map, also in ``DataLoader`` workers.

    Args:
        folder: the output of a finished :class:`ShardWriter`.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not (self.folder / _INDEX).exists():
            raise FileNotFoundError(
                f"Expected {self.folder / _INDEX}, but it does not exist: the shards are not complete."
            )
        index = _load(self.folder / _INDEX, ("samples", "samples_per_shard", "shards", "shape", "notes"))
        headers = list(_headers(self.folder))
        labels = [label for header in headers for label in header["labels"]]
        if len(headers) != index["shards"] or len(labels) != index["samples"]:
            raise ValueError(
                f"Expected {index['shards']} shards with {index['samples']} samples in {self.folder}, "
                f"but got {len(headers)} with {len(labels)}."
            )
        self.shape: tuple[int, ...] = tuple(index["shape"] or ())
        """Channels, height and width."""
        self.labels: Tensor = torch.tensor(labels, dtype=torch.int64)
        """Class indices ``(N,)``."""
        self.ids: Tensor = torch.tensor([i for header in headers for i in header["ids"]], dtype=torch.int64)
        """Source ids ``(N,)``."""
        self.notes: tuple[dict[str, Any], ...] = tuple(n for part in (*headers, index) for n in part["notes"])
        """Records of :meth:`ShardWriter.note`."""
        self.left_out: Tensor = self.labels[:0]
        """Labels of samples that were left out; ``longtail data check`` counts them as present."""
        self._per_shard: int = index["samples_per_shard"]
        self._places: Tensor = torch.arange(len(labels))
        self._maps: dict[int, NDArray[np.uint8]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int, /) -> Tensor:
        shard, row = divmod(int(self._places[index]), self._per_shard)
        return torch.from_numpy(np.array(self._map(shard)[row]))

    def subset(self, indices: Tensor, /) -> "ShardImages":
        """Return the images at these indices, in this order."""
        chosen = copy.copy(self)
        chosen.left_out = self.left_out[:0]
        chosen._places, chosen.labels, chosen.ids = self._places[indices], self.labels[indices], self.ids[indices]
        return chosen

    def identity(self) -> bytes:
        """The source ids."""
        return self.ids.numpy().tobytes()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}

    def _map(self, shard: int) -> NDArray[np.uint8]:
        if shard not in self._maps:
            while len(self._maps) >= _OPEN:
                self._maps.pop(next(iter(self._maps)))
            pixels = np.memmap(_shard(self.folder, shard, "bin"), dtype=np.uint8, mode="r")
            self._maps[shard] = np.asarray(pixels).reshape(-1, *self.shape)
        return self._maps[shard]


def _part(path: Path) -> Path:
    return path.with_name(path.name + _PART)


def _shard(folder: Path, number: int, ending: str) -> Path:
    return folder / f"shard-{number:05d}.{ending}"


def _dump(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _load(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    content = read_json(path)
    missing = [key for key in keys if not isinstance(content, dict) or key not in content]
    if missing:
        raise ValueError(f"Expected {path} to have `{missing[0]}`, but got {describe(content)}.")
    found: dict[str, Any] = content
    return found


def _headers(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the header of each whole shard in order."""
    number = 0
    while (path := _shard(folder, number, "json")).exists():
        header = _load(path, ("shape", "samples_per_shard", "labels", "ids", "notes"))
        pixels = path.with_suffix(".bin")
        size, wanted = pixels.stat().st_size if pixels.exists() else 0, int(np.prod(header["shape"], dtype=np.int64))
        if size != wanted:
            raise ValueError(f"Expected {pixels} to have {wanted} bytes, but got {size}.")
        if not len(header["labels"]) == len(header["ids"]) == header["shape"][0]:
            raise ValueError(f"Expected {path} to have {header['shape'][0]} labels and ids, but got another number.")
        yield header
        number += 1
