"""Feature vectors, for example embeddings of a pretrained network: files of them, and their place in a data set."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longtail._io import import_extra, new_file, open_tensors, reading
from longtail.data.datasets.image_files import SPLITS, check_columns, column, read_parquet, read_table
from longtail.data.datasets.splits import ArrayImages

FEATURES = "features"
"""The array or column of feature vectors."""
_LABEL, _SPLIT, _CLASSES = "label", "split", "classes"
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


def read_features(
    path: Path | str, *, labelled: bool = True, label: str = _LABEL, group: str | None = None
) -> StoredFeatures:
    """Read a file of feature vectors; nothing in it is executed.

    Args:
        path: ``.npz`` or ``.safetensors`` with the arrays ``features`` ``(N, D)`` and ``labels`` ``(N,)``, and
            optionally ``split`` (train, val or test for each row) and ``classes`` (names); or with such a pair per
            split, called ``train.features``, ``train.labels``, ``test.features`` and so on. ``.parquet`` with the
            columns ``features`` (lists of numbers), ``label`` and optionally ``split``. ``.npy`` with the labels in
            ``NAME.labels.npy`` or ``labels.npy`` beside it. Labels are class indices or names.
        labelled: whether labels are needed.
        label: the array or column with the labels; ``"label"`` may also be called ``labels``.
        group: the array or column with groups that must not be split.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Expected {path.absolute()} to be a file of features, but it does not exist.")
    with reading(path, "a file of features"):
        if path.suffix.lower() == ".parquet":
            needed = [FEATURES, *([label] if labelled else []), *([] if group is None else [group])]
            arrays = _read_parquet(path, list(map(column, needed)))
        else:
            arrays = _read_npy(path, labelled) if path.suffix.lower() == ".npy" else read_arrays(path)
        return _checked(path, _join_splits(path, arrays, label, group), labelled, label, group)


def write_features(path: Path, stored: StoredFeatures) -> None:
    """Write an ``.npz`` that :func:`read_features` reads."""
    arrays = {FEATURES: stored.features.numpy(), _SPLIT: np.array(stored.splits)}
    if stored.labels:
        arrays["labels"] = np.array(stored.labels)
    if stored.groups:
        arrays["group"] = np.array(stored.groups)
    if stored.class_names is not None:
        arrays[_CLASSES] = np.array(stored.class_names)
    with new_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


class Texts(NamedTuple):
    """The rows of a table of texts."""

    texts: list[str]
    labels: list[str]
    """Empty without a column of labels."""
    splits: list[str]
    groups: list[str]
    """Empty without a column of groups."""


def read_texts(path: Path | str, text: str, *, label: str = _LABEL, group: str | None = None) -> Texts:
    """Read a table of texts, ``.csv``, ``.tsv`` or ``.parquet``; splits are in ``split``, if there is such a column.

    Texts without a label, if there is no column ``label``, can be predicted but not trained on.

    Args:
        path: the table.
        text: the column with the texts.
        label: the column with the labels.
        group: the column with groups that must not be split.
    """
    path, wanted = Path(path), [column(name) for name in (text, label, group) if name is not None]
    if not path.is_file() or path.suffix.lower() not in {".csv", ".tsv", ".parquet"}:
        raise ValueError(f"Expected {path} to be a table, .csv, .tsv or .parquet, but it is not.")
    rows = read_table(path, wanted[:1], [*wanted, _SPLIT])
    if not rows:
        raise ValueError(f"Expected {path} to have rows, but it has none.")
    if label == _LABEL and _LABEL not in rows[0]:
        wanted.remove(_LABEL)
    check_columns(path, list(rows[0]), wanted)
    for number, row in enumerate(rows, 1):
        for name in wanted:
            if not row.get(name, "").strip():
                raise ValueError(f"Expected a value in column `{name}` of {path}, but row {number} has none.")
    values = {name: [row[name] for row in rows] for name in wanted}
    splits = _splits(path, [row.get(_SPLIT) for row in rows])
    groups = [] if group is None else values[column(group)]
    return Texts(values[column(text)], values.get(column(label), []), splits, groups)


def _splits(path: Path, given: Iterable[Any]) -> list[str]:
    """Return splits by our names."""
    found = [str(part or "train").lower() for part in given]
    wrong = next((part for part in found if part not in SPLITS), None)
    if wrong is not None:
        raise ValueError(f"Expected `split` of {path} to be train, val or test for each row, but got {wrong!r}.")
    return [SPLITS[part] for part in found]


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


def _read_npy(path: Path, labelled: bool) -> dict[str, Array]:
    beside = [path.with_suffix(".labels.npy"), path.with_name("labels.npy")]
    found = next((one for one in beside if one.is_file()), None)
    if found is None and labelled:
        raise FileNotFoundError(f"Expected the labels of {path} in {beside[0].name} or {beside[1].name} beside it.")
    arrays = {FEATURES: np.load(path, allow_pickle=False)}
    return arrays if found is None else arrays | {_LABEL: np.load(found, allow_pickle=False)}


def _read_parquet(path: Path, needed: list[str]) -> dict[str, Array]:
    def chosen(names: list[str]) -> list[str]:
        columns, used = check_columns(path, names, needed), {FEATURES, _LABEL, _SPLIT, *needed}
        return [name for name, known in zip(names, columns, strict=True) if known in used]

    table = {column(name): values for name, values in read_parquet(path, chosen).items()}
    lengths = {len(row) if row is not None else 0 for row in table[FEATURES]}
    if len(lengths) != 1:
        raise ValueError(f"Expected the vectors in {path} to have one length, but got {sorted(lengths)[:3]}.")
    vectors = np.array(table[FEATURES], dtype=np.float32)
    return {**{name: np.array(values) for name, values in table.items() if name != FEATURES}, FEATURES: vectors}


def _join_splits(path: Path, arrays: dict[str, Array], label: str, group: str | None) -> dict[str, Array]:
    """One array of features, labels and splits, from arrays per split if there are such."""
    parts = [part for part in _PARTS if f"{part}.{FEATURES}" in arrays]
    if FEATURES in arrays or not parts:
        return arrays
    pairs = [(arrays[f"{part}.{FEATURES}"], arrays[_labels_in(arrays, f"{part}.{label}", path)]) for part in parts]
    groups = [arrays[f"{part}.{group}"] for part in parts if f"{part}.{group}" in arrays]
    return {
        **({str(group): np.concatenate(groups)} if len(groups) == len(parts) else {}),
        FEATURES: np.concatenate([features for features, _ in pairs]),
        label: np.concatenate([labels for _, labels in pairs]),
        _SPLIT: np.repeat(parts, [len(labels) for _, labels in pairs]),
        **({_CLASSES: arrays[_CLASSES]} if _CLASSES in arrays else {}),
    }


def _labels_in(arrays: dict[str, Array], name: str, path: Path) -> str:
    """Return the name of the array of labels, which may be in the plural."""
    found = next((one for one in (name, column(name), f"{name}s") if one in arrays), None)
    if found is None:
        raise ValueError(f"Expected {path} to have `{name}`, but it has {', '.join(arrays) or 'nothing'}.")
    return found


def _checked(path: Path, arrays: dict[str, Array], labelled: bool, label: str, group: str | None) -> StoredFeatures:
    if FEATURES not in arrays:
        raise ValueError(f"Expected {path} to have `{FEATURES}`, but it has {', '.join(arrays) or 'nothing'}.")
    features = arrays[FEATURES]
    known = labelled or label in arrays or f"{label}s" in arrays
    labels = arrays[_labels_in(arrays, label, path)] if known else None
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
        splits = _splits(path, arrays[_SPLIT].tolist())
        if len(splits) != len(features):
            raise ValueError(f"Expected `split` of {path} for each of {len(features)} rows, but got {len(splits)}.")
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
