"""AutoAugment's policies for CIFAR, RandAugment, and their operations, a different one for each image of a batch.

There are three kinds of operations: pixels are moved (shear, translate, rotate), blended with another image
(brightness, colour, contrast, sharpness), or mapped by a table of levels (posterise, solarise, autocontrast, equalise,
invert). A batch goes through each kind once, with parameters that do not change images whose operation is of another
kind.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._checks import check_fraction, check_integer
from longtail.data.augment.augmentation import check_colour, check_uniforms, integers, over, per_sample, pick
from longtail.data.augment.colour import blend, luma, mean_luma

OPERATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
    "Invert",
)
"""The names of the operations, as in torchvision; the number of an operation is its index here."""


def chosen(operation: Tensor, *names: str) -> Tensor:
    """Return whether the operation of each image is one of these, ``(B,)`` bool."""
    found = operation == OPERATIONS.index(names[0])
    for name in names[1:]:
        found = found | (operation == OPERATIONS.index(name))
    return found


def _moved(images: Tensor, operation: Tensor, magnitude: Tensor, fill: int) -> Tensor:
    """Shear, translate and rotate: each new pixel is the old one nearest to its place under an affine map."""
    height, width = images.shape[2:]

    def only(name: str, value: Tensor) -> Tensor:
        return torch.where(chosen(operation, name), value, torch.zeros_like(value))

    angle = only("Rotate", magnitude).double().deg2rad()
    cos, sin = angle.cos().float(), angle.sin().float()
    across, down = only("ShearX", magnitude), only("ShearY", magnitude)  # from the upper left corner
    right, below = only("TranslateX", magnitude.trunc()), only("TranslateY", magnitude.trunc())
    x = torch.arange(width, device=images.device, dtype=torch.float32) - (width - 1) / 2
    y = torch.arange(height, device=images.device, dtype=torch.float32)[:, None] - (height - 1) / 2
    sources = []
    for side, *terms in (
        (width, cos, across - sin, across * (height / 2) - right),
        (height, down + sin, cos, down * (width / 2) - below),
    ):
        # In halves of a side and term by term, like the grid of torchvision, so that ties round the same way on every
        # device; a matrix product may round them in any way.
        along, beside, shift = (over(term[:, None, None], side / 2) for term in terms)
        place = along * x + beside * y + shift
        sources.append((((place + 1) * side - 1) / 2).round().long())
    columns, rows = sources
    return pick(images, rows, columns, fill)


def _smoothed(images: Tensor) -> Tensor:
    """Smooth inner pixels with a 3 x 3 kernel of ones and 5 in the middle, in whole levels; keep the border."""
    levels = images.float()
    inner = (9 * F.avg_pool2d(levels, 3, stride=1) + 4 * levels[:, :, 1:-1, 1:-1]) / 13
    smoothed = levels.clone()
    smoothed[:, :, 1:-1, 1:-1] = inner.round()
    return smoothed


def _blended(images: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Brightness, colour, contrast and sharpness: (1 + magnitude) * image - magnitude * another image."""
    names, level = ["Brightness", "Contrast"], luma(images)
    other = torch.where(per_sample(chosen(operation, "Contrast")), mean_luma(images, level), level)
    if images.shape[1] == 3:  # otherwise there is no colour
        names.append("Color")
    if min(images.shape[2:]) > 2:  # otherwise there is no inner pixel
        names.append("Sharpness")
        other = torch.where(per_sample(chosen(operation, "Sharpness")), _smoothed(images), other)
    excess = torch.where(chosen(operation, *names), magnitude, 0.0)
    return blend(images, other, 1 + excess, torch.where(chosen(operation, "Brightness"), 0.0, -excess))


def _equalised(images: Tensor) -> Tensor:
    """Return for each channel the levels ``(B, C, 256)`` that equalise its histogram, like PIL."""
    pixels = images.flatten(2).long()
    histogram = torch.zeros((*pixels.shape[:2], 256), dtype=torch.int64, device=images.device)
    histogram.scatter_add_(2, pixels, torch.ones_like(pixels))
    highest = histogram.gather(2, pixels.amax(dim=2, keepdim=True))
    step = (pixels.shape[2] - highest).div(255, rounding_mode="floor")
    below = histogram.cumsum(dim=2) - histogram
    levels = (below + step // 2).div(step.clamp(min=1), rounding_mode="floor").clamp(max=255)
    return torch.where(step == 0, torch.arange(256, device=images.device), levels)


def _mapped(images: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Posterise, solarise, autocontrast, equalise and invert, by a table of 256 levels for each channel."""
    level = torch.arange(256, device=images.device).expand(*images.shape[:2], 256)

    def only(table: Tensor, name: str, changed: Tensor) -> Tensor:
        return torch.where(chosen(operation, name)[:, None, None], changed, table)

    parameter = magnitude[:, None, None]
    cut = 2 ** (8 - parameter.long().clamp(0, 8))  # levels that are mapped to one level
    low, high = images.amin(dim=(2, 3))[:, :, None].float(), images.amax(dim=(2, 3))[:, :, None].float()
    stretched = ((level - low) * (255 / (high - low))).clamp(0, 255)
    table = only(level, "Posterize", level - level % cut)
    table = only(table, "Solarize", torch.where(level >= parameter, 255 - level, level))
    table = only(table, "AutoContrast", torch.where(high > low, stretched, level).long())
    table = only(table, "Equalize", _equalised(images))
    table = only(table, "Invert", 255 - level).to(torch.uint8)
    return table.gather(2, images.flatten(2).long()).view_as(images)


def apply_operation(images: Tensor, operation: Tensor, magnitude: Tensor, fill: int = 0) -> Tensor:
    """Apply one operation to each image, like torchvision: nearest pixels, truncated levels.

    ``operation`` ``(B,)`` has indices into :data:`OPERATIONS`. ``magnitude`` ``(B,)`` is the tangent of the shear, the
    pixels to translate by (truncated), degrees, a factor minus 1, the bits that posterise keeps, or the first level
    that solarise inverts. Pixels from outside the image have the level ``fill``.

    Example:
        >>> images = torch.tensor([10, 200, 10, 200], dtype=torch.uint8).view(2, 1, 1, 2)
        >>> operation = torch.tensor([OPERATIONS.index("Solarize"), OPERATIONS.index("TranslateX")])
        >>> apply_operation(images, operation, torch.tensor([128.0, 1.0])).flatten(1)
        tensor([[10, 55],
                [ 0, 10]], dtype=torch.uint8)
    """
    images = _moved(images, operation, magnitude, fill)
    images = _blended(images, operation, magnitude)
    return _mapped(images, operation, magnitude)


# --- policies

CIFAR_POLICIES = (
    (("Invert", 1, 0), ("Contrast", 2, 6)),
    (("Rotate", 7, 2), ("TranslateX", 3, 9)),
    (("Sharpness", 8, 1), ("Sharpness", 9, 3)),
    (("ShearY", 5, 8), ("TranslateY", 7, 9)),
    (("AutoContrast", 5, 0), ("Equalize", 9, 0)),
    (("ShearY", 2, 7), ("Posterize", 3, 7)),
    (("Color", 4, 3), ("Brightness", 6, 7)),
    (("Sharpness", 3, 9), ("Brightness", 7, 9)),
    (("Equalize", 6, 0), ("Equalize", 5, 0)),
    (("Contrast", 6, 7), ("Sharpness", 6, 5)),
    (("Color", 7, 7), ("TranslateX", 5, 8)),
    (("Equalize", 3, 0), ("AutoContrast", 4, 0)),
    (("TranslateY", 4, 3), ("Sharpness", 2, 6)),
    (("Brightness", 9, 6), ("Color", 2, 8)),
    (("Solarize", 5, 2), ("Invert", 0, 0)),
    (("Equalize", 2, 0), ("AutoContrast", 6, 0)),
    (("Equalize", 2, 0), ("Equalize", 6, 0)),
    (("Color", 9, 9), ("Equalize", 6, 0)),
    (("AutoContrast", 8, 0), ("Solarize", 2, 8)),
    (("Brightness", 1, 3), ("Color", 7, 0)),
    (("Solarize", 4, 5), ("AutoContrast", 9, 0)),
    (("TranslateY", 9, 9), ("TranslateY", 7, 9)),
    (("AutoContrast", 9, 0), ("Solarize", 8, 3)),
    (("Equalize", 8, 0), ("Invert", 1, 0)),
    (("TranslateY", 7, 9), ("AutoContrast", 9, 0)),
)
"""Cubuk et al. (2019): 25 pairs of (operation, probability in tenths, level of 0 to 9, or 0 if it has none)."""

_CIFAR_BINS = 10  # levels of magnitudes in these policies
_BINS = 31  # levels of magnitudes in RandAugment
_SIGNED = OPERATIONS[1:10]  # from ShearX to Sharpness: positive or negative with the same probability


def _from_table(index: Tensor, values: tuple[int, ...]) -> Tensor:
    """Return ``values[index]``, for whole numbers below 16.

    15 numbers at a time are packed into a word, which is an argument of a kernel: a table would have to be copied to
    the device, which a CUDA graph cannot capture.
    """
    found = torch.zeros_like(index)
    for start in range(0, len(values), 15):
        word = sum(value << (4 * place) for place, value in enumerate(values[start : start + 15]))
        part = (torch.full_like(index, word) >> (4 * (index - start).clamp(0, 14))) & 15
        found = torch.where(index >= start, part, found)
    return found


def magnitudes(operation: Tensor, level: Tensor, bins: int, height: int, width: int) -> Tensor:
    """Return the magnitude of each operation at a level of 0 to ``bins`` - 1, without sign, like torchvision.

    Shear to 0.3; translation to 150 / 331 of the side; rotation to 30 degrees; factors to 0.9 more or less; posterise
    from 8 bits to 4; solarise from 255 to 0.
    """
    last = bins - 1
    end = torch.zeros_like(level, dtype=torch.float32)
    for strongest, names in (
        (0.3, ("ShearX", "ShearY")),
        (150.0 / 331.0 * width, ("TranslateX",)),
        (150.0 / 331.0 * height, ("TranslateY",)),
        (30.0, ("Rotate",)),
        (0.9, ("Brightness", "Color", "Contrast", "Sharpness")),
        (255.0, ("Solarize",)),
    ):
        end = torch.where(chosen(operation, *names), strongest, end)
    step, rest = over(end, last), last - level
    # From the nearer end, like torch.linspace: the last bit of a factor matters where levels are truncated.
    near, far = step * torch.minimum(level, rest), end - step * torch.minimum(level, rest)
    falling = chosen(operation, "Solarize")
    magnitude = torch.where((level < bins // 2) ^ falling, near, far)
    return torch.where(chosen(operation, "Posterize"), 8 - over(level.float(), last / 4).round(), magnitude)


def _signed(operation: Tensor, magnitude: Tensor, uniform: Tensor) -> Tensor:
    """Negate half of the magnitudes of operations with two directions."""
    return torch.where(chosen(operation, *_SIGNED) & (uniform < 0.5), -magnitude, magnitude)


@dataclass(frozen=True)
class AutoAugmentCIFAR:
    """One of the 25 pairs of operations that AutoAugment (Cubuk et al., 2019) found on CIFAR-10, like torchvision.

    Draws: which pair; whether to apply its first operation, and its second; the sign of the first, and of the second.

    Args:
        fill: the level of pixels from outside the image: 0 in torchvision; 128 in repositories with the PIL version of
            these policies (``CIFAR10Policy``).

    Example:
        >>> operation, magnitude = AutoAugmentCIFAR().parameters(torch.tensor([[0.05, 0.0, 0.0, 0.9, 0.1]]), 32, 32)
        >>> [(OPERATIONS[i], round(m, 3)) for i, m in zip(operation[0].tolist(), magnitude[0].tolist())]
        [('Rotate', 6.667), ('TranslateX', -14.502)]
    """

    draws: ClassVar[int] = 5
    fill: int = 0

    def __post_init__(self) -> None:
        if check_integer("fill", self.fill, minimum=0) > 255:
            raise ValueError(f"Expected `fill` to be an integer in [0, 255], but got {self.fill}.")

    def parameters(self, uniforms: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Return operations ``(B, 2)``, indices into ``OPERATIONS``, and their magnitudes ``(B, 2)``."""
        pair = integers(uniforms[:, 0], len(CIFAR_POLICIES))
        operations, strengths = [], []
        for step in (0, 1):
            names, tenths, levels = zip(*(policy[step] for policy in CIFAR_POLICIES), strict=True)
            operation = _from_table(pair, tuple(OPERATIONS.index(name) for name in names))
            operation = torch.where(10 * uniforms[:, 1 + step] < _from_table(pair, tenths), operation, 0)
            magnitude = magnitudes(operation, _from_table(pair, levels), _CIFAR_BINS, height, width)
            operations.append(operation)
            strengths.append(_signed(operation, magnitude, uniforms[:, 3 + step]))
        return torch.stack(operations, dim=1), torch.stack(strengths, dim=1)

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Apply two operations to each image."""
        return _apply(self, images, uniforms, self.fill)


@dataclass(frozen=True)
class RandAugment:
    """``n`` random operations of 14, all at the same level (Cubuk et al., 2020), like torchvision.

    Draws: for each of the ``n``, which operation and its sign; for ``p`` < 1 also whether to apply it.

    Args:
        n: number of operations.
        m: their level, of 0 to 30. In repositories that count to 10, such as timm, 30 is m = 10, except for Solarize,
            which does nothing there at m = 10.
        p: the probability of each operation; 0.5 in timm.

    Example:
        >>> RandAugment(n=2, m=10).draws
        4
    """

    n: int = 2
    m: int = 9
    p: float = 1.0

    def __post_init__(self) -> None:
        check_integer("n", self.n, minimum=0)
        check_fraction("p", self.p)
        if check_integer("m", self.m, minimum=0) >= _BINS:
            raise ValueError(f"Expected `m` to be an integer below {_BINS}, but got {self.m}.")

    @property
    def draws(self) -> int:
        """The operations, their signs, and whether they are applied."""
        return self._numbers * self.n

    @property
    def _numbers(self) -> int:
        return 2 if self.p == 1 else 3

    def parameters(self, uniforms: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Return operations ``(B, n)``, indices into ``OPERATIONS``, and their magnitudes ``(B, n)``."""
        operation = integers(uniforms[:, 0 :: self._numbers], len(OPERATIONS) - 1)  # all but Invert
        if self.p < 1:
            operation = operation.where(uniforms[:, 2::3] < self.p, OPERATIONS.index("Identity"))
        magnitude = magnitudes(operation, torch.full_like(operation, self.m), _BINS, height, width)
        return operation, _signed(operation, magnitude, uniforms[:, 1 :: self._numbers])

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Apply ``n`` operations to each image."""
        return _apply(self, images, uniforms)


def _apply(policy: AutoAugmentCIFAR | RandAugment, images: Tensor, uniforms: Tensor | None, fill: int = 0) -> Tensor:
    check_colour(images, byte=True)
    operations, magnitudes = policy.parameters(check_uniforms(images, uniforms, policy.draws), *images.shape[2:])
    for operation, magnitude in zip(operations.unbind(dim=1), magnitudes.unbind(dim=1), strict=True):
        images = apply_operation(images, operation, magnitude, fill)
    return images
