"""Augmentations that move pixels: crop, flip, Cutout, and antialiased bilinear resizing of images and windows."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._checks import check_fraction, check_integer
from longtail.data.augment.augmentation import (
    as_pixels,
    between,
    check_size,
    check_uniforms,
    integers,
    mix,
    over,
    per_sample,
    pick,
)

_LARGE = 2**24  # pixels, over all channels
_TRIES = 10  # as in torchvision: after so many windows that do not fit, the middle of the image
_RATIO = (3 / 4, 4 / 3)  # width over height of a window


def crop(images: Tensor, top: Tensor, left: Tensor, size: int | tuple[int, int], padding: int = 0) -> Tensor:
    """Cut a window out of each image, padded with black; ``top`` and ``left`` ``(B,)`` count in the padded image."""
    height, width = check_size("size", size)
    rows = top.long()[:, None] + torch.arange(height, device=images.device) - padding
    columns = left.long()[:, None] + torch.arange(width, device=images.device) - padding
    return pick(images, rows[:, :, None], columns[:, None, :])


def cutout(images: Tensor, top: Tensor, left: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Blacken a rectangle of each image; it may start outside the image."""
    height, width = check_size("size", size)
    row = torch.arange(images.shape[2], device=images.device) - top[:, None]
    column = torch.arange(images.shape[3], device=images.device) - left[:, None]
    hole = ((row >= 0) & (row < height))[:, None, :, None] & ((column >= 0) & (column < width))[:, None, None, :]
    return torch.where(hole, 0, images)


@dataclass(frozen=True)
class RandomCrop:
    """A window of ``size`` at a random place of the image padded with ``padding`` black pixels. Draws: top, left.

    Example:
        >>> RandomCrop(32, padding=4).parameters(torch.tensor([[0.0, 0.5]]), 32, 32)
        (tensor([0]), tensor([4]))
    """

    draws: ClassVar[int] = 2
    size: int | tuple[int, int]
    padding: int = 0

    def __post_init__(self) -> None:
        check_size("size", self.size)
        check_integer("padding", self.padding, minimum=0)

    def parameters(self, uniforms: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Return top and left of the windows, uniform over the places in a padded ``height`` x ``width`` image."""
        high, wide = check_size("size", self.size)
        free_rows, free_columns = height + 2 * self.padding - high, width + 2 * self.padding - wide
        if free_rows < 0 or free_columns < 0:
            raise ValueError(
                f"Expected `images` to be at least {high} x {wide} with a padding of {self.padding}, "
                f"but got {height} x {width}."
            )
        return integers(uniforms[:, 0], free_rows + 1), integers(uniforms[:, 1], free_columns + 1)

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Return a window of each image."""
        uniforms = check_uniforms(images, uniforms, self.draws)
        return crop(images, *self.parameters(uniforms, *images.shape[2:]), self.size, self.padding)


@dataclass(frozen=True)
class CentreCrop:
    """The middle of each image, rounded like torchvision; sides that are too short are padded with black.

    Example:
        >>> CentreCrop(2)(torch.arange(16.0).view(1, 1, 4, 4)).flatten()
        tensor([ 5.,  6.,  9., 10.])
    """

    draws: ClassVar[int] = 0
    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        check_size("size", self.size)

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Return the middle of each image."""
        check_uniforms(images, uniforms, self.draws)
        padding = []
        for side, wanted in zip(images.shape[:1:-1], check_size("size", self.size)[::-1], strict=True):  # width first
            before = (wanted - side) // 2 if wanted > side else -round((side - wanted) / 2)
            padding += [before, wanted - side - before]
        return F.pad(images, padding)


@dataclass(frozen=True)
class RandomFlip:
    """Left and right exchanged with probability ``p``.

    Example:
        >>> RandomFlip()(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[0.3]])).flatten()
        tensor([2., 1.])
    """

    draws: ClassVar[int] = 1
    p: float = 0.5

    def __post_init__(self) -> None:
        check_fraction("p", self.p)

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Flip some of the images."""
        flipped = check_uniforms(images, uniforms, self.draws)[:, 0] < self.p
        return torch.where(per_sample(flipped), images.flip(-1), images)


@dataclass(frozen=True)
class Cutout:
    """A black square whose centre is a random pixel (DeVries & Taylor, 2017). Draws: row, column.

    Example:
        >>> Cutout(16).parameters(torch.tensor([[0.0, 0.5]]), 32, 32)  # the first row of pixels, the middle column
        (tensor([-8]), tensor([8]))
    """

    draws: ClassVar[int] = 2
    size: int

    def __post_init__(self) -> None:
        check_integer("size", self.size, minimum=1)

    def parameters(self, uniforms: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Return top and left of the squares: the centre minus half a side."""
        half = self.size // 2
        return integers(uniforms[:, 0], height) - half, integers(uniforms[:, 1], width) - half

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Blacken a square of each image."""
        uniforms = check_uniforms(images, uniforms, self.draws)
        return cutout(images, *self.parameters(uniforms, *images.shape[2:]), self.size)


# --- resizing


def _triangles(start: Tensor, length: Tensor, side: int, size: int) -> Tensor:
    """Return weights ``(B, size, side)`` of old pixels in new ones, for windows of ``length`` from ``start``."""
    pixel = torch.arange(side, device=start.device, dtype=torch.float32) - start[:, None]  # counted from the start
    scale = over(length.float(), size)[:, None]
    centre = scale * (torch.arange(size, device=start.device) + 0.5)
    distance = (pixel[:, None, :] + 0.5 - centre[:, :, None]).abs()
    weights = (1 - distance / scale.clamp(min=1)[:, :, None]).clamp(min=0)
    weights = torch.where(((pixel >= 0) & (pixel < length[:, None]))[:, None, :], weights, 0.0)
    return weights / weights.sum(dim=2, keepdim=True)


def _uses_interpolate(images: Tensor, wide: int) -> bool:
    """Whether to use torch's interpolation: on a CPU, but not to one column, where torch repeats the first row."""
    return images.device.type == "cpu" and wide > 1


def _interpolated(images: Tensor, size: tuple[int, int]) -> Tensor:
    # A large image one channel at a time: in float32 it takes four times its memory.
    parts = torch.split(images, 1, dim=1) if images.numel() > _LARGE else (images,)
    with torch.autocast(images.device.type, enabled=False):  # bf16 would be wrong by a level or more
        mixed = torch.cat([F.interpolate(part.float(), size, mode="bilinear", antialias=True) for part in parts], dim=1)
    return as_pixels(mixed, images.dtype, rounded=True)


def resized_crop(  # noqa: PLR0917 -- torchvision's own order
    images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int | tuple[int, int]
) -> Tensor:
    r"""Resize a window of each image to one size, bilinear and antialiased.

    If :math:`h` pixels become :math:`n` and :math:`s = h / n`, pixel :math:`j` of the window has this weight in new
    pixel :math:`i`, scaled so that the weights of each new pixel sum to one:

    .. math:: w_{ij} \propto \max\left(0, 1 - \frac{|j + 0.5 - s (i + 0.5)|}{\max(1, s)}\right)

    This is what torchvision and PIL compute, in float32, for uint8 rounded once at the end (PIL also rounds between
    rows and columns). On a GPU rows and columns are a matrix product each; on a CPU torch interpolates each sample.

    Windows are inside the images; ``top``, ``left``, ``height`` and ``width`` are ``(B,)``.

    Example:
        >>> images = torch.tensor([[0.0, 10, 20, 30], [0.0, 10, 20, 30]]).view(1, 1, 2, 4)
        >>> zero, two = torch.tensor([0]), torch.tensor([2])
        >>> resized_crop(images, top=zero, left=two, height=two, width=two, size=(1, 4)).flatten()
        tensor([20.0000, 22.5000, 27.5000, 30.0000])
    """
    high, wide = check_size("size", size)
    # Compiled code has no numbers to slice by.
    if _uses_interpolate(images, wide) and len(images) and not torch.compiler.is_compiling():
        windows = torch.stack([top, left, height, width], dim=1).long().tolist()
        return torch.cat(
            [
                _interpolated(image[None, :, first : first + rows, before : before + columns], (high, wide))
                for image, (first, before, rows, columns) in zip(images, windows, strict=True)
            ]
        )
    return mix(
        images,
        rows=_triangles(top, height, images.shape[2], high),
        columns=_triangles(left, width, images.shape[3], wide),
    )


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize whole images to ``(height, width)``, like :func:`resized_crop`."""
    high, wide = check_size("size", size)
    if _uses_interpolate(images, wide):
        return _interpolated(images, (high, wide))
    height, width = images.shape[2:]
    zero = torch.zeros(1, device=images.device)  # the same weights for every sample
    return mix(
        images,
        rows=_triangles(zero, torch.full_like(zero, height), height, high),
        columns=_triangles(zero, torch.full_like(zero, width), width, wide),
    )


@dataclass(frozen=True)
class Resize:
    """Images resized to ``(height, width)``, or to a shorter side with the same aspect ratio.

    Example:
        >>> Resize(256)(torch.zeros(1, 3, 375, 500)).shape
        torch.Size([1, 3, 256, 341])
    """

    draws: ClassVar[int] = 0
    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        check_size("size", self.size)

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Resize the images."""
        check_uniforms(images, uniforms, self.draws)
        if isinstance(self.size, tuple):
            return resize(images, self.size)
        height, width = images.shape[2:]
        shorter = min(height, width)
        return resize(images, (self.size * height // shorter, self.size * width // shorter))


@dataclass(frozen=True)
class RandomResizedCrop:
    """A window of random area, aspect ratio and place, resized to ``size`` (Szegedy et al., 2015).

    Ten windows have an area uniform in ``scale`` (a share of the image) and a log-uniform ratio of width to height in
    [3/4, 4/3]. The first one that fits into the image is used; if none fits, the largest window in the middle with a
    ratio in that range. Draws: area and ratio, ten times; top; left.

    Example:
        >>> crop = RandomResizedCrop(224)
        >>> crop.draws
        22
        >>> crop(torch.zeros(2, 3, 256, 341), torch.rand(2, 22)).shape
        torch.Size([2, 3, 224, 224])
    """

    draws: ClassVar[int] = 2 * _TRIES + 2
    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)

    def __post_init__(self) -> None:
        check_size("size", self.size)
        if not 0 <= self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"Expected `scale` to be two numbers, low <= high, in [0, 1], but got {self.scale}.")

    def parameters(
        self, uniforms: Tensor, height: Tensor | int, width: Tensor | int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return top, left, height and width of the windows; the images may have different sizes."""
        low, high = _RATIO
        zero = torch.zeros_like(uniforms[:, 0], dtype=torch.float64)
        rows, columns = zero + height, zero + width
        area = (rows * columns)[:, None] * between(uniforms[:, 0 : 2 * _TRIES : 2].double(), *self.scale)
        ratio = between(uniforms[:, 1 : 2 * _TRIES : 2].double(), math.log(low), math.log(high)).exp()
        wides, highs = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
        fits = (wides > 0) & (wides <= columns[:, None]) & (highs > 0) & (highs <= rows[:, None])
        first, some = fits.long().argmax(dim=1, keepdim=True), fits.any(dim=1)
        middle_rows = torch.minimum(rows, (columns / low).round().clamp(min=1))
        middle_columns = torch.minimum(columns, (rows * high).round().clamp(min=1))
        window_rows = torch.where(some, highs.gather(1, first)[:, 0], middle_rows)
        window_columns = torch.where(some, wides.gather(1, first)[:, 0], middle_columns)
        free_rows, free_columns = rows - window_rows, columns - window_columns
        top = torch.where(some, integers(uniforms[:, -2], free_rows + 1), (free_rows / 2).floor())
        left = torch.where(some, integers(uniforms[:, -1], free_columns + 1), (free_columns / 2).floor())
        return top.long(), left.long(), window_rows.long(), window_columns.long()

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Return a resized window of each image."""
        uniforms = check_uniforms(images, uniforms, self.draws)
        return resized_crop(images, *self.parameters(uniforms, *images.shape[2:]), size=self.size)
