"""Tables with a column per feature give what numpy has; what is not a number is refused in one sentence."""

import numpy as np
import pandas as pd
import pytest

from longtail.data import is_features, open_path
from longtail.data.datasets.features import read_features
from longtail.train import train
from longtail.train.recipe import defaults

ROWS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
NAMES = np.array(["ant", "bee", "ant", "ant", "bee", "ant", "cat", "ant"])
TABLE = pd.DataFrame(ROWS, columns=["length", "width", "Weight"]).assign(label=NAMES)

WRITERS = {
    "plain.csv": lambda table, path: table.to_csv(path, index=False),
    "windows.csv": lambda table, path: table.to_csv(path, index=False, encoding="utf-8-sig", lineterminator="\r\n"),
    "semicolons.csv": lambda table, path: table.to_csv(path, index=False, sep=";"),
    "tabs.tsv": lambda table, path: table.to_csv(path, index=False, sep="\t"),
    "columns.parquet": lambda table, path: table.to_parquet(path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_table_gives_the_features(tmp_path, name):
    parts = np.array(["train"] * 7 + ["test"])
    WRITERS[name](TABLE.assign(split=parts), tmp_path / name)
    data = open_path(tmp_path / name)
    np.testing.assert_array_equal(data.train.images.pixels, ROWS[:7])
    np.testing.assert_array_equal(data.test.images.pixels, ROWS[7:])
    assert data.class_names == ("ant", "bee", "cat")
    assert data.counts.tolist() == [4, 2, 1]
    assert data.notes == ("Read 3 columns as features: length, width, Weight.",)


@pytest.mark.parametrize("name", WRITERS)
def test_columns_of_labels_and_groups_are_no_features(tmp_path, name):
    table = TABLE.rename(columns={"label": "Species"}).assign(patient=[7, 7, 8, 8, 9, 9, 9, 9])
    WRITERS[name](table, tmp_path / name)
    data = open_path(tmp_path / name, label_column="species", split_by="patient")
    np.testing.assert_array_equal(data.train.images.pixels, ROWS)
    assert data.train.groups.tolist() == [0, 0, 1, 1, 2, 2, 2, 2]


def test_an_index_of_pandas_is_left_out_and_named(tmp_path):
    """With rows sorted by class it would say the class."""
    TABLE.to_csv(tmp_path / "a.csv")
    TABLE.iloc[[7, 0, 2, 1, 3, 4, 5, 6]].to_parquet(tmp_path / "a.parquet")
    pd.read_csv(tmp_path / "a.csv").to_csv(tmp_path / "b.csv", index=False)  # then it is called "Unnamed: 0"
    for name, column in (("a.csv", ""), ("b.csv", "Unnamed: 0"), ("a.parquet", "__index_level_0__")):
        data = open_path(tmp_path / name)
        assert data.train.images.pixels.shape == (8, 3)
        assert f"{column!r} is left out" in data.notes[0]


@pytest.mark.parametrize("name", WRITERS)
def test_columns_keep_their_capitals(tmp_path, name):
    """Those of labels and splits are found in any case, but `T` and `t` are two features."""
    table = TABLE.rename(columns={"length": "T", "width": "t", "label": "Label"}).assign(Split=["train"] * 8)
    WRITERS[name](table, tmp_path / name)
    vectors = open_path(tmp_path / name).train.images
    assert vectors.columns == ("T", "t", "Weight")
    np.testing.assert_array_equal(vectors.pixels, ROWS)


def test_booleans_are_numbers(tmp_path):
    TABLE.assign(wings=NAMES == "bee").to_csv(tmp_path / "a.csv", index=False)
    TABLE.assign(wings=NAMES == "bee").to_parquet(tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        assert open_path(tmp_path / name).train.images.pixels[:, 3].tolist() == (NAMES == "bee").tolist()


@pytest.mark.parametrize("write", ["to_csv", "to_parquet"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": [1, 2, None, 4, 5, 6, 7, 8]}, "row"),
        (
            {"width": list("abcdefgh")},
            r"numbers in the columns of .*, but \"width\" has 'a' in row 1; .*get_dummies.* texts",
        ),
        ({"Weight": [*"1?345678"], "width": [*"12345", "", "x", "8"]}, r"\"Weight\" has '\?' in row 2"),
        ({"Weight": [*"1?345678"], "width": [*"12345", "", "x", "8"]}, r"\"width\" has none in row 6"),
        ({"label": [*NAMES[:7], None]}, "row 8 has none"),
        ({"split": ["later"] * 8}, "'later'"),
    ],
)
def test_cells_that_are_no_numbers_are_refused(tmp_path, write, changes, message):
    path = tmp_path / f"a.{write[3:]}"
    getattr(TABLE.assign(**changes), write)(path, index=False)
    with pytest.raises(ValueError, match=message) as caught:
        open_path(path)
    assert path.name in str(caught.value)


def test_other_tables_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    TABLE.to_csv(path, index=False, header=False)
    with pytest.raises(ValueError, match=r"first line of .*a\.csv to name the columns"):
        open_path(path)
    TABLE.rename(columns={"label": "Species"}).to_csv(path, index=False)
    with pytest.raises(ValueError, match='a column "label", but got length, width, Weight, Species; `label_column`'):
        open_path(path)
    path.write_text("a,b,label\n1,2,x\n1,2\n")
    with pytest.raises(ValueError, match=r"3 values in row 2 of .*, but got 2"):
        open_path(path)
    path.write_text("cat.jpg,cat\ndog.jpg,dog\n")
    assert not is_features(path)
    with pytest.raises(ValueError, match="the first line must name the columns"):
        open_path(path)


def test_a_table_of_texts_names_the_command_for_them(tmp_path):
    (tmp_path / "tweets.csv").write_text("tweet,emoji\nso cold,snow\n")
    with pytest.raises(ValueError, match=r"columns path and emoji, but got tweet, emoji; .*`longtail embed`"):
        open_path(tmp_path / "tweets.csv", label_column="emoji")


def test_lists_of_images_are_no_features(tmp_path):
    path = tmp_path / "a.csv"
    for text in ("path,label,age\na,x,3\n", "file,label,age\na.jpg,x,3\n", "question,label\nwhy?,x\n"):
        path.write_text(text)
        assert not is_features(path)
    path.write_text("file,label,age\n17,x,3\n")  # looks like features; `path_column` says that it is a list
    assert open_path(path, path_column="file").train.images.names == ["17"]


def test_a_table_trains_and_new_rows_need_no_labels(tmp_path):
    rows = np.concatenate([ROWS + 2 * shift for shift in range(4)])
    table = pd.DataFrame(rows, columns=["a", "b", "c"])
    table.assign(label=np.repeat([1.0, 2.0, 3.0, 4.0], 8)).to_csv(tmp_path / "a.csv", index=False)
    recipe = defaults(str(tmp_path / "a.csv"), "softmax").changed(epochs=1)
    assert recipe.model == "linear"
    assert train(recipe, tmp_path / "run")[0].result()["classes"] == ["1", "2", "3", "4"]
    table.to_csv(tmp_path / "new.csv", index=False)
    found = read_features(tmp_path / "new.csv", labelled=False)
    np.testing.assert_array_equal(found.samples.pixels, rows)
    assert found.labels == []


ARRAYS = {
    "usual": ("features", "labels"),
    "scikit-learn": ("X", "y"),
    "bunch": ("data", "target"),
    "embeddings": ("embeddings", "labels"),
}


@pytest.mark.parametrize("names", ARRAYS.values(), ids=ARRAYS)
def test_usual_names_of_arrays(tmp_path, names):
    np.savez(tmp_path / "a.npz", **dict(zip(names, (ROWS, NAMES), strict=True)))
    np.testing.assert_array_equal(open_path(tmp_path / "a.npz").train.images.pixels, ROWS)


@pytest.mark.parametrize("form", ["{}_{}", "{1}.{0}", "{1}_{0}"])
def test_arrays_of_splits(tmp_path, form):
    arrays = {"x": ROWS, "y": np.array([0, 1] * 4)[:, None]}
    split = {"train": slice(0, 5), "val": slice(5, 6), "test": slice(6, 8)}
    np.savez(
        tmp_path / "a.npz", **{form.format(name, p): a[rows] for p, rows in split.items() for name, a in arrays.items()}
    )
    data = open_path(tmp_path / "a.npz")
    for part, rows in split.items():
        np.testing.assert_array_equal(data.splits[part].images.pixels, ROWS[rows])
        assert data.splits[part].labels.tolist() == arrays["y"][rows, 0].tolist()


def test_new_rows_in_arrays_of_splits_need_no_labels(tmp_path):
    path = tmp_path / "a.npz"
    for given in ({}, {"y_test": NAMES[6:]}):
        np.savez(path, x_train=ROWS[:6], x_test=ROWS[6:], **given)
        found = read_features(path, labelled=False)
        np.testing.assert_array_equal(found.samples.pixels, ROWS)
        assert (found.labels, found.splits) == ([], ["train"] * 6 + ["test"] * 2)


def test_arrays_that_are_unclear_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    for arrays, message in (
        ({"X": ROWS, "embeddings": ROWS, "y": NAMES}, 'one array "features", but it has X and embeddings'),
        ({"arr_0": ROWS, "arr_1": NAMES}, r"it has arr_0, arr_1; `numpy\.savez\(file, features="),
        ({"X_train": ROWS, "y_test": NAMES}, '"label" of train'),
        ({"X": ROWS.reshape(8, 3, 1), "y": NAMES}, r"reshape\(len\(x\), -1\)"),
        ({"data": ROWS, "indptr": ROWS, "indices": ROWS, "shape": ROWS}, "sparse matrix; save"),
        ({"features": ROWS.astype(float) * 1e39, "labels": NAMES}, "range of float32, but 8 rows"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=message):
            open_path(path)
