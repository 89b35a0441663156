"""Loading from files: decoded and resized in worker processes or on the device, and augmented on the device."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, Literal

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

DecodeIn = Literal["workers", "device"]
_Unreadable = dict[int, UnreadableImageError]  # errors by position in a planned batch


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
        made = self._from_device(planned()) if self.decode_in == "device" else self._from_workers(planned)
        return batches_ahead(made, self.device)

    def _from_workers(self, planned: Callable[[], Iterator[PlannedBatch]]) -> Generator[Batch, None, None]:
        reader = _Reader(self.split, tuple(first for first, _ in self._cuts), planned)
        pin = self.device.type == "cuda"
        for batch, views, unreadable in _alive(DataLoader(reader, batch_size=None, num_workers=self.workers)):
            kept = self._readable(batch, unreadable)
            if len(kept):
                sent = [(view.pin_memory() if pin else view).to(self.device, non_blocking=True) for view in views]
                yield self._finished(batch, kept, sent)

    def _from_device(self, planned: Iterator[PlannedBatch]) -> Generator[Batch, None, None]:
        images = self.split.images
        assert isinstance(images, FileImages)
        root, names = str(images.root).rstrip("/"), images.names
        groups = ((batch, [f"{root}/{names[i]}" for i in batch.indices.tolist()]) for batch in planned)
        # In another thread and stream: the next batch is decoded while this one is resized.
        decoded = _packed(decoded_ahead(groups, self.device, workers=max(1, self.workers)))
        with closing(
            ahead_on(self.device, decoded, lambda item: (item[1].pixels,) if len(item[1]) else (), depth=1)
        ) as batches:
            for batch, packed, unreadable in batches:
                kept = self._readable(batch, unreadable)
                if len(kept):
                    cuts = zip(self._cuts, batch.uniforms, strict=True)
                    sized = [to_size(packed, first, uniforms[kept, : first.draws]) for (first, _), uniforms in cuts]
                    yield self._finished(batch, kept, sized)

    def _readable(self, planned: PlannedBatch, unreadable: _Unreadable) -> Tensor:
        """Return the positions of the decoded images in a batch; raise or remember the errors of the others."""
        if unreadable and self.bad_images == "error":
            raise UnreadableImageError.of_several(list(unreadable.values()), "in this batch")
        self.unreadable.update({str(error.path): error.reason for error in unreadable.values()})
        return torch.tensor([i for i in range(len(planned.indices)) if i not in unreadable], dtype=torch.int64)

    def _finished(self, planned: PlannedBatch, kept: Tensor, sized: Sequence[Tensor]) -> Batch:
        """Apply the rest of each view to images of one size."""
        indices = planned.indices[kept]
        views = tuple(
            rest(images, uniforms[kept, first.draws :].to(self.device, non_blocking=True))
            for (first, rest), images, uniforms in zip(self._cuts, sized, planned.uniforms, strict=True)
        )
        return Batch(views, self.split.labels[indices].to(self.device, non_blocking=True), indices)


def _packed(
    batches: Generator[tuple[PlannedBatch, Sequence[Tensor | UnreadableImageError]], None, None],
) -> Generator[tuple[PlannedBatch, PackedImages, _Unreadable], None, None]:
    with closing(batches):
        for planned, found in batches:
            unreadable = {i: image for i, image in enumerate(found) if isinstance(image, UnreadableImageError)}
            packed = PackedImages.of([image for image in found if isinstance(image, Tensor)])
            del found  # otherwise each image is in memory twice
            yield planned, packed, unreadable
            del packed


def _alive(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield from a loader; if the system ended a worker, for example because memory was full, say so."""
    try:
        yield from loader
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise OSError(
            "A process that reads images was ended from outside, perhaps because memory was full; use fewer `workers`."
        ) from error


class _Reader(IterableDataset[tuple[PlannedBatch, list[Tensor], _Unreadable]]):
    """Decodes and resizes planned batches; several workers take turns."""

    def __init__(self, split: Split, sized: tuple[Compose, ...], batches: Callable[[], Iterator[PlannedBatch]]) -> None:
        self.split, self.sized, self.batches = split, sized, batches

    def __iter__(self) -> Iterator[tuple[PlannedBatch, list[Tensor], _Unreadable]]:
        worker = get_worker_info()
        turn, turns = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for planned in islice(self.batches(), turn, None, turns):
            yield self._read(planned)

    def _read(self, planned: PlannedBatch) -> tuple[PlannedBatch, list[Tensor], _Unreadable]:
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
        return planned, [torch.cat(view) if view else torch.empty(0) for view in views], unreadable
