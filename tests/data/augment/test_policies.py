"""AutoAugment and RandAugment: operations equal to torchvision's, pixel for pixel; its table, its levels, its chances.

``_apply_op`` of ``torchvision.transforms.autoaugment`` on uint8 tensors is the reference. Magnitudes equal those of its
``torch.linspace`` but for the last bit of some: none of the 10 levels that AutoAugment uses, translations apart, whose
fraction is cut off.
"""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import InterpolationMode, autoaugment

from longtail.data.augment import AutoAugmentCIFAR, RandAugment
from longtail.data.augment.policies import CIFAR_POLICIES, OPERATIONS, apply_operation, magnitudes

CIFAR = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy.CIFAR10)
SHAPES = [(3, 32, 32), (3, 24, 50), (1, 33, 17), (3, 3, 2)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def pictures(samples: int, shape: tuple[int, ...] = (3, 32, 32)) -> Tensor:
    """Noise, each image in another range of levels; some of one level, or of two."""
    low, high = torch.randint(0, 120, (samples, 1, 1, 1)), torch.randint(121, 256, (samples, 1, 1, 1))
    images = low + (torch.rand(samples, *shape) * (high - low + 1)).long()
    images[::7] = images[::7, :1, :1, :1]
    images[1::7] = torch.where(images[1::7] > 125, 255, 9)
    return images.to(torch.uint8)


def numbers(*names: str) -> Tensor:
    return torch.tensor([OPERATIONS.index(name) for name in names])


def reference(image: Tensor, operation: int, magnitude: float, fill: int = 0) -> Tensor:
    filled = None if fill == 0 else [float(fill)] * image.shape[0]
    return autoaugment._apply_op(image, OPERATIONS[operation], magnitude, InterpolationMode.NEAREST, filled)


def space(bins: int, height: int, width: int) -> dict[str, tuple[Tensor, bool]]:
    found: dict[str, tuple[Tensor, bool]] = CIFAR._augmentation_space(bins, (height, width))
    return {**found, **autoaugment.RandAugment()._augmentation_space(bins, (height, width))}


@every_shape
@pytest.mark.parametrize("bins", [10, 31])
def test_every_operation_at_every_level_equals_torchvision(shape: tuple[int, ...], bins: int) -> None:
    cases = [
        (OPERATIONS.index(name), sign * strength)
        for name, (strengths, signed) in space(bins, *shape[1:]).items()
        for strength in (strengths.tolist() if strengths.ndim else [0.0] * 7)
        for sign in ((1.0, -1.0) if signed else (1.0,))
    ]
    assert {operation for operation, _ in cases} == set(range(len(OPERATIONS)))
    images = pictures(len(cases), shape)
    result = apply_operation(images, *(torch.tensor(column) for column in zip(*cases, strict=True)))
    assert result.dtype == torch.uint8
    for image, ours, (operation, strength) in zip(images, result, cases, strict=True):
        assert torch.equal(ours, reference(image, operation, strength)), (OPERATIONS[operation], strength)


@pytest.mark.parametrize("name", ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"])
def test_pixels_from_outside_are_filled(name: str) -> None:
    images, strength = pictures(6), torch.tensor([-9.0, -0.3, -0.1, 0.2, 0.3, 12.0])
    result = apply_operation(images, numbers(name).expand(6), strength, fill=128)
    for i, image in enumerate(images):
        assert torch.equal(result[i], reference(image, OPERATIONS.index(name), float(strength[i]), fill=128))


@pytest.mark.parametrize("name", ["Equalize", "AutoContrast", "Invert", "Posterize", "Solarize"])
def test_tables_of_levels_equal_pil(name: str) -> None:
    images, strength = pictures(40), {"Posterize": 5, "Solarize": 100}.get(name, 0)
    result = apply_operation(images, numbers(name).expand(40), torch.full((40,), float(strength)))
    for ours, image in zip(result, images, strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        change = getattr(ImageOps, name.lower())
        wanted = np.asarray(change(picture, strength) if strength else change(picture)).astype(int)
        # PIL scales a contrast in float64, torchvision in float32: where that is a whole level, cutting off may differ
        assert np.abs(ours.permute(1, 2, 0).numpy() - wanted).max() <= (name == "AutoContrast")


def test_the_policies_equal_torchvision() -> None:
    assert len(CIFAR_POLICIES) == len(CIFAR.policies) == 25
    for ours, theirs in zip(CIFAR_POLICIES, CIFAR.policies, strict=True):
        assert [(name, tenths / 10, level) for name, tenths, level in ours] == [
            (name, p, level or 0) for name, p, level in theirs
        ]


@every_shape
@pytest.mark.parametrize("bins", [10, 31])
def test_magnitudes_equal_torchvision(shape: tuple[int, ...], bins: int) -> None:
    for name, (strengths, _) in space(bins, *shape[1:]).items():
        if strengths.ndim:
            found = magnitudes(numbers(name).expand(bins), torch.arange(bins), bins, *shape[1:])
            torch.testing.assert_close(found, strengths.float(), rtol=2.4e-7, atol=0)
            if name in {"TranslateX", "TranslateY"}:
                assert torch.equal(found.trunc(), strengths.trunc())
            elif bins == 10 or name in {"Posterize", "Solarize"}:
                assert torch.equal(found, strengths.float())


def test_autoaugment_follows_its_table() -> None:
    # every policy, with both probabilities just met or just missed, and both signs
    rows = [
        (policy, first, second, sign, 1 - sign)
        for policy in range(25)
        for first in (False, True)
        for second in (False, True)
        for sign in (0, 1)
    ]
    uniforms = torch.tensor([
        [
            (policy + 0.5) / 25,
            max(0.0, CIFAR_POLICIES[policy][0][1] / 10 + (-0.001 if first else 0.001)),
            max(0.0, CIFAR_POLICIES[policy][1][1] / 10 + (-0.001 if second else 0.001)),
            0.25 + one / 2,
            0.25 + other / 2,
        ]
        for policy, first, second, one, other in rows
    ])  # fmt: skip
    images, augment = pictures(len(rows)), AutoAugmentCIFAR()
    result = augment(images, uniforms)
    theirs = CIFAR._augmentation_space(10, (32, 32))
    for image, ours, (policy, *applied, one, other) in zip(images, result, rows, strict=True):
        wanted = image
        for (name, p, level), met, sign in zip(CIFAR.policies[policy], applied, (one, other), strict=True):
            if met and p > 0:
                strengths, signed = theirs[name]
                strength = float(strengths[level]) if level is not None else 0.0
                wanted = reference(wanted, OPERATIONS.index(name), -strength if signed and not sign else strength)
        assert torch.equal(ours, wanted), CIFAR_POLICIES[policy]


def test_randaugment_applies_what_it_draws() -> None:
    images, augment = pictures(56), RandAugment(n=2, m=10)
    uniforms = torch.rand(56, 4)
    uniforms[:, 0] = (torch.arange(56) % 14 + 0.5) / 14
    operation, magnitude = augment.parameters(uniforms, 32, 32)
    assert torch.equal(operation[:, 0], torch.arange(56) % 14)
    result = augment(images, uniforms)
    for i, image in enumerate(images):
        wanted = image
        for step in range(2):
            wanted = reference(wanted, int(operation[i, step]), float(magnitude[i, step]))
        assert torch.equal(result[i], wanted)


def test_randaugment_leaves_out_operations_by_chance() -> None:
    always, half, never = RandAugment(n=3, m=10), RandAugment(n=3, m=10, p=0.5), RandAugment(n=3, m=10, p=0)
    assert (always.draws, half.draws, never.draws) == (6, 9, 9)
    uniforms = torch.rand(20_000, 9)
    operation, magnitude = half.parameters(uniforms, 32, 32)
    expected, strength = always.parameters(uniforms.view(-1, 3, 3)[..., :2].flatten(1), 32, 32)
    kept = uniforms[:, 2::3] < 0.5
    assert torch.equal(operation[kept], expected[kept])
    assert torch.equal(magnitude[kept], strength[kept])
    assert not operation[~kept].any()  # Identity
    assert float((operation == 0).float().mean()) == pytest.approx(0.5 + 0.5 / 14, abs=0.01)
    images = pictures(56)
    assert torch.equal(never(images, torch.rand(len(images), 9)), images)


def test_probabilities_of_randaugment_equal_torchvision() -> None:
    operation, magnitude = RandAugment(n=3, m=10).parameters(torch.rand(14_000, 6), 32, 32)
    for column in operation.T:
        assert column.bincount(minlength=14).sub(1000).abs().max() < 5 * 1000**0.5
        assert int(column.max()) == 13  # never Invert
    theirs = space(31, 32, 32)
    for number, name in enumerate(OPERATIONS[:14]):
        found, (strengths, signed) = magnitude[operation == number], theirs[name]
        strength = float(strengths[10]) if strengths.ndim else 0.0
        torch.testing.assert_close(found.abs(), torch.full_like(found, strength), rtol=2.4e-7, atol=0)
        negative = float((found < 0).float().mean())
        assert abs(negative - 0.5 * signed) < 0.05


def test_probabilities_of_autoaugment_equal_its_policies() -> None:
    operation, magnitude = AutoAugmentCIFAR().parameters(torch.rand(50_000, 5), 32, 32)
    for step in range(2):
        expected = torch.zeros(len(OPERATIONS))
        for policy in CIFAR_POLICIES:
            name, tenths, _ = policy[step]
            expected[OPERATIONS.index(name)] += tenths / 10 / 25
            expected[0] += (1 - tenths / 10) / 25
        found = operation[:, step].bincount(minlength=len(OPERATIONS)) / 50_000
        assert (found - expected).abs().max() < 0.01
    rotated = magnitude[operation == OPERATIONS.index("Rotate")]
    assert abs(float((rotated < 0).float().mean()) - 0.5) < 0.1


def test_bad_arguments() -> None:
    images = pictures(2)
    for augment in (AutoAugmentCIFAR(), RandAugment()):
        with pytest.raises(TypeError, match=r"`images` to be a uint8 tensor of shape \(B, C, H, W\), but got a Tensor"):
            augment(images.float(), torch.rand(2, augment.draws))
    with pytest.raises(ValueError, match="`m`"):
        RandAugment(m=31)
    with pytest.raises(ValueError, match="`n`"):
        RandAugment(n=-1)
    with pytest.raises(ValueError, match="`fill`"):
        AutoAugmentCIFAR(fill=300)
