"""Feature vectors: files of arrays, tables with a column per feature, and their place in a data set."""

import math
import re
from array import array
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from longtail._checks import shown
from longtail._io import import_extra, new_file, open_tensors, reading
from longtail._program import some_of
from longtail.data.datasets.image_files import is_image
from longtail.data.datasets.rows import SPLITS, Rows, label_texts, split_names
from longtail.data.datasets.splits import ArrayImages
from longtail.data.datasets.tables import (
    FOR_TEXTS,
    TABLES,
    check_columns,
    column,
    is_parquet,
    open_text,
    read_columns,
)

FEATURES, LABEL, SPLIT, GROUP = "features", "label", "split", "group"
"""The usual names of columns and arrays."""
_CLASSES = "classes"
_SUFFIXES = (".npz", ".npy", ".safetensors")
_OTHER_NAMES = {FEATURES: ("x", "embeddings", "embedding", "data"), LABEL: ("labels", "y", "target", "targets")}
"""Other usual names of arrays, in small letters."""
_OF_PART = re.compile(rf"(?P<part>{'|'.join(SPLITS)})[._](.+)|(.+)[._](?P<end>{'|'.join(SPLITS)})", re.IGNORECASE)
"""The name of an array of one split: ``train.features``, ``x_train``."""
_BOOLEANS = {"true": 1.0, "false": 0.0}
_INDEX = "unnamed: 0", "__index_level_0__"
"""How an index of pandas is called; in a CSV file that pandas wrote it has no name."""
_SHOWN = 6  # columns that are named
_NAMED = 50  # columns without numbers that are named

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class FeatureVectors(ArrayImages):
    """Feature vectors in memory: in a data set they take the place of images.

    If they come from the columns of a table, ``columns`` has the names, else it is empty.

    Example:
        >>> vectors = FeatureVectors(torch.zeros(5, 384))
        >>> len(vectors), vectors[0].shape, vectors.subset(torch.tensor([4, 1])).pixels.shape
        (5, torch.Size([384]), torch.Size([2, 384]))
    """

    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.stored.ndim != 2 or self.stored.dtype != torch.float32 or self.stored.shape[1] == 0:
            raise ValueError(
                "Expected features to be float32 of shape (N, D), "
                f"but got {self.stored.dtype} of shape {tuple(self.stored.shape)}."
            )

    @property
    def size(self) -> tuple[int, int]:
        """Like an image of D channels and one pixel."""
        return 1, 1


def is_features(path: Path | str) -> bool:
    """Whether a file has feature vectors: ``.npz``, ``.npy``, ``.safetensors``, or a table with vectors or numbers."""
    path = Path(path)
    return path.suffix.lower() in _SUFFIXES or (path.is_file() and _is_table(path))


def read_features(
    path: Path | str, *, labelled: bool = True, label: str = LABEL, group: str | None = None
) -> Rows[FeatureVectors]:
    """Read a file of feature vectors; nothing in it is executed.

    Args:
        path: ``.npz`` or ``.safetensors`` with the arrays ``features`` ``(N, D)`` and ``labels`` ``(N,)``, and
            optionally ``split`` (train, val or test for each row) and ``classes`` (names); or with such a pair per
            split, called ``train.features``, ``train.labels``, ``test.features`` or ``X_train``, ``y_train``,
            ``X_test`` and so on. ``X``, ``data`` or ``embeddings`` and ``y`` or ``target`` are other names. ``.npy``
            with the labels in ``NAME.labels.npy`` or ``labels.npy`` beside it. A table, ``.csv``, ``.tsv`` or
            ``.parquet``, with a column of numbers per feature, or one of lists, and the columns ``label`` and
            optionally ``split``. Labels are class names, or class indices if there are ``classes``.
        labelled: whether labels, and groups, are needed.
        label: the array or column with the labels.
        group: the array or column with groups that must not be split.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Expected {path.absolute()} to be a file of features, but it does not exist.")
    notes: Sequence[str] = ()
    columns: Sequence[str] = ()
    with reading(path, "a file of features"):
        if path.suffix.lower() == ".npy":
            arrays = _read_npy(path, labelled)
        elif path.suffix.lower() in _SUFFIXES:
            arrays = _join_splits(path, read_arrays(path), [label] if group is None else [label, group], labelled)
        else:
            arrays, columns, notes = _read_table(path, labelled, label, group)
        rows = _rows(path, arrays, labelled, label, group if labelled else None)
        return replace(rows, samples=replace(rows.samples, columns=tuple(columns)), notes=tuple(notes))


def has_groups(path: Path | str) -> bool:
    """Whether a file of features has an array ``group``, as ``longtail embed --split-by`` writes."""
    path = Path(path)
    with suppress(Exception):  # reading the file says what is wrong with it
        if path.suffix.lower() == ".safetensors":
            with open_tensors(path) as tensors:
                return GROUP in tensors.keys()  # noqa: SIM118 - not a dictionary
        if path.suffix.lower() == ".npz":
            with ZipFile(path) as file:
                return f"{GROUP}.npy" in file.namelist()
    return False


def write_features(path: Path, rows: Rows[FeatureVectors]) -> None:
    """Write an ``.npz`` that :func:`read_features` reads."""
    arrays = {FEATURES: rows.samples.pixels.numpy(), SPLIT: np.array(rows.splits)}
    texts = {"labels": rows.labels, GROUP: rows.groups, _CLASSES: rows.class_names}
    arrays |= {name: np.array(values) for name, values in texts.items() if values}
    with new_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of an ``.npz`` or ``.safetensors`` file by name; nothing in it is executed."""
    if path.suffix.lower() == ".safetensors":
        with open_tensors(path) as tensors:
            found = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 - not a dictionary
        return {
            name: (t.float() if t.dtype.is_floating_point and t.itemsize < 4 else t).numpy()
            for name, t in found.items()
        }
    with reading(path, "an npz file of numbers or text"), path.open("rb") as file:
        try:
            arrays = np.load(file, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise ValueError("Expected an npz file of numbers or text, but it is an npy file; rename it.")
            return {name: one for name in arrays.files if isinstance(one := arrays[name], np.ndarray)}
        except OSError as error:  # about the content, since the file is open
            raise RuntimeError(str(error)) from None
        except ValueError as error:
            if "Object arrays" not in str(error):
                raise
            raise ValueError(
                f"Expected arrays of numbers or text in {path}, but one has Python objects, which are not read because "
                "they can run code; save `labels.astype(str)`."
            ) from None


def _read_npy(path: Path, labelled: bool) -> dict[str, Array]:
    beside = [path.with_suffix(".labels.npy"), path.with_name("labels.npy")]
    found = next((one for one in beside if one.is_file()), None)
    if found is None and labelled:
        raise FileNotFoundError(f"Expected the labels of {path} in {beside[0].name} or {beside[1].name} beside it.")
    arrays = {FEATURES: np.load(path, allow_pickle=False)}
    return arrays if found is None else arrays | {LABEL: np.load(found, allow_pickle=False)}


def _find(arrays: Mapping[str, Array], wanted: str, path: Path) -> str | None:
    """The array with this name, or the only one with another usual name of it."""
    small = {column(name): name for name in arrays}
    others = _OTHER_NAMES.get(column(wanted), ())
    found = [small[name] for name in (column(wanted), *others) if name in small]
    if len(found) > 1 and column(found[0]) not in {column(wanted), f"{column(wanted)}s"}:
        raise ValueError(f'Expected {path} to have one array "{wanted}", but it has {" and ".join(found)}; rename one.')
    return found[0] if found else None


def _join_splits(path: Path, arrays: dict[str, Array], others: Sequence[str], needed: bool) -> dict[str, Array]:
    """One array of features, of splits and of each name in ``others``, from arrays per split if there are such."""
    parts: dict[str, dict[str, Array]] = {}
    for name, values in arrays.items():
        match = _OF_PART.fullmatch(name)
        if match is not None:
            part = SPLITS[(match["part"] or match["end"]).lower()]
            parts.setdefault(part, {})[match[2] or match[3]] = values
    parts = {part: found for part, found in parts.items() if _find(found, FEATURES, path) is not None}
    if not parts or _find(arrays, FEATURES, path) is not None:
        return arrays
    whole: dict[str, Array] = {_CLASSES: arrays[_CLASSES]} if _CLASSES in arrays else {}
    for name in (FEATURES, *others):
        joined: dict[str, Array] = {}
        for part, found in parts.items():
            place = _find(found, name, path)
            if place is not None:
                one = found[place]
                joined[part] = one.reshape(-1) if name != FEATURES and one.shape[1:] == (1,) else one
            elif needed:
                raise ValueError(f'Expected {path} to have "{name}" of {part}, but it has {", ".join(arrays)}.')
        if name == FEATURES:
            whole[SPLIT] = np.repeat(list(joined), list(map(len, joined.values())))
        if len(joined) == len(parts):
            whole[name] = np.concatenate(list(joined.values()))
    return whole


def _rows(path: Path, arrays: dict[str, Array], labelled: bool, label: str, group: str | None) -> Rows[FeatureVectors]:
    has = f"it has {shown(list(arrays)) or 'nothing'}"
    if "indptr" in arrays:
        raise ValueError(
            f"Expected numbers of shape (N, D) in {path}, but it has a sparse matrix; save `features=matrix.toarray()` "
            "and `labels` with numpy.savez, or fewer features by sklearn.decomposition.TruncatedSVD."
        )
    place, known = _find(arrays, FEATURES, path), _find(arrays, label, path)
    if place is None or (labelled and known is None):
        what = FEATURES if place is None else "labels" if label == LABEL else label
        only = "" if place is None else "; features without labels are only for `longtail predict`"
        raise ValueError(
            f'Expected {path} to have "{what}", but {has}; `numpy.savez(file, features=…, labels=…)` writes such '
            f"names{only}."
        )
    vectors = _vectors(path, place, arrays[place])
    texts = [] if known is None else label_texts(arrays[known], len(vectors), f'"{known}" of {path}')
    splits = ["train"] * len(vectors)
    if SPLIT in arrays:
        splits = split_names(path, arrays[SPLIT].tolist())
        if len(splits) != len(vectors):
            raise ValueError(f'Expected "split" of {path} for each of {len(vectors)} rows, but got {len(splits)}.')
    names = (
        tuple(label_texts(arrays[_CLASSES], len(arrays[_CLASSES]), f'"{_CLASSES}" of {path}'))
        if _CLASSES in arrays
        else None
    )
    groups: list[str] = []
    if group is not None:
        found = arrays.get(group, arrays.get(column(group)))
        if found is None or found.shape != (len(vectors),):
            raise ValueError(f'Expected an array "{group}" in {path} with a value per row, but {has}.')
        groups = list(map(str, found.tolist()))
    return Rows(FeatureVectors(vectors), texts, splits, groups, names)


def _vectors(path: Path, name: str, features: Array) -> Tensor:
    if features.ndim != 2 or features.dtype.kind not in "iufb" or 0 in features.shape:
        hint = ""
        if features.ndim > 2:
            hint = (
                "; save them as `x.reshape(len(x), -1)`; images are read from files, or by `longtail.data.from_dataset`"
            )
        raise ValueError(
            f'Expected "{name}" of {path} to be numbers of shape (N, D), but got {features.dtype} of shape '
            f"{features.shape}{hint}."
        )
    with np.errstate(over="ignore"):  # infinity is refused below
        vectors = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
    bad = (~vectors.isfinite().all(1)).nonzero().flatten().tolist()
    if bad:
        raise ValueError(
            f"Expected finite features in {path}, within the range of float32, but {len(bad)} rows are not, the first "
            f"is row {bad[0] + 1}."
        )
    return vectors


# --- tables


def _is_table(path: Path) -> bool:
    """Whether a table has vectors, or numbers and no images: no column ``path``, and no image in the first row."""
    if is_parquet(path):
        if _vector_column(path) is not None:
            return True
        names, first = _first_parquet_row(path)
        texts = [cell for cell in first if isinstance(cell, str)]
        return "path" not in names and len(texts) < len(first) and not any(map(is_image, texts))
    if path.suffix.lower() in TABLES:
        with open_text(path) as (header, rows):
            names, first = list(map(column, header)), next(rows, [])
            return "path" not in names and _is_numeric(first) and not any(map(is_image, [*names, *first]))
    return False


def _read_table(
    path: Path, labelled: bool, label: str, group: str | None
) -> tuple[dict[str, Array], list[str], list[str]]:
    """Return the arrays of a table by name, as those of an ``.npz``, the columns of features, and a note on them."""
    others = [name for name in (label, group) if name is not None]
    read = _read_parquet if is_parquet(path) else _read_text
    names, places, vectors, texts = read(path, others if labelled else [], others)
    arrays = {name: np.array(texts[name], dtype=object) for name in (*others, SPLIT) if name in texts}
    arrays[FEATURES] = vectors
    if not places:
        return arrays, [], []
    columns = [names[place] for place in places]
    left = [repr(name) for name in names if _is_index(name)]
    left_out = f"; {' and '.join(left)} is left out as an index of rows" if left else ""
    note = f"Read {len(places):,} columns as features: {some_of(columns, _SHOWN)}{left_out}."
    return arrays, columns, [note]


def _read_text(
    path: Path, needed: Sequence[str], others: Sequence[str]
) -> tuple[list[str], list[int], Array, dict[str, list[Any]]]:
    """Return the names of all columns, the places of those of features, their numbers, and others by name."""
    with open_text(path, needed) as (header, rows):
        if _is_numeric(header):
            raise ValueError(
                f"Expected the first line of {path} to name the columns, such as {LABEL} for the classes, but got "
                f"{shown(list(header))}."
            )
        found, names = check_columns(path, header, needed, [*others, SPLIT]), list(map(str.strip, header))
        places = _features(path, header, found.values())
        texts = {wanted: list[str]() for wanted in found}
        cells = [(header.index(name), texts[wanted]) for wanted, name in found.items()]
        numbers, wrong = array("d"), dict[str, str]()
        chosen = itemgetter(*places, places[0])  # with one place it would not return a tuple
        for number, row in enumerate(rows, 1):
            try:
                numbers.extend(map(float, chosen(row)[:-1]))
            except ValueError:
                del numbers[(number - 1) * len(places) :]
                numbers.extend(_number(wrong, names[place], number, row[place]) for place in places)
            for place, values in cells:
                values.append(row[place])
    _refuse(path, wrong)
    return names, places, np.frombuffer(numbers).reshape(-1, len(places)), texts


def _features(path: Path, names: Sequence[str], others: Collection[str]) -> list[int]:
    places = [place for place, name in enumerate(names) if name not in others and not _is_index(name)]
    if not places:
        raise ValueError(f"Expected {path} to have columns of features, but got {', '.join(names)}.")
    return places


def _is_index(name: str) -> bool:
    return column(name) in {"", *_INDEX}


def _number(wrong: dict[str, str], name: str, row: int, cell: Any) -> float:
    """Return the number in a cell; if there is none, note it in ``wrong``, once per column."""
    value = _BOOLEANS.get(str(cell).strip().lower())
    if value is not None:
        return value
    with suppress(ValueError, TypeError):
        return float(cell)
    text = "" if cell is None else str(cell).strip()
    wrong.setdefault(name, f'"{name}" has {repr(text[:40]) if text else "none"} in row {row}')
    return math.nan


def _refuse(path: Path, wrong: Mapping[str, str]) -> None:
    if wrong:
        raise ValueError(
            f"Expected numbers in the columns of {path}, but {some_of([*wrong.values()], _NAMED)}; fill, encode (for "
            f"example with pandas.get_dummies) or remove such columns; {FOR_TEXTS}."
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
    vectors, found = _vector_column(path), dict[str, str]()

    def chosen(names: Sequence[str]) -> list[str]:
        found.update(check_columns(path, names, needed, [*others, SPLIT]))
        return [name for name in names if vectors is None or name in {vectors, *found.values()}]

    table = read_columns(path, chosen)
    names = list(map(str.strip, table))
    texts = {name: table[one] for name, one in found.items()}
    if vectors is None:
        places = _features(path, list(table), found.values())
        return names, places, _parquet_matrix(path, names, list(table.values()), places), texts
    lengths = [0 if row is None else len(row) for row in table[vectors]]
    wrong = next((row for row, length in enumerate(lengths) if length != lengths[0]), None)
    if wrong is not None:
        raise ValueError(
            f"Expected the vectors in {path} to have one length, but row 1 has {lengths[0]} numbers and row "
            f"{wrong + 1} has {lengths[wrong]}."
        )
    return names, [], np.array(table[vectors], dtype=np.float64), texts


def _parquet_matrix(path: Path, names: list[str], values: list[list[Any]], places: list[int]) -> Array:
    vectors, wrong = np.empty((len(values[0]), len(places))), dict[str, str]()
    for at, place in enumerate(places):
        try:
            found = np.array(values[place])
            vectors[:, at] = found if found.dtype.kind in "iufb" else [*map(float, values[place])]
        except (ValueError, TypeError):
            vectors[:, at] = [_number(wrong, names[place], row, cell) for row, cell in enumerate(values[place], 1)]
    _refuse(path, wrong)
    return vectors
