"""User data: a folder of class folders, a list of paths and labels, or a map-style data set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail._checks import as_tensor, describe
from longtail.classes import class_counts
from longtail.data.datasets.image_files import (
    check_columns,
    column,
    folders_in,
    inside,
    is_image,
    read_folder,
    read_pairs,
    read_parquet,
    read_table,
)
from longtail.data.datasets.splits import DataSet, FileImages, Split
from longtail.data.loaders.decode import raw_pixels

__all__ = ["AdaptedImages", "empty_folders", "from_dataset", "open_path"]

_PARTS = {"train": "train", "training": "train", "test": "test"}
_PARTS |= dict.fromkeys(("val", "valid", "validation", "dev"), "val")
_COLUMNS = ("path", "label", "split")


def open_path(path: Path | str) -> DataSet:
    """Open a folder or a list of images as a data set.

    Args:
        path: a folder of class folders, or a folder of such folders named ``train``, ``val`` and ``test``; or a list
            of images: ``.csv`` and ``.tsv`` (columns ``path``, ``label`` and, if there are splits, ``split``),
            ``.parquet`` (the same; needs pyarrow), or ``.txt`` (``path label`` per line). Labels are class names, or
            class indices if all of them are whole numbers. Images must be below the folder of the list; paths are
            relative to it or absolute.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"Expected {path.absolute()} to be a folder or an image list, but it does not exist.")
    suffix = path.suffix.lower()
    if suffix in {".csv", ".tsv"}:
        rows = read_table(path, _COLUMNS[:2])
    elif suffix == ".parquet":
        rows = _read_parquet(path)
    elif suffix == ".txt":
        rows = [{"path": name.strip(), "label": label} for _, name, label in read_pairs(path)]
    else:
        raise ValueError(
            f"Expected {path} to be a folder or to end in .csv, .tsv, .parquet or .txt, but got {suffix!r}."
        )
    return _from_rows(path, rows)


def empty_folders(path: Path | str, dataset: DataSet) -> list[Path]:
    """Return the class folders in ``path`` whose class has no image in any split."""
    if not Path(path).is_dir():
        return []
    counts = class_counts(torch.cat([split.labels for split in dataset.splits.values()]), dataset.num_classes)
    empty = {dataset.class_names[c] for c in (counts == 0).nonzero().flatten().tolist()}
    return [
        found for folder in _split_folders(Path(path)).values() for found in folders_in(folder) if found.name in empty
    ]


def _open_folder(root: Path) -> DataSet:
    folders = _split_folders(root)
    class_names = tuple(sorted({found.name for folder in folders.values() for found in folders_in(folder)}))
    if not class_names:
        raise ValueError(f"Expected {root} to have class folders, but it has none.")
    splits = {part: read_folder(folder, class_names)[0] for part, folder in folders.items()}
    return DataSet(root.name, class_names, **splits)  # type: ignore[arg-type]


def _split_folders(root: Path) -> dict[str, Path]:
    """Return the folder of each split; without split folders everything is training data."""
    visible = folders_in(root)
    parts = [_PARTS.get(folder.name.lower()) for folder in visible]
    if "train" not in parts:
        return {"train": root}
    if None in parts:
        beside = visible[parts.index(None)]
        if len(set(parts)) > 2 and _has_only_folders(visible[parts.index("train")]):
            raise ValueError(
                f"Expected {root} to have only folders called train, val and test, but got {beside.name}; move or "
                "rename it."
            )
        return {"train": root}  # a class is called train
    inner: dict[str, Path] = {}
    for part, folder in zip(parts, visible, strict=True):
        if part is not None and inner.setdefault(part, folder) != folder:
            raise ValueError(f"Expected one folder for {part} in {root}, but got {inner[part].name} and {folder.name}.")
    return inner


def _has_only_folders(root: Path) -> bool:
    """Whether a folder has folders and no images, like the folder of a split."""
    return bool(folders_in(root)) and not any(is_image(file.name) for file in root.iterdir())


def _read_parquet(path: Path) -> list[dict[str, str]]:
    def chosen(names: list[str]) -> list[str]:
        columns = check_columns(path, names, _COLUMNS[:2])
        return [name for name, known in zip(names, columns, strict=True) if known in _COLUMNS]  # not the pixels

    table = read_parquet(path, chosen)
    cells = [["" if value is None else str(value) for value in values] for values in table.values()]
    return [dict(zip(map(column, table), row, strict=True)) for row in zip(*cells, strict=True)]


def _from_rows(path: Path, rows: list[dict[str, str]]) -> DataSet:
    if not rows:
        raise ValueError(f"Expected {path} to list images, but it lists none.")
    names, labels, parts = [], [], []
    for number, row in enumerate(rows, 1):
        if not row.get("path") or not row.get("label"):
            raise ValueError(f"Expected a path and a label in row {number} of {path}, but got {row}.")
        names.append(_below(path.parent, row["path"]))
        if not inside(names[-1]):
            raise ValueError(
                f"Expected the path in row {number} of {path} to be below {path.parent.absolute()}, the folder of the "
                f"list, but got {row['path']!r}."
            )
        part = (row.get("split") or "train").lower()
        if part not in _PARTS:
            raise ValueError(f"Expected `split` in row {number} of {path} to be train, val or test, but got {part!r}.")
        labels.append(row["label"])
        parts.append(_PARTS[part])
    if "train" not in parts:
        raise ValueError(f"Expected {path} to have training images, but got only {', '.join(dict.fromkeys(parts))}.")
    class_names, classes = _classes(path, labels)

    def split(part: str) -> Split:
        chosen = [i for i, found in enumerate(parts) if found == part]
        images = FileImages(path.parent, [names[i] for i in chosen])
        return Split(images, torch.tensor([classes[i] for i in chosen], dtype=torch.int64))

    return DataSet(path.stem, class_names, **{part: split(part) for part in dict.fromkeys(parts)})  # type: ignore[arg-type]


def _classes(path: Path, labels: list[str]) -> tuple[tuple[str, ...], list[int]]:
    """Return the class names, and the class of each label: its number if all labels are whole numbers."""
    if all(label.isascii() and label.removeprefix("-").isdigit() for label in labels):
        for number, label in enumerate(labels, 1):
            if label.startswith("-"):
                raise ValueError(f"Expected the label in row {number} of {path} to be 0 or more, but got {label}.")
        labels = [label.lstrip("0") or "0" for label in labels]  # 07 is 7; int() refuses thousands of digits
        # Numbers far above the number of rows are names that look like numbers, not indices.
        if max(map(len, labels)) < 19 and max(map(int, labels)) < 100 * len(labels) + 10_000:
            classes = list(map(int, labels))
            return tuple(map(str, range(max(classes) + 1))), classes
    class_names = tuple(sorted(set(labels)))
    index = {name: c for c, name in enumerate(class_names)}
    return class_names, [index[label] for label in labels]


def _below(folder: Path, name: str) -> str:
    """Make an absolute path below a folder relative to it; return other paths unchanged."""
    if inside(name) or not Path(name).is_absolute():
        return name
    for root in (folder.absolute(), folder.resolve()):  # the folder may be a link
        if Path(name).is_relative_to(root):
            return Path(name).relative_to(root).as_posix()
    return name


@dataclass(frozen=True, eq=False)
class AdaptedImages:
    """Images of a map-style data set."""

    dataset: Any
    key: str | int
    """Where a sample has its image: a column name or a position in a tuple."""
    indices: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int, /) -> Tensor:
        image = self.dataset[int(self.indices[index])][self.key]
        pixels = raw_pixels(image)
        if pixels is None:
            raise TypeError(f"Expected raw images of uint8, before any transform, but got {describe(image)}.")
        return pixels.contiguous()

    def subset(self, indices: Tensor, /) -> "AdaptedImages":
        """Return the images at these indices, in this order."""
        return AdaptedImages(self.dataset, self.key, self.indices[indices])

    def identity(self) -> bytes:
        """The indices in the data set."""
        return self.indices.numpy().tobytes()


def from_dataset(
    dataset: Any, *, image: str | int | None = None, label: str | int | None = None, class_names: Sequence[str] = ()
) -> Split:
    """Make a split from a map-style ``torch`` or Hugging Face data set.

    Labels are read immediately (from a column, ``targets`` or ``labels`` if there is one), images on access.

    Args:
        dataset: has a length and returns samples by index, as tuples or dictionaries. Its images must be raw uint8
            images or PIL images, without augmentation.
        image: position of the image in a sample, by default ``"image"`` in a dictionary and 0 in a tuple.
        label: position of the label in a sample, by default ``"label"`` or 1.
        class_names: if given, labels are checked against them.

    Example:
        >>> samples = [(torch.zeros(3, 4, 4, dtype=torch.uint8), 0), (torch.ones(3, 4, 4, dtype=torch.uint8), 1)]
        >>> split = from_dataset(samples)
        >>> split.labels, split.images[1].shape
        (tensor([0, 1]), torch.Size([3, 4, 4]))
    """
    if len(dataset) == 0:
        raise ValueError("Expected `dataset` to have samples, but it has none.")
    by_name = isinstance(dataset[0], Mapping)
    image_key = ("image" if by_name else 0) if image is None else image
    label_key = ("label" if by_name else 1) if label is None else label
    if by_name and hasattr(dataset, "column_names"):  # Hugging Face: read a column without decoding images
        labels: Any = list(dataset[label_key])  # newer versions return a lazy column
    else:
        labels = next((getattr(dataset, name) for name in ("targets", "labels") if hasattr(dataset, name)), None)
        if labels is None or label is not None:
            labels = [dataset[i][label_key] for i in range(len(dataset))]
    found = as_tensor("label", labels, what="class indices")
    if found.is_floating_point():
        raise TypeError(f"Expected `label` to hold class indices, but got dtype {found.dtype}.")
    found = found.to(torch.int64)
    if found.shape != (len(dataset),):
        raise ValueError(f"Expected a label for each of {len(dataset)} samples, but got shape {tuple(found.shape)}.")
    low, high = int(found.min()), int(found.max())
    if low < 0 or (class_names and high >= len(class_names)):
        last = len(class_names) - 1 if class_names else "C-1"
        raise ValueError(f"Expected labels in 0…{last}, but got {low if low < 0 else high}.")
    return Split(AdaptedImages(dataset, image_key, torch.arange(len(dataset))), found)
