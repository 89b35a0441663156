"""The cache of small images: one file, checked, and never in the way."""

import errno
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from longtail import _progress
from longtail.train import cache as caches
from longtail.train import own
from longtail.train.own import in_memory, open_own


@pytest.fixture
def pets(tmp_path):
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        for part, number in {"train": 6, "test": 3}.items():
            (tmp_path / "pets" / part / name).mkdir(parents=True)
            for place in range(number):
                pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "pets" / part / name / f"{place}.png")
    return tmp_path / "pets"


@pytest.fixture
def reading(monkeypatch):
    """Opens the folder as a new process would; returns pixels, whether files were decoded, and notes."""
    decode = own._decoded

    def read(path, cache):
        own._read.clear()
        decoded, notes = [], []
        monkeypatch.setattr(own, "_decoded", lambda *given: decoded.append(1) or decode(*given))
        with _progress.listening(lambda _: None, notes.append):
            found = in_memory(open_own(path), cache)
        return {name: split.images.pixels for name, split in found.splits.items()}, bool(decoded), notes

    return read


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_second_start_reads_one_file(pets, tmp_path, reading):
    first, decoded, _ = reading(pets, tmp_path / "cache")
    assert decoded
    second, decoded, notes = reading(pets, tmp_path / "cache")
    assert (decoded, notes) == (False, [])
    assert same(first, second)
    with Image.open(pets / "train" / "dog" / "5.png") as image:
        assert np.array_equal(second["train"][11].permute(1, 2, 0).numpy(), np.asarray(image))
    assert len(list((tmp_path / "cache").iterdir())) == 1


def change(pets):
    """Another image of the same size in bytes, at the same time; only the inode tells."""
    file, other = pets / "train" / "cat" / "0.png", pets / "train" / "cat" / "1.png"
    stat = file.stat()
    content = other.read_bytes().ljust(stat.st_size, b"\0")
    (pets / "new.tmp").write_bytes(content)
    (pets / "new.tmp").replace(file)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize(
    "edit",
    [
        change,
        lambda pets: (pets / "test" / "cat" / "2.png").unlink(),
        lambda pets: shutil.copy(pets / "train" / "cat" / "0.png", pets / "train" / "cat" / "9.png"),
        lambda pets: (pets / "train" / "cat" / "0.png").rename(pets / "train" / "cat" / "8.png"),
    ],
    ids=["changed", "removed", "added", "renamed"],
)
def test_a_changed_folder_is_read_again(pets, tmp_path, reading, edit):
    reading(pets, tmp_path / "cache")
    edit(pets)
    fresh, _, _ = reading(pets, None)
    found, decoded, notes = reading(pets, tmp_path / "cache")
    assert decoded
    assert notes == []
    assert same(found, fresh)
    assert not reading(pets, tmp_path / "cache")[1]  # it was written again


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_cache_is_written_again(pets, tmp_path, reading, damage):
    first, _, _ = reading(pets, tmp_path / "cache")
    (file,) = (tmp_path / "cache").iterdir()
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes({"truncated": content[:-5], "flipped": content, "empty": b""}[damage])
    found, decoded, notes = reading(pets, tmp_path / "cache")
    assert decoded
    assert same(first, found)
    assert len(notes) == 1
    assert f"{file} is damaged" in notes[0]
    assert "\n" not in notes[0]
    assert reading(pets, tmp_path / "cache")[1:] == (False, [])


def test_a_full_disk_costs_only_time(pets, tmp_path, reading, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(caches, "write_tensors", full)
    found, _, notes = reading(pets, tmp_path / "cache")
    assert len(found["train"]) == 12
    assert len(notes) == 1
    assert "No space left on device" in notes[0]


def test_files_that_change_while_they_are_read_are_not_cached(pets, tmp_path, reading, monkeypatch):
    make = own._Chunks

    def chunks(images, together):
        if "train" in str(images.path(0)):  # once, or the inode is used again
            change(pets)
        return make(images, together)

    monkeypatch.setattr(own, "_Chunks", chunks)
    reading(pets, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
