"""Loading from files: decoded and resized in worker processes or on the device, and augmented on the device."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from longtail._checks import check_choice, check_integer
from longtail.data.augment import Compose
from longtail.data.datasets.splits import FileImages, Split
from longtail.data.loaders.decode import BadImages, UnreadableImageError
from longtail.data.loaders.device_decode import decoded_ahead
from longtail.data.loaders.prefetch import ahead_on, batches_ahead
from longtail.data.loaders.sizing import PackedImages, split_view, to_size
from longtail.data.sampling.batch_plan import Batch, BatchPlan, PlannedBatch

__all__ = ["Streaming"]

DecodeIn = Literal["workers", "device"]


class _Sized(NamedTuple):
    """A batch whose images have one size."""

    planned: PlannedBatch
    views: tuple[Tensor, ...]
    """The decoded images of each view."""
    unreadable: dict[int, UnreadableImageError]
    """Errors by position in the planned batch."""


class _Decoded(NamedTuple):
    """A batch whose images are decoded."""

    planned: PlannedBatch
    row: PackedImages | None
    """The decoded images; ``None`` if all are unreadable."""
    unreadable: dict[int, UnreadableImageError]


def _pixels(batch: _Decoded) -> tuple[Tensor, ...]:
    return () if batch.row is None else (batch.row.pixels,)


class Streaming:
    """A split of image files of any size, read during training.

    The next two batches are made in the background, on a GPU on another stream. Memory is bounded by these and by three
    batches of files, or two batches per worker.

    Args:
        split: the images.
        plan: samples and views of each batch. Each view must bring images to one size (:class:`RandomResizedCrop`,
            :class:`Resize` and :class:`CentreCrop`).
        device: the device of the batches.
        workers: with ``decode_in="workers"``, number of processes (0: this process); with ``"device"``, number of
            threads that decode files that the device cannot decode.
        decode_in: ``"workers"`` decodes and resizes in the workers and augments on the device; ``"device"`` does all
            of it on the device (only JPEG, on a GPU; other files are decoded in the workers).
        bad_images: ``"error"``: images that cannot be decoded raise at their batch; ``"skip"``: they are left out and
            listed in ``unreadable``.
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
        self._cuts = [split_view(view) for view in plan.views]

    def training(self, seed: int, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the training batches of an epoch from batch ``start`` on."""
        return self._batches(partial(self.plan.training, seed, epoch, start))

    def evaluation(self) -> Iterator[Batch]:
        """Yield every sample once, in order."""
        return self._batches(self.plan.evaluation)

    def _batches(self, planned: Callable[[], Iterator[PlannedBatch]]) -> Iterator[Batch]:
        sized = self._sized_on_device(planned()) if self.decode_in == "device" else self._sized_in_workers(planned)
        return batches_ahead(self._finished(sized), self.device)

    def _finished(self, batches: Generator[_Sized, None, None]) -> Generator[Batch, None, None]:
        """Apply the rest of each view."""
        with closing(batches):
            for planned, sized, unreadable in batches:
                if unreadable:
                    self._report(list(unreadable.values()))
                kept = _readable_positions(planned, unreadable)
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
        # In another thread and stream: the next batch is decoded while this one is resized.
        pictures = self._pictures(decoded_ahead(groups, self.device, workers=max(1, self.workers)))
        with closing(ahead_on(self.device, pictures, _pixels, depth=1)) as batches:
            for batch in batches:
                yield self._resize(batch)

    def _pictures(
        self, batches: Generator[tuple[PlannedBatch, Sequence[Tensor | UnreadableImageError]], None, None]
    ) -> Generator[_Decoded, None, None]:
        with closing(batches):
            for planned, found in batches:
                unreadable = {i: image for i, image in enumerate(found) if isinstance(image, UnreadableImageError)}
                decoded = [image for image in found if isinstance(image, Tensor)]
                row = PackedImages.of(decoded) if decoded else None
                del found, decoded  # otherwise each picture is in memory twice
                yield _Decoded(planned, row, unreadable)
                del row

    def _resize(self, batch: _Decoded) -> _Sized:
        planned, row, unreadable = batch
        if row is None:
            return _Sized(planned, (), unreadable)
        kept = _readable_positions(planned, unreadable)
        sized = (
            to_size(row, first, uniforms[kept, : first.draws])
            for (first, _), uniforms in zip(self._cuts, planned.uniforms, strict=True)
        )
        return _Sized(planned, tuple(sized), unreadable)

    def _report(self, unreadable: list[UnreadableImageError]) -> None:
        if self.bad_images == "error":
            raise UnreadableImageError.of_several(unreadable, "in this batch")
        self.unreadable.update({str(error.path): error.reason for error in unreadable})


def _readable_positions(planned: PlannedBatch, unreadable: dict[int, UnreadableImageError]) -> Tensor:
    """Return the positions of the decoded images in a batch."""
    return torch.tensor([i for i in range(len(planned.indices)) if i not in unreadable], dtype=torch.int64)


class _Reader(IterableDataset[_Sized]):
    """Decodes and resizes planned batches; several workers take turns."""

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
