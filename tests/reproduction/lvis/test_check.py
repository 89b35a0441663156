"""The registered data set ``lvis-crops``, `check` of it, and the command that builds it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from longtail._registry import load_plugin
from longtail.classes import Groups
from longtail.data import CATALOG, check_dataset, load
from longtail.train.recipe import defaults
from reproduction.lvis import register
from reproduction.lvis.__main__ import main
from reproduction.lvis.crops import build_lvis_crops, lvis_counts


@pytest.fixture(autouse=True)
def _registered():
    known = "lvis-crops" in CATALOG
    register()
    yield
    if not known:
        CATALOG.unregister("lvis-crops")


def test_the_plugin_registers_the_data_set_once():
    CATALOG.unregister("lvis-crops")
    load_plugin(Path(__file__).parents[3] / "reproduction" / "lvis" / "plugin.py")
    if "lvis-crops" not in CATALOG:  # another test has loaded the plugin before
        register()
    register()
    assert CATALOG["lvis-crops"].title() == "LVIS"


def test_the_recipe_comes_with_the_data_set():
    recipe = defaults("lvis-crops", "cbs")
    assert (recipe.epochs, recipe.pretrained, recipe.augment, recipe.weight_decay) == (28, True, "none", 1e-4)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="lvis build"):
        load("lvis-crops", tmp_path)


def test_groups_are_defined_by_images_and_counts_by_boxes():
    counts = lvis_counts()
    boxes, images = counts["train"], counts["train_images"]
    assert len(boxes) == len(images) == len(set(counts["names"])) == 1203
    assert (sum(boxes), min(boxes), max(boxes)) == (1_270_141, 1, 50_552)
    assert Groups.from_counts(images, head_over=100, tail_under=11).sizes == {"head": 405, "medium": 461, "tail": 337}
    assert all(b >= i >= 1 for b, i in zip(boxes, images, strict=True))


def test_build_command(tmp_path, capsys):
    (tmp_path / "lvis").mkdir()
    (tmp_path / "coco" / "train2017").mkdir(parents=True)
    Image.new("RGB", (20, 20)).save(tmp_path / "coco" / "train2017" / "1.png")
    content = {
        "images": [{"id": 1, "width": 20, "height": 20, "coco_url": "http://x/train2017/1.png"}],
        "categories": [{"id": 1, "name": "apple", "image_count": 1, "frequency": "r"}],
        "annotations": [
            {"id": n, "image_id": 1, "category_id": 1, "bbox": box} for n, box in enumerate([SOUND, SOUND, EMPTY])
        ],
    }
    options = ["--root", str(tmp_path), "--size", "8", "--workers", "0"]
    assert main(["build", *options]) == 2
    assert "lvis_v1_train.json" in capsys.readouterr().err
    for part in ("train", "val"):
        (tmp_path / "lvis" / f"lvis_v1_{part}.json").write_text(json.dumps(content))
    assert main(["build", *options]) == 1  # these are not the official boxes
    out = capsys.readouterr().out
    assert f"val: 2 crops of 3 boxes in {tmp_path / 'lvis-crops' / 'val'}" in out
    assert "1 dropped: empty" in out
    assert "classes: expected 1203, found 1" in out
    assert main(["build", *options]) == 1
    assert capsys.readouterr().out == out


# --- LVIS crops: kept and dropped together are the official boxes

EMPTY = [1.0, 1.0, 0.5, 4.0]


@pytest.fixture
def crops(tmp_path, monkeypatch):
    """Crops of three classes, on three images of which `broken` are no images, and what there should be of them."""

    def make(boxes, expected, broken=(), test_boxes=2):
        (tmp_path / "coco" / "train2017").mkdir(parents=True)
        for i in range(3):
            path = tmp_path / "coco" / "train2017" / f"{i}.png"
            Image.new("RGB", (20, 20)).save(path)
            if i in broken:
                path.write_bytes(b"no image")
        sound = [(0, 0, [1.0, 1.0, 5.0, 5.0])] * test_boxes
        for part, rows in (("train", boxes), ("val", sound)):
            content = {
                "images": [
                    {"id": i, "width": 20, "height": 20, "coco_url": f"http://x/train2017/{i}.png"} for i in range(3)
                ],
                "categories": [
                    {"id": c + 1, "name": f"class {c}", "image_count": 1, "frequency": "r"} for c in range(3)
                ],
                "annotations": [
                    {"id": n, "image_id": image, "category_id": c + 1, "bbox": box}
                    for n, (image, c, box) in enumerate(rows)
                ],
            }
            (tmp_path / f"{part}.json").write_text(json.dumps(content))
            out = tmp_path / "lvis-crops" / part
            build_lvis_crops(tmp_path / f"{part}.json", tmp_path / "coco", out, size=4, bad_images="skip")
        monkeypatch.setitem(
            CATALOG._entries,
            "lvis-crops",
            replace(
                CATALOG["lvis-crops"],
                num_classes=3,
                sizes={"train": sum(expected), "test": 2},
                train_range=(min(expected), max(expected)),
                counts=lambda: {"train": expected},
            ),
        )
        return {found.what: (found.expected, found.found) for found in check_dataset("lvis-crops", tmp_path)}

    return make


SOUND = [1.0, 1.0, 5.0, 5.0]
BOXES = [(0, 0, SOUND), (0, 0, EMPTY), (1, 1, SOUND), (1, 0, SOUND), (2, 2, EMPTY)]


def test_dropped_boxes_are_not_a_difference(crops):
    """Class 2 has lost its only crop, and class 0 one of three; the list of what was dropped has both."""
    assert crops(BOXES, expected=[3, 1, 1]) == {}


def test_boxes_that_are_neither_kept_nor_listed_are_a_difference(crops):
    found = crops(BOXES, expected=[3, 2, 2], test_boxes=1)
    assert found == {
        "train images": (7, 5),
        "test images": (2, 1),
        "smallest training class": (2, 1),
        "train images of class 1": (2, 1),
        "train images of class 2": (2, 1),
        "train classes with a wrong count": (0, 2),
    }


def test_boxes_of_unreadable_images_are_reported(crops, tmp_path, capsys):
    assert crops(BOXES, expected=[3, 1, 1], broken=(1,)) == {}
    assert main(["check", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "train boxes left out: 2 (unreadable-image)\n"


def test_the_official_numbers_of_boxes():
    """1,270,141 and 244,707; the first is the sum of the shipped counts."""
    assert CATALOG["lvis-crops"].sizes == {"train": 1_270_141, "test": 244_707}
    counts = CATALOG["lvis-crops"].counts()["train"]
    assert (len(counts), sum(counts), max(counts)) == (1203, 1_270_141, 50_552)
