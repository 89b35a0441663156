"""Crop, flip, Cutout and centre crop equal torchvision's, pixel for pixel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from longtail.data.augment import CentreCrop, Cutout, RandomCrop, RandomFlip
from longtail.data.augment.geometry import crop, cutout

SHAPES = [(6, 3, 32, 32), (5, 1, 9, 14), (4, 3, 17, 8)]
every_case = pytest.mark.parametrize(
    ("shape", "dtype"), list(zip(SHAPES, [torch.uint8, torch.float32, torch.bfloat16], strict=True)), ids=str
)


def pictures(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8).to(dtype)


@every_case
@pytest.mark.parametrize("padding", [0, 4])
def test_crop_equals_torchvision(shape: tuple[int, ...], dtype: torch.dtype, padding: int) -> None:
    images, (samples, _, height, width) = pictures(shape, dtype), shape
    size = (height - 1, width - 3)
    top = torch.randint(0, height + 2 * padding - size[0] + 1, (samples,))
    left = torch.randint(0, width + 2 * padding - size[1] + 1, (samples,))
    cropped = crop(images, top, left, size, padding)
    assert cropped.dtype == dtype
    for i, image in enumerate(images):
        padded = F.pad(image, [padding] * 4)
        assert torch.equal(cropped[i], F.crop(padded, int(top[i]), int(left[i]), *size))


def test_a_crop_outside_the_image_is_black() -> None:
    images, offsets = pictures((4, 3, 8, 8)), torch.tensor([-100, -3, 6, 100])
    cropped = crop(images, offsets, offsets, 5)
    for i, image in enumerate(images):
        assert torch.equal(cropped[i], F.crop(image, int(offsets[i]), int(offsets[i]), 5, 5))


@every_case
def test_flip_equals_torchvision(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    images, flipped = pictures(shape, dtype), torch.arange(shape[0]) % 2 == 0
    result = RandomFlip(0.5)(images, torch.where(flipped, 0.4, 0.6)[:, None])
    for i, image in enumerate(images):
        assert torch.equal(result[i], F.horizontal_flip(image) if flipped[i] else image)


@every_case
@pytest.mark.parametrize("size", [(4, 7), (1, 1), (99, 99)], ids=str)
def test_cutout_equals_torchvision(shape: tuple[int, ...], dtype: torch.dtype, size: tuple[int, int]) -> None:
    images, (samples, _, height, width) = pictures(shape, dtype), shape
    top, left = torch.randint(-size[0], height + 2, (samples,)), torch.randint(-size[1], width + 2, (samples,))
    result = cutout(images, top, left, size)
    assert result.dtype == dtype
    for i, image in enumerate(images):
        y, x = max(int(top[i]), 0), max(int(left[i]), 0)
        h, w = max(int(top[i]) + size[0] - y, 0), max(int(left[i]) + size[1] - x, 0)
        assert torch.equal(result[i], F.erase(image, y, x, h, w, torch.tensor(0, dtype=dtype)))


@every_case
@pytest.mark.parametrize("size", [1, (5, 8), (16, 40), 33], ids=str)
def test_centre_crop_equals_torchvision(
    shape: tuple[int, ...], dtype: torch.dtype, size: int | tuple[int, int]
) -> None:
    images = pictures(shape, dtype)
    wanted = F.center_crop(images, [size, size] if isinstance(size, int) else list(size))
    assert torch.equal(CentreCrop(size)(images), wanted)
    assert torch.equal(CentreCrop(size)(images, torch.empty(shape[0], 0)), wanted)


@settings(deadline=None, max_examples=50)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    size=st.integers(1, 48),
    uniforms=st.tuples(st.floats(0, 1, exclude_max=True, width=32), st.floats(0, 1, exclude_max=True, width=32)),
)
def test_random_crop_stays_in_the_padded_image(
    height: int, width: int, size: int, uniforms: tuple[float, float]
) -> None:
    padding = max(0, size - min(height, width) + 1)
    top, left = RandomCrop(size, padding=padding).parameters(torch.tensor([uniforms]), height, width)
    assert 0 <= int(top) <= height + 2 * padding - size
    assert 0 <= int(left) <= width + 2 * padding - size


def test_random_crop_and_cutout_are_uniform() -> None:
    uniforms = torch.rand(90_000, 2)
    for top, left in (
        RandomCrop(32, padding=4).parameters(uniforms, 32, 32),
        Cutout(16).parameters(uniforms, 9, 9),
    ):
        places = np.bincount((9 * (top - top.min()) + left - left.min()).numpy(), minlength=81)
        # 81 places, 1111 expected in each: chi-squared with 80 degrees of freedom, mean 80, sd 12.6
        assert places.size == 81
        assert ((places - 90_000 / 81) ** 2 / (90_000 / 81)).sum() < 80 + 5 * 12.6


def test_the_last_float_below_one_is_the_last_place() -> None:
    last = torch.full((1, 2), float(np.nextafter(np.float32(1), np.float32(0))))
    top, left = RandomCrop(1).parameters(last, 100_003, 77)
    assert (int(top), int(left)) == (100_002, 76)


def test_cutout_square_is_that_of_the_paper() -> None:
    # DeVries & Taylor: rows max(0, y - 8) to min(H, y + 8) around a centre (y, x) that is any pixel
    images, uniforms = torch.full((64, 3, 32, 32), 255, dtype=torch.uint8), torch.rand(64, 2)
    result = Cutout(16)(images, uniforms)
    for i, (y, x) in enumerate((uniforms * 32).int().tolist()):
        wanted = np.full((3, 32, 32), 255)
        wanted[:, max(0, y - 8) : min(32, y + 8), max(0, x - 8) : min(32, x + 8)] = 0
        assert np.array_equal(result[i].numpy(), wanted)


@pytest.mark.parametrize(("p", "low", "high"), [(0.0, 0, 0), (0.5, 4800, 5200), (1.0, 10_000, 10_000)])
def test_random_flip_flips_with_probability_p(p: float, low: int, high: int) -> None:
    images = torch.tensor([0.0, 1.0]).expand(10_000, 1, 1, 2)
    assert low <= int(RandomFlip(p)(images, torch.rand(10_000, 1))[:, 0, 0, 0].sum()) <= high


def test_bad_arguments() -> None:
    images = pictures((2, 3, 8, 8))
    with pytest.raises(ValueError, match=r"`images` to be at least 32 x 32 with a padding of 4, but got 8 x 8\."):
        RandomCrop(32, padding=4)(images, torch.zeros(2, 2))
    with pytest.raises(ValueError, match="`size`"):
        RandomCrop(0)
    with pytest.raises(TypeError, match="`size`"):
        CentreCrop((1, 2, 3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`padding`"):
        RandomCrop(8, padding=-1)
    with pytest.raises(ValueError, match="`p`"):
        RandomFlip(1.5)
    with pytest.raises(ValueError, match="`size`"):
        Cutout(0)
