"""Loading, the fast way: the whole split in device memory, gathered and augmented there."""

import copy
from collections.abc import Iterator
from itertools import islice

import torch

from longtail.data.datasets.dataset import ArrayImages, Split
from longtail.data.sampling.plan import Batch, BatchPlan, PlannedBatch

__all__ = ["Resident"]

_TOGETHER = 2**24  # pixel values that are augmented together: 64 MB as float32


class Resident:
    """A split of images of one size, held as uint8 on a device.

    Batches are gathered and augmented there; only the samples' indices and the drawn numbers travel.

    Args:
        split: its images must be in memory (:class:`ArrayImages <longtail.data.ArrayImages>`).
        plan: which samples and views.
        device: where to hold it.

    Example:
        >>> from longtail.data import BatchPlan, Resident, load
        >>> from longtail.data.augment import Compose, Normalise, RandomCrop
        >>> train = load("digits-lt").train
        >>> augment = Compose((RandomCrop(8, padding=1), Normalise((0.5,), (0.5,))))
        >>> loader = Resident(train, BatchPlan(train.labels, (augment,), batch_size=32))
        >>> batch = next(loader.training(seed=0, epoch=0))
        >>> batch.views[0].shape, batch.labels.shape
        (torch.Size([32, 1, 8, 8]), torch.Size([32]))
    """

    def __init__(self, split: Split, plan: BatchPlan, device: torch.device | str = "cpu") -> None:
        if not isinstance(split.images, ArrayImages):
            raise TypeError(
                "Expected `split` to have its images in memory, all of one size, "
                f"but got {type(split.images).__name__}; ResidentFiles and Streaming take image files."
            )
        self.plan = plan
        self.pixels = split.images.pixels.to(device)
        self.labels = split.labels.to(device)

    def with_plan(self, plan: BatchPlan) -> "Resident":
        """The same images in other batches or views, for evaluation for instance; nothing is copied again."""
        other = copy.copy(self)
        other.plan = plan
        return other

    def training(self, seed: int, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch of training, from batch ``start`` on."""
        return self._batches(self.plan.training(seed, epoch, start))

    def evaluation(self) -> Iterator[Batch]:
        """Every sample once, in order."""
        return self._batches(self.plan.evaluation())

    def _batches(self, planned: Iterator[PlannedBatch]) -> Iterator[Batch]:
        # Several small batches are gathered and augmented together: a GPU's launches cost more than the pixels.
        together = max(1, _TOGETHER // (self.plan.batch_size * self.pixels[0].numel()))
        while batches := list(islice(planned, together)):
            yield from self._finish(batches)

    def _finish(self, batches: list[PlannedBatch]) -> Iterator[Batch]:
        device = self.pixels.device
        indices = torch.cat([batch.indices for batch in batches])
        chosen = indices.to(device, non_blocking=True)
        images, labels = self.pixels.index_select(0, chosen), self.labels.index_select(0, chosen)
        views = [
            view(images, torch.cat(uniforms).to(device, non_blocking=True))
            for view, uniforms in zip(self.plan.views, zip(*(b.uniforms for b in batches), strict=True), strict=True)
        ]
        begin = 0
        for batch in batches:
            here = slice(begin, begin + len(batch.indices))
            yield Batch(tuple(view[here] for view in views), labels[here], batch.indices)
            begin = here.stop
