"""CIFAR's pickles: the official format put together by hand, and everything that a pickle must not be able to do."""

import hashlib
import os
import pickle
import struct
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longtail.data.datasets.readers.cifar import (
    CIFAR10_BATCHES,
    CIFAR10_CLASSES,
    CifarSplit,
    cifar_digest,
    read_cifar,
    write_cifar10,
)

FINE = [f"class {c}" for c in range(100)]


def python2(value: Any) -> bytes:
    """``value`` as Python 2 and its numpy pickled it, in 2009: strings are bytes, dtype's flags are numbers."""
    if isinstance(value, bytes):
        return b"T" + struct.pack("<I", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(python2, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(python2(k) + python2(v) for k, v in value.items()) + b"u"
    assert isinstance(value, np.ndarray)
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + python2(0) + b"\x85" + python2(b"b") + b"tR"
    dtype = b"cnumpy\ndtype\n(" + python2(value.dtype.str[1:].encode()) + python2(0) + python2(1) + b"tR("
    dtype += python2(3) + python2(value.dtype.str[:1].encode()) + b"NNN" + python2(-1) * 2 + python2(0) + b"tb"
    shape = b"(" + b"".join(map(python2, value.shape)) + b"t"
    return made + b"(" + python2(1) + shape + dtype + b"\x89" + python2(value.tobytes()) + b"tb"


def official(value: Any) -> bytes:
    return b"\x80\x02" + python2(value) + b"."


def pixels(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def labels(count: int, seed: int, classes: int = 10) -> list[int]:
    return np.random.default_rng(seed).integers(0, classes, count).tolist()


def batch(seed: int, count: int = 4, **changes: Any) -> dict[bytes, Any]:
    entry = {
        b"batch_label": b"training batch",
        b"labels": labels(count, seed),
        b"data": pixels(count, seed),
        b"filenames": [b"cat_s_000001.png"] * count,
    }
    return entry | {key.encode(): value for key, value in changes.items()}


META = {b"num_cases_per_batch": 4, b"label_names": [name.encode() for name in CIFAR10_CLASSES], b"num_vis": 3072}


@pytest.fixture
def cifar10(tmp_path: Path) -> Path:
    root = tmp_path / "cifar-10-batches-py"
    root.mkdir()
    for seed, name in enumerate(CIFAR10_BATCHES):
        (root / name).write_bytes(official(batch(seed)))
    (root / "batches.meta").write_bytes(official(META))
    return root


@pytest.fixture
def cifar100(tmp_path: Path) -> Path:
    root = tmp_path / "cifar-100-python"
    root.mkdir()
    for seed, (name, count) in enumerate({"train": 9, "test": 3}.items()):
        entry = {b"data": pixels(count, seed), b"fine_labels": labels(count, seed, 100)}
        (root / name).write_bytes(official(entry | {b"coarse_labels": labels(count, 7, 20)}))
    (root / "meta").write_bytes(official({b"fine_label_names": [n.encode() for n in FINE], b"coarse_label_names": []}))
    return root


def test_cifar10_as_python2_wrote_it(cifar10: Path) -> None:
    for folder in (cifar10.parent, cifar10):
        train = read_cifar(folder, "cifar10", train=True)
        assert train.images.dtype == torch.uint8
        assert train.images.shape == (20, 3, 32, 32)
        assert np.array_equal(train.images.flatten(1).numpy(), np.concatenate([pixels(4, seed) for seed in range(5)]))
        assert train.labels.dtype == torch.int64
        assert train.labels.tolist() == [y for seed in range(5) for y in labels(4, seed)]
        assert train.class_names == CIFAR10_CLASSES
    test = read_cifar(cifar10.parent, "cifar10", train=False)
    assert np.array_equal(test.images.flatten(1).numpy(), pixels(4, 5))
    assert test.labels.tolist() == labels(4, 5)
    test.images.zero_()  # the caller's own memory


def test_cifar100_as_python2_wrote_it(cifar100: Path) -> None:
    train, test = (read_cifar(cifar100.parent, "cifar100", train=train) for train in (True, False))
    assert train.images.shape == (9, 3, 32, 32)
    assert test.images.shape == (3, 3, 32, 32)
    assert train.labels.tolist() == labels(9, 0, 100)
    assert test.class_names == tuple(FINE)


def test_the_hand_made_pickles_are_what_numpy_reads(cifar10: Path) -> None:
    content = (cifar10 / "data_batch_1").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, about how numpy used to pickle
        entry = pickle.loads(content, encoding="bytes")
    assert np.array_equal(entry[b"data"], pixels(4, 0))


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("key", [str.encode, str])
def test_as_python3_writes_it(cifar10: Path, protocol: int, key: Any) -> None:
    entry = {key("labels"): [1, 2, 3, 4], key("data"): pixels(4, 9), key("filenames"): [b"", b"x"]}
    (cifar10 / "test_batch").write_bytes(pickle.dumps(entry, protocol=protocol))
    test = read_cifar(cifar10, "cifar10", train=False)
    assert np.array_equal(test.images.flatten(1).numpy(), pixels(4, 9))
    assert test.labels.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("dtype", ["<i8", ">i8", "<u2", ">i4", "u1"])
def test_labels_as_an_array_and_pixels_in_columns(cifar10: Path, dtype: str) -> None:
    data = np.asfortranarray(pixels(4, 9))
    entry = {b"labels": np.array([9, 0, 3, 3], dtype), b"data": data}
    (cifar10 / "test_batch").write_bytes(pickle.dumps(entry, protocol=2))
    test = read_cifar(cifar10, "cifar10", train=False)
    assert np.array_equal(test.images.flatten(1).numpy(), data)
    assert test.labels.tolist() == [9, 0, 3, 3]


# what a file may not do


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


def dangerous(canary: Path) -> dict[str, bytes]:
    touch = f"touch {canary}"
    code = f"open({str(canary)!r}, 'w')"
    objects = np.empty(1, dtype=object)
    objects[0] = Call(os.system, touch)
    return {
        "system": pickle.dumps(Call(os.system, touch), 2),
        "eval": pickle.dumps(Call(eval, code), 2),
        "exec in protocol 4": pickle.dumps(Call(exec, code), 4),
        "in a batch": pickle.dumps(batch(0) | {b"filenames": Call(os.system, touch)}, 2),
        "object array": pickle.dumps({b"data": objects}, 2),
        "plain object array": pickle.dumps({b"data": np.array([None, 1])}, 2),
        "INST": b"(S'" + touch.encode() + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'" + touch.encode() + b"'\no.",
        "getattr": b"\x80\x02cbuiltins\ngetattr\n.",
        "dotted": b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",
        "load": b"\x80\x02cnumpy\nload\n.",
        "scalar": pickle.dumps({b"labels": [np.int64(3)]}, 2),
        "structure": pickle.dumps({b"data": np.zeros(2, [("a", "u1"), ("b", "i4")])}, 2),
        "text": pickle.dumps({b"data": np.array(["a", "b"])}, 2),
        "encode": b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x06\x00\x00\x00base64tR.",
        "state of a name": b"\x80\x02c_codecs\nencode\n}X\x0c\x00\x00\x00__defaults__K\x01sb.",
        "sub-array": b"\x80\x02cnumpy\ndtype\n(X\x02\x00\x00\x00u1\x89\x88tR(K\x03X\x01\x00\x00\x00|K\x01NNtb.",
    }


@pytest.mark.parametrize("name", dangerous(Path("x")))
@pytest.mark.parametrize("file", ["data_batch_3", "batches.meta"])
def test_dangerous_pickles_are_refused_and_not_run(cifar10: Path, name: str, file: str) -> None:
    canary = cifar10 / "canary"
    (cifar10 / file).write_bytes(dangerous(canary)[name])
    with pytest.raises(ValueError, match=rf"{file} to hold arrays, lists and strings only, but .*\.$") as caught:
        read_cifar(cifar10, "cifar10", train=True)
    assert not canary.exists()
    assert "\n" not in str(caught.value)


def test_the_canaries_do_sing_elsewhere(tmp_path: Path) -> None:
    for name in ("system", "eval", "object array", "INST"):
        canary = tmp_path / name.replace(" ", "-")
        kept = pickle.loads(dangerous(canary)[name])
        assert canary.exists(), kept
        if name == "eval":
            kept.close()


def test_the_message_names_what_was_asked_for(cifar10: Path) -> None:
    (cifar10 / "test_batch").write_bytes(pickle.dumps(Call(eval, "1"), 2))
    with pytest.raises(ValueError, match=r"but its pickle needs __builtin__\.eval, which was not run\.$"):
        read_cifar(cifar10, "cifar10", train=False)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}r\xff\xff\xff\x7f.",  # place 2^31 of the memo, or
        b"\x80\x02}r\xff\xff\xff\xff.",  # 2^32: 64 GB in C's unpickler
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a string of 2^63 bytes
        b"\x80\x02X\xff\xff\xff\xff.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",  # a number as long
    ],
    ids=["memo 2^31", "memo 2^32", "string 2^63", "string 2^32", "number"],
)
def test_a_few_bytes_cannot_ask_for_much_memory(cifar10: Path, content: bytes) -> None:
    (cifar10 / "test_batch").write_bytes(content)
    start = time.perf_counter()
    with pytest.raises(ValueError, match="test_batch to"):
        read_cifar(cifar10, "cifar10", train=False)
    assert time.perf_counter() - start < 1


# damage


@pytest.mark.parametrize("file", ["test_batch", "batches.meta"])
@pytest.mark.parametrize("python", [2, 3])
def test_cut_off_anywhere(cifar10: Path, file: str, python: int) -> None:
    path = cifar10 / file
    content = path.read_bytes()
    if python == 3:
        content = pickle.dumps(batch(5) if file == "test_batch" else META, 2)
    lengths = [*range(min(300, len(content))), *range(300, len(content), 37), *range(len(content) - 60, len(content))]
    for length in lengths:
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=rf"^Expected \S*{file} to be a whole pickle.*\.$"):
            read_cifar(cifar10, "cifar10", train=False)


@pytest.mark.slow
def test_damaged_anywhere(cifar10: Path) -> None:
    path = cifar10 / "test_batch"
    content = path.read_bytes()
    random = np.random.default_rng(0)
    structure = [i for i in range(len(content)) if i < 700 or i > len(content) - 150]
    refused = 0
    for _ in range(1500):
        damaged = bytearray(content)
        for position in random.choice(structure, random.integers(1, 4)):
            damaged[position] = random.integers(256)
        path.write_bytes(damaged)
        try:
            split = read_cifar(cifar10, "cifar10", train=False)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            refused += 1
        else:
            assert split.images.shape == (4, 3, 32, 32)
            assert split.labels.shape == (4,)
            assert 0 <= split.labels.min() <= split.labels.max() <= 9
    assert refused > 300


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": pixels(3, 0)}, "as many labels as images, but got 4 labels and 3 images"),
        ({"data": pixels(3, 0), "labels": [0, 1, 2]}, "to hold 4 images, as batches.meta says, but got 3"),
        ({"data": pixels(4, 0)[:, :1024]}, r"shape \(N, 3072\), but got uint8 of shape \(4, 1024\)"),
        ({"data": pixels(4, 0).reshape(4, 3, 32, 32)}, r"but got uint8 of shape \(4, 3, 32, 32\)"),
        ({"data": pixels(4, 0).astype(np.float32)}, "but got float32"),
        ({"data": [1, 2]}, "an array as 'data', but got"),
        ({"labels": [0, 1, 10, -1]}, "labels in 0…9, but got 10, -1"),
        ({"labels": [0, 1, 2, b"3"]}, "a list of integers as 'labels'"),
        ({"labels": np.array([0.0, 1, 2, 3])}, "a list of integers as 'labels'"),
        ({"labels": 3}, "a list of integers as 'labels', but got 3 of type int"),
    ],
)
def test_what_is_no_cifar(cifar10: Path, changes: dict[str, Any], message: str) -> None:
    (cifar10 / "data_batch_4").write_bytes(official(batch(3, **changes)))
    with pytest.raises(ValueError, match=rf"data_batch_4 .*{message}.*\.$"):
        read_cifar(cifar10, "cifar10", train=True)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({b"label_names": [b"cat"]}, "to name 10 classes, but got 1"),
        ({b"label_names": 5}, "a list of names as 'label_names'"),
        ({b"label_names": [b"\xff"] * 10}, "names in UTF-8"),
        ({b"num_cases_per_batch": b"many"}, "a number as 'num_cases_per_batch'"),
    ],
)
def test_bad_meta(cifar10: Path, meta: dict[bytes, Any], message: str) -> None:
    (cifar10 / "batches.meta").write_bytes(official(META | meta))
    with pytest.raises(ValueError, match=rf"batches.meta .*{message}.*\.$"):
        read_cifar(cifar10, "cifar10", train=False)


def test_missing_keys_and_no_dict(cifar10: Path) -> None:
    (cifar10 / "test_batch").write_bytes(official({b"data": pixels(4, 0)}))
    with pytest.raises(ValueError, match="to have 'labels', but got b'data'"):
        read_cifar(cifar10, "cifar10", train=False)
    (cifar10 / "test_batch").write_bytes(official([1]))
    with pytest.raises(ValueError, match="to hold a dict, but got"):
        read_cifar(cifar10, "cifar10", train=False)


def test_cifar100_label_out_of_range(cifar100: Path) -> None:
    (cifar100 / "test").write_bytes(official({b"data": pixels(2, 0), b"fine_labels": [99, 100]}))
    with pytest.raises(ValueError, match=r"test to have labels in 0…99, but got 100\.$"):
        read_cifar(cifar100, "cifar100", train=False)


def test_missing(cifar10: Path, tmp_path: Path) -> None:
    (cifar10 / "data_batch_2").unlink()
    read_cifar(cifar10, "cifar10", train=False)
    with pytest.raises(FileNotFoundError, match=r"data_batch_2 to be a file of CIFAR, but it does not exist\.$"):
        read_cifar(cifar10, "cifar10", train=True)
    with pytest.raises(FileNotFoundError, match="cifar-100-python"):
        read_cifar(tmp_path, "cifar100", train=True)


def test_bad_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected `name` to be one of 'cifar10', 'cifar100', but got 'cifar'"):
        read_cifar(tmp_path, "cifar", train=True)  # type: ignore[arg-type]


# writing


def images(count: int = 3) -> dict[str, tuple[Any, Any]]:
    return {
        name: (pixels(count, seed).reshape(-1, 3, 32, 32), labels(count, seed))
        for seed, name in enumerate(CIFAR10_BATCHES)
    }


@pytest.mark.parametrize("tensors", [False, True])
def test_written_and_read(tmp_path: Path, tensors: bool) -> None:
    batches = images()
    if tensors:
        batches = {name: (torch.from_numpy(x), torch.tensor(y)) for name, (x, y) in batches.items()}
    root = write_cifar10(tmp_path / "new", batches)
    assert root == tmp_path / "new" / "cifar-10-batches-py"
    assert sorted(path.name for path in root.iterdir()) == sorted([*CIFAR10_BATCHES, "batches.meta"])
    train = read_cifar(tmp_path / "new", "cifar10", train=True)
    assert np.array_equal(train.images.flatten(1).numpy(), np.concatenate([pixels(3, seed) for seed in range(5)]))
    assert train.labels.tolist() == [y for seed in range(5) for y in labels(3, seed)]


def test_others_read_what_is_written(tmp_path: Path) -> None:
    root = write_cifar10(tmp_path, images())
    for seed, name in enumerate(CIFAR10_BATCHES):
        content = (root / name).read_bytes()
        entry = pickle.loads(content, encoding="latin1")  # like torchvision
        assert np.array_equal(entry["data"], pixels(3, seed))
        assert entry["labels"] == labels(3, seed)


def test_a_failed_write_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_cifar10(tmp_path, images())
    before = {path.name: path.read_bytes() for path in root.iterdir()}

    def full(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write_cifar10(tmp_path, images(5))
    assert {path.name: path.read_bytes() for path in root.iterdir()} == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": images()["test_batch"]}, "to have data_batch_1, .*, but got"),
        ({"test_batch": (pixels(3, 0), [0, 1, 2])}, r"test_batch with uint8 of shape \(3, 3072\) and 3 labels"),
        ({"test_batch": (np.zeros((1, 3, 32, 32)), [0])}, "test_batch with float64"),
        ({"test_batch": (images()["test_batch"][0], [0])}, "and 1 labels"),
        ({"test_batch": (images()["test_batch"][0], [0, 1, 10])}, "labels in 0…9, but got others in test_batch"),
        ({"test_batch": images(2)["test_batch"]}, "to have one size, but got 2, 3 images"),
    ],
)
def test_bad_batches(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^Expected `batches` .*{message}"):
        write_cifar10(tmp_path, images() | change)
    assert not list(tmp_path.iterdir())


def test_digest_is_that_of_the_binary_version() -> None:
    count = 10_003  # more than one piece
    x, y = pixels(count, 0), labels(count, 0)
    split = CifarSplit(torch.from_numpy(x.reshape(-1, 3, 32, 32)), torch.tensor(y), CIFAR10_CLASSES)
    records = b"".join(bytes([label]) + row.tobytes() for label, row in zip(y, x, strict=True))
    assert cifar_digest(split) == hashlib.sha256(records).hexdigest()
    assert cifar_digest(split, split) == hashlib.sha256(records * 2).hexdigest()
