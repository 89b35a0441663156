# mypy: ignore-errors
# ruff: noqa: PLR0917
"""What a 3x3 convolution sees around each pixel, as the rows of a matrix: loaded from where it lies, never copied."""

from longtail.models.kernels._triton import jit, tl

__all__ = ["patches"]


@jit
def patches(
    x,
    rows,
    live,
    k,
    stride_n,
    stride_c,
    stride_h,
    stride_w,
    HI: tl.constexpr,
    WI: tl.constexpr,
    HO: tl.constexpr,
    WO: tl.constexpr,
    C: tl.constexpr,
    REAL: tl.constexpr,
    STRIDE: tl.constexpr,
    UP: tl.constexpr,
    IMAGE: tl.constexpr,
):
    """Elements ``k`` = tap * C + channel of the surroundings of output pixels ``rows``, zero outside.

    ``UP``: x stands for maps of twice the sides with zeros between its pixels, as the gradient of a convolution of
    stride 2 needs. ``IMAGE``: x has any strides and type and ``REAL`` channels, to be seen as C.
    """
    tap = k // C
    c = k % C
    r = tap // 3
    s = tap - 3 * r
    wo = rows % WO
    ho = (rows // WO) % HO
    b = rows // (WO * HO)
    if UP:
        h = ho[:, None] + r[None, :] - 1
        w = wo[:, None] + s[None, :] - 1
        inside = live[:, None] & (tap < 9)[None, :] & (h >= 0) & (w >= 0) & (((h | w) & 1) == 0)
        inside = inside & (h < 2 * HI) & (w < 2 * WI)
        offset = ((b[:, None] * HI + h // 2) * WI + w // 2) * C + c[None, :]
        return tl.load(x + offset, mask=inside, other=0.0)
    h = ho * STRIDE
    w = wo * STRIDE
    # Which of the three rows and columns of taps lie inside, as bits: the mask of an element is then two shifts. A tap
    # beyond the ninth has r >= 3 and finds a zero.
    rows_inside = tl.where(live, (h > 0).to(tl.int32) + 2 + 4 * (h + 1 < HI).to(tl.int32), 0)
    columns_inside = (w > 0).to(tl.int32) + 2 + 4 * (w + 1 < WI).to(tl.int32)
    inside = ((rows_inside[:, None] >> r[None, :]) & (columns_inside[:, None] >> s[None, :]) & 1) != 0
    if IMAGE:
        place = b * stride_n + h * stride_h + w * stride_w
        around = c * stride_c + (r - 1) * stride_h + (s - 1) * stride_w
        inside = inside & (c < REAL)[None, :]
        return tl.load(x + place[:, None] + around[None, :], mask=inside, other=0.0)
    place = ((b * HI + h) * WI + w) * C
    around = ((r - 1) * WI + s - 1) * C + c
    return tl.load(x + place[:, None] + around[None, :], mask=inside, other=0.0)
