"""Pixels moved or blackened, none mixed: crop, flip, Cutout."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._checks import check_integer
from longtail.data.augment._batch import (
    check_fraction,
    check_images,
    check_level,
    check_parameters,
    check_size,
    check_uniforms,
    integers,
    per_sample,
    pick,
)

__all__ = ["CentreCrop", "Cutout", "RandomCrop", "RandomFlip", "centre_crop", "crop", "cutout", "flip"]


def crop(images: Tensor, top: Tensor, left: Tensor, size: int | tuple[int, int], padding: int = 0) -> Tensor:
    """A window of each image; what lies outside the image is black.

    Args:
        images: ``(B, C, H, W)``, uint8 or floating-point.
        top: ``(B,)``, the window's first row, counted in the padded image.
        left: ``(B,)``, its first column.
        size: of the window: a side, or ``(height, width)``.
        padding: black pixels on every side of the image.

    Returns:
        ``(B, C, *size)`` of the images' dtype.

    Example:
        >>> images = torch.arange(1, 5).view(1, 1, 2, 2).to(torch.uint8)
        >>> crop(images, torch.tensor([0]), torch.tensor([1]), size=2, padding=1)[0, 0]
        tensor([[0, 0],
                [1, 2]], dtype=torch.uint8)
    """
    check_images(images)
    check_parameters(images, top=top, left=left)
    height, width = check_size("size", size)
    rows = top.long()[:, None] + torch.arange(height, device=images.device) - padding
    columns = left.long()[:, None] + torch.arange(width, device=images.device) - padding
    return pick(images, rows[:, :, None], columns[:, None, :])


def centre_crop(images: Tensor, size: int | tuple[int, int]) -> Tensor:
    """The middle of each image, rounded as torchvision rounds; a side that is too short is padded with black.

    Args:
        images: ``(B, C, H, W)``, uint8 or floating-point.
        size: a side, or ``(height, width)``.

    Returns:
        ``(B, C, *size)`` of the images' dtype.

    Example:
        >>> centre_crop(torch.arange(16.0).view(1, 1, 4, 4), 2).flatten()
        tensor([ 5.,  6.,  9., 10.])
    """
    check_images(images)
    padding = []
    for side, wanted in zip(images.shape[:1:-1], check_size("size", size)[::-1], strict=True):  # width, then height
        before = (wanted - side) // 2 if wanted > side else -round((side - wanted) / 2)
        padding += [before, wanted - side - before]
    return F.pad(images, padding)


def flip(images: Tensor, flipped: Tensor) -> Tensor:
    """Each image as it is, or with left and right exchanged.

    Args:
        images: ``(B, C, H, W)``, uint8 or floating-point.
        flipped: ``(B,)`` bool, which images to flip.

    Returns:
        ``(B, C, H, W)`` of the images' dtype.

    Example:
        >>> flip(torch.tensor([1.0, 2, 3, 4]).view(2, 1, 1, 2), torch.tensor([True, False])).flatten()
        tensor([2., 1., 3., 4.])
    """
    check_images(images)
    check_parameters(images, flipped=flipped)
    return torch.where(per_sample(flipped), images.flip(-1), images)


def cutout(images: Tensor, top: Tensor, left: Tensor, size: int | tuple[int, int], fill: int = 0) -> Tensor:
    """Each image with a rectangle blackened, of which only what lies inside the image shows.

    Args:
        images: ``(B, C, H, W)``, uint8 or floating-point.
        top: ``(B,)``, the rectangle's first row, which may be negative.
        left: ``(B,)``, its first column.
        size: a side, or ``(height, width)``.
        fill: the level of the rectangle's pixels.

    Returns:
        ``(B, C, H, W)`` of the images' dtype.

    Example:
        >>> cutout(torch.ones(1, 1, 2, 3), torch.tensor([-1]), torch.tensor([1]), size=2)[0, 0]
        tensor([[1., 0., 0.],
                [1., 1., 1.]])
    """
    check_images(images)
    check_parameters(images, top=top, left=left)
    height, width = check_size("size", size)
    row = torch.arange(images.shape[2], device=images.device) - top[:, None]
    column = torch.arange(images.shape[3], device=images.device) - left[:, None]
    hole = ((row >= 0) & (row < height))[:, None, :, None] & ((column >= 0) & (column < width))[:, None, None, :]
    return torch.where(hole, fill, images)


@dataclass(frozen=True)
class RandomCrop:
    """A window of ``size`` anywhere in the image padded with ``padding`` black pixels. Draws: top, left.

    Example:
        >>> RandomCrop(32, padding=4).parameters(torch.tensor([[0.0, 0.5]]), 32, 32)
        (tensor([0]), tensor([4]))
    """

    size: int | tuple[int, int]
    padding: int = 0

    def __post_init__(self) -> None:
        check_size("size", self.size)
        check_integer("padding", self.padding, minimum=0)

    @property
    def draws(self) -> int:
        """Top and left."""
        return 2

    def parameters(self, uniforms: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Top and left of the windows, each uniform over what fits into ``height`` x ``width`` and the padding."""
        high, wide = check_size("size", self.size)
        free_rows, free_columns = height + 2 * self.padding - high, width + 2 * self.padding - wide
        if free_rows < 0 or free_columns < 0:
            raise ValueError(
                f"Expected `images` to be at least {high} x {wide} with a padding of {self.padding}, "
                f"but got {height} x {width}."
            )
        return integers(uniforms[:, 0], free_rows + 1), integers(uniforms[:, 1], free_columns + 1)

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """A window of each image."""
        uniforms = check_uniforms(images, uniforms, self.draws)
        top, left = self.parameters(uniforms, *images.shape[2:])
        return crop(images, top, left, self.size, self.padding)


@dataclass(frozen=True)
class CentreCrop:
    """:func:`centre_crop` as an augmentation, for testing.

    Example:
        >>> CentreCrop(224)(torch.zeros(1, 3, 256, 341)).shape
        torch.Size([1, 3, 224, 224])
    """

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        check_size("size", self.size)

    @property
    def draws(self) -> int:
        """None are needed."""
        return 0

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """The middle of each image."""
        check_uniforms(images, uniforms, self.draws)
        return centre_crop(images, self.size)


@dataclass(frozen=True)
class RandomFlip:
    """Left and right exchanged with probability ``p``.

    Example:
        >>> RandomFlip()(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[0.3]])).flatten()
        tensor([2., 1.])
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_fraction("p", self.p)

    @property
    def draws(self) -> int:
        """Whether to flip."""
        return 1

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Some of the images flipped."""
        return flip(images, check_uniforms(images, uniforms, self.draws)[:, 0] < self.p)


@dataclass(frozen=True)
class Cutout:
    """A black square whose centre is anywhere in the image (DeVries & Taylor, 2017). Draws: row, column.

    Example:
        >>> Cutout(16).parameters(torch.tensor([[0.0, 0.5]]), 32, 32)  # the first row of pixels, the middle column
        (tensor([-8]), tensor([8]))
    """

    size: int
    fill: int = 0

    def __post_init__(self) -> None:
        check_integer("size", self.size, minimum=1)
        check_level("fill", self.fill)

    @property
    def draws(self) -> int:
        """Row and column of the centre."""
        return 2

    def parameters(self, uniforms: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Top and left of the squares: the centre, uniform over the pixels, less half a side."""
        half = self.size // 2
        return integers(uniforms[:, 0], height) - half, integers(uniforms[:, 1], width) - half

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """The images, each with a hole."""
        uniforms = check_uniforms(images, uniforms, self.draws)
        top, left = self.parameters(uniforms, *images.shape[2:])
        return cutout(images, top, left, self.size, self.fill)
