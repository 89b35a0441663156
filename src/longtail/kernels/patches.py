# mypy: ignore-errors
# ruff: noqa: PLR0917
"""What a 3x3 convolution sees around each pixel, as the rows of a matrix: loaded from where it lies, never copied."""

from longtail._gpu import jit, tl

__all__ = ["patches"]


@jit
def patches(
    x,
    rows,
    live,
    k,
    HI: tl.constexpr,
    WI: tl.constexpr,
    HO: tl.constexpr,
    WO: tl.constexpr,
    C: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """Elements ``k`` = tap * C + channel of the surroundings of output pixels ``rows``, zero outside."""
    tap = k // C
    c = k % C
    r = tap // 3
    s = tap - 3 * r
    wo = rows % WO
    ho = (rows // WO) % HO
    b = rows // (WO * HO)
    h = ho * STRIDE
    w = wo * STRIDE
    # Which of the three rows and columns of taps lie inside, as bits: the mask of an element is then two shifts. A tap
    # beyond the ninth has r >= 3 and finds a zero.
    rows_inside = tl.where(live, (h > 0).to(tl.int32) + 2 + 4 * (h + 1 < HI).to(tl.int32), 0)
    columns_inside = (w > 0).to(tl.int32) + 2 + 4 * (w + 1 < WI).to(tl.int32)
    inside = ((rows_inside[:, None] >> r[None, :]) & (columns_inside[:, None] >> s[None, :]) & 1) != 0
    place = ((b * HI + h) * WI + w) * C
    around = ((r - 1) * WI + s - 1) * C + c
    return tl.load(x + place[:, None] + around[None, :], mask=inside, other=0.0)
