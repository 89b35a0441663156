"""The operations of AutoAugment and RandAugment, a different one for each image of a batch.

There are three kinds: pixels are moved (shear, translate, rotate), blended with another image (brightness, colour,
contrast, sharpness), or mapped by a table of levels (posterise, solarise, autocontrast, equalise, invert). A batch goes
through each kind once, with parameters that do not change images whose operation is of another kind.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.data.augment._batch import over, per_sample, pick, wide
from longtail.data.augment.colour import blend, luma, mean_luma

__all__ = ["OPERATIONS", "affine", "apply_operation"]

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


def affine(images: Tensor, matrix: Tensor, fill: int = 0) -> Tensor:
    r"""Move the pixels of each image: the new pixel at :math:`p` is the old one nearest to :math:`M (p, 1)`.

    Args:
        images: ``(B, C, H, W)``, uint8 or floating-point.
        matrix: ``(B, 2, 3)``, :math:`M`, for ``(x, y)`` in pixels from the middle of the image.
        fill: the level of pixels from outside the image.

    Example:
        >>> right = torch.tensor([[[1.0, 0, -1], [0, 1, 0]]])
        >>> affine(torch.tensor([[[[1.0, 2.0, 3.0]]]]), right).flatten()
        tensor([0., 1., 2.])
    """
    height, width = images.shape[2:]
    x = torch.arange(width, device=images.device, dtype=torch.float32) - (width - 1) / 2
    y = torch.arange(height, device=images.device, dtype=torch.float32)[:, None] - (height - 1) / 2
    sources = []
    for i, side in enumerate((width, height)):
        # In halves of a side and term by term, like the grid of torchvision, so that ties round the same way on every
        # device; a matrix product may round them in any way.
        along, across, shift = over(matrix[:, i, :, None, None].float(), side / 2).unbind(dim=1)
        place = along * x + across * y + shift
        sources.append((((place + 1) * side - 1) / 2).round().long())
    columns, rows = sources
    return pick(images, rows, columns, fill)


def _moved(images: Tensor, operation: Tensor, magnitude: Tensor, fill: int) -> Tensor:
    """Shear, translate and rotate, with matrices from new pixels to old ones."""
    height, width = images.shape[2:]

    def only(name: str, value: Tensor) -> Tensor:
        return torch.where(chosen(operation, name), value, torch.zeros_like(value))

    angle = wide(only("Rotate", magnitude)).deg2rad()
    cos, sin = angle.cos().float(), angle.sin().float()
    across, down = only("ShearX", magnitude), only("ShearY", magnitude)  # from the upper left corner
    right, below = only("TranslateX", magnitude.trunc()), only("TranslateY", magnitude.trunc())
    first = torch.stack([cos, across - sin, across * (height / 2) - right], dim=1)
    second = torch.stack([down + sin, cos, down * (width / 2) - below], dim=1)
    return affine(images, torch.stack([first, second], dim=1), fill)


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


def _looked_up(images: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
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

    Args:
        images: ``(B, 1 or 3, H, W)``, uint8.
        operation: ``(B,)`` int64, indices into :data:`OPERATIONS`.
        magnitude: ``(B,)``: tangent of the shear, pixels to translate by (truncated), degrees, a factor minus 1, bits
            that posterise keeps, the first level that solarise inverts; otherwise unused.
        fill: the level of pixels from outside the image.

    Example:
        >>> images = torch.tensor([10, 200, 10, 200], dtype=torch.uint8).view(2, 1, 1, 2)
        >>> operation = torch.tensor([OPERATIONS.index("Solarize"), OPERATIONS.index("TranslateX")])
        >>> apply_operation(images, operation, torch.tensor([128.0, 1.0])).flatten(1)
        tensor([[10, 55],
                [ 0, 10]], dtype=torch.uint8)
    """
    images = _moved(images, operation, magnitude, fill)
    images = _blended(images, operation, magnitude)
    return _looked_up(images, operation, magnitude)
