"""What is in a data set: the differences from its catalog entry, and a description of your own data."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail._program import count, printable, some_of
from longtail._progress import phase
from longtail.classes import Groups, class_counts
from longtail.data.datasets.catalog import CATALOG, load
from longtail.data.datasets.features import FeatureVectors
from longtail.data.datasets.splits import DataSet, FileImages, Split, Texts
from longtail.data.loaders.decode import UnreadableImageError, is_rotated

_SHOWN = 5  # items of a problem that a notebook lists
_NAMES, _LABEL = 130, 20  # characters of the names of equal samples, and of a label


@dataclass(frozen=True)
class Difference:
    """Something that is not as expected."""

    what: str
    expected: object
    found: object

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.found}"


def check_dataset(name: str, root: Path | str = "data", **options: Any) -> list[Difference]:
    """Return the differences between a data set on disk and its catalog entry.

    It compares the number of classes, the images or texts of each split, the smallest and the largest class, the images
    per class where the entry has them, and whether listed files exist.

    Args:
        name: a name of ``CATALOG``.
        root: the data folder.
        **options: options of :func:`longtail.data.load`.

    Example:
        >>> check_dataset("digits-lt", imbalance=50)
        []
    """
    entry, dataset = CATALOG.find(name), load(name, root, **options)
    sizes, train_range = dict(entry.sizes), entry.train_range
    counts = entry.train_counts(options.get("imbalance"), options.get("profile", "exp"))
    if counts is not None:
        sizes["train"], train_range = int(counts.sum()), (int(counts.min()), int(counts.max()))
    counted = {part: _counts(dataset, split) for part, split in dataset.splits.items()}
    found = [Difference("classes", entry.num_classes, dataset.num_classes)]
    for part, size in sizes.items():
        found.append(Difference(f"{part} {_what(dataset)}", size, int(counted[part].sum()) if part in counted else 0))
    if train_range is not None:
        found.append(Difference("smallest training class", train_range[0], int(counted["train"].min())))
        found.append(Difference("largest training class", train_range[1], int(counted["train"].max())))
    for part, wanted in (entry.counts() if entry.counts is not None else {}).items():
        if part in counted:
            found += _compare_counts(part, wanted, counted[part])
    return [difference for difference in found if difference.expected != difference.found] + _wrong_files(dataset)


def _what(dataset: DataSet) -> str:
    """What the samples are: images, vectors or texts."""
    kinds = ((FeatureVectors, "vectors"), (Texts, "texts"))
    return next((what for kind, what in kinds if isinstance(dataset.train.images, kind)), "images")


def _counts(dataset: DataSet, split: Split) -> Tensor:
    """Return the images per class; images may have labels ``left_out``, of samples that were dropped on purpose."""
    left_out = getattr(split.images, "left_out", split.labels[:0])
    return class_counts(torch.cat([split.labels, left_out]), dataset.num_classes)


def _compare_counts(part: str, wanted: Any, found: Tensor) -> list[Difference]:
    counts = torch.tensor([wanted] * len(found) if isinstance(wanted, int) else wanted)
    if counts.shape != found.shape:
        return []
    wrong = (counts != found).nonzero().flatten().tolist()
    first = [Difference(f"{part} images of class {c}", int(counts[c]), int(found[c])) for c in wrong[:3]]
    return [*first, Difference(f"{part} classes with a wrong count", 0, len(wrong))]


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


@dataclass(frozen=True)
class Description:
    """The result of :func:`describe_dataset`."""

    name: str
    class_names: tuple[str, ...]
    sizes: dict[str, int]
    """Images per split."""
    what: str
    """``"images"``, ``"vectors"`` or ``"texts"``."""
    counts: Tensor
    """Training images per class."""
    groups: Groups
    groups_from: str
    """How the groups were made, in words."""
    empty: tuple[str, ...]
    """Classes without training images."""
    absent: tuple[str, ...]
    """Classes that a held-out split does not have, as ``split: name``."""
    across: tuple[str, ...]
    """The same image or text in more than one split, as ``train: name = test: name``; the most frequent ones first."""
    within: tuple[str, ...]
    """The same image more than once in one split."""
    conflicting: tuple[str, ...]
    """The same image with different labels, as ``name = name (label number, label number)``."""
    unreadable: tuple[str, ...]
    """Files that cannot be decoded, and why."""
    leaking: tuple[str, ...] = ()
    """Groups in more than one split, as ``name is in train and test``."""
    num_groups: int = 0
    """Groups that must not be split, of all splits."""
    whole: tuple[str, ...] = ()
    """Classes with all training images in one group, of which nothing can be held out."""
    in_few_groups: tuple[str, ...] = ()
    """Classes in fewer than three groups."""
    rotated: int = 0
    """Images that are turned or mirrored as their EXIF orientation says."""
    notes: tuple[str, ...] = ()
    """How the data was opened: ignored files, nested class folders."""

    @property
    def imbalance_factor(self) -> float:
        """Largest class over smallest, among classes with images."""
        present = self.counts[self.counts > 0]
        return float(present.max() / present.min()) if present.numel() else float("nan")

    @property
    def title(self) -> str:
        """The name and the sizes, in words."""
        sizes = ", ".join(f"{size:,} {part}" for part, size in self.sizes.items())
        return f"{self.name}: {sizes} {self.what}, {count(len(self.class_names), 'class')}"

    @property
    def imbalance(self) -> str:
        """The imbalance factor and the groups, in words."""
        groups = ", ".join(f"{size} {name}" for name, size in self.groups.sizes.items())
        return f"imbalance factor {self.imbalance_factor:.0f}; {groups} classes ({self.groups_from})"

    @property
    def facts(self) -> list[str]:
        """How the data was opened, and what is special about it, in sentences."""
        found = [*self.notes]
        if self.num_groups:
            found.append(f"{self.num_groups:,} groups, which are never split")
        if self.in_few_groups:
            few = f"{count(len(self.in_few_groups), 'class')} in fewer than 3 groups, so not in all of training"
            found.append(f"{few}, validation and test: {some_of(self.in_few_groups)}")
        if self.rotated:
            found.append(f"{count(self.rotated, 'image')} turned or mirrored by EXIF orientation")
        return found

    @property
    def problems(self) -> dict[str, Sequence[str]]:
        """What is wrong, and where; every kind of problem is listed, also if there is none."""
        return {
            "groups in more than one split": self.leaking,
            "classes in one group, of which nothing can be held out": self.whole,
            "classes without a training image": self.empty,
            "classes that a split does not have, so it cannot measure them": self.absent,
            f"{self.what} in more than one split": self.across,
            f"{self.what} more than once in a split": self.within,
            f"{self.what} with different labels": self.conflicting,
            "files that cannot be read": self.unreadable,
        }

    def shown_classes(self, *, everything: bool = False) -> list[int | None]:
        """The classes by falling count; of more than 30 the first 10 and the last 19, with ``None`` between them.

        Args:
            everything: all of them instead.
        """
        order = self.counts.argsort(descending=True, stable=True).tolist()
        return order if everything or len(order) <= 30 else [*order[:10], None, *order[-19:]]

    def _repr_html_(self) -> str:
        rows = [("…", "…") if c is None else (self.class_names[c], f"{self.counts[c]:,}") for c in self.shown_classes()]
        parts = [f"<p><b>{escape(self.title)}</b></p>", f"<p>{escape(self.imbalance)}</p>"]
        parts += ["<table><thead><tr><th>class</th><th>training samples</th></tr></thead><tbody>"]
        parts += [f"<tr><td>{escape(name)}</td><td>{number}</td></tr>" for name, number in rows]
        parts += ["</tbody></table>", *(f"<p>{escape(fact)}</p>" for fact in self.facts)]
        for problem, items in self.problems.items():
            if items:
                more = [f"… and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
                listed = "".join(f"<li>{escape(item)}</li>" for item in [*items[:_SHOWN], *more])
                parts.append(f"<p>{escape(problem)} ({len(items):,}):</p><ul>{listed}</ul>")
        return printable("\n".join(parts))


def describe_dataset(dataset: DataSet, *, read_images: bool = True, workers: int = 4) -> Description:
    """Return class counts and groups, and what is wrong with the images or texts.

    If images are read and all files are missing, it raises an error instead of listing them.

    Args:
        dataset: the data set.
        read_images: read every image or text, to find duplicates and images that cannot be decoded.
        workers: number of threads that read.

    Example:
        >>> from longtail.data import load
        >>> found = describe_dataset(load("digits-lt", imbalance=50))
        >>> found.sizes, found.imbalance_factor, found.across
        ({'train': 342, 'test': 500}, 62.0, ())
    """
    if read_images:
        _check_files(dataset)
    seen: dict[bytes, list[tuple[str, int]]] = defaultdict(list)  # places of an image: split and index
    unreadable: list[str] = []
    rotated = 0
    if read_images:
        number = sum(map(len, dataset.splits.values()))
        with ThreadPoolExecutor(workers) as pool, phase(f"Reading {number:,} {_what(dataset)}", number) as progress:
            for part, split in dataset.splits.items():
                for index, found in enumerate(pool.map(lambda i, s=split: _digest(s, i), range(len(split)))):
                    if isinstance(found, UnreadableImageError):
                        unreadable.append(str(found))
                    else:
                        seen[found[0]].append((part, index))
                        rotated += found[1]
                    progress.advance(1)
    across: list[str] = []
    within: list[str] = []
    conflicting: list[str] = []
    for places in sorted(seen.values(), key=len, reverse=True):
        if len(places) == 1:
            break
        line = _line([_name(dataset, part, index) for part, index in places])
        (across if len({part for part, _ in places}) > 1 else within).append(line)
        labels = Counter(dataset.class_names[dataset.splits[part].labels[index]] for part, index in places)
        if len(labels) > 1:
            numbers = [f"{label[:_LABEL]} {number:,}" for label, number in labels.most_common()]
            conflicting.append(f"{line} ({some_of(numbers)})")
    return Description(
        name=dataset.name,
        class_names=dataset.class_names,
        sizes={part: len(split) for part, split in dataset.splits.items()},
        what=_what(dataset),
        counts=dataset.counts,
        groups=dataset.groups,
        groups_from=dataset.groups_from,
        empty=dataset.names_of(dataset.counts == 0),
        absent=tuple(
            f"{part}: {name}"
            for part, split in dataset.splits.items()
            for name in dataset.names_of(class_counts(split.labels, dataset.num_classes) == 0)
            if part != "train"
        ),
        across=tuple(across),
        within=tuple(within),
        conflicting=tuple(conflicting),
        unreadable=tuple(unreadable),
        leaking=tuple(groups_in_several_splits(dataset)),
        num_groups=len({group for split in dataset.splits.values() for group in _groups(split)}),
        whole=dataset.names_of((dataset.counts > 1) & ~dataset.can_hold_out),
        in_few_groups=_in_few_groups(dataset),
        rotated=rotated,
        notes=dataset.notes,
    )


def groups_in_several_splits(dataset: DataSet) -> list[str]:
    """Return the groups in more than one split, as ``name is in train and test``."""
    where: dict[int, list[str]] = defaultdict(list)
    for part, split in dataset.splits.items():
        for group in _groups(split):
            where[group].append(part)
    names = dataset.group_names
    return [
        f"{names[group] if names else group} is in {' and '.join(parts)}"
        for group, parts in where.items()
        if len(parts) > 1
    ]


def _in_few_groups(dataset: DataSet) -> tuple[str, ...]:
    splits = dataset.splits.values()
    rows = [torch.stack((split.labels, split.groups)) for split in splits if split.groups is not None]
    if len(rows) < len(splits):
        return ()
    groups = class_counts(torch.unique(torch.cat(rows, 1), dim=1)[0], dataset.num_classes)
    return dataset.names_of((groups > 0) & (groups < 3))


def _groups(split: Split) -> list[int]:
    return [] if split.groups is None else sorted(set(split.groups.tolist()))


def _check_files(dataset: DataSet) -> None:
    files = [split.images for split in dataset.splits.values() if isinstance(split.images, FileImages) and len(split)]
    if files and not any(os.path.exists(one.path(i)) for one in files for i in range(len(one))):  # noqa: PTH110 - names of any length
        raise FileNotFoundError(
            f"Expected images of {dataset.name} in {files[0].root}, but none of the {sum(map(len, files)):,} exists, "
            f"the first is {files[0].names[0][:_NAMES]}; `image_root` sets another folder, and a table must be "
            "a .csv, .tsv or .parquet file."
        )


def _digest(split: Split, index: int) -> tuple[bytes, bool] | UnreadableImageError:
    """Return a digest of the pixels and whether they were rotated, or the error."""
    if isinstance(split.images, Texts):
        return split.images.subset(torch.tensor([index])).identity(), False
    try:
        pixels = split.images[index]
        rotated = isinstance(split.images, FileImages) and is_rotated(split.images.path(index))
    except UnreadableImageError as error:
        return error
    digest = hashlib.sha1(str(tuple(pixels.shape)).encode(), usedforsecurity=False)
    digest.update(pixels.contiguous().numpy().data)
    return digest.digest(), rotated


def _line(names: Sequence[str]) -> str:
    """Return the names of equal samples, and their number if not all are named."""
    different = list(dict.fromkeys(names))
    listed = " = ".join(different)
    if len(listed) > _NAMES:
        listed = f"{listed[:_NAMES]}…"
    elif len(names) == len(different):
        return listed
    return f"{listed} {len(names):,} times"


def _name(dataset: DataSet, part: str, index: int) -> str:
    images = dataset.splits[part].images
    name = images.names[index] if isinstance(images, FileImages) else f"sample {index}"
    if isinstance(images, Texts):
        name = repr(images.stored[index][:60])
    return f"{part}: {name}" if len(dataset.splits) > 1 else name
