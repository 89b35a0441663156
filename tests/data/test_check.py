"""`check`: each difference between the disk and what should be there, and nothing else."""

import importlib

import pytest

from longtail.data import CATALOG, Difference, check, expected_counts

check_module = importlib.import_module("longtail.data.datasets.check")  # the package has a function of that name

FILES = {
    "imagenet-lt": ("imagenet", "ImageNet_LT_{}.txt", ("train", "val", "test")),
    "places-lt": ("places365", "Places_LT_{}.txt", ("train", "val", "test")),
    "inaturalist2018": ("inaturalist2018", "iNaturalist18_{}.txt", ("train", "test")),
}


def write_lists(root, name, counts):
    """Lists in the official format with `counts[part][c]` lines of class c; no images."""
    _, pattern, parts = FILES[name]
    (root / name).mkdir(parents=True, exist_ok=True)
    for part in parts:
        called = "val" if name == "inaturalist2018" and part == "test" else part
        with (root / name / pattern.format(called)).open("w") as file:
            for c, count in enumerate(counts[part]):
                file.writelines(f"{part}/{c}/{n}.jpg {c}\n" for n in range(count))


def true_counts(name):
    shipped, number = expected_counts(name), CATALOG[name].num_classes
    return {
        part: list(shipped[part]) if isinstance(shipped[part], list) else [shipped[part]] * number
        for part in FILES[name][2]
    }


def by_name(differences):
    return {difference.what: (difference.expected, difference.found) for difference in differences}


def test_a_difference_is_one_sentence():
    assert str(Difference("classes", 10, 9)) == "classes: expected 10, found 9"


def test_the_digits_have_no_difference():
    assert check("digits") == []
    for options in ({}, {"imbalance": 10}, {"imbalance": 20.0, "profile": "step"}, {"order": "random"}):
        assert check("digits-lt", **options) == []


def test_true_lists_lack_only_the_images(tmp_path):
    write_lists(tmp_path, "places-lt", true_counts("places-lt"))
    found = check("places-lt", tmp_path)
    assert [difference.found for difference in found] == [62500, 7300, 36500]
    for part, difference in zip(("train", "val", "test"), found, strict=True):
        assert difference.expected == 0
        assert difference.what.startswith(f"{part} missing files")
        assert str(tmp_path / "places365" / part / "0" / "0.jpg") in difference.what
    for place in range(3):
        path = tmp_path / "places365" / "train" / "0" / f"{place}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = check("places-lt", tmp_path)
    assert found[0].found == 62497
    assert str(tmp_path / "places365" / "train" / "0" / "3.jpg") in found[0].what


def test_classes_with_wrong_counts_are_found(tmp_path):
    counts = true_counts("places-lt")
    counts["train"][7] -= 2  # the largest class, 4980
    counts["train"][100] += 1
    counts["val"][364] = 0
    write_lists(tmp_path, "places-lt", counts)
    found = by_name(check("places-lt", tmp_path))
    assert found["train images"] == (62500, 62499)
    assert found["val images"] == (7300, 7280)
    assert found["largest training class"] == (4980, 4978)
    assert found["train images of class 7"] == (4980, 4978)
    right = expected_counts("places-lt")["train"][100]
    assert found["train images of class 100"] == (right, right + 1)
    assert found["val images of class 364"] == (20, 0)
    assert found["train classes with a wrong count"] == (0, 2)
    assert found["val classes with a wrong count"] == (0, 1)
    assert "smallest training class" not in found
    assert "classes" not in found
    assert "test images" not in found


def test_swapped_classes_are_found(tmp_path):
    """Totals, extremes and groups are right, and yet it is another data set."""
    counts = true_counts("places-lt")
    train = counts["train"]
    train[0], train[1] = train[1], train[0]
    assert train[0] != train[1]
    write_lists(tmp_path, "places-lt", counts)
    found = {what: values for what, values in by_name(check("places-lt", tmp_path)).items() if "missing" not in what}
    assert found == {
        "train images of class 0": (train[1], train[0]),
        "train images of class 1": (train[0], train[1]),
        "train classes with a wrong count": (0, 2),
    }


@pytest.mark.parametrize("name", FILES)
def test_a_small_tree_differs_in_everything_except_its_classes(tmp_path, name):
    number = CATALOG[name].num_classes
    write_lists(tmp_path, name, {part: [2] + [1] * (number - 1) for part in FILES[name][2]})
    found = by_name(check(name, tmp_path))
    assert "classes" not in found
    assert found["train images"] == (CATALOG[name].sizes["train"], number + 1)
    assert found["test images"] == (CATALOG[name].sizes["test"], number + 1)
    assert found["smallest training class"] == (CATALOG[name].train_range[0], 1)
    assert found["largest training class"] == (CATALOG[name].train_range[1], 2)
    assert found["head, medium and tail classes"] == (CATALOG[name].group_sizes, (0, 0, number))


def test_folders_with_too_few_classes(tmp_path):
    for part in ("train", "val"):
        for c in range(3):
            path = tmp_path / "imagenet" / part / f"n{c:08d}" / "x.JPEG"
            path.parent.mkdir(parents=True)
            path.touch()
    found = by_name(check("imagenet", tmp_path))
    assert found["classes"] == (1000, 3)
    assert found["train images"] == (1281167, 3)
    assert found["test images"] == (50000, 3)
    assert found["smallest training class"] == (732, 1)
    assert found["largest training class"] == (1300, 1)
    assert found["head, medium and tail classes"] == ((385, 479, 136), (0, 0, 3))
    assert len(found) == 6


@pytest.mark.parametrize("extra", ["train", "test"])
def test_the_same_image_in_two_lists_or_twice_in_one_is_found(tmp_path, extra):
    """With the right number of lines: only the names tell."""
    counts = true_counts("places-lt")
    write_lists(tmp_path, "places-lt", counts)
    path = tmp_path / "places-lt" / f"Places_LT_{extra}.txt"
    lines = path.read_text().splitlines()
    lines[1] = "train/0/0.jpg 0"  # is in train already; lines 0 and 1 are of class 0
    path.write_text("\n".join(lines))
    found = [str(difference) for difference in check("places-lt", tmp_path)]
    assert any("train/0/0.jpg" in line and "missing" not in line for line in found)


def test_mistakes_are_not_differences(tmp_path):
    with pytest.raises(ValueError, match="one of"):
        check("cifar11", tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        check("places-lt", tmp_path)
    with pytest.raises(ValueError, match="no `imbalance` for digits"):
        check("digits", imbalance=10)
