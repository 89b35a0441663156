"""Loading from files: read ahead, cut to size in worker processes or on the device, augmented further on the device."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from longtail._checks import check_choice, check_integer
from longtail.data.augment import Compose
from longtail.data.datasets.dataset import FileImages, Split
from longtail.data.loaders.decode import BadImages, UnreadableImageError
from longtail.data.loaders.device_decode import decoded_ahead
from longtail.data.loaders.prefetch import ahead_on, batches_ahead
from longtail.data.loaders.sizing import ImagesInARow, cut, to_size
from longtail.data.sampling.plan import Batch, BatchPlan, PlannedBatch

__all__ = ["Streaming"]

DecodeIn = Literal["workers", "device"]


class _Sized(NamedTuple):
    """A planned batch whose images have one size."""

    planned: PlannedBatch
    views: tuple[Tensor, ...]
    """Each view's images, of those that could be decoded."""
    unreadable: dict[int, UnreadableImageError]
    """Places in the planned batch whose image could not."""


class _Pictures(NamedTuple):
    """A planned batch whose images are decoded."""

    planned: PlannedBatch
    row: ImagesInARow | None
    """Those that could be; ``None`` if there is none."""
    unreadable: dict[int, UnreadableImageError]


def _pixels(batch: _Pictures) -> tuple[Tensor, ...]:
    return () if batch.row is None else (batch.row.pixels,)


class Streaming:
    """A split of image files of any size.

    The next two batches are made in the background, on a GPU on a stream of their own, while one is being used; there,
    pictures of the batch after them are decoded meanwhile. Memory is bounded by these and by what is read ahead: three
    batches of files, or two batches a worker.

    Args:
        split: what to read.
        plan: which samples and views. Each view must bring images to one size (:class:`RandomResizedCrop`,
            :class:`Resize` and :class:`CentreCrop`).
        device: where batches go.
        workers: how many decode. With ``decode_in="workers"`` these are processes, and 0 reads in this one; with
            ``"device"`` they are threads, at least one, and have only those files that the device cannot decode.
        decode_in: ``"workers"`` decodes and cuts to size in the workers, the rest of a view runs on the device;
            with ``"device"`` one thread reads bytes, and all else runs on the device (JPEG on a GPU; other files, and
            all files on other devices, are decoded in the workers).
        bad_images: images that cannot be decoded stop the epoch at their batch, which is named (``"error"``), or are
            left out of it and listed in ``unreadable`` (``"skip"``).
    """

    def __init__(
        self,
        split: Split,
        plan: BatchPlan,
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
        sized = self._sized_on_device(planned()) if self.decode_in == "device" else self._sized_in_workers(planned)
        return batches_ahead(self._finished(sized), self.device)

    def _finished(self, batches: Generator[_Sized, None, None]) -> Generator[Batch, None, None]:
        """What is left to do once images have one size."""
        with closing(batches):
            for planned, sized, unreadable in batches:
                if unreadable:
                    self._report(list(unreadable.values()))
                kept = _others(planned, unreadable)
                if len(kept) == 0:
                    continue
                indices = planned.indices[kept]
                views = tuple(
                    rest(images, uniforms[kept, first.draws :].to(self.device, non_blocking=True))
                    for (first, rest), images, uniforms in zip(self._cuts, sized, planned.uniforms, strict=True)
                )
                yield Batch(views, self.split.labels[indices].to(self.device, non_blocking=True), indices)

    def _sized_in_workers(self, planned: Callable[[], Iterator[PlannedBatch]]) -> Generator[_Sized, None, None]:
        reader = _Reader(self.split, tuple(sized for sized, _ in self._cuts), planned)
        pin = self.device.type == "cuda"
        for batch, views, unreadable in DataLoader(reader, batch_size=None, num_workers=self.workers):
            sent = [(view.pin_memory() if pin else view).to(self.device, non_blocking=True) for view in views]
            yield _Sized(batch, tuple(sent), unreadable)

    def _sized_on_device(self, planned: Iterator[PlannedBatch]) -> Generator[_Sized, None, None]:
        images = self.split.images
        assert isinstance(images, FileImages)
        root, names = str(images.root).rstrip("/"), images.names

        groups = ((batch, [f"{root}/{names[i]}" for i in batch.indices.tolist()]) for batch in planned)
        # In a thread and on a stream of their own: the next batch is decoded while this one is cut to size.
        pictures = self._pictures(decoded_ahead(groups, self.device, workers=max(1, self.workers)))
        with closing(ahead_on(self.device, pictures, _pixels, depth=1)) as batches:
            for batch in batches:
                yield self._cut_to_size(batch)

    def _pictures(
        self, batches: Generator[tuple[PlannedBatch, Sequence[Tensor | UnreadableImageError]], None, None]
    ) -> Generator[_Pictures, None, None]:
        with closing(batches):
            for planned, found in batches:
                unreadable = {i: image for i, image in enumerate(found) if isinstance(image, UnreadableImageError)}
                decoded = [image for image in found if isinstance(image, Tensor)]
                row = ImagesInARow.of(decoded) if decoded else None
                del found, decoded  # or each picture would be there twice
                yield _Pictures(planned, row, unreadable)
                del row

    def _cut_to_size(self, batch: _Pictures) -> _Sized:
        planned, row, unreadable = batch
        if row is None:
            return _Sized(planned, (), unreadable)
        kept = _others(planned, unreadable)
        sized = (
            to_size(row, first, uniforms[kept, : first.draws])
            for (first, _), uniforms in zip(self._cuts, planned.uniforms, strict=True)
        )
        return _Sized(planned, tuple(sized), unreadable)

    def _report(self, unreadable: list[UnreadableImageError]) -> None:
        if self.bad_images == "error":
            raise UnreadableImageError.of_several(unreadable, "in this batch")
        self.unreadable.update({str(error.path): error.reason for error in unreadable})


def _others(planned: PlannedBatch, unreadable: dict[int, UnreadableImageError]) -> Tensor:
    """Places of a batch whose image could be decoded."""
    return torch.tensor([i for i in range(len(planned.indices)) if i not in unreadable], dtype=torch.int64)


class _Reader(IterableDataset[_Sized]):
    """Decodes planned batches and cuts them to size; of several workers each takes its turn."""

    def __init__(self, split: Split, sized: tuple[Compose, ...], batches: Callable[[], Iterator[PlannedBatch]]) -> None:
        self.split, self.sized, self.batches = split, sized, batches

    def __iter__(self) -> Iterator[_Sized]:
        worker = get_worker_info()
        turn, turns = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number, planned in enumerate(self.batches()):
            if number % turns == turn:
                yield self._read(planned)

    def _read(self, planned: PlannedBatch) -> _Sized:
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
        return _Sized(planned, stacked, unreadable)
