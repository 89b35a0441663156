"""Loading from files: read in worker processes, cut to size there or on the device, augmented further on the device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from longtail._arguments import check_choice, check_integer
from longtail.data.augment import Augmentation, CentreCrop, Compose, RandomResizedCrop, Resize, resized_crop
from longtail.data.dataset import FileImages, Split
from longtail.data.decode import UnreadableImageError
from longtail.data.device_decode import decode_on, padded, read_bytes
from longtail.data.plan import Batch, Plan, PlannedBatch

__all__ = ["Streaming", "cut"]

BadImages = Literal["error", "skip"]
DecodeIn = Literal["workers", "device"]


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

    planned: PlannedBatch
    views: tuple[Tensor, ...]
    """Each view's images, cut to size, where workers decode."""
    content: Tensor
    """The files' bytes end to end, where the device decodes: one tensor, because each costs a worker a handle."""
    lengths: list[int]
    """How many bytes each file has."""
    unreadable: dict[int, UnreadableImageError]
    """Places in the planned batch whose image could not be decoded."""

    @property
    def kept(self) -> Tensor:
        """The other places."""
        return torch.tensor([i for i in range(len(self.planned.indices)) if i not in self.unreadable])


class _Reader(IterableDataset[_Read]):
    """Reads planned batches; of several workers each takes its turn."""

    def __init__(
        self,
        split: Split,
        sized: tuple[Compose, ...],
        batches: Callable[[], Iterator[PlannedBatch]],
        decode_in: DecodeIn,
    ) -> None:
        self.split, self.sized, self.batches = split, sized, batches
        self.read = self._bytes if decode_in == "device" else self._pixels

    def __iter__(self) -> Iterator[_Read]:
        worker = get_worker_info()
        turn, turns = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number, planned in enumerate(self.batches()):
            if number % turns == turn:
                yield self.read(planned)

    def _bytes(self, planned: PlannedBatch) -> _Read:
        images = self.split.images
        assert isinstance(images, FileImages)
        files = [read_bytes(images.path(i)) for i in planned.indices.tolist()]
        return _Read(planned, (), torch.cat(files), [len(file) for file in files], {})

    def _pixels(self, planned: PlannedBatch) -> _Read:
        views: list[list[Tensor]] = [[] for _ in self.sized]
        unreadable = {}
        for place, index in enumerate(planned.indices.tolist()):
            try:
                image = self.split.images[index][None]
            except UnreadableImageError as error:
                unreadable[place] = error
                continue
            for view, sized, uniforms in zip(views, self.sized, planned.uniforms, strict=True):
                view.append(sized(image, uniforms[place : place + 1, : sized.draws]))
        stacked = tuple(torch.cat(view) if view else torch.empty(0, dtype=torch.uint8) for view in views)
        return _Read(planned, stacked, torch.empty(0, dtype=torch.uint8), [], unreadable)


class Streaming:
    """A split of image files of any size.

    Args:
        split: what to read.
        plan: which samples and views. Each view must bring images to one size (:class:`RandomResizedCrop`,
            :class:`Resize` and :class:`CentreCrop`).
        device: where batches go.
        workers: processes that read; 0 reads in this one.
        decode_in: ``"workers"`` decodes and cuts to size in the workers, the rest of a view runs on the device;
            ``"device"`` has them read bytes only, and all else runs on the device (JPEG on a GPU; other files and
            other devices by way of the CPU).
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
        decode_in: DecodeIn = "workers",
        bad_images: BadImages = "error",
    ) -> None:
        check_choice("bad_images", bad_images, BadImages)
        check_choice("decode_in", decode_in, DecodeIn)
        if decode_in == "device" and not isinstance(split.images, FileImages):
            raise TypeError(f"Expected image files to decode on a device, but got {type(split.images).__name__}.")
        self.split, self.plan, self.device = split, plan, torch.device(device)
        self.workers, self.bad_images = check_integer("workers", workers, minimum=0), bad_images
        self.decode_in: DecodeIn = decode_in
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
        reader = _Reader(self.split, tuple(sized for sized, _ in self._cuts), planned, self.decode_in)
        for read in DataLoader(reader, batch_size=None, num_workers=self.workers):
            sized = self._sized_on_device(read) if self.decode_in == "device" else self._sent(read)
            if read.unreadable:
                self._report(list(read.unreadable.values()))
            kept = read.kept
            if len(kept) == 0:
                continue
            indices = read.planned.indices[kept]
            views = tuple(
                rest(images, uniforms[kept, first.draws :].to(self.device, non_blocking=True))
                for (first, rest), images, uniforms in zip(self._cuts, sized, read.planned.uniforms, strict=True)
            )
            yield Batch(views, self.split.labels[indices].to(self.device), indices)

    def _sent(self, read: _Read) -> list[Tensor]:
        """What the workers cut to size, on the device."""
        pin = self.device.type == "cuda"
        return [(v.pin_memory() if pin else v).to(self.device, non_blocking=True) for v in read.views]

    def _sized_on_device(self, read: _Read) -> list[Tensor]:
        """The files decoded and cut to size there."""
        assert isinstance(self.split.images, FileImages)
        paths = [self.split.images.path(i) for i in read.planned.indices.tolist()]
        files = torch.split(read.content, read.lengths)
        found = decode_on(self.device, files, paths)
        read.unreadable = {i: image for i, image in enumerate(found) if isinstance(image, UnreadableImageError)}
        images = [image for image in found if isinstance(image, Tensor)]
        if not images:
            return [torch.empty(0) for _ in self._cuts]
        batch, heights, widths = padded(images)
        kept = read.kept
        sized = []
        for (first, _), uniforms in zip(self._cuts, read.planned.uniforms, strict=True):
            drawn = uniforms[kept, : first.draws].to(self.device, non_blocking=True)
            parts = first.augmentations
            if len(parts) == 1 and isinstance(parts[0], RandomResizedCrop):  # all windows at once, whatever the sizes
                windows = parts[0].parameters(drawn, heights, widths)
                sized.append(resized_crop(batch, *windows, size=parts[0].size))
            else:
                sized.append(torch.cat([first(image[None], drawn[i : i + 1]) for i, image in enumerate(images)]))
        return sized

    def _report(self, unreadable: list[UnreadableImageError]) -> None:
        if self.bad_images == "error":
            more = f" (and {len(unreadable) - 1} more in this batch)" if len(unreadable) > 1 else ""
            raise UnreadableImageError(unreadable[0].path, unreadable[0].reason + more)
        self.unreadable.update({str(error.path): error.reason for error in unreadable})
