# mypy: ignore-errors
# ruff: noqa: PLR0912, PLR0915, PLR0917
"""The 3x3 convolution, forward and as the gradient of its input."""

from longtail._gpu import jit, tl


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
    """Elements ``k`` = tap * C + channel of the 3x3 patches around output pixels ``rows``; zero outside the image."""
    tap = k // C
    c = k % C
    r = tap // 3
    s = tap - 3 * r
    wo = rows % WO
    ho = (rows // WO) % HO
    b = rows // (WO * HO)
    h = ho * STRIDE
    w = wo * STRIDE
    # Bits say which of the three rows and columns of taps are inside, so the mask of an element is two shifts. A tap
    # beyond the ninth has r >= 3 and reads a zero bit.
    rows_inside = tl.where(live, (h > 0).to(tl.int32) + 2 + 4 * (h + 1 < HI).to(tl.int32), 0)
    columns_inside = (w > 0).to(tl.int32) + 2 + 4 * (w + 1 < WI).to(tl.int32)
    inside = ((rows_inside[:, None] >> r[None, :]) & (columns_inside[:, None] >> s[None, :]) & 1) != 0
    place = ((b * HI + h) * WI + w) * C
    around = ((r - 1) * WI + s - 1) * C + c
    return tl.load(x + place[:, None] + around[None, :], mask=inside, other=0.0)


@jit
def convolution(
    x,
    weight,
    out,
    partial,
    below,
    norm,
    gamma,
    beta,
    skip,
    seen,
    pixels,
    per,
    HI: tl.constexpr,
    WI: tl.constexpr,
    HO: tl.constexpr,
    WO: tl.constexpr,
    CI: tl.constexpr,
    CO: tl.constexpr,
    STRIDE: tl.constexpr,
    UP: tl.constexpr,
    BACK: tl.constexpr,
    JOIN: tl.constexpr,
    CS: tl.constexpr,
    M: tl.constexpr,
    KB: tl.constexpr,
    UNROLLED: tl.constexpr,
    LATE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute ``per`` tiles of M pixels, all output channels.

    Forward, ``out`` is the convolution, and ``partial`` (programs, 2, CO) gets mean and M2 of the program's pixels,
    computed before rounding.

    ``BACK``: x is the gradient of a convolution's output and ``weight`` is transposed; ``out`` becomes the gradient of
    the output of the BatchNorm below, masked by the ReLU between. ``below`` is the input of that BatchNorm, ``norm``
    its mean and 1/std; ``partial`` gets the sums of the gradient and of gradient times normalised input, which the
    backward of BatchNorm needs. ``JOIN``: the ReLU below ends a block or the stem; then the gradient of the shortcut
    (``skip``, of CS channels) is added first, and the mask is where ``seen``, the output of that ReLU, is positive.

    ``UP``, with ``BACK``: the convolution had stride 2, so x has half the sides. All pixels of a tile have the same
    parity of row and column, and use one, two or four taps; four consecutive tiles cover the same part of the maps,
    and ``pixels`` counts the pixels of one parity.
    """
    pid = tl.program_id(0)
    c = tl.arange(0, CO)
    CHUNKS: tl.constexpr = (9 * CI + KB - 1) // KB
    if BACK:
        mean = tl.load(norm + c)
        rstd = tl.load(norm + CO + c)
        if not JOIN:
            scale = rstd * tl.load(gamma + c)
            shift = tl.load(beta + c)
    if BACK and LATE:
        first = tl.zeros([M, CO], tl.float32)
        second = tl.zeros([M, CO], tl.float32)
    else:
        first = tl.zeros([CO], tl.float32)
        second = tl.zeros([CO], tl.float32)
    for t in tl.range(per, num_stages=STAGES if UNROLLED else 1):
        begin = (pid * per + t) * M
        rows = begin + tl.arange(0, M)
        live = rows < pixels
        if UP:
            odd_h = ((pid * per + t) // 2) % 2
            odd_w = (pid * per + t) % 2
            number = ((pid * per + t) // 4) * M + tl.arange(0, M)
            j = number % ((WO + 1) // 2)
            i = (number // ((WO + 1) // 2)) % ((HO + 1) // 2)
            b = number // (((WO + 1) // 2) * ((HO + 1) // 2))
            h = 2 * i + odd_h
            w_ = 2 * j + odd_w
            live = (number < pixels) & (h < HO) & (w_ < WO)
            rows = (b * HO + h) * WO + w_
        places = rows[:, None] * CO + c[None, :]
        held = live[:, None]
        if BACK:  # loaded before the products, to hide the latency
            y = tl.load(below + places, mask=held, other=0.0)
            if JOIN:
                if UP:
                    side: tl.constexpr = (CS - CO) // 2
                    at = (b * HI + i) * WI + j
                    even = live & (((h | w_) & 1) == 0)
                    beside = tl.load(skip + at[:, None] * CS + side + c[None, :], mask=even[:, None], other=0.0)
                else:
                    beside = tl.load(skip + places, mask=held, other=0.0)
                after = tl.load(seen + places, mask=held, other=0.0)
        acc = tl.zeros([M, CO], tl.float32)
        if UP:
            for tap in tl.range((1 + odd_h) * (1 + odd_w), num_stages=STAGES):
                down = tap // (1 + odd_w)
                right = tap % (1 + odd_w)
                k = tl.arange(0, CI)
                near = live & (i + down < HI) & (j + right < WI)
                place = ((b * HI + i + down) * WI + j + right) * CI
                a = tl.load(x + place[:, None] + k[None, :], mask=near[:, None], other=0.0)
                # An even coordinate uses the middle tap, an odd one the two others.
                first_k = ((1 - odd_h + 2 * down) * 3 + 1 - odd_w + 2 * right) * CI
                w = tl.load(weight + (first_k + k)[:, None] * CO + c[None, :])
                acc = tl.dot(a, w, acc)
        elif UNROLLED:
            for chunk in tl.static_range(CHUNKS):
                k = chunk * KB + tl.arange(0, KB)
                a = patches(x, rows, live, k, HI, WI, HO, WO, CI, STRIDE)
                w = tl.load(weight + k[:, None] * CO + c[None, :], mask=(k < 9 * CI)[:, None], other=0.0)
                acc = tl.dot(a, w, acc)
        else:
            for chunk in tl.range(CHUNKS, num_stages=STAGES):
                k = chunk * KB + tl.arange(0, KB)
                a = patches(x, rows, live, k, HI, WI, HO, WO, CI, STRIDE)
                w = tl.load(weight + k[:, None] * CO + c[None, :], mask=(k < 9 * CI)[:, None], other=0.0)
                acc = tl.dot(a, w, acc)
        if BACK:
            centred = y.to(tl.float32) - mean[None, :]
            if JOIN:
                acc += beside.to(tl.float32)
                passed = after.to(tl.float32) > 0
            else:
                passed = (centred * scale[None, :] + shift[None, :] > 0) & held
            rounded = tl.where(passed, acc, 0.0).to(out.dtype.element_ty)
            tl.store(out + places, rounded, mask=held)
            g = rounded.to(tl.float32)
            gx = g * (centred * rstd[None, :])
            if LATE:  # summed over pixels once, at the end
                first += g
                second += gx
            else:
                first += tl.sum(g, axis=0)
                second += tl.sum(gx, axis=0)
        else:
            tl.store(out + places, acc.to(out.dtype.element_ty), mask=held)
            # Mean and M2 of the tile, combined with those of the previous tiles (Chan et al.).
            n = tl.minimum(tl.maximum(pixels - begin, 0), M).to(tl.float32)
            before = t * M * 1.0
            tile_mean = tl.sum(acc, axis=0) / tl.maximum(n, 1.0)
            from_mean = tl.where(held, acc - tile_mean[None, :], 0.0)
            tile_m2 = tl.sum(from_mean * from_mean, axis=0)
            share = n / tl.maximum(before + n, 1.0)
            delta = tile_mean - first
            first += delta * share
            second += tile_m2 + delta * delta * (before * share)
    if BACK and LATE:
        tl.store(partial + (2 * pid) * CO + c, tl.sum(first, axis=0))
        tl.store(partial + (2 * pid + 1) * CO + c, tl.sum(second, axis=0))
    else:
        tl.store(partial + (2 * pid) * CO + c, first)
        tl.store(partial + (2 * pid + 1) * CO + c, second)
