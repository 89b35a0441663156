"""Which samples a batch holds, and the numbers its augmentations draw: what both ways of loading share."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from longtail._arguments import check_integer
from longtail.data.augment import Augmentation
from longtail.data.draws import Draws
from longtail.data.samplers import Instance, Sampler, shard

__all__ = ["Batch", "Plan", "PlannedBatch"]


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
class Plan:
    """The batches of an epoch, as a pure function of ``(seed, epoch)``: one process or several, from the start or not.

    Args:
        labels: of the split, for the sampler.
        views: the augmentation of each view.
        batch_size: samples in a batch of this rank.
        sampler: which samples an epoch visits, and in which order.
        rank: this process.
        world: how many processes share the epoch; their k-th batches are the k-th batch of one process with a ``world``
            times larger batch.
        drop_last: leave out a last batch that is not full, in training.
    """

    labels: Tensor
    views: tuple[Augmentation, ...]
    batch_size: int
    sampler: Sampler = Instance()  # noqa: RUF009 - frozen, and nothing is in it
    rank: int = 0
    world: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        check_integer("batch_size", self.batch_size, minimum=1)
        if not self.views:
            raise ValueError("Expected `views` to have one augmentation or more, but got none.")
        if len(self.labels) == 0:
            raise ValueError("Expected a split with samples, but got none.")

    def training(self, seed: int, epoch: int, start: int = 0) -> Iterator[PlannedBatch]:
        """The batches of an epoch of training, from batch ``start`` on, as if those before had been made."""
        draws = Draws(seed, epoch)
        order = shard(self.sampler.order(self.labels, draws), self.rank, self.world, pad=True)
        for begin in range(start * self.batch_size, len(order), self.batch_size):
            end = min(begin + self.batch_size, len(order))
            if end - begin < self.batch_size and self.drop_last:
                return
            rows = slice(self.rank, None, self.world)
            yield PlannedBatch(
                indices=order[begin:end],
                uniforms=tuple(
                    draws.uniforms(begin * self.world, end * self.world, view.draws, stream)[rows]
                    if view.draws
                    else torch.empty(end - begin, 0)
                    for stream, view in enumerate(self.views)
                ),
            )

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
        samples = -(-len(self.labels) // self.world)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)
