"""Differences between the disk and the catalog, and what is found in data sets with known faults."""

import math
import shutil
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from longtail._progress import listening
from longtail.data import (
    CATALOG,
    ArrayImages,
    DataSet,
    Difference,
    FeatureVectors,
    Split,
    Texts,
    check_dataset,
    describe_dataset,
    from_dataset,
    open_path,
)

COUNTS = {"train": [12, 3, 5, 2], "val": 2, "test": 3}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """``places-lt`` with four classes, as the function that writes its lists; there are no images."""
    full = CATALOG["places-lt"]
    sizes = {"train": 22, "val": 8, "test": 12}
    read = partial(full.read.func, full.read.args[0] | {"num_classes": 4})
    small = replace(full, read=read, num_classes=4, sizes=sizes, train_range=(2, 12), counts=lambda: COUNTS)
    monkeypatch.setitem(CATALOG._entries, "places-lt", small)
    (tmp_path / "places-lt").mkdir()

    def write(**changed):
        for part in ("train", "val", "test"):
            counts = changed.get(part, COUNTS[part])
            counts = [counts] * 4 if isinstance(counts, int) else counts
            lines = [f"{part}/{c}/{n}.jpg {c}\n" for c, count in enumerate(counts) for n in range(count)]
            (tmp_path / "places-lt" / f"Places_LT_{part}.txt").write_text("".join(lines))
        return tmp_path

    return write


def by_name(differences):
    return {
        difference.what: (difference.expected, difference.found)
        for difference in differences
        if "missing" not in difference.what
    }


def test_a_difference_is_one_sentence():
    assert str(Difference("classes", 10, 9)) == "classes: expected 10, found 9"


def test_the_digits_have_no_difference():
    assert check_dataset("digits") == []
    for options in ({}, {"imbalance": 10}, {"imbalance": 20.0, "profile": "step"}):
        assert check_dataset("digits-lt", **options) == []


def test_correct_lists_lack_only_the_images(places):
    root = places()
    found = check_dataset("places-lt", root)
    assert [(difference.expected, difference.found) for difference in found] == [(0, 22), (0, 8), (0, 12)]
    for part, difference in zip(("train", "val", "test"), found, strict=True):
        assert difference.what.startswith(f"{part} missing files")
        assert str(root / "places365" / part / "0" / "0.jpg") in difference.what
    path = root / "places365" / "train" / "0" / "0.jpg"
    path.parent.mkdir(parents=True)
    path.touch()
    found = check_dataset("places-lt", root)
    assert found[0].found == 21
    assert str(path.with_name("1.jpg")) in found[0].what


def test_classes_with_wrong_counts_are_found(places):
    assert by_name(check_dataset("places-lt", places(train=[10, 3, 6, 2], val=[2, 2, 2, 0]))) == {
        "train images": (22, 21),
        "val images": (8, 6),
        "largest training class": (12, 10),
        "train images of class 0": (12, 10),
        "train images of class 2": (5, 6),
        "train classes with a wrong count": (0, 2),
        "val images of class 3": (2, 0),
        "val classes with a wrong count": (0, 1),
    }


def test_swapped_classes_are_found(places):
    """The totals and extremes are right, but it is another data set."""
    assert by_name(check_dataset("places-lt", places(train=[3, 12, 5, 2]))) == {
        "train images of class 0": (12, 3),
        "train images of class 1": (3, 12),
        "train classes with a wrong count": (0, 2),
    }


def test_folders_with_too_few_classes(tmp_path):
    for part in ("train", "val"):
        for c in range(3):
            path = tmp_path / "imagenet" / part / f"n{c:08d}" / "x.JPEG"
            path.parent.mkdir(parents=True)
            path.touch()
    assert by_name(check_dataset("imagenet", tmp_path)) == {
        "classes": (1000, 3),
        "train images": (1281167, 3),
        "test images": (50000, 3),
        "smallest training class": (732, 1),
        "largest training class": (1300, 1),
    }


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_image_that_is_listed_twice_is_found(places, part):
    root = places()
    path = root / "places-lt" / f"Places_LT_{part}.txt"
    lines = path.read_text().splitlines()
    lines[1] = "train/0/0.jpg 0"  # is in train already; lines 0 and 1 are of class 0
    path.write_text("\n".join(lines))
    found = [str(difference) for difference in check_dataset("places-lt", root)]
    assert any("train/0/0.jpg" in line and "missing" not in line for line in found)


def test_mistakes_are_not_differences(tmp_path):
    with pytest.raises(ValueError, match="one of"):
        check_dataset("cifar11", tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        check_dataset("places-lt", tmp_path)
    with pytest.raises(ValueError, match="no `imbalance` for digits"):
        check_dataset("digits", imbalance=10)


# --- description of your own data


def picture(path, seed, size=(6, 5), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)


@pytest.fixture
def birds(tmp_path):
    root = tmp_path / "birds"
    for seed in range(6):
        picture(root / "train" / "sparrow" / f"{seed}.png", seed)
    for seed in range(6, 8):
        picture(root / "train" / "鷲" / f"{seed}.png", seed)
    (root / "train" / "empty").mkdir()
    picture(root / "val" / "sparrow" / "8.png", 8)
    picture(root / "test" / "sparrow" / "9.png", 9)
    return root


def test_a_sound_data_set(birds):
    (birds / "train" / "empty").rmdir()
    found = describe_dataset(open_path(birds))
    assert found.name == "birds"
    assert found.class_names == ("sparrow", "鷲")
    assert found.sizes == {"train": 8, "val": 1, "test": 1}
    assert found.counts.tolist() == [6, 2]
    assert found.imbalance_factor == 3
    assert found.groups.sizes == {"head": 1, "medium": 0, "tail": 1}
    assert found.absent == ("val: 鷲", "test: 鷲")
    assert (found.empty, found.across, found.within, found.conflicting, found.unreadable) == ((), (), (), (), ())


def test_every_fault_at_once(birds):
    picture(birds / "test" / "sparrow" / "copy.bmp", 0)  # the same pixels in another file and split
    picture(birds / "val" / "sparrow" / "copy.png", 0)
    picture(birds / "train" / "sparrow" / "twice.png", 3)
    (birds / "train" / "鷲" / "bad.jpg").write_bytes(b"no image")
    (birds / "test" / "sparrow" / "zero.jpg").touch()
    found = describe_dataset(open_path(birds))
    assert found.sizes == {"train": 10, "val": 2, "test": 3}
    assert found.counts.tolist() == [0, 7, 3]  # unreadable files are counted, and named
    assert found.imbalance_factor == pytest.approx(7 / 3)  # of those that have an image
    assert found.empty == ("empty",)
    assert found.across == ("train: sparrow/0.png = val: sparrow/copy.png = test: sparrow/copy.bmp",)
    assert found.within == ("train: sparrow/3.png = train: sparrow/twice.png",)
    assert len(found.unreadable) == 2
    assert str(birds / "train" / "鷲" / "bad.jpg") in found.unreadable[0]
    assert str(birds / "test" / "sparrow" / "zero.jpg") in found.unreadable[1]


def test_a_repeated_line(tmp_path):
    picture(tmp_path / "a.png", 0)
    picture(tmp_path / "b.png", 1)
    (tmp_path / "list.csv").write_text("path,label,split\na.png,x,train\na.png,x,train\nb.png,y,train\nb.png,y,test\n")
    found = describe_dataset(open_path(tmp_path / "list.csv"))
    assert found.within == ("train: a.png 2 times",)
    assert found.across == ("train: b.png = test: b.png",)


def test_an_image_under_different_labels_is_named_with_them(tmp_path):
    for seed, name in enumerate("abcd"):
        picture(tmp_path / f"{name}.png", seed)
    rows = ["a.png,cat,train", "a.png,dog,train", "b.png,cat,train", "b.png,dog,test", "c.png,cat,train"]
    rows += ["c.png,cat,test", "d.png,dog,train", "d.png,dog,train"]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,split", *rows]))
    found = describe_dataset(open_path(tmp_path / "list.csv"))
    assert found.conflicting == ("train: a.png 2 times (cat 1, dog 1)", "train: b.png = test: b.png (cat 1, dog 1)")
    assert found.within == ("train: a.png 2 times", "train: d.png 2 times")
    assert found.across == ("train: b.png = test: b.png", "train: c.png = test: c.png")


def test_many_duplicates_are_one_short_line_with_the_most_frequent_first(birds):
    texts = ["Right."] * 3 + ["Yeah,"] * 495 + ["x" * 900] * 2
    labels = torch.tensor([0, 0, 0] + [1] * 254 + [2] * 140 + [3] * 74 + [4] * 27 + [5, 5])
    texts = Split(Texts(tuple(texts)), labels)
    found = describe_dataset(DataSet("swda", ("sv", "b", "aa", "ny", "other", "long" * 50), texts))
    assert found.within[:2] == ("'Yeah,' 495 times", "'Right.' 3 times")
    assert found.conflicting == ("'Yeah,' 495 times (b 254, aa 140, ny 74 and 1 more)",)
    for number in range(300):
        shutil.copy(birds / "train" / "sparrow" / "0.png", birds / "train" / "鷲" / f"{number:040}.png")
    (line,) = describe_dataset(open_path(birds)).conflicting
    assert len(line) < 200
    assert line.endswith("… 301 times (鷲 300, sparrow 1)")


def test_classes_in_fewer_than_three_groups_are_named():
    vectors, labels = FeatureVectors(torch.arange(12.0)[:, None]), torch.tensor([0] * 6 + [1] * 4 + [2] * 2)
    train = Split(vectors, labels, torch.tensor([0, 1, 2, 2, 2, 2, 0, 1, 1, 1, 3, 3]))
    test = Split(vectors.subset(torch.tensor([0])), torch.tensor([1]), torch.tensor([0]))
    for splits in ({"train": train}, {"train": train, "test": test}):
        found = describe_dataset(DataSet("frogs", ("a", "b", "c"), **splits))
        assert "2 classes in fewer than 3 groups, so not in all of training, validation and test: b, c" in found.facts
    assert describe_dataset(DataSet("frogs", ("a", "b", "c"), replace(train, groups=None))).in_few_groups == ()


def test_a_list_without_a_single_file_is_one_error(tmp_path):
    (tmp_path / "table.txt").write_text("width,height,Class\n0.3,0.2,A\n0.1,0.2,B\n")
    data = open_path(tmp_path / "table.txt")
    with pytest.raises(FileNotFoundError, match=r"of table in .*, but none of the 3 exists, .*`image_root`.*\.csv"):
        describe_dataset(data)
    assert describe_dataset(data, read_images=False).sizes == {"train": 3}


def test_the_same_bytes_in_another_shape_are_another_image():
    flat = torch.arange(12, dtype=torch.uint8)
    samples = [(flat.view(1, 3, 4), 0), (flat.view(1, 4, 3), 0), (flat.view(3, 2, 2), 0), (flat.view(1, 3, 4), 1)]
    found = describe_dataset(DataSet("made", ("a", "b"), from_dataset(samples)))
    assert found.within == ("sample 0 = sample 3",)


@contextmanager
def shown_phases():
    """What is shown in the block, by identity."""
    phases = {}
    with listening(lambda phase: phases.setdefault(id(phase), phase), print):
        yield phases


def test_without_reading_images(birds):
    (birds / "train" / "sparrow" / "bad.jpg").write_bytes(b"no image")
    with shown_phases() as phases:
        found = describe_dataset(open_path(birds), read_images=False)
    assert found.counts.tolist() == [0, 7, 2]
    assert found.empty == ("empty",)
    assert found.unreadable == found.across == found.within == found.conflicting == ()
    assert not phases


@pytest.mark.parametrize("workers", [4])
def test_progress_counts_every_image_once(birds, workers):
    (birds / "train" / "sparrow" / "bad.jpg").write_bytes(b"no image")
    with shown_phases() as phases:
        describe_dataset(open_path(birds), workers=workers)
    (shown,) = phases.values()
    assert (shown.text, shown.done, shown.total, shown.over) == ("Reading 11 images", 11, 11, True)


def test_no_images_at_all():
    none = Split(ArrayImages(torch.zeros(0, 3, 2, 2, dtype=torch.uint8)), torch.zeros(0, dtype=torch.int64))
    found = describe_dataset(DataSet("none", ("a", "b"), none))
    assert found.sizes == {"train": 0}
    assert found.empty == ("a", "b")
    assert math.isnan(found.imbalance_factor)
