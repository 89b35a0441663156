# mypy: ignore-errors
"""All convolutions' weights in bfloat16, as the kernels read them: one launch a step."""

from longtail._gpu import jit, tl

__all__ = ["cast_weights"]


@jit
def cast_weights(table, out, E: tl.constexpr, COLUMNS: tl.constexpr):
    """A program casts E elements of one layer, once as (9, CI, CO) and once turned round, as (9, CO, CI).

    Its row of ``table`` says which: the address of the float32 weight (CO, CI, 3, 3), the first element, CI as
    computed, CI as it is, CO, the weight's four strides, and where both copies begin in ``out``.
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
