# mypy: ignore-errors
# ruff: noqa: PLR0917
"""Kernels that change brightness, contrast, saturation and hue of many images in two launches.

Levels are whole numbers in float32. Both run without fused multiply-adds, so that they truncate like torch.
"""

from longtail._gpu import jit, tl


@jit
def _cut_off(value):
    """Truncate to a level of uint8, in float32."""
    return tl.minimum(tl.maximum(value, 0.0), 255.0).to(tl.int32).to(tl.float32)


@jit
def _grey(red, green, blue):
    """Return the grey level of a pixel."""
    return _cut_off(0.2989 * red + 0.587 * green + 0.114 * blue)


@jit
def _blended(red, green, blue, which, factor, mean):
    """Blend with nothing (brightness, 0), the mean grey level (contrast, 1) or the grey level (saturation, 2)."""
    other = tl.where(which == 1, mean, _grey(red, green, blue))
    rest = tl.where(which == 0, 0.0, 1.0 - factor)
    red = _cut_off(factor * red + rest * other)
    green = _cut_off(factor * green + rest * other)
    blue = _cut_off(factor * blue + rest * other)
    return red, green, blue


@jit
def _at(place, value, spread):
    """Return the level of a channel at a place on the circle of colours, in sixths."""
    k = place - 6.0 * (place * 0.16666667).to(tl.int32).to(tl.float32)
    k = tl.where(k < 0, k + 6.0, k)  # 0 and 6 give the same level
    return _cut_off((value - spread * tl.minimum(tl.maximum(tl.minimum(k, 4.0 - k), 0.0), 1.0)) * 255.999)


@jit
def _turned(red, green, blue, shift, E: tl.constexpr):
    """``adjust_hue``."""
    white = tl.zeros((E,), tl.float32) + 255.0
    red, green, blue = tl.div_rn(red, white), tl.div_rn(green, white), tl.div_rn(blue, white)
    value = tl.maximum(tl.maximum(red, green), blue)
    spread = value - tl.minimum(tl.minimum(red, green), blue)
    away = tl.where(value == red, green - blue, tl.where(value == green, blue - red, red - green))
    away = tl.div_rn(away, tl.where(spread == 0, 1.0, spread))
    turned = tl.where(value == red, away, tl.where(value == green, 2.0 + away, 4.0 + away)) + 6.0 * shift
    return _at(turned + 5.0, value, spread), _at(turned + 3.0, value, spread), _at(turned + 1.0, value, spread)


@jit
def _changed(red, green, blue, factors, order, steps, mean, E: tl.constexpr):
    """Return the pixels after the first ``steps`` changes of an image's order."""
    for step in range(steps):
        which = tl.load(order + step)
        factor = tl.load(factors + which)
        if which == 3:
            red, green, blue = _turned(red, green, blue, factor, E)
        else:
            red, green, blue = _blended(red, green, blue, which, factor, mean)
    return red, green, blue


@jit
def _read(images, image, e, PIXELS: tl.constexpr):
    """Load pixels ``e`` of one image; black after the last one."""
    at = images + image.to(tl.int64) * (3 * PIXELS) + e
    red = tl.load(at, mask=e < PIXELS, other=0).to(tl.float32)
    green = tl.load(at + PIXELS, mask=e < PIXELS, other=0).to(tl.float32)
    blue = tl.load(at + 2 * PIXELS, mask=e < PIXELS, other=0).to(tl.float32)
    return red, green, blue


@jit
def sum_levels(images, factors, order, sums, STEPS: tl.constexpr, PIXELS: tl.constexpr, E: tl.constexpr):
    """Sum the grey levels of E pixels of one image before its contrast is changed; ``sums`` has a row per image.

    Pixels after the last one are black, stay black, and add nothing.
    """
    image, part = tl.program_id(0), tl.program_id(1)
    order += STEPS * image
    step = tl.arange(0, 4)
    before = tl.sum(tl.where(tl.load(order + step, mask=step < STEPS, other=0) == 1, step, 0), axis=0)
    red, green, blue = _read(images, image, part * E + tl.arange(0, E), PIXELS)
    red, green, blue = _changed(red, green, blue, factors + STEPS * image, order, before, 0.0, E)
    parts = (PIXELS + E - 1) // E
    tl.store(sums + parts * image + part, tl.sum(_grey(red, green, blue).to(tl.int32), axis=0))


@jit
def change_colours(
    images,
    factors,
    order,
    changed,
    sums,
    result,
    STEPS: tl.constexpr,
    PIXELS: tl.constexpr,
    PARTS: tl.constexpr,
    E: tl.constexpr,
):
    """Write E pixels of one image after all its changes. PARTS: length of a row of ``sums``, rounded up to 2^k."""
    image = tl.program_id(0)
    parts = (PIXELS + E - 1) // E
    part = tl.arange(0, PARTS)
    total = tl.sum(tl.load(sums + parts * image + part, mask=part < parts, other=0), axis=0).to(tl.float32)
    mean = tl.div_rn(tl.zeros((E,), tl.float32) + total, tl.zeros((E,), tl.float32) + PIXELS)
    e = tl.program_id(1) * E + tl.arange(0, E)
    red, green, blue = _read(images, image, e, PIXELS)
    steps = STEPS * tl.load(changed + image).to(tl.int32)
    red, green, blue = _changed(red, green, blue, factors + STEPS * image, order + STEPS * image, steps, mean, E)
    to = result + image.to(tl.int64) * (3 * PIXELS) + e
    tl.store(to, red.to(tl.uint8), mask=e < PIXELS)
    tl.store(to + PIXELS, green.to(tl.uint8), mask=e < PIXELS)
    tl.store(to + 2 * PIXELS, blue.to(tl.uint8), mask=e < PIXELS)
