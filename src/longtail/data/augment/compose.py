"""Augmentations, one after the other."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from longtail._checks import told
from longtail.data.augment._batch import check_uniforms

__all__ = ["Augmentation", "Compose"]


class Augmentation(Protocol):
    """A function of a batch of images and of uniform numbers, ``draws`` of them a sample.

    Chance comes from outside: nothing here draws a number, so the same ``uniforms`` give the same images in any batch.
    """

    @property
    def draws(self) -> int:
        """How many uniform numbers in [0, 1) a sample needs."""

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """``images`` of shape ``(B, C, H, W)``, augmented with ``uniforms`` of shape ``(B, draws)``."""


@dataclass(frozen=True)
class Compose:
    """Several augmentations, one after the other; each takes its own columns of the uniform numbers, in order.

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
            raise TypeError(f"Expected `augmentations` to be a tuple, but got {told(self.augmentations)}.")
        for augmentation in self.augmentations:
            if isinstance(augmentation, type) or not hasattr(augmentation, "draws") or not callable(augmentation):
                found = told(augmentation)
                raise TypeError(f"Expected `augmentations` to hold augmentations, but got {found}.")

    @property
    def draws(self) -> int:
        """How many uniform numbers a sample needs: what its parts need together."""
        return sum(augmentation.draws for augmentation in self.augmentations)

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """``images`` after every augmentation."""
        uniforms, start = check_uniforms(images, uniforms, self.draws), 0
        for augmentation in self.augmentations:
            images = augmentation(images, uniforms[:, start : start + augmentation.draws])
            start += augmentation.draws
        return images
