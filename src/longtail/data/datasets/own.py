"""User data: a folder of class folders, a list of paths and labels, or a map-style data set."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail._checks import Vector, as_tensor, describe
from longtail._program import count, some_of
from longtail.classes import class_counts
from longtail.data.datasets.features import is_features, read_features
from longtail.data.datasets.image_files import (
    LISTS,
    FoundFiles,
    find_files,
    folders_in,
    ignored_suffixes,
    inside,
    is_image,
    posix_path,
    read_pairs,
    split_lists,
)
from longtail.data.datasets.rows import SPLITS, Rows, split_names
from longtail.data.datasets.splits import DataSet, FileImages, Split
from longtail.data.datasets.tables import column, read_table
from longtail.data.loaders.decode import raw_pixels

_FOLDER = "folder"  # the value of `split_by` for folders


def open_path(
    path: Path | str,
    *,
    image_root: Path | str | None = None,
    path_column: str = "path",
    label_column: str = "label",
    split_by: str | None = None,
) -> DataSet:
    """Open a folder or a list of images, or a file of features, as a data set.

    Args:
        path: a folder of class folders, or a folder of such folders named ``train``, ``val`` and ``test``. If a class
            folder has no image itself but several folders with images, the folders that directly contain images are
            the classes, named by their path; a folder with images and subfolders is one class. Or a list of images:
            ``.csv`` and ``.tsv`` (columns ``path``, ``label`` and, if there are splits, ``split``), ``.parquet`` (the
            same; needs pyarrow), or ``.txt`` (``path label`` or ``path,label`` per line). Or a folder with such lists
            named ``train``, ``val`` and ``test``. Labels are the names of the classes; whole numbers are in the order
            of their values. Or a file or a table of features
            (:func:`read_features <longtail.data.datasets.features.read_features>`).
        image_root: the folder that the paths in a list are relative to and must not leave; default: that of the list.
            Paths may be absolute.
        path_column: the column with the paths.
        label_column: the column with the labels.
        split_by: the column of a list, or the array beside features, with groups that must not be split, such as
            patients; for class folders, ``"folder"``: the classes are the folders of the first level, and the groups
            the folders directly below them, by name; or a regular expression for the paths in the folder, such as
            ``"(patient[0-9]+)_"``, whose part in parentheses is the group.

    ``notes`` of the data set says which files were ignored, and how nested folders were read.
    """
    path = Path(path)
    columns = [name for name in (path_column, label_column, split_by) if name is not None]
    root = None if image_root is None else Path(image_root)
    if root is not None and not root.is_dir():
        raise FileNotFoundError(f"Expected `image_root` to be a folder, but {root.absolute()} is not.")

    def refuse(what: str, *names: str) -> None:
        """Raise an error if one of these arguments, the first ones in this order, is given."""
        usual = {"image_root": None, "path_column": "path", "label_column": "label"}
        for name, value in zip(names, (image_root, *columns), strict=False):
            if value is not None and column(str(value)) != usual[name]:
                raise ValueError(f"Expected no `{name}` for {what}, but got {value}.")

    if path.is_dir():
        lists = split_lists(path)
        if lists:
            return _read_lists(lists, root, columns).dataset(base_name(path), next(iter(lists.values())))
        refuse(f"{path}, a folder of class folders", "image_root", "path_column", "label_column")
        return _open_folder(path, split_by)
    if not path.is_file():
        raise FileNotFoundError(f"Expected {path.absolute()} to be a folder or an image list, but it does not exist.")
    suffix = path.suffix.lower()
    if is_features(path) and (column(path_column) == "path" or suffix not in LISTS):
        refuse("features", "image_root", "path_column")
        return read_features(path, label=label_column, group=split_by).dataset(path.stem, path)
    if suffix not in LISTS:
        raise ValueError(
            f"Expected {path} to be a folder, a table or a list ({', '.join(LISTS)}) or features (.npz, .npy, "
            f".safetensors), but got {suffix!r}."
        )
    return _read_lists({None: path}, root, columns).dataset(path.stem, path)


# --- folders


def base_name(path: Path | str) -> str:
    """Return the name of a folder or a file, also of ``.`` and ``..``; a link keeps its own name."""
    return os.path.basename(os.path.abspath(path))  # noqa: PTH100, PTH119 - `Path.resolve` follows links


def empty_folders(path: Path | str, dataset: DataSet) -> list[Path]:
    """Return the class folders in ``path`` whose class has no image in any split."""
    if not Path(path).is_dir() or split_lists(Path(path)):
        return []
    counts = class_counts(torch.cat([split.labels for split in dataset.splits.values()]), dataset.num_classes)
    folders = _split_folders(Path(path)).values()
    return [folder / name for folder in folders for name in dataset.names_of(counts == 0) if (folder / name).is_dir()]


def _open_folder(root: Path, split_by: str | None) -> DataSet:
    pattern = None if split_by in {None, _FOLDER} else _pattern(str(split_by), root)
    folders = _split_folders(root)
    tops = {part: [found.name for found in folders_in(folder)] for part, folder in folders.items()}
    if not any(tops.values()):
        flat = any(is_image(file.name) for file in root.iterdir())
        hint = "; a table with the columns path and label can say the classes of images" if flat else ""
        raise ValueError(f"Expected {root} to have class folders, but it has none{hint}.")
    found = {part: find_files(folder, tops[part]) for part, folder in folders.items()}
    first_level = sorted({top for of_part in tops.values() for top in of_part})
    class_names = first_level
    if split_by != _FOLDER:
        with_images = {place for files in found.values() for place, images in files.images if images}
        every = {place for files in found.values() for place, _ in files.images}
        class_names = _class_folders(first_level, every, with_images)
    index = {name: c for c, name in enumerate(class_names)}
    codes: dict[str, int] = {}
    splits = {}
    for part, files in found.items():
        rows: list[tuple[int, str, str]] = []  # class, image, folder
        for place, images in files.images:
            if images:
                c = next(index[up] for up in _with_parents(place) if up in index)
                rows += [(c, f"{place}/{name}", place) for name in images]
        rows.sort(key=lambda row: row[0])  # stable: the order within a class stays
        labels = torch.tensor([c for c, _, _ in rows], dtype=torch.int64)
        groups = None
        if split_by is not None:
            names = [_folder_of(name, place) if pattern is None else _part_of(name, pattern) for _, name, place in rows]
            groups = torch.tensor([codes.setdefault(name, len(codes)) for name in names], dtype=torch.int64)
        splits[part] = Split(FileImages(folders[part], [name for _, name, _ in rows]), labels, groups)
    return DataSet(
        base_name(root),
        tuple(class_names),
        **splits,  # type: ignore[arg-type]
        group_names=tuple(codes),
        notes=tuple(filter(None, (_ignored(root, folders, found), _twins(found), _levels(class_names)))),
    )


def _class_folders(first_level: list[str], every: set[str], with_images: set[str]) -> list[str]:
    """Return the class folders: those of the first level, or folders below if one of these has several.

    A folder that directly contains images, and has no such folder above it, is a class; so is a folder of the first
    level without an image, and one that has none beside folders that have some.
    """
    filled = {up for place in with_images for up in _with_parents(place)}
    found = []
    for place in sorted(every):
        above = _with_parents(place)[1:]
        if all(up in filled and up not in with_images for up in above) and (
            place in with_images or place not in filled
        ):
            found.append(place)
    leaves = Counter(place.partition("/")[0] for place in found if place in with_images)
    return found if max(leaves.values(), default=0) > 1 else first_level


def _with_parents(place: str) -> list[str]:
    """Return a relative folder and the folders above it, the innermost first."""
    parts = place.split("/")
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _folder_of(image: str, place: str) -> str:
    """The folder directly below the class folder."""
    if "/" not in place:
        raise ValueError(
            f"Expected images in folders below the class folders for `split_by` = folder, but {image} is directly in "
            "its class folder."
        )
    return place.split("/")[1]


def _pattern(split_by: str, root: Path) -> re.Pattern[str]:
    """A regular expression whose part in parentheses is the group of an image."""
    with suppress(re.error):
        found = re.compile(split_by)
        if found.groups == 1:
            return found
    raise ValueError(
        f"Expected `split_by` for {root}, a folder of class folders, to be folder, or a pattern of file names with one "
        f"part in parentheses, as '(patient[0-9]+)_', but got {split_by!r}; a list of images can have such a column."
    )


def _part_of(image: str, pattern: re.Pattern[str]) -> str:
    found = pattern.search(image)
    if found is None or not found[1]:
        raise ValueError(f"Expected every path to match `split_by` = {pattern.pattern!r}, but {image} does not.")
    return found[1]


def _ignored(root: Path, folders: Mapping[str, Path], found: Mapping[str, FoundFiles]) -> str:
    """Return which files are not images, as a sentence; empty if there are none."""
    ignored: Counter[str] = Counter()
    for files in found.values():
        ignored.update(files.ignored)
    for folder in dict.fromkeys([root, *folders.values()]):
        names = [entry.name for entry in os.scandir(folder) if entry.is_file()]
        ignored.update(ignored_suffixes(names))
        ignored["images outside of class folders"] += sum(map(is_image, names))
    number = sum(ignored.values())
    if number == 0:
        return ""
    named = some_of([f"{times:,} {suffix}" for suffix, times in (+ignored).most_common()], _NAMED)
    needed = "; `pip install pillow-heif` reads HEIC" if {".heic", ".heif", ".hif"} & set(+ignored) else ""
    return f"Ignored {count(number, 'file')} in {root}: {named}{needed}."


_NAMED = 5  # kinds of ignored files that are named
_MASK = re.compile(r"(.+)[ _-]mask.*", re.IGNORECASE)
"""The name of a mask: that of its image, and more."""


def _twins(found: Mapping[str, FoundFiles]) -> str:
    """Return how many images have the name of another one, or are its masks, as a sentence; empty if there are none."""
    twins: list[str] = []
    for files in found.values():
        for place, names in files.images:
            stems = [name.rpartition(".")[0] for name in names]
            first = dict(zip(reversed(stems), reversed(names), strict=True))
            for name, stem in zip(names, stems, strict=True):
                other = first[stem] if first[stem] != name else first.get(_MASK.sub(r"\1", stem), name)
                twins += [f"{place}/{other} and {name}"] if other != name else []
    if not twins:
        return ""
    return f"{count(len(twins), 'image')} beside one of the same name, such as {twins[0]}; remove masks and copies."


def _levels(class_names: Sequence[str]) -> str:
    """Return how nested class folders were read, as a sentence; empty if there are none."""
    nested = [name for name in class_names if "/" in name]
    if not nested:
        return ""
    levels = {name.count("/") for name in class_names}
    where = "folders at different levels" if len(levels) > 1 else "folders below the first level"
    return (
        f"Made {len(class_names)} classes from {where}, named by their path, such as {nested[0]}; `split_by` = folder "
        "makes the folders of the first level the classes."
    )


def _split_folders(root: Path) -> dict[str, Path]:
    """Return the folder of each split; without split folders everything is training data."""
    visible = folders_in(root)
    parts = [SPLITS.get(folder.name.lower()) for folder in visible]
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


# --- lists


def _read_lists(lists: Mapping[str | None, Path], root: Path | None, columns: Sequence[str]) -> Rows[FileImages]:
    """Return the rows of one list, or of a list per split.

    Args:
        lists: the lists by the split that they are of; ``None``: any.
        root: the folder of the images; default: that of the list.
        columns: of paths, of labels and perhaps of groups.
    """
    folder = next(iter(lists.values())).parent if root is None else root
    paths: list[str] = []
    labels: list[str] = []
    splits: list[str] = []
    groups: list[str] = []
    for only, file in lists.items():
        cells = _cells(file, columns)
        if not cells:
            raise ValueError(f"Expected {file} to list images, but it lists none.")
        for number, row in enumerate(cells, 1):
            path, label, *group = (row.get(name, "") for name in columns)
            if not path or not label.strip():
                raise ValueError(f"Expected a path and a label in row {number} of {file}, but got {row}.")
            if not all(map(str.strip, group)):
                raise ValueError(
                    f'Expected a value of "{columns[2]}", by which to split, in row {number} of {file}, but got none.'
                )
            place = _below(folder, path)
            if not inside(place):
                raise ValueError(
                    f"Expected the path in row {number} of {file} to be below {folder.absolute()}, but got {path!r}; "
                    "`image_root` sets another folder."
                )
            paths.append(place)
            labels.append(label.strip())
            groups += map(str.strip, group)
        splits += split_names(file, (row.get("split") for row in cells), only)
    return Rows(FileImages(folder, paths), labels, splits, groups)


def _cells(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a list as text, by column."""
    if path.suffix.lower() != ".txt":
        return read_table(path, columns, ["split"])
    others = [name for name in columns if column(name) not in {"path", "label"}]
    if others:
        raise ValueError(f"Expected a .csv, .tsv or .parquet list with the column {', '.join(others)}, but got {path}.")
    return [dict(zip(columns, (name.strip(), label), strict=False)) for _, name, label in read_pairs(path)]


def _below(folder: Path, name: str) -> str:
    """Return a path relative to a folder, with forward slashes; one that is not below the folder is unchanged."""
    name = posix_path(folder, name)
    if inside(name) or not Path(name).is_absolute():
        return name
    for root in (folder.absolute(), folder.resolve()):  # the folder may be a link
        if Path(name).is_relative_to(root):
            return Path(name).relative_to(root).as_posix()
    return name


# --- data sets from Python


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
    dataset: Any,
    *,
    image: str | int | None = None,
    label: str | int | None = None,
    class_names: Sequence[str] = (),
    groups: Vector | None = None,
) -> Split:
    """Make a split from a map-style ``torch`` or Hugging Face data set.

    Labels are read immediately (from a column, ``targets`` or ``labels`` if there is one), images on access.

    Args:
        dataset: has a length and returns samples by index, as tuples or dictionaries. Its images must be raw uint8
            images or PIL images, without augmentation.
        image: position of the image in a sample, by default ``"image"`` in a dictionary and 0 in a tuple.
        label: position of the label in a sample, by default ``"label"`` or 1.
        class_names: if given, labels are checked against them.
        groups: a number for each sample; samples with the same number, such as those of one patient, stay together in
            every hold-out.

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
    kept = None if groups is None else as_tensor("groups", groups, what="integers")
    if kept is not None and not kept.is_floating_point():
        kept = kept.to(torch.int64)
    return Split(AdaptedImages(dataset, image_key, torch.arange(len(dataset))), found, kept)
