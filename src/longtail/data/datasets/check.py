"""Comparison of a data set on disk with its catalog entry."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail.classes import class_counts
from longtail.data.datasets.catalog import CATALOG, load
from longtail.data.datasets.dataset import DataSet, FileImages, Split
from longtail.data.datasets.long_tail import long_tail_counts

__all__ = ["Difference", "check"]

_Pair = tuple[str, object, object]


@dataclass(frozen=True)
class Difference:
    """Something that is not as expected."""

    what: str
    expected: object
    found: object

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.found}"


def check(name: str, root: Path | str = "data", **options: Any) -> list[Difference]:
    """Return the differences between a data set on disk and its catalog entry.

    It compares the number of classes, the images of each split, the smallest and the largest class, the sizes of the
    groups, the images per class where the entry has them, and whether listed files exist.

    Args:
        name: a name of ``CATALOG``.
        root: the data folder.
        **options: options of :func:`longtail.data.load`.

    Example:
        >>> check("digits-lt", imbalance=50)
        []
    """
    entry, dataset = CATALOG.find(name), load(name, root, **options)
    sizes, train_range = dict(entry.sizes), entry.train_range
    if entry.imbalance is not None and train_range is not None:
        factor = options.get("imbalance") or entry.imbalance
        counts = long_tail_counts(entry.num_classes, train_range[0], factor, profile=options.get("profile", "exp"))
        sizes["train"], train_range = int(counts.sum()), (int(counts.min()), int(counts.max()))
    counted = {part: _counts(dataset, split) for part, split in dataset.splits.items()}
    pairs: list[_Pair] = [("classes", entry.num_classes, dataset.num_classes)]
    pairs += [
        (f"{part} images", size, int(counted[part].sum()) if part in counted else 0) for part, size in sizes.items()
    ]
    if train_range is not None:
        pairs.append(("smallest training class", train_range[0], int(counted["train"].min())))
        pairs.append(("largest training class", train_range[1], int(counted["train"].max())))
    if entry.group_sizes is not None:
        pairs.append(("head, medium and tail classes", entry.group_sizes, tuple(dataset.groups.sizes.values())))
    if entry.counts is not None:
        pairs += _counts_per_class(counted, entry.counts())
    return [Difference(*pair) for pair in pairs if pair[1] != pair[2]] + _wrong_files(dataset)


def _counts(dataset: DataSet, split: Split) -> Tensor:
    """Return the images per class; images may have labels ``left_out``, of samples that were dropped on purpose."""
    left_out = getattr(split.images, "left_out", split.labels[:0])
    return class_counts(torch.cat([split.labels, left_out]), dataset.num_classes)


def _counts_per_class(counted: Mapping[str, Tensor], expected: Mapping[str, Any]) -> list[_Pair]:
    pairs: list[_Pair] = []
    for part, found in counted.items():
        if part not in expected:
            continue
        wanted = expected[part]
        counts = torch.tensor([wanted] * len(found) if isinstance(wanted, int) else wanted)
        if counts.shape == found.shape:
            wrong = (counts != found).nonzero().flatten().tolist()
            pairs += [(f"{part} images of class {c}", int(counts[c]), int(found[c])) for c in wrong[:3]]
            pairs.append((f"{part} classes with a wrong count", 0, len(wrong)))
    return pairs


def _wrong_files(dataset: DataSet) -> list[Difference]:
    """Return listed files that do not exist, and files that are listed more than once."""
    differences = []
    seen: set[Path] = set()
    for part, split in dataset.splits.items():
        if not isinstance(split.images, FileImages):
            continue
        missing, repeated = [], []
        for i in range(len(split)):
            path = split.images.path(i)
            if not path.is_file():
                missing.append(path)
            if path in seen:
                repeated.append(path)
            seen.add(path)
        for what, paths in (("missing files", missing), ("images that were listed before", repeated)):
            if paths:
                differences.append(Difference(f"{part} {what} (the first: {paths[0]})", 0, len(paths)))
    return differences
