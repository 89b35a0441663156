"""Defaults for your own images that fit their number and their size."""

import math
import re
from collections.abc import Mapping
from typing import Any

from longtail._program import count
from longtail.train.own import SMALL, OwnImages

_STEPS_PER_EPOCH = 16  # of a small data set: fewer images have smaller batches
_BATCH_SIZES = (16, 128, 256)  # the smallest, and the largest for small and for large images
_STEPS = {"scratch": 2_500, "tuned": 500, "features": 2_000}  # also of a head on frozen features
"""Steps of a run, at least, unless that takes more than the most epochs."""
_EPOCHS = {"scratch": (60, 200), "tuned": (10, 50)}
"""The fewest epochs, for many images, and the most, for few."""
_RATES = {"small": (0.1, 128), "large": (0.1, 256), "tuned": (0.02, 256)}
"""The learning rate at a batch size; it grows with the square root of the batch size."""
_ADAMW = {"small": (1e-3, 256), "large": (1e-3, 256), "tuned": (5e-4, 256)}
"""The same for AdamW."""
_LORA = (1e-3, 256)
"""The same for AdamW with low-rank changes or adapters."""
_HEAD: dict[str, Any] = {"optimizer": "adamw", "lr": 1e-2, "warmup": 0, "schedule": "cosine"}
"""For a head on frozen features: those of `features.toml`."""
_FEW = 50_000
"""Feature vectors up to which the weight decay is chosen in pilots, which take four times as long as the run."""
_NEEDS_ADAMW = re.compile(r"vit|deit|swin|beit|eva|mixer|convnext|xcit|cait|coat")
"""Networks that SGD at the usual rates does not train."""
_MANY = 50_000  # images that a ResNet-50 needs
_SIDES = {0: 64, 2_000: 128, 10_000: 224}
"""The side that a model sees, by the number of images from which on; it is not larger than the images."""


def fitting_settings(images: OwnImages, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a recipe that fit your own images.

    Args:
        images: their number and size.
        given: settings of the user, which the others fit: ``batch_size``, ``epochs``, ``pretrained``, ``weights``,
            ``train``, ``optimizer``, and ``model``, because transformers and ConvNeXts need AdamW.

    Example:
        >>> pictures = OwnImages(number=155, classes=8, height=200, width=300, small=False)
        >>> fitted = fitting_settings(pictures, {})
        >>> fitted["model"], fitted["image_size"], fitted["batch_size"], fitted["epochs"]
        ('resnet18', 64, 16, 200)
    """
    if images.features:
        return _feature_settings(images.training(given), given)
    tuned = bool(given.get("pretrained") or given.get("weights"))
    number, short = images.training(given), min(images.height, images.width)
    like_cifar = short <= SMALL and not tuned  # also if sizes differ
    kind = "tuned" if tuned else "small" if like_cifar else "large"
    smallest, *largest = _BATCH_SIZES
    batch = given.get("batch_size") or min(
        max(2 ** round(math.log2(number / _STEPS_PER_EPOCH)), smallest), largest[not like_cifar]
    )
    length = "tuned" if tuned else "scratch"
    fewest, most = _EPOCHS[length]
    epochs = given.get("epochs") or min(max(math.ceil(_STEPS[length] / math.ceil(number / batch)), fewest), most)
    lora = given.get("train") in {"lora", "adapter"}
    usual = "adamw" if lora or _NEEDS_ADAMW.search(str(given.get("model", ""))) else "sgd"
    optimizer = given.get("optimizer", usual)
    adamw = optimizer != "sgd"  # timm's are used like it
    rate, at = _LORA if lora and adamw else (_ADAMW if adamw else _RATES)[kind]
    settings: dict[str, Any] = {
        "batch_size": batch,
        "epochs": epochs,
        "lr": float(f"{rate * math.sqrt(batch / at):.2g}"),
        "warmup": min(5, epochs // 10),
    }
    if adamw:
        settings |= {
            "optimizer": optimizer,
            "weight_decay": 0.05,
            "clip_grad": 1.0,
            "layer_decay": 0.75 if tuned and not lora else 1.0,
        }
    if given.get("train") == "head":
        settings |= _HEAD | {"clip_grad": 0.0, "layer_decay": 1.0} | _feature_settings(number, given)
    if images.small and not tuned:
        return settings
    if like_cifar:
        side = max(16, round(short / 16) * 16)
        return settings | {"model": "resnet32", "augment": "cifar", "image_size": side}
    settings["model"] = "resnet18" if number < _MANY and not given.get("weights") else "resnet50"
    if not tuned:
        side = max(side for least, side in _SIDES.items() if number >= least)
        settings["image_size"] = min(side, round(short / 32) * 32)
    return settings


def _feature_settings(number: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Batch size and epochs for a model of features, about 2,000 steps and ten epochs or more, and its weight decay."""
    batch = given.get("batch_size") or min(max(2 ** round(math.log2(number / 50)), 16), 1024)
    epochs = max(round(_STEPS["features"] / math.ceil(number / batch)), 10)
    return {"batch_size": batch, "epochs": epochs, "weight_decay": "auto" if number <= _FEW else 0.1}


def describe_settings(images: OwnImages, settings: Mapping[str, Any]) -> str:
    r"""One line about the images and what was chosen for them, or by the user.

    Example:
        >>> pictures = OwnImages(number=155, classes=8, height=200, width=300, small=False)
        >>> print(describe_settings(pictures, fitting_settings(pictures, {})).replace(": ", ":\n"))
        about 139 training images of about 300 x 200 pixels, 8 classes:
        resnet18 at 64 x 64, 200 epochs of 9 steps (batch size 16, learning rate 0.025).
    """
    about = "" if images.small else "about "
    side = settings.get("image_size")
    size = f" at {side} x {side}" if side else ""
    number = images.training(settings)
    steps = math.ceil(number / settings["batch_size"])
    length = f"{count(settings['epochs'], 'epoch')} of {count(steps, 'step')}"
    what = f"training images of {about}{images.width} x {images.height} pixels"
    if images.features:
        what = f"training vectors of {images.features:,} features"
    steps_and_rate = f"{length} (batch size {settings['batch_size']}, learning rate {settings['lr']:g})"
    rounded = "" if images.counts or number == images.number else "about "
    return f"{rounded}{number:,} {what}, {count(images.classes, 'class')}: {settings['model']}{size}, {steps_and_rate}."
