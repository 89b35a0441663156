# mypy: ignore-errors
# ruff: noqa: PLR0917
"""Images as the kernels read them: pixel after pixel, channels filled up, so that a pixel is one load."""

from longtail._gpu import jit, tl

__all__ = ["pack_images"]


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
    """R pixels of images of any strides and type, with ``REAL`` channels, as C."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    live = (rows < pixels)[:, None]
    at = (rows // (W * H)) * stride_n + ((rows // W) % H) * stride_h + (rows % W) * stride_w
    value = tl.load(images + at[:, None] + c[None, :] * stride_c, mask=live & (c < REAL)[None, :], other=0.0)
    tl.store(out + rows[:, None] * C + c[None, :], value.to(out.dtype.element_ty), mask=live)
