# mypy: ignore-errors
# ruff: noqa: PLR0917
"""A batch of small images gathered, cropped, flipped and normalised."""

from longtail._gpu import jit, tl

__all__ = ["gather_batch"]


@jit
def gather_batch(
    pixels,
    labels,
    order,
    uniforms,
    row,
    levels,
    images,
    chosen,
    H: tl.constexpr,
    W: tl.constexpr,
    HO: tl.constexpr,
    WO: tl.constexpr,
    C: tl.constexpr,
    PADDING: tl.constexpr,
    FREE_ROWS: tl.constexpr,
    FREE_COLUMNS: tl.constexpr,
    DRAWS: tl.constexpr,
    FLIPS: tl.constexpr,
    P: tl.constexpr,
    LAST: tl.constexpr,
    E: tl.constexpr,
):
    """E numbers of one image, in the order they are written in; ``LAST``: a pixel's channels lie together.

    Sample ``order[row + i]`` becomes image i. ``levels`` (C, 256) is what the levels of a channel are normalised to.
    """
    image = tl.program_id(0)
    at = tl.load(row) + image
    sample = tl.load(order + at)
    if tl.program_id(1) == 0:
        tl.store(chosen + image, tl.load(labels + sample))
    drawn = uniforms + at * DRAWS
    # The product of a number just below 1 may round up to what is free.
    top = tl.minimum((tl.load(drawn) * FREE_ROWS).to(tl.int32), FREE_ROWS - 1) - PADDING
    left = tl.minimum((tl.load(drawn + 1) * FREE_COLUMNS).to(tl.int32), FREE_COLUMNS - 1) - PADDING
    e = tl.program_id(1) * E + tl.arange(0, E)
    real = e < C * HO * WO
    c = e % C if LAST else e // (HO * WO)
    place = e // C if LAST else e % (HO * WO)
    h = place // WO
    w = place % WO
    if FLIPS:
        w = tl.where(tl.load(drawn + 2) < P, WO - 1 - w, w)
    h += top
    w += left
    inside = real & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    level = tl.load(pixels + ((sample * C + c) * H + h) * W + w, mask=inside, other=0).to(tl.int32)
    tl.store(images + image.to(tl.int64) * (C * HO * WO) + e, tl.load(levels + c * 256 + level, mask=real), mask=real)
