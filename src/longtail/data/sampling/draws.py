"""Chance as data: everything random in an epoch is a pure function of ``(seed, epoch)``, read by slice."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail._checks import check_integer

__all__ = ["Draws", "Purpose"]

_WORDS = 4  # 64-bit words that Philox makes of one value of its counter
_SEED_BITS, _EPOCH_BITS, _PURPOSE_BITS, _STREAM_BITS = 64, 32, 8, 24  # the 128 bits of Philox's key
_ROW_BITS = 63  # rows are numbered in the lowest word of the counter; blocks of columns in the next


class Purpose(IntEnum):
    """What words are drawn for; each has numbers of its own. The values are part of the key: add, never renumber."""

    ORDER = 0
    """The epoch's permutation."""
    UNIFORMS = 1
    """Parameters of augmentations."""
    PICKS = 2
    """Samples picked with replacement."""
    CLASSES = 3
    """A class-aware sampler's lists of classes."""
    SAMPLES = 4
    """A class-aware sampler's lists of the samples of each class."""


def _check_bits(name: str, value: object, bits: int) -> int:
    """``value`` as an int in [0, 2^bits)."""
    number = check_integer(name, value, minimum=0)
    if number >= 2**bits:
        raise ValueError(f"Expected `{name}` to be an integer >= 0 and < 2^{bits}, but got {number}.")
    return number


@dataclass(frozen=True)
class Draws:
    r"""The random numbers of one epoch, a pure function of ``(seed, epoch)``.

    They come from the counter-based generator Philox4x64-10 (``numpy.random.Philox``). Its key holds the seed (64
    bits), the epoch (32), what the numbers are for (8) and the stream (24), so that no two of these share a key; its
    counter holds the row and the column. A row is therefore computed from its number alone: rows ``[start, stop)``
    cost :math:`O(stop - start)` and equal the same rows of the whole, in one process or eight, from the start or after
    resuming. All is made on the CPU from raw 64-bit words, so that no device and no version of numpy changes it.

    Args:
        seed: the run's seed, in [0, 2^64).
        epoch: counted from 0, below 2^32.

    Example:
        >>> draws = Draws(seed=0, epoch=3)
        >>> draws.permutation(8)
        tensor([7, 6, 4, 1, 0, 5, 2, 3])
        >>> draws.uniforms(0, 3, width=2)
        tensor([[0.3513, 0.5168],
                [0.3439, 0.1896],
                [0.4241, 0.5437]])
        >>> draws.uniforms(2, 3, width=2)
        tensor([[0.4241, 0.5437]])
    """

    seed: int
    epoch: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", _check_bits("seed", self.seed, _SEED_BITS))
        object.__setattr__(self, "epoch", _check_bits("epoch", self.epoch, _EPOCH_BITS))

    def permutation(self, n: int) -> Tensor:
        """The epoch's order of ``n`` samples: each gets a random word, and they are sorted by it, ties by index.

        Returns:
            int64 of shape ``(n,)``, every number below ``n`` once.
        """
        n = check_integer("n", n, minimum=0)
        return torch.from_numpy(np.argsort(self.line(n, Purpose.ORDER), kind="stable").astype(np.int64))

    def uniforms(self, start: int, stop: int, width: int, stream: int = 0) -> Tensor:
        r"""Numbers in [0, 1) for positions ``start`` to ``stop`` of the epoch: augmentations' parameters.

        Each is the top 24 bits of a word, :math:`\lfloor w / 2^{40} \rfloor / 2^{24}`: float32 holds it exactly, and
        none is 1.

        Args:
            start: the first position; a position is a place in the epoch's order, not a sample's index.
            stop: the position after the last.
            width: how many numbers a position gets. More of them leave the first as they are: row ``i`` of width ``w``
                is the beginning of row ``i`` of any larger width.
            stream: separates views and purposes; streams are independent of each other, whatever their widths.

        Returns:
            float32 of shape ``(stop - start, width)``; row ``i`` belongs to position ``start + i``.
        """
        words = self.words(start, stop, width, Purpose.UNIFORMS, stream)
        return torch.from_numpy((words >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))

    def words(self, start: int, stop: int, width: int, purpose: Purpose, stream: int = 0) -> NDArray[np.uint64]:
        """The random 64-bit words that all else is made of, ``(stop - start, width)``.

        Four neighbouring columns are one value of the counter: row ``i``, columns ``4 b`` to ``4 b + 3`` come from the
        counter ``2^64 b + i + 1``.
        """
        stop = _check_bits("stop", stop, _ROW_BITS)
        start = check_integer("start", start, minimum=0)
        if start > stop:
            raise ValueError(f"Expected `start` to be at most `stop` = {stop}, but got {start}.")
        width = check_integer("width", width, minimum=1)
        stream = _check_bits("stream", stream, _STREAM_BITS)
        rows, blocks = stop - start, -(-width // _WORDS)
        key = [self.seed, (self.epoch << _PURPOSE_BITS | Purpose(purpose)) << _STREAM_BITS | stream]
        philox: Any = np.random.Philox(  # it counts before it draws, hence the + 1 above
            key=np.array(key, dtype=np.uint64), counter=np.array([start, 0, 0, 0], dtype=np.uint64)
        )
        words = np.empty((rows, blocks, _WORDS), dtype=np.uint64)
        for block in range(blocks):
            words[:, block] = philox.random_raw(rows * _WORDS).reshape(rows, _WORDS)
            philox.advance(2**64 - rows)  # to `start` of the next block
        return words.reshape(rows, blocks * _WORDS)[:, :width]

    def line(self, n: int, purpose: Purpose, stream: int = 0) -> NDArray[np.uint64]:
        """The first ``n`` words in one line: rows of four, end to end."""
        return self.words(0, -(-n // _WORDS), _WORDS, purpose, stream).reshape(-1)[:n]
