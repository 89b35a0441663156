"""The augmentations of a family, by the view that an objective asks for."""

from typing import Literal

import torch

from longtail.data.augment import (
    Augmentation,
    AutoAugmentCIFAR,
    CentreCrop,
    ColorJitter,
    Compose,
    Cutout,
    Normalise,
    RandAugment,
    RandomCrop,
    RandomFlip,
    RandomGrey,
    RandomResizedCrop,
    Resize,
)
from longtail.data.datasets.dataset import Normalisation

__all__ = ["Family", "evaluation_view", "training_views"]

Family = Literal["cifar", "imagenet", "imagenet-plain", "shift", "none"]


def training_views(
    family: Family, size: int, normalisation: Normalisation, dtype: torch.dtype, *, sized: bool
) -> dict[str, Augmentation]:
    """What each view does to an image: ``weak`` (the classifier's usual one), ``strong`` and ``contrast``.

    Args:
        family: ``"cifar"`` pads, crops and flips (strong: AutoAugment and Cutout; contrast: resized crops, colours,
            grey); ``"imagenet"`` takes resized crops, flips and changes colours (strong: RandAugment; contrast: grey);
            ``"imagenet-plain"`` leaves colours alone in the weak view, as on iNaturalist; ``"shift"`` pads and crops
            without a flip, for small grey images; ``"none"`` only brings images to their size. Strong and contrast are
            as in BCL's and ProCo's repositories.
        size: side of the images that the model sees.
        normalisation: mean and standard deviation.
        dtype: what the model is given.
        sized: images have that size already; else what pads and crops brings them to it first, as evaluation does.
    """
    end = Normalise(normalisation.mean, normalisation.std, dtype)
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8)
    resized = () if sized else (Resize((size, size)),)
    parts: dict[str, tuple[Augmentation, ...]]
    if family == "cifar":
        shifted = (*resized, RandomCrop(size, padding=size // 8), RandomFlip())
        parts = {
            "weak": shifted,
            "strong": (*shifted, AutoAugmentCIFAR(fill=128), Cutout(size // 2)),
            "contrast": (RandomResizedCrop(size), RandomFlip(), jitter, RandomGrey(0.2)),
        }
    elif family in {"imagenet", "imagenet-plain"}:
        cropped = (RandomResizedCrop(size), RandomFlip())
        coloured = (*cropped, ColorJitter(0.4, 0.4, 0.4))
        parts = {
            "weak": coloured if family == "imagenet" else cropped,
            "strong": (*coloured, RandAugment(2, 30, p=0.5)),
            "contrast": (*cropped, jitter, RandomGrey(0.2)),
        }
    elif family == "shift":
        moved = (*resized, RandomCrop(size, padding=max(size // 8, 1)))
        parts = {
            "weak": moved,
            "strong": (*moved, Cutout(max(size // 4, 1))),
            "contrast": (RandomResizedCrop(size, scale=(0.5, 1.0)),),
        }
    else:
        whole = (Resize((size, size)),)
        parts = {"weak": whole, "strong": whole, "contrast": whole}
    return {name: Compose((*part, end)) for name, part in parts.items()}


def evaluation_view(
    family: Family, size: int, normalisation: Normalisation, dtype: torch.dtype, *, sized: bool
) -> Augmentation:
    """What is done to an image in evaluation: for ImageNet's families the middle of it, else only its size.

    Args:
        family: as in :func:`training_views`.
        size: likewise.
        normalisation: likewise.
        dtype: likewise.
        sized: images have that size already.
    """
    end = Normalise(normalisation.mean, normalisation.std, dtype)
    if sized:
        return Compose((end,))
    if family in {"imagenet", "imagenet-plain"}:
        return Compose((Resize(round(size * 256 / 224)), CentreCrop(size), end))
    return Compose((Resize((size, size)), end))
