# mypy: ignore-errors
# ruff: noqa: PLR0917
"""Images for the kernels: packed for the first layer, and batches gathered from a resident data set."""

from longtail._gpu import jit, tl


@jit
def pack_images(
    images,
    out,
    pixels,
    stride_n,
    stride_c,
    stride_h,
    stride_w,
    H: tl.constexpr,
    W: tl.constexpr,
    REAL: tl.constexpr,
    C: tl.constexpr,
    R: tl.constexpr,
):
    """Copy R pixels of images of any strides and type, and pad their ``REAL`` channels to C, so a pixel is one load."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    live = (rows < pixels)[:, None]
    at = (rows // (W * H)) * stride_n + ((rows // W) % H) * stride_h + (rows % W) * stride_w
    value = tl.load(images + at[:, None] + c[None, :] * stride_c, mask=live & (c < REAL)[None, :], other=0.0)
    tl.store(out + rows[:, None] * C + c[None, :], value.to(out.dtype.element_ty), mask=live)


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
    """Write E numbers of one image of a batch: gathered, cropped, flipped and normalised.

    Sample ``order[row + i]`` becomes image i. ``levels`` (C, 256) has the normalised value of each level of a channel.
    ``LAST``: images are channels_last.
    """
    image = tl.program_id(0)
    at = tl.load(row) + image
    sample = tl.load(order + at)
    if tl.program_id(1) == 0:
        tl.store(chosen + image, tl.load(labels + sample))
    drawn = uniforms + at * DRAWS
    # The product of a number just below 1 may round up to FREE_ROWS.
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
