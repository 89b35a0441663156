"""A folder of class folders."""

import os
from pathlib import Path

import torch

from longtail.data.datasets.dataset import FileImages, Split

__all__ = ["IMAGE_SUFFIXES", "folders_in", "is_image", "read_folder"]

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})

_MACOS = "__MACOSX"  # archives that were made on macOS have such a folder beside what was archived


def folders_in(root: Path) -> list[Path]:
    """The folders in a folder, by name: all but hidden ones and that of macOS."""
    return sorted(Path(entry) for entry in os.scandir(root) if entry.is_dir() and _is_shown(entry.name))


def read_folder(root: Path, class_names: tuple[str, ...] | None = None) -> tuple[Split, tuple[str, ...]]:
    """Images of a folder that has one folder a class, in the order of their names.

    Args:
        root: the folder.
        class_names: the classes; default: the folders that there are, sorted. A class folder may be empty or missing.

    Returns:
        the images with their labels, and the class names.
    """
    if not root.is_dir():
        raise ValueError(f"Expected {root} to be a folder of class folders, but there is none.")
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
        for directory, folders, files in os.walk(root / class_name):
            folders[:] = sorted(filter(_is_shown, folders))
            place = Path(directory).relative_to(root).as_posix()
            images = [f"{place}/{file}" for file in sorted(files) if is_image(file)]
            names += images
            labels += [label] * len(images)
    return Split(FileImages(root, names), torch.tensor(labels, dtype=torch.int64)), class_names


def _is_shown(name: str) -> bool:
    return not name.startswith(".") and name != _MACOS


def is_image(name: str) -> bool:
    """By its name; files that begin with a dot are no images, whatever macOS calls them."""
    return not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES
