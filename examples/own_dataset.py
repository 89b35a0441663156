"""A data set from NumPy arrays that longtail can use by name, like a built-in one.

After registration, `stripes` works everywhere a built-in data set does:

    longtail train --plugin examples/own_dataset.py --data stripes --method cbs
    longtail study --plugin examples/own_dataset.py --data stripes --methods softmax cbs --seeds 3
    longtail data list --plugin examples/own_dataset.py

An installed package can register data sets without `--plugin`, with an entry point of the group `longtail.plugins`.
"""

from pathlib import Path

import numpy as np
import torch

from longtail.data import ArrayImages, DataSet, Normalisation, Split, register_dataset

CLASSES = ("0 degrees", "30 degrees", "60 degrees", "90 degrees", "120 degrees", "150 degrees")
SIDE = 16
TRAIN, TEST = 200, 40  # images per class


def load_stripes(root: Path) -> DataSet:
    """Return the data set; `root` is the data folder, for data sets that are read from files."""
    del root  # these images are generated
    generator = np.random.default_rng(0)
    return DataSet(
        name="stripes",
        class_names=CLASSES,
        train=make_split(generator, TRAIN),
        test=make_split(generator, TEST),
        normalisation=Normalisation(mean=(0.5,), std=(0.25,)),
    )


def make_split(generator: np.random.Generator, per_class: int) -> Split:
    """Return noisy grey images with stripes; a class is their direction."""
    labels = np.repeat(np.arange(len(CLASSES)), per_class)
    angle = np.pi * labels / len(CLASSES) + generator.normal(0, 0.1, len(labels))
    phase = generator.uniform(0, 2 * np.pi, len(labels))
    y, x = np.mgrid[:SIDE, :SIDE]
    along = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    images = 128 + 60 * np.sin(along + phase[:, None, None]) + generator.normal(0, 30, (len(labels), SIDE, SIDE))
    pixels = images.clip(0, 255).astype(np.uint8)[:, None]  # (N, channels, height, width)
    return Split(ArrayImages(torch.from_numpy(pixels)), torch.from_numpy(labels))


register_dataset(
    "stripes",
    load_stripes,
    num_classes=len(CLASSES),
    sizes={"train": TRAIN * len(CLASSES), "test": TEST * len(CLASSES)},
    train_range=(TRAIN, TRAIN),
    imbalance=50,  # the default of --imbalance: training uses a long-tailed subset; omit it for data that has a tail
    recipe={
        "epochs": 10,
        "batch_size": 32,
        "lr": 0.05,
        "model": "resnet20",
        "augment": "shift",
        "method": {"cbs": {"beta": 1.5}},
    },
    label="Stripes-LT",
)
