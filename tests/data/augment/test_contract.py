"""The contract of augmentations: no randomness inside, samples are independent, dtype and device are kept."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longtail.data.augment import (
    Augmentation,
    AutoAugmentCIFAR,
    CentreCrop,
    ColorJitter,
    Compose,
    Cutout,
    Normalise,
    RandAugment,
    RandomCrop,
    RandomFlip,
    RandomGrey,
    RandomResizedCrop,
    Resize,
)

CIFAR = Normalise((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
AUGMENTATIONS: dict[str, Augmentation] = {
    "crop": RandomCrop(32, padding=4),
    "flip": RandomFlip(),
    "cutout": Cutout(16),
    "centre": CentreCrop(24),
    "resize": Resize(20),
    "resized crop": RandomResizedCrop(32),
    "jitter": ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
    "jitter without hue": ColorJitter(0.4, 0.4, 0.4),
    "grey": RandomGrey(0.2),
    "autoaugment": AutoAugmentCIFAR(),
    "randaugment": RandAugment(n=2, m=10),
    "normalise": CIFAR,
    "paper": Compose((RandomCrop(32, padding=4), RandomFlip(), CIFAR)),
    "classifier view": Compose((RandomCrop(32, padding=4), RandomFlip(), AutoAugmentCIFAR(128), Cutout(16), CIFAR)),
    "contrast view": Compose(
        (RandomResizedCrop(32), RandomFlip(), ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), RandomGrey(0.2), CIFAR)
    ),
}
VIEWS = ("paper", "classifier view", "contrast view")
# The library chooses the order of float sums by shape and device: results differ by up to a level.
MIXES = {"resize", "resized crop", "contrast view"}
every_augmentation = pytest.mark.parametrize("name", AUGMENTATIONS)


def pictures(samples: int, height: int = 32, width: int = 36, channels: int = 3) -> Tensor:
    return torch.randint(0, 256, (samples, channels, height, width), dtype=torch.uint8)


def assert_same(ours: Tensor, theirs: Tensor, name: str) -> None:
    assert ours.dtype == theirs.dtype
    if name not in MIXES:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0 if ours.dtype == torch.uint8 else 1e-6)
    else:
        apart = (ours.float() - theirs.float()).abs()
        assert float(apart.max()) <= (1 if ours.dtype == torch.uint8 else 0.2)
        assert float((apart > 0).float().mean()) < 0.01


@every_augmentation
@settings(deadline=None, max_examples=8)
@given(samples=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
def test_a_sample_is_the_same_in_any_batch(name: str, samples: int, seed: int) -> None:
    torch.manual_seed(seed)
    augment, images = AUGMENTATIONS[name], pictures(samples)
    uniforms = torch.rand(samples, augment.draws)
    before = images.clone()
    together = augment(images, uniforms)
    assert torch.equal(images, before)  # the batch is not written to
    for i in range(samples):
        assert_same(augment(images[i : i + 1], uniforms[i : i + 1])[0], together[i], name)
    assert torch.equal(augment(images, uniforms), together)


@every_augmentation
def test_no_random_number_is_drawn_and_any_layout_is_accepted(name: str) -> None:
    augment, images = AUGMENTATIONS[name], pictures(3)
    uniforms, state = torch.rand(3, augment.draws), torch.get_rng_state()
    wanted = augment(images, uniforms)
    assert torch.equal(torch.get_rng_state(), state)
    assert augment(images[:0], uniforms[:0]).shape[0] == 0
    assert_same(augment(images.contiguous(memory_format=torch.channels_last), uniforms), wanted, name)
    wider = torch.rand(3, 2 * augment.draws)[:, ::2].copy_(uniforms)
    assert_same(augment(images, wider), wanted, name)


@every_augmentation
def test_the_dtype_is_kept(name: str) -> None:
    augment, images, normalised = AUGMENTATIONS[name], pictures(2), name in {"normalise", *VIEWS}
    uniforms = torch.rand(2, augment.draws)
    assert augment(images, uniforms).dtype == (torch.float32 if normalised else torch.uint8)
    if name in {"autoaugment", "randaugment", "classifier view"}:
        with pytest.raises(TypeError, match="`images` to be a uint8 tensor"):
            augment(images.float(), uniforms)
    else:
        result = augment(images.bfloat16(), uniforms)
        assert result.dtype == (torch.float32 if normalised else torch.bfloat16)
        assert result.isfinite().all()
    if not normalised:  # otherwise there are three means
        assert augment(images[:, :1], uniforms).shape[1] == 1


@pytest.mark.parametrize("name", ["flip", "centre", "contrast view"])
def test_bad_images_and_uniform_numbers(name: str) -> None:
    augment, images = AUGMENTATIONS[name], pictures(2)
    with pytest.raises(ValueError, match=rf"`uniforms` to have shape \(2, {augment.draws}\), but got \(2, 99\)"):
        augment(images, torch.rand(2, 99))
    with pytest.raises(TypeError, match="`uniforms` to be a floating-point tensor"):
        augment(images, torch.zeros(2, augment.draws, dtype=torch.int64))
    if augment.draws:
        with pytest.raises(TypeError, match=r"`uniforms` .* got None"):
            augment(images)
    with pytest.raises(ValueError, match=r"`images` to have shape \(B, C, H, W\)"):
        augment(images[0], torch.rand(3, augment.draws))
    with pytest.raises(TypeError, match="`images` to be a uint8 "):
        augment(images.long(), torch.rand(2, augment.draws))


def test_an_augmentation_is_a_frozen_value() -> None:
    for augment in AUGMENTATIONS.values():
        assert dataclasses.is_dataclass(augment)
        assert not isinstance(augment, type)
        assert augment == dataclasses.replace(augment)
        assert hash(augment) == hash(dataclasses.replace(augment))
        with pytest.raises(dataclasses.FrozenInstanceError):
            augment.size = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name", ["paper", *(pytest.param(n, marks=pytest.mark.slow) for n in AUGMENTATIONS if n != "paper")]
)
def test_torch_compile_captures_it_whole(name: str) -> None:
    augment, images = AUGMENTATIONS[name], pictures(2)
    uniforms = torch.rand(2, augment.draws)
    torch.compiler.reset()
    compiled = torch.compile(augment.__call__, fullgraph=True, backend="eager")  # refuses what waits for the data
    assert torch.equal(compiled(images, uniforms), augment(images, uniforms))


def test_compose_hands_out_columns_in_order() -> None:
    images, parts = pictures(5), (RandomCrop(32, padding=4), RandomFlip(), Cutout(16), CIFAR)
    uniforms = torch.rand(5, 5)
    wanted = parts[0](images, uniforms[:, :2])
    wanted = parts[2](parts[1](wanted, uniforms[:, 2:3]), uniforms[:, 3:])
    assert Compose(parts).draws == 5
    assert torch.equal(Compose(parts)(images, uniforms), CIFAR(wanted))
    assert torch.equal(Compose((Compose(parts[:2]), Compose(parts[2:])))(images, uniforms), CIFAR(wanted))
    assert torch.equal(Compose(())(images), images)


def test_padding_comes_before_normalisation() -> None:
    augment = Compose((RandomCrop(32, padding=4), CIFAR))
    corner = augment(torch.full((1, 3, 32, 32), 255, dtype=torch.uint8), torch.zeros(1, 2))[0, :, 0, 0]
    torch.testing.assert_close(corner, -torch.tensor(CIFAR.mean) / torch.tensor(CIFAR.std))  # black, not 0


@pytest.mark.slow
def test_torchvision_is_not_needed() -> None:
    code = "import sys; sys.modules['torchvision'] = None; import longtail.data.augment"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
@every_augmentation
def test_the_gpu_gives_the_same(name: str) -> None:
    augment, images = AUGMENTATIONS[name], pictures(64)
    uniforms = torch.rand(64, augment.draws)
    result = augment(images.cuda(), uniforms.cuda())
    assert result.is_cuda
    assert_same(result.cpu(), augment(images, uniforms), name)


@pytest.mark.gpu
@every_augmentation
def test_a_cuda_graph_can_capture_it(name: str) -> None:
    """Capture also fails if anything waits for the GPU."""
    augment, images = AUGMENTATIONS[name], pictures(16).cuda()
    uniforms = torch.rand(16, augment.draws, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        augment(images, uniforms)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = augment(images, uniforms)
    others, numbers = pictures(16), torch.rand(16, augment.draws)
    images.copy_(others)
    uniforms.copy_(numbers)
    graph.replay()
    assert torch.equal(result, augment(images, uniforms))
