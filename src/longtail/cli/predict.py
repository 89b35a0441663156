"""``longtail predict``: labels and probabilities of images, from a finished run."""

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import torch
from rich.progress import track
from torch import Tensor

from longtail._io import new_file, safe_cell
from longtail.cli.parsing import Parser, add_reading, check_folder_of, positive_integer
from longtail.cli.show import print_unreadable, progress_console
from longtail.data.datasets.features import is_features, read_features
from longtail.data.datasets.image_files import (
    LISTS,
    is_image,
    posix_path,
    read_pairs,
    split_lists,
)
from longtail.data.datasets.tables import read_lines, read_table
from longtail.data.loaders.decode import UnreadableImageError
from longtail.inference import TrainedClassifier, load
from longtail.train.folder import RunFolder
from longtail.train.recipe import pick_device, setting_help

_OPENING = ("image_root", "path_column", "label_column")  # settings of the run that say how a list is read


def run(words: Sequence[str]) -> int:
    """Parse, predict, print."""
    parser = Parser("longtail predict", "Predict labels and probabilities of images with a finished run.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    lists = "lists of images as those to train on (.csv, .tsv, .parquet, .txt); labels are not needed"
    parser.add_argument(
        "images", type=Path, nargs="+", metavar="IMAGES", help=f"image files, folders, {lists}; or features"
    )
    for name in _OPENING:
        help = f"{setting_help(name).partition(';')[0]} (default: that of the run)"
        parser.flag(f"--{name.replace('_', '-')}", help, metavar=name.rsplit("_", 1)[-1].upper())
    parser.flag("--format", "csv, or json: an array with one line per image", choices=_WRITERS, default="csv")
    parser.flag("--top", "classes per image, most probable first", type=positive_integer, default=1, metavar="K")
    columns = "also the probability of every class, in columns `probability_CLASS`, as `longtail diagnose` reads them"
    parser.flag("--all-classes", columns, action="store_true")
    parser.flag("--out", "write to this file instead of printing", type=Path, metavar="FILE")
    add_reading(parser)
    given = parser.read(words)
    with parser.errors_name_flags():
        return _predict(given)


def _predict(given: argparse.Namespace) -> int:
    check_folder_of("--out", given.out)
    classifier, recipe = load(given.run, pick_device(given.device)), RunFolder(given.run).recipe()
    for name in _OPENING:
        if getattr(given, name) is None:
            setattr(given, name, getattr(recipe, name))
    listed = [path for path in given.images if path.suffix.lower() in LISTS and given.path_column != "path"]
    vectors = [path for path in given.images if path not in listed and path.is_file() and is_features(path)]
    images = [] if len(vectors) == len(given.images) else find_images(given)
    paths = [path for path, _ in images]
    missing = next((path for path in paths if not path.exists()), None)
    skipped: dict[str, str] = {}
    if missing is not None and given.bad_images == "error":
        raise UnreadableImageError.of_several([UnreadableImageError(missing.absolute(), "it does not exist")])
    unreadable = skipped if given.bad_images == "skip" else None
    predictions = classifier.files(paths, batch_size=given.batch_size, workers=given.workers, unreadable=unreadable)
    if not images:
        images, predictions = _of_features(classifier, vectors, given.label_column, recipe.split_by)
    names, top = classifier.class_names, min(given.top, len(classifier.class_names))
    labelled = any(label is not None for _, label in images)
    ends = ["", *(f"_{place}" for place in range(2, top + 1))]
    columns = ["path", *(["label"] if labelled else [])]
    columns += [f"{name}{end}" for end in ends for name in ("predicted", "confidence")]
    columns += [f"probability_{name}" for name in names] if given.all_classes else []

    def rows() -> Iterator[list[Any]]:
        hidden = not sys.stderr.isatty() or (given.out is None and sys.stdout.isatty())
        bar: dict[str, Any] = {"console": progress_console, "transient": True, "disable": hidden}
        for place, probabilities in track(predictions, "predicting", len(images), **bar):
            path, label = images[place]
            best = probabilities.topk(top)
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            cells: list[Any] = [_readable(path), *([label] if labelled else [])]
            cells += [cell for c, p in pairs for cell in (names[c], float(f"{p:.6g}"))]
            yield cells + (probabilities.tolist() if given.all_classes else [])

    with _writing(given.out) as file:
        _WRITERS[given.format](rows(), columns, file)
    print_unreadable({_readable(name): why for name, why in skipped.items()}, len(paths))
    return 1 if skipped and len(skipped) == len(paths) else 0


def _of_features(
    classifier: TrainedClassifier, files: Sequence[Path], label: str, group: str | None
) -> tuple[list[tuple[Path, str | None]], Iterator[tuple[int, Tensor]]]:
    """Return names, such as ``new.npz:0``, and labels of all rows, and their positions and probabilities."""
    stored = [read_features(file, labelled=False, label=label, group=group) for file in files]
    rows: list[tuple[Path, str | None]] = []
    for file, one in zip(files, stored, strict=True):
        labels: Sequence[str | None] = one.labels or [None] * len(one.samples)
        rows += [(Path(f"{file}:{row}"), label) for row, label in enumerate(labels)]
    features = torch.cat([classifier.transforms(one.samples) for one in stored])
    return rows, enumerate(classifier.predict(features).probabilities)


def find_images(given: argparse.Namespace) -> list[tuple[Path, str | None]]:
    """Return the images in files, folders or lists, with their labels if a list has them.

    A folder is read as in training: if it has lists, its images are those in the lists.
    """
    found: list[tuple[Path, str | None]] = []
    for path in given.images:
        lists = list(split_lists(path).values()) if path.is_dir() else [path] if path.suffix.lower() in LISTS else []
        for file in lists:
            root = file.parent if given.image_root is None else Path(given.image_root)
            rows = _listed(file, given.path_column, given.label_column)
            found += [(root / posix_path(root, name), label) for name, label in rows]
        if path.is_dir() and not lists:
            files = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
            images = [one for one in files if is_image(one.name)]
            if not images:
                raise ValueError(f"Expected images in {path}, but there are none.")
            found += [(image, None) for image in sorted(images)]
        elif not lists:
            found.append((path, None))
    if not found:
        raise ValueError("Expected images to predict, but got none.")
    return found


def _listed(path: Path, name: str, label: str) -> list[tuple[str, str | None]]:
    """Return the paths and labels in a list, from the columns of these names; a ``.txt`` file may have paths alone."""
    if path.suffix.lower() == ".txt":
        lines = [line.strip() for line in read_lines(path) if line.strip()]
        labelled = any(is_image(line.rpartition(end)[0].strip()) for line in lines[:1] for end in ", \t")
        if labelled and not is_image(lines[0]):
            return [(image.strip(), of) for _, image, of in read_pairs(path)]
        return [(line, None) for line in lines]
    return [(row[name], row.get(label) or None) for row in read_table(path, [name], [label]) if row[name]]


def _write_csv(rows: Iterable[list[Any]], columns: Sequence[str], file: TextIO) -> None:
    writer, rows = csv.writer(file, lineterminator="\n"), iter(rows)
    first = list(islice(rows, 1))  # if this fails, nothing has been printed
    writer.writerow(columns)
    for row in chain(first, rows):
        writer.writerow([safe_cell(cell) for cell in row])


def _write_json(rows: Iterable[list[Any]], columns: Sequence[str], file: TextIO) -> None:
    before = "["
    for row in rows:
        file.write(before + "\n" + json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False))
        before = ","
    file.write("[]\n" if before == "[" else "\n]\n")


_WRITERS: dict[str, Callable[[Iterable[list[Any]], Sequence[str], TextIO], None]] = {
    "csv": _write_csv,
    "json": _write_json,
}


@contextmanager
def _writing(out: Path | None) -> Iterator[TextIO]:
    """Open the output file, which appears complete or not at all, or standard output."""
    if out is None:
        yield sys.stdout
        return
    with new_file(out) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        yield file


def _readable(path: Path | str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")  # a file name may be any bytes
