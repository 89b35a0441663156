"""Tables with a line of column names: ``.csv`` with commas, ``.tsv`` with tabs."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from longtail.data.datasets.readers.lists import read_lines

__all__ = ["column", "columns_of", "read_table"]

_DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons"}


def read_table(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a table, each by column.

    Args:
        path: the file; its suffix says what is between the columns.
        needed: columns that must be there.
    """
    text = "\n".join(read_lines(path))
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    rows = _rows(text, delimiter)
    header = rows[0] if rows else []
    for other, found in _DELIMITERS.items():
        if _lacking(header, needed) and rows and not _lacking(_rows(text, other)[0], needed):
            raise ValueError(
                f"Expected {_DELIMITERS[delimiter]} between the columns of {path}, but got {found}: "
                f"{text.strip().splitlines()[0][:80]!r}."
            )
    columns = columns_of(path, header, needed)
    if any(name != name.strip() for name in header):  # then blanks beside a delimiter are no part of the cells either
        rows = [[cell.strip() for cell in row] for row in rows]
    return [dict(zip(columns, row, strict=False)) for row in rows[1:]]


def columns_of(path: Path, header: Sequence[str], needed: Sequence[str]) -> list[str]:
    """The columns that a header names, each once; those that are needed must be there."""
    if _lacking(header, needed):
        named = " and ".join(needed)
        what = f"the columns {named}" if len(needed) > 1 else f"a column `{named}`"
        raise ValueError(f"Expected {path} to have {what}, but got {', '.join(header) or 'none'}.")
    columns = list(map(column, header))
    for name, times in Counter(columns).items():
        if name and times > 1:
            raise ValueError(f"Expected {path} to have one column `{name}`, but it has {times}.")
    return columns


def column(name: str) -> str:
    """A column by its name in a header, in which neither case nor blanks around it matter."""
    return name.strip().lower()


def _rows(text: str, delimiter: str) -> list[list[str]]:
    return [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]


def _lacking(header: Sequence[str], needed: Sequence[str]) -> bool:
    return not set(needed) <= set(map(column, header))
