"""Data sets by name: where their files lie, how they are cut and normalised, and what there should be of them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import torch

from longtail._checks import check_integer
from longtail.classes import Groups
from longtail.data.datasets import steps
from longtail.data.datasets.dataset import IMAGENET, ArrayImages, DataSet, FileImages, Normalisation, Split, long_tailed
from longtail.data.datasets.long_tail import ClassOrder, Profile
from longtail.data.datasets.lvis_crops import read_lvis_crops
from longtail.data.datasets.readers.cifar import read_cifar
from longtail.data.datasets.readers.folders import read_folder
from longtail.data.datasets.readers.idx import read_idx
from longtail.data.datasets.readers.lists import inside, read_lines, read_list

__all__ = ["CATALOG", "ERRATA", "Entry", "entry", "expected_counts", "load"]

CIFAR10 = Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))  # not the true SD, but everybody's
CIFAR100 = Normalisation((0.5071, 0.4867, 0.4408), (0.2673, 0.2564, 0.2762))
GREY = Normalisation((0.5,), (0.5,))

ERRATA = (
    "C10-LT100 has 50 to 5000 images a class; the paper's table says 50-500.",
    "LVIS v1 has 1,270,141 boxes, at most 50,552 in a class; the table's 1,269,748 and 50,550 are after dropping some.",
    "LVIS's groups, 405/461/337, are cut by images (> 100, 11-100, <= 10), not by boxes.",
    "Places-LT is written Place-LT.",
)
"""Where the paper's table of data sets errs or needs a word."""


@dataclass(frozen=True)
class Entry:
    """A data set that is known by name."""

    name: str
    num_classes: int
    sizes: dict[str, int]
    """Images in each split."""
    files: tuple[str, ...]
    """What must be there under the data folder; empty: it comes with a package."""
    read: Callable[[Path], DataSet]
    """Reads it from the data folder."""
    steps: str
    """How to get it where ``longtail data get`` cannot."""
    imbalance: float | None = None
    """Imbalance factor that it is made long-tailed with by default, for what ends in ``-lt`` and is made so here."""
    train_range: tuple[int, int] | None = None
    """Training images in the smallest and in the largest class."""
    group_sizes: tuple[int, int, int] | None = None
    """Head, medium and tail classes."""
    counts: str | None = None
    """Name of the file with its true class counts, of those that ship with the package."""

    def is_here(self, root: Path) -> bool:
        """Whether its files are on this machine."""
        return all((root / file).exists() for file in self.files)


def load(
    name: str,
    root: Path | str = "data",
    *,
    imbalance: float | None = None,
    profile: Profile = "exp",
    order: ClassOrder | Sequence[int] = "label",
    subset_seed: int | Literal["run"] = 0,
    seed: int | None = None,
) -> DataSet:
    """A data set by name.

    Args:
        name: one of ``CATALOG``; ``longtail data list`` shows them.
        root: the data folder.
        imbalance: imbalance factor, for a data set that is made long-tailed here.
        profile: likewise; see :func:`longtail.data.long_tail_counts`.
        order: likewise.
        subset_seed: chooses the long-tailed subset: 0 as in the literature, or ``"run"`` for ``seed``, as the paper's
            authors did.
        seed: the run's seed, for ``subset_seed="run"``.

    Example:
        >>> digits = load("digits-lt", imbalance=50)
        >>> digits.counts
        tensor([124,  80,  51,  33,  21,  14,   9,   5,   3,   2])
        >>> digits.groups.sizes
        {'head': 3, 'medium': 3, 'tail': 4}
    """
    known, root = entry(name), Path(root)
    if not known.is_here(root):
        missing = next(file for file in known.files if not (root / file).exists())
        raise FileNotFoundError(f"Expected {root / missing} for {name}, but it is not there; {known.steps}")
    dataset = _read_once(known.read, root.resolve(), tuple(_stamp(root / file) for file in known.files))
    if known.imbalance is None:
        if imbalance is not None:
            raise ValueError(f"Expected no `imbalance` for {name}, which is as it is, but got {imbalance}.")
        return replace(dataset, name=name)
    if subset_seed == "run":
        if seed is None:
            raise ValueError("Expected `seed` beside subset_seed='run', but got None.")
        subset_seed = seed
    factor = known.imbalance if imbalance is None else imbalance
    return replace(
        long_tailed(
            dataset,
            factor,
            profile=profile,
            order=order,
            subset_seed=check_integer("subset_seed", subset_seed, minimum=0),
        ),
        name=name,
    )


@lru_cache(maxsize=2)
def _read_once(read: Callable[[Path], DataSet], root: Path, _: tuple[int, ...]) -> DataSet:
    """A data set from disk; the runs of a fleet share what was read, unless the files have changed since."""
    return read(root)


def _stamp(path: Path) -> int:
    """When a file, or one in a folder of files, was changed last."""
    inside = [path, *path.iterdir()] if path.is_dir() else [path]
    return max(file.stat().st_mtime_ns for file in inside)


def entry(name: str) -> Entry:
    """What is known of a data set."""
    if name not in CATALOG:
        raise ValueError(f"Expected `name` to be one of {', '.join(CATALOG)}, but got {name!r}.")
    return CATALOG[name]


@cache
def expected_counts(name: str) -> dict[str, Any]:
    """True class counts that ship with the package: ``imagenet-lt``, ``places-lt``, ``inaturalist2018``, ``lvis-v1``.

    Example:
        >>> counts = expected_counts("imagenet-lt")["train"]
        >>> sum(counts), Groups.from_counts(counts).sizes
        (115846, {'head': 385, 'medium': 479, 'tail': 136})
    """
    text = resources.files("longtail.data.datasets").joinpath("expected", f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def thirds(num_classes: int) -> Groups:
    """The paper's cut of CIFAR by label: 0-2 / 3-5 / 6-9 of ten classes, 0-34 / 35-69 / 70-99 of a hundred."""
    head = 3 if num_classes == 10 else 35 * num_classes // 100
    return Groups.from_indices(head=range(head), medium=range(head, 2 * head), tail=range(2 * head, num_classes))


def _cifar(name: Literal["cifar10", "cifar100"]) -> Callable[[Path], DataSet]:
    def read(root: Path) -> DataSet:
        folder = root / ("cifar-10-batches-py" if name == "cifar10" else "cifar-100-python")
        train, test = read_cifar(folder, name, train=True), read_cifar(folder, name, train=False)
        return DataSet(
            name=name,
            class_names=train.class_names,
            train=Split(ArrayImages(train.images), train.labels),
            test=Split(ArrayImages(test.images), test.labels),
            cut=thirds(len(train.class_names)),
            normalisation=CIFAR10 if name == "cifar10" else CIFAR100,
        )

    return read


def _digits(_: Path) -> DataSet:
    """The last 50 of each digit are for testing: the digits come writer after writer, so those are mostly unseen."""
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


FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_FASHION_PARTS = ("images-idx3", "labels-idx1")


def _fashion_mnist(root: Path) -> DataSet:
    def split(part: str) -> Split:
        folder = root / "FashionMNIST" / "raw"
        images, labels = (read_idx(folder / f"{part}-{what}-ubyte.gz") for what in _FASHION_PARTS)
        return Split(ArrayImages(images.unsqueeze(1)), labels.to(torch.int64))

    return DataSet(
        name="fashion-mnist",
        class_names=FASHION,
        train=split("train"),
        test=split("t10k"),
        cut=thirds(10),
        normalisation=GREY,
    )


def _listed(
    folder: str, images: str, lists: dict[str, str], num_classes: int, normalisation: Normalisation = IMAGENET
) -> Callable[[Path], DataSet]:
    """Reads official text lists."""

    def read(root: Path) -> DataSet:
        splits = {part: read_list(root / folder / name, root / images) for part, name in lists.items()}
        return DataSet(
            name=folder,
            class_names=_names_of_folders(splits["train"], num_classes),
            train=splits["train"],
            test=splits["test"],
            val=splits.get("val"),
            normalisation=normalisation,
        )

    return read


def _names_of_folders(split: Split, num_classes: int) -> tuple[str, ...]:
    """Each class by the folder of its first image; by number where a class has no image or no folder of its own."""
    assert isinstance(split.images, FileImages)
    classes, first = np.unique(split.labels.numpy(), return_index=True)
    names = tuple(PurePosixPath(split.images.names[i]).parent.name for i in first)
    if classes.tolist() == list(range(num_classes)) and len({*names} - {""}) == num_classes:
        return names
    return tuple(str(c) for c in range(num_classes))


def _imagenet(root: Path) -> DataSet:
    train, class_names = read_folder(root / "imagenet" / "train")
    test, _ = read_folder(root / "imagenet" / "val", class_names)
    borrowed = Groups.from_counts(expected_counts("imagenet-lt")["train"])
    return DataSet("imagenet", class_names, train, test, cut=borrowed if len(class_names) == 1000 else None)


def _tiny_imagenet(root: Path) -> DataSet:
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


_TEN_THOUSAND = {"train": 50000, "test": 10000}

_BALANCED = (
    Entry(
        "digits",
        10,
        {"train": 1297, "test": 500},
        (),
        _digits,
        steps.DIGITS,
        train_range=(124, 133),
        group_sizes=(3, 3, 4),
    ),
    Entry(
        "cifar10",
        10,
        _TEN_THOUSAND,
        ("cifar-10-batches-py",),
        _cifar("cifar10"),
        steps.get("cifar10"),
        train_range=(5000, 5000),
        group_sizes=(3, 3, 4),
    ),
    Entry(
        "cifar100",
        100,
        _TEN_THOUSAND,
        ("cifar-100-python",),
        _cifar("cifar100"),
        steps.get("cifar100"),
        train_range=(500, 500),
        group_sizes=(35, 35, 30),
    ),
    Entry(
        "fashion-mnist",
        10,
        {"train": 60000, "test": 10000},
        tuple(f"FashionMNIST/raw/{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in _FASHION_PARTS),
        _fashion_mnist,
        steps.get("fashion-mnist"),
        train_range=(6000, 6000),
        group_sizes=(3, 3, 4),
    ),
    Entry(
        "tiny-imagenet",
        200,
        {"train": 100000, "test": 10000},
        ("tiny-imagenet-200",),
        _tiny_imagenet,
        steps.TINY_IMAGENET,
        train_range=(500, 500),
    ),
)
_FACTORS = {"digits": 50.0, "cifar10": 100.0, "cifar100": 100.0, "fashion-mnist": 100.0, "tiny-imagenet": 100.0}
_MADE_LONG_TAILED = tuple(replace(row, name=f"{row.name}-lt", imbalance=_FACTORS[row.name]) for row in _BALANCED)

_AS_THEY_ARE = (
    Entry(
        "imagenet",
        1000,
        {"train": 1281167, "test": 50000},
        ("imagenet/train", "imagenet/val"),
        _imagenet,
        steps.IMAGENET,
        train_range=(732, 1300),
        group_sizes=(385, 479, 136),
    ),
    Entry(
        "imagenet-lt",
        1000,
        {"train": 115846, "val": 20000, "test": 50000},
        (
            "imagenet-lt/ImageNet_LT_train.txt",
            "imagenet-lt/ImageNet_LT_val.txt",
            "imagenet-lt/ImageNet_LT_test.txt",
        ),
        _listed("imagenet-lt", "imagenet", {p: f"ImageNet_LT_{p}.txt" for p in ("train", "val", "test")}, 1000),
        steps.IMAGENET_LT,
        train_range=(5, 1280),
        group_sizes=(385, 479, 136),
        counts="imagenet-lt",
    ),
    Entry(
        "places-lt",
        365,
        {"train": 62500, "val": 7300, "test": 36500},
        ("places-lt/Places_LT_train.txt", "places-lt/Places_LT_val.txt", "places-lt/Places_LT_test.txt"),
        _listed("places-lt", "places365", {p: f"Places_LT_{p}.txt" for p in ("train", "val", "test")}, 365),
        steps.PLACES_LT,
        train_range=(5, 4980),
        group_sizes=(131, 163, 71),
        counts="places-lt",
    ),
    Entry(
        "inaturalist2018",
        8142,
        {"train": 437513, "test": 24426},
        ("inaturalist2018/iNaturalist18_train.txt", "inaturalist2018/iNaturalist18_val.txt"),
        _listed(
            "inaturalist2018",
            "inaturalist2018",
            {"train": "iNaturalist18_train.txt", "test": "iNaturalist18_val.txt"},
            8142,
            Normalisation((0.466, 0.471, 0.380), (0.195, 0.194, 0.192)),
        ),
        steps.INATURALIST2018,
        train_range=(2, 1000),
        group_sizes=(842, 4076, 3224),
        counts="inaturalist2018",
    ),
    Entry(
        "lvis-crops",
        1203,
        {"train": 1_270_141, "test": 244_707},
        ("lvis-crops/train/index.json", "lvis-crops/val/index.json"),
        read_lvis_crops,
        steps.LVIS_CROPS,
        train_range=(1, 50_552),
        group_sizes=(405, 461, 337),
        counts="lvis-v1",
    ),
)

CATALOG: dict[str, Entry] = {row.name: row for row in (*_BALANCED, *_MADE_LONG_TAILED, *_AS_THEY_ARE)}
"""All data sets that are known by name."""
