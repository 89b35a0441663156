"""EXIF orientation and newer formats in every decoder, against Pillow's own transposition."""

import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, ImageOps

from longtail.data import BatchPlan, FileImages, Split, Streaming
from longtail.data.augment import Compose, Resize
from longtail.data.datasets import image_files
from longtail.data.loaders import decode as module
from longtail.data.loaders.decode import decode, image_size, is_rotated, jpeg_header, raw_pixels
from longtail.data.loaders.device_decode import _suits_the_gpu

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def write(path, orientation, endian=">"):
    exif = Image.Exif()
    exif.endian = endian
    exif[0x010F] = "Camera"
    exif[0x0112] = orientation
    Image.fromarray(PIXELS).save(path, exif=exif)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff", "avif"])
def test_images_are_upright(tmp_path, suffix, orientation):
    path = write(tmp_path / f"a.{suffix}", orientation)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert expected.shape == ((20, 30, 3) if orientation < 5 else (30, 20, 3))
    assert torch.equal(decode(path), torch.from_numpy(expected.copy()).permute(2, 0, 1))
    assert image_size(path) == expected.shape[:2]
    if suffix != "tiff":  # Pillow itself turns them
        assert is_rotated(path) is (orientation != 1)
    with Image.open(path) as image:  # as a torchvision data set returns it, and as `predict` gets it
        assert torch.equal(raw_pixels(image.convert("RGB")), decode(path))


@pytest.mark.parametrize("endian", "<>")
@pytest.mark.parametrize("orientation", [1, 6])
def test_only_upright_jpegs_go_to_the_gpu(tmp_path, orientation, endian):
    path = write(tmp_path / "a.jpg", orientation, endian)
    assert (b"II*\0" if endian == "<" else b"MM\0*") in path.read_bytes()
    assert jpeg_header(path.read_bytes())[:2] == (20, 30)
    assert _suits_the_gpu(bytearray(path.read_bytes())) is (orientation == 1)
    assert decode(path).shape == ((3, 20, 30) if orientation == 1 else (3, 30, 20))


def test_orientation_in_xmp(tmp_path):
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/" tiff:Orientation="6"></x:xmpmeta>'
    Image.fromarray(PIXELS).save(tmp_path / "a.jpg", xmp=xmp)
    assert decode(tmp_path / "a.jpg").shape == (3, 30, 20)
    assert not _suits_the_gpu(bytearray((tmp_path / "a.jpg").read_bytes()))


def test_damaged_metadata_does_not_make_an_image_unreadable(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    assert decode(tmp_path / "a.jpg").shape == (3, 20, 30)
    assert not _suits_the_gpu(bytearray((tmp_path / "a.jpg").read_bytes()))  # Pillow decides


def test_all_loaders_see_the_same_pixels(tmp_path):
    for orientation in range(1, 9):
        write(tmp_path / f"{orientation}.jpg", orientation)
    labels = torch.zeros(8, dtype=torch.int64)
    split = Split(FileImages(tmp_path, [f"{o}.jpg" for o in range(1, 9)]), labels)
    plan = BatchPlan(labels, (Compose((Resize((16, 16)),)),), 8)
    expected = torch.cat([Resize((16, 16))(decode(split.images.path(i))[None]) for i in range(8)])
    loaders = [
        Streaming(split, plan),
        Streaming(split, plan, decode_in="device", workers=1),
    ]
    for loader in loaders:
        (batch,) = loader.evaluation()
        assert torch.equal(batch.views[0], expected)


def test_heic_is_read_if_pillow_heif_is_installed(tmp_path, monkeypatch):
    """A stand-in for the package, which registers a reader like it does."""

    class Heif(ImageFile.ImageFile):
        format = "HEIF"

        def _open(self):
            self._size, self._mode = (2, 3), "RGB"
            self.tile = [ImageFile._Tile("raw", (0, 0, 2, 3), 12, ("RGB", 0, 1))]

    def register_heif_opener():
        Image.register_open("HEIF", Heif, lambda start: start[4:12] == b"ftypheic")

    (tmp_path / "a.heic").write_bytes(b"\0\0\0\0ftypheic" + bytes(range(18)))
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    module.image_formats.cache_clear()
    image_files.image_suffixes.cache_clear()
    try:
        assert not image_files.is_image("a.heic")
        with pytest.raises(module.UnreadableImageError):
            decode(tmp_path / "a.heic")
        fake = types.SimpleNamespace(register_heif_opener=register_heif_opener)
        monkeypatch.setitem(sys.modules, "pillow_heif", fake)
        module.image_formats.cache_clear()
        image_files.image_suffixes.cache_clear()
        assert image_files.is_image("a.HEIC")
        assert decode(tmp_path / "a.heic").permute(1, 2, 0).flatten().tolist() == list(range(18))
    finally:
        Image.OPEN.pop("HEIF", None)
        module.image_formats.cache_clear()
        image_files.image_suffixes.cache_clear()


def test_turned_tiff_in_cmyk(tmp_path):
    """Pillow swaps the sides of such a TIFF before it is read, and does not turn its pixels."""
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.random.default_rng(0).integers(0, 256, (10, 20, 4), dtype=np.uint8)
    Image.fromarray(pixels, "CMYK").save(tmp_path / "a.tiff", exif=exif)
    with Image.open(tmp_path / "a.tiff") as image:
        expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(decode(tmp_path / "a.tiff").permute(1, 2, 0).numpy(), expected)
    assert image_size(tmp_path / "a.tiff") == expected.shape[:2]
