"""``longtail predict``: labels and probabilities of images, by a finished run."""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Literal, TextIO

import tyro
from rich.console import Console
from rich.progress import track

from longtail._checks import check_integer
from longtail._io import new_file
from longtail.cli.parsing import call
from longtail.data.datasets.readers.files import IMAGE_SUFFIXES, read_lines, read_table
from longtail.data.loaders.decode import BadImages, UnreadableImageError
from longtail.inference import load
from longtail.train.recipe import pick_device

__all__ = ["find_images", "run"]

Form = Literal["csv", "json"]
Row = tuple[str, list[tuple[str, float]]]
"""An image, and its most probable classes with their probabilities."""

_LISTED = 5  # unreadable files that are named


def predict(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="folder of a finished run")],
    images: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(
            metavar="IMAGES",
            help="image files, folders of them, or lists: .txt with a path a line, .csv or .tsv with a column `path`; "
            "relative to the list",
        ),
    ],
    *,
    format: Annotated[Form, tyro.conf.arg(help="of the output; json is an array with an image a line")] = "csv",
    top: Annotated[int, tyro.conf.arg(metavar="K", help="classes of each image, most probable first")] = 1,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help="write there rather than print")] = None,
    batch_size: Annotated[int, tyro.conf.arg(help="images that are looked at together")] = 64,
    device: Annotated[str, tyro.conf.arg(help="auto (a GPU where there is one), cpu, cuda, cuda:1")] = "auto",
    workers: Annotated[int, tyro.conf.arg(help="threads that read files")] = 4,
    bad_images: Annotated[
        BadImages, tyro.conf.arg(help="stop and name them, or leave them out and list them")
    ] = "error",
) -> int:
    """Tell the class of images, with its probability, as a finished run has learnt it."""
    check_integer("top", top, minimum=1)
    check_integer("batch_size", batch_size, minimum=1)
    paths = find_images(images)
    if bad_images == "error":
        _check_there(paths)
    classifier = load(path, pick_device(device))
    names = classifier.class_names
    predictions = classifier.files(paths, batch_size=batch_size, workers=workers, bad_images=bad_images)
    console = Console(stderr=True)

    def rows() -> Iterator[Row]:
        shown = track(predictions, "predicting", len(paths), console=console, transient=True, disable=not _watched(out))
        for place, probabilities in shown:
            best = probabilities.topk(min(top, len(names)))
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            yield _readable(paths[place]), [(names[c], float(f"{p:.6g}")) for c, p in pairs]

    with _writing(out) as file:
        _WRITERS[format](rows(), min(top, len(names)), file)
    left_out = predictions.unreadable
    if left_out:
        said = "; ".join(f"{_readable(name)}: {why}" for name, why in list(left_out.items())[:_LISTED])
        more = "; …" if len(left_out) > _LISTED else ""
        sys.stderr.write(f"{len(left_out)} of {len(paths)} images could not be read and were left out: {said}{more}\n")
    return 1 if len(left_out) == len(paths) else 0


def find_images(given: Iterable[Path]) -> list[Path]:
    """The image files that are meant: files as they are, all that is in folders, and what lists name."""
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = [
                Path(folder) / name
                for folder, _, names in os.walk(path)
                for name in names
                if Path(name).suffix.lower() in IMAGE_SUFFIXES and not name.startswith(".")
            ]
            if not inside:
                raise ValueError(f"Expected images in {path}, but there are none.")
            found += sorted(inside)
        elif path.suffix.lower() in {".txt", ".csv", ".tsv"}:
            found += [path.parent / name for name in _listed(path)]
        else:
            found.append(path)
    if not found:
        raise ValueError("Expected images to predict, but got none.")
    return found


def _check_there(paths: Iterable[Path]) -> None:
    """Say what is missing before anything is printed."""
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        raise UnreadableImageError(missing.absolute(), "it does not exist")


def _listed(path: Path) -> list[str]:
    if path.suffix.lower() == ".txt":
        return [line.strip() for line in read_lines(path) if line.strip()]
    return [row["path"] for row in read_table(path, ["path"]) if row.get("path")]


def _write_csv(rows: Iterable[Row], top: int, file: TextIO) -> None:
    """A line an image: its path, then label and probability of each of its classes."""
    writer, rows = csv.writer(file, lineterminator="\n"), iter(rows)
    first = list(islice(rows, 1))  # which may fail; then nothing was printed
    more = [f"{name}_{place}" for place in range(2, top + 1) for name in ("label", "probability")]
    writer.writerow(["image", "label", "probability", *more])
    for image, classes in chain(first, rows):
        writer.writerow([image, *(value for pair in classes for value in pair)])


def _write_json(rows: Iterable[Row], top: int, file: TextIO) -> None:  # noqa: ARG001 - rows have them
    """An array, an image a line, so that it can be read while it is written."""
    before = "["
    for image, classes in rows:
        found = [{"label": label, "probability": probability} for label, probability in classes]
        file.write(before + "\n" + json.dumps({"image": image, "predictions": found}, ensure_ascii=False))
        before = ","
    file.write("[]\n" if before == "[" else "\n]\n")


_WRITERS: dict[Form, Callable[[Iterable[Row], int, TextIO], None]] = {"csv": _write_csv, "json": _write_json}


@contextmanager
def _writing(out: Path | None) -> Iterator[TextIO]:
    """A file that is there whole or not at all, or what is printed."""
    if out is None:
        yield sys.stdout
        return
    if not out.absolute().parent.is_dir():
        raise FileNotFoundError(f"Expected `out` to be in a folder that is there, but got {out}.")
    with new_file(out) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        yield file


def _watched(out: Path | None) -> bool:
    """Whether somebody looks at a terminal that nothing else is printed to."""
    return sys.stderr.isatty() and (out is not None or not sys.stdout.isatty())


def _readable(path: Path | str) -> str:
    """A path as text that every encoding of Unicode takes, whatever bytes its name has."""
    return os.fsencode(path).decode("utf-8", "replace")


def run(arguments: Sequence[str]) -> int:
    """Parse, predict, print."""
    try:
        return call(predict, arguments, "longtail predict")
    except UnreadableImageError as error:
        raise error.with_hint() from error
