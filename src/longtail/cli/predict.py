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
from typing import Any, NamedTuple, TextIO

import torch
from rich.progress import track
from torch import Tensor

from longtail._io import new_file, safe_cell
from longtail.cli.parsing import Parser, add_reading, check_folder_of, positive_integer
from longtail.cli.show import print_unreadable, progress_console
from longtail.data.datasets.features import is_features, read_features
from longtail.data.datasets.image_files import is_image, read_lines, read_table
from longtail.data.loaders.decode import UnreadableImageError
from longtail.inference import TrainedClassifier, load
from longtail.train.folder import RunFolder
from longtail.train.recipe import pick_device


class PredictedRow(NamedTuple):
    """The predictions for an image."""

    path: str
    label: str | None
    """The true class, if a list has it."""
    top: list[tuple[str, float]]
    """The most probable classes with their probabilities."""
    probabilities: dict[str, float]
    """Of all classes, with ``--all-classes``."""


_TOP = ("predicted", "confidence")  # columns of one of the most probable classes


def run(words: Sequence[str]) -> int:
    """Parse, predict, print."""
    parser = Parser("longtail predict", "Predict labels and probabilities of images with a finished run.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    lists = "lists (.txt with one path per line, .csv or .tsv with a column `path`); paths in a list are relative to it"
    parser.add_argument(
        "images", type=Path, nargs="+", metavar="IMAGES", help=f"image files, folders, {lists}; or features"
    )
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
    vectors = [path for path in given.images if path.is_file() and is_features(path)]
    images = [] if len(vectors) == len(given.images) else find_images(given.images)
    paths = [path for path, _ in images]
    missing = next((path for path in paths if not path.exists()), None)
    skipped: dict[str, str] = {}
    if missing is not None and given.bad_images == "error":
        raise UnreadableImageError.of_several([UnreadableImageError(missing.absolute(), "it does not exist")])
    classifier = load(given.run, pick_device(given.device))
    listed = skipped if given.bad_images == "skip" else None
    predictions = classifier.files(paths, batch_size=given.batch_size, workers=given.workers, unreadable=listed)
    if not images:
        images, predictions = _of_features(classifier, vectors, RunFolder(given.run).recipe().label_column)
    names, top = classifier.class_names, min(given.top, len(classifier.class_names))

    def rows() -> Iterator[PredictedRow]:
        hidden = not sys.stderr.isatty() or (given.out is None and sys.stdout.isatty())
        bar: dict[str, Any] = {"console": progress_console, "transient": True, "disable": hidden}
        for place, probabilities in track(predictions, "predicting", len(images), **bar):
            best = probabilities.topk(top)
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            path, label = images[place]
            every = dict(zip(names, probabilities.tolist(), strict=True)) if given.all_classes else {}
            yield PredictedRow(_readable(path), label, [(names[c], _short(p)) for c, p in pairs], every)

    with _writing(given.out) as file:
        labelled = any(label is not None for _, label in images)
        _WRITERS[given.format](rows(), labelled, top, names if given.all_classes else (), file)
    print_unreadable({_readable(name): why for name, why in skipped.items()}, len(paths))
    return 1 if skipped and len(skipped) == len(paths) else 0


def _of_features(
    classifier: TrainedClassifier, files: Sequence[Path], label: str
) -> tuple[list[tuple[Path, str | None]], Iterator[tuple[int, Tensor]]]:
    """Return names, such as ``new.npz:0``, and labels of all rows, and their positions and probabilities."""
    stored = [read_features(file, labelled=False, label=label) for file in files]
    rows: list[tuple[Path, str | None]] = []
    for file, one in zip(files, stored, strict=True):
        labels: Sequence[str | None] = one.labels or [None] * len(one.features)
        rows += [(Path(f"{file}:{row}"), label) for row, label in enumerate(labels)]
    features = torch.cat([classifier.transforms(one.features) for one in stored])
    return rows, enumerate(classifier.predict(features).probabilities)


def find_images(given: Iterable[Path]) -> list[tuple[Path, str | None]]:
    """Return the image files that are given as files, in folders or in lists, with their labels if a list has them."""
    found: list[tuple[Path, str | None]] = []
    for path in given:
        if path.is_dir():
            files = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
            images = [one for one in files if is_image(one.name)]
            if not images:
                raise ValueError(f"Expected images in {path}, but there are none.")
            found += [(image, None) for image in sorted(images)]
        elif path.suffix.lower() == ".txt":
            found += [(path.parent / line.strip(), None) for line in read_lines(path) if line.strip()]
        elif path.suffix.lower() in {".csv", ".tsv"}:
            rows = read_table(path, ["path"])
            found += [(path.parent / row["path"], row.get("label") or None) for row in rows if row.get("path")]
        else:
            found.append((path, None))
    if not found:
        raise ValueError("Expected images to predict, but got none.")
    return found


def _short(probability: float) -> float:
    return float(f"{probability:.6g}")


def _write_csv(rows: Iterable[PredictedRow], labelled: bool, top: int, classes: Sequence[str], file: TextIO) -> None:
    writer, rows = csv.writer(file, lineterminator="\n"), iter(rows)
    first = list(islice(rows, 1))  # if this fails, nothing has been printed
    ends = ["", *(f"_{place}" for place in range(2, top + 1))]
    header = ["path", *(["label"] if labelled else []), *(f"{name}{end}" for end in ends for name in _TOP)]
    writer.writerow([*header, *(f"probability_{name}" for name in classes)])
    for row in chain(first, rows):
        cells: list[Any] = [row.path, *([row.label or ""] if labelled else [])]
        cells += [value for pair in row.top for value in pair]
        writer.writerow([safe_cell(cell) for cell in [*cells, *row.probabilities.values()]])


def _write_json(rows: Iterable[PredictedRow], labelled: bool, top: int, classes: Sequence[str], file: TextIO) -> None:
    before = "["
    for row in rows:
        best = [dict(zip(_TOP, pair, strict=True)) for pair in row.top]
        entry: dict[str, Any] = {"path": row.path, **({"label": row.label} if labelled else {}), **best[0]}
        entry |= ({"top": best} if top > 1 else {}) | ({"probabilities": row.probabilities} if classes else {})
        file.write(before + "\n" + json.dumps(entry, ensure_ascii=False))
        before = ","
    file.write("[]\n" if before == "[" else "\n]\n")


_WRITERS: dict[str, Callable[[Iterable[PredictedRow], bool, int, Sequence[str], TextIO], None]] = {
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
