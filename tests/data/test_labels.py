"""Labels of every kind: they give the same classes, losslessly, or one sentence."""

import numpy as np
import pandas as pd
import pytest

from longtail.data import open_path
from longtail.data.datasets.rows import classes_of, label_texts

ROWS = np.arange(24, dtype=np.float32).reshape(8, 3)
NUMBERS = np.array([1, 2, 3, 1, 2, 1, 1, 10])


def opened(folder, labels, **arrays):
    np.savez(folder / "a.npz", features=ROWS, labels=labels, **arrays)
    return open_path(folder / "a.npz")


@pytest.mark.parametrize(
    "labels",
    [
        NUMBERS,
        NUMBERS.astype(np.uint8),
        NUMBERS.astype(">i8"),
        NUMBERS.astype(float),
        NUMBERS.astype(np.float16),
        NUMBERS[:, None],
        NUMBERS[None],
        NUMBERS.astype(str),
        NUMBERS.astype(float).astype(str),
        np.char.encode(NUMBERS.astype(str)),
    ],
    ids=lambda labels: f"{labels.dtype} {labels.shape}",
)
def test_whole_numbers_of_any_type_are_the_names_of_their_classes(tmp_path, labels):
    data = opened(tmp_path, labels)
    assert data.class_names == ("1", "2", "3", "10")
    assert [int(data.class_names[c]) for c in data.train.labels] == NUMBERS.tolist()
    assert data.counts.tolist() == [4, 2, 1, 1]  # no empty class 0


def test_other_labels(tmp_path):
    assert opened(tmp_path, NUMBERS > 1).class_names == ("False", "True")
    assert opened(tmp_path, np.where(NUMBERS > 1, 1, -1)).class_names == ("-1", "1")
    assert opened(tmp_path, np.char.encode(np.array(["é", "名"])[NUMBERS % 2], "utf-8")).class_names == ("é", "名")
    spaced = np.array(["cat", "dog"])[NUMBERS % 2].astype("U9")
    spaced[0] = "dog "
    assert opened(tmp_path, spaced).class_names == ("cat", "dog")
    assert opened(tmp_path, NUMBERS % 2 * 1.0, classes=np.array(["even", "odd"])).counts.tolist() == [3, 5]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (NUMBERS + 0.5, r"row 1 has 1\.5"),
        (np.where(NUMBERS == 3, np.nan, NUMBERS), "row 3 has none"),
        (np.where(NUMBERS == 3, "", "cat"), "row 3 has none"),
        (NUMBERS - 2, "0 or more, but got -1; leave out"),
        (np.eye(8), r"shape \(8, 8\); of one-hot rows save `labels.argmax\(1\)`"),
        (NUMBERS[:-1], '8 labels in "labels" of'),
        (NUMBERS.astype(object), r"save `labels\.astype\(str\)`"),
        (np.array([b"\xff"] * 8), "UTF-8"),
        (NUMBERS.astype("datetime64[D]"), "row 1 has a date"),
    ],
)
def test_labels_that_say_no_class_are_refused(tmp_path, labels, message):
    with pytest.raises(ValueError, match=message) as caught:
        opened(tmp_path, labels)
    assert "a.npz" in str(caught.value)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
def test_missing_labels_of_tables_are_refused(missing):
    with pytest.raises(ValueError, match="row 2 has none"):
        label_texts(np.array(["cat", missing], dtype=object), 2, "a")


def test_indices_of_given_names():
    assert classes_of(["1", "0.0"], ("a", "b"), "x") == (("a", "b"), [1, 0])
    assert classes_of(["1", "0"], ("1", "0"), "x") == (("1", "0"), [0, 1])  # names come first
    with pytest.raises(ValueError, match=r"indices in 0…1, but got '2'"):
        classes_of(["1", "2"], ("a", "b"), "x")
