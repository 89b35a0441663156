"""Files of feature vectors: every format gives the same data set, and wrong ones are refused in one sentence."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from safetensors.numpy import save_file

from longtail.data import FeatureVectors, hold_out, is_features, long_tailed, open_path

ROWS = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 0] * 2)
NAMES = np.array(["ant", "bee", "cat"])
SPLIT = np.array(["train"] * 8 + ["test"] * 4)


def write(path, **changes):
    np.savez(path, **{"features": ROWS, "labels": LABELS, "split": SPLIT, "classes": NAMES} | changes)
    return path


def assert_same(dataset):
    assert dataset.class_names == ("ant", "bee", "cat")
    for part, rows in (("train", slice(0, 8)), ("test", slice(8, 12))):
        split = dataset.splits[part]
        assert isinstance(split.images, FeatureVectors)
        np.testing.assert_array_equal(split.images.pixels, ROWS[rows])
        assert split.labels.tolist() == LABELS[rows].tolist()
    assert set(dataset.splits) == {"train", "test"}


def test_all_formats_give_the_same_data_set(tmp_path):
    assert_same(open_path(write(tmp_path / "a.npz")))
    assert_same(open_path(write(tmp_path / "names.npz", labels=NAMES[LABELS])))
    assert_same(open_path(write(tmp_path / "half.npz", features=ROWS.astype(np.float64))))
    parts = {f"{part}.features": ROWS[rows] for part, rows in (("train", slice(0, 8)), ("test", slice(8, 12)))}
    parts |= {f"{part}.labels": LABELS[rows] for part, rows in (("train", slice(0, 8)), ("test", slice(8, 12)))}
    np.savez(tmp_path / "parts.npz", **parts, classes=NAMES)
    assert_same(open_path(tmp_path / "parts.npz"))
    save_file(parts, tmp_path / "parts.safetensors")
    found = open_path(tmp_path / "parts.safetensors")  # safetensors have no text
    assert found.class_names == ("0", "1", "2")
    np.testing.assert_array_equal(found.test.images.pixels, ROWS[8:])
    table = pa.table(
        {"features": ROWS.tolist(), "Label": NAMES[LABELS].tolist(), "split": SPLIT.tolist(), "id": LABELS}
    )
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    assert is_features(tmp_path / "a.parquet")
    assert_same(open_path(tmp_path / "a.parquet"))
    np.save(tmp_path / "x.npy", ROWS)
    np.save(tmp_path / "labels.npy", NAMES[LABELS])
    found = open_path(tmp_path / "x.npy")
    assert len(found.train) == 12
    assert found.class_names == ("ant", "bee", "cat")


def test_subsets_keep_vectors_with_their_labels(tmp_path):
    """The first number of a row identifies it."""
    rows = torch.arange(60.0)[:, None].repeat(1, 3)
    labels = torch.arange(60) % 2
    np.savez(tmp_path / "a.npz", features=rows.numpy(), labels=labels.numpy())
    dataset = hold_out(long_tailed(open_path(tmp_path / "a.npz"), 10), 0.3)
    assert dataset.counts.tolist() == [21, 2]
    for split in (dataset.train, dataset.val):
        assert (split.images.pixels[:, 0].long() % 2).tolist() == split.labels.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"features": np.where(np.arange(60).reshape(12, 5) == 31, np.nan, ROWS)},
            "1 rows are not, the first is row 7",
        ),
        ({"features": ROWS[0]}, r"shape \(N, D\)"),
        ({"features": ROWS[:3]}, "3 labels"),
        ({"labels": LABELS + 1}, "'3'"),
        ({"labels": LABELS + 0.5}, "whole numbers or names, but row 1 has 0.5"),
        ({"labels": np.array([{}] * 12)}, "a.npz"),
        ({"split": np.array(["left"] * 12)}, "'left'"),
        ({"split": np.array(["test"] * 12)}, "training rows"),
    ],
)
def test_wrong_content_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        open_path(write(tmp_path / "a.npz", **changes))


def test_files_that_are_not_features(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(ValueError, match=r"a\.npz to be"):
        open_path(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", rows=ROWS)
    with pytest.raises(ValueError, match='"features", but it has rows'):
        open_path(tmp_path / "b.npz")
    np.save(tmp_path / "c.npy", ROWS)
    with pytest.raises(FileNotFoundError, match=r"c\.labels\.npy"):
        open_path(tmp_path / "c.npy")


def test_groups_are_not_split(tmp_path):
    """Groups of features are an array of any name."""
    patients = np.array(list("aabbccddeeff"))
    path = write(tmp_path / "a.npz", split=np.array(["train"] * 12), patient=patients, labels=LABELS // 2)
    dataset = hold_out(open_path(path, split_by="patient"), 0.3)
    held, kept = (set(split.groups.tolist()) for split in (dataset.val, dataset.train))
    assert held
    assert not held & kept
    with pytest.raises(ValueError, match='"doctor"'):
        open_path(path, split_by="doctor")


def test_labels_of_another_column(tmp_path):
    table = pa.table({"features": ROWS.tolist(), "label": ["z"] * 12, "Species": NAMES[LABELS].tolist()})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    dataset = open_path(tmp_path / "a.parquet", label_column="species")
    assert dataset.class_names == ("ant", "bee", "cat")
    assert dataset.train.labels.tolist() == LABELS.tolist()
    with pytest.raises(ValueError, match="the columns file and label, but got features"):
        open_path(tmp_path / "a.parquet", path_column="file")
