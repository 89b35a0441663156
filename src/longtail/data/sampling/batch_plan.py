"""The plan of an epoch: samples of each batch and random numbers of its augmentations."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from longtail._checks import check_integer
from longtail.data.augment import Augmentation
from longtail.data.sampling.draws import Draws
from longtail.data.sampling.samplers import Instance, Sampler, shard

_ROWS = 2**13  # samples whose numbers are drawn together, which is faster


class Batch(NamedTuple):
    """The input of one training or evaluation step."""

    views: tuple[Tensor, ...]
    """The images of each view, ``(B, channels, height, width)``."""
    labels: Tensor
    """Class indices, int64 ``(B,)``."""
    indices: Tensor
    """Indices in the split, int64 ``(B,)``, on the CPU."""


class PlannedBatch(NamedTuple):
    """A batch before its images are read."""

    indices: Tensor
    """Indices in the split, int64 ``(B,)``."""
    uniforms: tuple[Tensor, ...]
    """Random numbers of each view, float32 ``(B, draws)``."""


@dataclass(frozen=True)
class BatchPlan:
    """The batches of an epoch as a pure function of ``(seed, epoch)``, for any number of processes.

    Args:
        labels: labels of the split.
        views: the augmentation of each view.
        batch_size: samples in a batch of this rank.
        sampler: order of the samples.
        rank: rank of this process.
        world: number of processes; their k-th batches together are the k-th batch of a single process with a ``world``
            times larger batch.
        drop_last: leave out an incomplete last step in training, on all ranks.
        accumulate: batches of this rank per step.
    """

    labels: Tensor
    views: tuple[Augmentation, ...]
    batch_size: int
    sampler: Sampler = Instance()  # noqa: RUF009 - frozen, and nothing is in it
    rank: int = 0
    world: int = 1
    drop_last: bool = False
    accumulate: int = 1

    def __post_init__(self) -> None:
        check_integer("batch_size", self.batch_size, minimum=1)
        check_integer("accumulate", self.accumulate, minimum=1)
        if not self.views:
            raise ValueError("Expected `views` to have one augmentation or more, but got none.")
        if len(self.labels) == 0:
            raise ValueError("Expected a split with samples, but got none.")

    def training(self, seed: int, epoch: int, start: int = 0) -> Iterator[PlannedBatch]:
        """Yield the training batches of an epoch from batch ``start`` on, the same as in a whole epoch."""
        draws = Draws(seed, epoch)
        visited = self.sampler.order(self.labels, draws)
        order = shard(visited, self.rank, self.world, pad=True)
        stop = self.batch_size * self._full(len(visited)) if self.drop_last else len(order)
        together = self.batch_size * max(1, _ROWS // (self.batch_size * self.world))
        for begin in range(start * self.batch_size, stop, together):
            here = slice(begin, min(begin + together, stop))
            parts = (order[here], *self._uniforms(draws, here))
            for indices, *uniforms in zip(*(torch.split(part, self.batch_size) for part in parts), strict=True):
                yield PlannedBatch(indices, tuple(uniforms))

    def _uniforms(self, draws: Draws, here: slice) -> Iterator[Tensor]:
        """Yield for each view the random numbers of a slice of this rank's samples."""
        for stream, view in enumerate(self.views):
            if view.draws:
                rows = draws.uniforms(here.start * self.world, here.stop * self.world, view.draws, stream)
                yield rows[self.rank :: self.world]
            else:
                yield torch.empty(here.stop - here.start, 0)

    def evaluation(self) -> Iterator[PlannedBatch]:
        """Yield every sample once, in order, also over all ranks."""
        random = [view for view in self.views if view.draws]
        if random:
            raise ValueError(f"Expected `views` without random numbers for evaluation, but got {random[0]}.")
        order = shard(torch.arange(len(self.labels)), self.rank, self.world, pad=False)
        for begin in range(0, len(order), self.batch_size):
            indices = order[begin : begin + self.batch_size]
            yield PlannedBatch(indices, tuple(torch.empty(len(indices), 0) for _ in self.views))

    @property
    def steps(self) -> int:
        """Training batches per epoch, for a sampler that visits as many samples as the split has."""
        if self.drop_last:
            return self._full(len(self.labels))
        return -(-len(self.labels) // (self.batch_size * self.world))

    def _full(self, samples: int) -> int:
        """Return the number of batches of this rank in complete steps."""
        return samples // (self.batch_size * self.world * self.accumulate) * self.accumulate
