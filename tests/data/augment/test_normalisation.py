"""Normalisation: torchvision's within float32 rounding."""

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from longtail.data.augment import Normalise

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 3, 5, 9), torch.uint8), ((3, 1, 8, 8), torch.float32), ((2, 3, 4, 4), torch.bfloat16)]
)
def test_normalise_equals_torchvision(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    images, mean, std = torch.randint(0, 256, shape, dtype=torch.uint8), MEAN[: shape[1]], STD[: shape[1]]
    wanted = F.normalize(images.double() / 255, list(mean), list(std))
    result = Normalise(mean, std)(images.to(dtype))
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), wanted, rtol=0, atol=2e-6)  # values up to 2.8, eps 2.4e-7


def test_the_dtype_of_the_result() -> None:
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    half = Normalise(MEAN, STD, dtype=torch.bfloat16)
    assert half.draws == 0
    assert torch.equal(half(images), Normalise(MEAN, STD)(images).bfloat16())


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"`images` to have 3 channels, as `mean` has, but got 1\."):
        Normalise(MEAN, STD)(torch.zeros(1, 1, 2, 2))
    for mean, std in ((MEAN, STD[:2]), ((0.1, 0.1), (0.2, 0.0)), ((float("nan"),), (1.0,))):
        with pytest.raises(ValueError, match="`mean` and `std` to be a finite number per channel"):
            Normalise(mean, std)
