"""Loading from device memory: the whole split is there, and batches are gathered and augmented there."""

import copy
from collections.abc import Iterator
from itertools import islice

import torch

from longtail.data.datasets.splits import ArrayImages, Split
from longtail.data.sampling.batch_plan import Batch, BatchPlan, PlannedBatch

_TOGETHER = 2**24  # pixel values augmented together: 64 MB as float32


class Resident:
    """A split of images of one size in device memory; only indices and drawn numbers are copied for a batch.

    Args:
        split: images in memory (:class:`ArrayImages <longtail.data.ArrayImages>`).
        plan: samples and views of each batch.
        device: the device.

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
                f"but got {type(split.images).__name__}; use Streaming for image files."
            )
        self.plan = plan
        self.pixels = split.images.pixels.to(device)
        self.labels = split.labels.to(device)

    def with_plan(self, plan: BatchPlan) -> "Resident":
        """Return a loader of the same images with other batches or views; the images are shared."""
        other = copy.copy(self)
        other.plan = plan
        return other

    def training(self, seed: int, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the training batches of an epoch from batch ``start`` on."""
        return self._batches(self.plan.training(seed, epoch, start))

    def evaluation(self) -> Iterator[Batch]:
        """Yield every sample once, in order."""
        return self._batches(self.plan.evaluation())

    def _batches(self, planned: Iterator[PlannedBatch]) -> Iterator[Batch]:
        # Small batches are gathered and augmented together: launches cost more than pixels.
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
