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

from rich.progress import track

from longtail._io import new_file, safe_cell
from longtail._program import printable
from longtail.cli.parsing import Parser, check_folder_of, positive_integer
from longtail.cli.show import progress_console
from longtail.data.datasets.image_files import is_image, read_lines, read_table
from longtail.data.loaders.decode import UnreadableImageError
from longtail.inference import load
from longtail.train.recipe import pick_device

__all__ = ["find_images", "run"]

Row = tuple[str, list[tuple[str, float]]]
"""An image, and its most probable classes with their probabilities."""

_LISTED = 5  # unreadable files named in the message


def run(words: Sequence[str]) -> int:
    """Parse, predict, print."""
    parser = Parser("longtail predict", "Predict labels and probabilities of images with a finished run.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    lists = "lists (.txt with one path per line, .csv or .tsv with a column `path`); paths in a list are relative to it"
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGES", help=f"image files, folders, or {lists}")
    parser.flag("--format", "csv, or json: an array with one line per image", choices=_WRITERS, default="csv")
    parser.flag("--top", "classes per image, most probable first", type=positive_integer, default=1, metavar="K")
    parser.flag("--out", "write to this file instead of printing", type=Path, metavar="FILE")
    parser.flag("--batch-size", "images per batch", type=positive_integer, default=64, metavar="N")
    parser.flag("--device", "auto (CUDA if available), cpu, cuda or cuda:1", default="auto", metavar="NAME")
    parser.flag("--workers", "threads that read files", type=int, default=4, metavar="N")
    parser.flag("--bad-images", "stop at an unreadable image, or skip it", choices=("error", "skip"), default="error")
    given = parser.read(words)
    with parser.errors_name_flags():
        return _predict(given)


def _predict(given: argparse.Namespace) -> int:
    check_folder_of("--out", given.out)
    paths = find_images(given.images)
    missing = next((path for path in paths if not path.exists()), None)
    skipped: dict[str, str] = {}
    try:
        if missing is not None and given.bad_images == "error":
            raise UnreadableImageError(missing.absolute(), "it does not exist")
        classifier = load(given.run, pick_device(given.device))
        listed = skipped if given.bad_images == "skip" else None
        predictions = classifier.files(paths, batch_size=given.batch_size, workers=given.workers, unreadable=listed)
        names, top = classifier.class_names, min(given.top, len(classifier.class_names))

        def rows() -> Iterator[Row]:
            hidden = not sys.stderr.isatty() or (given.out is None and sys.stdout.isatty())
            bar: dict[str, Any] = {"console": progress_console, "transient": True, "disable": hidden}
            for place, probabilities in track(predictions, "predicting", len(paths), **bar):
                best = probabilities.topk(top)
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                yield _readable(paths[place]), [(names[c], float(f"{p:.6g}")) for c, p in pairs]

        with _writing(given.out) as file:
            _WRITERS[given.format](rows(), top, file)
    except UnreadableImageError as error:
        raise error.with_hint() from error
    if skipped:
        reasons = "; ".join(f"{_readable(name)}: {why}" for name, why in list(skipped.items())[:_LISTED])
        more = "; …" if len(skipped) > _LISTED else ""
        sys.stderr.write(printable(f"{len(skipped)} of {len(paths)} images could not be read: {reasons}{more}\n"))
    return 1 if len(skipped) == len(paths) else 0


def find_images(given: Iterable[Path]) -> list[Path]:
    """Return the image files that are given as files, in folders or in lists."""
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            files = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
            images = [one for one in files if is_image(one.name)]
            if not images:
                raise ValueError(f"Expected images in {path}, but there are none.")
            found += sorted(images)
        elif path.suffix.lower() == ".txt":
            found += [path.parent / line.strip() for line in read_lines(path) if line.strip()]
        elif path.suffix.lower() in {".csv", ".tsv"}:
            found += [path.parent / row["path"] for row in read_table(path, ["path"]) if row.get("path")]
        else:
            found.append(path)
    if not found:
        raise ValueError("Expected images to predict, but got none.")
    return found


def _write_csv(rows: Iterable[Row], top: int, file: TextIO) -> None:
    writer, rows = csv.writer(file, lineterminator="\n"), iter(rows)
    first = list(islice(rows, 1))  # if this fails, nothing has been printed
    more = [f"{name}_{place}" for place in range(2, top + 1) for name in ("label", "probability")]
    writer.writerow(["image", "label", "probability", *more])
    for image, classes in chain(first, rows):
        writer.writerow([safe_cell(image), *(safe_cell(value) for pair in classes for value in pair)])


def _write_json(rows: Iterable[Row], top: int, file: TextIO) -> None:  # noqa: ARG001 - the rows contain them
    before = "["
    for image, classes in rows:
        found = [{"label": label, "probability": probability} for label, probability in classes]
        file.write(before + "\n" + json.dumps({"image": image, "predictions": found}, ensure_ascii=False))
        before = ","
    file.write("[]\n" if before == "[" else "\n]\n")


_WRITERS: dict[str, Callable[[Iterable[Row], int, TextIO], None]] = {"csv": _write_csv, "json": _write_json}


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
