"""Loading from files: decoded and cut to size in worker processes, augmented further on the device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from longtail._arguments import check_choice, check_integer
from longtail.data.augment import Augmentation, CentreCrop, Compose, RandomResizedCrop, Resize
from longtail.data.dataset import Split
from longtail.data.decode import UnreadableImageError
from longtail.data.plan import Batch, Plan, PlannedBatch

__all__ = ["Streaming", "cut"]

BadImages = Literal["error", "skip"]


def cut(view: Augmentation) -> tuple[Compose, Compose]:
    """A view in two: what brings images to one size, and the rest, which can then run on a whole batch.

    Example:
        >>> from longtail.data.augment import Normalise, RandomFlip
        >>> sized, rest = cut(Compose((Resize(256), CentreCrop(224), Normalise((0.5,), (0.5,)))))
        >>> len(sized.augmentations), len(rest.augmentations)
        (2, 1)
    """
    parts = view.augmentations if isinstance(view, Compose) else (view,)
    sizing = [i for i, part in enumerate(parts) if isinstance(part, RandomResizedCrop | Resize | CentreCrop)]
    first = sizing[-1] + 1 if sizing else 0
    return Compose(tuple(parts[:first])), Compose(tuple(parts[first:]))


@dataclass
class _Read:
    """A batch as a worker hands it over."""

    views: tuple[Tensor, ...]
    kept: Tensor
    """Places in the planned batch whose images could be read."""
    planned: PlannedBatch
    unreadable: list[UnreadableImageError]


class _Reader(IterableDataset[_Read]):
    """Reads planned batches; of several workers each takes its turn."""

    def __init__(self, split: Split, sized: tuple[Compose, ...], batches: Callable[[], Iterator[PlannedBatch]]) -> None:
        self.split, self.sized, self.batches = split, sized, batches

    def __iter__(self) -> Iterator[_Read]:
        worker = get_worker_info()
        turn, turns = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number, planned in enumerate(self.batches()):
            if number % turns == turn:
                yield self._read(planned)

    def _read(self, planned: PlannedBatch) -> _Read:
        views: list[list[Tensor]] = [[] for _ in self.sized]
        kept, unreadable = [], []
        for place, index in enumerate(planned.indices.tolist()):
            try:
                image = self.split.images[index][None]
            except UnreadableImageError as error:
                unreadable.append(error)
                continue
            kept.append(place)
            for view, sized, uniforms in zip(views, self.sized, planned.uniforms, strict=True):
                view.append(sized(image, uniforms[place : place + 1, : sized.draws]))
        stacked = tuple(torch.cat(view) if view else torch.empty(0, dtype=torch.uint8) for view in views)
        return _Read(stacked, torch.tensor(kept, dtype=torch.int64), planned, unreadable)


class Streaming:
    """A split of image files of any size, read in worker processes.

    Args:
        split: what to read.
        plan: which samples and views. Each view must bring images to one size (:class:`RandomResizedCrop`,
            :class:`Resize` and :class:`CentreCrop`); up to there it runs in the workers, the rest on the device.
        device: where batches go.
        workers: processes that read; 0 reads in this one.
        bad_images: an image that cannot be decoded stops the epoch (``"error"``), or is left out of its batch and
            listed in ``unreadable`` (``"skip"``).
    """

    def __init__(
        self,
        split: Split,
        plan: Plan,
        device: torch.device | str = "cpu",
        *,
        workers: int = 0,
        bad_images: BadImages = "error",
    ) -> None:
        check_choice("bad_images", bad_images, BadImages)
        self.split, self.plan, self.device = split, plan, torch.device(device)
        self.workers, self.bad_images = check_integer("workers", workers, minimum=0), bad_images
        self.unreadable: dict[str, str] = {}
        """Files that were left out, and why."""
        self._cuts = [cut(view) for view in plan.views]

    def training(self, seed: int, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch of training, from batch ``start`` on."""
        return self._batches(partial(self.plan.training, seed, epoch, start))

    def evaluation(self) -> Iterator[Batch]:
        """Every sample once, in order."""
        return self._batches(self.plan.evaluation)

    def _batches(self, planned: Callable[[], Iterator[PlannedBatch]]) -> Iterator[Batch]:
        reader = _Reader(self.split, tuple(sized for sized, _ in self._cuts), planned)
        pin = self.device.type == "cuda"
        for read in DataLoader(reader, batch_size=None, num_workers=self.workers, pin_memory=False):
            if read.unreadable:
                self._report(read.unreadable)
            if len(read.kept) == 0:
                continue
            yield self._finish(read, pin)

    def _report(self, unreadable: list[UnreadableImageError]) -> None:
        if self.bad_images == "error":
            more = f" (and {len(unreadable) - 1} more in this batch)" if len(unreadable) > 1 else ""
            raise UnreadableImageError(unreadable[0].path, unreadable[0].reason + more)
        self.unreadable.update({str(error.path): error.reason for error in unreadable})

    def _finish(self, read: _Read, pin: bool) -> Batch:
        indices = read.planned.indices[read.kept]
        views = []
        for (sized, rest), images, uniforms in zip(self._cuts, read.views, read.planned.uniforms, strict=True):
            there = (images.pin_memory() if pin else images).to(self.device, non_blocking=True)
            views.append(rest(there, uniforms[read.kept, sized.draws :].to(self.device, non_blocking=True)))
        return Batch(tuple(views), self.split.labels[indices].to(self.device), indices)
