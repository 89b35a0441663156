"""LVIS JSON: what is read, what is thrown away, and what must be refused in one sentence."""

import copy
import json
import tracemalloc

import numpy as np
import pytest

from reproduction.lvis.annotations import read_lvis

URL = "http://images.cocodataset.org/train2017/{:012d}.jpg"

SMALL = {
    "info": {"year": 2020},
    "licenses": [{"id": 1, "name": "?"}],
    "images": [
        {"id": 391895, "width": 640, "height": 360, "coco_url": URL.format(391895), "neg_category_ids": [2]},
        {"id": 17, "width": 100, "height": 50, "coco_url": "http://images.cocodataset.org/val2017/000000000017.jpg"},
    ],
    "categories": [
        {"id": 2, "name": "鳥", "image_count": 1, "frequency": "r", "synonyms": ["a", "b"], "def": "d", "synset": "x"},
        {"id": 1, "name": "apple", "image_count": 2, "frequency": "f", "instance_count": 2},
    ],
    "annotations": [
        {
            "id": 9,
            "image_id": 17,
            "category_id": 1,
            "bbox": [1, 2, 3.5, 4],
            "area": 3.0,
            "segmentation": [[1, 2, 3, 4]],
        },
        {"id": 3, "image_id": 391895, "category_id": 2, "bbox": [0, 0, 0, 0], "segmentation": []},
        {
            "id": 4,
            "image_id": 391895,
            "category_id": 1,
            "bbox": [float("nan"), -1, float("inf"), 1e300],
            "segmentation": {"counts": [1, 2], "size": [3, 4]},
        },
    ],
}


def written(folder, content):
    path = folder / "lvis_v1_train.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_what_is_read(tmp_path):
    lvis = read_lvis(written(tmp_path, SMALL))
    assert lvis.image_ids.tolist() == [391895, 17]
    assert lvis.file_names == ("train2017/000000391895.jpg", "val2017/000000000017.jpg")
    assert lvis.widths.tolist() == [640, 100]
    assert lvis.heights.tolist() == [360, 50]
    assert lvis.annotation_ids.tolist() == [9, 3, 4]
    assert lvis.image_index.tolist() == [1, 0, 0]
    assert lvis.class_index.tolist() == [0, 1, 0]
    np.testing.assert_array_equal(lvis.boxes, [[1, 2, 3.5, 4], [0, 0, 0, 0], [float("nan"), -1, float("inf"), 1e300]])
    assert lvis.boxes.dtype == np.float64
    assert lvis.class_names == ("apple", "鳥")
    assert lvis.image_counts.tolist() == [2, 1]
    assert lvis.frequencies == ("f", "r")
    assert lvis.box_counts.tolist() == [2, 1]
    for array in (lvis.image_ids, lvis.image_index, lvis.class_index, lvis.annotation_ids):
        assert array.dtype == np.int64


def test_unescaped_text_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "lvis.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(SMALL, ensure_ascii=False).encode())
    assert read_lvis(path).class_names == ("apple", "鳥")


def test_nothing_annotated(tmp_path):
    lvis = read_lvis(written(tmp_path, {**SMALL, "annotations": []}))
    assert lvis.boxes.shape == (0, 4)
    assert lvis.box_counts.tolist() == [0, 0]
    assert read_lvis(written(tmp_path, {"images": [], "annotations": [], "categories": []})).num_classes == 0


def changed(*keys_and_value):
    *keys, last, value = keys_and_value
    content = copy.deepcopy(SMALL)
    place = content
    for key in keys:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "to be JSON"),
        ("{", "to be JSON"),
        (json.dumps(SMALL)[:-40], "to be JSON"),
        ("[" * 100_000, "to be JSON"),
        ("[]", "a list of images"),
        ("3", "a list of images"),
        (changed("images", None), "a list of images"),
        (changed("annotations", None), "a list of annotations"),
        (changed("categories", {"id": 1}), "a list of categories"),
        *(
            (changed("annotations", 1, key, None), "annotation 1 in")
            for key in ("id", "image_id", "category_id", "bbox")
        ),
        (changed("annotations", 2, "bbox", [1, 2, 3]), "annotation 2 in"),
        (changed("annotations", 2, "bbox", [1, 2, 3, "4"]), "annotation 2 in"),
        (changed("annotations", 2, "bbox", "1234"), "annotation 2 in"),
        (changed("annotations", 2, "bbox", [1, 2, 3, 10**400]), "annotation 2 in"),
        (changed("annotations", 0, "id", 1.5), "annotation 0 in"),
        (changed("annotations", 0, "id", 2**70), "annotation 0 in"),
        (changed("annotations", 0, [1]), "annotation 0 in"),
        *((changed("images", 1, key, None), f"image 1 in .* `{key}`") for key in ("id", "width", "height")),
        (changed("images", 1, "width", "640"), "image 1 in .* `width`"),
        (changed("images", 1, "height", -3), "image 1 in .* `height`"),
        (changed("images", 1, 5), "image 1 in"),
        (changed("images", 1, "coco_url", None), "image 17 in .* `coco_url`"),
        (changed("images", 1, "coco_url", "name.jpg"), "image 17 in .* `coco_url`"),
        (changed("images", 1, "coco_url", "http://x/../name.jpg"), "image 17 in .* `coco_url`"),
        (changed("images", 1, "coco_url", "http://x/train2017/"), "image 17 in .* `coco_url`"),
        *((changed("categories", 0, key, None), f"category .* `{key}`") for key in ("id", "name", "image_count")),
        (changed("categories", 0, "frequency", None), "category 2 in .* `frequency`"),
        (changed("categories", 0, "id", 3), "category ids in .* 1…2, but got 1, 3"),
        (changed("categories", 0, "id", 1), "category ids in .* unique, but got twice: 1"),
        (changed("images", 0, "id", 17), "image ids in .* unique, but got twice: 17"),
        (changed("annotations", 0, "id", 3), "annotation ids in .* unique, but got twice: 3"),
        (changed("annotations", 0, "image_id", 18), "`image_id` in .* but got 18"),
        (changed("annotations", 0, "image_id", 10**9), "`image_id` in .* but got 1000000000"),
        (changed("annotations", 0, "category_id", 0), "`category_id` in .* but got 0"),
        (changed("annotations", 0, "category_id", 3), "`category_id` in .* but got 3"),
    ],
)
def test_what_is_refused(tmp_path, content, message):
    path = written(tmp_path, content)
    with pytest.raises(ValueError, match=message) as caught:
        read_lvis(path)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "x.json").write_bytes(b'{"images": "\xff"}')
    with pytest.raises(ValueError, match="to be JSON"):
        read_lvis(tmp_path / "x.json")


def test_memory_stays_near_the_size_of_the_file(tmp_path):
    outline = [[round(i * 1.37, 2) for i in range(160)]]
    content = {
        **SMALL,
        "annotations": [
            {"id": i, "image_id": 17, "category_id": 1, "bbox": [1.5, 2.5, 3.5, 4.5], "segmentation": outline}
            for i in range(4000)
        ],
    }
    path = written(tmp_path, content)
    size = path.stat().st_size
    tracemalloc.start()
    try:
        lvis = read_lvis(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(lvis.boxes) == 4000
    assert peak < 1.5 * size  # all of it as Python objects takes five times the file
