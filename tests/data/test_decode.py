"""Image files of every kind against Pillow's own result, and files that are none."""

import contextlib
import io
import json
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from longtail.data import BatchPlan, FileImages, Streaming, UnreadableImageError, decode, describe_dataset
from longtail.data.augment import RandomResizedCrop
from longtail.data.datasets.splits import DataSet, Split
from longtail.data.loaders.decode import _quiet, image_size

RANDOM = np.random.default_rng(0)
RGB = RANDOM.integers(0, 256, (9, 7, 3), dtype=np.uint8)
RGBA = RANDOM.integers(0, 256, (9, 7, 4), dtype=np.uint8)
SMOOTH = np.stack(np.broadcast_arrays(*np.ogrid[0:240:12, 0:240:10], 90), axis=2).astype(np.uint8)  # (20, 24, 3)


def saved(path, image, **options):
    image.save(path, **options)
    return path


def pillows(path):
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


PLAIN = {
    "rgb.png": (Image.fromarray(RGB), {}),
    "rgb.bmp": (Image.fromarray(RGB), {}),
    "rgb.ppm": (Image.fromarray(RGB), {}),
    "rgb.tiff": (Image.fromarray(RGB), {}),
    "rgb.jpg": (Image.fromarray(SMOOTH), {"quality": 90}),
    "progressive.jpg": (Image.fromarray(SMOOTH), {"progressive": True}),
    "lossless.webp": (Image.fromarray(RGB), {"lossless": True}),
    "grey.png": (Image.fromarray(RGB[..., 0]), {}),
    "grey.jpg": (Image.fromarray(SMOOTH[..., 0]), {}),
    "one bit.png": (Image.fromarray(RGB[..., 0] > 127), {}),
    "one bit.tiff": (Image.fromarray(RGB[..., 0] > 127), {}),
    "palette.png": (Image.fromarray(RGB).quantize(8), {}),
    "palette.gif": (Image.fromarray(RGB).quantize(8), {}),
    "cmyk.jpg": (Image.fromarray(SMOOTH).convert("CMYK"), {}),
    "cmyk.tiff": (Image.fromarray(RGBA, "CMYK"), {}),
    "transparent.png": (Image.fromarray(RGBA), {}),
    "transparent.webp": (Image.fromarray(RGBA), {"lossless": True, "exact": True}),
    "grey with alpha.png": (Image.fromarray(RGBA).convert("LA"), {}),
    "palette, one colour transparent.png": (Image.fromarray(RGB).quantize(8), {"transparency": 3}),
    "palette, each colour as transparent.png": (Image.fromarray(RGB).quantize(8), {"transparency": bytes(range(8))}),
    "one pixel.png": (Image.fromarray(RGB[:1, :1]), {}),
    "a column.png": (Image.fromarray(RGB[:, :1]), {}),
    "鳥.png": (Image.fromarray(RGB), {}),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:PIL", "ignore:Palette images with Transparency")
def test_pixels_equal_those_of_pillow(tmp_path):
    for name, (image, options) in PLAIN.items():
        path = saved(tmp_path / name, image, **options)
        pixels = decode(path)
        assert pixels.dtype == torch.uint8
        assert pixels.is_contiguous()
        assert pixels.shape == (3, image.height, image.width), name
        assert torch.equal(pixels, pillows(path)), name
        pixels.add_(1)  # it is writable


def test_known_pixels(tmp_path):
    path = saved(tmp_path / "x.png", Image.fromarray(RGB))
    assert torch.equal(decode(path), torch.from_numpy(RGB).permute(2, 0, 1))
    path = saved(tmp_path / "t.png", Image.fromarray(RGBA))  # transparency is dropped, colours stay
    assert torch.equal(decode(path), torch.from_numpy(RGBA[..., :3]).permute(2, 0, 1))
    path = saved(tmp_path / "g.png", Image.fromarray(RGB[..., 0]))
    assert torch.equal(decode(path), torch.from_numpy(RGB[..., 0]).expand(3, -1, -1))


@pytest.mark.parametrize("name", ["x.png", "x.tiff"])
def test_sixteen_bits_become_eight(tmp_path, name):
    wide = np.linspace(0, 65535, 13 * 11).round().astype(np.uint16).reshape(13, 11)
    path = saved(tmp_path / name, Image.fromarray(wide))
    expected = torch.from_numpy((wide / 257).round().astype(np.uint8))  # 0 → 0, 65535 → 255
    found = decode(path)
    assert found.shape == (3, 13, 11)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert (found[0].int() - expected.int()).abs().max() <= 1


def test_a_dark_image_of_sixteen_bits_stays_dark(tmp_path):
    """The level of a pixel does not depend on its neighbours: 200 of 65535 is black."""
    dark = np.full((4, 4), 200, dtype=np.uint16)
    bright = dark.copy()
    bright[0, 0] = 65535
    alone, beside = (
        decode(saved(tmp_path / name, Image.fromarray(wide)))
        for name, wide in (("dark.png", dark), ("bright.png", bright))
    )
    assert torch.equal(alone[:, 1:], beside[:, 1:])


def test_floating_point_pixels_are_refused(tmp_path):
    """Their range is unknown; a guess would make some of them black."""
    for scale in (1.0, 255.0):
        path = saved(tmp_path / "x.tiff", Image.fromarray(RGB[..., 0].astype(np.float32) / 255 * scale))
        assert "floating-point" in refusal(path)
        with pytest.raises(UnreadableImageError, match="floating-point"):
            image_size(path)


def test_size_from_the_header(tmp_path):
    assert image_size(saved(tmp_path / "x.png", Image.fromarray(RGB))) == (9, 7)
    whole = jpeg((64, 48))
    (tmp_path / "cut off.jpg").write_bytes(whole[:800])
    assert image_size(tmp_path / "cut off.jpg") == (48, 64)  # its pixels are not read
    for name, content in {"empty.jpg": b"", "text.jpg": b"this is no image"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UnreadableImageError) as caught:
            image_size(tmp_path / name)
        assert str(caught.value) == refusal(tmp_path / name)


@pytest.mark.parametrize("name", ["x.gif", "x.webp", "x.png", "x.tiff"])
def test_the_first_frame_of_an_animation(tmp_path, name):
    frames = [Image.new("RGB", (6, 5), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    path = saved(
        tmp_path / name,
        frames[0],
        save_all=True,
        append_images=frames[1:],
        **{"x.webp": {"lossless": True}}.get(name, {}),
    )
    with Image.open(path) as image:
        assert image.n_frames == 3
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(3, 1, 1).expand(3, 5, 6)
    assert torch.equal(decode(path), red)


def jpeg(size=(64, 48)):
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    file = io.BytesIO()
    noise.save(file, "JPEG")
    return file.getvalue()


def refusal(path):
    with pytest.raises(UnreadableImageError) as caught:
        decode(path)
    message = str(caught.value)
    assert caught.value.path == path
    assert message.startswith(f"Expected {path} to be an image, but ")
    assert message.endswith(".")
    assert not message.endswith("..")
    assert "\n" not in message
    assert caught.value.__cause__ is None  # a person is shown one sentence, not two tracebacks
    return message


def test_files_that_are_not_images(tmp_path):
    contents = {
        "empty.jpg": b"",
        "text.jpg": b"this is no image\n" * 10,
        "page.png": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
        "zeros.png": bytes(1000),
        "cut off.jpg": jpeg()[:800],
        "cut off.png": b"\x89PNG\r\n\x1a\n",
        "only a start.jpg": jpeg()[:20],
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        refusal(tmp_path / name)
    assert "empty" in refusal(tmp_path / "empty.jpg")
    assert "truncated" in refusal(tmp_path / "cut off.jpg")
    assert "does not exist" in refusal(tmp_path / "missing.jpg")
    (tmp_path / "folder.jpg").mkdir()
    refusal(tmp_path / "folder.jpg")
    assert str(tmp_path) in refusal(tmp_path / "folder.jpg")
    refusal(tmp_path / "text.jpg" / "below a file.jpg")


def test_truncated_png(tmp_path):
    file = io.BytesIO()
    Image.fromarray(RGB).save(file, "PNG")
    whole = torch.from_numpy(RGB).permute(2, 0, 1)
    path = tmp_path / "cut.png"
    refused = 0
    for length in range(len(file.getvalue())):
        path.write_bytes(file.getvalue()[:length])
        try:
            assert torch.equal(decode(path), whole)  # only what comes after the pixels may be missing
        except UnreadableImageError:
            refused += 1
    assert refused >= len(file.getvalue()) - 24  # the end chunk, and check sums


@pytest.mark.parametrize("width", [8193, 12000, 30000])  # Pillow warns from 10922 on, and refuses from 21845 on
def test_a_decompression_bomb_is_not_decoded(tmp_path, width):
    path = saved(tmp_path / "bomb.png", Image.new("1", (width, 8192)))
    assert "pixels" in refusal(path)


def test_a_large_image_needs_little_memory_besides_its_pixels(tmp_path):
    """The largest image that is decoded; a copy in float64 would take 0.5 GB."""
    wide = np.arange(8192, dtype=np.uint16)[:, None] * np.ones(8192, dtype=np.uint16) * 8
    path = saved(tmp_path / "wide.png", Image.fromarray(wide), compress_level=1)
    code = f"""
import resource, pathlib
from longtail.data import decode
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pixels = decode(pathlib.Path({str(path)!r}))
print(pixels[2, :, 8191].tolist())
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    column, peak = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.splitlines()
    assert json.loads(column) == (wide[:, 0] / 257).round().tolist()
    assert float(peak) < 400  # MB: 192 for the result, 128 in Pillow


def test_only_documented_formats_are_read(tmp_path):
    """Pillow would start Ghostscript for the first."""
    (tmp_path / "eps.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    saved(tmp_path / "pcx.png", Image.fromarray(RGB), format="PCX")
    for name in ("eps.jpg", "pcx.png"):
        Image.open(tmp_path / name).close()
        assert "cannot identify" in refusal(tmp_path / name)


def test_the_error_can_be_pickled(tmp_path):
    with pytest.raises(UnreadableImageError) as caught:
        decode(tmp_path / "missing.jpg")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is UnreadableImageError
    assert (again.path, again.reason, str(again)) == (caught.value.path, caught.value.reason, str(caught.value))


def corrupt(content, random):
    """Bytes flipped, overwritten, cut, left out or put in."""
    content = bytearray(content)
    kind = random.integers(5)
    place = int(random.integers(len(content)))
    if kind == 0:
        for _ in range(random.integers(1, 20)):
            content[random.integers(len(content))] ^= 1 << int(random.integers(8))
    elif kind == 1:
        content[place : place + 16] = random.bytes(len(content[place : place + 16]))
    elif kind == 2:
        del content[place:]
    elif kind == 3:
        del content[place : place + int(random.integers(1, 50))]
    else:
        content[place:place] = random.bytes(int(random.integers(1, 50)))
    return bytes(content)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """A thousand small images, each with some damage, in a folder."""
    root = tmp_path_factory.mktemp("damaged")
    random = np.random.default_rng(2026)
    originals = []
    for suffix, options in ((".jpg", {}), (".png", {}), (".jpg", {"progressive": True}), (".png", {"optimize": True})):
        for mode in ("RGB", "L"):
            pixels = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).convert(mode)
            # with what cameras write
            more = {"exif": Image.Exif().tobytes(), "dpi": (72, 72)} if suffix == ".jpg" else {}
            file = io.BytesIO()
            pixels.save(file, "JPEG" if suffix == ".jpg" else "PNG", **options, **more)
            originals.append((suffix, file.getvalue()))
    names = []
    for number in range(1000):
        suffix, content = originals[number % len(originals)]
        names.append(f"{number:04d}{suffix}")
        (root / names[-1]).write_bytes(corrupt(content, random))
    return FileImages(root, names)


@pytest.mark.filterwarnings("ignore")
def test_a_thousand_damaged_images_are_decoded_or_refused(damaged):
    refused = {}
    for index in range(len(damaged)):
        try:
            pixels = damaged[index]
        except UnreadableImageError as error:
            refused[damaged.path(index)] = str(error)
        else:
            assert pixels.dtype == torch.uint8
            assert pixels.ndim == 3
            assert len(pixels) == 3
    assert 200 < len(refused) < 900  # some of either kind, or this shows nothing
    found = describe_dataset(DataSet("damaged", ("only",), Split(damaged, torch.zeros(1000, dtype=torch.int64))))
    assert sorted(found.unreadable) == sorted(refused.values())
    assert all(sum(str(path) in line for line in found.unreadable) == 1 for path in refused)


def test_warnings_of_other_threads_are_kept():
    """Filters of warnings are the whole process's, and most images are decoded by threads."""
    with pytest.warns(UserWarning, match="by somebody else"), _quiet():
        warnings.warn("by somebody else", stacklevel=1)


def test_damaged_images_do_not_warn(damaged):
    """A warning without the name of the file is useless; with -W error it would become an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for index in range(len(damaged)):
            with contextlib.suppress(UnreadableImageError):
                damaged[index]
    assert [str(warning.message) for warning in caught] == []


class Reported:
    """What a loader with --bad-images skip does: the refusal is a value."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        try:
            return tuple(self.images[index].shape)
        except UnreadableImageError as error:
            return error


def as_it_is(batch):
    return batch


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_damaged_images_crash_no_worker(damaged):
    loader = DataLoader(Reported(damaged), batch_size=50, num_workers=2, collate_fn=as_it_is)
    found = [sample for batch in loader for sample in batch]  # refusals cross from the workers by pickle
    assert len(found) == 1000
    alone = [Reported(damaged)[index] for index in range(1000)]
    assert [str(sample) for sample in found] == [str(sample) for sample in alone]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("decode_in", "workers"), [("workers", 2), ("device", 3)])
def test_a_thousand_damaged_images_are_streamed_and_the_bad_ones_listed(damaged, decode_in, workers):
    refused = {}
    for index in range(1000):
        try:
            damaged[index]
        except UnreadableImageError as error:
            refused[str(error.path)] = error.reason
    labels = torch.zeros(1000, dtype=torch.int64)
    plan = BatchPlan(labels, (RandomResizedCrop(8),), batch_size=64)
    loader = Streaming(Split(damaged, labels), plan, workers=workers, decode_in=decode_in, bad_images="skip")
    seen = torch.cat([batch.indices for batch in loader.training(0, 0)])
    assert loader.unreadable == refused
    assert sorted(seen.tolist()) == [i for i in range(1000) if str(damaged.path(i)) not in refused]
    strict = Streaming(Split(damaged, labels), plan, workers=workers, decode_in=decode_in)
    with pytest.raises(UnreadableImageError, match=r"\d+ in this batch cannot be read: "):
        list(strict.training(0, 0))


@pytest.mark.filterwarnings("ignore")
def test_an_error_in_a_worker_keeps_its_type(damaged, tmp_path):
    good = saved(tmp_path / "good.png", Image.fromarray(RGB)).name
    (tmp_path / "bad.png").write_bytes(b"no image")
    images = FileImages(tmp_path, [good, "bad.png"])
    batches = iter(DataLoader(images, batch_size=1, num_workers=2))
    try:
        with pytest.raises(UnreadableImageError, match=r"bad\.png"):
            list(batches)
    finally:
        batches._shutdown_workers()
