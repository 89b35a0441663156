"""Readers of texts: your own tables, and data sets in the files of their authors."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch

from longtail._io import read_json
from longtail.data.datasets.features import LABEL, SPLIT
from longtail.data.datasets.image_files import split_lists
from longtail.data.datasets.rows import Rows, split_names
from longtail.data.datasets.splits import DataSet, Split, Texts
from longtail.data.datasets.tables import TABLES, column, read_lines, read_table

Row = tuple[str, str, str]
"""The place of a text, for errors; the text; its label."""


def read_texts(
    path: Path | str, text: str, *, labelled: bool = False, label: str = LABEL, group: str | None = None
) -> Rows[Texts]:
    """Read a table of texts, ``.csv``, ``.tsv`` or ``.parquet``; splits are in ``split``, if there is such a column.

    Texts without a label, if there is no column ``label``, can be predicted but not trained on.

    Args:
        path: the table, or a folder with tables named ``train``, ``val`` and ``test``.
        text: the column with the texts.
        labelled: whether labels are needed.
        label: the column with the labels.
        group: the column with groups that must not be split.
    """
    path = Path(path)
    tables: Mapping[str | None, Path] = split_lists(path) if path.is_dir() else {None: path}
    if not tables or not all(one.is_file() and one.suffix.lower() in TABLES for one in tables.values()):
        raise ValueError(
            f"Expected {path} to be a table ({', '.join(TABLES)}), or a folder with tables named train, val and test, "
            "but it is not."
        )
    texts, labels, splits, groups = (list[str]() for _ in range(4))
    for part, table in tables.items():
        always = labelled or column(label) != LABEL
        needed = [name for name in (text, label if always else None, group) if name is not None]
        rows = read_table(table, needed, [label, SPLIT])
        if not rows:
            raise ValueError(f"Expected {table} to have rows, but it has none.")
        wanted = [name for name in (*needed, label) if name in rows[0]]
        for number, row in enumerate(rows, 1):
            for name in wanted:
                if not row[name].strip():
                    raise ValueError(f'Expected a value in column "{name}" of {table}, but row {number} has none.')
        texts += [row[text] for row in rows]
        labels += [row[label] for row in rows] if label in wanted else []
        groups += [] if group is None else [row[group] for row in rows]
        splits += split_names(table, [row.get(SPLIT) for row in rows], part)
    if 0 < len(labels) < len(texts):
        raise ValueError(f'Expected all tables in {path} to have a column "{label}", or none, but some have it.')
    return Rows(Texts(tuple(texts)), labels, splits, groups)


def read_trec(folder: Path) -> DataSet:
    """Read the TREC questions, with their 50 fine classes."""
    files = {"train": "train_5500.label", "test": "TREC_10.label"}
    return _from_rows("trec", folder, {part: trec_rows(folder / name) for part, name in files.items()})


def trec_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file of TREC: `COARSE:fine question` per line, in Latin-1."""
    for number, line in enumerate(path.read_text(encoding="latin1").split("\n"), 1):
        label, _, text = line.rstrip("\r").partition(" ")
        if line.strip():
            yield f"line {number} of {path}", text, label if ":" in label else ""


def read_goemotions(folder: Path) -> DataSet:
    """Read GoEmotions, without the comments that have several labels."""
    names = tuple(name for line in read_lines(folder / "emotions.txt") if (name := line.strip()))
    files = {"train": "train.tsv", "val": "dev.tsv", "test": "test.tsv"}

    def rows(path: Path) -> Iterator[Row]:
        for number, line in enumerate(read_lines(path), 1):
            text, labels, *_ = (*line.rstrip("\r").split("\t"), "", "")
            if line.strip() and "," not in labels:
                known = labels.isascii() and labels.isdigit() and int(labels) < len(names)
                yield f"line {number} of {path}", text, names[int(labels)] if known else labels

    note = "Comments with several emotions are left out."
    return _from_rows("goemotions", folder, {p: rows(folder / name) for p, name in files.items()}, names, note)


def read_banking77(folder: Path) -> DataSet:
    """Read Banking77."""

    def rows(path: Path) -> Iterator[Row]:
        for number, row in enumerate(read_table(path, ["text", "category"]), 1):
            yield f"row {number} of {path}", row["text"], row["category"]

    return _from_rows("banking77", folder, {part: rows(folder / f"{part}.csv") for part in ("train", "test")})


def read_clinc150(folder: Path) -> DataSet:
    """Read the imbalanced version of CLINC150, without the texts that are out of scope."""
    path = folder / "data_imbalanced.json"
    content: dict[str, list[list[str]]] = read_json(path, {part: [[str]] for part in ("train", "val", "test")})

    def rows(part: str) -> Iterator[Row]:
        for number, row in enumerate(content[part]):
            text, label, *_ = (*row, "", "")
            yield f"item {number} of `{part}` in {path}", text, label

    parts = {part: rows(part) for part in ("train", "val", "test")}
    return _from_rows("clinc150-imbalanced", folder, parts, note="Texts that are out of scope are left out.")


def _from_rows(
    name: str, folder: Path, parts: Mapping[str, Iterable[Row]], class_names: tuple[str, ...] = (), note: str = ""
) -> DataSet:
    """Return the data set of rows; by default, the classes are the labels of the training rows, sorted."""
    splits: dict[str, Split] = {}
    for part, rows in parts.items():
        found = list(rows)
        class_names = class_names or tuple(sorted({label for _, _, label in found}))
        index = {label: c for c, label in enumerate(class_names) if label}
        for place, text, label in found:
            if not text.strip() or label not in index:
                raise ValueError(
                    f"Expected a text and one of {len(index)} classes in {place}, but got {text[:40]!r} and {label!r}."
                )
        labels = torch.tensor([index[label] for _, _, label in found], dtype=torch.int64)
        splits[part] = Split(Texts(tuple(text for _, text, _ in found)), labels)
    if not splits["train"]:
        raise ValueError(f"Expected {folder} to have training texts, but it has none.")
    return DataSet(name, class_names, **splits, notes=(note,) * bool(note))  # type: ignore[arg-type]
