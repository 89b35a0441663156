"""IDX files, against bytes written here."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from longtail.data.datasets.readers.idx import read_idx


def idx(array: np.ndarray, code: int = 8) -> bytes:
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


IMAGES = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("shape", [(7,), (5, 28, 28), (0, 28, 28)])
def test_round_trip(tmp_path: Path, shape: tuple[int, ...], compressed: bool) -> None:
    array = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    path = tmp_path / "a file-idx-ubyte"  # the name says nothing about compression
    path.write_bytes(gzip.compress(idx(array)) if compressed else idx(array))
    tensor = read_idx(path)
    assert tensor.dtype == torch.uint8
    assert tensor.shape == shape
    assert np.array_equal(tensor.numpy(), array)
    tensor.add_(1)  # it is writable


@pytest.mark.parametrize("compressed", [False, True])
def test_truncated_anywhere(tmp_path: Path, compressed: bool) -> None:
    content = gzip.compress(idx(IMAGES[:1])) if compressed else idx(IMAGES[:1])
    path = tmp_path / "images"
    for length in [*range(40), *range(40, len(content), 13), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"^Expected .*images to .*\.$"):
            read_idx(path)


def test_gzip_damaged_anywhere(tmp_path: Path) -> None:
    content = gzip.compress(idx(IMAGES))
    path = tmp_path / "images.gz"
    wrong = 0
    for position in range(10, len(content), 97):
        damaged = bytearray(content)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        try:
            read_idx(path)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
            wrong += 1
    assert wrong == len(range(10, len(content), 97))  # gzip's checksum sees every one


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "first bytes"),
        (b"\x89PNG\r\n\x1a\n", "first bytes are 89 50 4e 47"),
        (idx(IMAGES, code=0x0D), "first bytes are 00 00 0d"),
        (bytes([0, 0, 8, 0]), "first bytes"),
        (bytes([0, 0, 8, 3]) + bytes(5), "first bytes"),
        (idx(IMAGES) + b"x", "3920 values.*but got 3921"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "but got 0"),  # 2^96 values: no memory is allocated for them
        (gzip.compress(idx(IMAGES)) + b"rubbish", "whole gzip file"),
    ],
    ids=range(8),  # gzip writes the time into its bytes
)
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_idx(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none-idx1-ubyte to be an IDX file, but it does not exist\.$"):
        read_idx(tmp_path / "none-idx1-ubyte")
