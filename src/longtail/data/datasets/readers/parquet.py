"""Tables in Parquet files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["read_parquet"]


def read_parquet(path: Path, choose: Callable[[list[str]], list[str]] = list) -> dict[str, list[Any]]:
    """The columns of a file, by name.

    Read in this thread: such tables gain nothing from Arrow's pool of threads, and so nobody waits for it.

    Args:
        path: the file.
        choose: which of the names that it has are read; all unless given.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install pyarrow.") from error
    try:
        with parquet.ParquetFile(path) as file:
            names = choose(file.schema_arrow.names)
            table = file.read(names, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"Expected {path} to be a whole Parquet file, but it is not: {error}.") from None
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"Expected {path} to have one column `{twice}`, but it has {names.count(twice)}.")
    return {name: table[name].to_pylist() for name in table.column_names}
