"""Pixels mixed to another size: antialiased bilinear resizing, of a whole image or of a window of it."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.data.augment._batch import (
    as_pixels,
    between,
    check_images,
    check_interval,
    check_parameters,
    check_size,
    check_uniforms,
    integers,
    mix,
    over,
    wide,
)

__all__ = ["RandomResizedCrop", "Resize", "resize", "resized_crop"]

_TRIES = 10  # torchvision's: after so many windows that do not fit, the middle of the image


def _triangles(start: Tensor, length: Tensor, side: int, size: int) -> Tensor:
    """Weights ``(B, size, side)`` of the pixels of a side in ``size`` new ones made of ``length`` from ``start``."""
    pixel = torch.arange(side, device=start.device, dtype=torch.float32) - start[:, None]  # counted from the window's
    scale = over(length.float(), size)[:, None]
    centre = scale * (torch.arange(size, device=start.device) + 0.5)
    distance = (pixel[:, None, :] + 0.5 - centre[:, :, None]).abs()
    weights = (1 - distance / scale.clamp(min=1)[:, :, None]).clamp(min=0)
    weights = torch.where(((pixel >= 0) & (pixel < length[:, None]))[:, None, :], weights, 0.0)
    return weights / weights.sum(dim=2, keepdim=True)


def _sums(images: Tensor, wide: int) -> bool:
    """Whether torch's own way is taken: on a CPU, but for one column, of which it repeats the first row."""
    return images.device.type == "cpu" and wide > 1


def _interpolated(images: Tensor, size: tuple[int, int]) -> Tensor:
    with torch.autocast(images.device.type, enabled=False):  # which would be wrong by a level or more
        mixed = F.interpolate(images.float(), size, mode="bilinear", antialias=True)
    return as_pixels(mixed, images.dtype, rounded=True)


def resized_crop(  # noqa: PLR0917 -- torchvision's own order
    images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int | tuple[int, int]
) -> Tensor:
    r"""A window of each image, a different one for each, resized to one size: bilinear, antialiased.

    With a window of :math:`h` pixels made into :math:`n`, and :math:`s = h / n`, new pixel :math:`i` weighs pixel
    :math:`j` of the window by a triangle, and the weights of each new pixel are scaled to sum to one:

    .. math:: w_{ij} \propto \max\left(0, 1 - \frac{|j + 0.5 - s (i + 0.5)|}{\max(1, s)}\right)

    It is what torchvision and PIL compute, in float32 and, for uint8, rounded once at the end (PIL also rounds between
    down and across). On a GPU down and across each is one matrix product, with the weights of each sample; on a CPU
    torch sums sample by sample, over those pixels only that weigh anything.

    Args:
        images: ``(B, C, H, W)``, uint8 or floating-point in [0, 255].
        top: ``(B,)``, the window's first row.
        left: ``(B,)``, its first column.
        height: ``(B,)``, its rows, at least 1; the window lies within the image.
        width: ``(B,)``, its columns, at least 1.
        size: of the result: a side, or ``(height, width)``.

    Returns:
        ``(B, C, *size)`` of the images' dtype.

    Example:
        >>> images = torch.tensor([[0.0, 10, 20, 30], [0.0, 10, 20, 30]]).view(1, 1, 2, 4)
        >>> zero, two = torch.tensor([0]), torch.tensor([2])
        >>> resized_crop(images, top=zero, left=two, height=two, width=two, size=(1, 4)).flatten()
        tensor([20.0000, 22.5000, 27.5000, 30.0000])
    """
    check_images(images)
    check_parameters(images, top=top, left=left, height=height, width=width)
    high, wide = check_size("size", size)
    # What is compiled has no numbers to cut by.
    if _sums(images, wide) and len(images) and not torch.compiler.is_compiling():
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
    """Images resized as :func:`resized_crop` does, from their whole.

    Args:
        images: ``(B, C, H, W)``, uint8 or floating-point in [0, 255].
        size: ``(height, width)`` of the result.

    Returns:
        ``(B, C, *size)`` of the images' dtype.

    Example:
        >>> resize(torch.tensor([[[[10.0, 20.0, 30.0, 40.0]]]]), (1, 2)).flatten()
        tensor([17.1429, 32.8571])
    """
    check_images(images)
    high, wide = check_size("size", size)
    if _sums(images, wide):
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
    """:func:`resize` as an augmentation, for testing: an integer is the shorter side, the other keeps the aspect.

    Example:
        >>> Resize(256)(torch.zeros(1, 3, 375, 500)).shape
        torch.Size([1, 3, 256, 341])
    """

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        check_size("size", self.size)

    @property
    def draws(self) -> int:
        """None are needed."""
        return 0

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """The images in another size."""
        check_uniforms(images, uniforms, self.draws)
        if isinstance(self.size, tuple):
            return resize(images, self.size)
        height, width = images.shape[2:]
        shorter = min(height, width)
        return resize(images, (self.size * height // shorter, self.size * width // shorter))


@dataclass(frozen=True)
class RandomResizedCrop:
    """A window of random area, aspect ratio and place, resized to ``size`` (Szegedy et al., 2015).

    Of ten windows, with an area uniform in ``scale`` (a share of the image's) and a ratio of width to height whose
    logarithm is uniform in that of ``ratio``, the first that fits into the image is taken; if none does, the largest
    window in the middle whose ratio is in ``ratio``. Draws: area and ratio, ten times; top; left.

    Example:
        >>> crop = RandomResizedCrop(224)
        >>> crop.draws
        22
        >>> crop(torch.zeros(2, 3, 256, 341), torch.rand(2, 22)).shape
        torch.Size([2, 3, 224, 224])
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        check_size("size", self.size)
        check_interval("scale", self.scale, 0.0, 1.0)
        low, _ = check_interval("ratio", self.ratio, 0.0, math.inf)
        if low == 0 or self.ratio[1] == math.inf:
            raise ValueError(f"Expected `ratio` to hold finite numbers > 0, but got {self.ratio}.")

    @property
    def draws(self) -> int:
        """Area and ratio of ten windows, and the place of the one that is taken."""
        return 2 * _TRIES + 2

    def parameters(
        self, uniforms: Tensor, height: Tensor | int, width: Tensor | int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Top, left, height and width of the windows, in images whose size may differ from one to the next."""
        low, high = self.ratio
        zero = wide(torch.zeros_like(uniforms[:, 0]))
        rows, columns = zero + height, zero + width
        area = (rows * columns)[:, None] * between(wide(uniforms[:, 0 : 2 * _TRIES : 2]), *self.scale)
        ratio = between(wide(uniforms[:, 1 : 2 * _TRIES : 2]), math.log(low), math.log(high)).exp()
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
        """A window of each image."""
        uniforms = check_uniforms(images, uniforms, self.draws)
        return resized_crop(images, *self.parameters(uniforms, *images.shape[2:]), size=self.size)
