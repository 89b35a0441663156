"""CIFAR's pickles: the official format, and what a pickle must not be able to do."""

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

from longtail.data.datasets.cifar import CIFAR10_BATCHES, _latin1, read_cifar
from reproduction.cifar10_npm import CLASSES, write_cifar10

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


META = {b"num_cases_per_batch": 4, b"label_names": [name.encode() for name in CLASSES], b"num_vis": 3072}


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
    train, class_names = read_cifar(cifar10.parent, "cifar10", train=True)
    assert train.images.pixels.dtype == torch.uint8
    assert train.images.pixels.shape == (20, 3, 32, 32)
    assert np.array_equal(
        train.images.pixels.flatten(1).numpy(), np.concatenate([pixels(4, seed) for seed in range(5)])
    )
    assert train.labels.dtype == torch.int64
    assert train.labels.tolist() == [y for seed in range(5) for y in labels(4, seed)]
    assert class_names == CLASSES
    test, _ = read_cifar(cifar10.parent, "cifar10", train=False)
    assert np.array_equal(test.images.pixels.flatten(1).numpy(), pixels(4, 5))
    assert test.labels.tolist() == labels(4, 5)
    test.images.pixels.zero_()  # writable memory


def test_cifar100_as_python2_wrote_it(cifar100: Path) -> None:
    (train, _), (test, names) = (read_cifar(cifar100.parent, "cifar100", train=train) for train in (True, False))
    assert train.images.pixels.shape == (9, 3, 32, 32)
    assert test.images.pixels.shape == (3, 3, 32, 32)
    assert train.labels.tolist() == labels(9, 0, 100)
    assert names == tuple(FINE)


def test_the_hand_made_pickles_are_what_numpy_reads(cifar10: Path) -> None:
    content = (cifar10 / "data_batch_1").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, about how numpy used to pickle
        entry = pickle.loads(content, encoding="bytes")
    assert np.array_equal(entry[b"data"], pixels(4, 0))


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickles_of_python3(cifar10: Path, protocol: int) -> None:
    data = np.asfortranarray(pixels(4, 9))
    entry = {"labels": [1, 2, 3, 4], "data": data, "filenames": [b"", b"x"]}
    (cifar10 / "test_batch").write_bytes(pickle.dumps(entry, protocol=protocol))
    test, _ = read_cifar(cifar10.parent, "cifar10", train=False)
    assert np.array_equal(test.images.pixels.flatten(1).numpy(), data)
    assert test.labels.tolist() == [1, 2, 3, 4]


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


def test_dangerous_pickles_are_refused_and_not_run(cifar10: Path) -> None:
    canary = cifar10 / "canary"
    for name, content in dangerous(canary).items():
        (cifar10 / "test_batch").write_bytes(content)
        with pytest.raises(ValueError, match=r"test_batch to (hold|be)") as caught:
            read_cifar(cifar10.parent, "cifar10", train=False)
        assert not canary.exists(), name
        assert "\n" not in str(caught.value)


def test_dangerous_pickles_run_code_in_python(tmp_path: Path) -> None:
    for name in ("system", "eval", "object array", "INST"):
        canary = tmp_path / name.replace(" ", "-")
        kept = pickle.loads(dangerous(canary)[name])
        assert canary.exists(), kept
        if name == "eval":
            kept.close()


def test_the_error_names_the_refused_function(cifar10: Path) -> None:
    (cifar10 / "test_batch").write_bytes(pickle.dumps(Call(eval, "1"), 2))
    with pytest.raises(ValueError, match=r"but its pickle needs __builtin__\.eval, which was not run"):
        read_cifar(cifar10.parent, "cifar10", train=False)


def test_a_pickle_cannot_change_the_reader(cifar10: Path) -> None:
    (cifar10 / "test_batch").write_bytes(dangerous(cifar10)["state of a name"])
    with pytest.raises(ValueError, match="test_batch"):
        read_cifar(cifar10.parent, "cifar10", train=False)
    assert _latin1.__defaults__ is None
    assert not vars(_latin1)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}r\xff\xff\xff\xff.",  # entry 2^32 of the memo: 64 GB in C's unpickler
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a string of 2^63 bytes
        b"\x80\x02\x8b\xff\xff\xff\x7f.",  # a number as long
    ],
    ids=["memo", "string", "number"],
)
def test_a_few_bytes_do_not_use_much_memory(cifar10: Path, content: bytes) -> None:
    (cifar10 / "test_batch").write_bytes(content)
    start = time.perf_counter()
    with pytest.raises(ValueError, match="test_batch to"):
        read_cifar(cifar10.parent, "cifar10", train=False)
    assert time.perf_counter() - start < 1


# damage


@pytest.mark.parametrize("python", [2, 3])
def test_truncated_anywhere(cifar10: Path, python: int) -> None:
    path = cifar10 / "test_batch"
    content = path.read_bytes() if python == 2 else pickle.dumps(batch(5), 2)
    for length in [*range(0, 300, 7), *range(300, len(content), 999), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="test_batch to"):
            read_cifar(cifar10.parent, "cifar10", train=False)


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
            split, _ = read_cifar(cifar10.parent, "cifar10", train=False)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            refused += 1
        else:
            assert split.images.pixels.shape == (4, 3, 32, 32)
            assert split.labels.shape == (4,)
            assert 0 <= split.labels.min() <= split.labels.max() <= 9
    assert refused > 300


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": pixels(3, 0)}, "a label for each of 3 images, but got 4"),
        ({"data": pixels(4, 0)[:, :1024]}, r"shape \(N, 3072\), but got shape \(4, 1024\)"),
        ({"data": pixels(4, 0).astype(np.float32)}, "dtype .*f4"),
        ({"data": [1, 2]}, "'data' of shape"),
        ({"labels": [0, 1, 10, -1]}, "'labels' in 0…9"),
        ({"labels": [0, 1, 2, b"3"]}, "'labels'"),
        ({"labels": 3}, "'labels' in 0…9, but got 3 of type int"),
    ],
)
def test_wrong_content(cifar10: Path, changes: dict[str, Any], message: str) -> None:
    (cifar10 / "data_batch_4").write_bytes(official(batch(3, **changes)))
    with pytest.raises(ValueError, match=rf"data_batch_4 .*{message}"):
        read_cifar(cifar10.parent, "cifar10", train=True)


def test_wrong_class_names_missing_keys_and_no_dict(cifar10: Path) -> None:
    (cifar10 / "test_batch").write_bytes(official({b"data": pixels(4, 0)}))
    with pytest.raises(ValueError, match="to have 'labels', but got b'data'"):
        read_cifar(cifar10.parent, "cifar10", train=False)
    (cifar10 / "test_batch").write_bytes(official([1]))
    with pytest.raises(ValueError, match="to hold a dict, but got"):
        read_cifar(cifar10.parent, "cifar10", train=False)
    (cifar10 / "batches.meta").write_bytes(official(META | {b"label_names": [b"cat"]}))
    with pytest.raises(ValueError, match=r"batches.meta to name 10 classes"):
        read_cifar(cifar10.parent, "cifar10", train=False)


def test_cifar100_label_out_of_range(cifar100: Path) -> None:
    (cifar100 / "test").write_bytes(official({b"data": pixels(2, 0), b"fine_labels": [99, 100]}))
    with pytest.raises(ValueError, match=r"test to have 'fine_labels' in 0…99"):
        read_cifar(cifar100.parent, "cifar100", train=False)


def test_missing_files(cifar10: Path, tmp_path: Path) -> None:
    (cifar10 / "data_batch_2").unlink()
    read_cifar(cifar10.parent, "cifar10", train=False)
    with pytest.raises(FileNotFoundError, match=r"data_batch_2 to be a file of CIFAR, but it does not exist\.$"):
        read_cifar(cifar10.parent, "cifar10", train=True)
    with pytest.raises(FileNotFoundError, match="cifar-100-python"):
        read_cifar(tmp_path, "cifar100", train=True)


# writing


def images(count: int = 3) -> dict[str, tuple[Any, Any]]:
    return {
        name: (pixels(count, seed).reshape(-1, 3, 32, 32), labels(count, seed))
        for seed, name in enumerate(CIFAR10_BATCHES)
    }


def test_written_and_read(tmp_path: Path) -> None:
    root = write_cifar10(tmp_path / "new", images())
    assert root == tmp_path / "new" / "cifar-10-batches-py"
    assert sorted(path.name for path in root.iterdir()) == sorted([*CIFAR10_BATCHES, "batches.meta"])
    train, _ = read_cifar(tmp_path / "new", "cifar10", train=True)
    assert np.array_equal(
        train.images.pixels.flatten(1).numpy(), np.concatenate([pixels(3, seed) for seed in range(5)])
    )
    assert train.labels.tolist() == [y for seed in range(5) for y in labels(3, seed)]


def test_pickle_reads_the_written_files(tmp_path: Path) -> None:
    root = write_cifar10(tmp_path, images())
    for seed, name in enumerate(CIFAR10_BATCHES):
        content = (root / name).read_bytes()
        entry = pickle.loads(content, encoding="latin1")  # like torchvision
        assert np.array_equal(entry["data"], pixels(3, seed))
        assert entry["labels"] == labels(3, seed)
