"""The CIFAR ResNet against numpy and published numbers of parameters, and the small network."""

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view

from longtail.models import CifarResNet, SmallCNN, build_model
from longtail.models.backbones import shortcut


def count_by_formula(depth: int, classes: int, channels: int = 3) -> int:
    n = (depth - 2) // 6
    stem = 9 * channels * 16 + 2 * 16
    first = 2 * n * (9 * 16 * 16 + 2 * 16)
    second = 9 * 16 * 32 + (2 * n - 1) * 9 * 32 * 32 + 2 * n * 2 * 32
    third = 9 * 32 * 64 + (2 * n - 1) * 9 * 64 * 64 + 2 * n * 2 * 64
    return stem + first + second + third + 64 * classes + classes


@pytest.mark.parametrize(("depth", "published"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85)])
def test_number_of_parameters_and_layers(depth: int, published: float) -> None:
    model = build_model(f"resnet{depth}", 10)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == count_by_formula(depth, 10)
    assert round(count / 1e6, 2) == published
    assert sum(isinstance(m, torch.nn.Conv2d | torch.nn.Linear) for m in model.modules()) == depth


def test_resnet32_has_464154_parameters() -> None:
    assert count_by_formula(32, 10) == 464_154
    assert sum(p.numel() for p in build_model("resnet32", 100).parameters()) == 464_154 + 90 * 65
    assert sum(p.numel() for p in build_model("resnet20", 10, in_channels=1).parameters()) == count_by_formula(
        20, 10, 1
    )


@pytest.mark.parametrize(("depth", "channels", "height", "width"), [(20, 3, 32, 32), (32, 1, 8, 8), (56, 4, 9, 13)])
def test_shapes(depth: int, channels: int, height: int, width: int) -> None:
    backbone = CifarResNet(depth, channels)
    images = torch.randn(2, channels, height, width)
    maps = backbone.maps(images)
    assert maps.shape == (2, 64, -(-height // 4), -(-width // 4))
    assert backbone.eval()(images).shape == (2, 64)


def test_shortcut_takes_every_second_pixel_and_pads_channels_with_zeros() -> None:
    maps = torch.randn(2, 16, 7, 8)
    out = shortcut(maps, 32, 2)
    assert out.shape == (2, 32, 4, 4)
    assert torch.equal(out[:, 8:24], maps[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()
    assert shortcut(maps, 16, 1) is maps


def conv(maps: np.ndarray, weight: np.ndarray, stride: int) -> np.ndarray:
    padded = np.pad(maps, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("bihwkl,oikl->bohw", windows, weight)


def norm(maps: np.ndarray, module: torch.nn.BatchNorm2d, training: bool) -> np.ndarray:
    if training:
        mean, var = maps.mean((0, 2, 3)), maps.var((0, 2, 3))
    else:
        mean, var = module.running_mean.numpy(), module.running_var.numpy()
    weight, bias = module.weight.detach().numpy(), module.bias.detach().numpy()
    by_channel = np.s_[None, :, None, None]
    return (maps - mean[by_channel]) / np.sqrt(var + 1e-5)[by_channel] * weight[by_channel] + bias[by_channel]


def numpy_forward(backbone: CifarResNet, images: np.ndarray, training: bool) -> np.ndarray:
    def w(module: torch.nn.Conv2d) -> np.ndarray:
        return module.weight.detach().numpy()

    maps = np.maximum(norm(conv(images, w(backbone.conv), 1), backbone.norm, training), 0)
    per_stage = (backbone.depth - 2) // 6
    for index, block in enumerate(backbone.blocks):
        stride = 2 if index in (per_stage, 2 * per_stage) else 1
        inner = np.maximum(norm(conv(maps, w(block.conv1), stride), block.norm1, training), 0)
        inner = norm(conv(inner, w(block.conv2), 1), block.norm2, training)
        if stride == 2:
            kept = maps[:, :, ::2, ::2]
            zeros = np.zeros_like(kept[:, : kept.shape[1] // 2])
            maps = np.concatenate([zeros, kept, zeros], axis=1)
        maps = np.maximum(inner + maps, 0)
    return maps.mean((2, 3))


@pytest.mark.parametrize("training", [True, False])
def test_forward_agrees_with_numpy(training: bool) -> None:
    backbone = CifarResNet(20).double().train(training)
    for module in backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # so that scale, shift and statistics matter
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                torch.nn.init.uniform_(tensor, 0.5, 1.5)
    images = torch.randn(3, 3, 11, 8, dtype=torch.float64)
    expected = numpy_forward(backbone, images.numpy(), training)
    np.testing.assert_allclose(backbone(images).detach().numpy(), expected, rtol=1e-10, atol=1e-12)


def test_convolutions_start_with_kaiming_normal() -> None:
    backbone = CifarResNet(56)
    for module in backbone.modules():
        if isinstance(module, torch.nn.Conv2d):
            std = (2 / (9 * module.in_channels)) ** 0.5
            assert abs(module.weight.std().item() / std - 1) < 5 / (2 * module.weight.numel()) ** 0.5


def test_small_cnn() -> None:
    count = sum(parameter.numel() for parameter in build_model("small-cnn", 10, in_channels=1).parameters())
    assert count == 9 * (16 + 16 * 32 + 32 * 64) + 2 * (16 + 32 + 64) + 65 * 10
    assert 20_000 < count < 50_000
    assert SmallCNN(1).maps(torch.zeros(2, 1, 8, 8)).shape == (2, 64, 2, 2)


@pytest.mark.parametrize("depth", [21, 2, "32"])
def test_a_wrong_depth_is_named(depth: object) -> None:
    with pytest.raises((TypeError, ValueError), match="`depth`"):
        CifarResNet(depth)  # type: ignore[arg-type]


def test_wrong_images_are_named() -> None:
    for backbone in (CifarResNet(20, 3), SmallCNN(3)):
        for shape in ((2, 1, 8, 8), (3, 8, 8), (2, 3, 8, 3)):
            with pytest.raises(ValueError, match=r"`images` to have shape \(batch, 3, height, width\)"):
                backbone(torch.zeros(shape))
