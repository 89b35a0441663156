"""IDX, the format of MNIST and Fashion-MNIST: a magic number, the sizes, the bytes; compressed with gzip or not."""

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

_UINT8 = 0x08  # the type that images and labels have
_MOST_DIMENSIONS = 8
_CHUNK = 1 << 20


def read_idx(path: str | os.PathLike[str]) -> Tensor:
    """Read an IDX file of bytes, such as ``train-images-idx3-ubyte`` or ``train-labels-idx1-ubyte.gz``.

    ======  ==========================================================
    bytes   what
    ======  ==========================================================
    0-1     zero
    2       type of the values: 8, which is uint8
    3       how many dimensions there are, d
    4 d     the sizes, big-endian; the first is the number of examples
    rest    the values, row after row
    ======  ==========================================================

    Args:
        path: the file; whether it is compressed is seen from its first bytes, not from its name.

    Returns:
        uint8 tensor with the sizes of the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no IDX file of bytes, is cut off, damaged, or longer than it says.

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
        raise FileNotFoundError(f"Expected {path} to be an IDX file, but there is none.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(f"Expected {path} to be a whole gzip file, but it is cut off or damaged.") from None


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
        raise ValueError(f"Expected {path} to have {magic[3]} sizes, but it is cut off after {4 + len(header)} bytes.")
    sizes = struct.unpack(f">{magic[3]}I", header)
    expected = math.prod(sizes)
    content = bytearray()
    # One byte more than there should be, in chunks: sizes may be damaged, and the end is where gzip checks its sum.
    while len(content) <= expected and (chunk := file.read(min(_CHUNK, expected + 1 - len(content)))):
        content += chunk
    if len(content) != expected:
        found = f"only {len(content)}" if len(content) < expected else "more"
        raise ValueError(f"Expected {path} to hold {expected} values, as its sizes {sizes} say, but got {found}.")
    return torch.from_numpy(np.frombuffer(content, np.uint8).reshape(sizes))
