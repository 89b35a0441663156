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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail._io import import_extra
from longtail.classes import Groups
from longtail.data.datasets.catalog import CATALOG, Entry, expected_counts
from longtail.data.datasets.cifar import read_cifar
from longtail.data.datasets.fetch import download, fetch_archive
from longtail.data.datasets.image_files import inside, read_folder, read_list
from longtail.data.datasets.rows import Rows, numbered
from longtail.data.datasets.splits import IMAGENET, ArrayImages, DataSet, FileImages, Normalisation, Split
from longtail.data.datasets.tables import read_lines, read_table
from longtail.data.datasets.texts import read_banking77, read_clinc150, read_goemotions, read_trec

GREY = Normalisation((0.5,), (0.5,))
_Table = dict[str, Any]  # of builtin.toml, with its name


def _normalisation(table: _Table) -> Normalisation:
    given = table.get("normalisation")
    return IMAGENET if given is None else Normalisation(tuple(given["mean"]), tuple(given["std"]))


def thirds(num_classes: int) -> Groups:
    """Return the paper's groups of CIFAR by label: 0-2 / 3-5 / 6-9 of 10 classes, 0-34 / 35-69 / 70-99 of 100."""
    head = 3 if num_classes == 10 else 35 * num_classes // 100
    return Groups.from_indices(head=range(head), medium=range(head, 2 * head), tail=range(2 * head, num_classes))


# --- digits, CIFAR and Fashion-MNIST


def _read_digits(_: _Table, __: Path) -> DataSet:
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


def _read_cifar(table: _Table, root: Path) -> DataSet:
    name, normalisation = table["name"], _normalisation(table)
    (train, class_names), (test, _) = (read_cifar(root, name, train=part) for part in (True, False))
    return DataSet(name, class_names, train, test, cut=thirds(len(class_names)), normalisation=normalisation)


def _read_fashion_mnist(table: _Table, root: Path) -> DataSet:
    names = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
    arrays = [read_idx(root / file) for file in table["files"]]
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


def _read_tiny_imagenet(_: _Table, root: Path) -> DataSet:
    folder = root / "tiny-imagenet-200"
    train, class_names = read_folder(folder / "train")
    answers = folder / "val" / "val_annotations.txt"
    names, labels = [], []
    for number, line in enumerate(filter(str.strip, read_lines(answers)), 1):
        name, class_name, *_rest = (*line.split("\t"), "")
        if class_name not in class_names or not name or not inside(name):
            raise ValueError(f"Expected a file and a class in line {number} of {answers}, but got {line[:80]!r}.")
        names.append(name)
        labels.append(class_names.index(class_name))
    test = Split(FileImages(folder / "val" / "images", names), torch.tensor(labels, dtype=torch.int64))
    return DataSet("tiny-imagenet", class_names, train, test, cut="100,20")


def _read_imagenet(_: _Table, root: Path) -> DataSet:
    train, class_names = read_folder(root / "imagenet" / "train")
    test = read_folder(root / "imagenet" / "val", class_names)[0]
    groups = Groups.from_counts(expected_counts("imagenet-lt")["train"]) if len(class_names) == 1000 else "auto"
    return DataSet("imagenet", class_names, train, test, cut=groups)


def _read_lists(table: _Table, root: Path) -> DataSet:
    """Read official text lists."""
    splits = {part: read_list(root / file, root / table["images"]) for part, file in table["lists"].items()}
    class_names = _folder_names(splits["train"], table["num_classes"])
    normalisation = _normalisation(table)
    return DataSet(table["name"], class_names, **splits, cut="100,20", normalisation=normalisation)  # type: ignore[arg-type]


def _folder_names(split: Split, num_classes: int) -> tuple[str, ...]:
    """Name each class after the folder of its first image, or by number if that is not unique."""
    assert isinstance(split.images, FileImages)
    classes, first = np.unique(split.labels.numpy(), return_index=True)
    names = tuple(PurePosixPath(split.images.names[i]).parent.name for i in first)
    if classes.tolist() == list(range(num_classes)) and len({*names} - {""}) == num_classes:
        return names
    return tuple(str(c) for c in range(num_classes))


# --- images in groups that must not be split


def _read_gtsrb(table: _Table, root: Path) -> DataSet:
    """Read the traffic signs; a group is a track, about 30 pictures of one sign from a passing car."""
    folders = tuple(f"{c:05}" for c in range(table["num_classes"]))
    signs = read_folder(root / "gtsrb/GTSRB/Final_Training/Images", folders)[0]
    assert isinstance(signs.images, FileImages)
    tracks, codes = numbered(name.partition("_")[0] for name in signs.images.names)
    answers = root / "gtsrb/GT-final_test.csv"
    names, labels = [], []
    for number, row in enumerate(read_table(answers, ["filename", "classid"]), 1):
        name, label = row["filename"], row["classid"]
        if not name or not inside(name) or not label.isdecimal() or int(label) >= len(folders):
            raise ValueError(f"Expected a file and a class in row {number} of {answers}, but got {name!r}, {label!r}.")
        names.append(name)
        labels.append(int(label))
    test = Split(FileImages(root / "gtsrb/GTSRB/Final_Test/Images", names), torch.tensor(labels, dtype=torch.int64))
    train = replace(signs, groups=codes)
    return DataSet("gtsrb", tuple(table["classes"]), train, test, group_names=tracks)


def _read_ham10000(table: _Table, root: Path) -> DataSet:
    """Read the skin lesions; a group is a lesion, of which there may be several images."""
    folder = root / "ham10000"
    path = next(filter(Path.is_file, (folder / f"HAM10000_metadata{suffix}" for suffix in ("", ".csv", ".tab"))), None)
    if path is None:
        raise FileNotFoundError(f"Expected {folder / 'HAM10000_metadata'}, or .csv or .tab, but there is none.")
    places = {file.stem: file.relative_to(folder).as_posix() for file in folder.glob("HAM10000_images_part_*/*.jpg")}
    names, labels, lesions = [], [], []
    for number, row in enumerate(read_table(path, ["image_id", "dx", "lesion_id"]), 1):
        image, label, lesion = row["image_id"], row["dx"], row["lesion_id"]
        if label not in table["classes"] or not lesion:
            raise ValueError(f"Expected a class and a lesion in row {number} of {path}, but got {label!r}, {lesion!r}.")
        if image not in places:
            raise ValueError(
                f"Expected the image in row {number} of {path}, but there is no {image}.jpg in {folder}/*."
            )
        names.append(places[image])
        labels.append(label)
        lesions.append(lesion)
    images, splits = FileImages(folder, names), ["train"] * len(names)
    return Rows(images, labels, splits, lesions, tuple(table["classes"])).dataset("ham10000", path)


# --- the entries


def _fetch_files(url: str, md5: Sequence[str], files: Sequence[str], root: Path) -> None:
    for file, expected in zip(files, md5, strict=True):
        download(f"{url}/{PurePosixPath(file).name}", root / file, expected)


_READERS: dict[str, Callable[[_Table, Path], DataSet]] = {
    "digits": _read_digits,
    "cifar10": _read_cifar,
    "cifar100": _read_cifar,
    "fashion-mnist": _read_fashion_mnist,
    "tiny-imagenet": _read_tiny_imagenet,
    "imagenet": _read_imagenet,
    "gtsrb": _read_gtsrb,
    "ham10000": _read_ham10000,
    "trec": lambda _, root: read_trec(root / "trec"),
    "goemotions": lambda _, root: read_goemotions(root / "goemotions"),
    "banking77": lambda _, root: read_banking77(root / "banking77"),
    "clinc150-imbalanced": lambda _, root: read_clinc150(root / "clinc150"),
}


def _entry(name: str, table: _Table) -> Entry:
    """Return the entry of a table in ``builtin.toml``."""
    lists, url, md5 = table.get("lists", {}), table.get("url", ""), table.get("md5", "")
    files = tuple(lists.values() or table.get("files", ()))
    steps = table.get("steps", f"`longtail data get {name}` downloads it.")
    if lists:
        where = "https://github.com/facebookresearch/classifier-balancing/tree/main/data"
        steps = f"download {', '.join(files)} from {where} into the data folder; {steps}"
    fetch = None
    if url:
        one = isinstance(md5, str)
        fetch = partial(fetch_archive, url, md5, files[0]) if one else partial(_fetch_files, url, md5, files)
    return Entry(
        name,
        partial(_READERS.get(name, _read_lists), {**table, "name": name}),
        table["num_classes"],
        table["sizes"],
        files,
        steps,
        fetch,
        train_range=tuple(table["train_range"]),
        counts=partial(expected_counts, name) if lists else None,
        label=table.get("label", ""),
        image_size=tuple(table["image_size"]) if "image_size" in table else None,
        texts=table.get("texts", False),
    )


def _register() -> None:
    text = resources.files("longtail.data.datasets").joinpath("builtin.toml").read_text(encoding="utf-8")
    for name, table in tomllib.loads(text).items():
        entry = CATALOG.register(name, _entry(name, table))
        if "long_tail" in table:
            label = f"{entry.label}-LT" if entry.label else ""
            made = replace(entry, name=f"{name}-lt", imbalance=float(table["long_tail"]), label=label)
            CATALOG.register(made.name, made)


_register()
