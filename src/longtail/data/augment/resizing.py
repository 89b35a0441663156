"""Antialiased bilinear resizing, of whole images or of windows."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.data.augment._batch import (
    as_pixels,
    between,
    check_size,
    check_uniforms,
    integers,
    mix,
    over,
    wide,
)

__all__ = ["RandomResizedCrop", "Resize", "resized_crop"]

_TRIES = 10  # as in torchvision: after so many windows that do not fit, the middle of the image
_RATIO = (3 / 4, 4 / 3)  # width over height of a window


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
    with torch.autocast(images.device.type, enabled=False):  # bf16 would be wrong by a level or more
        mixed = F.interpolate(images.float(), size, mode="bilinear", antialias=True)
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

    Args:
        images: ``(B, C, H, W)``, uint8 or floating-point in [0, 255].
        top: ``(B,)``, first row of the window, which is inside the image.
        left: ``(B,)``, first column.
        height: ``(B,)``, number of rows, >= 1.
        width: ``(B,)``, number of columns, >= 1.
        size: of the result: a side, or ``(height, width)``.

    Returns:
        ``(B, C, *size)`` of the images' dtype.

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
        """Return a resized window of each image."""
        uniforms = check_uniforms(images, uniforms, self.draws)
        return resized_crop(images, *self.parameters(uniforms, *images.shape[2:]), size=self.size)
