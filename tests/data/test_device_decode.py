"""JPEGs on the GPU: which files go there, how near its decoder is to the CPU's, and what becomes of damage."""

import io
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from longtail.data import BatchPlan, FileImages, Split, Streaming, UnreadableImageError, decode
from longtail.data.augment import Compose, RandomResizedCrop
from longtail.data.loaders import decode as cpu
from longtail.data.loaders import device_decode
from longtail.data.loaders.device_decode import decode_on, decoded_ahead, read_images

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
COARSE = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def pool():
    with ThreadPoolExecutor(2) as executor:
        yield executor


def read(path, device, pool):
    """A file as bytes for the GPU, or what the CPU made of it."""
    (found,) = read_images([str(path)], device, pool)
    return found if isinstance(found, torch.Tensor) else found.result()


def photograph(size=(97, 64), mode="RGB", **options):
    """A smooth JPEG, as bytes."""
    file = io.BytesIO()
    image = Image.fromarray(COARSE).resize(size, Image.Resampling.BICUBIC).convert(mode)
    image.save(file, "JPEG", **{"quality": 95, **options})
    return file.getvalue()


def png():
    file = io.BytesIO()
    Image.fromarray(COARSE).save(file, "PNG")
    return file.getvalue()


WHOLE = photograph()
ADOBE_RGB = WHOLE[:2] + b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00" + WHOLE[2:]
FOR_THE_GPU = {
    "baseline": WHOLE,
    "progressive": photograph(progressive=True),
    "grey": photograph(mode="L"),
    "full colour": photograph(subsampling=0),
    "with what cameras write": photograph(exif=Image.Exif().tobytes(), comment=b"x" * 5000, dpi=(72, 72)),
    "a fill byte before a marker": WHOLE[:2] + b"\xff" + WHOLE[2:],
}
FOR_THE_CPU = {
    "CMYK": photograph(mode="CMYK"),
    "RGB without a transform": ADOBE_RGB,
    "cut off": WHOLE[:-100],
    "bytes behind the end": WHOLE + b"more",
    "only a start": WHOLE[:2],
    "start and end": WHOLE[:2] + WHOLE[-2:],
    "no frame": WHOLE[:4] + b"\x00\x02" + WHOLE[-2:],
    "empty": b"",
    "PNG": png(),
    "text": b"this is no image",
}


def test_jpegs_for_the_gpu_are_read_as_bytes(tmp_path, pool):
    for name, content in FOR_THE_GPU.items():
        (tmp_path / "x").write_bytes(content)
        found = read(tmp_path / "x", CUDA, pool)
        assert found.dtype == torch.uint8, name
        assert bytes(found.numpy()) == content, name


def test_other_files_are_decoded_or_refused_by_the_cpu(tmp_path, pool):
    path = tmp_path / "x"
    for name, content in FOR_THE_CPU.items():
        path.write_bytes(content)
        found = read(path, CUDA, pool)
        if isinstance(found, UnreadableImageError):
            with pytest.raises(UnreadableImageError) as caught:
                decode(path)
            assert str(found) == str(caught.value)
        else:
            assert torch.equal(found, decode(path)), name
        readable = name in {"CMYK", "RGB without a transform", "PNG", "bytes behind the end"}
        assert isinstance(found, Tensor) == readable, name


def test_decompression_bombs_are_not_decoded_on_the_gpu(tmp_path, monkeypatch, pool):
    (tmp_path / "x.jpg").write_bytes(WHOLE)
    monkeypatch.setattr(cpu, "MAX_PIXELS", 97 * 64 - 1)
    assert "97 x 64 pixels" in str(read(tmp_path / "x.jpg", CUDA, pool))
    monkeypatch.setattr(cpu, "MAX_PIXELS", 97 * 64)
    assert read(tmp_path / "x.jpg", CUDA, pool).ndim == 1


def test_files_that_cannot_be_opened(tmp_path, pool):
    (tmp_path / "folder.jpg").mkdir()
    for name in ("missing.jpg", "folder.jpg"):
        for device in (CPU, CUDA):
            assert str(tmp_path / name) in str(read(tmp_path / name, device, pool))


def test_a_pipe_is_not_waited_for(tmp_path, pool):
    """Nobody writes into it: a reader that waited would never come back."""
    os.mkfifo(tmp_path / "pipe.jpg")
    assert "it is empty" in str(read(tmp_path / "pipe.jpg", CUDA, pool))


def test_a_huge_file_is_not_read_at_once(tmp_path, pool):
    """Its size takes no room on disk, but would in memory."""
    path = tmp_path / "huge.jpg"
    path.write_bytes(WHOLE)
    os.truncate(path, 2**42)
    assert torch.equal(read(path, CUDA, pool), decode(path))  # Pillow stops where the image ends


def test_no_file_stays_open(tmp_path, monkeypatch, pool):
    """Not even those that were opened ahead of one that fails in an unforeseen way."""
    paths = [str(tmp_path / f"{i}.jpg") for i in range(10)]
    for path in paths:
        Path(path).write_bytes(WHOLE)

    def opened():
        return sorted(path.name for path in Path("/proc/self/fd").iterdir())

    before = opened()
    read_images([*paths, str(tmp_path / "missing.jpg"), "with a \0"], CUDA, pool)[-1].result()
    assert opened() == before

    def fail(_):
        raise MemoryError

    monkeypatch.setattr(device_decode, "_content", fail)
    with pytest.raises(MemoryError):
        read_images(paths, CUDA, pool)
    assert opened() == before


def test_on_a_cpu_files_are_decoded_when_read(tmp_path, pool):
    paths = []
    for name, content in {**FOR_THE_GPU, **FOR_THE_CPU}.items():
        paths.append(str(tmp_path / name))
        (tmp_path / name).write_bytes(content)
    found = [one.result() for one in read_images(paths, CPU, pool)]
    assert all(isinstance(image, UnreadableImageError) or image.ndim == 3 for image in found)


@pytest.mark.parametrize("workers", [1, 3])
def test_groups_come_in_order_each_with_its_images(tmp_path, workers):
    paths = [str(tmp_path / f"{i}.png") for i in range(150)]  # more than are opened at a time
    for level, path in enumerate(paths[:-1]):
        Image.new("RGB", (5, 4), (level,) * 3).save(path)
    groups = [("a", paths[:70]), ("b", []), ("c", paths[70:140]), ("d", paths[140:])]
    found = list(decoded_ahead(iter(groups), CPU, workers))
    assert [name for name, _ in found] == ["a", "b", "c", "d"]
    images = [image for _, some in found for image in some]
    assert [int(image.float().mean()) for image in images[:-1]] == list(range(149))
    assert "149.png" in str(images[-1])


def test_at_most_three_groups_are_read_in_advance(tmp_path):
    begun = []

    def groups():
        for i in range(100):
            begun.append(i)
            yield i, [str(tmp_path / "missing.jpg")]

    found = decoded_ahead(groups(), CPU, 1)
    assert next(found)[0] == 0
    time.sleep(0.2)
    assert begun == [0, 1, 2, 3]  # one was taken, three wait
    found.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("longtail-")]


@pytest.mark.slow
@pytest.mark.parametrize("bad", [set(), {2, 6}, set(range(7))])
def test_one_bad_jpeg_does_not_fail_its_batch(monkeypatch, bad):
    """nvJPEG refuses a whole call; which file it was is found by halving."""
    calls = []

    def decode_jpeg(files, mode, device):
        calls.append(len(files))
        if any(int(file[0]) in bad for file in files):
            raise RuntimeError("Error while decoding JPEG images")
        return [file + 100 for file in files]

    monkeypatch.setattr("torchvision.io.decode_jpeg", decode_jpeg)
    found = device_decode._decode_jpegs([torch.tensor([i]) for i in range(7)], CUDA)
    assert [None if image is None else int(image) for image in found] == [
        None if i in bad else 100 + i for i in range(7)
    ]
    assert len(calls) <= 1 + 2 * 3 * len(bad)


# --- on a GPU


@pytest.fixture
def folder(tmp_path):
    for name, content in {**FOR_THE_GPU, **FOR_THE_CPU}.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.gpu
def test_nvjpeg_is_close_to_pillow(tmp_path, pool):
    """Colour at full resolution: 4 levels at most. At half: colours are spread another way, 4 levels in the mean."""
    for subsampling in (0, 2):
        for progressive in (False, True):
            path = tmp_path / "x.jpg"
            path.write_bytes(photograph((300, 200), subsampling=subsampling, progressive=progressive))
            (found,) = decode_on(CUDA, read_images([str(path)], CUDA, pool), [str(path)])
            assert found.is_cuda
            difference = found.cpu().int() - decode(path).int()
            if subsampling == 0:
                assert difference.abs().max() <= 4
            assert difference.abs().float().mean() < 4
            assert difference.float().mean().abs() < 0.5


@pytest.mark.gpu
def test_a_gpu_refuses_what_the_cpu_refuses(folder):
    names = [*FOR_THE_GPU, *FOR_THE_CPU]
    labels = torch.zeros(len(names), dtype=torch.int64)
    split, plan = Split(FileImages(folder, names), labels), BatchPlan(labels, (Compose((RandomResizedCrop(16),)),), 6)
    expected = Streaming(split, plan, bad_images="skip")
    here = list(expected.training(0, 0))
    loader = Streaming(split, plan, "cuda", decode_in="device", workers=3, bad_images="skip")
    there = list(loader.training(0, 0))
    assert loader.unreadable == expected.unreadable
    for a, b in zip(here, there, strict=True):
        assert torch.equal(a.indices, b.indices)
        assert (a.views[0].float() - b.views[0].cpu().float()).abs().mean() < 4


@pytest.mark.gpu
def test_decoding_does_not_overwrite_what_the_stream_still_reads(tmp_path, pool):
    """The decoder uses another stream: images that were freed before their reader ran must not be written over."""
    paths = []
    for number in range(64):
        paths.append(str(tmp_path / f"{number}.jpg"))
        level = Image.new("RGB", (256, 256), (4 * number,) * 3)
        level.save(paths[-1], "JPEG", quality=100)
    weight = torch.eye(4096, device="cuda")
    means = []
    for first in range(0, 64, 8):
        some = paths[first : first + 8]
        images = decode_on(CUDA, read_images(some, CUDA, pool), some)
        for _ in range(20):
            weight = weight @ weight  # keeps the stream busy while the next are decoded
        means.append(torch.stack([image.float().mean() for image in images]))
        del images
    torch.testing.assert_close(torch.cat(means).cpu(), 4.0 * torch.arange(64), rtol=0, atol=1.0)
