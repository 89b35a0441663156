"""Images of different sizes, packed in one tensor and brought to one size together."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail._gpu import device_guard, is_checked
from longtail.data.augment import Augmentation, CentreCrop, Compose, RandomResizedCrop, Resize
from longtail.data.augment.augmentation import check_size

_PIXELS = 256  # per program of the kernel


def split_view(view: Augmentation) -> tuple[Compose, Compose]:
    """Split a view into the part that brings images to one size and the rest, which runs on whole batches.

    Example:
        >>> from longtail.data.augment import Normalise
        >>> sized, rest = split_view(Compose((Resize(256), CentreCrop(224), Normalise((0.5,), (0.5,)))))
        >>> len(sized.augmentations), len(rest.augmentations)
        (2, 1)
    """
    parts = view.augmentations if isinstance(view, Compose) else (view,)
    sizing = [i for i, part in enumerate(parts) if isinstance(part, RandomResizedCrop | Resize | CentreCrop)]
    first = sizing[-1] + 1 if sizing else 0
    return Compose(tuple(parts[:first])), Compose(tuple(parts[first:]))


@dataclass(frozen=True, eq=False)
class PackedImages:
    """Images of different sizes and three channels in one tensor."""

    pixels: Tensor
    """uint8, one-dimensional: each image as ``(3, height, width)``, flattened. On any device."""
    starts: Tensor
    """Start of each image in ``pixels``, int64 ``(N,)``, on the CPU, like heights and widths."""
    heights: Tensor
    widths: Tensor

    @classmethod
    def of(cls, images: Sequence[Tensor]) -> "PackedImages":
        """Pack images of shape ``(3, height, width)`` on their device.

        Example:
            >>> row = PackedImages.of([torch.zeros(3, 2, 5, dtype=torch.uint8), torch.ones(3, 4, 3, dtype=torch.uint8)])
            >>> row.starts, row.heights, row.widths, row[1].shape
            (tensor([ 0, 30]), tensor([2, 4]), tensor([5, 3]), torch.Size([3, 4, 3]))
        """
        sizes = torch.tensor([image.shape[1:] for image in images], dtype=torch.int64).view(-1, 2)
        lengths = 3 * sizes.prod(dim=1)
        pixels = torch.cat([image.flatten() for image in images]) if images else torch.empty(0, dtype=torch.uint8)
        return cls(pixels, lengths.cumsum(0) - lengths, sizes[:, 0], sizes[:, 1])

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Tensor:
        start, height, width = (int(values[index]) for values in (self.starts, self.heights, self.widths))
        return self.pixels[start : start + 3 * height * width].view(3, height, width)


def to_size(images: PackedImages, sized: Compose, uniforms: Tensor) -> Tensor:
    """Bring images to one size with the first part of a view (:func:`split_view`) and its drawn numbers on the CPU.

    On GPUs where it was checked, one kernel resizes windows (:class:`RandomResizedCrop`) or whole images
    (:class:`Resize`, :class:`CentreCrop`). Otherwise images are resized one by one. The result is uint8
    ``(B, 3, height, width)`` on the images' device.
    """
    parts, device = sized.augmentations, images.pixels.device
    found = windows_of(images, parts, uniforms)
    if found is not None:
        windows, size = found
        fits = 2 * int(windows[4:6].max()) * int(windows[2:4].max()) < 2**31  # the kernel counts in 32 bits
        if is_checked(device) and fits:
            return resized_by_kernel(images, windows, size)
    drawn = uniforms.to(device, non_blocking=True)
    return torch.cat([sized(images[i][None], drawn[i : i + 1]) for i in range(len(images))])


def windows_of(
    images: PackedImages, parts: Sequence[Augmentation], uniforms: Tensor
) -> tuple[Tensor, tuple[int, int]] | None:
    """Return the window of each image that augmentations resize, and the part of it that they keep.

    The windows are int64 ``(8, B)``: top, left, height and width of the window, height and width after resizing, and
    first row and column that are kept. The second value is the number of rows and columns that are kept. ``None`` for
    other parts than resize and crop, or if more would be kept than there is.
    """
    heights, widths = images.heights, images.widths
    zero = torch.zeros_like(heights)
    window: Sequence[Tensor] = zero, zero, heights, widths
    sides: tuple[Tensor | int, Tensor | int]
    match parts:
        case [RandomResizedCrop() as crop]:
            size = check_size("size", crop.size)
            window, sides = crop.parameters(uniforms, heights, widths), size
        case [Resize(size=(_, _) as size)]:
            sides = size
        case [Resize(size=side), CentreCrop(size=kept)]:
            size, shorter = check_size("size", kept), torch.minimum(heights, widths)
            sides = (side * heights // shorter, side * widths // shorter) if isinstance(side, int) else side
        case _:
            return None
    resized = [zero + side for side in sides]
    spare = [side - kept for side, kept in zip(resized, size, strict=True)]
    if any((side < 0).any() for side in spare):
        return None
    return torch.stack([*window, *resized, *((side / 2).round().long() for side in spare)]), size


def resized_by_kernel(images: PackedImages, windows: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize windows of :func:`windows_of` in one launch; float32 sums are in another order than in torch."""
    from longtail.data.loaders.resize_kernel import resize_windows  # noqa: PLC0415 - Triton is imported on use

    (high, wide), device = size, images.pixels.device
    top, left, *others = windows
    corner, plane = images.starts + top * images.widths + left, images.heights * images.widths
    rows = torch.stack([corner, plane, images.widths, *others], dim=1).to(device, non_blocking=True)
    resized = torch.empty((len(images), 3, high, wide), dtype=torch.uint8, device=device)
    programs = (len(images), -(-high * wide // _PIXELS))
    with device_guard(resized):
        resize_windows[programs](images.pixels, rows, resized, HIGH=high, WIDE=wide, E=_PIXELS, num_warps=4)
    return resized
