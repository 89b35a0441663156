"""What `describe` finds in data sets with known faults."""

import math
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.data import ArrayImages, DataSet, Split, describe, from_dataset, open_path
from longtail.data.datasets.describe import draw_tail


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
    found = describe(open_path(birds))
    assert found.name == "birds"
    assert found.class_names == ("sparrow", "鷲")
    assert found.sizes == {"train": 8, "val": 1, "test": 1}
    assert found.counts.tolist() == [6, 2]
    assert found.imbalance_factor == 3
    assert found.groups.sizes == {"head": 0, "medium": 0, "tail": 2}
    assert (found.empty, found.across, found.within, found.conflicting, found.unreadable) == ((), (), (), (), ())


def test_every_fault_at_once(birds):
    picture(birds / "test" / "sparrow" / "copy.bmp", 0)  # the same pixels in another file and split
    picture(birds / "val" / "sparrow" / "copy.png", 0)
    picture(birds / "train" / "sparrow" / "twice.png", 3)
    (birds / "train" / "鷲" / "bad.jpg").write_bytes(b"no image")
    (birds / "test" / "sparrow" / "zero.jpg").touch()
    found = describe(open_path(birds))
    assert found.sizes == {"train": 10, "val": 2, "test": 3}
    assert found.counts.tolist() == [0, 7, 3]  # unreadable files are counted, and named
    assert found.imbalance_factor == pytest.approx(7 / 3)  # of those that have an image
    assert found.empty == ("empty",)
    assert found.across == (("train: sparrow/0.png", "val: sparrow/copy.png", "test: sparrow/copy.bmp"),)
    assert found.within == (("train: sparrow/3.png", "train: sparrow/twice.png"),)
    assert len(found.unreadable) == 2
    assert str(birds / "train" / "鷲" / "bad.jpg") in found.unreadable[0]
    assert str(birds / "test" / "sparrow" / "zero.jpg") in found.unreadable[1]


def test_a_repeated_line(tmp_path):
    picture(tmp_path / "a.png", 0)
    picture(tmp_path / "b.png", 1)
    (tmp_path / "list.csv").write_text("path,label,split\na.png,x,train\na.png,x,train\nb.png,y,train\nb.png,y,test\n")
    found = describe(open_path(tmp_path / "list.csv"))
    assert found.within == (("train: a.png", "train: a.png"),)
    assert found.across == (("train: b.png", "test: b.png"),)


def test_an_image_under_different_labels_is_named_with_them(tmp_path):
    for seed, name in enumerate("abcd"):
        picture(tmp_path / f"{name}.png", seed)
    rows = ["a.png,cat,train", "a.png,dog,train", "b.png,cat,train", "b.png,dog,test", "c.png,cat,train"]
    rows += ["c.png,cat,test", "d.png,dog,train", "d.png,dog,train"]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,split", *rows]))
    found = describe(open_path(tmp_path / "list.csv"))
    assert found.conflicting == (
        ("train: a.png (cat)", "train: a.png (dog)"),
        ("train: b.png (cat)", "test: b.png (dog)"),
    )
    assert [names[0] for names in found.within] == ["train: a.png", "train: d.png"]
    assert [names[0] for names in found.across] == ["train: b.png", "train: c.png"]


def test_the_same_bytes_in_another_shape_are_another_image():
    flat = torch.arange(12, dtype=torch.uint8)
    samples = [(flat.view(1, 3, 4), 0), (flat.view(1, 4, 3), 0), (flat.view(3, 2, 2), 0), (flat.view(1, 3, 4), 1)]
    found = describe(DataSet("made", ("a", "b"), from_dataset(samples)))
    assert found.within == (("train: 0", "train: 3"),)


def test_without_reading_images(birds):
    (birds / "train" / "sparrow" / "bad.jpg").write_bytes(b"no image")
    calls = []
    found = describe(open_path(birds), read_images=False, progress=calls.append)
    assert found.counts.tolist() == [0, 7, 2]
    assert found.empty == ("empty",)
    assert found.unreadable == found.across == found.within == found.conflicting == ()
    assert calls == []


@pytest.mark.parametrize("workers", [4])
def test_progress_counts_every_image_once(birds, workers):
    (birds / "train" / "sparrow" / "bad.jpg").write_bytes(b"no image")
    calls = []
    describe(open_path(birds), progress=calls.append, workers=workers)
    assert sum(calls) == 11


def test_no_images_at_all():
    none = Split(ArrayImages(torch.zeros(0, 3, 2, 2, dtype=torch.uint8)), torch.zeros(0, dtype=torch.int64))
    found = describe(DataSet("none", ("a", "b"), none))
    assert found.sizes == {"train": 0}
    assert found.empty == ("a", "b")
    assert math.isnan(found.imbalance_factor)


def test_warning_filters_are_restored(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(200):
        pixels = rng.integers(0, 256, (60, 60, 3), dtype=np.uint8)
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "a" / f"{number}.jpg")
    data = open_path(tmp_path)
    before = list(warnings.filters)
    for _ in range(3):
        describe(data, workers=8)
        assert list(warnings.filters) == before


def png_size(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert len(set(image.convert("RGB").getcolors(1 << 20))) > 2  # something is drawn
        return image.size


@pytest.mark.parametrize("counts", [[500, 60, 5], [0, 0], [300] * 2000])
def test_the_tail_is_drawn(tmp_path, counts):
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    images = ArrayImages(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8))
    data = DataSet("made", tuple(map(str, range(len(counts)))), Split(images, labels))
    draw_tail(describe(data, read_images=False), tmp_path / "tail.png")
    width, height = png_size(tmp_path / "tail.png")
    assert width > height > 100


@pytest.mark.parametrize("name", ["鳥", "costs $x_{$"])
def test_the_tail_of_a_data_set_of_any_name_is_drawn(tmp_path, name):
    labels = torch.tensor([0, 0, 1])
    data = DataSet(name, ("a", "b"), Split(ArrayImages(torch.zeros(3, 1, 1, 1, dtype=torch.uint8)), labels))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a font need not have every script
        draw_tail(describe(data, read_images=False), tmp_path / "tail.png")
    assert png_size(tmp_path / "tail.png")


def test_the_legend_of_one_class(tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    drawn, close = [], plt.close
    monkeypatch.setattr(plt, "close", lambda figure: drawn.append(figure) or close(figure))
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor([200, 5, 4]))
    data = DataSet("made", ("a", "b", "c"), Split(ArrayImages(torch.zeros(209, 1, 1, 1, dtype=torch.uint8)), labels))
    draw_tail(describe(data, read_images=False), tmp_path / "tail.png")
    labels = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert labels == ["head (1 class)", "medium (0 classes)", "tail (2 classes)"]
