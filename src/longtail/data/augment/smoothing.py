"""Gaussian blur."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail._checks import check_integer
from longtail.data.augment._batch import (
    between,
    check_fraction,
    check_images,
    check_interval,
    check_parameters,
    check_uniforms,
    mix,
    per_sample,
    wide,
)

__all__ = ["Blur", "blur"]


def _check_kernel(kernel_size: object) -> int:
    """``kernel_size`` as an odd integer >= 1."""
    number = check_integer("kernel_size", kernel_size, minimum=1)
    if number % 2 == 0:
        raise ValueError(f"Expected `kernel_size` to be odd, but got {kernel_size}.")
    return number


def _bells(sigma: Tensor, side: int, reach: int) -> Tensor:
    """Weights ``(B, side, side)`` of a side's pixels in the blurred ones, mirrored at both ends without repeating."""
    new, old = torch.arange(side, device=sigma.device)[:, None], torch.arange(side, device=sigma.device)
    steps = torch.arange(-reach, reach + 1, device=sigma.device)
    kernel = (-0.5 * (steps / wide(sigma)[:, None]) ** 2).softmax(dim=1).float()
    weights = torch.zeros((sigma.shape[0], side, side), device=sigma.device)
    for mirrored, counts in ((old, old >= 0), (-old, old > 0), (2 * (side - 1) - old, old < side - 1)):
        distance = mirrored - new
        weight = kernel[:, (distance + reach).clamp(0, 2 * reach)]
        weights += torch.where(counts & (distance.abs() <= reach), weight, 0.0)
    return weights


def blur(images: Tensor, sigma: Tensor, kernel_size: int) -> Tensor:
    r"""Each pixel the mean of those around it, with weights that fall off as a normal density.

    .. math:: w_d \propto \exp\left(-\frac{d^2}{2 \sigma^2}\right), \qquad |d| \le \frac{k - 1}{2}

    Down and across each is one matrix product, with the weights of each sample; beyond its edges the image is mirrored.

    Args:
        images: ``(B, C, H, W)``, uint8 or floating-point in [0, 255].
        sigma: ``(B,)``, > 0, in pixels.
        kernel_size: :math:`k`, odd; half of it must be less than the image's sides.

    Returns:
        The images' shape and dtype; uint8 is rounded.

    Example:
        >>> blur(torch.tensor([[[[0.0, 0, 0, 90, 0, 0, 0]]]]), torch.tensor([1.0]), kernel_size=1).sum()
        tensor(90.)
        >>> blur(torch.tensor([0.0, 0, 90, 0, 0]).view(1, 1, 1, 5).expand(1, 1, 5, 5), torch.tensor([9e9]), 3)[0, 0, 0]
        tensor([ 0., 30., 30., 30.,  0.])
    """
    check_images(images)
    check_parameters(images, sigma=sigma)
    reach = _check_kernel(kernel_size) // 2
    height, width = images.shape[2:]
    if reach >= min(height, width):
        raise ValueError(f"Expected `images` to be larger than {reach} x {reach}, but got {height} x {width}.")
    return mix(images, rows=_bells(sigma, height, reach), columns=_bells(sigma, width, reach))


@dataclass(frozen=True)
class Blur:
    """:func:`blur` with ``sigma`` uniform in a range, with probability ``p``. Draws: sigma, whether to blur.

    Example:
        >>> Blur(23)(torch.full((1, 3, 32, 32), 7.0), torch.tensor([[0.5, 0.1]])).mean()
        tensor(7.)
    """

    kernel_size: int
    sigma: tuple[float, float] = (0.1, 2.0)
    p: float = 0.5

    def __post_init__(self) -> None:
        _check_kernel(self.kernel_size)
        check_fraction("p", self.p)
        low, high = check_interval("sigma", self.sigma, 0.0, math.inf)
        if low == 0 or high == math.inf:
            raise ValueError(f"Expected `sigma` to hold finite numbers > 0, but got {self.sigma}.")

    @property
    def draws(self) -> int:
        """Sigma, and whether to blur."""
        return 2

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Some of the images blurred."""
        uniforms = check_uniforms(images, uniforms, self.draws)
        blurred = blur(images, between(uniforms[:, 0], *self.sigma), self.kernel_size)
        return torch.where(per_sample(uniforms[:, 1] < self.p), blurred, images)
