"""The built-in data sets: how each is read, and how many images and classes it has."""

import gzip
import struct
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from longtail.classes import Groups
from longtail.data.datasets.catalog import CATALOG, Entry, expected_counts
from longtail.data.datasets.cifar import read_cifar
from longtail.data.datasets.fetch import download, fetch_archive
from longtail.data.datasets.image_files import inside, read_folder, read_lines, read_list
from longtail.data.datasets.splits import IMAGENET, ArrayImages, DataSet, FileImages, Normalisation, Split

__all__ = ["thirds"]

GREY = Normalisation((0.5,), (0.5,))


def thirds(num_classes: int) -> Groups:
    """Return the paper's groups of CIFAR by label: 0-2 / 3-5 / 6-9 of 10 classes, 0-34 / 35-69 / 70-99 of 100."""
    head = 3 if num_classes == 10 else 35 * num_classes // 100
    return Groups.from_indices(head=range(head), medium=range(head, 2 * head), tail=range(2 * head, num_classes))


# --- digits, CIFAR and Fashion-MNIST


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
        "digits",
        tuple(str(c) for c in range(10)),
        train=everything.subset(torch.cat([indices[:-50] for indices in by_class])),
        test=everything.subset(torch.cat([indices[-50:] for indices in by_class])),
        cut=thirds(10),
        normalisation=GREY,
    )


def _read_cifar(name: Literal["cifar10", "cifar100"], normalisation: Normalisation, root: Path) -> DataSet:
    train, test = (read_cifar(root, name, train=part) for part in (True, False))
    return DataSet(
        name,
        train.class_names,
        train=Split(ArrayImages(train.images), train.labels),
        test=Split(ArrayImages(test.images), test.labels),
        cut=thirds(len(train.class_names)),
        normalisation=normalisation,
    )


_FASHION = "FashionMNIST/raw"
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


def _read_fashion_mnist(root: Path) -> DataSet:
    arrays = [read_idx(root / _FASHION / file) for file in _FASHION_FILES]
    train, test = (
        Split(ArrayImages(images.unsqueeze(1)), labels.to(torch.int64)) for images, labels in (arrays[:2], arrays[2:])
    )
    return DataSet("fashion-mnist", _FASHION_CLASSES, train, test, cut=thirds(10), normalisation=GREY)


def read_idx(path: Path) -> Tensor:
    """Return the uint8 tensor in a compressed IDX file, the format of MNIST.

    It has two zero bytes, the type (8: uint8), the number of dimensions, the sizes as big-endian 32-bit integers, and
    the values.
    """
    try:
        content = bytearray(gzip.decompress(path.read_bytes()))
        sizes = struct.unpack_from(f">{content[3]}I", content, 4)
        if content[:3] != b"\0\0\x08":
            raise ValueError
        return torch.from_numpy(np.frombuffer(content, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes))
    except (EOFError, IndexError, ValueError, gzip.BadGzipFile, struct.error, zlib.error):
        raise ValueError(f"Expected {path} to be a whole IDX file of uint8, but it is truncated or damaged.") from None


def _fetch_fashion_mnist(root: Path) -> None:
    for name, md5 in _FASHION_FILES.items():
        download(f"{_FASHION_URL}/{name}", root / _FASHION / name, md5)


# --- folders and lists of image files


def _read_tiny_imagenet(root: Path) -> DataSet:
    folder = root / "tiny-imagenet-200"
    train, class_names = read_folder(folder / "train")
    answers = folder / "val" / "val_annotations.txt"
    names, labels = [], []
    for number, line in enumerate(filter(str.strip, read_lines(answers)), 1):
        name, class_name, *_ = (*line.split("\t"), "")
        if class_name not in class_names or not inside(name):
            raise ValueError(f"Expected a file and a class in line {number} of {answers}, but got {line[:80]!r}.")
        names.append(name)
        labels.append(class_names.index(class_name))
    test = Split(FileImages(folder / "val" / "images", names), torch.tensor(labels, dtype=torch.int64))
    return DataSet("tiny-imagenet", class_names, train, test)


def _read_imagenet(root: Path) -> DataSet:
    train, class_names = read_folder(root / "imagenet" / "train")
    test, _ = read_folder(root / "imagenet" / "val", class_names)
    groups = Groups.from_counts(expected_counts("imagenet-lt")["train"]) if len(class_names) == 1000 else None
    return DataSet("imagenet", class_names, train, test, cut=groups)


def _read_lists(
    root: Path, *, name: str, lists: dict[str, str], images: str, num_classes: int, normalisation: Normalisation
) -> DataSet:
    """Read official text lists."""
    splits = {part: read_list(root / file, root / images) for part, file in lists.items()}
    class_names = _folder_names(splits["train"], num_classes)
    return DataSet(name, class_names, **splits, normalisation=normalisation)  # type: ignore[arg-type]


def _folder_names(split: Split, num_classes: int) -> tuple[str, ...]:
    """Name each class after the folder of its first image, or by number if that is not unique."""
    assert isinstance(split.images, FileImages)
    classes, first = np.unique(split.labels.numpy(), return_index=True)
    names = tuple(PurePosixPath(split.images.names[i]).parent.name for i in first)
    if classes.tolist() == list(range(num_classes)) and len({*names} - {""}) == num_classes:
        return names
    return tuple(str(c) for c in range(num_classes))


_LICENCE = "the licence does not allow us to download the images"
_IMAGENET_STEPS = (
    f"{_LICENCE}: register at https://image-net.org, download ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and "
    "ILSVRC2012_devkit_t12.tar.gz into imagenet in the data folder, and unpack them with torchvision to "
    'imagenet/train/n…/*.JPEG and imagenet/val/n…/*.JPEG: `python -c "from torchvision.datasets import ImageNet; '
    "[ImageNet('data/imagenet', part) for part in ('train', 'val')]\"`."
)


def _lists_entry(
    name: str,
    num_classes: int,
    *,
    images: str,
    lists: dict[str, str],
    normalisation: Normalisation = IMAGENET,
    steps: str,
    **fields: Any,
) -> Entry:
    """Return the entry of a data set that is published as text lists; its counts ship with the package."""
    files = {part: f"{name}/{file}" for part, file in lists.items()}
    url = "https://github.com/facebookresearch/classifier-balancing/tree/main/data"
    return Entry(
        name,
        partial(
            _read_lists, name=name, lists=files, images=images, num_classes=num_classes, normalisation=normalisation
        ),
        num_classes,
        files=tuple(files.values()),
        steps=f"download {', '.join(files.values())} from {url}/{lists['train'].removesuffix('_train.txt')} into the "
        f"data folder; {steps}",
        counts=partial(expected_counts, name),
        **fields,
    )


def _cifar_entry(
    name: Literal["cifar10", "cifar100"], folder: str, url: str, md5: str, normalisation: Normalisation
) -> Entry:
    num_classes = int(name.removeprefix("cifar"))
    return Entry(
        name,
        partial(_read_cifar, name, normalisation),
        num_classes,
        {"train": 50_000, "test": 10_000},
        (folder,),
        f"`longtail data get {name}` downloads it.",
        partial(fetch_archive, url=url, md5=md5, folder=folder),
        train_range=(50_000 // num_classes, 50_000 // num_classes),
        label=f"C{num_classes}",
    )


# --- the entries

_MADE_LONG_TAILED = (  # also known with -lt at the end of their names
    Entry(
        "digits",
        _read_digits,
        10,
        {"train": 1297, "test": 500},
        steps="pip install 'longtail[data]'.",
        train_range=(124, 133),
    ),
    _cifar_entry(
        "cifar10",
        "cifar-10-batches-py",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # common practice, not the true deviation
    ),
    _cifar_entry(
        "cifar100",
        "cifar-100-python",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        Normalisation((0.5071, 0.4867, 0.4408), (0.2673, 0.2564, 0.2762)),
    ),
    Entry(
        "fashion-mnist",
        _read_fashion_mnist,
        10,
        {"train": 60_000, "test": 10_000},
        tuple(f"{_FASHION}/{file}" for file in _FASHION_FILES),
        "`longtail data get fashion-mnist` downloads it.",
        _fetch_fashion_mnist,
        train_range=(6000, 6000),
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
_USED_AS_THEY_ARE = (
    Entry(
        "imagenet",
        _read_imagenet,
        1000,
        {"train": 1_281_167, "test": 50_000},
        ("imagenet/train", "imagenet/val"),
        _IMAGENET_STEPS,
        train_range=(732, 1300),
        label="ImageNet-1K",
    ),
    _lists_entry(
        "imagenet-lt",
        1000,
        images="imagenet",
        lists={part: f"ImageNet_LT_{part}.txt" for part in ("train", "val", "test")},
        sizes={"train": 115_846, "val": 20_000, "test": 50_000},
        steps=f"for ImageNet itself, {_IMAGENET_STEPS}",
        train_range=(5, 1280),
        label="ImageNet-LT",
    ),
    _lists_entry(
        "places-lt",
        365,
        images="places365",
        lists={part: f"Places_LT_{part}.txt" for part in ("train", "val", "test")},
        sizes={"train": 62_500, "val": 7_300, "test": 36_500},
        steps=f"{_LICENCE}: download places365standard_easyformat.tar (256 x 256) from http://places2.csail.mit.edu "
        "and unpack it in the data folder, to places365/train/airfield/*.jpg, places365/val/airfield/*.jpg, and so on.",
        train_range=(5, 4980),
        label="Places-LT",
    ),
    _lists_entry(
        "inaturalist2018",
        8142,
        images="inaturalist2018",
        lists={"train": "iNaturalist18_train.txt", "test": "iNaturalist18_val.txt"},
        normalisation=Normalisation((0.466, 0.471, 0.380), (0.195, 0.194, 0.192)),
        sizes={"train": 437_513, "test": 24_426},
        steps=f"{_LICENCE}: download train_val2018.tar.gz, which "
        "https://github.com/visipedia/inat_comp/tree/master/2018 links to, and unpack it in inaturalist2018, to "
        "inaturalist2018/train_val2018/Aves/2761/*.jpg, and so on.",
        train_range=(2, 1000),
        label="iNaturalist2018",
    ),
)
for _entry in _MADE_LONG_TAILED:
    CATALOG.register(_entry.name, _entry)
for _entry in _MADE_LONG_TAILED:
    _made = replace(_entry, name=f"{_entry.name}-lt", label=_entry.label and f"{_entry.label}-LT")
    CATALOG.register(_made.name, replace(_made, imbalance=50.0 if _entry.name == "digits" else 100.0))
for _entry in _USED_AS_THEY_ARE:
    CATALOG.register(_entry.name, _entry)
