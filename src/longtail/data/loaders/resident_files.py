"""Loading large sets of files, the fast way: decoded once, held in device memory, cut to size and augmented there."""

import copy
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from longtail._checks import check_choice, check_integer
from longtail.data.augment import Resize
from longtail.data.datasets.dataset import FileImages, Split
from longtail.data.loaders.decode import BadImages, UnreadableImageError, image_size
from longtail.data.loaders.device_decode import READING, decoded_ahead
from longtail.data.loaders.jpeg import jpeg_header
from longtail.data.loaders.prefetch import batches_ahead
from longtail.data.loaders.sizing import ImagesInARow, cut, to_size
from longtail.data.sampling.plan import Batch, BatchPlan, PlannedBatch

__all__ = ["NoRoomError", "ResidentFiles"]

_SAMPLE = 512  # files whose headers tell how large the whole will be
_TOGETHER = 256  # files that are decoded together
_VALUES = 2**26  # pixel values that are shrunk together: 256 MB as float32
_HEADER = 2**14  # bytes of a file in which a JPEG's header mostly ends


class NoRoomError(ValueError):
    """A device has less room than the images need."""


class ResidentFiles:
    """A split of image files of any size, each decoded once and held as uint8 on a device.

    An image whose shorter side is longer than ``short_side`` is shrunk to it, in proportion and whole; ImageNet-LT then
    takes about 30 GB. This changes what :class:`RandomResizedCrop` gives: windows are drawn by the same shares of area
    and the same ratios, but from the shrunk image, on its coarser grid. A window that has fewer pixels than the view is
    enlarged; from 500 x 375 into 224 x 224 those are the windows of less than 57 % of the area, where they would be
    less than 27 % with the file itself. So small windows are blurrier than those that :class:`Streaming
    <longtail.data.Streaming>` cuts. Evaluation with ``Resize(256)`` and ``CentreCrop(224)`` sees the same pixels.

    The next two batches are made in the background, on a GPU on a stream of their own, while one is being used.

    Args:
        split: image files.
        plan: which samples and views. Each view must bring images to one size, as for ``Streaming``.
        device: where to hold them. What would not fit there is refused: first by the headers of some files, then by
            those of all, before anything is decoded.
        short_side: the longest that an image's shorter side may be.
        workers: threads that read headers, and decode what the device cannot.
        bad_images: images that cannot be decoded stop the packing once all have been tried (``"error"``), or are left
            out of every batch and listed in ``unreadable`` (``"skip"``).
        progress: called with the number of images packed since the last call.
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
        progress: Callable[[int], None] | None = None,
    ) -> None:
        check_choice("bad_images", bad_images, BadImages)
        if not isinstance(split.images, FileImages):
            raise TypeError(f"Expected `split` to have image files, but got {type(split.images).__name__}.")
        self.plan, self.device = plan, torch.device(device)
        self.short_side = check_integer("short_side", short_side, minimum=1)
        self.unreadable: dict[str, str] = {}
        """Files that were left out, and why."""
        self._workers, self._bad_images = check_integer("workers", workers, minimum=1), bad_images
        self._cuts = [cut(view) for view in plan.views]
        self.labels = split.labels.to(self.device)
        self.images, self._readable = self._pack(split.images, progress or (lambda _: None))

    def with_plan(self, plan: BatchPlan) -> "ResidentFiles":
        """The same images in other batches or views, for evaluation for instance; nothing is packed again."""
        other = copy.copy(self)
        other.plan, other._cuts = plan, [cut(view) for view in plan.views]
        return other

    def training(self, seed: int, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch of training, from batch ``start`` on."""
        return batches_ahead(self._batches(self.plan.training(seed, epoch, start)), self.device)

    def evaluation(self) -> Iterator[Batch]:
        """Every sample once, in order."""
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

    def _pack(self, files: FileImages, progress: Callable[[int], None]) -> tuple[ImagesInARow, Tensor]:
        """All images in a row, and which of them could be decoded; the place of each follows from the headers."""
        root = str(files.root).rstrip("/")
        paths = [f"{root}/{name}" for name in files.names]
        sizes, errors = self._measure(paths)
        expected, lengths = sizes.tolist(), 3 * sizes.prod(dim=1)
        ends = lengths.cumsum(0)
        pixels = torch.empty(int(ends[-1]), dtype=torch.uint8, device=self.device)
        there = [i for i in range(len(paths)) if i not in errors]
        progress(len(errors))
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
                    another = UnreadableImageError(paths[i], "its header says another size")
                    errors[i] = another if isinstance(image, Tensor) else image
                    row.append(pixels.new_zeros(int(lengths[i])))
                # Those that have no header have no length, so that one chunk follows the other.
                torch.cat(row, out=pixels[ends[chosen[0]] - lengths[chosen[0]] : ends[chosen[-1]]])
                progress(len(chosen))
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()  # batches are made on other streams
        if errors:
            self._report([errors[i] for i in sorted(errors)], len(files))
        readable = torch.ones(len(files), dtype=torch.bool)
        readable[list(errors)] = False
        return ImagesInARow(pixels, ends - lengths, sizes[:, 0], sizes[:, 1]), readable

    def _shrunk(self, images: Sequence[Tensor | UnreadableImageError]) -> list[Tensor | UnreadableImageError]:
        """Large images shrunk, those of one size together; what is not larger stays as it is."""
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
        """Each image's height and width once it is shrunk, from its header, or what is wrong with that."""

        def shrunk(some: Sequence[str]) -> list[tuple[int, int] | UnreadableImageError]:
            return [_shrunk_size(path, self.short_side) for path in some]

        with ThreadPoolExecutor(self._workers) as pool:
            for every in (len(paths) // _SAMPLE, 1) if len(paths) > _SAMPLE else (1,):
                asked = paths[::every]
                share = -(-len(asked) // self._workers)
                parts = pool.map(shrunk, (asked[begin : begin + share] for begin in range(0, len(asked), share)))
                found = [size for part in parts for size in part]
                sizes = torch.tensor([size if isinstance(size, tuple) else (0, 0) for size in found])
                self._check_room(int(3 * sizes.prod(dim=1).sum()) * len(paths) // len(found))
        return sizes, {i: error for i, error in enumerate(found) if isinstance(error, UnreadableImageError)}

    def _check_room(self, needed: int) -> None:
        free = _free_bytes(self.device)
        if free is not None and needed > free:
            raise NoRoomError(
                f"Expected the images to fit into the {free / 1e9:.3g} GB that {self.device} has free, "
                f"but got {needed / 1e9:.3g} GB of them; Streaming reads them from files."
            )

    def _report(self, errors: list[UnreadableImageError], number: int) -> None:
        if self._bad_images == "error":
            raise UnreadableImageError.of_several(errors, f"of {number} images")
        self.unreadable = {str(error.path): error.reason for error in errors}


def _shrunk_size(path: str, short_side: int) -> tuple[int, int] | UnreadableImageError:
    try:
        height, width = _jpeg_size(path) or image_size(Path(path))
    except UnreadableImageError as error:
        return error
    shorter = min(height, width)
    return (height, width) if shorter <= short_side else (short_side * height // shorter, short_side * width // shorter)


def _jpeg_size(path: str) -> tuple[int, int] | None:
    """Height and width of a plain JPEG, where its header tells early in the file; of all else Pillow tells, slowly."""
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
    return None if header is None else (header.height, header.width)


def _free_bytes(device: torch.device) -> int | None:
    """What a device has free; None where nobody says."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch keeps what was freed
        return torch.cuda.mem_get_info(device)[0] + unused
    memory = Path("/proc/meminfo")
    if device.type != "cpu" or not memory.exists():
        return None
    lines = dict(line.split(":") for line in memory.read_text().splitlines())
    return 1024 * int(lines["MemAvailable"].split()[0])
