"""Packed images of different sizes are brought to one size."""

import numpy as np
import pytest
import torch
from tests.data.resize_checks import exactly
from tests.interpreted import run_interpreted

from longtail.data.augment import CentreCrop, Compose, RandomResizedCrop, Resize
from longtail.data.augment.geometry import resized_crop
from longtail.data.loaders import sizing
from longtail.data.loaders.sizing import PackedImages, to_size, windows_of

GENERATOR = torch.Generator().manual_seed(0)
SIZES = [(60, 90), (1, 1), (200, 17), (33, 33), (5, 120), (90, 60), (256, 341)]
IMAGES = [torch.randint(256, (3, *size), dtype=torch.uint8, generator=GENERATOR) for size in SIZES]
PHOTOGRAPHS = [torch.randint(256, (3, 375, 500), dtype=torch.uint8, generator=GENERATOR) for _ in range(4)]
CROP = RandomResizedCrop(24)
UNIFORMS = torch.rand(len(IMAGES), CROP.draws, generator=GENERATOR)


def assert_within_a_level(found, expected):
    """Sums of float32 in another order may round to the next level; few are that close to a half."""
    assert found.dtype == expected.dtype == torch.uint8
    difference = (found.int() - expected.int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 1e-3


def one_by_one(crop, images, uniforms):
    return torch.cat([crop(image[None], uniforms[i : i + 1]) for i, image in enumerate(images)])


def test_packed_images_are_unpacked():
    row = PackedImages.of(IMAGES)
    assert len(row) == len(IMAGES)
    assert row.pixels.shape == (sum(image.numel() for image in IMAGES),)
    for i, image in enumerate(IMAGES):
        assert torch.equal(row[i], image)


def test_windows_of_packed_images_are_those_of_the_images():
    found = to_size(PackedImages.of(IMAGES), Compose((CROP,)), UNIFORMS)
    assert_within_a_level(found, one_by_one(CROP, IMAGES, UNIFORMS))


def test_windows_are_those_of_a_padded_batch():
    high, wide = (max(image.shape[side] for image in IMAGES) for side in (1, 2))
    padded = torch.zeros(len(IMAGES), 3, high, wide, dtype=torch.uint8)
    for place, image in zip(padded, IMAGES, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    sides = torch.tensor(SIZES)
    windows = CROP.parameters(UNIFORMS, sides[:, 0], sides[:, 1])
    found = to_size(PackedImages.of(IMAGES), Compose((CROP,)), UNIFORMS)
    assert_within_a_level(found, resized_crop(padded, *windows, size=24))


def test_pixels_outside_the_window_have_no_effect():
    """Pixels outside the window have another level, which must not appear in the result."""
    high, wide = 40, 30
    image = torch.full((3, high, wide), 255, dtype=torch.uint8)
    uniforms = torch.rand(50, CROP.draws, generator=GENERATOR)
    windows = torch.stack(CROP.parameters(uniforms, high, wide), dim=1)
    images = []
    for top, left, height, width in windows.tolist():
        one = image.clone()
        one[:, top : top + height, left : left + width] = 7
        images.append(one)
    assert (to_size(PackedImages.of(images), Compose((CROP,)), uniforms) == 7).all()


def test_other_augmentations_run_image_by_image():
    sized = Compose((Resize(32), CentreCrop(24)))
    images = [image for image in IMAGES if image.shape[1] > 1]
    found = to_size(PackedImages.of(images), sized, torch.empty(len(images), 0))
    assert torch.equal(found, torch.cat([sized(image[None]) for image in images]))


def test_augmentations_that_are_not_a_window_of_a_resized_image():
    """A crop that is larger than the image, which is padded; other augmentations; more of them."""
    row, none = PackedImages.of(IMAGES), torch.empty(len(IMAGES), 0)
    for parts in (
        [Resize((20, 30)), CentreCrop(24)],
        [CentreCrop(24)],
        [Resize(32)],
        [Resize(32), CentreCrop(24), CentreCrop(8)],
        [CROP, CentreCrop(8)],
    ):
        assert windows_of(row, parts, none) is None
    windows, size = windows_of(row, [Resize((24, 30)), CentreCrop(24)], none)
    assert size == (24, 24)
    assert windows[4:].T.tolist() == [[24, 30, 0, 3]] * len(IMAGES)
    whole, size = windows_of(row, [Resize((24, 30))], none)
    assert size == (24, 30)
    assert whole.T.tolist() == [[0, 0, *sides, 24, 30, 0, 0] for sides in SIZES]


@pytest.mark.slow
def test_one_kernel_makes_the_same_windows():
    assert run_interpreted("tests.data.resize_checks") == "the same"


@pytest.mark.gpu
def test_a_gpu_cuts_the_same_windows(monkeypatch):
    monkeypatch.setattr(sizing, "is_checked", lambda _: False)
    row = PackedImages.of([image.cuda() for image in IMAGES])
    assert_within_a_level(to_size(row, Compose((CROP,)), UNIFORMS).cpu(), one_by_one(CROP, IMAGES, UNIFORMS))


@pytest.mark.gpu
@pytest.mark.parametrize(("images", "size"), [(IMAGES, 24), (PHOTOGRAPHS, 224)])
def test_the_resize_kernel_on_a_gpu(images, size):
    """The second are of ImageNet's size, where programs and loops are as many as in training."""
    crop = RandomResizedCrop(size)
    uniforms = torch.rand(len(images), crop.draws, generator=GENERATOR)
    row = PackedImages.of([image.cuda() for image in images])
    windows, _ = windows_of(row, [crop], uniforms)
    found = sizing.resized_by_kernel(row, windows, (size, size)).cpu()
    for i, image in enumerate(images):
        assert np.abs(found[i].numpy() - exactly(image, windows[:4, i].tolist(), (size, size))).max() < 0.5 + 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("images", [IMAGES, PHOTOGRAPHS])
def test_the_kernel_resizes_and_crops_for_evaluation(images):
    """As in evaluation: resized by the shorter side, and the middle kept."""
    sized = Compose((Resize(256), CentreCrop(224)))
    found = to_size(PackedImages.of([image.cuda() for image in images]), sized, torch.empty(len(images), 0))
    expected = torch.cat([sized(image[None]) for image in images])
    difference = (found.cpu().int() - expected.int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 0.02
