"""Colours changed, pixel by pixel: brightness, contrast, saturation, hue, grey."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longtail._gpu import device_guard, is_checked
from longtail.data.augment._batch import (
    as_pixels,
    between,
    check_colour,
    check_fraction,
    check_interval,
    check_parameters,
    check_uniforms,
    over,
    per_sample,
)

__all__ = [
    "ColorJitter",
    "RandomGrey",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "grey",
    "jitter",
]

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)  # torchvision's numbers
_PIXELS = 1024  # that a program of the kernels changes
_LARGEST = 2**20  # pixels of an image that they take: its grey levels are summed in 32 bits


def blend(images: Tensor, other: Tensor, keep: Tensor, rest: Tensor) -> Tensor:
    """``keep`` times the images plus ``rest`` times another, in [0, 255]; uint8 levels are cut off, not rounded."""
    return as_pixels(per_sample(keep) * images.float() + per_sample(rest) * other, images.dtype, rounded=False)


def luma(images: Tensor) -> Tensor:
    """The grey level of each pixel as float32 ``(B, 1, H, W)``; of uint8 images a whole number, cut off."""
    if images.shape[1] == 1:
        return images.float()
    red, green, blue = images.float().split(1, dim=1)  # type: ignore[no-untyped-call]
    level: Tensor = 0.2989 * red + 0.587 * green + 0.114 * blue
    return level.trunc() if images.dtype == torch.uint8 else level


def mean_luma(images: Tensor, level: Tensor) -> Tensor:
    """The mean of an image's grey levels as ``(B, 1, 1, 1)``; of whole numbers it is summed exactly."""
    total = (level.int() if images.dtype == torch.uint8 else level).sum(dim=(1, 2, 3), keepdim=True)
    return over(total.float(), level.shape[1:].numel())


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Each image times its factor: 0 is black, 1 the image.

    Args:
        images: ``(B, 1 or 3, H, W)``, uint8 or floating-point in [0, 255].
        factor: ``(B,)``, >= 0.

    Returns:
        The images' shape and dtype.

    Example:
        >>> adjust_brightness(torch.tensor([[[[100.0, 200.0]]]]), torch.tensor([1.5])).flatten()
        tensor([150., 255.])
    """
    check_colour(images)
    check_parameters(images, factor=factor)
    return as_pixels(per_sample(factor) * images.float(), images.dtype, rounded=False)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Each image's distance from the mean of its grey levels times its factor: 0 is one grey, 1 the image.

    Args:
        images: ``(B, 1 or 3, H, W)``, uint8 or floating-point in [0, 255].
        factor: ``(B,)``, >= 0.

    Returns:
        The images' shape and dtype.

    Example:
        >>> adjust_contrast(torch.tensor([[[[100.0, 200.0]]]]), torch.tensor([0.5])).flatten()
        tensor([125., 175.])
    """
    check_colour(images)
    check_parameters(images, factor=factor)
    return blend(images, mean_luma(images, luma(images)), factor, 1 - factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Each pixel's distance from its grey level times the image's factor: 0 is grey, 1 the image.

    Args:
        images: ``(B, 1 or 3, H, W)``, uint8 or floating-point in [0, 255]; one channel stays as it is.
        factor: ``(B,)``, >= 0.

    Returns:
        The images' shape and dtype.

    Example:
        >>> adjust_saturation(torch.tensor([255.0, 0, 0]).view(1, 3, 1, 1), torch.tensor([0.0])).flatten()
        tensor([76.2195, 76.2195, 76.2195])
    """
    check_colour(images)
    check_parameters(images, factor=factor)
    return images if images.shape[1] == 1 else blend(images, luma(images), factor, 1 - factor)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    r"""Each image's hue turned by a share of the circle of colours, between -0.5 and 0.5.

    From RGB to hue :math:`h`, saturation :math:`s` and value :math:`v`, and back by

    .. math:: v - v s \max(0, \min(k, 4 - k, 1)), \qquad k = (n + 6 h) \bmod 6, \qquad n = 5, 3, 1 \text{ for R, G, B}

    Args:
        images: ``(B, 1 or 3, H, W)``, uint8 or floating-point in [0, 255]; one channel stays as it is.
        shift: ``(B,)``.

    Returns:
        The images' shape and dtype.

    Example:
        >>> adjust_hue(torch.tensor([200.0, 0, 0]).view(1, 3, 1, 1), torch.tensor([1 / 3])).round().flatten()
        tensor([  0., 200.,   0.])
    """
    check_colour(images)
    check_parameters(images, shift=shift)
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
    # torchvision's way from [0, 1] to uint8: cut off, after a factor that maps each level to itself.
    scale = 255.999 if images.dtype == torch.uint8 else 255.0
    return as_pixels(torch.stack(channels, dim=1) * scale, images.dtype, rounded=False)


def grey(images: Tensor, greyed: Tensor) -> Tensor:
    """Each image as it is, or with every channel set to its grey level, 0.2989 R + 0.587 G + 0.114 B.

    Args:
        images: ``(B, 1 or 3, H, W)``, uint8 or floating-point in [0, 255]; one channel stays as it is.
        greyed: ``(B,)`` bool, which images to grey.

    Returns:
        The images' shape and dtype.

    Example:
        >>> grey(torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1), torch.tensor([True])).flatten()
        tensor([76, 76, 76], dtype=torch.uint8)
    """
    check_colour(images)
    check_parameters(images, greyed=greyed)
    return torch.where(per_sample(greyed), luma(images).to(images.dtype), images)


def jitter(images: Tensor, factors: Tensor, order: Tensor, changed: Tensor | None = None) -> Tensor:
    """Brightness, contrast, saturation and (where there is a fourth factor) hue, in an order of each image's own.

    RGB images of uint8 are changed by two kernels where they were checked, to the same levels.

    Args:
        images: ``(B, 1 or 3, H, W)``, uint8 or floating-point in [0, 255].
        factors: ``(B, 3 or 4)``: of brightness, contrast and saturation, and the shift of the hue.
        order: int64 of the same shape, a permutation a row: which factor comes first, second, …
        changed: ``(B,)`` bool, which images to change; the others stay as they are. Default: all.

    Returns:
        The images' shape and dtype.

    Example:
        >>> image, factors = torch.tensor([[[[100.0, 200.0]]]]), torch.tensor([[1.5, 0.5, 1.0]])
        >>> jitter(image, factors, torch.tensor([[0, 1, 2]])).flatten()
        tensor([176.2500, 228.7500])
        >>> jitter(image, factors, torch.tensor([[1, 0, 2]])).flatten()
        tensor([187.5000, 255.0000])
    """
    check_colour(images)
    steps = factors.shape[-1]
    if factors.shape != (images.shape[0], steps) or steps not in {3, 4} or order.shape != factors.shape:
        raise ValueError(
            f"Expected `factors` and `order` to have shape ({images.shape[0]}, 3 or 4), "
            f"but got {tuple(factors.shape)} and {tuple(order.shape)}."
        )
    if changed is None:
        changed = torch.ones(images.shape[:1], dtype=torch.bool, device=images.device)
    check_parameters(images, changed=changed)
    if changed.dtype != torch.bool:
        raise TypeError(f"Expected `changed` to be bool, but got {changed.dtype}.")
    fits = images.shape[1] == 3 and images.shape[2:].numel() <= _LARGEST
    if is_checked(images.device) and fits and (images.dtype, factors.dtype) == (torch.uint8, torch.float32):
        return jittered_by_kernels(images, factors, order, changed)
    return torch.where(per_sample(changed), _jittered(images, factors, order), images)


def jittered_by_kernels(images: Tensor, factors: Tensor, order: Tensor, changed: Tensor) -> Tensor:
    """:func:`jitter` of RGB images of uint8 in two launches: the grey levels that contrast needs, and all changes."""
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
    """The same step by step, of any images."""
    if factors.shape[1] == 3:
        for step in range(3):
            images = _blend_step(images, factors, order[:, step])
        return images
    # Hue is the dear one: it is done once, between the steps that come before it in an image's order and those after.
    place = (order == _HUE).long().argmax(dim=1)
    for step in range(3):
        images = _blend_step(images, factors, torch.where(place > step, order[:, step], _HUE))
    images = adjust_hue(images, factors[:, _HUE])
    for step in range(1, 4):
        images = _blend_step(images, factors, torch.where(place < step, order[:, step], _HUE))
    return images


def _blend_step(images: Tensor, factors: Tensor, which: Tensor) -> Tensor:
    """One of brightness, contrast and saturation for each image; none where ``which`` is the hue."""
    nothing = (which == _HUE) | ((which == _SATURATION) if images.shape[1] == 1 else False)
    factor = factors.gather(1, which.clamp(max=factors.shape[1] - 1)[:, None])[:, 0]
    keep = torch.where(nothing, 1.0, factor)
    level = luma(images)
    other = torch.where(per_sample(which == _CONTRAST), mean_luma(images, level), level)
    # Brightness has no other image: a weight of 0 leaves none of it.
    return blend(images, other, keep, torch.where(which == _BRIGHTNESS, 0.0, 1 - keep))


@dataclass(frozen=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue changed at random and in random order, with probability ``p``.

    A number ``x`` means factors uniform in [max(0, 1 - x), 1 + x], for the hue shifts in [-x, x]; a pair is the range
    itself. Draws: the factors; as many numbers whose order is the order of the changes; whether to change at all.
    Without hue these are 3 + 3 + 1, with it 4 + 4 + 1.

    Example:
        >>> ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8).draws, ColorJitter(0.4, 0.4, 0.4).draws
        (9, 7)
    """

    brightness: float | tuple[float, float] = 0.0
    contrast: float | tuple[float, float] = 0.0
    saturation: float | tuple[float, float] = 0.0
    hue: float | tuple[float, float] = 0.0
    p: float = 1.0

    def __post_init__(self) -> None:
        check_fraction("p", self.p)
        self._ranges()

    def _ranges(self) -> list[tuple[float, float]]:
        """From where to where the factors of brightness, contrast, saturation and, if it is changed, hue go."""
        ranges = []
        for name in ("brightness", "contrast", "saturation"):
            value = getattr(self, name)
            if not isinstance(value, tuple):
                _, value = check_interval(name, (0.0, value), 0.0, float("inf"), shown=value, what="a number or a pair")
                value = (max(0.0, 1 - value), 1 + value)
            ranges.append(check_interval(name, value, 0.0, float("inf")))
        hue = self.hue
        if not isinstance(hue, tuple):
            check_interval("hue", (hue, hue), 0.0, 0.5, shown=hue, what="a number or a pair")
            hue = (-hue, hue)
        if check_interval("hue", hue, -0.5, 0.5) != (0.0, 0.0):
            ranges.append(hue)
        return ranges

    @property
    def draws(self) -> int:
        """The factors, their order, and whether to change at all."""
        return 2 * len(self._ranges()) + 1

    def parameters(self, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Factors ``(B, 3 or 4)``, order of the same shape, and which images are changed, ``(B,)`` bool."""
        ranges = self._ranges()
        steps = len(ranges)
        factors = torch.stack([between(uniforms[:, i], *bounds) for i, bounds in enumerate(ranges)], dim=1)
        order = uniforms[:, steps : 2 * steps].argsort(dim=1, stable=True)
        return factors, order, uniforms[:, -1] < self.p

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """The images in other colours."""
        factors, order, changed = self.parameters(check_uniforms(images, uniforms, self.draws))
        return jitter(images, factors, order, changed)


@dataclass(frozen=True)
class RandomGrey:
    """Grey with probability ``p``, all channels kept.

    Example:
        >>> RandomGrey(0.2)(torch.tensor([255.0, 0, 0]).view(1, 3, 1, 1), torch.tensor([[0.1]])).flatten()
        tensor([76.2195, 76.2195, 76.2195])
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        check_fraction("p", self.p)

    @property
    def draws(self) -> int:
        """Whether to grey."""
        return 1

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Some of the images in grey."""
        return grey(images, check_uniforms(images, uniforms, self.draws)[:, 0] < self.p)
