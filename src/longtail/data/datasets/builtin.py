"""The built-in data sets: how each is read, and how many images and classes it has."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import torch

from longtail.classes import Groups
from longtail.data.datasets.catalog import CATALOG, Entry, expected_counts
from longtail.data.datasets.dataset import IMAGENET, ArrayImages, DataSet, FileImages, Normalisation, Split
from longtail.data.datasets.fetch import get_cifar10, get_cifar100, get_fashion_mnist
from longtail.data.datasets.readers.cifar import read_cifar
from longtail.data.datasets.readers.files import inside, read_folder, read_lines, read_list
from longtail.data.datasets.readers.idx import read_idx

__all__ = ["thirds"]

CIFAR10 = Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))  # common practice, not the true deviation
CIFAR100 = Normalisation((0.5071, 0.4867, 0.4408), (0.2673, 0.2564, 0.2762))
INATURALIST = Normalisation((0.466, 0.471, 0.380), (0.195, 0.194, 0.192))
GREY = Normalisation((0.5,), (0.5,))

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def thirds(num_classes: int) -> Groups:
    """Return the paper's groups of CIFAR by label: 0-2 / 3-5 / 6-9 of 10 classes, 0-34 / 35-69 / 70-99 of 100."""
    head = 3 if num_classes == 10 else 35 * num_classes // 100
    return Groups.from_indices(head=range(head), medium=range(head, 2 * head), tail=range(2 * head, num_classes))


def _read_cifar(name: Literal["cifar10", "cifar100"], root: Path) -> DataSet:
    train, test = read_cifar(root, name, train=True), read_cifar(root, name, train=False)
    return DataSet(
        name=name,
        class_names=train.class_names,
        train=Split(ArrayImages(train.images), train.labels),
        test=Split(ArrayImages(test.images), test.labels),
        cut=thirds(len(train.class_names)),
        normalisation=CIFAR10 if name == "cifar10" else CIFAR100,
    )


def _read_digits(_: Path) -> DataSet:
    """Read scikit-learn's digits; the last 50 of each class are the test split, mostly by writers not in training."""
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImportError("The digits come with scikit-learn: pip install 'longtail[data]'.") from error
    digits = load_digits()
    pixels = torch.tensor(digits.images * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    by_class = [(labels == c).nonzero().flatten() for c in range(10)]
    everything = Split(ArrayImages(pixels), labels)
    return DataSet(
        name="digits",
        class_names=tuple(str(c) for c in range(10)),
        train=everything.subset(torch.cat([indices[:-50] for indices in by_class])),
        test=everything.subset(torch.cat([indices[-50:] for indices in by_class])),
        cut=thirds(10),
        normalisation=GREY,
    )


def _read_fashion_mnist(root: Path) -> DataSet:
    def split(part: str) -> Split:
        files = [root / file for file in _FASHION_FILES if f"/{part}-" in file]
        images, labels = map(read_idx, files)
        return Split(ArrayImages(images.unsqueeze(1)), labels.to(torch.int64))

    return DataSet("fashion-mnist", FASHION, split("train"), split("t10k"), cut=thirds(10), normalisation=GREY)


_FASHION_FILES = tuple(
    f"FashionMNIST/raw/{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")
)


def _read_lists(
    name: str, lists: dict[str, str], images: str, num_classes: int, normalisation: Normalisation = IMAGENET
) -> Callable[[Path], DataSet]:
    """Return a reader of official text lists."""

    def read(root: Path) -> DataSet:
        splits = {part: read_list(root / file, root / images) for part, file in lists.items()}
        return DataSet(
            name=name,
            class_names=_folder_names(splits["train"], num_classes),
            train=splits["train"],
            test=splits["test"],
            val=splits.get("val"),
            normalisation=normalisation,
        )

    return read


def _folder_names(split: Split, num_classes: int) -> tuple[str, ...]:
    """Name each class after the folder of its first image, or by number if that is not unique."""
    assert isinstance(split.images, FileImages)
    classes, first = np.unique(split.labels.numpy(), return_index=True)
    names = tuple(PurePosixPath(split.images.names[i]).parent.name for i in first)
    if classes.tolist() == list(range(num_classes)) and len({*names} - {""}) == num_classes:
        return names
    return tuple(str(c) for c in range(num_classes))


def _read_imagenet(root: Path) -> DataSet:
    train, class_names = read_folder(root / "imagenet" / "train")
    test, _ = read_folder(root / "imagenet" / "val", class_names)
    groups = Groups.from_counts(expected_counts("imagenet-lt")["train"]) if len(class_names) == 1000 else None
    return DataSet("imagenet", class_names, train, test, cut=groups)


def _read_tiny_imagenet(root: Path) -> DataSet:
    folder = root / "tiny-imagenet-200"
    train, class_names = read_folder(folder / "train")
    label = {name: c for c, name in enumerate(class_names)}
    answers = folder / "val" / "val_annotations.txt"
    names, labels = [], []
    for number, line in enumerate(filter(str.strip, read_lines(answers)), 1):
        columns = line.split("\t")
        if len(columns) < 2 or columns[1] not in label or not inside(columns[0]):
            raise ValueError(f"Expected a file and a class in line {number} of {answers}, but got {line[:80]!r}.")
        names.append(columns[0])
        labels.append(label[columns[1]])
    test = Split(FileImages(folder / "val" / "images", names), torch.tensor(labels, dtype=torch.int64))
    return DataSet("tiny-imagenet", class_names, train, test)


# --- how to get them


def _get(name: str) -> str:
    return f"`longtail data get {name}` downloads it."


def _lists(repository: str, files: dict[str, str]) -> str:
    url = f"https://github.com/facebookresearch/classifier-balancing/tree/main/data/{repository}"
    return f"download {', '.join(files.values())} from {url} into the data folder"


_LICENCE = "the licence does not allow us to download the images"
_IMAGENET_STEPS = (
    f"{_LICENCE}: register at https://image-net.org, download ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and "
    "ILSVRC2012_devkit_t12.tar.gz into imagenet in the data folder, and unpack them with torchvision to "
    'imagenet/train/n…/*.JPEG and imagenet/val/n…/*.JPEG: `python -c "from torchvision.datasets import ImageNet; '
    "[ImageNet('data/imagenet', part) for part in ('train', 'val')]\"`."
)
_IMAGENET_LT = {part: f"imagenet-lt/ImageNet_LT_{part}.txt" for part in ("train", "val", "test")}
_PLACES_LT = {part: f"places-lt/Places_LT_{part}.txt" for part in ("train", "val", "test")}
_INATURALIST = {
    "train": "inaturalist2018/iNaturalist18_train.txt",
    "test": "inaturalist2018/iNaturalist18_val.txt",
}

# --- the entries

_CIFAR_SIZES = {"train": 50_000, "test": 10_000}
_BALANCED = (
    Entry(
        "digits",
        _read_digits,
        10,
        {"train": 1297, "test": 500},
        steps="pip install 'longtail[data]'.",
        train_range=(124, 133),
        group_sizes=(3, 3, 4),
    ),
    Entry(
        "cifar10",
        partial(_read_cifar, "cifar10"),
        10,
        _CIFAR_SIZES,
        ("cifar-10-batches-py",),
        _get("cifar10"),
        get_cifar10,
        train_range=(5000, 5000),
        group_sizes=(3, 3, 4),
        label="C10",
    ),
    Entry(
        "cifar100",
        partial(_read_cifar, "cifar100"),
        100,
        _CIFAR_SIZES,
        ("cifar-100-python",),
        _get("cifar100"),
        get_cifar100,
        train_range=(500, 500),
        group_sizes=(35, 35, 30),
        label="C100",
    ),
    Entry(
        "fashion-mnist",
        _read_fashion_mnist,
        10,
        {"train": 60_000, "test": 10_000},
        _FASHION_FILES,
        _get("fashion-mnist"),
        get_fashion_mnist,
        train_range=(6000, 6000),
        group_sizes=(3, 3, 4),
    ),
    Entry(
        "tiny-imagenet",
        _read_tiny_imagenet,
        200,
        {"train": 100_000, "test": 10_000},
        ("tiny-imagenet-200",),
        "download http://cs231n.stanford.edu/tiny-imagenet-200.zip and unpack it in the data folder.",
        train_range=(500, 500),
    ),
)
_MADE_LONG_TAILED = tuple(
    replace(
        entry,
        name=f"{entry.name}-lt",
        imbalance=50.0 if entry.name == "digits" else 100.0,
        label=f"{entry.label}-LT" if entry.label else "",
    )
    for entry in _BALANCED
)
_AS_THEY_ARE = (
    Entry(
        "imagenet",
        _read_imagenet,
        1000,
        {"train": 1_281_167, "test": 50_000},
        ("imagenet/train", "imagenet/val"),
        _IMAGENET_STEPS,
        train_range=(732, 1300),
        group_sizes=(385, 479, 136),
        label="ImageNet-1K",
    ),
    Entry(
        "imagenet-lt",
        _read_lists("imagenet-lt", _IMAGENET_LT, "imagenet", 1000),
        1000,
        {"train": 115_846, "val": 20_000, "test": 50_000},
        tuple(_IMAGENET_LT.values()),
        f"{_lists('ImageNet_LT', _IMAGENET_LT)}; for ImageNet itself, {_IMAGENET_STEPS}",
        train_range=(5, 1280),
        group_sizes=(385, 479, 136),
        counts=partial(expected_counts, "imagenet-lt"),
        label="ImageNet-LT",
    ),
    Entry(
        "places-lt",
        _read_lists("places-lt", _PLACES_LT, "places365", 365),
        365,
        {"train": 62_500, "val": 7_300, "test": 36_500},
        tuple(_PLACES_LT.values()),
        f"{_lists('Places_LT', _PLACES_LT)}; {_LICENCE}: download places365standard_easyformat.tar (256 x 256) from "
        "http://places2.csail.mit.edu and unpack it in the data folder, to places365/train/airfield/*.jpg, "
        "places365/val/airfield/*.jpg, and so on.",
        train_range=(5, 4980),
        group_sizes=(131, 163, 71),
        counts=partial(expected_counts, "places-lt"),
        label="Places-LT",
    ),
    Entry(
        "inaturalist2018",
        _read_lists("inaturalist2018", _INATURALIST, "inaturalist2018", 8142, INATURALIST),
        8142,
        {"train": 437_513, "test": 24_426},
        tuple(_INATURALIST.values()),
        f"{_lists('iNaturalist18', _INATURALIST)}; {_LICENCE}: download train_val2018.tar.gz, which "
        "https://github.com/visipedia/inat_comp/tree/master/2018 links to, and unpack it in inaturalist2018, to "
        "inaturalist2018/train_val2018/Aves/2761/*.jpg, and so on.",
        train_range=(2, 1000),
        group_sizes=(842, 4076, 3224),
        counts=partial(expected_counts, "inaturalist2018"),
        label="iNaturalist2018",
    ),
)
for _entry in (*_BALANCED, *_MADE_LONG_TAILED, *_AS_THEY_ARE):
    CATALOG.register(_entry.name, _entry)
