"""The built-in data sets: how each is read, and how many images and classes it has."""

import gzip
import struct
import tomllib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from longtail._io import import_extra
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
    digits = import_extra("sklearn.datasets", "data").load_digits()
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


def _read_fashion_mnist(files: Sequence[str], root: Path) -> DataSet:
    names = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
    arrays = [read_idx(root / file) for file in files]
    train, test = (
        Split(ArrayImages(images.unsqueeze(1)), labels.to(torch.int64)) for images, labels in (arrays[:2], arrays[2:])
    )
    return DataSet("fashion-mnist", tuple(names), train, test, cut=thirds(10), normalisation=GREY)


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


# --- the entries


def _fetch_files(url: str, md5: Sequence[str], files: Sequence[str], root: Path) -> None:
    for file, expected in zip(files, md5, strict=True):
        download(f"{url}/{PurePosixPath(file).name}", root / file, expected)


def _entry(name: str, given: dict[str, Any]) -> Entry:
    """Return the entry of a table in ``builtin.toml``."""
    normalisation = given.pop("normalisation", None)
    normal = IMAGENET if normalisation is None else Normalisation(*map(tuple, normalisation.values()))
    lists, images, num_classes = given.pop("lists", {}), given.pop("images", ""), given["num_classes"]
    files = given["files"] = tuple(lists.values() or given.get("files", ()))
    url, md5 = given.pop("url", ""), given.pop("md5", "")
    if url:
        given["steps"] = f"`longtail data get {name}` downloads it."
        archived = isinstance(md5, str)
        given["fetch"] = (
            partial(fetch_archive, url, md5, files[0]) if archived else partial(_fetch_files, url, md5, files)
        )
    if lists:
        where = "https://github.com/facebookresearch/classifier-balancing/tree/main/data"
        given["steps"] = f"download {', '.join(files)} from {where} into the data folder; {given['steps']}"
        given["counts"] = partial(expected_counts, name)
    readers: dict[str, Callable[[Path], DataSet]] = {
        "digits": _read_digits,
        "cifar10": partial(_read_cifar, "cifar10", normal),
        "cifar100": partial(_read_cifar, "cifar100", normal),
        "fashion-mnist": partial(_read_fashion_mnist, files),
        "tiny-imagenet": _read_tiny_imagenet,
        "imagenet": _read_imagenet,
    }
    from_lists = partial(
        _read_lists, name=name, lists=lists, images=images, num_classes=num_classes, normalisation=normal
    )
    given["train_range"] = tuple(given["train_range"])
    return Entry(name, readers.get(name, from_lists), **given)


def _register() -> None:
    text = resources.files("longtail.data.datasets").joinpath("builtin.toml").read_text(encoding="utf-8")
    for name, given in tomllib.loads(text).items():
        factor = given.pop("long_tail", None)
        entry = CATALOG.register(name, _entry(name, given))
        if factor is not None:
            label = f"{entry.label}-LT" if entry.label else ""
            made = replace(entry, name=f"{name}-lt", imbalance=float(factor), label=label)
            CATALOG.register(made.name, made)


_register()
