"""Data sets by name: the built-in ones, and those that users register."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from longtail._checks import check_integer
from longtail._registry import Registry
from longtail.data.datasets.long_tail import Profile, long_tail_counts
from longtail.data.datasets.splits import DataSet, long_tailed


@dataclass(frozen=True)
class Entry:
    """A data set that is known by name."""

    name: str
    read: Callable[[Path], DataSet]
    """Reads it from the data folder."""
    num_classes: int
    sizes: Mapping[str, int]
    """Images or texts in each split: ``"train"``, ``"val"``, ``"test"``."""
    files: tuple[str, ...] = ()
    """Files or folders below the data folder that must exist."""
    steps: str = ""
    """How to get the files, shown when they are missing."""
    fetch: Callable[[Path], None] | None = None
    """Downloads the files into the data folder."""
    imbalance: float | None = None
    """Default imbalance factor of a data set that :func:`load` makes long-tailed; ``None``: it is used as it is."""
    train_range: tuple[int, int] | None = None
    """Training images in the smallest and in the largest class, before it is made long-tailed."""
    counts: Callable[[], Mapping[str, Any]] | None = None
    """Returns the true images per class of each split: a list, or one number for all classes."""
    recipe: Mapping[str, Any] | None = field(default=None, hash=False)
    """Default training settings, with tables per method below ``"method"``, like the files in ``longtail/recipes``."""
    label: str = ""
    """Display name; the imbalance factor is appended where one applies."""
    image_size: tuple[int, int] | None = None
    """Height and width of the images, the median if they differ: default settings without ``recipe`` fit it and the
    number of images."""
    texts: bool = False
    """Whether the samples are texts, from which `longtail embed` computes vectors to train on."""

    def is_here(self, root: Path) -> bool:
        """Whether all files exist on this machine."""
        return not self.missing(root)

    def missing(self, root: Path) -> str:
        """Return which file is missing and how to get it, as the sentence of an error; empty if all are here."""
        for file in self.files:
            if not (root / file).exists():
                return f"Expected {root / file} for {self.name}, but it does not exist; {self.steps}"
        return ""

    def train_counts(self, imbalance: float | None, profile: Profile = "exp") -> Tensor | None:
        """Return the training images per class that :func:`load` makes; ``None`` if it uses the data set as it is, or
        if their number is not known."""
        if self.imbalance is None or self.train_range is None:
            return None
        return long_tail_counts(self.num_classes, self.train_range[0], imbalance or self.imbalance, profile=profile)

    def title(self, imbalance: float | None = None) -> str:
        """Return the display name, for tables and figures.

        Example:
            >>> CATALOG["cifar10-lt"].title(100), CATALOG["imagenet-lt"].title(), CATALOG["digits-lt"].title(50)
            ('C10-LT100', 'ImageNet-LT', 'digits-lt 50')
        """
        if not self.label:
            return self.name if imbalance is None else f"{self.name} {imbalance:g}"
        if self.imbalance is None:
            return self.label
        return f"{self.label}{self.imbalance if imbalance is None else imbalance:g}"


CATALOG: Registry[Entry] = Registry("data")
"""All data sets that are known by name; installed plugins are searched for unknown names."""


def register_dataset(
    name: str,
    loader: Callable[[Path], DataSet],
    *,
    num_classes: int,
    sizes: Mapping[str, int],
    imbalance: float | None = None,
    recipe: Mapping[str, Any] | None = None,
    label: str = "",
    **options: Any,
) -> Entry:
    """Add a data set that can be used by name in ``train``, ``study``, ``report`` and ``data``, like a built-in one.

    Args:
        name: unique name; also used in names of run folders.
        loader: receives the data folder and returns the data set with all its training images.
        num_classes: number of classes.
        sizes: images in each split: ``"train"``, ``"test"`` and, if there is one, ``"val"``.
        imbalance: default imbalance factor, if :func:`load` should make the data set long-tailed; it then takes
            ``--imbalance``. By default the data set is used as it is.
        recipe: default training settings, for example ``{"epochs": 20, "method": {"cbs": {"beta": 1.5}}}``. By default
            those of a folder of images apply.
        label: display name in tables, by default ``name``.
        **options: other fields of :class:`Entry`.

    Returns:
        the new entry of ``CATALOG``.

    Example:
        >>> import torch
        >>> from longtail.data import ArrayImages, CATALOG, DataSet, Split, load, register_dataset
        >>> def grey(root):
        ...     images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 1, 8, 8)
        ...     split = Split(ArrayImages(images), torch.tensor([0, 0, 0, 1]))
        ...     return DataSet("grey", ("dark", "bright"), train=split, test=split)
        >>> entry = register_dataset("grey", grey, num_classes=2, sizes={"train": 4, "test": 4})
        >>> load("grey").counts
        tensor([3, 1])
        >>> CATALOG.unregister("grey")
    """
    entry = Entry(name, loader, num_classes, dict(sizes), imbalance=imbalance, recipe=recipe, label=label, **options)
    return CATALOG.register(name, entry)


def data_title(data: str, imbalance: float | None = None) -> str:
    """Return the display name of a data set by name or path.

    Example:
        >>> data_title("cifar100-lt", 50), data_title("photos/birds", 20)
        ('C100-LT50', 'photos/birds 20')
    """
    if data in CATALOG:
        return CATALOG[data].title(imbalance)
    return data if imbalance is None else f"{data} {imbalance:g}"


def load(
    name: str,
    root: Path | str = "data",
    *,
    imbalance: float | None = None,
    profile: Profile = "exp",
    subset_seed: int | Literal["run"] = 0,
    seed: int | None = None,
) -> DataSet:
    """Load a data set by name.

    Args:
        name: a name of ``CATALOG``; ``longtail data list`` shows them.
        root: the data folder.
        imbalance: imbalance factor, for a data set that is made long-tailed.
        profile: shape of the class counts of such a data set; see :func:`longtail.data.long_tail_counts`.
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
    entry, root = CATALOG.find(name), Path(root)
    missing = entry.missing(root)
    if missing:
        raise FileNotFoundError(missing)
    dataset = _read_once(entry.read, root.resolve(), tuple(_modified(root / file) for file in entry.files))
    if entry.imbalance is None:
        if imbalance is not None:
            raise ValueError(f"Expected no `imbalance` for {name}, which is used as it is, but got {imbalance}.")
        return replace(dataset, name=name)
    if subset_seed == "run":
        if seed is None:
            raise ValueError("Expected `seed` together with subset_seed='run', but got None.")
        subset_seed = seed
    made = long_tailed(
        dataset,
        entry.imbalance if imbalance is None else imbalance,
        profile=profile,
        subset_seed=check_integer("subset_seed", subset_seed, minimum=0),
    )
    return replace(made, name=name)


@lru_cache(maxsize=2)
def _read_once(read: Callable[[Path], DataSet], root: Path, _: tuple[int, ...]) -> DataSet:
    """Cache the data sets that were read last: the runs of a fleet share them until the files change."""
    return read(root)


def _modified(path: Path) -> int:
    """Time of the last change of a file, or of the files directly in a folder."""
    inside = [path, *path.iterdir()] if path.is_dir() else [path]
    return max(file.stat().st_mtime_ns for file in inside)


@cache
def expected_counts(name: str) -> dict[str, Any]:
    """Return the true class counts that ship with the package: ``imagenet-lt``, ``places-lt``, ``inaturalist2018``.

    Example:
        >>> from longtail.classes import Groups
        >>> counts = expected_counts("imagenet-lt")["train"]
        >>> sum(counts), Groups.from_counts(counts).sizes
        (115846, {'head': 385, 'medium': 479, 'tail': 136})
    """
    text = resources.files("longtail.data.datasets").joinpath("expected", f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
