"""Readers of image files: folders of class folders, text lists, and tables with paths and labels."""

import csv
import io
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from longtail._io import import_extra, reading
from longtail.data.datasets.splits import FileImages, Split
from longtail.data.loaders.decode import image_formats

SPLITS = dict.fromkeys(("train", "training", "train_set", "training_set"), "train")
SPLITS |= dict.fromkeys(("val", "valid", "validation", "dev", "val_set", "validation_set"), "val")
SPLITS |= dict.fromkeys(("test", "testing", "test_set"), "test")
"""Names of splits, and what we call them."""
LISTS = (".csv", ".tsv", ".parquet", ".txt")
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


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file without line ends."""
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")  # splitlines also splits at rare characters
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected {path} to be text in UTF-8, but byte {error.start} is not; save it as UTF-8."
        ) from None


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


# --- tables


def read_table(path: Path, needed: Sequence[str], used: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return the rows of a ``.csv``, ``.tsv`` or ``.parquet`` file, each as a dictionary of texts by column.

    Args:
        path: the file; ``.csv`` and ``.tsv`` have commas, tabs or semicolons between the columns.
        needed: columns that must exist.
        used: columns that are also read from a Parquet file, if they exist.
    """
    with reading(path, "a table"):
        return (_parquet_rows if path.suffix.lower() == ".parquet" else _text_rows)(path, needed, used)


def _parquet_rows(path: Path, needed: Sequence[str], used: Sequence[str]) -> list[dict[str, str]]:
    def chosen(names: list[str]) -> list[str]:
        known = check_columns(path, names, needed)
        return [name for name, one in zip(names, known, strict=True) if one in {*needed, *used}]  # not the pixels

    table = read_parquet(path, chosen)
    cells = [list(map(_text, values)) for values in table.values()]
    return [dict(zip(map(column, table), row, strict=True)) for row in zip(*cells, strict=True)]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)


def _text_rows(path: Path, needed: Sequence[str], _: Sequence[str]) -> list[dict[str, str]]:
    text = "\n".join(read_lines(path))

    def rows(delimiter: str) -> Iterator[list[str]]:
        return filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))

    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    used = next((one for one in (usual, *"\t,;") if not _lacks(next(rows(one), []), needed)), usual)
    header, *cells = list(rows(used)) or [[]]
    columns = check_columns(path, header, needed)
    if any(name != name.strip() for name in header):  # then spaces around delimiters do not belong to the cells either
        cells = [[cell.strip() for cell in row] for row in cells]
    return [dict(zip(columns, row, strict=False)) for row in cells]


_NAMED = 8  # columns that an error names


def check_columns(path: Path, header: Sequence[str], needed: Sequence[str]) -> list[str]:
    """Return the names of the columns; raise if a needed column is missing or a name is repeated."""
    if _lacks(header, needed):
        *others, last = needed
        what = f"the columns {', '.join(others)} and {last}" if others else f"a column `{last}`"
        options = [f"`{name}_column`" for name in ("path", "label") if name in needed and "label" in needed]
        hint = f"; {' and '.join(options)} {'names another' if len(options) < 2 else 'name others'}" if options else ""
        if "path" in needed and len(needed) > 1 and not _lacks(header, needed[1:]):
            hint = "; `path_column` names another; texts need `--text COLUMN` of `longtail embed`"
        if list(needed) == ["path"]:
            hint = "; `longtail embed --text COLUMN` makes features of texts"
        if "path" in needed and any(map(is_image, header)):
            hint = "; the first row must have the names of columns"
        more = f", … ({len(header)} columns)" if len(header) > _NAMED else ""
        raise ValueError(f"Expected {path} to have {what}, but got {', '.join(header[:_NAMED]) or 'none'}{more}{hint}.")
    columns = list(map(column, header))
    for name, times in Counter(columns).items():
        if name and times > 1:
            raise ValueError(f"Expected {path} to have one column `{name}`, but it has {times}.")
    return columns


def column(name: str) -> str:
    """Return a column name in lower case without surrounding spaces."""
    return name.strip().lower()


def _lacks(header: Sequence[str], needed: Sequence[str]) -> bool:
    return not set(needed) <= set(map(column, header))


def read_parquet(path: Path, choose: Callable[[list[str]], list[str]] = list) -> dict[str, list[Any]]:
    """Return the columns of a Parquet file by name. Needs pyarrow.

    Args:
        path: the file.
        choose: selects the columns to read from all names, by default all.
    """
    parquet = import_extra("pyarrow.parquet", "parquet")
    content = path.read_bytes()  # errors of the system; those of Arrow's own reading are about the content
    with reading(path, "a whole Parquet file"):
        try:
            with parquet.ParquetFile(import_extra("pyarrow", "parquet").BufferReader(content)) as file:
                names = choose(file.schema_arrow.names)
                if len(set(names)) < len(names):
                    twice = next(name for name in names if names.count(name) > 1)
                    raise ValueError(f"Expected {path} to have one column `{twice}`, but it has {names.count(twice)}.")
                table = file.read(names, use_threads=False)  # Arrow's threads are not needed, and would delay the exit
                return {name: table[name].to_pylist() for name in names}
        except OSError as error:  # Arrow's word for what it cannot decode
            raise RuntimeError(str(error)) from None
