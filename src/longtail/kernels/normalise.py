# mypy: ignore-errors
# ruff: noqa: PLR0917
"""BatchNorm with shortcut and ReLU, and the first step of the backward pass."""

from longtail._gpu import jit, tl


@jit
def join_runs(
    partial,
    running_mean,
    running_var,
    tracked,
    norm,
    pixels,
    run,
    runs,
    momentum,
    eps,
    C: tl.constexpr,
    UPDATE: tl.constexpr,
    RUNS: tl.constexpr,
):
    """Return mean and 1/std of the batch; the first program stores them and updates the running statistics."""
    c = tl.arange(0, C)
    i = tl.arange(0, RUNS)
    n = tl.minimum(tl.maximum(pixels - i * run, 0), run).to(tl.float32)[:, None]
    there = (i < runs)[:, None]
    means = tl.load(partial + (2 * i[:, None]) * C + c[None, :], mask=there, other=0.0)
    m2s = tl.load(partial + (2 * i[:, None] + 1) * C + c[None, :], mask=there, other=0.0)
    # Relative to the mean of the first run, so a large mean costs no digits.
    origin = tl.load(partial + c)
    off = tl.where(there, means - origin[None, :], 0.0)
    amount = pixels.to(tl.float32)
    away = tl.sum(off * n, axis=0) / amount
    mean = origin + away
    off = off - away[None, :]
    m2 = tl.sum(m2s + n * off * off, axis=0)
    var = m2 / amount
    rstd = 1.0 / tl.sqrt(var + eps)
    if tl.program_id(0) == 0:
        tl.store(norm + c, mean)
        tl.store(norm + C + c, rstd)
        if UPDATE:
            old = tl.load(running_mean + c)
            tl.store(running_mean + c, old + momentum * (mean - old))
            old = tl.load(running_var + c)
            tl.store(running_var + c, old + momentum * (m2 / tl.maximum(amount - 1.0, 1.0) - old))
            tl.store(tracked, tl.load(tracked) + 1)
    return mean, rstd


@jit
def join_statistics(
    partial,
    running_mean,
    running_var,
    tracked,
    norm,
    pixels,
    run,
    runs,
    momentum,
    eps,
    C: tl.constexpr,
    UPDATE: tl.constexpr,
    RUNS: tl.constexpr,
):
    """Only ``join_runs``, in one program."""
    join_runs(partial, running_mean, running_var, tracked, norm, pixels, run, runs, momentum, eps, C, UPDATE, RUNS)


@jit
def normalise(
    y,
    partial,
    gamma,
    beta,
    running_mean,
    running_var,
    tracked,
    norm,
    skip,
    out,
    pixels,
    run,
    runs,
    momentum,
    eps,
    per,
    C: tl.constexpr,
    HO: tl.constexpr,
    WO: tl.constexpr,
    HS: tl.constexpr,
    WS: tl.constexpr,
    CS: tl.constexpr,
    STRIDE: tl.constexpr,
    SKIP: tl.constexpr,
    UPDATE: tl.constexpr,
    FIXED: tl.constexpr,
    RUNS: tl.constexpr,
    R: tl.constexpr,
):
    """``out`` = ReLU of normalised ``y``, plus the shortcut of ``skip`` (CS channels, HS x WS) if ``SKIP``.

    ``partial`` (runs, 2, C) has mean and M2 of runs of ``run`` pixels. Every program combines them, in the same order,
    which costs less than a separate kernel; the first one stores mean and 1/std in ``norm`` and updates the running
    statistics. ``FIXED``: normalise by the running statistics, as in evaluation, and store nothing.
    """
    pid = tl.program_id(0)
    c = tl.arange(0, C)
    if FIXED:
        mean = tl.load(running_mean + c)
        rstd = 1.0 / tl.sqrt(tl.load(running_var + c) + eps)
    else:
        mean, rstd = join_runs(
            partial, running_mean, running_var, tracked, norm, pixels, run, runs, momentum, eps, C, UPDATE, RUNS
        )
    scale = rstd * tl.load(gamma + c)
    shift = tl.load(beta + c)
    for t in range(per):
        rows = (pid * per + t) * R + tl.arange(0, R)
        live = rows < pixels
        places = rows[:, None] * C + c[None, :]
        value = tl.load(y + places, mask=live[:, None], other=0.0).to(tl.float32)
        value = (value - mean[None, :]) * scale[None, :] + shift[None, :]
        if SKIP:
            if STRIDE == 1:
                value += tl.load(skip + places, mask=live[:, None], other=0.0).to(tl.float32)
            else:
                side: tl.constexpr = (C - CS) // 2
                h = ((rows // WO) % HO) * STRIDE
                w = (rows % WO) * STRIDE
                at = ((rows // (WO * HO)) * HS + h) * WS + w
                inner = (c >= side) & (c < side + CS)
                value += tl.load(
                    skip + at[:, None] * CS + (c - side)[None, :], mask=live[:, None] & inner[None, :], other=0.0
                ).to(tl.float32)
        tl.store(out + places, tl.maximum(value, 0.0).to(out.dtype.element_ty), mask=live[:, None])


@jit
def mask_gradient(
    gradient,
    seen,
    below,
    norm,
    out,
    partial,
    pixels,
    per,
    stride_n,
    stride_c,
    stride_h,
    stride_w,
    HO: tl.constexpr,
    WO: tl.constexpr,
    C: tl.constexpr,
    R: tl.constexpr,
):
    """Mask the gradient of the last maps, of any strides, and sum it, as ``convolution`` with ``BACK`` does."""
    pid = tl.program_id(0)
    c = tl.arange(0, C)
    mean = tl.load(norm + c)
    rstd = tl.load(norm + C + c)
    first = tl.zeros([R, C], tl.float32)
    second = tl.zeros([R, C], tl.float32)
    for t in range(per):
        rows = (pid * per + t) * R + tl.arange(0, R)
        held = (rows < pixels)[:, None]
        places = rows[:, None] * C + c[None, :]
        at = (rows // (WO * HO)) * stride_n + ((rows // WO) % HO) * stride_h + (rows % WO) * stride_w
        value = tl.load(gradient + at[:, None] + c[None, :] * stride_c, mask=held, other=0.0).to(tl.float32)
        passed = tl.load(seen + places, mask=held, other=0.0).to(tl.float32) > 0
        rounded = tl.where(passed, value, 0.0).to(out.dtype.element_ty)
        tl.store(out + places, rounded, mask=held)
        y = tl.load(below + places, mask=held, other=0.0).to(tl.float32)
        g = rounded.to(tl.float32)
        first += g
        second += g * ((y - mean[None, :]) * rstd[None, :])
    tl.store(partial + (2 * pid) * C + c, tl.sum(first, axis=0))
    tl.store(partial + (2 * pid + 1) * C + c, tl.sum(second, axis=0))
