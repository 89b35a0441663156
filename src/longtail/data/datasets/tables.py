"""Tables (CSV, TSV and Parquet), their columns by name."""

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longtail._io import import_extra, reading
from longtail._program import some_of

TABLES = (".csv", ".tsv", ".parquet")
"""Suffixes of tables."""
_NAMED = 8  # columns that an error names
_LONGEST = 40  # characters of such a name
FOR_TEXTS = "texts need `--text COLUMN` of `longtail data describe` or `longtail embed`"
"""A hint for tables of texts."""


def column(name: str) -> str:
    """Return a column name in lower case without surrounding spaces."""
    return name.strip().lower()


def is_parquet(path: Path) -> bool:
    """Whether a table is a Parquet file."""
    return path.suffix.lower() == ".parquet"


def read_table(path: Path, needed: Sequence[str], others: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return the rows of a table, each as a dictionary of texts by column.

    Args:
        path: the file; ``.csv`` and ``.tsv`` have commas, tabs or semicolons between the columns.
        needed: columns that must exist; case and surrounding spaces do not matter.
        others: columns that are read if they exist.
    """
    found: dict[str, str] = {}

    def choose(names: Sequence[str]) -> list[str]:
        found.update(check_columns(path, names, needed, others))
        return list(dict.fromkeys(found.values()))

    with reading(path, "a table"):
        columns = read_columns(path, choose, needed)
        cells = zip(*(map(_text, columns[name]) for name in found.values()), strict=True)
        return [dict(zip(found, row, strict=True)) for row in cells]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)


def read_columns(
    path: Path, choose: Callable[[Sequence[str]], Sequence[str]] = list, needed: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """Return the columns of a table by name; cells are texts, or in a Parquet file values. Parquet needs pyarrow.

    Args:
        path: the file.
        choose: selects the columns to read from the names of all, by default all.
        needed: columns that tell what separates the cells of a text.
    """
    if is_parquet(path):
        return _read_parquet(path, choose)
    with open_text(path, needed) as (header, rows):
        names = check_once(path, choose(header))
        columns = list(zip(*rows, strict=True)) or [()] * len(header)
    return {name: list(columns[header.index(name)]) for name in names}


@contextmanager
def open_text(path: Path, needed: Sequence[str] = ()) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """Open a ``.csv`` or ``.tsv`` file as its first row and its other rows; rows without a value are skipped.

    The delimiter is the comma, tab or semicolon that gives the ``needed`` columns, or else the one that occurs most
    often in the first line. If names of columns have spaces around them, the cells lose theirs, too.
    """
    with reading(path, "a table"), path.open(encoding="utf-8-sig") as file:
        try:
            first = next((line for line in file if not line.isspace()), "")
            file.seek(0)
            rows = filter(any, csv.reader(file, delimiter=_delimiter(path, first, needed)))
            header = next(rows, [])
            yield header, _checked(path, header, rows)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, error) from None


def _delimiter(path: Path, line: str, needed: Sequence[str]) -> str:
    usual = "\t" if path.suffix.lower() == ".tsv" else ","

    def fit(one: str) -> tuple[bool, int, bool]:
        names = next(csv.reader([line], delimiter=one), [])
        return not _lacks(names, needed), line.count(one), one == usual

    return max(",\t;", key=fit)


def _checked(path: Path, header: Sequence[str], rows: Iterable[list[str]]) -> Iterator[list[str]]:
    padded = any(name != name.strip() for name in header)
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise ValueError(
                f"Expected {len(header)} values in row {number} of {path}, as in its first line, but got {len(row)}."
            )
        yield [cell.strip() for cell in row] if padded else row


def check_columns(
    path: Path, header: Sequence[str], needed: Sequence[str], others: Sequence[str] = ()
) -> dict[str, str]:
    """Return the name in the header of each column that is needed, and of others that exist.

    It raises an error if a needed column is missing or a name is repeated; case and surrounding spaces do not matter.
    """
    if _lacks(header, needed):
        *others, last = needed
        what = f"the columns {', '.join(others)} and {last}" if others else f'a column "{last}"'
        options = [f"`{name}_column`" for name in ("path", "label") if name in needed and _lacks(header, [name])]
        hint = f"; {' and '.join(options)} {'names another' if len(options) < 2 else 'name others'}" if options else ""
        if "path" in needed and not _lacks(header, needed[1:]):
            hint += f"; {FOR_TEXTS}"
        hint += "" if is_parquet(path) else "; the first line must name the columns"
        names = some_of([name[:_LONGEST] for name in header], _NAMED) or "none"
        raise ValueError(f"Expected {path} to have {what}, but got {names}{hint}.")
    check_once(path, list(filter(None, map(str.strip, header))))
    found: dict[str, str] = {}
    for wanted in (*needed, *others):
        same = [name for name in header if column(name) == column(wanted)]
        check_once(path, [wanted] * len(same))
        if same:
            found[wanted] = same[0]
    return found


def check_once(path: Path, names: Sequence[str]) -> Sequence[str]:
    """Return the names of columns; raise if one is repeated."""
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f'Expected {path} to have one column "{name}", but it has {times}.')
    return names


def _lacks(header: Sequence[str], needed: Sequence[str]) -> bool:
    return not set(map(column, needed)) <= set(map(column, header))


def _read_parquet(path: Path, choose: Callable[[Sequence[str]], Sequence[str]]) -> dict[str, list[Any]]:
    parquet = import_extra("pyarrow.parquet", "parquet")
    content = path.read_bytes()  # errors of the system; those of Arrow's own reading are about the content
    with reading(path, "a whole Parquet file"):
        try:
            with parquet.ParquetFile(import_extra("pyarrow", "parquet").BufferReader(content)) as file:
                names = check_once(path, choose(file.schema_arrow.names))
                table = file.read(names, use_threads=False)  # Arrow's threads are not needed, and would delay the exit
                return {name: table[name].to_pylist() for name in names}
        except OSError as error:  # Arrow's word for what it cannot decode
            raise RuntimeError(str(error)) from None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file without line ends."""
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")  # splitlines also splits at rare characters
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from None


def _not_utf8(path: Path, error: UnicodeDecodeError) -> ValueError:
    return ValueError(f"Expected {path} to be text in UTF-8, but byte {error.start} is not; save it as UTF-8.")
