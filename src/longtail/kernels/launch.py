"""The kernels as functions of tensors. Maps have shape ``(pixels, channels)`` and the type of the weights."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail.kernels.convolution import convolution
from longtail.kernels.halo import convolve_with_halo, weight_part_with_halo
from longtail.kernels.images import pack_images
from longtail.kernels.normalise import join_statistics, mask_gradient, normalise
from longtail.kernels.plan import ELEMENTS, Layer, NetworkPlan, Work
from longtail.kernels.weights import cast_weights, sum_parts, weight_gradient

_PIXELS = 512  # per program of ``pack_images``


class Statistics(NamedTuple):
    """Two sums per channel of each program of a kernel."""

    rows: Tensor
    """float32, shape ``(programs, 2, channels)``."""
    work: Work


class NormState(NamedTuple):
    """A BatchNorm in a training step."""

    y: Tensor
    """Its input."""
    norm: Tensor
    """Mean and 1/std of the input."""
    gamma: Tensor
    beta: Tensor


def _maps(pixels: int, channels: int, like: Tensor) -> Tensor:
    return torch.empty((pixels, channels), dtype=like.dtype, device=like.device)


def _rows(work: Work, channels: int, like: Tensor) -> Statistics:
    return Statistics(torch.empty((work.programs, 2, channels), dtype=torch.float32, device=like.device), work)


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _options(work: Work) -> dict[str, int]:
    return {"num_warps": work.tile.warps, "num_stages": work.tile.stages}


def _tile(work: Work) -> dict[str, Any]:
    tile = work.tile
    return {"M": tile.rows, "KB": tile.chunk, "UNROLLED": tile.unrolled, "STAGES": tile.stages}


def cast(plan: NetworkPlan) -> Tensor:
    """All weights in the type of the maps, plain and transposed."""
    table = plan.cast_table
    out = torch.empty(plan.cast_at[-1][2], dtype=plan.dtype, device=table.device)
    cast_weights[(len(table),)](table, out, E=ELEMENTS, COLUMNS=table.shape[1], num_warps=4)
    return out


def pack(images: Tensor, layer: Layer, dtype: torch.dtype) -> Tensor:
    """Images as maps of ``layer.read`` channels.

    Args:
        images: shape ``(B, channels, height, width)``, any strides and type.
        layer: the first layer.
        dtype: of the maps.
    """
    out = torch.empty((layer.pixels_in, layer.read), dtype=dtype, device=images.device)
    n, c, h, w = images.stride()
    pack_images[(-(-layer.pixels_in // _PIXELS),)](
        images, out, layer.pixels_in, n, c, h, w,
        H=layer.height, W=layer.width, REAL=layer.real, C=layer.read, R=_PIXELS, num_warps=4,
    )  # fmt: skip
    return out


def convolve(x: Tensor, weight: Tensor, layer: Layer, enter: NormState | None = None) -> tuple[Tensor, Statistics]:
    """The convolution, with mean and M2 of the pixels of each program.

    Args:
        x: maps, or images from :func:`pack`.
        weight: as cast, ``(9, read, written)``.
        layer: the shapes.
        enter: a BatchNorm that the kernel applies to x, with a ReLU; only if ``layer.enters``.
    """
    work = layer.work("forward")
    out, found = _maps(layer.pixels, layer.written, weight), _rows(work, layer.written, x)
    if work.tile.halo:
        norm = (out, out, out) if enter is None else enter[1:]
        convolve_with_halo(layer, work, 0, enter is not None, x, weight, out, found.rows, out, *norm, out, out)
        return out, found
    convolution[(work.programs,)](
        x, weight, out, found.rows, out, out, out, out, out, out, layer.pixels, work.per,
        HI=layer.height, WI=layer.width, HO=layer.out_height, WO=layer.out_width, CI=layer.read, CO=layer.written,
        STRIDE=layer.stride, UP=False, BACK=False, JOIN=False, CS=0,
        **_tile(work), LATE=False, **_options(work),
    )  # fmt: skip
    return out, found


def input_gradient(
    d: Tensor, weight: Tensor, layer: Layer, below: NormState, *, skip: Tensor | None = None, seen: Tensor | None = None
) -> tuple[Tensor, Statistics]:
    """The gradient of a convolution's input through the ReLU below, with the sums that its BatchNorm needs.

    Args:
        d: gradient of the convolution's output.
        weight: as cast, transposed: ``(9, written, read)``.
        layer: the shapes.
        below: the BatchNorm before the ReLU before the convolution.
        skip: for the first convolution of a block, the masked gradient of the block's output.
        seen: for the first convolution of a block, the block's input.
    """
    work = layer.work("input")
    out, found = _maps(layer.pixels_in, layer.read, d), _rows(work, layer.read, d)
    up = layer.stride == 2
    join = skip is not None
    both = (skip if skip is not None else out, seen if seen is not None else out)
    if work.tile.halo:
        convolve_with_halo(layer, work, 2 if join else 1, False, d, weight, out, found.rows, *below, *both)
        return out, found
    convolution[(work.programs,)](
        d, weight, out, found.rows, *below, *both, layer.pixels if up else layer.pixels_in, work.per,
        HI=layer.out_height, WI=layer.out_width, HO=layer.height, WO=layer.width, CI=layer.written, CO=layer.read,
        STRIDE=1, UP=up, BACK=True, JOIN=join, CS=layer.written,
        **_tile(work), LATE=work.tile.rows * layer.read <= 1024 * work.tile.warps, **_options(work),
    )  # fmt: skip
    return out, found


def weight_part(  # noqa: PLR0917
    x: Tensor,
    gradient: Tensor,
    layer: Layer,
    above: NormState,
    sums: Statistics,
    parts: Tensor,
    to: tuple[Tensor, Tensor],
    *,
    keep: bool = True,
    enter: NormState | None = None,
) -> Tensor:
    """The backward of BatchNorm, and the parts of the weight gradient.

    Args:
        x: input of the convolution.
        gradient: of BatchNorm's output, masked by the ReLU after it.
        layer: the shapes.
        above: the BatchNorm after the convolution.
        sums: of ``gradient``, from the kernel that computed it.
        parts: float32 output for the parts, ``(programs, 9, read, written)``.
        to: outputs for the gradients of BatchNorm's gamma and beta.
        keep: whether to compute the gradient of the convolution's output.
        enter: as in :func:`convolve`.

    Returns:
        the gradient of the convolution's output.
    """
    work = layer.work("weight")
    through = _maps(layer.pixels if keep else 1, layer.written, gradient)
    if work.tile.halo:
        tensors = (x, gradient, above.y, sums.rows, above.norm, above.gamma, through, parts, *to)
        norm = above[1:] if enter is None else enter[1:]
        weight_part_with_halo(layer, work, sums.work.programs, enter is not None, *tensors, *norm)
        return through
    weight_gradient[(work.programs, layer.groups)](
        x, gradient, above.y, sums.rows, above.norm, above.gamma, through, parts, *to,
        layer.pixels, work.per, sums.work.programs,
        HI=layer.height, WI=layer.width, HO=layer.out_height, WO=layer.out_width, CI=layer.read, CO=layer.written,
        STRIDE=layer.stride, KEEP=keep, RUNS=_power(sums.work.programs),
        P=work.tile.rows, KB=work.tile.chunk, STAGES=work.tile.stages, **_options(work),
    )  # fmt: skip
    return through


def sum_up(parts: Tensor, plan: NetworkPlan) -> Tensor:
    """The gradients of all weights, one after the other, each in the layout of its parameter."""
    table = plan.part_table
    out = torch.empty(plan.gradients_at[-1], dtype=torch.float32, device=parts.device)
    sum_parts[(len(table),)](parts, table, out, E=ELEMENTS, S=8, COLUMNS=table.shape[1], num_warps=4)
    return out


def join(
    layer: Layer,
    found: Statistics,
    norm: Tensor,
    running: tuple[Tensor, Tensor, Tensor] | None,
    *,
    momentum: float,
    eps: float,
) -> None:
    """Combine the statistics as :func:`normalised` does, for maps that the next layer normalises."""
    join_statistics[(1,)](
        found.rows, *(running or (norm, norm, norm)), norm, layer.pixels, found.work.run, found.work.programs,
        momentum, eps, C=layer.written, UPDATE=running is not None, RUNS=_power(found.work.programs), num_warps=8,
    )  # fmt: skip


def normalised(  # noqa: PLR0917
    layer: Layer,
    y: Tensor,
    found: Statistics,
    norm: Tensor | None,
    affine: tuple[Tensor, Tensor],
    running: tuple[Tensor, Tensor, Tensor] | None,
    *,
    momentum: float,
    eps: float,
    skip: Tensor | None = None,
    entry: Layer | None = None,
) -> Tensor:
    """BatchNorm, the shortcut, ReLU.

    Args:
        layer: the convolution before.
        y: its output.
        found: its statistics.
        norm: output for mean and 1/std of the batch, ``(2, channels)``; ``None`` normalises by ``running``, as in
            evaluation.
        affine: gamma and beta.
        running: running mean and variance and the number of batches, which are updated; or ``None``.
        momentum: of the running statistics.
        eps: of BatchNorm.
        skip: at the end of a block, the block's input.
        entry: at the end of a block, the block's first convolution.
    """
    work = layer.work("normalise")
    out = torch.empty_like(y)
    source = entry if entry is not None else layer
    to = found.rows if norm is None else norm
    normalise[(work.programs,)](
        y, found.rows, *affine, *(running or (to, to, to)), to, out if skip is None else skip, out,
        layer.pixels, found.work.run, found.work.programs, momentum, eps, work.per,
        C=layer.written, HO=layer.out_height, WO=layer.out_width, HS=source.height, WS=source.width, CS=source.real,
        STRIDE=source.stride, SKIP=skip is not None, UPDATE=running is not None, FIXED=norm is None,
        RUNS=_power(found.work.programs), R=work.tile.rows, **_options(work),
    )  # fmt: skip
    return out


def mask(gradient: Tensor, seen: Tensor, layer: Layer, below: NormState) -> tuple[Tensor, Statistics]:
    """The gradient of the last maps through their ReLU, with the sums that the BatchNorm below needs.

    Args:
        gradient: shape ``(B, channels, height, width)``, any strides and type.
        seen: the last maps.
        layer: the convolution before them.
        below: the BatchNorm after that convolution.
    """
    work = layer.work("normalise")
    out, found = torch.empty_like(seen), _rows(work, layer.written, seen)
    n, c, h, w = gradient.stride()
    mask_gradient[(work.programs,)](
        gradient, seen, below.y, below.norm, out, found.rows, layer.pixels, work.per, n, c, h, w,
        HO=layer.out_height, WO=layer.out_width, C=layer.written, R=work.tile.rows, **_options(work),
    )  # fmt: skip
    return out, found
