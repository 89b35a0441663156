"""Feature vectors, for example embeddings of a pretrained network: files of them, and their place in a data set."""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail._io import import_extra, new_file, open_tensors, reading
from longtail.data.datasets.image_files import check_columns, column, read_parquet, read_table
from longtail.data.datasets.splits import ArrayImages

__all__ = [
    "FEATURES",
    "FeatureVectors",
    "StoredFeatures",
    "is_features",
    "read_features",
    "read_texts",
    "write_features",
]

FEATURES = "features"
"""The array or column of feature vectors."""
_LABELS, _SPLIT, _CLASSES = ("labels", "label"), "split", "classes"
_PARTS = ("train", "val", "test")
_SUFFIXES = (".npz", ".npy", ".safetensors")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class FeatureVectors(ArrayImages):
    """Feature vectors in memory: in a data set they take the place of images.

    Example:
        >>> vectors = FeatureVectors(torch.zeros(5, 384))
        >>> len(vectors), vectors[0].shape, vectors.subset(torch.tensor([4, 1])).pixels.shape
        (5, torch.Size([384]), torch.Size([2, 384]))
    """

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


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """The content of a file of features."""

    features: Tensor
    """float32 ``(N, D)``."""
    labels: list[str]
    """Class indices or names; empty if the file has none and need not."""
    splits: list[str]
    """``train``, ``val`` or ``test`` for each row."""
    class_names: tuple[str, ...] | None
    """If the file has them; labels are then among them."""
    groups: list[str]
    """Of each row, such as its patient; empty unless they are wanted."""


def is_features(path: Path | str) -> bool:
    """Whether a file has feature vectors: ``.npz``, ``.npy``, ``.safetensors``, or Parquet with a column `features`."""
    path = Path(path)
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return path.suffix.lower() in _SUFFIXES
    parquet = import_extra("pyarrow.parquet", "parquet")
    with reading(path, "a Parquet file"):
        return FEATURES in map(column, parquet.read_schema(path).names)


def read_features(path: Path | str, *, labelled: bool = True, group: str | None = None) -> StoredFeatures:
    """Read a file of feature vectors; nothing in it is executed.

    Args:
        path: ``.npz`` or ``.safetensors`` with the arrays ``features`` ``(N, D)`` and ``labels`` ``(N,)``, and
            optionally ``split`` (train, val or test for each row) and ``classes`` (names); or with such a pair per
            split, called ``train.features``, ``train.labels``, ``test.features`` and so on. ``.parquet`` with the
            columns ``features`` (lists of numbers), ``label`` and optionally ``split``. ``.npy`` with the labels in
            ``NAME.labels.npy`` or ``labels.npy`` beside it. Labels are class indices or names.
        labelled: whether labels are needed.
        group: the array or column with groups that must not be split.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Expected {path.absolute()} to be a file of features, but it does not exist.")
    with reading(path, "a file of features"):
        arrays = _READERS[path.suffix.lower()](path, labelled, group)
        return _checked(path, _join_splits(path, arrays, group), labelled, group)


def write_features(path: Path, stored: StoredFeatures) -> None:
    """Write an ``.npz`` that :func:`read_features` reads."""
    arrays = {FEATURES: stored.features.numpy(), _LABELS[0]: np.array(stored.labels), _SPLIT: np.array(stored.splits)}
    if stored.groups:
        arrays["group"] = np.array(stored.groups)
    if stored.class_names is not None:
        arrays[_CLASSES] = np.array(stored.class_names)
    with new_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_texts(path: Path | str, text_column: str) -> tuple[list[str], list[str], list[str]]:
    """Return texts, labels and splits of a table, ``.csv``, ``.tsv`` or ``.parquet``.

    Args:
        path: the table; labels are in the column ``label``, and splits in ``split``, if there is one.
        text_column: the column with the texts.
    """
    path, text = Path(path), column(text_column)
    if not path.is_file() or path.suffix.lower() not in {".csv", ".tsv", ".parquet"}:
        raise ValueError(f"Expected {path} to be a table, .csv, .tsv or .parquet, but it is not.")
    if path.suffix.lower() == ".parquet":
        found = read_parquet(path, lambda names: [n for n in names if column(n) in {text, _LABELS[1], _SPLIT}])
        check_columns(path, list(found), (text, _LABELS[1]))
        columns = {column(name): values for name, values in found.items()}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    else:
        rows = read_table(path, (text, _LABELS[1]))
    if not rows:
        raise ValueError(f"Expected {path} to have rows, but it has none.")
    for number, row in enumerate(rows, 1):
        for name in (text, _LABELS[1]):
            if row.get(name) is None or not str(row[name]).strip():
                raise ValueError(f"Expected a value in column `{name}` of {path}, but row {number} has none.")
    splits = [str(row.get(_SPLIT) or "train").lower() for row in rows]
    return [str(row[text]) for row in rows], [str(row[_LABELS[1]]) for row in rows], splits


def _read_npz(path: Path, labelled: bool, group: str | None) -> dict[str, Array]:  # noqa: ARG001 - one signature for all
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise ValueError(f"Expected {path} to be an npz file, but it is an npy file; rename it.")
            return {name: found[name] for name in found.files}
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"Expected {path} to be an npz file, but it is not: {error}.") from None


def _read_npy(path: Path, labelled: bool, group: str | None) -> dict[str, Array]:  # noqa: ARG001
    beside = [path.with_suffix(".labels.npy"), path.with_name("labels.npy")]
    labels = next((one for one in beside if one.is_file()), None)
    if labels is None and labelled:
        raise FileNotFoundError(f"Expected the labels of {path} in {beside[0].name} or {beside[1].name} beside it.")
    found = {FEATURES: np.load(path, allow_pickle=False)}
    return found if labels is None else found | {_LABELS[0]: np.load(labels, allow_pickle=False)}


def _read_safetensors(path: Path, labelled: bool, group: str | None) -> dict[str, Array]:  # noqa: ARG001 - one signature for all
    with open_tensors(path) as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    return {name: (t.float() if t.is_floating_point() else t).numpy() for name, t in found.items()}


def _read_parquet(path: Path, labelled: bool, group: str | None) -> dict[str, Array]:
    def chosen(names: list[str]) -> list[str]:
        needed = [FEATURES, *([_LABELS[1]] if labelled else []), *([] if group is None else [column(group)])]
        columns, used = check_columns(path, names, needed), {FEATURES, _LABELS[1], _SPLIT, *needed}
        return [name for name, known in zip(names, columns, strict=True) if known in used]

    table = {column(name): values for name, values in read_parquet(path, chosen).items()}
    lengths = {len(row) if row is not None else 0 for row in table[FEATURES]}
    if len(lengths) != 1:
        raise ValueError(f"Expected the vectors in {path} to have one length, but got {sorted(lengths)[:3]}.")
    vectors = np.array(table[FEATURES], dtype=np.float32)
    return {**{name: np.array(values) for name, values in table.items() if name != FEATURES}, FEATURES: vectors}


_READERS = {".npz": _read_npz, ".npy": _read_npy, ".safetensors": _read_safetensors, ".parquet": _read_parquet}


def _join_splits(path: Path, arrays: dict[str, Array], group: str | None) -> dict[str, Array]:
    """One array of features, labels and splits, from arrays per split if there are such."""
    parts = [part for part in _PARTS if f"{part}.{FEATURES}" in arrays]
    if FEATURES in arrays or not parts:
        return arrays
    pairs = [(arrays[f"{part}.{FEATURES}"], arrays[f"{part}.{_labels_in(arrays, f'{part}.', path)}"]) for part in parts]
    groups = [arrays[f"{part}.{group}"] for part in parts if f"{part}.{group}" in arrays]
    return {
        **({str(group): np.concatenate(groups)} if len(groups) == len(parts) else {}),
        FEATURES: np.concatenate([features for features, _ in pairs]),
        _LABELS[0]: np.concatenate([labels for _, labels in pairs]),
        _SPLIT: np.repeat(parts, [len(labels) for _, labels in pairs]),
        **({_CLASSES: arrays[_CLASSES]} if _CLASSES in arrays else {}),
    }


def _labels_in(arrays: dict[str, Array], prefix: str, path: Path) -> str:
    found = next((name for name in _LABELS if prefix + name in arrays), None)
    if found is None:
        raise ValueError(f"Expected {path} to have `{prefix}labels`, but it has {', '.join(arrays) or 'nothing'}.")
    return found


def _checked(path: Path, arrays: dict[str, Array], labelled: bool, group: str | None) -> StoredFeatures:
    if FEATURES not in arrays:
        raise ValueError(f"Expected {path} to have `{FEATURES}`, but it has {', '.join(arrays) or 'nothing'}.")
    features = arrays[FEATURES]
    known = labelled or any(name in arrays for name in _LABELS)
    labels = arrays[_labels_in(arrays, "", path)] if known else None
    if features.ndim != 2 or features.dtype.kind not in "iuf" or 0 in features.shape:
        raise ValueError(
            f"Expected `{FEATURES}` of {path} to be numbers of shape (N, D), but got {features.dtype} of shape "
            f"{features.shape}."
        )
    if labels is not None and (labels.shape != (len(features),) or labels.dtype.kind not in "iuUSO"):
        raise ValueError(
            f"Expected {len(features)} labels in {path}, whole numbers or names, but got {labels.dtype} of shape "
            f"{labels.shape}."
        )
    vectors = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
    bad = (~vectors.sum(1).isfinite()).nonzero().flatten().tolist()
    if bad:
        raise ValueError(f"Expected finite features in {path}, but {len(bad)} rows are not, the first is row {bad[0]}.")
    splits = ["train"] * len(features)
    if _SPLIT in arrays:
        splits = [str(part).lower() for part in arrays[_SPLIT].tolist()]
        wrong = next((part for part in splits if part not in _PARTS), None)
        if wrong is not None or len(splits) != len(features):
            raise ValueError(f"Expected `split` of {path} to be train, val or test for each row, but got {wrong!r}.")
    names = tuple(map(str, arrays[_CLASSES].tolist())) if _CLASSES in arrays else None
    texts = [] if labels is None else list(map(str, labels.tolist()))
    if names is not None and not set(texts) <= set(names):  # indices
        index = dict(zip(map(str, range(len(names))), names, strict=True))
        wrong = next((label for label in texts if label not in index), None)
        if wrong is not None:
            raise ValueError(f"Expected labels of {path} to be names or indices of its classes, but got {wrong!r}.")
        texts = [index[label] for label in texts]
    groups: list[str] = []
    if group is not None:
        found = arrays.get(group, arrays.get(column(group)))
        if found is None or found.shape != (len(features),):
            raise ValueError(
                f"Expected an array `{group}` in {path} with a value per row, but it has {', '.join(arrays)}."
            )
        groups = list(map(str, found.tolist()))
    return StoredFeatures(vectors, texts, splits, names, groups)
