"""LVIS crops: against Pillow's own cutting, with every kind of bad box and bad file, stopped at any moment."""

import json
import math
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.data.loaders.decode import UnreadableImageError, decode
from reproduction.lvis import crops as lvis_crops
from reproduction.lvis.crops import build_lvis_crops, lvis_counts, lvis_groups, read_lvis_crops
from reproduction.lvis.shards import ShardImages
from reproduction.lvis.windows import Window, cut_window, window

NAN, INF = float("nan"), float("inf")
SIZES = {30: (64, 48), 10: (33, 70), 20: (50, 50), 5: (20, 90), 40: (7, 5)}  # width, height by image id
BOXES = {  # annotation id: image id, category id, box
    7: (30, 1, [10.0, 5.0, 20.0, 10.0]),
    3: (30, 2, [10.25, 5.5, 13.37, 31.01]),
    1: (30, 1, [0.0, 0.0, 64.0, 48.0]),
    12: (10, 3, [20.0, 60.0, 13.0, 10.0]),  # in the corner
    2: (10, 2, [-5.0, -8.0, 20.0, 20.0]),  # half outside
    4: (20, 1, [0.0, 10.0, 3.0, 35.0]),  # at the border
    5: (20, 3, [49.0, 49.0, 1.0, 1.0]),
    6: (5, 1, [3.3, 10.7, 15.9, 60.2]),
    8: (40, 2, [1.0, 1.0, 2.5, 2.5]),
    20: (20, 1, [10.0, 10.0, 0.0, 10.0]),
    21: (20, 1, [10.0, 10.0, 10.0, 0.99]),
    22: (20, 1, [10.0, 10.0, -4.0, 10.0]),
    23: (20, 2, [49.5, 10.0, 10.0, 10.0]),  # half a pixel of it is in the image
    24: (30, 2, [64.0, 10.0, 10.0, 10.0]),
    25: (30, 2, [10.0, -20.0, 10.0, 20.0]),
    26: (30, 3, [NAN, 10.0, 10.0, 10.0]),
    27: (30, 3, [10.0, 10.0, INF, 10.0]),
}
DROPPED = {
    **dict.fromkeys((20, 21, 22, 23), "empty"),
    **dict.fromkeys((24, 25), "outside"),
    **dict.fromkeys((26, 27), "not-finite"),
}


def name_of(image):
    return f"train2017/{image:012d}.{'png' if image % 20 else 'jpg'}"


def annotations(boxes, sizes, classes=3):
    return {
        "images": [
            {"id": i, "width": w, "height": h, "coco_url": f"http://images.cocodataset.org/{name_of(i)}"}
            for i, (w, h) in sizes.items()
        ],
        "categories": [
            {"id": c + 1, "name": f"class {c}", "image_count": (200, 50, 5)[c % 3], "frequency": "fcr"[c % 3]}
            for c in range(classes)
        ],
        "annotations": [
            {"id": a, "image_id": i, "category_id": c, "bbox": box, "segmentation": [[1.5, 2, 3, 4, 5, 6]], "area": 9.0}
            for a, (i, c, box) in boxes.items()
        ],
    }


@pytest.fixture
def coco(tmp_path):
    """A folder of images and its JSON."""
    generator = np.random.default_rng(0)
    (tmp_path / "coco" / "train2017").mkdir(parents=True)
    for image, (width, height) in SIZES.items():
        mode = "L" if image == 5 else "RGB"
        shape = (height, width) if mode == "L" else (height, width, 3)
        pixels = Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8))
        pixels.save(tmp_path / "coco" / name_of(image))
    (tmp_path / "lvis.json").write_text(json.dumps(annotations(BOXES, SIZES)))
    return tmp_path


def build(coco, out="out", **options):
    options = {"size": 24, "samples_per_shard": 2, **options}
    return build_lvis_crops(coco / "lvis.json", coco / "coco", coco / out, **options)


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def dropped(folder):
    return [json.loads(line) for line in (folder / "dropped.jsonl").read_text().splitlines()]


def half_up(value):
    return math.floor(value + Fraction(1, 2))


def reference_window(box, width, height):
    """In exact fractions."""
    x, y, w, h = map(Fraction, box)
    left, right, top, bottom = max(x, 0), min(x + w, width), max(y, 0), min(y + h, height)
    side = half_up(max(right - left, bottom - top))
    column, row = half_up((left + right) / 2 - Fraction(side, 2)), half_up((top + bottom) / 2 - Fraction(side, 2))
    return max(column, 0), max(row, 0), min(column + side, width), min(row + side, height)


def reference_crop(path, box, size):
    """By Pillow alone."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    cut = image.crop(reference_window(box, *image.size))
    longest = max(cut.size)
    resized = cut.resize([max(1, half_up(Fraction(s * size, longest))) for s in cut.size], Image.Resampling.BILINEAR)
    square = Image.new("RGB", (size, size))
    square.paste(resized, ((size - resized.width) // 2, (size - resized.height) // 2))
    return np.asarray(square).transpose(2, 0, 1)


def test_crops_are_those_of_pillow_in_order(coco):
    report = build(coco)
    images = ShardImages(coco / "out")
    wanted = sorted((i, a) for a, (i, _, _) in BOXES.items() if a not in DROPPED)
    assert images.ids.tolist() == [a for _, a in wanted]
    assert images.labels.tolist() == [BOXES[a][1] - 1 for _, a in wanted]
    for place, (image, annotation) in enumerate(wanted):
        reference = reference_crop(coco / "coco" / name_of(image), BOXES[annotation][2], 24)
        assert np.abs(images[place].numpy().astype(int) - reference).max() <= 1, annotation
    assert report.crops == len(wanted)
    assert report.boxes == len(BOXES)


@pytest.mark.parametrize("size", [1, 7, 224])
def test_any_size(coco, size):
    build(coco, size=size)
    images = ShardImages(coco / "out")
    assert images.shape == (3, size, size)
    for annotation, image in zip(images.ids.tolist(), images, strict=True):
        reference = reference_crop(coco / "coco" / name_of(BOXES[annotation][0]), BOXES[annotation][2], size)
        assert np.abs(image.numpy().astype(int) - reference).max() <= 1


def test_windows_in_exact_arithmetic():
    generator = np.random.default_rng(3)
    kept = 0
    for _ in range(3000):
        width, height = generator.integers(1, 60, 2).tolist()
        box = np.round(generator.uniform([-20, -20, 0.5, 0.5], [60, 60, 70, 70]), 2).tolist()
        found = window(box, width, height)
        exact = [Fraction(value) for value in box]
        across = min(exact[0] + exact[2], width) - max(exact[0], 0)
        down = min(exact[1] + exact[3], height) - max(exact[1], 0)
        if box[2] < 1 or box[3] < 1:
            assert found == "empty"
        elif across <= 0 or down <= 0:
            assert found == "outside"
        elif across < 1 or down < 1:
            assert found == "empty"
        else:
            kept += 1
            assert isinstance(found, Window)
            assert 0 <= found.left < found.right <= width
            assert 0 <= found.top < found.bottom <= height
            difference = np.abs(np.subtract(found, reference_window(box, width, height)))
            assert difference.max() <= 1  # floats may tip a half that fractions do not
    assert kept > 500


def test_a_window_within_the_image_is_a_square_around_the_box():
    assert window([100, 100, 37.4, 12], 640, 480) == (100, 88, 137, 125)
    assert window([100, 100, 12, 37.5], 640, 480) == (87, 100, 125, 138)
    assert window([0.1 + 0.2, 5, 10.5, 3], 640, 480) == window([0.3, 5, 10.5, 3], 640, 480)


def test_padding_is_black_and_even():
    crop = cut_window(torch.full((3, 10, 40), 200, dtype=torch.uint8), Window(0, 0, 40, 10), 20)
    assert (crop[:, 7:12] == 200).all()
    assert not crop[:, :7].any()
    assert not crop[:, 12:].any()


def test_what_was_dropped_is_listed_with_its_reason(coco):
    report = build(coco)
    listed = dropped(coco / "out")
    assert {line["annotation"]: line["reason"] for line in listed} == DROPPED
    assert len(listed) == len(DROPPED)
    assert report.dropped == Counter(DROPPED.values()) == {"empty": 4, "outside": 2, "not-finite": 2}
    nan = next(line for line in listed if line["annotation"] == 26)
    assert nan["box"] == ["nan", 10.0, 10.0, 10.0]
    assert (nan["image"], nan["file"], nan["class"]) == (30, name_of(30), "class 2")
    assert report.counts_before == tuple(sum(c == k for _, c, _ in BOXES.values()) for k in (1, 2, 3))
    kept = [c for a, (_, c, _) in BOXES.items() if a not in DROPPED]
    assert report.counts_after == tuple(kept.count(k) for k in (1, 2, 3))
    assert report.differences == ()
    on_disk = json.loads((coco / "out" / "report.json").read_text())
    assert on_disk["counts_after"] == list(report.counts_after)
    assert on_disk["dropped"] == report.dropped


def damage(coco):
    """A missing image, one cut off, an empty one, one of another size: their boxes by reason."""
    paths = {i: coco / "coco" / name_of(i) for i in SIZES}
    paths[5].unlink()
    paths[10].write_bytes(paths[10].read_bytes()[:-2000])
    paths[40].write_bytes(b"")
    Image.new("RGB", (48, 64)).save(paths[30])
    reasons = {5: "missing-image", 10: "unreadable-image", 40: "unreadable-image", 30: "wrong-size"}
    return {a: reasons.get(i, DROPPED.get(a)) for a, (i, _, _) in BOXES.items() if i in reasons or a in DROPPED}


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_listed_and_counted(coco, workers):
    wanted = damage(coco)
    report = build(coco, workers=workers, bad_images="skip")
    listed = dropped(coco / "out")
    assert {line["annotation"]: line["reason"] for line in listed} == wanted
    assert report.dropped == Counter(wanted.values())
    assert report.crops == len(BOXES) - len(wanted) == 2
    assert report.emptied == ("class 1",)
    details = {line["image"]: line["detail"] for line in listed}
    assert details[5] == "it does not exist"
    assert "truncated" in details[10]
    assert details[40] == "it is empty"
    assert details[30] == "it has 48 x 64 pixels and not 64 x 48"


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_stop_the_build_with_their_names_and_number(coco, workers):
    sound = {i: (coco / "coco" / name_of(i)).read_bytes() for i in SIZES}
    build(coco, "whole")
    damage(coco)
    with pytest.raises(FileNotFoundError, match=r"these do not exist: train2017/000000000005.png"):
        build(coco, workers=workers)
    (coco / "coco" / name_of(5)).write_bytes(sound[5])
    with pytest.raises(UnreadableImageError, match="truncated") as caught:
        build(coco, workers=workers)
    listed = ", ".join(str(coco / "coco" / name_of(i)) for i in (10, 30, 40))
    assert f"(3 of 5 images cannot be read: {listed})" in str(caught.value)
    for i, content in sound.items():  # mended, it goes on as if nothing had been
        (coco / "coco" / name_of(i)).write_bytes(content)
    build(coco, workers=workers)
    assert files(coco / "out") == files(coco / "whole")
    with pytest.raises(ValueError, match="`bad_images` to be one of 'error', 'skip', but got 'repair'"):
        build(coco, bad_images="repair")


def test_the_wrong_folder_is_no_data_set_without_images(coco):
    (coco / "elsewhere").mkdir()
    with pytest.raises(FileNotFoundError, match=r"Expected all images under .*elsewhere"):
        build_lvis_crops(coco / "lvis.json", coco / "elsewhere", coco / "out")
    with pytest.raises(FileNotFoundError, match="Expected `images` to be a folder"):
        build_lvis_crops(coco / "lvis.json", coco / "nowhere", coco / "out")


def test_each_image_is_decoded_once(coco, monkeypatch):
    seen = []
    monkeypatch.setattr(lvis_crops, "decode", lambda path: (seen.append(path.name), decode(path))[1])
    build(coco)
    assert sorted(seen) == sorted(Path(name_of(i)).name for i in SIZES)
    build(coco)  # all is there
    assert len(seen) == len(SIZES)


def test_workers_make_the_same_bytes(coco):
    build(coco, "alone")
    build(coco, "together", workers=2)
    assert files(coco / "alone") == files(coco / "together")


@pytest.mark.parametrize("stop", range(1, 6))
@pytest.mark.parametrize("per_shard", [2, 3, 100])
def test_stopped_after_any_image_it_goes_on_to_the_same_bytes(coco, stop, per_shard):
    damage(coco)
    Image.new("RGB", SIZES[30], "red").save(coco / "coco" / name_of(30))
    build(coco, "whole", samples_per_shard=per_shard, bad_images="skip")
    reported = []

    def interrupt(name, done, total):
        reported.append((name, done, total))
        if len(reported) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(coco, "cut", samples_per_shard=per_shard, bad_images="skip", progress=interrupt)
    kept = {name: content for name, content in files(coco / "cut").items() if name.startswith("shard")}
    build(coco, "cut", samples_per_shard=per_shard, bad_images="skip", progress=lambda *now: reported.append(now))
    assert files(coco / "cut") == files(coco / "whole")
    assert kept.items() <= files(coco / "cut").items()
    assert reported[-1] == ("lvis.json", len(BOXES), len(BOXES))


BUILD = """
import sys
from reproduction.lvis.crops import build_lvis_crops
build_lvis_crops(*sys.argv[1:4], size=24, samples_per_shard=2, progress=lambda *now: print(now[1], flush=True))
"""


def test_killed_at_a_random_moment_it_goes_on_to_the_same_bytes(coco):
    boxes = {**BOXES, **{100 + a: (a % 6 * 10 or 5, 1 + a % 3, [1.0, 1.0, 2.0 + a % 5, 3.0]) for a in range(60)}}
    boxes = {a: row for a, row in boxes.items() if row[0] in SIZES}
    (coco / "lvis.json").write_text(json.dumps(annotations(boxes, SIZES)))
    build(coco, "whole")
    command = [sys.executable, "-c", BUILD, str(coco / "lvis.json"), str(coco / "coco"), str(coco / "cut")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as child:
        for _ in range(random.randrange(1, 4)):
            assert child.stdout.readline()
        child.send_signal(signal.SIGKILL)
    assert child.returncode in (-signal.SIGKILL, 0)
    build(coco, "cut")
    assert files(coco / "cut") == files(coco / "whole")


HOLD = """
import sys, time
from reproduction.lvis.crops import build_lvis_crops
def hold(*now):
    print("building", flush=True)
    time.sleep(60)
build_lvis_crops(*sys.argv[1:4], size=24, samples_per_shard=2, progress=hold)
"""


def test_two_builders_of_one_folder_and_the_lock_dies_with_its_process(coco):
    command = [sys.executable, "-c", HOLD, str(coco / "lvis.json"), str(coco / "coco"), str(coco / "out")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as child:
        assert child.stdout.readline() == "building\n"
        before = files(coco / "out")
        with pytest.raises(BlockingIOError, match="another process is building"):
            build(coco)
        assert files(coco / "out") == before
        build(coco, "elsewhere")  # only this folder
        child.send_signal(signal.SIGKILL)
    build(coco)
    assert files(coco / "out") == files(coco / "elsewhere")


def test_a_folder_of_another_build_is_refused(coco):
    build(coco)
    for options in ({"size": 25}, {"samples_per_shard": 3}):
        with pytest.raises(ValueError, match=f"same arguments, but its `{next(iter(options))}` differs"):
            build(coco, **options)
    other = {**BOXES, 7: (30, 1, [11.0, 5.0, 20.0, 10.0])}
    (coco / "lvis.json").write_text(json.dumps(annotations(other, SIZES)))
    with pytest.raises(ValueError, match="but its `sha256` differs"):
        build(coco)
    (coco / "out" / "source.json").unlink()
    with pytest.raises(ValueError, match="it has other shards"):
        build(coco)


def test_a_finished_build_is_left_as_it_is_and_reported_again(coco):
    first, before = build(coco), files(coco / "out")
    assert build(coco) == first
    (coco / "out" / "report.json").unlink()  # killed just before the end
    (coco / "out" / "dropped.jsonl").unlink()
    assert build(coco) == first
    assert files(coco / "out") == before


def test_no_boxes_at_all(coco):
    (coco / "lvis.json").write_text(json.dumps(annotations({}, SIZES)))
    assert build(coco).crops == 0
    assert len(ShardImages(coco / "out")) == 0


def test_reading_the_data_set(coco):
    build(coco, "lvis-crops/train")
    with pytest.raises(FileNotFoundError, match=r"Expected whole LVIS crops in .*val, .*lvis build.* lvis_v1_val.json"):
        read_lvis_crops(coco)
    (coco / "lvis.json").write_text(json.dumps(annotations({1: BOXES[7], 2: BOXES[6]}, SIZES)))
    build(coco, "lvis-crops/val")
    dataset = read_lvis_crops(coco)
    assert dataset.name == "lvis-crops"
    assert dataset.class_names == ("class 0", "class 1", "class 2")
    assert len(dataset.test) == 2
    assert dataset.counts.tolist() == [4, 3, 2]
    assert dataset.groups.index == (0, 1, 2)  # 200, 50 and 5 images, whatever the boxes
    assert dataset.train.images[0].shape == (3, 24, 24)
    assert len(dataset.train.subset([1, 2]).images) == 2


def test_splits_that_do_not_belong_together(coco):
    build(coco, "lvis-crops/train")
    (coco / "lvis.json").write_text(json.dumps(annotations(BOXES, SIZES, classes=4)))
    build(coco, "lvis-crops/val")
    with pytest.raises(ValueError, match="the same `class_names`"):
        read_lvis_crops(coco)


def test_groups_of_the_official_set_come_from_the_shipped_counts(coco):
    (coco / "lvis.json").write_text(json.dumps(annotations(BOXES, SIZES, classes=1203)))
    for part in ("train", "val"):
        build(coco, f"lvis-crops/{part}")
    assert read_lvis_crops(coco).groups.sizes == {"head": 405, "medium": 461, "tail": 337}
    assert lvis_groups([101, 100, 11, 10]).index == (0, 1, 1, 2)


def official(boxes_of_class):
    """The training file's classes, all boxes on a few images."""
    names = lvis_counts()["names"]
    content = annotations({}, {5: SIZES[5]})
    content["categories"] = [
        {"id": c + 1, "name": name, "image_count": 1, "frequency": "r"} for c, name in enumerate(names)
    ]
    content["annotations"] = [
        {"id": i, "image_id": 5, "category_id": c + 1, "bbox": [0, 0, 5, 5]} for i, c in enumerate(boxes_of_class)
    ]
    return content


def test_the_official_file_is_compared_with_the_shipped_counts(coco):
    expected = lvis_counts()
    once = [c for c in range(1203) if expected["train"][c] == 1][:2]
    path = coco / "lvis_v1_train.json"
    path.write_text(json.dumps(official([*once, once[1]])))
    report = build_lvis_crops(path, coco / "coco", coco / "out", size=4)
    assert report.differences[0] == "Expected 1270141 boxes, but got 3."
    assert not any(f"class {once[0]} " in sentence for sentence in report.differences)
    wanted = f"Expected class {once[1]} ({expected['names'][once[1]]}) to have 1 boxes, but got 2."
    assert wanted in report.differences
    assert len(report.differences) == 1 + 1202 + 1201  # the total; boxes of all but one class, images of all but two
    path.rename(coco / "lvis_v1_val.json")
    assert build_lvis_crops(coco / "lvis_v1_val.json", coco / "coco", coco / "val", size=4).differences == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"size": 0}, "`size`"), ({"workers": -1}, "`workers`"), ({"samples_per_shard": 0}, "`samp")],
)
def test_bad_arguments(coco, options, message):
    with pytest.raises(ValueError, match=message):
        build(coco, **options)
