"""Blur: torchvision's within 0.001 of 255 levels on floats, on uint8 its rounding, but for ties within 0.001."""

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from longtail.data.augment import Blur, blur

SIGMA = [0.1, 0.3, 0.7, 1.0, 1.5, 2.0]


def pictures(shape: tuple[int, ...]) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize("shape", [(6, 3, 32, 32), (6, 1, 12, 30), (6, 3, 25, 13)], ids=str)
@pytest.mark.parametrize("kernel_size", [1, 3, 9, 23])
def test_blur_is_torchvisions(shape: tuple[int, ...], kernel_size: int) -> None:
    images, sigma = pictures(shape), torch.tensor(SIGMA)
    floats, bytes_ = blur(images.float(), sigma, kernel_size), blur(images, sigma, kernel_size)
    assert (floats.dtype, bytes_.dtype) == (torch.float32, torch.uint8)
    for i, image in enumerate(images):
        wanted = F.gaussian_blur(image.double(), [kernel_size, kernel_size], [float(sigma[i])] * 2)
        torch.testing.assert_close(floats[i].double(), wanted, rtol=0, atol=1e-3)
        tie = (wanted - wanted.floor() - 0.5).abs() < 1e-3
        assert torch.equal(bytes_[i][~tie], wanted.round().to(torch.uint8)[~tie])
        own = F.gaussian_blur(image, [kernel_size, kernel_size], [float(sigma[i])] * 2)
        assert (bytes_[i].int() - own.int()).abs().max() <= 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16], ids=str)
def test_sigma_and_probability_are_drawn(dtype: torch.dtype) -> None:
    images, augment = pictures((6, 3, 16, 16)).to(dtype), Blur(5, sigma=(0.5, 2.5), p=0.5)
    uniforms = torch.tensor([[0.0, 0.0], [0.5, 0.49], [0.999, 0.2], [0.0, 0.5], [0.5, 0.9], [0.9, 0.99]])
    result, sigma = augment(images, uniforms), 0.5 + 2 * uniforms[:, 0]
    assert result.dtype == dtype
    assert torch.equal(result[:3], blur(images[:3], sigma[:3], 5))
    assert torch.equal(result[3:], images[3:])


def test_a_side_just_long_enough() -> None:
    image = pictures((1, 1, 3, 3))
    wanted = F.gaussian_blur(image.double(), [5, 5], [1.0, 1.0])
    torch.testing.assert_close(blur(image.float(), torch.ones(1), 5).double(), wanted, rtol=0, atol=1e-3)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"`kernel_size` to be odd, but got 4\."):
        Blur(4)
    with pytest.raises(ValueError, match=r"`sigma` to hold finite numbers > 0, but got \(0, 1\)\."):
        Blur(3, sigma=(0, 1))
    with pytest.raises(ValueError, match=r"`images` to be larger than 4 x 4, but got 4 x 9\."):
        blur(pictures((1, 3, 4, 9)), torch.ones(1), 9)
