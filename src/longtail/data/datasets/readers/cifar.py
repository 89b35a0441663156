"""CIFAR-10 and CIFAR-100 in their standard folders of pickles, read without running code."""

import hashlib
import io
import math
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from longtail._checks import check_choice, describe, shown
from longtail._io import write_bytes

__all__ = [
    "CIFAR10_BATCHES",
    "CIFAR10_CLASSES",
    "CifarName",
    "CifarSplit",
    "cifar_digest",
    "read_cifar",
    "write_cifar10",
]

CifarName = Literal["cifar10", "cifar100"]

CIFAR10_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
"""The files of CIFAR-10 in order: five with training images and one with test images."""

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


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


class CifarSplit(NamedTuple):
    """The images of one split, in the order of the files."""

    images: Tensor
    """uint8, shape ``(N, 3, 32, 32)``."""
    labels: Tensor
    """int64, shape ``(N,)``."""
    class_names: tuple[str, ...]


def read_cifar(folder: str | os.PathLike[str], name: CifarName, train: bool) -> CifarSplit:
    """Read the training or test images of CIFAR-10 or CIFAR-100 from its standard folder of pickles.

    A pickle can run any code. These are read by an unpickler that only knows arrays, lists, numbers and strings.

    Args:
        folder: the folder that holds ``cifar-10-batches-py`` or ``cifar-100-python``, or that folder itself.
        name: ``"cifar10"`` or ``"cifar100"`` (with its 100 fine labels).
        train: whether to read the training or the test images.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is truncated, damaged, dangerous, or does not hold what CIFAR holds.

    Example:
        >>> import tempfile
        >>> black = {name: (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), [3, 5]) for name in CIFAR10_BATCHES}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_cifar10(folder, black)
        ...     split = read_cifar(folder, "cifar10", train=True)
        >>> split.images.shape, split.labels[:2], split.class_names[3]
        (torch.Size([10, 3, 32, 32]), tensor([3, 5]), 'cat')
    """
    check_choice("name", name, CifarName)
    form = _FORMATS[name]
    root = Path(folder) / form.folder
    if not root.is_dir() and (Path(folder) / form.meta).is_file():
        root = Path(folder)
    path = root / form.meta
    meta = _load(path)
    class_names = _class_names(path, meta, form)
    expected = _field(path, meta, "num_cases_per_batch") if name == "cifar10" else None  # CIFAR-100 does not have it
    if expected is not None and type(expected) is not int:
        _refuse(path, f"to have a number as 'num_cases_per_batch', but got {describe(expected)}")
    images, labels = [], []
    for path in (root / file for file in (form.train if train else form.test)):
        entry = _load(path)
        images.append(_images(path, entry))
        labels.append(_labels(path, entry, form))
        rows, count = len(images[-1]), len(labels[-1])
        if rows != count:
            _refuse(path, f"to have as many labels as images, but got {count} labels and {rows} images")
        if expected is not None and rows != expected:
            _refuse(path, f"to hold {expected} images, as {form.meta} says, but got {rows}")
    return CifarSplit(torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels)), class_names)


def write_cifar10(
    folder: str | os.PathLike[str], batches: Mapping[str, tuple[Tensor | npt.NDArray[np.uint8], Sequence[int] | Tensor]]
) -> Path:
    """Write ``folder/cifar-10-batches-py`` in the standard format, without file names, and return that folder.

    Args:
        folder: the data folder.
        batches: for each of :data:`CIFAR10_BATCHES`, uint8 images of shape ``(N, 3, 32, 32)`` and N labels below 10;
            the same N for all.
    """
    if set(batches) != set(CIFAR10_BATCHES):
        raise ValueError(f"Expected `batches` to have {', '.join(CIFAR10_BATCHES)}, but got {shown(list(batches))}.")
    entries: dict[str, dict[str, object]] = {}
    sizes = set()
    for name, (images, labels) in batches.items():
        pixels, numbers = np.asarray(images), [int(label) for label in labels]
        if pixels.dtype != np.uint8 or pixels.shape[1:] != (3, 32, 32) or len(pixels) != len(numbers):
            raise ValueError(
                f"Expected `batches` to hold uint8 images of shape (N, 3, 32, 32) and N labels, but got {name} with "
                f"{pixels.dtype} of shape {pixels.shape} and {len(numbers)} labels."
            )
        if not all(0 <= label < 10 for label in numbers):
            raise ValueError(f"Expected `batches` to hold labels in 0…9, but got others in {name}.")
        sizes.add(len(pixels))
        entries[name] = {"labels": numbers, "data": np.ascontiguousarray(pixels.reshape(len(pixels), _PIXELS))}
    if len(sizes) != 1:
        raise ValueError(f"Expected `batches` to have one size, but got {shown(sorted(sizes))} images.")
    entries["batches.meta"] = {"num_cases_per_batch": sizes.pop(), "label_names": list(CIFAR10_CLASSES)}
    root = Path(folder) / _FORMATS["cifar10"].folder
    root.mkdir(parents=True, exist_ok=True)
    for name, entry in entries.items():  # the meta file, without which the folder cannot be read, comes last
        write_bytes(root / name, pickle.dumps(entry, protocol=3))
    return root


def cifar_digest(*splits: CifarSplit) -> str:
    """Return the SHA-256 of the splits' records: for each image its label in one byte, then its 3072 pixels.

    These are the records of CIFAR-10's *binary version*; how the pickles were written makes no difference.

    Example:
        >>> black = CifarSplit(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.tensor([7]), CIFAR10_CLASSES)
        >>> cifar_digest(black) == hashlib.sha256(bytes([7]) + bytes(3072)).hexdigest()
        True
    """
    digest = hashlib.sha256()
    for images, labels, _ in splits:
        for start in range(0, len(labels), 10_000):  # a copy of 30 MB at a time
            x, y = images[start : start + 10_000].flatten(1).numpy(), labels[start : start + 10_000].numpy()
            digest.update(np.column_stack([y.astype(np.uint8), x]).tobytes())
    return digest.hexdigest()


def _refuse(path: Path, expected: str) -> NoReturn:
    raise ValueError(f"Expected {path} {expected}.")


def _field(path: Path, entry: dict[Any, Any], name: str) -> Any:
    """Return a value of a pickled dict; keys are bytes in the official files and strings in newer pickles."""
    for key in (name.encode(), name):
        if key in entry:
            return entry[key]
    return _refuse(path, f"to have {name!r}, but got {shown(sorted(map(str, entry)))}")


def _class_names(path: Path, meta: dict[Any, Any], form: _Format) -> tuple[str, ...]:
    names = _field(path, meta, form.names)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        _refuse(path, f"to have a list of names as {form.names!r}, but got {describe(names)}")
    if len(names) != form.num_classes:
        _refuse(path, f"to name {form.num_classes} classes, but got {len(names)}")
    try:
        return tuple(name.decode() if isinstance(name, bytes) else name for name in names)
    except UnicodeDecodeError:
        return _refuse(path, f"to have names in UTF-8 as {form.names!r}, but got other bytes")


def _images(path: Path, entry: dict[Any, Any]) -> npt.NDArray[np.uint8]:
    data = _field(path, entry, "data")
    array = data.values if isinstance(data, _Array) else None
    if array is None:
        _refuse(path, f"to have an array as 'data', but got {describe(data)}")
    if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != _PIXELS:
        _refuse(path, f"to have uint8 'data' of shape (N, {_PIXELS}), but got {array.dtype} of shape {array.shape}")
    return array.reshape(-1, 3, 32, 32)


def _labels(path: Path, entry: dict[Any, Any], form: _Format) -> npt.NDArray[np.int64]:
    values = _field(path, entry, form.labels)
    if isinstance(values, _Array) and values.values is not None:
        values = values.values.tolist()
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        _refuse(path, f"to have a list of integers as {form.labels!r}, but got {describe(values)}")
    wrong = [value for value in values if not 0 <= value < form.num_classes]
    if wrong:
        _refuse(path, f"to have labels in 0…{form.num_classes - 1}, but got {shown(wrong)}")
    return np.array(values, dtype=np.int64)


def _load(path: Path) -> dict[Any, Any]:
    """Return the dict in a pickle; arrays in it are instances of :class:`_Array`."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"Expected {path} to be a file of CIFAR, but it does not exist.") from None
    try:
        entry = _Unpickler(_Whole(content), encoding="bytes").load()
    except _Refused as refused:
        raise ValueError(f"Expected {path} to hold arrays, lists and strings only, but {refused}.") from None
    except Exception as error:  # damaged bytes can fail in any way
        raise ValueError(
            f"Expected {path} to be a whole pickle, but it is truncated or damaged ({type(error).__name__} in "
            f"{len(content)} bytes)."
        ) from None
    if not isinstance(entry, dict):
        _refuse(path, f"to hold a dict, but got {describe(entry)}")
    return entry


class _Whole(io.BytesIO):
    """Raises EOFError instead of returning fewer bytes: half a name must not be read as a name."""

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        if size is not None and len(content) < size:
            raise EOFError
        return content

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if not line.endswith(b"\n"):
            raise EOFError
        return line


class _Refused(pickle.UnpicklingError):
    """A pickle needs more than arrays."""


class _Allowed:
    """Stands for a class or function in a pickle; it can only be called."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call

    def __call__(self, *arguments: object) -> object:
        return self._call(*arguments)

    def __setstate__(self, state: object) -> NoReturn:
        raise _Refused("its pickle changes the state of a function")


class _Dtype:
    """Stands for ``numpy.dtype``, whose ``__setstate__`` does not check its arguments."""

    __slots__ = ("value",)
    _KINDS = frozenset(["b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"])

    def __init__(self, name: bytes | str, _align: object = False, _copy: object = True) -> None:
        text = name.decode("latin1") if isinstance(name, bytes) else str(name)
        if text not in self._KINDS:
            raise _Refused(f"it holds an array of dtype {text!r}")
        self.value: np.dtype[Any] = np.dtype(f"<{text}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order, *structure = state[1:5]
        if any(part is not None for part in structure):  # a sub-array, names, fields
            raise _Refused("it holds an array of structures")
        if order in (">", b">"):
            self.value = self.value.newbyteorder(">")
        elif order not in ("|", b"|", "<", b"<"):
            raise ValueError("byte order")


class _Array:
    """Stands for ``numpy.ndarray`` during unpickling; ``values`` is a read-only view of the bytes."""

    __slots__ = ("values",)

    def __init__(self, *_arguments: object) -> None:
        self.values: npt.NDArray[Any] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise _Refused("it holds an array of objects")
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError("shape")
        if math.prod(shape) * dtype.value.itemsize != len(content):
            raise ValueError("size")
        self.values = np.frombuffer(content, dtype.value).reshape(shape, order="F" if fortran else "C")


def _latin1(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise _Refused("it encodes text")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Allowed(_Array),
    ("numpy._core.multiarray", "_reconstruct"): _Allowed(_Array),
    ("numpy", "ndarray"): _Allowed(_Array),
    ("numpy", "dtype"): _Allowed(_Dtype),
    ("_codecs", "encode"): _Allowed(_latin1),  # bytes, as Python 3 writes them in protocol 2
    ("__builtin__", "bytes"): _Allowed(_no_bytes),  # and empty bytes
    ("builtins", "bytes"): _Allowed(_no_bytes),
}


# The Python version: the one in C allocates 64 GB when a damaged byte asks for entry 2^32 - 1 of its memo.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in _NAMES:
            name = " ".join(f"{module_name}.{global_name}".split())[:80]
            raise _Refused(f"its pickle needs {name}, which was not run")
        return _NAMES[module_name, global_name]
