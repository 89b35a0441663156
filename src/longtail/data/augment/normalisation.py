"""From pixels to what a network reads."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail._checks import check_number, told
from longtail.data.augment._batch import check_images, check_uniforms

__all__ = ["Normalise", "normalise"]


def normalise(
    images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    r"""Pixels in [0, 255] scaled to [0, 1], less the mean, over the standard deviation, channel by channel.

    .. math:: y_c = \frac{x_c / 255 - \mu_c}{\sigma_c}

    Args:
        images: ``(B, C, H, W)``, uint8 or floating-point in [0, 255].
        mean: of each channel, on the scale of [0, 1].
        std: of each channel, on the same scale.
        dtype: of the result; the arithmetic is float32's.

    Returns:
        ``(B, C, H, W)`` of ``dtype``.

    Example:
        >>> images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3)
        >>> normalise(images, mean=(0.5,), std=(0.25,)).flatten()
        tensor([-2.0000, -1.2000,  2.0000])
    """
    check_images(images)
    if len(mean) != images.shape[1]:
        raise ValueError(f"Expected `images` to have {len(mean)} channels, as `mean` has, but got {images.shape[1]}.")
    # Filled number by number: a copy from the host could not be captured in a CUDA graph.
    scale = torch.stack([torch.full((1, 1), 1 / (255 * s), device=images.device) for s in std])
    shift = torch.stack([torch.full((1, 1), -m / s, device=images.device) for m, s in zip(mean, std, strict=True)])
    return (images * scale).add_(shift).to(dtype)  # in place: on a CPU memory that is new costs more than the sum


@dataclass(frozen=True)
class Normalise:
    """:func:`normalise` as an augmentation, the last of a row: what comes before it works on raw pixels.

    Example:
        >>> cifar = Normalise(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
        >>> cifar(torch.zeros(1, 3, 1, 1, dtype=torch.uint8)).flatten()
        tensor([-2.4291, -2.4183, -2.2214])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not isinstance(values, tuple):
                raise TypeError(f"Expected `{name}` to be a tuple with one number a channel, but got {told(values)}.")
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"Expected `std` to have {len(self.mean)} channels, as `mean` has, but got {len(self.std)}."
            )
        for value in self.mean:
            check_number("mean", value, minimum=-math.inf)
        for value in self.std:
            if check_number("std", value) == 0:
                raise ValueError(f"Expected `std` to be > 0 in every channel, but got {self.std}.")
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            raise TypeError(f"Expected `dtype` to be a floating-point dtype, but got {self.dtype}.")

    @property
    def draws(self) -> int:
        """None are needed."""
        return 0

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """``images``, normalised."""
        check_uniforms(images, uniforms, self.draws)
        return normalise(images, self.mean, self.std, self.dtype)
