"""Is the data set on disk the one that it should be?"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from longtail.classes import class_counts
from longtail.data.datasets.catalog import entry, expected_counts, load
from longtail.data.datasets.dataset import DataSet, FileImages, Split
from longtail.data.datasets.long_tail import long_tail_counts
from longtail.data.datasets.lvis_crops import BadImage
from longtail.data.datasets.shards import ShardImages

__all__ = ["Difference", "check"]


@dataclass(frozen=True)
class Difference:
    """Something that is not as expected."""

    what: str
    expected: object
    found: object

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.found}"


def check(name: str, root: Path | str = "data", **options: Any) -> list[Difference]:
    """Compare a data set on disk with what should be there.

    Compared are the number of classes, the images of each split, the smallest and the largest class, the sizes of the
    groups, each class's count where the true counts ship with the package, and whether listed files exist. Boxes of
    LVIS that give no crop count as there, since the build has listed them; unless it was for want of a sound image.

    Args:
        name: one of the catalogue's names.
        root: the data folder.
        **options: those of :func:`longtail.data.load`.

    Example:
        >>> check("digits-lt", imbalance=50)
        []
    """
    known = entry(name)
    dataset = load(name, root, **options)
    sizes, train_range, group_sizes = dict(known.sizes), known.train_range, known.group_sizes
    if known.imbalance is not None and train_range is not None:
        factor = options.get("imbalance") or known.imbalance
        counts = long_tail_counts(known.num_classes, train_range[0], factor, profile=options.get("profile", "exp"))
        sizes["train"], train_range = int(counts.sum()), (int(counts.min()), int(counts.max()))
    counted = {part: _counts(dataset, split) for part, split in dataset.splits.items()}
    pairs: list[tuple[str, object, object]] = [("classes", known.num_classes, dataset.num_classes)]
    pairs += [
        (f"{part} images", size, int(counted[part].sum()) if part in counted else 0) for part, size in sizes.items()
    ]
    if train_range is not None:
        pairs.append(("smallest training class", train_range[0], int(counted["train"].min())))
        pairs.append(("largest training class", train_range[1], int(counted["train"].max())))
    if group_sizes is not None:
        pairs.append(("head, medium and tail classes", group_sizes, tuple(dataset.groups.sizes.values())))
    if known.counts is not None:
        pairs += _class_by_class(counted, expected_counts(known.counts))
    pairs += _bad_images(dataset)
    differences = [Difference(what, expected, found) for what, expected, found in pairs if expected != found]
    return differences + _missing_files(dataset)


def _counts(dataset: DataSet, split: Split) -> Tensor:
    """Images of each class, with what was listed as left out when they were packed."""
    counts = class_counts(split.labels, dataset.num_classes)
    if isinstance(split.images, ShardImages):
        index = {name: c for c, name in enumerate(dataset.class_names)}
        for note in split.images.notes:
            counts[index[note["class"]]] += 1
    return counts


def _bad_images(dataset: DataSet) -> list[tuple[str, object, object]]:
    """What is missing from packed images because of the files that they were made of."""
    pairs: list[tuple[str, object, object]] = []
    for part, split in dataset.splits.items():
        if isinstance(split.images, ShardImages):
            found = Counter(note["reason"] for note in split.images.notes)
            pairs += [(f"{part} boxes left out ({reason})", 0, found[reason]) for reason in get_args(BadImage)]
    return pairs


def _class_by_class(counted: dict[str, Tensor], expected: dict[str, Any]) -> list[tuple[str, object, object]]:
    """Classes whose counts are off, split by split."""
    pairs: list[tuple[str, object, object]] = []
    for part, found in counted.items():
        if part not in expected:  # of LVIS's validation boxes only the total is known
            continue
        wanted = expected[part]
        counts = torch.tensor([wanted] * len(found) if isinstance(wanted, int) else wanted)
        if counts.shape == found.shape:
            wrong = (counts != found).nonzero().flatten().tolist()
            pairs += [(f"{part} images of class {c}", int(counts[c]), int(found[c])) for c in wrong[:3]]
            pairs.append((f"{part} classes with another count", 0, len(wrong)))
    return pairs


def _missing_files(dataset: DataSet) -> list[Difference]:
    """Files that are not there, and files that are listed more than once."""
    differences = []
    seen: dict[Path, str] = {}
    for part, split in dataset.splits.items():
        if not isinstance(split.images, FileImages):
            continue
        paths = [split.images.path(i) for i in range(len(split))]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            what = f"{part} files that are not there (the first: {missing[0]})"
            differences.append(Difference(what, 0, len(missing)))
        repeated = []
        for path in paths:
            if path in seen:
                repeated.append(path)
            seen[path] = part
        if repeated:
            what = f"{part} images that were listed before (the first: {repeated[0]})"
            differences.append(Difference(what, 0, len(repeated)))
    return differences
