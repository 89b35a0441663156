"""Augmentations of colours: brightness, contrast, saturation, hue, grey."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from longtail._checks import check_fraction, check_number
from longtail._gpu import device_guard, is_checked
from longtail.data.augment.augmentation import as_pixels, between, check_colour, check_uniforms, over, per_sample

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)
_PIXELS = 1024  # per program of the kernels
_LARGEST = 2**20  # pixels of an image that the kernels accept: its grey levels are summed in 32 bits


def blend(images: Tensor, other: Tensor, keep: Tensor, rest: Tensor) -> Tensor:
    """Return ``keep * images + rest * other`` in [0, 255]; uint8 levels are truncated, not rounded."""
    return as_pixels(per_sample(keep) * images.float() + per_sample(rest) * other, images.dtype, rounded=False)


def luma(images: Tensor) -> Tensor:
    """Return the grey level of each pixel as float32 ``(B, 1, H, W)``; for uint8 images it is truncated."""
    if images.shape[1] == 1:
        return images.float()
    red, green, blue = images.float().split(1, dim=1)  # type: ignore[no-untyped-call]
    level: Tensor = 0.2989 * red + 0.587 * green + 0.114 * blue
    return level.trunc() if images.dtype == torch.uint8 else level


def mean_luma(images: Tensor, level: Tensor) -> Tensor:
    """Return the mean grey level of each image as ``(B, 1, 1, 1)``; uint8 levels are summed exactly."""
    total = (level.int() if images.dtype == torch.uint8 else level).sum(dim=(1, 2, 3), keepdim=True)
    return over(total.float(), level.shape[1:].numel())


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    r"""Turn each image's hue by ``shift`` ``(B,)``, a share of the circle of colours between -0.5 and 0.5.

    From RGB to hue :math:`h`, saturation :math:`s` and value :math:`v`, and back by

    .. math:: v - v s \max(0, \min(k, 4 - k, 1)), \qquad k = (n + 6 h) \bmod 6, \qquad n = 5, 3, 1 \text{ for R, G, B}
    """
    if images.shape[1] == 1:
        return images
    red, green, blue = over(images.float(), 255).unbind(dim=1)
    value = torch.maximum(torch.maximum(red, green), blue)
    spread = value - torch.minimum(torch.minimum(red, green), blue)
    divisor = torch.where(spread == 0, 1.0, spread)
    # The circle in sixths, from the largest channel: red 0, green 2, blue 4.
    sixths = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    turned = sixths + 6 * shift.view(-1, 1, 1)
    channels = []
    for offset in (5, 3, 1):
        k = (turned + offset).remainder(6)
        channels.append(value - spread * torch.minimum(k, 4 - k).clamp(0, 1))
    # Like torchvision, truncate after a factor that maps each level to itself.
    scale = 255.999 if images.dtype == torch.uint8 else 255.0
    return as_pixels(torch.stack(channels, dim=1) * scale, images.dtype, rounded=False)


def jitter(images: Tensor, factors: Tensor, order: Tensor, changed: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and, with a fourth factor, hue, in the given order of each image.

    ``factors`` and ``order`` (indices of the changes, first to last) are ``(B, 3 or 4)``; images where ``changed``
    ``(B,)`` is false stay as they are. RGB images of uint8 are changed by two kernels on GPUs where these were checked,
    with the same result.

    Example:
        >>> image, yes = torch.tensor([[[[100.0, 200.0]]]]), torch.tensor([True])
        >>> factors = torch.tensor([[1.5, 0.5, 1.0]])
        >>> jitter(image, factors, torch.tensor([[0, 1, 2]]), yes).flatten()
        tensor([176.2500, 228.7500])
        >>> jitter(image, factors, torch.tensor([[1, 0, 2]]), yes).flatten()
        tensor([187.5000, 255.0000])
    """
    check_colour(images)
    fits = images.shape[1] == 3 and images.shape[2:].numel() <= _LARGEST
    if is_checked(images.device) and fits and (images.dtype, factors.dtype) == (torch.uint8, torch.float32):
        return jittered_by_kernels(images, factors, order, changed)
    return torch.where(per_sample(changed), _jittered(images, factors, order), images)


def jittered_by_kernels(images: Tensor, factors: Tensor, order: Tensor, changed: Tensor) -> Tensor:
    """Compute :func:`jitter` of RGB uint8 images in two launches: grey levels for the contrast, and all changes."""
    from longtail.data.augment.colour_kernel import change_colours, sum_levels  # noqa: PLC0415 - imported on use

    images, factors, order = images.contiguous(), factors.contiguous(), order.contiguous()
    samples, steps = factors.shape
    pixels = images.shape[2:].numel()
    parts = -(-pixels // _PIXELS)
    sums = torch.empty((samples, parts), dtype=torch.int32, device=images.device)
    result = torch.empty_like(images)
    sizes = {"STEPS": steps, "PIXELS": pixels, "E": _PIXELS, "num_warps": 8, "enable_fp_fusion": False}
    with device_guard(images):
        sum_levels[samples, parts](images, factors, order, sums, **sizes)
        change_colours[samples, parts](
            images, factors, order, changed.contiguous(), sums, result, PARTS=1 << (parts - 1).bit_length(), **sizes
        )
    return result


def _jittered(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Compute :func:`jitter` step by step."""
    if factors.shape[1] == 3:
        for step in range(3):
            images = _blend_step(images, factors, order[:, step])
        return images
    # Hue is expensive: it is done once, between the steps before and after it in the order of each image.
    place = (order == _HUE).long().argmax(dim=1)
    for step in range(3):
        images = _blend_step(images, factors, torch.where(place > step, order[:, step], _HUE))
    images = adjust_hue(images, factors[:, _HUE])
    for step in range(1, 4):
        images = _blend_step(images, factors, torch.where(place < step, order[:, step], _HUE))
    return images


def _blend_step(images: Tensor, factors: Tensor, which: Tensor) -> Tensor:
    """Change brightness, contrast or saturation of each image; nothing if ``which`` is the hue."""
    nothing = (which == _HUE) | ((which == _SATURATION) if images.shape[1] == 1 else False)
    factor = factors.gather(1, which.clamp(max=factors.shape[1] - 1)[:, None])[:, 0]
    keep = torch.where(nothing, 1.0, factor)
    level = luma(images)
    other = torch.where(per_sample(which == _CONTRAST), mean_luma(images, level), level)
    # Brightness does not blend: the other image has weight 0.
    return blend(images, other, keep, torch.where(which == _BRIGHTNESS, 0.0, 1 - keep))


@dataclass(frozen=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue changed at random and in random order, with probability ``p``.

    A strength ``x`` means factors uniform in [max(0, 1 - x), 1 + x], for the hue shifts in [-x, x]. Draws: the factors;
    as many numbers whose order is the order of the changes; whether to change the image. These are 3 + 3 + 1 without
    hue and 4 + 4 + 1 with it.

    Example:
        >>> ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8).draws, ColorJitter(0.4, 0.4, 0.4).draws
        (9, 7)
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    p: float = 1.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            check_number(name, getattr(self, name))
        if check_number("hue", self.hue) > 0.5:
            raise ValueError(f"Expected `hue` to be a number in [0, 0.5], but got {self.hue}.")
        check_fraction("p", self.p)

    @property
    def draws(self) -> int:
        """The factors, their order, and whether to change the image."""
        return 9 if self.hue else 7

    def parameters(self, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return factors ``(B, 3 or 4)``, order of the same shape, and which images are changed, ``(B,)`` bool."""
        ranges = [(max(0.0, 1 - x), 1 + x) for x in (self.brightness, self.contrast, self.saturation)]
        if self.hue:
            ranges.append((-self.hue, self.hue))
        steps = len(ranges)
        factors = torch.stack([between(uniforms[:, i], *bounds) for i, bounds in enumerate(ranges)], dim=1)
        order = uniforms[:, steps : 2 * steps].argsort(dim=1, stable=True)
        return factors, order, uniforms[:, -1] < self.p

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Change the colours of the images."""
        return jitter(images, *self.parameters(check_uniforms(images, uniforms, self.draws)))


@dataclass(frozen=True)
class RandomGrey:
    """All channels set to the grey level, 0.2989 R + 0.587 G + 0.114 B, with probability ``p``.

    Example:
        >>> RandomGrey(0.2)(torch.tensor([255.0, 0, 0]).view(1, 3, 1, 1), torch.tensor([[0.1]])).flatten()
        tensor([76.2195, 76.2195, 76.2195])
    """

    draws: ClassVar[int] = 1
    p: float = 0.1

    def __post_init__(self) -> None:
        check_fraction("p", self.p)

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Make some of the images grey."""
        greyed = check_uniforms(images, uniforms, self.draws)[:, 0] < self.p
        check_colour(images)
        return torch.where(per_sample(greyed), luma(images).to(images.dtype), images)
