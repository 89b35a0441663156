# mypy: ignore-errors
# ruff: noqa: PLR0917
"""Weights cast for the kernels, and their gradients; sums in a fixed order, no atomics."""

from longtail._gpu import jit, tl
from longtail.kernels.convolution import patches


@jit
def cast_weights(table, out, E: tl.constexpr, COLUMNS: tl.constexpr):
    """Cast E elements of one layer's weight, as (9, CI, CO) and transposed, as (9, CO, CI).

    The program's row of ``table`` has the address of the float32 weight (CO, CI, 3, 3), the first element, padded CI,
    real CI, CO, the weight's four strides, and the offsets of both copies in ``out``.
    """
    row = table + tl.program_id(0) * COLUMNS
    weight = tl.load(row).to(tl.pointer_type(tl.float32))
    start = tl.load(row + 1)
    ci = tl.load(row + 2)
    real = tl.load(row + 3)
    co = tl.load(row + 4)
    e = start + tl.arange(0, E)
    o = e % co
    i = (e // co) % ci
    tap = e // (co * ci)
    inside = e < 9 * ci * co
    at = o * tl.load(row + 5) + i * tl.load(row + 6) + (tap // 3) * tl.load(row + 7) + (tap % 3) * tl.load(row + 8)
    value = tl.load(weight + at, mask=inside & (i < real), other=0.0).to(out.dtype.element_ty)
    tl.store(out + tl.load(row + 9) + e, value, mask=inside)
    tl.store(out + tl.load(row + 10) + ((8 - tap) * co + o) * ci + i, value, mask=inside)


@jit
def weight_gradient(
    x,
    gradient,
    y,
    sums,
    norm,
    gamma,
    through,
    parts,
    grad_gamma,
    grad_beta,
    pixels,
    per,
    runs,
    HI: tl.constexpr,
    WI: tl.constexpr,
    HO: tl.constexpr,
    WO: tl.constexpr,
    CI: tl.constexpr,
    CO: tl.constexpr,
    STRIDE: tl.constexpr,
    KEEP: tl.constexpr,
    RUNS: tl.constexpr,
    P: tl.constexpr,
    KB: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute KB rows of one program's part of the weight gradient, (9 * CI, CO).

    This includes the backward of BatchNorm: ``gradient`` is the gradient of its output (masked by the ReLU), ``y`` its
    input, ``sums`` (runs, 2, CO) the sums of the previous kernel. If ``KEEP``, ``through`` gets the gradient of ``y``,
    which ``convolution`` reads next: computed once per pixel here, not nine times there.
    """
    split = tl.program_id(0)
    group = tl.program_id(1)
    c = tl.arange(0, CO)
    i = tl.arange(0, RUNS)
    there = (i < runs)[:, None]
    first = tl.sum(tl.load(sums + (2 * i[:, None]) * CO + c[None, :], mask=there, other=0.0), axis=0)
    second = tl.sum(tl.load(sums + (2 * i[:, None] + 1) * CO + c[None, :], mask=there, other=0.0), axis=0)
    if (split == 0) & (group == 0):
        tl.store(grad_beta + c, first)
        tl.store(grad_gamma + c, second)
    mean = tl.load(norm + c)
    rstd = tl.load(norm + CO + c)
    scale = rstd * tl.load(gamma + c)
    amount = pixels.to(tl.float32)
    first = first / amount
    second = rstd * (second / amount)
    k = group * KB + tl.arange(0, KB)
    kept = tl.where(group == 0, pixels, 0)  # all groups compute it, the first writes it
    acc = tl.zeros([KB, CO], tl.float32)
    for t in tl.range(per, num_stages=STAGES):
        rows = (split * per + t) * P + tl.arange(0, P)
        live = rows < pixels
        held = live[:, None]
        a = patches(x, rows, live, k, HI, WI, HO, WO, CI, STRIDE)
        places = rows[:, None] * CO + c[None, :]
        g = tl.load(gradient + places, mask=held, other=0.0).to(tl.float32)
        v = tl.load(y + places, mask=held, other=0.0).to(tl.float32)
        d = scale[None, :] * (g - first[None, :] - (v - mean[None, :]) * second[None, :])
        d = tl.where(held, d, 0.0).to(through.dtype.element_ty)
        if KEEP:
            tl.store(through + places, d, mask=(rows < kept)[:, None])
        acc = tl.dot(tl.trans(a), d, acc)
    tl.store(parts + (split * (9 * CI) + k[:, None]) * CO + c[None, :], acc, mask=(k < 9 * CI)[:, None])


@jit
def sum_parts(parts, table, gradients, E: tl.constexpr, S: tl.constexpr, COLUMNS: tl.constexpr):
    """Sum the parts of all layers' weight gradients, and store each in the layout of its parameter.

    A program sums E elements of one layer, described by its row of ``table``: offset and number of the layer's parts,
    first element, padded CI, real CI, CO, offset of the gradient, and its four strides.
    """
    row = table + tl.program_id(0) * COLUMNS
    begin = tl.load(row)
    splits = tl.load(row + 1)
    start = tl.load(row + 2)
    ci = tl.load(row + 3)
    real = tl.load(row + 4)
    co = tl.load(row + 5)
    size = 9 * ci * co
    e = start + tl.arange(0, E)
    total = tl.zeros([E], tl.float32)
    for s in range(0, splits, S):
        split = s + tl.arange(0, S)
        some = tl.load(
            parts + begin + split[:, None] * size + e[None, :],
            mask=(split < splits)[:, None] & (e < size)[None, :],
            other=0.0,
        )
        total += tl.sum(some, axis=0)
    o = e % co
    i = (e // co) % ci
    tap = e // (co * ci)
    to = tl.load(row + 6) + o * tl.load(row + 7) + i * tl.load(row + 8)
    to += (tap // 3) * tl.load(row + 9) + (tap % 3) * tl.load(row + 10)
    tl.store(gradients + to, total, mask=(e < size) & (i < real))
