"""Packed shards: what goes in comes out, in workers too; what is cut off at any moment is whole up to there."""

import json
import pickle
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from longtail.data import BatchPlan, Split, Streaming
from longtail.data.augment import Resize
from reproduction.lvis import shards
from reproduction.lvis.shards import ShardImages, ShardWriter

SHAPE = (3, 5, 4)


def samples(number):
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (number, *SHAPE), dtype=np.uint8)


def write(folder, number, per_shard=4, start=0):
    with ShardWriter(folder, per_shard) as writer:
        start = writer.written
        for i, image in enumerate(samples(number)[start:], start):
            if i % 3 == 0:
                writer.note({"before": i})
            writer.add(image, label=i % 7, source_id=100 + i)
        if not writer.finished:
            writer.note({"before": number})
    return ShardImages(folder)


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.mark.parametrize("number", [0, 1, 3, 4, 5, 8, 11])
def test_what_goes_in_comes_out(tmp_path, number):
    images = write(tmp_path, number)
    assert len(images) == number
    assert images.labels.tolist() == [i % 7 for i in range(number)]
    assert images.ids.tolist() == [100 + i for i in range(number)]
    assert [note["before"] for note in images.notes] == [*range(0, number, 3), number]
    for i, image in enumerate(samples(number)):
        assert torch.equal(images[i], torch.from_numpy(image))
    assert len(list(tmp_path.glob("*.bin"))) == -(-number // 4)
    assert not list(tmp_path.glob("*.part"))


def test_negative_and_outside_indices(tmp_path):
    images = write(tmp_path, 6)
    assert torch.equal(images[-1], images[5])
    for index in (6, -7):
        with pytest.raises(IndexError):
            images[index]
    assert len(list(iter(images))) == 6


def test_a_sample_is_a_copy_that_may_be_changed(tmp_path):
    images = write(tmp_path, 2)
    images[0].zero_()
    assert images[0].any()


def test_subsets_of_subsets(tmp_path):
    split = Split(images := write(tmp_path, 11), images.labels).subset([9, 2, 2, 10, 0]).subset([3, 0, 2])
    assert split.labels.tolist() == [10 % 7, 9 % 7, 2]
    assert split.images.ids.tolist() == [110, 109, 102]
    for got, wanted in zip(split.images, (10, 9, 2), strict=True):
        assert torch.equal(got, images[wanted])


def test_tensors_and_strided_images(tmp_path):
    image = torch.arange(60, dtype=torch.uint8).view(5, 4, 3).permute(2, 0, 1)
    with ShardWriter(tmp_path) as writer:
        writer.add(image, 0, 0)
    assert torch.equal(ShardImages(tmp_path)[0], image)


def test_in_workers_and_pickled(tmp_path):
    images = write(tmp_path, 11)
    images[0]  # maps a file, which stays here
    again = pickle.loads(pickle.dumps(images))
    assert torch.equal(again[7], images[7])
    loaded = torch.cat(list(DataLoader(images, batch_size=3, num_workers=2)))
    assert torch.equal(loaded, torch.from_numpy(samples(11)))


def test_no_more_than_a_few_files_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_OPEN", 2)
    images = write(tmp_path, 11, per_shard=1)
    for i in (*range(11), 0, 5):
        assert torch.equal(images[i], torch.from_numpy(samples(11)[i]))
        assert len(images._maps) <= 2


@pytest.mark.parametrize(
    "image", [np.zeros((3, 5, 5), np.uint8), np.zeros(SHAPE, np.float32), np.zeros((5, 4), np.uint8)]
)
def test_another_size_or_type_is_refused(tmp_path, image):
    with ShardWriter(tmp_path) as writer:
        writer.add(samples(1)[0], 0, 0)
        with pytest.raises(ValueError, match=r"Expected `image` to be uint8 of shape \(3, 5, 4\), but got"):
            writer.add(image, 0, 1)
    assert len(ShardImages(tmp_path)) == 1


def test_what_is_finished_takes_no_more(tmp_path):
    write(tmp_path, 5)
    before = files(tmp_path)
    with ShardWriter(tmp_path, 4) as writer:
        assert writer.finished
        assert writer.written == 5
        with pytest.raises(ValueError, match="open for more samples"):
            writer.add(samples(1)[0], 0, 0)
    assert files(tmp_path) == before


@pytest.mark.parametrize("stop", range(12))
def test_stopped_at_any_sample_it_goes_on_to_the_same_bytes(tmp_path, stop):
    write(tmp_path / "whole", 11)
    with pytest.raises(KeyboardInterrupt), ShardWriter(tmp_path / "cut", 4) as writer:  # noqa: PT012
        for i, image in enumerate(samples(11)[:stop]):
            if i % 3 == 0:
                writer.note({"before": i})
            writer.add(image, i % 7, 100 + i)
        raise KeyboardInterrupt
    assert not list((tmp_path / "cut").glob("*.part"))
    with pytest.raises(FileNotFoundError, match="not complete"):
        ShardImages(tmp_path / "cut")
    writer = ShardWriter(tmp_path / "cut", 4)
    assert writer.written == stop // 4 * 4
    assert writer.last_id == (99 + writer.written if writer.written else None)
    write(tmp_path / "cut", 11)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


@pytest.mark.parametrize("call", range(7))
@pytest.mark.parametrize("before", [True, False])
def test_killed_at_any_renaming_it_goes_on_to_the_same_bytes(tmp_path, monkeypatch, call, before):
    write(tmp_path / "whole", 11)
    replace, calls = Path.replace, iter(range(100))

    class Killed(BaseException):
        pass

    def killed(self, target):
        now = next(calls) == call
        if now and before:
            raise Killed
        replace(self, target)
        if now:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        patch.setattr(ShardWriter, "discard", lambda self: None)  # nothing is tidied up by a process that is no more
        with pytest.raises(Killed):
            write(tmp_path / "cut", 11)
    write(tmp_path / "cut", 11)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_full_disk_loses_the_shard_in_work_alone(tmp_path):
    big = np.random.default_rng(1).integers(0, 256, (5, 3, 64, 64), dtype=np.uint8)
    with ShardWriter(tmp_path, 2) as writer:
        for i in range(2):
            writer.add(big[i], 0, i)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (big[0].size + 100, limits[1]))
        try:
            with pytest.raises(OSError, match=r"shard 1 to be written, but got: .*; the 2 samples before it are safe"):  # noqa: PT012
                for i in range(2, 5):
                    writer.add(big[i], 0, i)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        writer.discard()
        for i in range(writer.written, 5):
            writer.add(big[i], 0, i)
    assert all(torch.equal(image, torch.from_numpy(big[i])) for i, image in enumerate(ShardImages(tmp_path)))


def test_another_number_a_shard_is_refused(tmp_path):
    write(tmp_path, 5)
    with pytest.raises(ValueError, match=r"`samples_per_shard` to be 4, as in .*, but got 3"):
        ShardWriter(tmp_path, 3)
    for wrong, error in ((0, ValueError), (2.0, TypeError)):
        with pytest.raises(error, match="samples_per_shard"):
            ShardWriter(tmp_path, wrong)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("shard-00001.bin", b"short", "shard-00001.bin to have 240 bytes, but got 5"),
        ("shard-00001.bin", None, "shard-00001.bin to have 240 bytes, but got 0"),
        ("shard-00001.json", None, "Expected 3 shards with 11 samples in .*, but got 1 with 4"),
        ("shard-00001.json", b"{", "shard-00001.json"),
        ("shard-00001.json", b"{}", "shard-00001.json to have `shape`"),
        ("index.json", b"[]", "index.json to have `samples`"),
    ],
)
def test_damage_is_named(tmp_path, name, content, message):
    write(tmp_path, 11)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        ShardImages(tmp_path)


def test_labels_must_be_as_many_as_samples(tmp_path):
    write(tmp_path, 4)
    path = tmp_path / "shard-00000.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "labels": [1]}))
    with pytest.raises(ValueError, match="to have 4 labels and ids"):
        ShardImages(tmp_path)


def test_streaming(tmp_path):
    images = write(tmp_path, 9)
    view = Resize((5, 4))
    plan = BatchPlan(images.labels, (view,), 4)
    batches = list(Streaming(Split(images, images.labels), plan, workers=2).evaluation())
    assert torch.equal(torch.cat([batch.views[0] for batch in batches]), torch.from_numpy(samples(9)))
