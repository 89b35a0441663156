"""IDX, the file format of MNIST and Fashion-MNIST."""

import gzip
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

__all__ = ["read_idx"]


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
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    except FileNotFoundError:
        raise FileNotFoundError(f"Expected {path} to be an IDX file, but it does not exist.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(f"Expected {path} to be a whole gzip file, but it is truncated or damaged.") from None
    start = 4 + 4 * content[3] if len(content) > 4 else 0
    if content[:3] != b"\0\0\x08" or start <= 4 or len(content) < start:
        raise ValueError(f"Expected {path} to be an IDX file of uint8, but its first bytes are {content[:4].hex(' ')}.")
    sizes = struct.unpack_from(f">{content[3]}I", content, 4)
    if len(content) - start != math.prod(sizes):
        raise ValueError(
            f"Expected {path} to hold {math.prod(sizes)} values, as its sizes {sizes} say, "
            f"but got {len(content) - start}."
        )
    return torch.from_numpy(np.frombuffer(bytearray(content), np.uint8, offset=start).reshape(sizes))
