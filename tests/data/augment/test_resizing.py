"""Resizing: the weights of torchvision's antialiased bilinear interpolation, windows drawn by its algorithm.

Tolerances, in levels of 255: floats within 0.01 of torchvision's float32 (its own error against float64 is of that
size); uint8 equal to torchvision's float result rounded, but for pixels that float32 puts within 0.01 of a tie; and
within 1 level of torchvision's uint8 kernel and of PIL, which also round between the two passes.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from longtail.data.augment import RandomResizedCrop, Resize
from longtail.data.augment.geometry import resize, resized_crop

Window = tuple[int, int, int, int]
SHAPE = (6, 3, 40, 56)
WINDOWS: list[Window] = [  # top, left, height, width
    (0, 0, 40, 56),
    (3, 5, 32, 48),
    (39, 55, 1, 1),
    (11, 2, 7, 50),
    (0, 31, 40, 3),
    (8, 8, 24, 24),
]
SIZES = [32, (7, 64), 2]


def windows(found: list[Window] = WINDOWS) -> tuple[Tensor, ...]:
    return torch.tensor(found).unbind(dim=1)


def pictures(shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def pair(size: int | tuple[int, int]) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_resized_crop_equals_torchvision(size: int | tuple[int, int], channels: int) -> None:
    images = pictures()[:, :channels]
    floats, bytes_ = resized_crop(images.float(), *windows(), size), resized_crop(images, *windows(), size)
    assert floats.dtype == torch.float32
    assert bytes_.dtype == torch.uint8
    for i, (image, window) in enumerate(zip(images, WINDOWS, strict=True)):
        exact = F.resized_crop(image.double(), *window, size=pair(size), antialias=True)
        wanted = F.resized_crop(image.float(), *window, size=pair(size), antialias=True)
        torch.testing.assert_close(floats[i].double(), exact, rtol=0, atol=0.01)
        torch.testing.assert_close(floats[i], wanted, rtol=0, atol=0.01)
        tie = (exact - exact.floor() - 0.5).abs() < 0.01
        assert torch.equal(bytes_[i][~tie], exact.round().to(torch.uint8)[~tie])
        own = F.resized_crop(image, *window, size=pair(size), antialias=True)
        assert (bytes_[i].int() - own.int()).abs().max() <= 1


@pytest.mark.parametrize("size", [*SIZES, (7, 1), (1, 7), 1], ids=str)  # torchvision is wrong for one column
def test_resized_crop_is_close_to_pil(size: int | tuple[int, int]) -> None:
    images = pictures()
    result = resized_crop(images, *windows(), size)
    for i, (image, (top, left, height, width)) in enumerate(zip(images, WINDOWS, strict=True)):
        window = Image.fromarray(image.permute(1, 2, 0).numpy()).crop((left, top, left + width, top + height))
        wanted = np.asarray(window.resize(tuple(pair(size)[::-1]), Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(result[i].permute(1, 2, 0).numpy() - wanted).max() <= 1


@pytest.mark.parametrize("shape", [(2, 3, 40, 56), (2, 1, 33, 20)], ids=str)
@pytest.mark.parametrize("size", [8, 48, (5, 9)], ids=str)
def test_resize_equals_torchvision(shape: tuple[int, ...], size: int | tuple[int, int]) -> None:
    images = pictures(shape)
    wanted = F.resize(images.double(), [size] if isinstance(size, int) else list(size), antialias=True)
    result = Resize(size)(images.float())
    torch.testing.assert_close(result.double(), wanted, rtol=0, atol=0.01)
    tie = (wanted - wanted.floor() - 0.5).abs() < 0.01
    assert torch.equal(Resize(size)(images)[~tie], wanted.round().to(torch.uint8)[~tie])


@pytest.mark.parametrize("size", [(7, 1), (1, 7), 1], ids=str)
def test_one_column_and_one_row(size: int | tuple[int, int]) -> None:
    images = pictures((2, 3, 40, 40))
    result = Resize(size)(images)
    for i, image in enumerate(images):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        wanted = np.asarray(picture.resize(tuple(pair(size)[::-1]), Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(result[i].permute(1, 2, 0).numpy() - wanted).max() <= 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16], ids=str)
def test_the_same_size_changes_nothing(dtype: torch.dtype) -> None:
    images = pictures().to(dtype)
    assert torch.equal(resize(images, (40, 56)), images)
    samples = len(images)
    top, left = torch.arange(samples), torch.arange(samples) * 2
    cropped = resized_crop(images, top, left, torch.full((samples,), 9), torch.full((samples,), 13), (9, 13))
    for i in range(samples):
        assert torch.equal(cropped[i], images[i, :, i : i + 9, 2 * i : 2 * i + 13])


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 60).flatmap(lambda h: st.tuples(st.just(h), st.integers(1, h))),
    st.integers(1, 60).flatmap(lambda w: st.tuples(st.just(w), st.integers(1, w))),
    st.integers(1, 50),
    st.integers(0, 2**16),
)
def test_any_window_to_any_size(rows: tuple[int, int], columns: tuple[int, int], size: int, seed: int) -> None:
    (height, window_height), (width, window_width) = rows, columns
    image = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (1, 1, height, width))).float()
    window = (height - window_height, (width - window_width) // 2, window_height, window_width)
    wanted = F.resized_crop(image.double(), *window, size=[size, size], antialias=True)
    torch.testing.assert_close(resized_crop(image, *windows([window]), size).double(), wanted, rtol=0, atol=0.01)


def reference(crop: RandomResizedCrop, uniforms: list[float], height: int, width: int) -> Window:
    """torchvision's algorithm, read from its documentation and source, over given uniform numbers."""
    low, high = crop.scale
    shortest, longest = (3 / 4, 4 / 3)
    for i in range(10):
        area = height * width * (low + (high - low) * uniforms[2 * i])
        ratio = shortest * (longest / shortest) ** uniforms[2 * i + 1]
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(uniforms[20] * (height - h + 1)), int(uniforms[21] * (width - w + 1)), h, w
    w, h = width, height
    if width / height < shortest:
        h = round(w / shortest)
    elif width / height > longest:
        w = round(h * longest)
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(("height", "width"), [(256, 341), (20, 400), (400, 20)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.9, 1.0)], ids=str)
def test_windows_follow_the_algorithm_of_torchvision(height: int, width: int, scale: tuple[float, float]) -> None:
    crop, uniforms = RandomResizedCrop(224, scale=scale), torch.rand(200, 22)
    found = torch.stack(crop.parameters(uniforms, height, width), dim=1).tolist()
    for row, window in zip(uniforms.double().tolist(), found, strict=True):
        assert tuple(window) == reference(crop, row, height, width)


def test_windows_of_images_of_different_sizes() -> None:
    crop, uniforms = RandomResizedCrop(224), torch.rand(30, 22)
    heights, widths = torch.randint(20, 300, (30,)), torch.randint(20, 300, (30,))
    found = torch.stack(crop.parameters(uniforms, heights, widths), dim=1).tolist()
    for i, row in enumerate(uniforms.double().tolist()):
        assert tuple(found[i]) == reference(crop, row, int(heights[i]), int(widths[i]))


def test_windows_have_the_distribution_of_torchvision() -> None:
    n = 4000
    ours = torch.stack(RandomResizedCrop(8).parameters(torch.rand(n, 22), 64, 96), dim=1).double()
    transform, image = v2.RandomResizedCrop(8), torch.zeros(1, 64, 96)
    theirs = torch.tensor([[transform.make_params([image])[k] for k in ("top", "left", "height", "width")]
                           for _ in range(n)]).double()  # fmt: skip
    spread = theirs.std(dim=0)
    assert ((ours.mean(dim=0) - theirs.mean(dim=0)).abs() < 5 * spread * math.sqrt(2 / n)).all()
    assert ((ours.std(dim=0) / spread - 1).abs() < 5 / math.sqrt(n)).all()


def test_random_resized_crop_applies_what_it_draws() -> None:
    images, uniforms, crop = pictures(), torch.rand(6, 22), RandomResizedCrop((16, 20))
    assert torch.equal(crop(images, uniforms), resized_crop(images, *crop.parameters(uniforms, 40, 56), (16, 20)))


def test_a_window_is_never_empty() -> None:
    crop = RandomResizedCrop(2, scale=(0.0, 0.0))
    for rows, columns in ((1, 1), (1, 9), (9, 1)):
        _, _, height, width = crop.parameters(torch.rand(50, 22), rows, columns)
        assert height.min() >= 1
        assert width.min() >= 1
    assert torch.equal(crop(torch.full((2, 1, 1, 1), 9.0), torch.rand(2, 22)), torch.full((2, 1, 2, 2), 9.0))


def test_autocast_does_not_reach_the_weights() -> None:
    images = pictures()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = resized_crop(images, *windows(), 32)
    assert torch.equal(inside, resized_crop(images, *windows(), 32))


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="`scale`"):
        RandomResizedCrop(8, scale=(0.5, 2))
    with pytest.raises(ValueError, match="`size`"):
        Resize(0)


def test_a_large_image_is_resized_like_a_small_one() -> None:
    """Its channels are worked on one by one."""
    large = torch.randint(0, 256, (1, 3, 2400, 2500), dtype=torch.uint8)
    whole = F.resize(large.float(), [30, 40], antialias=True).round().to(torch.uint8)
    assert torch.equal(resize(large, (30, 40)), whole)
