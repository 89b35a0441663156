"""User data on disk: folders and lists in all formats."""

import os
import re
import subprocess
import sys

import pytest

from longtail.data import open_path
from longtail.data.datasets import image_files
from longtail.data.datasets.own import empty_folders
from longtail.data.datasets.texts import read_texts
from longtail.diagnosis.formats import read_file


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def listed(split):
    return list(zip(split.images.names, split.labels.tolist(), strict=True))


# --- folders


@pytest.mark.parametrize("name", [b"caf\xe9", b"a/caf\xe9.png", b"a/caf\xe9/1.png"])
def test_names_that_are_not_utf8_are_refused_at_once(tmp_path, name):
    """Results could not be written after training."""
    touch(tmp_path, "a/1.png", "b/1.png")
    path = tmp_path / os.fsdecode(name)
    if path.suffix:
        touch(tmp_path, os.fsdecode(name))
    else:
        path.mkdir()
    with pytest.raises(ValueError, match=r"^Expected .* to be UTF-8, but got (a/)?caf\\xe9.*; rename it\.$") as caught:
        open_path(tmp_path)
    str(caught.value).encode()


def test_a_list_in_a_folder_that_is_not_utf8_is_refused(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "list.txt").write_text("a.png 0\nb.png 1\n")
    with pytest.raises(ValueError, match=r"caf\\xe9; rename it"):
        open_path(folder / "list.txt")


def test_a_folder_of_class_folders(tmp_path):
    touch(tmp_path / "birds", "鷲/1.png", "sparrow/1.png", "sparrow/2.png")
    data = open_path(str(tmp_path / "birds"))
    assert data.name == "birds"
    assert data.class_names == ("sparrow", "鷲")
    assert list(data.splits) == ["train"]
    assert listed(data.train) == [("sparrow/1.png", 0), ("sparrow/2.png", 0), ("鷲/1.png", 1)]


@pytest.mark.parametrize(
    "names", [("train", "val", "test"), ("Train", "Valid", "TEST"), ("training", "validation", "test")]
)
def test_a_folder_of_splits(tmp_path, names):
    train, val, test = names
    touch(tmp_path, f"{train}/b/1.png", f"{train}/a/1.png", f"{val}/b/2.png", f"{test}/c/3.png")
    data = open_path(tmp_path)
    assert data.class_names == ("a", "b", "c")  # of all splits: c has no training image, and says so in its count
    assert data.counts.tolist() == [1, 1, 0]
    assert {part: listed(split) for part, split in data.splits.items()} == {
        "train": [("a/1.png", 0), ("b/1.png", 1)],
        "val": [("b/2.png", 1)],
        "test": [("c/3.png", 2)],
    }
    assert data.val.images.path(0) == tmp_path / val / "b" / "2.png"


def test_dev_is_a_split_and_other_folders_beside_splits_are_refused(tmp_path):
    touch(tmp_path, "train/a/1.png", "dev/a/2.png", "test/a/3.png")
    assert list(open_path(tmp_path).splits) == ["train", "val", "test"]
    (tmp_path / "annotations").mkdir()
    with pytest.raises(ValueError, match="only folders called train, val and test, but got annotations"):
        open_path(tmp_path)
    touch(tmp_path, "train/1.png")  # images right in it: a class, as all the others
    assert open_path(tmp_path).class_names == ("annotations", "dev", "test", "train")


def test_training_and_test_only(tmp_path):
    touch(tmp_path, "train/a/1.png", "test/a/2.png")
    data = open_path(tmp_path)
    assert list(data.splits) == ["train", "test"]
    assert data.val is None


def test_a_class_may_be_called_train(tmp_path):
    touch(tmp_path, "bus/1.png", "car/1.png", "train/1.png", "train/2.png")  # images right in it: no split
    data = open_path(tmp_path)
    assert data.class_names == ("bus", "car", "train")
    assert data.counts.tolist() == [1, 1, 2]


def test_two_folders_for_one_split_lose_nothing(tmp_path):
    touch(tmp_path, "train/a/1.png", "val/a/2.png", "validation/a/3.png")
    with pytest.raises(ValueError, match=r"^Expected .*\bval\b.*validation.*\.$"):  # which of them is it?
        open_path(tmp_path)


@pytest.mark.parametrize("inside", ["", "train/"])
def test_macos_folders_are_not_classes(tmp_path, inside):
    touch(tmp_path, f"{inside}cat/1.png", f"{inside}cat/._1.png", f"{inside}dog/2.png")
    (tmp_path / inside / "__MACOSX").mkdir()
    touch(tmp_path, "__MACOSX/cat/._1.png", "__MACOSX/cat/2.png")
    data = open_path(tmp_path)
    assert data.class_names == ("cat", "dog")
    assert listed(data.train) == [("cat/1.png", 0), ("dog/2.png", 1)]
    assert empty_folders(tmp_path, data) == []


def test_a_folder_with_only_macos_files_has_no_classes(tmp_path):
    touch(tmp_path, "__MACOSX/cat/._1.png")
    with pytest.raises(ValueError, match="to have class folders, but it has none"):
        open_path(tmp_path)


def test_empty_class_folders(tmp_path):
    touch(tmp_path, "train/cat/1.png", "test/cat/2.png", "test/dog/3.png", "train/bird/notes.txt")
    for name in ("train/dog", "train/empty", "test/empty", "test/other"):
        (tmp_path / name).mkdir()
    data = open_path(tmp_path)
    names = ["train/bird", "train/empty", "test/empty", "test/other"]  # the class dog has a test image
    assert sorted(empty_folders(tmp_path, data)) == sorted(tmp_path / name for name in names)
    assert data.counts.tolist() == [0, 1, 0, 0, 0]


def test_empty_folders_of_a_list_are_none(tmp_path):
    touch(tmp_path, "0/a.png", "1/b.png", "2/c.png")
    path = write_list(tmp_path, "csv", {"path": ["0/a.png", "2/c.png"], "label": [0, 2]})
    assert empty_folders(path, open_path(path)) == []


def test_nested_folders_are_classes_named_by_their_path(tmp_path):
    touch(tmp_path, "Plants/Trees/Oak/1.png", "Plants/Trees/Elm/1.png", "Plants/Trees/Elm/2.png", "Plants/Moss/1.png")
    touch(tmp_path, "cat/1.png", "cat/batch 2/2.png", "cat/batch 2/x/3.png")  # images in it: one class
    data = open_path(tmp_path)
    assert data.class_names == ("Plants/Moss", "Plants/Trees/Elm", "Plants/Trees/Oak", "cat")
    assert data.counts.tolist() == [1, 2, 1, 3]
    assert listed(data.train)[3:] == [
        ("Plants/Trees/Oak/1.png", 2),
        ("cat/1.png", 3),
        ("cat/batch 2/2.png", 3),
        ("cat/batch 2/x/3.png", 3),
    ]
    assert len(data.notes) == 1
    assert "4 classes from folders at different levels" in data.notes[0]
    (tmp_path / "Plants" / "Trees" / "Fir").mkdir()
    (tmp_path / "Empty" / "inner").mkdir(parents=True)
    data = open_path(tmp_path)
    assert empty_folders(tmp_path, data) == [tmp_path / "Empty", tmp_path / "Plants" / "Trees" / "Fir"]


def test_one_folder_below_each_class_changes_nothing(tmp_path):
    touch(tmp_path, "n01/images/1.png", "n02/images/1.png", "n02/images/2.png", "n02/more/notes.txt")
    data = open_path(tmp_path)
    assert data.class_names == ("n01", "n02")
    assert listed(data.train) == [("n01/images/1.png", 0), ("n02/images/1.png", 1), ("n02/images/2.png", 1)]


def test_nested_folders_of_splits_are_read_together(tmp_path):
    touch(tmp_path, "train/a/x/1.png", "train/a/y/1.png", "train/b/1.png", "test/a/x/2.png", "test/b/z/2.png")
    data = open_path(tmp_path)
    assert data.class_names == ("a/x", "a/y", "b")  # b has images in one split, so it is one class in all
    assert listed(data.test) == [("a/x/2.png", 0), ("b/z/2.png", 2)]


def test_ignored_files_are_counted(tmp_path):
    touch(
        tmp_path, "a/1.png", "b/1.png", "b/x/2.svg", "b/3.SVG", "a/notes", "3.png", "read.me", "a/.hidden", "Thumbs.db"
    )
    (tmp_path / "b" / "link").symlink_to(tmp_path / "a")
    (note,) = open_path(tmp_path).notes
    assert note.startswith(f"Ignored 6 files in {tmp_path}: 2 .svg, 1 ")
    for named in ("1 .me", "1 notes", "1 linked folder", "1 images outside of class folders"):
        assert named in note


def test_groups_from_file_names(tmp_path):
    touch(tmp_path, "cat/p1_1.png", "cat/p1_2.png", "dog/p2-1.png", "dog/p1_3.png", "dog/in/p10_1.png")
    data = open_path(tmp_path, split_by=r"(p[0-9]+)[_-]")
    assert data.class_names == ("cat", "dog")
    found = {
        name: data.group_names[group] for (name, _), group in zip(listed(data.train), data.train.groups, strict=True)
    }
    assert found == {
        "cat/p1_1.png": "p1",
        "cat/p1_2.png": "p1",
        "dog/p1_3.png": "p1",
        "dog/p2-1.png": "p2",
        "dog/in/p10_1.png": "p10",
    }
    with pytest.raises(
        ValueError, match=r"every path to match `split_by` = '\(p\[0-9\]\+\)_', but dog/p2-1.png does not"
    ):
        open_path(tmp_path, split_by="(p[0-9]+)_")
    for wrong in ("patient", "(p)(q)", "(p"):
        with pytest.raises(ValueError, match=r"`split_by` for .* one part in parentheses"):
            open_path(tmp_path, split_by=wrong)


def test_masks_beside_images_are_pointed_out(tmp_path):
    touch(
        tmp_path,
        "a/1.jpg",
        "a/1.png",
        "a/2.jpg",
        "b/3.png",
        "b/3_mask.png",
        "b/3_mask_1.png",
        "b/1.jpg",
        "b/maskrat.png",
    )
    (note,) = open_path(tmp_path).notes
    assert note.startswith("3 images beside one of the same name, such as a/1.jpg and 1.png;")


def test_mask_in_the_name_of_a_class_is_no_mask(tmp_path):
    touch(tmp_path, *(f"{name}/{name}_{i}.png" for name in ("with_mask", "without_mask") for i in range(3)))
    assert open_path(tmp_path).notes == ()
    touch(tmp_path, "with_mask/with_mask_1_mask.png")
    (note,) = open_path(tmp_path).notes
    assert note.startswith(
        "1 image beside one of the same name, such as with_mask/with_mask_1.png and with_mask_1_mask"
    )


def test_the_name_of_the_working_folder(tmp_path, monkeypatch):
    touch(tmp_path, "pets/a/1.png", "pets/b/1.png")
    monkeypatch.chdir(tmp_path / "pets")
    (tmp_path / "link").symlink_to("pets")
    names = {str(path): open_path(path).name for path in (".", "a/..", "../pets/", "../link")}
    assert names == {".": "pets", "a/..": "pets", "../pets/": "pets", "../link": "link"}


def test_heic_is_read_or_named(tmp_path):
    touch(tmp_path, "a/1.png", "b/1.png", "b/2.heic")
    data = open_path(tmp_path)
    heic = image_files.is_image("2.heic")  # if pillow-heif is installed
    assert data.counts.tolist() == [1, 1 + heic]
    assert heic or "1 .heic; `pip install pillow-heif`" in data.notes[0]


def test_groups_from_folders(tmp_path):
    touch(tmp_path, "cat/p1/1.png", "cat/p2/1.png", "cat/p2/2.png", "dog/p1/1.png", "dog/p3/deep/1.png")
    data = open_path(tmp_path, split_by="folder")
    assert data.class_names == ("cat", "dog")
    names = [data.group_names[g] for g in data.train.groups.tolist()]
    assert names == ["p1", "p2", "p2", "p1", "p3"]  # p1 is the same patient in both classes
    touch(tmp_path, "dog/1.png")
    with pytest.raises(ValueError, match=r"`split_by` = folder, but dog/1\.png is directly in its class folder"):
        open_path(tmp_path, split_by="folder")
    with pytest.raises(ValueError, match=r"^Expected `split_by` for .*, but got 'patient'"):
        open_path(tmp_path, split_by="patient")


def test_a_missing_path(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_path(tmp_path / "nowhere")
    touch(tmp_path, "list.xlsx")
    with pytest.raises(ValueError, match=r"^Expected .*list\.xlsx .*\.csv, .*, but got '\.xlsx'\.$"):
        open_path(tmp_path / "list.xlsx")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="but it has none"):
        open_path(tmp_path / "empty")


# --- lists


def write_list(folder, kind, columns):
    """The same table in each format."""
    rows = list(zip(*columns.values(), strict=True))
    path = folder / f"list.{kind}"
    if kind == "parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table(columns), path)
        return path
    separator = {"csv": ",", "tsv": "\t", "txt": " "}[kind]
    head = [] if kind == "txt" else [tuple(columns)]
    text = "\n".join(separator.join("" if cell is None else str(cell) for cell in row) for row in [*head, *rows])
    path.write_text(text + "\n", encoding="utf-8")
    return path


KINDS = ["csv", "tsv", "parquet", "txt"]


@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_are_class_names(tmp_path, kind):
    columns = {"path": ["a b.png", "x/鳥.png", "c.png"], "label": ["sparrow", "鷲", "sparrow"]}
    data = open_path(write_list(tmp_path, kind, columns))
    assert data.name == "list"
    assert data.class_names == ("sparrow", "鷲")
    assert listed(data.train) == [("a b.png", 0), ("x/鳥.png", 1), ("c.png", 0)]
    assert data.train.images.path(1) == tmp_path / "x" / "鳥.png"


@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_are_whole_numbers(tmp_path, kind):
    columns = {"path": ["a.png", "b.png", "c.png", "d.png"], "label": [10, 2, 1, 10]}
    data = open_path(write_list(tmp_path, kind, columns))
    assert data.class_names == ("1", "2", "10")  # not the order of texts
    assert data.train.labels.tolist() == [2, 1, 0, 2]
    assert data.counts.tolist() == [1, 1, 2]
    assert data.notes == ("Named 3 classes by their labels, 1 to 10; index 0 is class 1.",)


def test_a_number_below_zero_is_refused(tmp_path):
    path = write_list(tmp_path, "csv", {"path": ["a.png", "b.png", "c.png"], "label": ["1", "0", "-1"]})
    with pytest.raises(ValueError, match=r"list\.csv to be 0 or more, but got -1; leave out rows"):
        open_path(path)


def test_a_name_may_begin_with_a_dash(tmp_path):
    data = open_path(write_list(tmp_path, "csv", {"path": ["a.png", "b.png"], "label": ["-1", "none"]}))
    assert data.class_names == ("-1", "none")


def test_one_number_written_in_several_ways_is_one_class(tmp_path):
    columns = {"path": ["a.png", "b.png", "c.png", "d.png"], "label": ["07", "7.0", "001", " 7"]}
    data = open_path(write_list(tmp_path, "csv", columns))
    assert data.class_names == ("1", "7")
    assert data.train.labels.tolist() == [1, 1, 0, 1]


def test_a_number_of_thousands_of_digits_is_a_class(tmp_path):
    data = open_path(write_list(tmp_path, "csv", {"path": ["a.png", "b.png"], "label": ["9" * 5000, "7"]}))
    assert data.class_names == ("7", "9" * 5000)


def test_names_that_are_partly_numbers(tmp_path):
    data = open_path(write_list(tmp_path, "csv", {"path": ["a.png", "b.png"], "label": ["7", "seven"]}))
    assert data.class_names == ("7", "seven")


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_a_split_column(tmp_path, kind):
    columns = {
        "label": ["x", "y", "x", "y", "z"],
        "split": ["train", "Validation", "TEST", "training", "val"],
        "path": ["1.png", "2.png", "3.png", "4.png", "5.png"],
        "photographer": ["p", "q", "r", "s", "t"],
    }
    data = open_path(write_list(tmp_path, kind, columns))
    assert data.class_names == ("x", "y", "z")
    assert listed(data.train) == [("1.png", 0), ("4.png", 1)]
    assert listed(data.val) == [("2.png", 1), ("5.png", 2)]
    assert listed(data.test) == [("3.png", 0)]


def test_an_unknown_split_is_named(tmp_path):
    path = write_list(tmp_path, "csv", {"path": ["a", "b"], "label": ["x", "x"], "split": ["train", "later"]})
    with pytest.raises(
        ValueError, match=r"\"split\" in row 2 of .*list\.csv to be train, val or test, but got 'later'\.$"
    ):
        open_path(path)
    path = write_list(tmp_path, "csv", {"path": ["a"], "label": ["x"], "split": ["test"]})
    with pytest.raises(ValueError, match=r"list\.csv to have training rows, but got only test\.$"):
        open_path(path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_chosen_columns_groups_and_root(tmp_path, kind):
    (tmp_path / "images").mkdir()
    columns = {
        "path": ["not", "these", "paths"],
        "File Name": ["a.png", "x/b.png", f"{tmp_path}/images/c.png"],
        "class": ["x", "y", "x"],
        "Patient": ["7", "p 1", "7"],
    }
    (tmp_path / "lists").mkdir()
    path = write_list(tmp_path / "lists", kind, columns)
    options = {"path_column": "file name", "label_column": "Class", "split_by": "patient"}
    data = open_path(path, image_root=tmp_path / "images", **options)
    assert listed(data.train) == [("a.png", 0), ("x/b.png", 1), ("c.png", 0)]
    assert data.train.images.path(0) == tmp_path / "images" / "a.png"
    assert data.train.groups.tolist() == [0, 1, 0]
    assert data.group_names == ("7", "p 1")
    with pytest.raises(ValueError, match=r"row 3 .*`image_root` sets another folder"):
        open_path(path, **options)
    with pytest.raises(FileNotFoundError, match="`image_root`"):
        open_path(path, image_root=tmp_path / "nowhere", **options)
    with pytest.raises(ValueError, match="columns path, class and doctor, but got path, File Name, class, Patient"):
        open_path(path, label_column="class", split_by="doctor")
    touch(tmp_path, "folders/a/1.png")
    for refused in ({"image_root": tmp_path}, {"label_column": "class"}):
        with pytest.raises(ValueError, match=rf"no `{next(iter(refused))}` for .*, a folder of class folders"):
            open_path(tmp_path / "folders", **refused)


@pytest.mark.parametrize(("kind", "empty"), [("csv", " "), ("parquet", None)])
def test_a_row_without_a_group_is_refused(tmp_path, kind, empty):
    path = write_list(tmp_path, kind, {"path": ["a", "b"], "label": ["x", "y"], "patient": ["1", empty]})
    with pytest.raises(ValueError, match=r'^Expected a value of "patient".* in row 2 of .*, but got none\.$'):
        open_path(path, split_by="patient")


def test_text_lists_have_no_groups(tmp_path):
    path = write_list(tmp_path, "txt", {"path": ["a"], "label": ["x"]})
    with pytest.raises(ValueError, match=r"^Expected a \.csv, \.tsv or \.parquet list with the column patient"):
        open_path(path, split_by="patient")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a.png,x y", "b c.png,z"], [("a.png", "x y"), ("b c.png", "z")]),
        (["a.png, x", "b.png, y"], [("a.png", "x"), ("b.png", "y")]),
        (["a, b.png x", "c, d.png y"], [("a, b.png", "x"), ("c, d.png", "y")]),  # a comma in every path
        (["a.png,x", "b.png y"], None),
    ],
)
def test_text_lists_with_commas(tmp_path, lines, expected):
    (tmp_path / "list.txt").write_text("\n".join(lines))
    if expected is None:
        with pytest.raises(ValueError, match="`path label` in line 1"):
            open_path(tmp_path / "list.txt")
        return
    data = open_path(tmp_path / "list.txt")
    assert [(name, data.class_names[c]) for name, c in listed(data.train)] == expected


def test_a_list_per_split(tmp_path):
    touch(tmp_path, "images/x/1.png", "images/y/1.png")  # no class folders, since there are lists
    (tmp_path / "train.csv").write_text("path,label,patient\nimages/x/1.png,x,1\nimages/x/2.png,x,2\n")
    (tmp_path / "Valid.tsv").write_text("path\tlabel\tpatient\nimages/y/1.png\ty\t3\n")
    (tmp_path / "test.csv").write_text("path,label,split,patient\nimages/z/1.png,z,test,1\n")
    data = open_path(tmp_path, split_by="patient")
    assert (data.name, data.class_names) == (tmp_path.name, ("x", "y", "z"))
    assert {part: listed(split) for part, split in data.splits.items()} == {
        "train": [("images/x/1.png", 0), ("images/x/2.png", 0)],
        "val": [("images/y/1.png", 1)],
        "test": [("images/z/1.png", 2)],
    }
    assert data.test.groups.tolist() == [0]  # patient 1, as in training
    assert empty_folders(tmp_path, data) == []
    (tmp_path / "test.csv").write_text("path,label,split\nimages/z/1.png,z,train\n")
    with pytest.raises(ValueError, match=r"\"split\" in row 1 of .*test\.csv to be test, but got 'train'"):
        open_path(tmp_path)
    (tmp_path / "train.txt").write_text("a.png x\n")
    with pytest.raises(ValueError, match=r"one list for train .*, but got train\.csv and train\.txt"):
        open_path(tmp_path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_missing_columns(tmp_path, kind):
    path = write_list(tmp_path, kind, {"path": ["a.png"], "class": ["x"]})
    with pytest.raises(ValueError, match="the columns path and label, but got path, class"):
        open_path(path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("names", [("Path", "Label", "Split"), ("PATH ", " label", " split")])
def test_case_and_spaces_of_column_names_are_ignored(tmp_path, kind, names):
    cells = (["a.png", "b.png"], ["x", "y"], ["train", "test"])
    data = open_path(write_list(tmp_path, kind, dict(zip(names, cells, strict=True))))
    assert data.class_names == ("x", "y")
    assert (listed(data.train), listed(data.test)) == ([("a.png", 0)], [("b.png", 1)])


def test_spaces_after_the_commas_of_a_header_are_stripped_from_cells_too(tmp_path):
    (tmp_path / "list.csv").write_text("label, path , split\nx, a.png, train\ny ,b.png ,train\ny, c.png, train\n")
    data = open_path(tmp_path / "list.csv")
    assert data.class_names == ("x", "y")
    assert listed(data.train) == [("a.png", 0), ("b.png", 1), ("c.png", 1)]
    (tmp_path / "list.csv").write_text("label,path\nx, a.png\n")  # a file's name may begin with a blank
    assert listed(open_path(tmp_path / "list.csv").train) == [(" a.png", 0)]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_repeated_columns_are_refused(tmp_path, kind):
    path = write_list(tmp_path, kind, {"path": ["a.png"], "label": ["x"], "Label": ["y"]})
    with pytest.raises(ValueError, match=rf'list\.{kind} to have one column "label", but it has 2\.$'):
        open_path(path)


@pytest.mark.parametrize(("kind", "delimiter"), [("csv", ";"), ("csv", "\t"), ("tsv", ",")])
def test_any_delimiter_is_accepted(tmp_path, kind, delimiter):
    path = tmp_path / f"list.{kind}"
    path.write_text(delimiter.join(["Path", '"label"']) + "\r\n" + delimiter.join(["a.png", "x"]) + "\r\n")
    data = open_path(path)
    assert (data.train.images.names, data.class_names) == (["a.png"], ("x",))


def test_repeated_lines_are_kept(tmp_path):
    data = open_path(write_list(tmp_path, "csv", {"path": ["a.png", "a.png"], "label": ["x", "x"]}))
    assert listed(data.train) == [("a.png", 0), ("a.png", 0)]  # `describe` reports it


OUTSIDE = ["../x.png", "/x.png", "C:/x.png", "a/../../x.png", "..\\x.png", "{folder}/../x.png", "{folder}2/x.png"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_outside_the_folder_is_refused(tmp_path, kind):
    for name in OUTSIDE if kind == "csv" else OUTSIDE[:1]:
        found = name.format(folder=tmp_path)
        path = write_list(tmp_path, kind, {"path": ["a.png", found], "label": ["x", "x"]})
        with pytest.raises(ValueError, match=rf"row 2 of .*, but got {re.escape(repr(found))}"):
            open_path(path)


@pytest.mark.parametrize("kind", ["csv", "txt"])
def test_an_absolute_path_below_the_list_becomes_relative(tmp_path, kind, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    paths = ["a.png", str(tmp_path / "real" / "x y" / "b.png"), f"{tmp_path}/real//c.png"]
    path = write_list(tmp_path / "real", kind, {"path": paths, "label": ["x", "x", "y"]})
    expected = [("a.png", 0), ("x y/b.png", 0), ("c.png", 1)]
    assert listed(open_path(path).train) == expected
    assert listed(open_path(tmp_path / "link" / path.name).train) == expected
    monkeypatch.chdir(tmp_path / "real")
    assert listed(open_path(path.name).train) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_list(tmp_path, kind):
    import pyarrow as pa

    empty = pa.array([], pa.string()) if kind == "parquet" else []
    path = write_list(tmp_path, kind, {"path": empty, "label": empty})
    with pytest.raises(ValueError, match=r"list\.\w+ to list images, but it lists none\.$"):
        open_path(path)
    if kind in ("csv", "tsv"):
        path.write_bytes(b"")
        with pytest.raises(ValueError, match="path and label, but got none"):
            open_path(path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(("column", "value"), [("label", None), ("path", "")])
def test_a_cell_without_a_value_is_refused(tmp_path, kind, column, value):
    columns = {"path": ["a.png", "b.png"], "label": ["x", "y"]}
    columns[column][1] = value
    with pytest.raises(ValueError, match=r"^Expected a path and a label in row 2 of .*list.*, but got .*\.$"):
        open_path(write_list(tmp_path, kind, columns))


def test_an_empty_split_is_training(tmp_path):
    columns = {"path": ["a.png", "b.png"], "label": ["x", "y"], "split": [None, "test"]}
    for kind in ("csv", "parquet"):
        data = open_path(write_list(tmp_path, kind, columns))
        assert (listed(data.train), listed(data.test)) == ([("a.png", 0)], [("b.png", 1)])


def test_a_table_as_spreadsheets_write_it(tmp_path):
    path = tmp_path / "list.CSV"
    path.write_bytes('\ufeffpath,label\r\n"a, b.png","x ""y"""\r\n\r\nc.png,z\r\n'.encode())
    data = open_path(path)
    assert data.class_names == ('x "y"', "z")
    assert listed(data.train) == [("a, b.png", 0), ("c.png", 1)]


def test_a_text_list_as_windows_writes_it(tmp_path):
    (tmp_path / "list.txt").write_bytes("\ufeffa b.png cat\r\n\r\n  \r\nc.png dog\r\n".encode())
    data = open_path(tmp_path / "list.txt")
    assert listed(data.train) == [("a b.png", 0), ("c.png", 1)]
    (tmp_path / "list.txt").write_text("a.png cat\nalone.png\n")
    with pytest.raises(ValueError, match=r"^Expected `path label` in line 2 of .*list\.txt, but got 'alone\.png'\.$"):
        open_path(tmp_path / "list.txt")


@pytest.mark.parametrize("kind", ["csv", "txt"])
def test_a_list_in_another_encoding(tmp_path, kind):
    path = write_list(tmp_path, kind, {"path": ["é.png"], "label": ["x"]})
    path.write_bytes(path.read_text(encoding="utf-8").encode("latin1"))
    with pytest.raises(ValueError, match=rf"list\.{kind}"):
        open_path(path)


def test_only_needed_columns_of_parquet_are_read(tmp_path, monkeypatch):
    """Pixels may be in another column; two columns of one name are refused."""
    import pyarrow as pa
    from pyarrow import parquet

    path = write_list(tmp_path, "parquet", {"path": ["a.png"], "image": [b"pixels"], "label": ["x"]})
    calls, read = [], parquet.ParquetFile.read
    monkeypatch.setattr(
        parquet.ParquetFile, "read", lambda self, names, **how: calls.append((names, how)) or read(self, names, **how)
    )
    assert listed(open_path(path).train) == [("a.png", 0)]
    assert calls == [(["path", "label"], {"use_threads": False})]
    parquet.write_table(pa.Table.from_arrays([pa.array(["a"])] * 3, names=["path", "label", "label"]), path)
    with pytest.raises(ValueError, match=r'list\.parquet to have one column "label", but it has 2\.$'):
        open_path(path)


def test_a_damaged_parquet_file(tmp_path):
    (tmp_path / "list.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises((ValueError, OSError), match=r"list\.parquet"):
        open_path(tmp_path / "list.parquet")


HUGE = """
import resource, sys
from longtail.data import open_path
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
try:
    data = open_path(sys.argv[1])
except ValueError as error:
    print("refused:", error)
else:
    print("classes:", data.num_classes)
"""


def test_numbers_far_above_the_number_of_rows(tmp_path):
    data = open_path(write_list(tmp_path, "csv", {"path": ["a.png", "b.png"], "label": ["300000", "5"]}))
    assert data.class_names == ("5", "300000")


@pytest.mark.slow
def test_large_numbers_do_not_fill_the_memory(tmp_path):
    """Two articles by their EAN: names or a refusal, but not 4,006,381,333,932 classes."""
    path = write_list(tmp_path, "csv", {"path": ["a.png", "b.png"], "label": ["4006381333931", "4012345123456"]})
    done = subprocess.run(
        [sys.executable, "-c", HUGE, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-300:]
    assert done.stdout.startswith("refused: Expected") or done.stdout == "classes: 2\n"


def test_lists_with_tabs_and_with_paths_of_windows(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "list.txt").write_text("cat/a 1.png\tbig cat\ncat/b.png\tdog\n")
    data = open_path(tmp_path / "list.txt")
    assert data.class_names == ("big cat", "dog")
    assert listed(data.train) == [("cat/a 1.png", 0), ("cat/b.png", 1)]
    (tmp_path / "cat" / "a\\b.png").touch()  # may be a name here
    data = open_path(write_list(tmp_path, "csv", {"path": ["cat\\c.png", "cat/a\\b.png"], "label": ["x", "y"]}))
    assert listed(data.train) == [("cat/c.png", 0), ("cat/a\\b.png", 1)]
    long = "x" * 5000
    data = open_path(write_list(tmp_path, "csv", {"path": [f"cat\\{long}"], "label": ["x"]}))
    assert listed(data.train) == [(f"cat/{long}", 0)]


@pytest.mark.parametrize("names", [("Training", "Testing"), ("training_set", "test_set"), ("train_set", "test")])
def test_other_usual_names_of_split_folders(tmp_path, names):
    for part, classes in zip(names, (("a", "b"), ("b",)), strict=True):
        for name in classes:
            (tmp_path / part / name).mkdir(parents=True)
            (tmp_path / part / name / "1.png").touch()
    data = open_path(tmp_path)
    assert data.class_names == ("a", "b")
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 1], [1])


def test_a_folder_of_images_without_classes_is_refused(tmp_path):
    (tmp_path / "cat.1.jpg").touch()
    with pytest.raises(ValueError, match="has none; a table with the columns path and label"):
        open_path(tmp_path)


def test_a_table_without_names_of_columns(tmp_path):
    path = tmp_path / "sms.tsv"
    path.write_text(f"ham\tGo until jurong point{' or further' * 9}\nspam\tWin\n")
    with pytest.raises(ValueError, match=r'a column "1", but got ham, Go .*; the first line must name the columns'):
        read_texts(path, "1")
    with pytest.raises(ValueError, match=r"the columns path and label, but got ham, .*must name the columns") as caught:
        open_path(path)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_every_delimiter_and_case(tmp_path, delimiter, suffix):
    """Lists, texts, features and predictions are read by the same rules."""

    def write(*rows):
        path = tmp_path / f"a.{suffix}"
        path.write_text("\n".join(delimiter.join(row) for row in rows))
        return path

    assert listed(open_path(write(["Label", " Path"], ["x", "1.png"])).train) == [("1.png", 0)]
    rows = read_texts(write(["TEXT", "Label"], ["why?", "x"]), "Text")
    assert (rows.samples.stored, rows.labels) == (("why?",), ["x"])
    features = open_path(write(["LABEL", "b", "a"], ["x", "1", "2"], ["y", "3", "4"])).train.images
    assert (features.columns, features.pixels.tolist()) == (("b", "a"), [[1, 2], [3, 4]])
    found = read_file(write(["Label", "Logit_A", "logit_a"], ["A", "1", "2"]), "test")
    assert (found.names, found.values.tolist(), found.labels.tolist()) == (("A", "a"), [[1, 2]], ["A"])


def test_class_names_with_other_delimiters(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("label,logit_tench; Tinca; fish,logit_shark; great; white\ntench; Tinca; fish,1,2\n")
    assert read_file(path, "test").names == ("tench; Tinca; fish", "shark; great; white")


@pytest.mark.parametrize("row", ["1.png", "1.png,x,y"])
def test_rows_of_another_length_are_refused(tmp_path, row):
    path = tmp_path / "a.csv"
    path.write_text(f"path,label\n1.png,x\n{row}\n")
    with pytest.raises(ValueError, match=r"2 values in row 2 of .*a\.csv, as in its first line, but got [13]\."):
        open_path(path)
