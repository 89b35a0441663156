"""Which samples a batch holds, and the numbers its augmentations draw: what both ways of loading share."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from longtail._checks import check_integer
from longtail.data.augment import Augmentation
from longtail.data.sampling.draws import Draws
from longtail.data.sampling.samplers import Instance, Sampler, shard

__all__ = ["Batch", "BatchPlan", "PlannedBatch"]

_ROWS = 2**13  # samples whose numbers are drawn together: for few at a time, asking costs more than drawing


class Batch(NamedTuple):
    """What a model is trained or evaluated on in one step."""

    views: tuple[Tensor, ...]
    """The images, ``(B, channels, height, width)``, once for each view."""
    labels: Tensor
    """Class indices, int64 ``(B,)``."""
    indices: Tensor
    """Which samples of the split they are, int64 ``(B,)``, on the CPU."""


class PlannedBatch(NamedTuple):
    """A batch before its images are read."""

    indices: Tensor
    """Which samples, int64 ``(B,)``."""
    uniforms: tuple[Tensor, ...]
    """For each view the numbers its augmentation draws, float32 ``(B, draws)``."""


@dataclass(frozen=True)
class BatchPlan:
    """The batches of an epoch, as a pure function of ``(seed, epoch)``: one process or several, from the start or not.

    Args:
        labels: of the split, for the sampler.
        views: the augmentation of each view.
        batch_size: samples in a batch of this rank.
        sampler: which samples an epoch visits, and in which order.
        rank: this process.
        world: how many processes share the epoch; their k-th batches are the k-th batch of one process with a ``world``
            times larger batch.
        drop_last: leave out the last step's batches where they are not all full, on all ranks, in training.
        accumulate: batches of this rank that are a step.
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
        """The batches of an epoch of training, from batch ``start`` on, as if those before had been made."""
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
        """For each view the numbers of this rank's samples from one place of its order to another."""
        for stream, view in enumerate(self.views):
            if view.draws:
                rows = draws.uniforms(here.start * self.world, here.stop * self.world, view.draws, stream)
                yield rows[self.rank :: self.world]
            else:
                yield torch.empty(here.stop - here.start, 0)

    def evaluation(self) -> Iterator[PlannedBatch]:
        """Every sample once, in order; over the ranks nothing is dropped and nothing counted twice."""
        random = [view for view in self.views if view.draws]
        if random:
            raise ValueError(f"Expected `views` that draw nothing, for evaluation, but got {random[0]}.")
        order = shard(torch.arange(len(self.labels)), self.rank, self.world, pad=False)
        for begin in range(0, len(order), self.batch_size):
            indices = order[begin : begin + self.batch_size]
            yield PlannedBatch(indices, tuple(torch.empty(len(indices), 0) for _ in self.views))

    @property
    def steps(self) -> int:
        """Batches of an epoch of training with a sampler that visits as many samples as there are."""
        if self.drop_last:
            return self._full(len(self.labels))
        return -(-len(self.labels) // (self.batch_size * self.world))

    def _full(self, samples: int) -> int:
        """Batches of this rank in those steps of so many samples in which all are full."""
        return samples // (self.batch_size * self.world * self.accumulate) * self.accumulate
