"""Class weights from class counts."""

import math

import torch
from torch import Tensor

from longtail._checks import Vector, ZeroCounts, check_number, training_counts


def effective_number_weights(counts: Vector, b: float, *, zero_counts: ZeroCounts = "error") -> Tensor:
    r"""Class-balanced weights (Cui et al., 2019): the inverse of the effective number of samples, scaled to sum to C.

    .. math:: w_c \propto \frac{1 - b}{1 - b^{N_c}}, \qquad \sum_c w_c = C

    ``b=0`` gives all classes the same weight, ``b`` near 1 the inverse frequency. Pass the result as ``weight`` to any
    loss: from the start (class-balanced weighting), or in the last epochs only (deferred re-weighting, DRW).

    Args:
        counts: training examples per class, shape ``(C,)``, or sums of sample weights.
        b: in [0, 1); 0.9999 is usual.
        zero_counts: how to treat a class without examples: ``"error"``, ``"mask"`` (weight 0) or count it as ``"one"``.

    Returns:
        float32 weights of shape ``(C,)``.

    Example:
        >>> effective_number_weights([5000, 500, 50], b=0.9999)
        tensor([0.0341, 0.2752, 2.6907])
    """
    b = check_number("b", b, below=1.0)
    counts = training_counts(counts, zero_counts)
    number = counts.to("cpu", torch.float64)
    # 1 - b^N without cancellation; b = 0 has log -inf, and 0^N is 0 for N >= 1.
    effective = -torch.expm1(number * math.log(b)) / (1 - b) if b > 0 else torch.ones_like(number)
    weights = torch.where(number > 0, 1 / effective, 0.0)
    return (weights * (counts.numel() / weights.sum())).to(counts.device, torch.float32)
