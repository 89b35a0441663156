"""The protocol of augmentations, a sequence of them, and the normalisation at its end."""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from longtail._checks import describe
from longtail.data.augment._batch import check_uniforms

__all__ = ["Augmentation", "Compose", "Normalise", "normalise"]


class Augmentation(Protocol):
    """A function of a batch of images and of ``draws`` uniform numbers per sample; it draws no numbers itself."""

    @property
    def draws(self) -> int:
        """Uniform numbers in [0, 1) per sample."""

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Return ``images`` ``(B, C, H, W)``, augmented with ``uniforms`` ``(B, draws)``."""


@dataclass(frozen=True)
class Compose:
    """Several augmentations in sequence; each takes its own columns of the uniform numbers, in order.

    Example:
        >>> import torch
        >>> from longtail.data.augment import Cutout, RandomCrop, RandomFlip
        >>> augment = Compose((RandomCrop(32, padding=4), RandomFlip(), Cutout(16)))
        >>> augment.draws
        5
        >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
        >>> augment(images, torch.rand(8, augment.draws)).shape
        torch.Size([8, 3, 32, 32])
    """

    augmentations: tuple[Augmentation, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.augmentations, tuple):
            raise TypeError(f"Expected `augmentations` to be a tuple, but got {describe(self.augmentations)}.")
        for augmentation in self.augmentations:
            if isinstance(augmentation, type) or not hasattr(augmentation, "draws") or not callable(augmentation):
                raise TypeError(f"Expected `augmentations` to hold augmentations, but got {describe(augmentation)}.")

    @property
    def draws(self) -> int:
        """The sum of its parts."""
        return sum(augmentation.draws for augmentation in self.augmentations)

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Apply every augmentation."""
        uniforms, start = check_uniforms(images, uniforms, self.draws), 0
        for augmentation in self.augmentations:
            images = augmentation(images, uniforms[:, start : start + augmentation.draws])
            start += augmentation.draws
        return images


def normalise(
    images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Scale pixels from [0, 255] to [0, 1], subtract the mean and divide by the standard deviation of each channel."""
    if len(mean) != images.shape[1]:
        raise ValueError(f"Expected `images` to have {len(mean)} channels, as `mean` has, but got {images.shape[1]}.")
    # Filled number by number: a copy from the host could not be captured in a CUDA graph.
    scale = torch.stack([torch.full((1, 1), 1 / (255 * s), device=images.device) for s in std])
    shift = torch.stack([torch.full((1, 1), -m / s, device=images.device) for m, s in zip(mean, std, strict=True)])
    return (images * scale).add_(shift).to(dtype)  # in place: on a CPU new memory costs more than the sum


@dataclass(frozen=True)
class Normalise:
    """Pixels in [0, 255] scaled to [0, 1] and normalised per channel, in float32; the last part of a view.

    Args:
        mean: mean of each channel, on the scale of [0, 1].
        std: standard deviation of each channel, on the same scale.
        dtype: floating-point type of the result.

    Example:
        >>> cifar = Normalise(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
        >>> cifar(torch.zeros(1, 3, 1, 1, dtype=torch.uint8)).flatten()
        tensor([-2.4291, -2.4183, -2.2214])
    """

    draws: ClassVar[int] = 0
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if not (isinstance(self.mean, tuple) and isinstance(self.std, tuple) and len(self.mean) == len(self.std)):
            raise TypeError(
                f"Expected `mean` and `std` to be tuples of one length, but got {self.mean} and {self.std}."
            )
        if not all(math.isfinite(m) and s > 0 for m, s in zip(self.mean, self.std, strict=True)):
            raise ValueError(f"Expected finite `mean` and `std` > 0, but got {self.mean} and {self.std}.")
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            raise TypeError(f"Expected `dtype` to be a floating-point dtype, but got {self.dtype}.")

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Return the normalised images."""
        check_uniforms(images, uniforms, self.draws)
        return normalise(images, self.mean, self.std, self.dtype)
