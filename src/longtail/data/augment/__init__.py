"""Augmentations: functions of a batch of images and its drawn parameters, on any device.

Images are ``(B, C, H, W)``, uint8 or floating-point, both on the scale of [0, 255]; all but ``Normalise`` keep the
dtype. A function takes its parameters as tensors with one number a sample; a class over it makes them from uniform
numbers in [0, 1), ``draws`` of them a sample, which come from outside (``longtail.data.sampling.draws``). No shape
depends on
data and nothing is read back from the device, so a CUDA graph can hold every one of them.
"""

from longtail.data.augment.colour import (
    ColorJitter,
    RandomGrey,
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    grey,
    jitter,
)
from longtail.data.augment.compose import Augmentation, Compose
from longtail.data.augment.geometry import CentreCrop, Cutout, RandomCrop, RandomFlip, centre_crop, crop, cutout, flip
from longtail.data.augment.normalisation import Normalise, normalise
from longtail.data.augment.operations import OPERATIONS, affine, apply_operation
from longtail.data.augment.policies import CIFAR_POLICIES, AutoAugmentCIFAR, RandAugment
from longtail.data.augment.resizing import RandomResizedCrop, Resize, resize, resized_crop
from longtail.data.augment.smoothing import Blur, blur

__all__ = [
    "Augmentation",
    "Compose",
    "CentreCrop",
    "Cutout",
    "RandomCrop",
    "RandomFlip",
    "centre_crop",
    "crop",
    "cutout",
    "flip",
    "RandomResizedCrop",
    "Resize",
    "resize",
    "resized_crop",
    "ColorJitter",
    "RandomGrey",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "grey",
    "jitter",
    "Blur",
    "blur",
    "CIFAR_POLICIES",
    "OPERATIONS",
    "AutoAugmentCIFAR",
    "RandAugment",
    "affine",
    "apply_operation",
    "Normalise",
    "normalise",
]
