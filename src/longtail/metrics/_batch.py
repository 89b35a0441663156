"""A batch of any shape as rows, one per sample."""

from typing import NamedTuple

import torch
from torch import Tensor

from longtail._checks import describe
from longtail.losses._common import check_batch


class Batch(NamedTuple):
    """A batch as rows."""

    logits: Tensor
    """``(M, C)``, at least float32."""
    label: Tensor
    """int64 ``(M,)``, 0 where ignored."""
    valid: Tensor
    """bool ``(M,)``, false where ignored."""
    features: Tensor | None
    """``(M, D)``."""
    shift: Tensor | None
    """``(C,)``."""


def flatten(
    logits: Tensor,
    target: Tensor,
    features: Tensor | None,
    shift: Tensor | None,
    *,
    ignore_index: int,
    check_labels: bool | None,
) -> Batch:
    """Check a batch and return it as rows. Reads nothing back from a device."""
    if not isinstance(logits, Tensor) or logits.ndim < 2:
        raise ValueError(
            "Expected `logits` of shape (N, C) or (N, C, d1, …), but got "
            + (f"shape {tuple(logits.shape)}." if isinstance(logits, Tensor) else f"{type(logits).__name__}.")
        )
    if isinstance(target, Tensor) and target.is_floating_point():
        raise TypeError(f"Expected `target` to hold class indices, but got dtype {target.dtype}.")
    num_classes = logits.shape[1]
    target = check_batch(logits, target, num_classes, of="logits", ignore_index=ignore_index, check_labels=check_labels)
    for name, tensor in (("shift", shift), ("features", features)):
        if tensor is not None:
            if not isinstance(tensor, Tensor):
                raise TypeError(f"Expected `{name}` to be a tensor, but got {describe(tensor)}.")
            if tensor.device != logits.device:
                raise ValueError(
                    f"Expected `logits` and `{name}` on one device, but got {logits.device} and {tensor.device}."
                )
    if shift is not None and shift.shape != (num_classes,):
        raise ValueError(f"Expected `shift` to have shape ({num_classes},), but got {tuple(shift.shape)}.")
    if features is not None and (
        features.ndim != logits.ndim or features.shape[2:] != logits.shape[2:] or len(features) != len(logits)
    ):
        raise ValueError(
            f"Expected `features` of shape (N, D, …) beside logits of shape {tuple(logits.shape)}, "
            f"but got {tuple(features.shape)}."
        )
    target = target.flatten()
    ignored = target == ignore_index
    # Ignored rows may hold NaN, and NaN times 0 is NaN.
    return Batch(
        logits=_rows(logits).masked_fill(ignored[:, None], 0.0),
        label=target.masked_fill(ignored, 0),
        valid=~ignored,
        features=None if features is None else _rows(features).masked_fill(ignored[:, None], 0.0),
        shift=shift,
    )


def _rows(values: Tensor) -> Tensor:
    """``(N, C, d1, …)`` as ``(N * d1 * …, C)``, at least float32."""
    rows = values.detach().movedim(1, -1).reshape(-1, values.shape[1])
    return rows.to(torch.promote_types(values.dtype, torch.float32))


def wide(device: torch.device) -> torch.dtype:
    """Return the dtype for sums: float64, except on MPS, which does not have it."""
    return torch.float32 if device.type == "mps" else torch.float64
