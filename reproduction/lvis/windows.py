"""The part of an image that the crop of a box shows, and how it is cut out."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail._checks import Vector

__all__ = ["NoWindow", "Window", "cut_window", "window"]

NoWindow = Literal["not-finite", "outside", "empty"]
"""Why a box has no window."""


class Window(NamedTuple):
    """A rectangle of whole pixels, without ``right`` and ``bottom``."""

    left: int
    top: int
    right: int
    bottom: int


def window(box: Vector, width: int, height: int) -> Window | NoWindow:
    """Return the square around a box, clipped to the image, or why there is none.

    The box is clipped to the image. If its remaining part is :math:`w \\times h` around :math:`(c_x, c_y)`, the window
    has side :math:`s = \\max(w, h)`, rounded to whole pixels, starts at :math:`(c_x - s/2, c_y - s/2)`, rounded (halves
    up), and is clipped to the image, too: a window at the border is not a square.

    Args:
        box: left, top, width and height in pixels.
        width: of the image.
        height: of the image.

    Returns:
        The window, or ``"not-finite"`` for a box with NaN or infinity, ``"outside"`` for a box outside the image,
        ``"empty"`` for a box that is less than a pixel wide or high, before or after clipping.

    Example:
        >>> window([10, 20, 30, 20], width=640, height=480)
        Window(left=10, top=15, right=40, bottom=45)
        >>> window([0, 0, 30, 20], width=640, height=480)
        Window(left=0, top=0, right=30, bottom=25)
        >>> window([700, 20, 30, 20], width=640, height=480)
        'outside'
        >>> window([10, 20, 0.5, 20], width=640, height=480)
        'empty'
    """
    x, y, w, h = (float(value) for value in box)
    if not all(map(math.isfinite, (x, y, w, h))):
        return "not-finite"
    if w < 1 or h < 1:
        return "empty"
    left, right, top, bottom = max(x, 0.0), min(x + w, float(width)), max(y, 0.0), min(y + h, float(height))
    if right <= left or bottom <= top:
        return "outside"
    # A box inside the image keeps its width: x + w - x may differ from w.
    w, h = min(w, right - left), min(h, bottom - top)
    if w < 1 or h < 1:
        return "empty"
    side = math.floor(max(w, h) + 0.5)
    first_column, first_row = (
        math.floor((low + high - side) / 2 + 0.5) for low, high in ((left, right), (top, bottom))
    )
    return Window(
        max(first_column, 0), max(first_row, 0), min(first_column + side, width), min(first_row + side, height)
    )


def cut_window(image: Tensor, window: Window, size: int) -> Tensor:
    """Cut a window out of an image, resize its longest side to ``size``, and centre it on black.

    Resizing is bilinear and antialiased, within one level of Pillow's. It does not depend on the number of threads, as
    a matrix product may, and is done in float32: torch 2.11's uint8 path is up to two levels off and refuses results of
    one pixel.

    Args:
        image: uint8 ``(channels, height, width)``.
        window: the part to cut out.
        size: side of the result.

    Returns:
        uint8 ``(channels, size, size)``.

    Example:
        >>> cut_window(torch.full((1, 4, 4), 9, dtype=torch.uint8), Window(0, 0, 2, 1), size=4)[0]
        tensor([[0, 0, 0, 0],
                [9, 9, 9, 9],
                [9, 9, 9, 9],
                [0, 0, 0, 0]], dtype=torch.uint8)
    """
    cut = image[None, :, window.top : window.bottom, window.left : window.right]
    longest = max(cut.shape[2:])
    high, wide = (max(1, math.floor(side * size / longest + 0.5)) for side in cut.shape[2:])
    resized = F.interpolate(cut.float(), size=(high, wide), mode="bilinear", antialias=True)[0]
    top, left = (size - high) // 2, (size - wide) // 2
    padded = torch.zeros(len(image), size, size, dtype=torch.uint8)
    padded[:, top : top + high, left : left + wide] = resized.round_().clamp_(0, 255).to(torch.uint8)
    return padded
