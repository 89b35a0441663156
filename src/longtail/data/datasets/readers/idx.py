"""IDX, the file format of MNIST and Fashion-MNIST."""

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch
from torch import Tensor

__all__ = ["read_idx"]

_UINT8 = 0x08  # type code of the format
_MOST_DIMENSIONS = 8
_CHUNK = 1 << 20


def read_idx(path: str | os.PathLike[str]) -> Tensor:
    """Return the uint8 tensor in an IDX file, such as ``train-labels-idx1-ubyte.gz``.

    The file has two zero bytes, the type (8: uint8), the number of dimensions, the sizes as big-endian 32-bit integers,
    and the values.

    Args:
        path: the file, compressed with gzip or not.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it is not an IDX file of uint8, is truncated or damaged, or is longer than its sizes say.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "labels-idx1-ubyte"
        ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes([5, 0, 4]))
        ...     read_idx(path)
        tensor([5, 0, 4], dtype=torch.uint8)
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            return _read(path, cast(IO[bytes], gzip.GzipFile(fileobj=file)) if compressed else file)
    except FileNotFoundError:
        raise FileNotFoundError(f"Expected {path} to be an IDX file, but it does not exist.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(f"Expected {path} to be a whole gzip file, but it is truncated or damaged.") from None


def _read(path: Path, file: IO[bytes]) -> Tensor:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise ValueError(f"Expected {path} to be an IDX file, but its first bytes are {magic.hex(' ') or 'missing'}.")
    if magic[2] != _UINT8:
        raise ValueError(f"Expected {path} to hold uint8 (IDX type 8), but got IDX type {magic[2]}.")
    if not 1 <= magic[3] <= _MOST_DIMENSIONS:
        raise ValueError(f"Expected {path} to have 1…{_MOST_DIMENSIONS} dimensions, but got {magic[3]}.")
    header = file.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        raise ValueError(f"Expected {path} to have {magic[3]} sizes, but it ends after {4 + len(header)} bytes.")
    sizes = struct.unpack(f">{magic[3]}I", header)
    expected = math.prod(sizes)
    content = bytearray()
    # One byte more than expected, in chunks: the sizes may be damaged, and gzip checks its sum at the end.
    while len(content) <= expected and (chunk := file.read(min(_CHUNK, expected + 1 - len(content)))):
        content += chunk
    if len(content) != expected:
        found = f"only {len(content)}" if len(content) < expected else "more"
        raise ValueError(f"Expected {path} to hold {expected} values, as its sizes {sizes} say, but got {found}.")
    return torch.from_numpy(np.frombuffer(content, np.uint8).reshape(sizes))
