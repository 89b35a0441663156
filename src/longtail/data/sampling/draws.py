"""Random numbers of an epoch as a pure function of ``(seed, epoch)``, available by slice."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail._checks import check_integer

_WORDS = 4  # 64-bit words of Philox per counter value
_SEED_BITS, _EPOCH_BITS, _PURPOSE_BITS, _STREAM_BITS = 64, 32, 8, 24  # the 128 bits of Philox's key
_ROW_BITS = 63  # rows are in the lowest word of the counter, blocks of columns in the next


class Purpose(IntEnum):
    """The use of random words; each has its own numbers. The values are part of the key: never renumber them."""

    ORDER = 0
    """Permutation of the epoch."""
    UNIFORMS = 1
    """Parameters of augmentations."""
    PICKS = 2
    """Samples picked with replacement."""
    CLASSES = 3
    """A class-aware sampler's lists of classes."""
    SAMPLES = 4
    """A class-aware sampler's lists of the samples of each class."""


def _check_bits(name: str, value: object, bits: int) -> int:
    """Return ``value`` as an int in [0, 2^bits)."""
    number = check_integer(name, value, minimum=0)
    if number >= 2**bits:
        raise ValueError(f"Expected `{name}` to be an integer >= 0 and < 2^{bits}, but got {number}.")
    return number


@dataclass(frozen=True)
class Draws:
    r"""The random numbers of one epoch, a pure function of ``(seed, epoch)``.

    They come from the counter-based generator Philox4x64-10 (``numpy.random.Philox``). Its key holds the seed (64
    bits), the epoch (32), the purpose (8) and the stream (24); its counter holds the row and the column. A row is
    computed from its number alone, so rows ``[start, stop)`` cost :math:`O(stop - start)` and are the same in one
    process or eight, from the start or after resuming. All numbers are made on the CPU from raw 64-bit words, so that
    they do not depend on the device or the version of numpy.

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
        """Return the order of ``n`` samples, int64 ``(n,)``: they are sorted by a random word, ties by index."""
        n = check_integer("n", n, minimum=0)
        return torch.from_numpy(np.argsort(self.line(n, Purpose.ORDER), kind="stable").astype(np.int64))

    def uniforms(self, start: int, stop: int, width: int, stream: int = 0) -> Tensor:
        r"""Return numbers in [0, 1) for positions ``start`` to ``stop`` of the epoch, for augmentations.

        Each is the top 24 bits of a word, :math:`\lfloor w / 2^{40} \rfloor / 2^{24}`: float32 holds it exactly, and
        none is 1.

        Args:
            start: the first position in the order of the epoch.
            stop: the position after the last.
            width: numbers per position. Row ``i`` of width ``w`` is the start of row ``i`` of any larger width.
            stream: number of the view; streams are independent.

        Returns:
            float32 of shape ``(stop - start, width)``; row ``i`` belongs to position ``start + i``.
        """
        words = self.words(start, stop, width, Purpose.UNIFORMS, stream)
        return torch.from_numpy((words >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))

    def words(self, start: int, stop: int, width: int, purpose: Purpose, stream: int = 0) -> NDArray[np.uint64]:
        """Return the random 64-bit words behind all numbers, ``(stop - start, width)``.

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
        philox: Any = np.random.Philox(  # it increments before it draws, hence the + 1 above
            key=np.array(key, dtype=np.uint64), counter=np.array([start, 0, 0, 0], dtype=np.uint64)
        )
        words = np.empty((rows, blocks, _WORDS), dtype=np.uint64)
        for block in range(blocks):
            words[:, block] = philox.random_raw(rows * _WORDS).reshape(rows, _WORDS)
            philox.advance(2**64 - rows)  # to `start` of the next block
        return words.reshape(rows, blocks * _WORDS)[:, :width]

    def line(self, n: int, purpose: Purpose) -> NDArray[np.uint64]:
        """Return the first ``n`` words as a vector."""
        return self.words(0, -(-n // _WORDS), _WORDS, purpose).reshape(-1)[:n]
