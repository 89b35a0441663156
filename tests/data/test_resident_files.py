"""Files made resident: what streaming would give from images shrunk first, within what the device has room for."""

import os

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.data import ArrayImages, BatchPlan, FileImages, ResidentFiles, Split, Streaming, UnreadableImageError
from longtail.data.augment import CentreCrop, ColorJitter, Compose, Normalise, RandomFlip, RandomResizedCrop, Resize
from longtail.data.loaders import decode as cpu
from longtail.data.loaders import resident_files as module

NORMALISE = Normalise((0.0, 0.0, 0.0), (1 / 255,) * 3)  # levels as floats
WEAK = Compose((RandomResizedCrop(20), RandomFlip(), NORMALISE))
STRONG = Compose((RandomResizedCrop(16), ColorJitter(0.4, 0.4, 0.4), NORMALISE))
PLAIN = Compose((Resize(32), CentreCrop(28), NORMALISE))
SIZES = [(50, 70), (70, 50), (32, 32), (20, 90), (64, 48), (33, 200), (31, 31), (40, 40), (90, 91), (35, 64), (8, 8)]
N = len(SIZES)


@pytest.fixture
def files(tmp_path):
    """PNG files, so that results do not depend on a JPEG decoder."""
    generator = np.random.default_rng(0)
    for i, (high, wide) in enumerate(SIZES):
        Image.fromarray(generator.integers(0, 256, (high, wide, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    return Split(FileImages(tmp_path, [f"{i}.png" for i in range(N)]), torch.arange(N) % 3)


def shrunk_by_hand(files, folder, short_side):
    """The files again, shrunk by the same augmentation and saved without loss."""
    folder.mkdir()
    for i, name in enumerate(files.images.names):
        image = files.images[i][None]
        if min(image.shape[2:]) > short_side:
            image = Resize(short_side)(image)
        Image.fromarray(image[0].permute(1, 2, 0).numpy()).save(folder / name)
    return Split(FileImages(folder, files.images.names), files.labels)


def plan(views, **more):
    return BatchPlan(torch.arange(N) % 3, views, more.pop("batch_size", 4), **more)


def assert_close(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.indices, b.indices)
        assert torch.equal(a.labels, b.labels)
        for x, y, levels in zip(a.views, b.views, (1, 3), strict=False):
            difference = (x - y).abs()
            assert difference.max() < levels + 0.01  # another order of sums rounds some pixels to the next level
            assert (difference > 0.01).float().mean() < 0.01


@pytest.mark.parametrize("short_side", [32, 1000])
def test_batches_are_those_of_streaming_from_shrunk_files(files, tmp_path, short_side):
    small = shrunk_by_hand(files, tmp_path / "small", short_side)
    loader = ResidentFiles(files, plan((WEAK, STRONG)), short_side=short_side)
    expected = list(Streaming(small, plan((WEAK, STRONG))).training(3, 1))
    assert_close(list(loader.training(3, 1)), expected)
    assert_close(list(loader.training(3, 1, start=1)), expected[1:])
    assert not torch.equal(next(loader.training(3, 2)).indices, expected[0].indices)


def test_evaluation_sees_the_same_pixels_as_from_the_files(files):
    expected = list(Streaming(files, plan((PLAIN,))).evaluation())
    found = list(ResidentFiles(files, plan((PLAIN,)), short_side=32).evaluation())
    assert [batch.indices.tolist() for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.views[0], b.views[0])


def test_another_plan_over_the_same_images(files):
    training = ResidentFiles(files, plan((WEAK,)), short_side=32)
    evaluation = training.with_plan(plan((PLAIN,)))
    assert evaluation.images is training.images
    assert_close(list(evaluation.evaluation()), list(ResidentFiles(files, plan((PLAIN,)), short_side=32).evaluation()))
    assert len(list(training.training(0, 0))) == 3


def test_images_are_shrunk_to_the_short_side(files):
    loader = ResidentFiles(files, plan((WEAK,)), short_side=32)
    expected = [  # the shorter side 32, the other in proportion, cut off; small ones as they are
        *((32, 44), (44, 32), (32, 32), (20, 90), (42, 32), (32, 193), (31, 31), (32, 32), (32, 32), (32, 58), (8, 8))
    ]
    assert [tuple(loader.images[i].shape[1:]) for i in range(N)] == expected
    assert loader.images.pixels.numel() == 3 * sum(high * wide for high, wide in expected)
    assert loader.images.pixels.dtype == torch.uint8
    assert torch.equal(loader.images[10], files.images[10])


@pytest.mark.parametrize("values", [1, 3 * 50 * 70 * 2])
def test_shrinking_images_together_or_alone_is_the_same(tmp_path, monkeypatch, values):
    """Some sizes several times, in any order, with a bad file and small ones between; two at a time, or all."""
    generator = np.random.default_rng(1)
    sizes = [(50, 70), (70, 50), (50, 70), (10, 12), (50, 70), (64, 64), (70, 50), (50, 70), (33, 32)]
    for i, size in enumerate(sizes):
        Image.fromarray(generator.integers(0, 256, (*size, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    whole = (tmp_path / "4.png").read_bytes()
    (tmp_path / "4.png").write_bytes(whole[: len(whole) // 2])
    split = Split(FileImages(tmp_path, [f"{i}.png" for i in range(len(sizes))]), torch.zeros(len(sizes)).long())
    monkeypatch.setattr(module, "_VALUES", values)
    monkeypatch.setattr(module, "_TOGETHER", 5)
    loader = ResidentFiles(split, BatchPlan(split.labels, (WEAK,), 4), short_side=32, bad_images="skip")
    assert list(loader.unreadable) == [str(tmp_path / "4.png")]
    for i, size in enumerate(sizes):
        if i != 4:
            image = split.images[i][None]
            expected = Resize(32)(image)[0] if min(size) > 32 else image[0]
            assert torch.equal(loader.images[i], expected)
    assert not loader.images[4].any()


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"comment": b"x" * 40_000}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_headers_of_jpegs_are_read_without_pillow_where_that_is_safe(tmp_path, mode, options):
    path = tmp_path / "a.jpg"
    Image.new(mode, (70, 50)).save(path, **options)
    quick = module._jpeg_size(str(path))
    assert quick == (None if mode == "CMYK" or "comment" in options else (50, 70))
    assert module._shrunk_size(str(path), 32) == (32, 44)


def test_other_headers_are_read_by_pillow(tmp_path, monkeypatch):
    for name, content in (("empty", b""), ("short", b"\xff\xd8\xff"), ("text", b"no image"), ("cut", b"\xff\xd8" * 9)):
        (tmp_path / name).write_bytes(content)
        assert module._jpeg_size(str(tmp_path / name)) is None
        assert isinstance(module._shrunk_size(str(tmp_path / name), 32), UnreadableImageError)
    os.mkfifo(tmp_path / "pipe")  # without a writer
    for name in ("nowhere", "pipe"):
        assert module._jpeg_size(str(tmp_path / name)) is None
        assert isinstance(module._shrunk_size(str(tmp_path / name), 32), UnreadableImageError)
    assert module._jpeg_size(str(tmp_path)) is None
    Image.new("RGB", (70, 50)).save(tmp_path / "a.jpg")
    monkeypatch.setattr(cpu, "MAX_PIXELS", 2000)
    assert module._jpeg_size(str(tmp_path / "a.jpg")) is None
    assert "70 x 50 pixels" in str(module._shrunk_size(str(tmp_path / "a.jpg"), 32))


def damage(files):
    """One that has no header, one whose pixels are cut off, one that is not there."""
    root = files.images.root
    (root / "1.png").write_bytes(b"no image")
    whole = (root / "4.png").read_bytes()
    (root / "4.png").write_bytes(whole[: len(whole) // 2])
    (root / "9.png").unlink()
    return {1, 4, 9}


def test_bad_images_raise_an_error_with_names_and_number(files):
    bad = damage(files)
    with pytest.raises(UnreadableImageError) as caught:
        ResidentFiles(files, plan((WEAK,)), short_side=32)
    for i in bad:
        assert str(files.images.path(i)) in str(caught.value)
    assert "3 of 11 images cannot be read" in str(caught.value)


def test_bad_images_are_left_out_and_listed(files):
    whole = {}
    for batch in ResidentFiles(files, plan((WEAK,)), short_side=32).training(0, 0):
        whole |= dict(zip(batch.indices.tolist(), batch.views[0], strict=True))
    bad = damage(files)
    loader = ResidentFiles(files, plan((WEAK,)), short_side=32, bad_images="skip")
    assert set(loader.unreadable) == {str(files.images.path(i)) for i in bad}
    found = {}
    for batch in loader.training(0, 0):
        assert torch.equal(batch.labels, files.labels[batch.indices])
        found |= dict(zip(batch.indices.tolist(), batch.views[0], strict=True))
    assert set(found) == set(range(N)) - bad
    for i, image in found.items():  # the others are what they would have been
        assert (image - whole[i]).abs().max() <= 1.01
    assert [batch.indices.tolist() for batch in loader.with_plan(plan((PLAIN,), batch_size=1)).evaluation()] == [
        [i] for i in range(N) if i not in bad
    ]


def test_images_that_do_not_fit_are_refused_before_decoding(files, monkeypatch):
    decoded = []
    monkeypatch.setattr(module, "decoded_ahead", lambda *given, **more: decoded.append(given))
    needed = 3 * sum(high * wide for high, wide in SIZES)
    monkeypatch.setattr(module, "_free_bytes", lambda device: needed - 1)
    with pytest.raises(ValueError, match="Expected the images to fit into") as caught:
        ResidentFiles(files, plan((WEAK,)))
    assert f"{(needed - 1) / 1e9:.3g} GB that cpu has free" in str(caught.value)
    assert f"but they need {needed / 1e9:.3g} GB" in str(caught.value)
    assert decoded == []


def test_a_sample_is_enough_to_refuse(files, monkeypatch):
    measured = []
    size = module.image_size
    monkeypatch.setattr(module, "image_size", lambda path: (measured.append(path), size(path))[1])
    monkeypatch.setattr(module, "_SAMPLE", 3)
    monkeypatch.setattr(module, "_free_bytes", lambda device: 10)
    with pytest.raises(ValueError, match="fit into"):
        ResidentFiles(files, plan((WEAK,)))
    assert len(measured) == 4  # every third of eleven


def test_free_memory_of_the_cpu():
    free = module._free_bytes(torch.device("cpu"))
    assert free is None or 2**20 < free < 2**50
    assert module._free_bytes(torch.device("meta")) is None


def test_bad_arguments(files):
    with pytest.raises(TypeError, match="image files"):
        ResidentFiles(
            Split(ArrayImages(torch.zeros(1, 3, 2, 2, dtype=torch.uint8)), torch.zeros(1).long()), plan((WEAK,))
        )
    for name, value in (("short_side", 0), ("workers", 0), ("bad_images", "repair")):
        with pytest.raises(ValueError, match=f"`{name}`"):
            ResidentFiles(files, plan((WEAK,)), **{name: value})
