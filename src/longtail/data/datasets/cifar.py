"""CIFAR-10 and CIFAR-100 in their standard folders of pickles, read without running code."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from longtail._checks import describe, shown
from longtail.data.datasets.splits import ArrayImages, Split

CIFAR10_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
"""The files of CIFAR-10 in order: five with training images and one with test images."""


class _Format(NamedTuple):
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels: str
    names: str
    num_classes: int


_FORMATS = {
    "cifar10": _Format(
        "cifar-10-batches-py", CIFAR10_BATCHES[:5], CIFAR10_BATCHES[5:], "batches.meta", "labels", "label_names", 10
    ),
    "cifar100": _Format("cifar-100-python", ("train",), ("test",), "meta", "fine_labels", "fine_label_names", 100),
}
_PIXELS = 3 * 32 * 32


def read_cifar(folder: Path | str, name: Literal["cifar10", "cifar100"], train: bool) -> tuple[Split, tuple[str, ...]]:
    """Return the training or test images of CIFAR-10 or CIFAR-100, in the order of its files, and the class names.

    A pickle can run any code. These are read by an unpickler that only knows arrays of uint8, lists, numbers and
    strings.

    Args:
        folder: the data folder, which has ``cifar-10-batches-py`` or ``cifar-100-python``.
        name: ``"cifar10"`` or ``"cifar100"`` (with its 100 fine labels).
        train: whether to read the training or the test images.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is truncated, damaged or dangerous, or is not a file of CIFAR.
    """
    form = _FORMATS[name]
    root = Path(folder) / form.folder
    names = _field(root / form.meta, _load(root / form.meta), form.names)
    if not isinstance(names, list) or len(names) != form.num_classes:
        raise ValueError(f"Expected {root / form.meta} to name {form.num_classes} classes, but got {describe(names)}.")
    class_names = tuple(name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names)
    images, labels = [], []
    for path in (root / file for file in (form.train if train else form.test)):
        entry = _load(path)
        images.append(_images(path, entry))
        labels += _labels(path, entry, form, len(images[-1]))
    return Split(ArrayImages(torch.from_numpy(np.concatenate(images))), torch.tensor(labels)), class_names


def _field(path: Path, entry: dict[Any, Any], name: str) -> Any:
    """Return a value of a pickled dict; keys are bytes in the official files and strings in newer pickles."""
    for key in (name.encode(), name):
        if key in entry:
            return entry[key]
    raise ValueError(f"Expected {path} to have {name!r}, but got {shown(sorted(map(str, entry)))}.")


def _images(path: Path, entry: dict[Any, Any]) -> npt.NDArray[np.uint8]:
    data = _field(path, entry, "data")
    array = data.values if isinstance(data, _Array) else None
    if array is None or array.ndim != 2 or array.shape[1] != _PIXELS:
        found = describe(data) if array is None else f"shape {array.shape}"
        raise ValueError(f"Expected {path} to have uint8 'data' of shape (N, {_PIXELS}), but got {found}.")
    return array.reshape(-1, 3, 32, 32)


def _labels(path: Path, entry: dict[Any, Any], form: _Format, number: int) -> list[int]:
    labels = _field(path, entry, form.labels)
    if not isinstance(labels, list) or not all(type(c) is int and 0 <= c < form.num_classes for c in labels):
        raise ValueError(
            f"Expected {path} to have {form.labels!r} in 0…{form.num_classes - 1}, but got {describe(labels)}."
        )
    if len(labels) != number:
        raise ValueError(f"Expected {path} to have a label for each of {number} images, but got {len(labels)}.")
    return labels


def _load(path: Path) -> dict[Any, Any]:
    """Return the dict in a pickle; arrays in it are instances of :class:`_Array`."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"Expected {path} to be a file of CIFAR, but it does not exist.") from None
    try:
        entry = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except _RefusedError as refused:
        raise ValueError(f"Expected {path} to hold arrays, lists and strings only, but {refused}.") from None
    except Exception as error:  # damaged bytes can fail in any way
        raise ValueError(
            f"Expected {path} to be a whole pickle, but it is truncated or damaged ({type(error).__name__} in "
            f"{len(content)} bytes)."
        ) from None
    if not isinstance(entry, dict):
        raise ValueError(f"Expected {path} to hold a dict, but got {describe(entry)}.")
    return entry


class _RefusedError(pickle.UnpicklingError):
    """A pickle needs more than arrays."""


class _Dtype:
    """Stands for ``numpy.dtype``, whose ``__setstate__`` does not check its arguments; only uint8 is allowed."""

    def __init__(self, name: bytes | str, *_: object) -> None:
        if name not in ("u1", b"u1"):
            raise _RefusedError(f"it holds an array of dtype {str(name)[:40]!r}")

    def __setstate__(self, _: object) -> None:
        """Ignore byte order and structure: uint8 has none."""


class _Array:
    """Stands for ``numpy.ndarray`` during unpickling; ``values`` is a read-only view of the bytes."""

    values: npt.NDArray[np.uint8] | None = None

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise _RefusedError("it holds an array of objects")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


def _latin1(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise _RefusedError("it encodes text")
    return text.encode("latin1")


_NAMES: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _latin1,  # bytes, as Python 3 writes them in protocol 2
    ("__builtin__", "bytes"): lambda: b"",  # and empty bytes
    ("builtins", "bytes"): lambda: b"",
}


# The Python version: the one in C allocates 64 GB when a damaged byte refers to entry 2^32 - 1 of its memo.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in _NAMES:
            name = " ".join(f"{module_name}.{global_name}".split())[:80]
            raise _RefusedError(f"its pickle needs {name}, which was not run")
        call = _NAMES[module_name, global_name]
        # A new function each time, because a pickle can change the attributes of what it gets.
        return lambda *arguments: call(*arguments)  # noqa: PLW0108
