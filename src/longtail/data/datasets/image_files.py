"""Readers of image files: folders of class folders, and text lists."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

import torch

from longtail.data.datasets.rows import SPLITS
from longtail.data.datasets.splits import FileImages, Split
from longtail.data.datasets.tables import TABLES, read_lines
from longtail.data.loaders.decode import image_formats

LISTS = (*TABLES, ".txt")
"""Suffixes of lists."""
_MACOS = "__MACOSX"  # archives that were made on macOS have such a folder
_SYSTEM_FILES = {"thumbs.db", "desktop.ini"}  # of Windows
LINKED = "linked folder"
"""How links to folders below class folders, which are not followed, are counted."""

# --- folders


def folders_in(root: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name, without hidden ones and those of macOS archives."""
    return sorted(Path(entry) for entry in os.scandir(root) if entry.is_dir() and _is_visible(entry.name))


def read_folder(root: Path, class_names: tuple[str, ...] | None = None) -> tuple[Split, tuple[str, ...]]:
    """Return the images of a folder that has one folder per class, in the order of their names, and the class names.

    Args:
        root: the folder.
        class_names: the classes, by default the names of the folders, sorted. A class folder may be empty or missing.
    """
    if not root.is_dir():
        raise ValueError(f"Expected {root} to be a folder of class folders, but it does not exist.")
    found = [folder.name for folder in folders_in(root)]
    if class_names is None:
        class_names = tuple(found)
    unknown = sorted(set(found) - set(class_names))
    if unknown:
        raise ValueError(f"Expected the class folders of {root} to be known classes, but got {unknown[0]!r}.")
    if not class_names:
        raise ValueError(f"Expected {root} to have class folders, but it has none.")
    names: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(class_names):
        images = [f"{place}/{name}" for place, files in find_files(root, [class_name]).images for name in files]
        names += images
        labels += [label] * len(images)
    return Split(FileImages(root, names), torch.tensor(labels, dtype=torch.int64)), class_names


@dataclass
class FoundFiles:
    """The files below some folders of a folder."""

    images: list[tuple[str, list[str]]] = field(default_factory=list)
    """Each folder, relative with forward slashes, with its images by name; parents come before their subfolders."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Numbers of files that are not images, by their suffix."""


def find_files(root: Path, folders: Iterable[str]) -> FoundFiles:
    """Return the images and the other files below folders of a folder; hidden files do not count."""
    found = FoundFiles()
    for top in folders:
        for directory, inner, files in os.walk(root / top):
            inner[:] = sorted(filter(_is_visible, inner))
            found.ignored[LINKED] += sum(Path(directory, one).is_symlink() for one in inner)
            images = sorted(filter(is_image, files))
            found.images.append((Path(directory).relative_to(root).as_posix(), images))
            if len(images) < len(files):
                found.ignored.update(ignored_suffixes(files))
    return found


def ignored_suffixes(files: Iterable[str]) -> list[str]:
    """Return the suffix of each file that is not an image, or its name if it has none, without hidden files."""
    names = (name for name in files if not name.startswith(".") and name.lower() not in _SYSTEM_FILES)
    return [Path(name).suffix.lower() or name for name in names if not is_image(name)]


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name != _MACOS


def is_image(name: str) -> bool:
    """Whether a file name has the suffix of an image; hidden files, such as those of macOS, are not images."""
    stem, _, suffix = name.rpartition(".")
    return bool(stem) and not name.startswith(".") and f".{suffix.lower()}" in image_suffixes()


@cache
def image_suffixes() -> frozenset[str]:
    """Return the suffixes of files that are read."""
    return frozenset(suffix for suffixes in image_formats().values() for suffix in suffixes)


# --- lists


def split_lists(root: Path) -> dict[str | None, Path]:
    """Return the list of each split in a folder; none if there is no list of training images."""
    found: dict[str | None, Path] = {}
    for file in sorted(root.iterdir()):
        part = SPLITS.get(file.stem.lower())
        if part is not None and file.suffix.lower() in LISTS and file.is_file():
            other = found.setdefault(part, file)
            if other != file:
                raise ValueError(f"Expected one list for {part} in {root}, but got {other.name} and {file.name}.")
    return {part: found[part] for part in ("train", "val", "test") if part in found} if "train" in found else {}


def read_pairs(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield number, path and label of each line of a text list that is not blank: ``path label`` or ``path,label``.

    A tab separates them if every line has one; else a comma if every line has one, and a space does not end the path of
    the first line.
    """
    lines = [(number, line.rstrip()) for number, line in enumerate(read_lines(path), 1) if line and not line.isspace()]
    spaced = any(is_image(line.rpartition(" ")[0].strip()) for _, line in lines[:1])  # as in `a, b.png 3`
    separator = "," if all("," in line for _, line in lines) and not spaced else " "
    separator = "\t" if all("\t" in line.strip() for _, line in lines) else separator
    for number, line in lines:
        name, _, label = line.rpartition(separator)
        if not name or name.isspace() or not label.strip():
            raise ValueError(f"Expected `path label` in line {number} of {path}, but got {line.strip()[:80]!r}.")
        yield number, name, label.strip()


def read_list(path: Path, root: Path) -> Split:
    """Return the images and labels of a text list, as ImageNet-LT, Places-LT and iNaturalist2018 publish them.

    Args:
        path: the list, with one ``relative/path.jpg label`` per line. Blank lines are skipped; paths may have spaces.
        root: the folder that the paths are relative to and must not leave.
    """
    names, labels = [], []
    for number, name, label in read_pairs(path):
        if not (label.isascii() and label.isdigit() and len(label) < 19):
            found = f"{name} {label}"[:80]
            raise ValueError(f"Expected `path label` in line {number} of {path}, but got {found!r}.")
        if not inside(name):
            raise ValueError(f"Expected line {number} of {path} to stay in the data folder, but got {name!r}.")
        names.append(name)
        labels.append(int(label))
    return Split(FileImages(root, names), torch.tensor(labels, dtype=torch.int64))


def inside(name: str) -> bool:
    """Whether a path is relative and stays in its folder, on any operating system."""
    if ".." not in name and "\\" not in name and name[0] != "/" and name[1:2] != ":":
        return True  # nearly all paths; PurePosixPath is slow
    path = PurePosixPath(name.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts and name[1:2] != ":"


def posix_path(folder: Path, name: str) -> str:
    """Return a path in a list with forward slashes, if the list was written on Windows."""
    if "\\" in name and inside(name) and not os.path.exists(folder / name):  # noqa: PTH110 - names of any length
        return name.replace("\\", "/")
    return name
