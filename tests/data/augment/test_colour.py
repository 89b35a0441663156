"""Colour changes equal torchvision's.

Tolerances: on uint8, brightness, contrast, saturation and grey are equal to torchvision's; hue is within 1 level, since
its formula differs; PIL rounds differently: 2 levels. On floats 0.01 of 255 levels. Several changes on uint8: within 2
levels, since each may truncate differently.
"""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from tests.interpreted import run_interpreted
from torch import Tensor
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F

from longtail.data.augment import ColorJitter, RandomGrey
from longtail.data.augment import colour as module
from longtail.data.augment.colour import adjust_hue


def jitter(images: Tensor, factors: Tensor, order: Tensor, changed: Tensor | None = None) -> Tensor:
    everywhere = torch.ones(len(images), dtype=torch.bool)
    return module.jitter(images, factors, order, everywhere if changed is None else changed)


def adjust(which: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Change one property; neutral factors change nothing else."""

    def change(images: Tensor, factor: Tensor) -> Tensor:
        factors = torch.ones(len(images), 3)
        factors[:, which] = factor
        return jitter(images, factors, torch.arange(3).repeat(len(images), 1))

    return change


ADJUST = {"brightness": adjust(0), "contrast": adjust(1), "saturation": adjust(2), "hue": adjust_hue}
FACTORS = {
    "hue": [-0.5, -0.3, -0.1, 0.0, 0.05, 1 / 3, 0.49, 0.5],
    **{name: [0.0, 0.3, 0.6, 0.999, 1.0, 1.1, 1.4, 3.0] for name in ("brightness", "contrast", "saturation")},
}
every_change = pytest.mark.parametrize("name", ADJUST)
every_shape = pytest.mark.parametrize("shape", [(8, 3, 9, 21), (8, 1, 12, 8)], ids=str)


def pictures(shape: tuple[int, ...] = (8, 3, 32, 32)) -> Tensor:
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    images[:, :, 0] = images[:, :1, 0]  # grey pixels
    images[:, :, 1, :4] = torch.tensor([0, 0, 255, 255], dtype=torch.uint8)
    images[:, 0, 2] = images[:, -1, 2]  # two channels alike: ties of the largest and smallest
    return images


def apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.float() - theirs.float()).abs().max())


@every_change
@every_shape
def test_uint8_equals_torchvision(name: str, shape: tuple[int, ...]) -> None:
    images, factor = pictures(shape), torch.tensor(FACTORS[name])
    result = ADJUST[name](images, factor)
    assert result.dtype == torch.uint8
    for i, image in enumerate(images):
        wanted = getattr(F1, f"adjust_{name}")(image, float(factor[i]))
        assert apart(result[i], wanted) <= (1 if name == "hue" else 0)
        assert apart(result[i], getattr(F, f"adjust_{name}")(image, float(factor[i]))) <= 1


@every_change
@every_shape
def test_floats_equal_torchvision(name: str, shape: tuple[int, ...]) -> None:
    images, factor = pictures(shape).float(), torch.tensor(FACTORS[name])
    result = ADJUST[name](images, factor)
    assert result.dtype == torch.float32
    for i, image in enumerate(images):
        wanted = getattr(F, f"adjust_{name}")(image / 255, float(factor[i])) * 255
        assert apart(result[i], wanted) <= 0.01


@every_change
def test_uint8_is_close_to_pil(name: str) -> None:
    images, factor = pictures(), torch.tensor(FACTORS[name])
    result = ADJUST[name](images, factor).permute(0, 2, 3, 1).numpy().astype(int)
    for i, image in enumerate(images):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        wanted = np.asarray(getattr(F1, f"adjust_{name}")(picture, float(factor[i])))
        if name == "hue":  # PIL keeps hue and saturation in 8 bits, so that single pixels are off by more
            assert np.abs(result[i] - wanted).mean() < 3
        else:
            assert np.abs(result[i] - wanted).max() <= 2


@every_change
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16], ids=str)
def test_the_neutral_factor_changes_nothing(name: str, dtype: torch.dtype) -> None:
    images = pictures().to(dtype)
    result = ADJUST[name](images, torch.full((8,), float(name != "hue")))
    torch.testing.assert_close(result, images, rtol=0, atol=1e-3)
    assert result.dtype == dtype


@every_shape
def test_grey_equals_torchvision(shape: tuple[int, ...]) -> None:
    images, greyed = pictures(shape), torch.arange(8) % 2 == 0
    result = RandomGrey(0.5)(images, torch.where(greyed, 0.1, 0.9)[:, None])
    for i, image in enumerate(images):
        wanted = F1.rgb_to_grayscale(image, num_output_channels=shape[1]) if greyed[i] else image
        assert torch.equal(result[i], wanted)


def changed(image: Tensor, factors: list[float], order: list[int]) -> Tensor:
    for which in order:
        image = getattr(F1, f"adjust_{list(ADJUST)[which]}")(image, factors[which])
    return image


@pytest.mark.parametrize("steps", [3, 4])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_order_of_the_changes(steps: int, channels: int) -> None:
    order = torch.tensor(list(itertools.permutations(range(steps))))
    images = pictures((len(order), channels, 16, 12))
    factors = torch.stack([*torch.empty(3, len(order)).uniform_(0.6, 1.4), torch.empty(len(order)).uniform_(-0.1, 0.1)])
    factors = factors.T[:, :steps]
    result, floats = jitter(images, factors, order), jitter(images.float(), factors, order)
    for i, image in enumerate(images):
        wanted = changed(image, factors[i].tolist(), order[i].tolist())
        assert apart(result[i], wanted) <= (0 if steps == 3 or channels == 1 else 2)
        wanted = changed(image / 255, factors[i].tolist(), order[i].tolist()) * 255
        assert apart(floats[i], wanted) <= 0.01


def test_images_that_are_not_changed_stay_as_they_are() -> None:
    images, order = pictures().float(), torch.arange(4).repeat(8, 1)
    factors, chosen = torch.tensor([1.3, 0.7, 1.2, 0.1]).repeat(8, 1), torch.arange(8) % 3 == 0
    result, everywhere = jitter(images, factors, order, chosen), jitter(images, factors, order)
    assert torch.equal(result[chosen], everywhere[chosen])
    assert torch.equal(result[~chosen], images[~chosen])
    assert not torch.equal(everywhere[~chosen], images[~chosen])


@pytest.mark.slow
def test_two_kernels_make_the_same_colours() -> None:
    assert run_interpreted("tests.data.augment.colour_checks") == "the same"


def test_kernels_are_used_for_rgb_uint8_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_checked", lambda _: True)
    monkeypatch.setattr(module, "jittered_by_kernels", lambda images, *_: "by kernels")
    images, factors, order = pictures(), torch.ones(8, 3), torch.arange(3).repeat(8, 1)
    assert jitter(images, factors, order) == "by kernels"
    assert ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.5)(images, torch.rand(8, 9)) == "by kernels"
    for others in (images.float(), images[:, :1]):
        assert torch.equal(jitter(others, factors, order), others)
    assert torch.equal(jitter(images, factors.double(), order), images)
    monkeypatch.setattr(module, "_LARGEST", 32 * 32 - 1)
    assert torch.equal(jitter(images, factors, order), images)


@pytest.mark.gpu
@pytest.mark.parametrize("augment", [ColorJitter(0.4, 0.4, 0.4), ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.5)], ids=str)
@pytest.mark.parametrize("shape", [(24, 3, 224, 224), (8, 3, 9, 21), (5, 3, 1, 1)], ids=str)
def test_the_colour_kernels_on_a_gpu(augment: ColorJitter, shape: tuple[int, ...]) -> None:
    """The first are of ImageNet's size, where an image has as many programs as in training."""
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    factors, order, chosen = augment.parameters(torch.rand(len(images), augment.draws))
    found = module.jittered_by_kernels(images.cuda(), factors.cuda(), order.cuda(), chosen.cuda()).cpu()
    assert found.dtype == torch.uint8
    difference = (found.int() - jitter(images, factors, order, chosen).int()).abs()
    assert difference.max() <= 2
    assert (difference > 0).float().mean() < 1e-3


def test_color_jitter_draws_as_torchvision_does() -> None:
    uniforms = torch.rand(24_000, 9)
    factors, order, applied = ColorJitter(0.4, 0.8, 1.5, 0.1, p=0.8).parameters(uniforms)
    for column, low, high in zip(factors.T, (0.6, 0.2, 0.0, -0.1), (1.4, 1.8, 2.5, 0.1), strict=True):
        share = (column - low) / (high - low)
        assert 0 <= float(share.min()) < 0.01
        assert 0.99 < float(share.max()) <= 1
        assert torch.histc(share, bins=10, min=0, max=1).sub(2400).abs().max() < 5 * 2400**0.5
    assert torch.equal(order.sort(dim=1).values, torch.arange(4).expand(24_000, 4))
    orders = (order * torch.tensor([64, 16, 4, 1])).sum(dim=1).bincount()
    assert orders[orders > 0].numel() == 24
    assert orders[orders > 0].sub(1000).abs().max() < 5 * 1000**0.5
    assert abs(float(applied.float().mean()) - 0.8) < 0.02


def test_color_jitter_applies_what_it_draws() -> None:
    images, augment = pictures(), ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.5)
    uniforms = torch.rand(8, augment.draws)
    factors, order, applied = augment.parameters(uniforms)
    result = augment(images, uniforms)
    assert 0 < int(applied.sum()) < 8
    for i, image in enumerate(images):
        wanted = changed(image, factors[i].tolist(), order[i].tolist()) if applied[i] else image
        assert apart(result[i], wanted) <= 2


def test_color_jitter_of_nothing_changes_nothing() -> None:
    images = pictures()
    assert torch.equal(ColorJitter()(images, torch.rand(8, 7)), images)
    assert torch.equal(ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.0)(images, torch.rand(8, 9)), images)


def test_random_grey_greys_with_probability_p() -> None:
    images = torch.tensor([255.0, 0.0, 0.0]).view(1, 3, 1, 1).expand(10_000, 3, 1, 1)
    greyed = RandomGrey(0.2)(images, torch.rand(10_000, 1))[:, 1, 0, 0] > 0
    assert 1800 < int(greyed.sum()) < 2200


def test_bad_arguments() -> None:
    two = torch.randint(0, 256, (2, 2, 4, 4), dtype=torch.uint8)
    for augment in (RandomGrey(0.1), ColorJitter(0.1)):
        with pytest.raises(ValueError, match=r"`images` to have 1 or 3 channels, but got shape \(2, 2, 4, 4\)\."):
            augment(two, torch.rand(2, augment.draws))
    with pytest.raises(ValueError, match="`brightness`"):
        ColorJitter(-1)
    with pytest.raises(TypeError, match="`contrast`"):
        ColorJitter(contrast="high")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`hue`"):
        ColorJitter(hue=0.6)
    with pytest.raises(ValueError, match="`p`"):
        RandomGrey(-0.1)
