"""Augmentations that move or blacken pixels without mixing them: crop, flip, Cutout."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._checks import check_fraction, check_integer
from longtail.data.augment._batch import check_size, check_uniforms, integers, per_sample, pick

__all__ = ["CentreCrop", "Cutout", "RandomCrop", "RandomFlip"]


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
