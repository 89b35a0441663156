# mypy: ignore-errors
# ruff: noqa: PLR0917
"""A kernel that resizes a window of each image in one launch."""

from longtail._gpu import jit, tl


@jit
def _first(i, length, size, half):
    """Return the first of ``length`` pixels with a weight > 0 in new pixel ``i`` of ``size``."""
    beyond = (2 * i + 1) * length - 2 * half - size
    return tl.where(beyond < 0, 0, beyond // (2 * size) + 1)


@jit
def _weight(i, j, length, size, half):
    """Return the triangular weight of pixel ``j``, times ``2 * half``: whole numbers, exact in sums below 2**24."""
    apart = tl.abs((2 * j + 1) * size - (2 * i + 1) * length)
    return tl.where(j < length, tl.maximum(2 * half - apart, 0), 0).to(tl.float32)


@jit
def resize_windows(pixels, windows, resized, HIGH: tl.constexpr, WIDE: tl.constexpr, E: tl.constexpr):
    """Write E new pixels of one image, all three channels: antialiased, bilinear, rounded to even.

    ``windows`` has a row per image: start of its window in ``pixels``, distance between channels, distance between
    rows, height and width of the window, height and width after resizing, and the first row and column of the HIGH rows
    and WIDE columns that are kept.
    """
    image = tl.program_id(0)
    row = windows + 9 * image
    corner, plane, stride = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    height, width = tl.load(row + 3).to(tl.int32), tl.load(row + 4).to(tl.int32)
    high, wide = tl.load(row + 5).to(tl.int32), tl.load(row + 6).to(tl.int32)
    half_height, half_width = tl.maximum(height, high), tl.maximum(width, wide)
    e = tl.program_id(1) * E + tl.arange(0, E)
    real = e < HIGH * WIDE
    y, x = e // WIDE + tl.load(row + 7).to(tl.int32), e % WIDE + tl.load(row + 8).to(tl.int32)
    top, left = _first(y, height, high, half_height), _first(x, width, wide, half_width)
    red = tl.zeros((E,), tl.float32)
    green = tl.zeros((E,), tl.float32)
    blue = tl.zeros((E,), tl.float32)
    total = tl.zeros((E,), tl.float32)
    for down in range((2 * half_height + high - 1) // high):
        of_row = _weight(y, top + down, height, high, half_height)
        for across in range((2 * half_width + wide - 1) // wide):
            weight = of_row * _weight(x, left + across, width, wide, half_width)
            inside = real & (weight > 0)
            place = pixels + corner + (top + down) * stride + left + across
            red += weight * tl.load(place, mask=inside, other=0).to(tl.float32)
            green += weight * tl.load(place + plane, mask=inside, other=0).to(tl.float32)
            blue += weight * tl.load(place + 2 * plane, mask=inside, other=0).to(tl.float32)
            total += weight
    total = tl.where(real, total, 1.0)
    to = resized + image.to(tl.int64) * (3 * HIGH * WIDE) + e
    # Adding such a large number rounds to whole numbers, halves to even, like torch.
    tl.store(to, ((tl.div_rn(red, total) + 12582912.0) - 12582912.0).to(tl.uint8), mask=real)
    tl.store(to + HIGH * WIDE, ((tl.div_rn(green, total) + 12582912.0) - 12582912.0).to(tl.uint8), mask=real)
    tl.store(to + 2 * HIGH * WIDE, ((tl.div_rn(blue, total) + 12582912.0) - 12582912.0).to(tl.uint8), mask=real)
