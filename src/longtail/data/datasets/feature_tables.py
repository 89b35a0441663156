"""Tables with a column per feature, or a column of vectors: CSV, TSV and Parquet."""

import csv
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from longtail._io import import_extra, reading
from longtail.data.datasets.image_files import check_columns, column, is_image, read_parquet

FEATURES, LABEL, SPLIT = "features", "label", "split"
"""The usual names of columns and arrays."""
_SUFFIXES = (".csv", ".tsv")
_BOOLEANS = {"true": 1.0, "false": 0.0}
_INDEX = "unnamed: 0", "__index_level_0__"
"""How an index of pandas is called; in a CSV file that pandas wrote it has no name."""
_SHOWN = 3  # columns that are named at either end

Array = np.ndarray[Any, Any]


def is_feature_table(path: Path) -> bool:
    """Whether a table has vectors, or numbers and no images: no column ``path``, and no image in the first row."""
    if path.suffix.lower() == ".parquet":
        if _vector_column(path) is not None:
            return True
        names, first = _first_parquet_row(path)
        texts = [cell for cell in first if isinstance(cell, str)]
        return "path" not in names and len(texts) < len(first) and not any(map(is_image, texts))
    if path.suffix.lower() in _SUFFIXES:
        with suppress(UnicodeDecodeError, csv.Error), _text_rows(path) as rows:
            names, first = list(map(column, next(rows, []))), list(next(rows, []))
            return "path" not in names and _is_numeric(first) and not any(map(is_image, [*names, *first]))
    return False


def read_feature_table(
    path: Path, labelled: bool, label: str, group: str | None
) -> tuple[dict[str, Array], list[str], list[str]]:
    """Return the arrays of a table by name, as those of an ``.npz``, the columns of features, and a note on them."""
    others = [column(name) for name in (label, group) if name is not None]
    read = _read_parquet if path.suffix.lower() == ".parquet" else _read_text
    names, places, vectors, texts = read(path, others if labelled else [], others)
    arrays = {name: np.array(texts[name], dtype=object) for name in (*others, SPLIT) if name in texts}
    arrays[FEATURES] = vectors
    if not places:
        return arrays, [], []
    columns = [names[place] for place in places]
    shown = columns if len(columns) <= 2 * _SHOWN + 1 else [*columns[:_SHOWN], "…", *columns[-_SHOWN:]]
    left = [repr(name) for name in names if _is_index(name)]
    left_out = f"; {' and '.join(left)} is left out as an index of rows" if left else ""
    note = f"Read {len(places):,} columns as features: {', '.join(shown)}{left_out}."
    return arrays, columns, [note]


def _read_text(
    path: Path, needed: Sequence[str], others: Sequence[str]
) -> tuple[list[str], list[int], Array, dict[str, list[Any]]]:
    """Return the names of all columns, the places of those of features, their numbers, and the other columns."""
    with _text_rows(path) as rows:
        header = next(rows, [])
        if _is_numeric(header):
            shown = ", ".join(header[:_SHOWN])
            raise ValueError(
                f"Expected the first row of {path} to have the names of columns, but got {shown}, …; write such a row, "
                "with `label` above the classes."
            )
        names = check_columns(path, header, needed)
        places = _features(path, names, others)
        numbers, cells = array("d"), {name: list[str]() for name in (*others, SPLIT) if name in names}
        chosen = itemgetter(*places, places[0])  # with one place it would not return a tuple
        for number, row in enumerate(rows, 1):
            if len(row) != len(names):
                raise ValueError(
                    f"Expected {len(names)} values in row {number} of {path}, as in its first line, but got {len(row)}."
                )
            try:
                numbers.extend(map(float, chosen(row)[:-1]))
            except ValueError:
                del numbers[(number - 1) * len(places) :]
                numbers.extend(_number(path, names[place], number, row[place]) for place in places)
            for name, values in cells.items():
                values.append(row[names.index(name)])
    return names, places, np.frombuffer(numbers).reshape(-1, len(places)), cells


@contextmanager
def _text_rows(path: Path) -> Iterator[Iterator[list[str]]]:
    """The rows of a text that are not blank; what separates the cells is what occurs most in the first line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        usual = "\t" if path.suffix.lower() == ".tsv" else ","
        file.seek(0)
        yield filter(any, csv.reader(file, delimiter=max(usual, *"\t,;", key=first.count)))


def _features(path: Path, names: Sequence[str], others: Sequence[str]) -> list[int]:
    places = [place for place, name in enumerate(names) if name not in {*others, SPLIT} and not _is_index(name)]
    if not places:
        raise ValueError(f"Expected {path} to have columns of features, but got {', '.join(names)}.")
    return places


def _is_index(name: str) -> bool:
    return not name or name in _INDEX


def _number(path: Path, name: str, row: int, cell: Any) -> float:
    value = _BOOLEANS.get(str(cell).strip().lower())
    if value is not None:
        return value
    with suppress(ValueError, TypeError):
        return float(cell)
    if cell is None or not str(cell).strip():
        raise ValueError(f"Expected a number in column `{name}` of {path}, but row {row} has none; fill or remove it.")
    raise ValueError(
        f"Expected numbers in column `{name}` of {path}, but row {row} has {str(cell)[:40]!r}; remove the column or "
        f"encode it, for example with pandas.get_dummies; `label_column` says which column has the classes."
    )


def _is_numeric(cells: Sequence[Any]) -> bool:
    for cell in cells:
        with suppress(ValueError, TypeError):
            float(cell)
            return True
    return False


def _vector_column(path: Path) -> str | None:
    """The column with lists of numbers of a Parquet file: `features`, or the only one."""
    types, parquet = import_extra("pyarrow", "parquet").types, import_extra("pyarrow.parquet", "parquet")
    with reading(path, "a Parquet file"):
        schema = parquet.read_schema(path)
    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    lists = [one.name for one in schema if any(test(one.type) for test in kinds)]
    alone = len(lists) == 1 and "path" not in map(column, schema.names)
    return next((name for name in lists if column(name) == FEATURES), lists[0] if alone else None)


def _first_parquet_row(path: Path) -> tuple[list[str], list[Any]]:
    """The names of the columns, and the first value of each column of numbers or texts."""
    types, parquet = import_extra("pyarrow", "parquet").types, import_extra("pyarrow.parquet", "parquet")
    with reading(path, "a Parquet file"), parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        known = (types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean)
        wanted = [one.name for one in schema if any(test(one.type) for test in known)]
        batch = next(file.iter_batches(batch_size=1, columns=wanted, use_threads=False), None)
        first = [] if batch is None else [values[0] for values in batch.to_pydict().values() if values]
        return list(map(column, schema.names)), first


def _read_parquet(
    path: Path, needed: Sequence[str], others: Sequence[str]
) -> tuple[list[str], list[int], Array, dict[str, list[Any]]]:
    vectors, used = _vector_column(path), {*others, SPLIT}

    def chosen(names: list[str]) -> list[str]:
        known = zip(names, check_columns(path, names, needed), strict=True)
        return [name for name, one in known if vectors is None or name == vectors or one in used]

    table = read_parquet(path, chosen)
    names = list(map(column, table))
    texts = dict(zip(names, table.values(), strict=True))
    if vectors is None:
        places = _features(path, names, others)
        return names, places, _parquet_matrix(path, list(table), list(table.values()), places), texts
    lengths = [0 if row is None else len(row) for row in table[vectors]]
    wrong = next((row for row, length in enumerate(lengths) if length != lengths[0]), None)
    if wrong is not None:
        raise ValueError(
            f"Expected the vectors in {path} to have one length, but row 1 has {lengths[0]} numbers and row "
            f"{wrong + 1} has {lengths[wrong]}."
        )
    return names, [], np.array(table[vectors], dtype=np.float64), texts


def _parquet_matrix(path: Path, names: list[str], values: list[list[Any]], places: list[int]) -> Array:
    vectors = np.empty((len(values[0]), len(places)))
    for at, place in enumerate(places):
        try:
            found = np.array(values[place])
            vectors[:, at] = found if found.dtype.kind in "iufb" else [*map(float, values[place])]
        except (ValueError, TypeError):
            vectors[:, at] = [_number(path, names[place], row, cell) for row, cell in enumerate(values[place], 1)]
    return vectors
