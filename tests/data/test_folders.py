"""Folders of class folders, as people have them."""

import pytest

from longtail.data.datasets.image_files import image_suffixes, read_folder


def tree(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def listed(root, class_names=None):
    split, classes = read_folder(root, class_names)
    return classes, list(zip(split.images.names, split.labels.tolist(), strict=True))


def test_classes_and_images_come_in_the_order_of_their_names(tmp_path):
    tree(tmp_path, "b/2.png", "b/1.png", "a/3.png", "c/0.png")
    expected = [("a/3.png", 0), ("b/1.png", 1), ("b/2.png", 1), ("c/0.png", 2)]
    assert listed(tmp_path) == (("a", "b", "c"), expected)
    assert read_folder(tmp_path)[0].images.path(3) == tmp_path / "c" / "0.png"


def test_every_suffix_in_any_case(tmp_path):
    names = [f"x{suffix}" for suffix in image_suffixes()] + ["n01440764_190.JPEG", "Y.Png"]
    tree(tmp_path, *(f"a/{name}" for name in names))
    assert {name for name, _ in listed(tmp_path)[1]} == {f"a/{name}" for name in names}


def test_an_empty_class_folder_is_a_class(tmp_path):
    tree(tmp_path, "a/1.png", "c/1.png")
    (tmp_path / "b").mkdir()
    classes, images = listed(tmp_path)
    assert classes == ("a", "b", "c")
    assert [label for _, label in images] == [0, 2]
    assert read_folder(tmp_path)[0].labels.shape == (2,)


def test_nested_folders_belong_to_their_class(tmp_path):
    tree(tmp_path, "n01/images/n01_1.JPEG", "n01/images/deep/er/n01_0.JPEG", "n02/x.JPEG", "n01/n01_boxes.txt")
    names = ["n01/images/n01_1.JPEG", "n01/images/deep/er/n01_0.JPEG"]
    assert listed(tmp_path) == (("n01", "n02"), [(names[0], 0), (names[1], 0), ("n02/x.JPEG", 1)])


def test_other_files_are_ignored(tmp_path):
    tree(tmp_path, "a/1.png", "a/Thumbs.db", "a/notes.txt", "a/no suffix", "readme.md", "loose.png", "a/1.png.part")
    assert listed(tmp_path) == (("a",), [("a/1.png", 0)])


def test_hidden_files_and_folders_are_ignored(tmp_path):
    # ._1.png is what macOS writes beside 1.png on other file systems: no image, but with its suffix
    tree(tmp_path, "a/1.png", "a/._1.png", "a/.hidden.jpg", "a/.thumbnails/1.png", ".git/x.png", "a/.DS_Store")
    assert listed(tmp_path) == (("a",), [("a/1.png", 0)])


def test_names_in_any_script_and_with_spaces(tmp_path):
    tree(tmp_path, "鳥/すずめ 1.png", "Ünï codé/ñ.png", "птица/воробей.png", "a [b]/c.png")
    classes, images = listed(tmp_path)
    assert classes == ("a [b]", "Ünï codé", "птица", "鳥")  # by code point
    assert ("鳥/すずめ 1.png", 3) in images
    assert len(images) == 4


def test_given_classes_keep_their_labels(tmp_path):
    tree(tmp_path, "c/1.png", "a/1.png")
    classes = ("d", "c", "b", "a")
    assert listed(tmp_path, classes) == (classes, [("c/1.png", 1), ("a/1.png", 3)])  # b and d have none


def test_an_unknown_class_folder_is_named(tmp_path):
    tree(tmp_path, "a/1.png", "zebra/1.png")
    with pytest.raises(ValueError, match=r"^Expected the class folders of .* to be known classes, but got 'zebra'\.$"):
        read_folder(tmp_path, ("a", "b"))


def test_a_missing_or_empty_folder_is_one_sentence(tmp_path):
    with pytest.raises((ValueError, OSError), match=r"^Expected .*nowhere to be a folder of class folders, but .*\.$"):
        read_folder(tmp_path / "nowhere")
    tree(tmp_path, "file.png")
    with pytest.raises(
        (ValueError, OSError), match=r"^Expected .*file\.png to be a folder of class folders, but .*\.$"
    ):
        read_folder(tmp_path / "file.png")
    with pytest.raises(ValueError, match=r"^Expected .* to have class folders, but it has none\.$"):
        read_folder(tmp_path)
    (tmp_path / ".hidden").mkdir()
    with pytest.raises(ValueError, match="but it has none"):
        read_folder(tmp_path)
