"""Samplers: the order of samples in an epoch as a pure function of ``(seed, epoch)``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail._checks import Vector, as_tensor, check_integer, describe
from longtail.classes import class_counts
from longtail.data.sampling.draws import Draws, Purpose


class Sampler(Protocol):
    """Makes the order of an epoch from the labels and the random numbers of the epoch."""

    def order(self, labels: Vector, draws: Draws) -> Tensor:
        """Return the indices of an epoch in order, int64 on the CPU.

        Args:
            labels: class index of each sample, shape ``(samples,)``.
            draws: the epoch's random numbers.
        """
        ...


def _check_labels(labels: Vector) -> Tensor:
    """Return ``labels`` as int64 on the CPU."""
    vector = as_tensor("labels", labels, what="class indices").cpu()
    if vector.ndim != 1 or vector.numel() == 0:
        raise ValueError(f"Expected `labels` to hold one class index per sample, but got shape {tuple(vector.shape)}.")
    if vector.is_floating_point():
        raise TypeError(f"Expected `labels` to hold class indices, but got dtype {vector.dtype}.")
    return vector.to(torch.int64)


def _by_class(labels: Vector) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the samples sorted by class, where each class starts, and the counts of classes that have samples."""
    vector = _check_labels(labels)
    counts = class_counts(vector, max(int(vector.max()), 0) + 1).numpy()
    counts = counts[counts > 0]
    return np.argsort(vector.numpy(), kind="stable"), np.cumsum(counts) - counts, counts


def _below(words: NDArray[np.uint64], high: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the floor of ``word * high / 2^64``, without overflow for ``high`` < 2^32."""
    factor, half = high.astype(np.uint64), np.uint64(32)
    lower = (words & np.uint64(2**32 - 1)) * factor >> half
    return (((words >> half) * factor + lower) >> half).astype(np.int64)


def _with_replacement(
    labels: Vector, weights: Callable[[NDArray[np.int64]], NDArray[np.float64]], draws: Draws
) -> Tensor:
    """Draw as many samples as there are: a class by the weights of all counts, then one of its samples uniformly."""
    members, starts, counts = _by_class(labels)
    words = draws.words(0, members.size, 2, Purpose.PICKS)
    cumulative = np.cumsum(weights(counts))
    fraction = (words[:, 0] >> np.uint64(11)).astype(np.float64) * 2.0**-53  # < 1, hence below the last class's bound
    chosen = np.searchsorted(cumulative / cumulative[-1], fraction, side="right")
    return torch.from_numpy(members[starts[chosen] + _below(words[:, 1], counts[chosen])])


@dataclass(frozen=True)
class Instance:
    """Every sample once, in random order.

    Example:
        >>> Instance().order([0, 0, 0, 1], Draws(seed=0, epoch=0))
        tensor([0, 2, 1, 3])
    """

    def order(self, labels: Vector, draws: Draws) -> Tensor:
        """Return a permutation of all samples, shape ``(samples,)``."""
        return draws.permutation(_check_labels(labels).numel())


@dataclass(frozen=True)
class ClassAware:
    """Every class equally often (Shen et al., 2016): the classes in turn, ``per_class`` samples of each.

    The classes are visited in the order of a shuffled list, which is shuffled again at its end. Each class has a
    shuffled list of its samples and gives the next ``per_class`` of them; the list is shuffled again at its end, so
    that no sample comes a second time before all samples of the class have come once. Lists start anew in each epoch.
    Classes without samples are left out.

    Args:
        per_class: samples of a class in a row.
        length: samples in an epoch, by default the size of the split; the last turn may be incomplete.

    Example:
        >>> labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 2])
        >>> order = ClassAware(per_class=2, length=12).order(labels, Draws(seed=0, epoch=0))
        >>> labels[order]
        tensor([1, 1, 2, 2, 0, 0, 0, 0, 2, 2, 1, 1])
    """

    per_class: int = 4
    length: int | None = None

    def __post_init__(self) -> None:
        check_integer("per_class", self.per_class, minimum=1)
        if self.length is not None:
            check_integer("length", self.length, minimum=1)

    def order(self, labels: Vector, draws: Draws) -> Tensor:
        """Return ``length`` samples, ``per_class`` of each class in turn, shape ``(length,)``."""
        members, starts, counts = _by_class(labels)
        length = members.size if self.length is None else self.length
        num_turns = -(-length // self.per_class)
        rounds = -(-num_turns // counts.size)
        shuffled = np.argsort(draws.words(0, rounds, counts.size, Purpose.CLASSES), axis=1, kind="stable")
        turns = shuffled.reshape(-1)[:num_turns]  # the class of each turn

        # The lists of a class are concatenated, as many as it needs; its k-th sample is at `offset + k`.
        num_lists = -(-np.bincount(turns, minlength=counts.size) * self.per_class // counts)
        offset = np.cumsum(num_lists * counts) - num_lists * counts
        list_class = np.repeat(np.arange(counts.size), num_lists)
        list_size = counts[list_class]
        list_start = np.cumsum(list_size) - list_size
        slot_list = np.repeat(np.arange(list_size.size), list_size)
        slot = np.arange(slot_list.size)
        samples = members[starts[list_class[slot_list]] + slot - list_start[slot_list]]
        samples = samples[np.lexsort((draws.line(slot.size, Purpose.SAMPLES), slot_list))]  # shuffle within each list

        before = np.arange(num_turns) // counts.size * self.per_class  # a class has one turn per round
        taken = (offset[turns] + before)[:, None] + np.arange(self.per_class)
        return torch.from_numpy(samples[taken.reshape(-1)[:length]])


@dataclass(frozen=True)
class SquareRoot:
    r"""Between instance and class-aware (Mahajan et al., 2018): with replacement, classes by the root of their counts.

    .. math:: p_c = \sqrt{N_c} / \sum_j \sqrt{N_j}

    Within a class all samples are equally likely. Classes without samples have probability 0.

    Example:
        >>> labels = torch.arange(2).repeat_interleave(torch.tensor([9000, 1000]))
        >>> order = SquareRoot().order(labels, Draws(seed=0, epoch=0))
        >>> labels[order].bincount()  # 7500 and 2500 are expected
        tensor([7497, 2503])
    """

    def order(self, labels: Vector, draws: Draws) -> Tensor:
        """Return as many samples as there are, with replacement, shape ``(samples,)``."""
        return _with_replacement(labels, np.sqrt, draws)


@dataclass(frozen=True)
class Progressive:
    r"""From instance-balanced in the first epoch to class-balanced in the last (Kang et al., 2020), with replacement.

    .. math:: p_c = (1 - t) \frac{N_c}{N} + t \frac{1}{C}, \qquad t = \frac{epoch - first}{total\_epochs - 1}

    Within a class all samples are equally likely. ``C`` counts the classes that have samples; the others have
    probability 0. A single epoch is instance-balanced.

    Args:
        total_epochs: number of epochs in which ``t`` goes from 0 to 1.
        first: the first of these epochs.

    Example:
        >>> labels = torch.arange(2).repeat_interleave(torch.tensor([9000, 1000]))
        >>> order = Progressive(total_epochs=5).order(labels, Draws(seed=0, epoch=2))
        >>> labels[order].bincount()  # 7000 and 3000 are expected
        tensor([6989, 3011])
    """

    total_epochs: int
    first: int = 0

    def __post_init__(self) -> None:
        check_integer("total_epochs", self.total_epochs, minimum=1)
        check_integer("first", self.first, minimum=0)

    def order(self, labels: Vector, draws: Draws) -> Tensor:
        """Return as many samples as there are, with replacement, shape ``(samples,)``."""
        end = self.first + self.total_epochs
        if not self.first <= draws.epoch < end:
            raise ValueError(f"Expected `draws.epoch` to be in {self.first} … {end - 1}, but got {draws.epoch}.")
        t = (draws.epoch - self.first) / max(self.total_epochs - 1, 1)
        return _with_replacement(labels, lambda n: (1 - t) * (n / n.sum()) + t / n.size, draws)


def shard(order: Tensor, rank: int, world: int, *, pad: bool) -> Tensor:
    """Return the part of ``order`` for one rank: positions ``rank``, ``rank + world``, ``rank + 2 world``, …

    The k-th batches of all ranks, of ``b`` samples each, are together the k-th batch of ``world * b`` samples of a
    single process. Position ``j`` of a rank is position ``rank + j * world`` of the epoch: its random numbers are
    ``draws.uniforms(start, stop, …)[rank::world]`` for a ``start`` that is a multiple of ``world``.

    Args:
        order: order of the epoch, along the first dimension.
        rank: rank of this process, in [0, world).
        world: number of processes.
        pad: ``True`` for training: repeat from the start until all ranks have the same number; ``False`` for
            evaluation: every sample once, so that ranks may differ by one.

    Example:
        >>> order = torch.tensor([4, 2, 0, 1, 3])
        >>> [shard(order, rank, 2, pad=True).tolist() for rank in range(2)]
        [[4, 0, 3], [2, 1, 4]]
        >>> [shard(order, rank, 2, pad=False).tolist() for rank in range(2)]
        [[4, 0, 3], [2, 1]]
    """
    if not isinstance(order, Tensor) or order.ndim == 0:
        raise TypeError(f"Expected `order` to be a tensor with at least one dimension, but got {describe(order)}.")
    world = check_integer("world", world, minimum=1)
    rank = check_integer("rank", rank, minimum=0)
    if rank >= world:
        raise ValueError(f"Expected `rank` to be below `world` = {world}, but got {rank}.")
    n = order.shape[0]
    if not pad or n == 0:
        return order[rank::world]
    positions = torch.arange(rank, -(-n // world) * world, world, device=order.device)
    return order[positions % n]
