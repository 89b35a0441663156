"""Augmentations: functions of a batch of images and its drawn parameters, on any device.

Images are ``(B, C, H, W)``, uint8 or floating-point, with levels in [0, 255]; all except ``Normalise`` keep the
dtype. Each needs ``draws`` uniform numbers in [0, 1) per sample, which come from outside
(``longtail.data.sampling.draws``). No shape depends on data and nothing is read back from the device, so a CUDA graph
can capture every one of them.
"""

from longtail.data.augment.augmentation import Augmentation, Compose, Normalise, Unchanged
from longtail.data.augment.colour import ColorJitter, RandomGrey
from longtail.data.augment.geometry import CentreCrop, Cutout, RandomCrop, RandomFlip, RandomResizedCrop, Resize
from longtail.data.augment.policies import AutoAugmentCIFAR, RandAugment

__all__ = [
    "Augmentation",
    "AutoAugmentCIFAR",
    "CentreCrop",
    "ColorJitter",
    "Compose",
    "Cutout",
    "Normalise",
    "RandAugment",
    "RandomCrop",
    "RandomFlip",
    "RandomGrey",
    "RandomResizedCrop",
    "Resize",
    "Unchanged",
]
