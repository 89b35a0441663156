"""Image files decoded once and held in device memory."""

import copy
import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from longtail._checks import check_choice, check_integer
from longtail.data.augment import Resize
from longtail.data.datasets.splits import FileImages, Split
from longtail.data.loaders.decode import BadImages, UnreadableImageError, image_size, jpeg_header
from longtail.data.loaders.device_decode import READING, decoded_ahead
from longtail.data.loaders.prefetch import batches_ahead
from longtail.data.loaders.sizing import PackedImages, split_view, to_size
from longtail.data.sampling.batch_plan import Batch, BatchPlan, PlannedBatch

_SAMPLE = 512  # files whose headers are read first, to estimate the memory
_TOGETHER = 256  # files decoded together
_VALUES = 2**26  # pixel values shrunk together: 256 MB as float32
_HEADER = 2**14  # bytes that usually hold the header of a JPEG


class NoRoomError(ValueError):
    """The images do not fit into the memory of the device."""


class ResidentFiles:
    """A split of image files of any size, each decoded once and held as uint8 on a device.

    Images whose shorter side is longer than ``short_side`` are shrunk to it; ImageNet-LT then takes about 30 GB. This
    affects :class:`RandomResizedCrop`: windows are drawn from the shrunk image, so small windows are blurrier than
    those of :class:`Streaming <longtail.data.Streaming>`. From 500 x 375 to 224 x 224, windows with less than 57 % of
    the area are enlarged, instead of 27 %. Evaluation with ``Resize(256)`` and ``CentreCrop(224)`` sees the same
    pixels.

    The next two batches are made in the background, on a GPU on another stream.

    Args:
        split: image files.
        plan: samples and views of each batch. Each view must bring images to one size, as for ``Streaming``.
        device: the device. Images that do not fit are refused before anything is decoded.
        short_side: the longest allowed shorter side.
        workers: threads that read headers and decode files that the device cannot decode.
        bad_images: ``"error"``: images that cannot be decoded raise after all images were tried; ``"skip"``: they are
            left out of every batch and listed in ``unreadable``.
    """

    def __init__(
        self,
        split: Split,
        plan: BatchPlan,
        device: torch.device | str = "cpu",
        short_side: int = 256,
        *,
        workers: int = 8,
        bad_images: BadImages = "error",
    ) -> None:
        check_choice("bad_images", bad_images, BadImages)
        if not isinstance(split.images, FileImages):
            raise TypeError(f"Expected `split` to have image files, but got {type(split.images).__name__}.")
        self.plan, self.device = plan, torch.device(device)
        self.short_side = check_integer("short_side", short_side, minimum=1)
        self.unreadable: dict[str, str] = {}
        """Files that were left out, and why."""
        self._workers, self._bad_images = check_integer("workers", workers, minimum=1), bad_images
        self._cuts = [split_view(view) for view in plan.views]
        self.labels = split.labels.to(self.device)
        self.images, self._readable = self._pack(split.images)

    def with_plan(self, plan: BatchPlan) -> "ResidentFiles":
        """Return a loader of the same images with other batches or views; the images are shared."""
        other = copy.copy(self)
        other.plan, other._cuts = plan, [split_view(view) for view in plan.views]
        return other

    def training(self, seed: int, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the training batches of an epoch from batch ``start`` on."""
        return batches_ahead(self._batches(self.plan.training(seed, epoch, start)), self.device)

    def evaluation(self) -> Iterator[Batch]:
        """Yield every sample once, in order."""
        return batches_ahead(self._batches(self.plan.evaluation()), self.device)

    def _batches(self, planned: Iterator[PlannedBatch]) -> Generator[Batch, None, None]:
        for batch in planned:
            kept = self._readable[batch.indices].nonzero().flatten()
            if len(kept) == 0:
                continue
            indices = batch.indices[kept]
            images = self.images.subset(indices)
            views = []
            for (first, rest), uniforms in zip(self._cuts, batch.uniforms, strict=True):
                sized = to_size(images, first, uniforms[kept, : first.draws])
                views.append(rest(sized, uniforms[kept, first.draws :].to(self.device, non_blocking=True)))
            yield Batch(tuple(views), self.labels[indices.to(self.device, non_blocking=True)], indices)

    def _pack(self, files: FileImages) -> tuple[PackedImages, Tensor]:
        """Return the packed images, and which of them could be decoded; positions follow from the headers."""
        root = str(files.root).rstrip("/")
        paths = [f"{root}/{name}" for name in files.names]
        sizes, errors = self._measure(paths)
        expected, lengths = sizes.tolist(), 3 * sizes.prod(dim=1)
        ends = lengths.cumsum(0)
        pixels = torch.empty(int(ends[-1]), dtype=torch.uint8, device=self.device)
        there = [i for i in range(len(paths)) if i not in errors]
        groups = (
            (there[begin : begin + _TOGETHER], [paths[i] for i in there[begin : begin + _TOGETHER]])
            for begin in range(0, len(there), _TOGETHER)
        )
        with closing(decoded_ahead(groups, self.device, workers=self._workers)) as batches:
            for chosen, decoded in batches:
                row: list[Tensor] = []
                for i, image in zip(chosen, self._shrunk(decoded), strict=True):
                    if isinstance(image, Tensor) and list(image.shape[1:]) == expected[i]:
                        row.append(image.flatten())
                        continue
                    another = UnreadableImageError(paths[i], "its header has a different size")
                    errors[i] = another if isinstance(image, Tensor) else image
                    row.append(pixels.new_zeros(int(lengths[i])))
                # Files without a header have length 0, so chunks are contiguous.
                torch.cat(row, out=pixels[ends[chosen[0]] - lengths[chosen[0]] : ends[chosen[-1]]])
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()  # batches are made on other streams
        if errors and self._bad_images == "error":
            raise UnreadableImageError.of_several([errors[i] for i in sorted(errors)], f"of {len(files)} images")
        self.unreadable = {str(errors[i].path): errors[i].reason for i in sorted(errors)}
        readable = torch.ones(len(files), dtype=torch.bool)
        readable[list(errors)] = False
        return PackedImages(pixels, ends - lengths, sizes[:, 0], sizes[:, 1]), readable

    def _shrunk(self, images: Sequence[Tensor | UnreadableImageError]) -> list[Tensor | UnreadableImageError]:
        """Shrink large images, those of one size together."""
        result, shrink = list(images), Resize(self.short_side)
        like: dict[torch.Size, list[int]] = {}
        for place, image in enumerate(images):
            if isinstance(image, Tensor) and min(image.shape[1:]) > self.short_side:
                like.setdefault(image.shape, []).append(place)
        for shape, places in like.items():
            together = max(1, _VALUES // shape.numel())
            for begin in range(0, len(places), together):
                some = places[begin : begin + together]
                stacked = torch.stack([image for place in some if isinstance(image := images[place], Tensor)])
                for place, small in zip(some, shrink(stacked), strict=True):
                    result[place] = small
        return result

    def _measure(self, paths: Sequence[str]) -> tuple[Tensor, dict[int, UnreadableImageError]]:
        """Return height and width of each shrunk image from its header, and the errors."""

        def shrunk(some: Sequence[str]) -> list[tuple[int, int] | UnreadableImageError]:
            return [_shrunk_size(path, self.short_side) for path in some]

        with ThreadPoolExecutor(self._workers) as pool:
            for every in (len(paths) // _SAMPLE, 1) if len(paths) > _SAMPLE else (1,):
                some = paths[::every]
                share = -(-len(some) // self._workers)
                parts = pool.map(shrunk, (some[begin : begin + share] for begin in range(0, len(some), share)))
                found = [size for part in parts for size in part]
                sizes = torch.tensor([size if isinstance(size, tuple) else (0, 0) for size in found])
                needed, free = int(3 * sizes.prod(dim=1).sum()) * len(paths) // len(found), _free_bytes(self.device)
                if free is not None and needed > free:
                    raise NoRoomError(
                        f"Expected the images to fit into the {free / 1e9:.3g} GB that {self.device} has free, "
                        f"but they need {needed / 1e9:.3g} GB; Streaming reads them from files."
                    )
        return sizes, {i: error for i, error in enumerate(found) if isinstance(error, UnreadableImageError)}


def _shrunk_size(path: str, short_side: int) -> tuple[int, int] | UnreadableImageError:
    try:
        height, width = _jpeg_size(path) or image_size(Path(path))
    except UnreadableImageError as error:
        return error
    shorter = min(height, width)
    return (height, width) if shorter <= short_side else (short_side * height // shorter, short_side * width // shorter)


def _jpeg_size(path: str) -> tuple[int, int] | None:
    """Return height and width of a plain, upright JPEG from its first bytes, which is faster than Pillow."""
    try:
        file = os.open(path, READING)
    except (OSError, ValueError):  # ValueError: a null character
        return None
    try:
        header = jpeg_header(os.read(file, _HEADER))
    except OSError:
        return None
    finally:
        os.close(file)
    return (header.height, header.width) if header is not None and header.upright else None


def _free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device; None if it is unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch caches freed memory
        return torch.cuda.mem_get_info(device)[0] + unused
    memory = Path("/proc/meminfo")
    if device.type != "cpu" or not memory.exists():
        return None
    lines = dict(line.split(":") for line in memory.read_text().splitlines())
    return 1024 * int(lines["MemAvailable"].split()[0])
