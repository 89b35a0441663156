"""Files that are there whole or not at all, and tensors written without holding them in memory."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

__all__ = ["TensorWriter", "new_file", "plain", "read_tensors", "write_json", "write_tensors", "write_text"]


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary name to write to; it becomes ``path`` when all is written and on disk, and is removed otherwise."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        with suppress(OSError):  # not every file system syncs folders
            os.fsync(folder)
        os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, whole or not at all; what is no number is null, so that every reader takes it."""
    write_text(path, json.dumps(plain(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Plain data, as JSON has it: tensors as lists, what is no number as ``None``."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, float) and (value != value or value in {float("inf"), float("-inf")}):  # noqa: PLR0124 - NaN
        return None
    return value


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write named tensors and what is known of them, whole or not at all: safetensors with JSON in its header."""
    content = save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        {"longtail": json.dumps(metadata)},
    )
    with new_file(path) as temporary:
        temporary.write_bytes(content)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`write_tensors` wrote; nothing in the file is executed."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get("longtail", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118 - no mapping
    except (SafetensorError, json.JSONDecodeError, ValueError) as error:
        raise ValueError(f"Expected {path} to be a whole safetensors file, but it is damaged: {error}.") from error


_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.int32: "I32"}


class TensorWriter:
    """A safetensors file of known shapes, written row by row, so that memory does not grow with the rows.

    Args:
        path: where the file will be, once :meth:`close` was called.
        shapes: for each tensor its type and shape.
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        header: dict[str, Any] = {}
        end = 0
        self._start: dict[str, int] = {}
        self._row: dict[str, int] = {}
        for name, (dtype, shape) in shapes.items():
            row = dtype.itemsize * int(torch.Size(shape[1:]).numel())
            begin, end = end, end + row * shape[0]
            header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
            self._start[name], self._row[name] = begin, row
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._file = self._temporary.open("wb")
        self._data = 8 + len(text)
        try:
            self._file.write(len(text).to_bytes(8, "little") + text)
            self._file.truncate(self._data + end)
        except OSError:
            self.abandon()
            raise

    def write(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Put ``values`` into the rows ``rows`` of a tensor, in ascending order."""
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 == len(rows):
            self._put(name, first, values)
        else:
            for row, value in zip(rows.tolist(), values, strict=True):
                self._put(name, row, value)

    def _put(self, name: str, row: int, values: Tensor) -> None:
        self._file.seek(self._data + self._start[name] + row * self._row[name])
        self._file.write(values.detach().cpu().contiguous().numpy().tobytes())

    def close(self) -> None:
        """Make the file appear under its name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self.path)

    def abandon(self) -> None:
        """Leave nothing behind, unless it was closed."""
        try:
            with suppress(OSError):  # no room for what is still to be written
                self._file.close()
        finally:
            self._temporary.unlink(missing_ok=True)
