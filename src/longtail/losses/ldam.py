"""LDAM: larger margins for rarer classes; and the class weights of its deferred re-weighting."""

import math
from typing import Unpack

import torch
from torch import Tensor

from longtail._checks import Vector, ZeroCounts, check_logits, check_number, class_dim, training_counts
from longtail.losses._common import (
    CountedLoss,
    LossOptions,
    check_batch,
    check_options,
    cross_entropy,
    leave_out,
    present_classes,
)


def ldam_margins(counts: Vector, max_margin: float = 0.5, *, zero_counts: ZeroCounts = "error") -> Tensor:
    r"""Return the margins of LDAM, :math:`m_c \propto N_c^{-1/4}`, scaled so that the largest is ``max_margin``.

    Args:
        counts: training examples per class, shape ``(C,)``, or sums of sample weights.
        max_margin: the margin of the rarest class, >= 0.
        zero_counts: ``"error"``, ``"mask"`` or ``"one"``, for a class without examples.

    Returns:
        float32 margins of shape ``(C,)``; NaN for a class without examples under ``zero_counts="mask"``.

    Example:
        >>> ldam_margins([10000, 625, 1])
        tensor([0.0500, 0.1000, 0.5000])
    """
    max_margin = check_number("max_margin", max_margin)
    counts = training_counts(counts, zero_counts)
    present = counts > 0
    smallest = counts[present].min()
    margins = max_margin * (counts.to("cpu", torch.float64) / smallest.item()) ** -0.25
    return margins.where(present.cpu(), torch.nan).to(counts.device, torch.float32)


def _ldam(
    logits: Tensor,
    target: Tensor,
    margins: Tensor,
    present: Tensor | None,
    scale: float,
    **options: Unpack[LossOptions],
) -> Tensor:
    """LDAM over the classes ``present`` (``None``: all), in at least float32."""
    target = check_batch(logits, target, margins.numel(), of="counts", held=margins, **options)
    if target.is_floating_point():
        raise TypeError(
            "Expected `target` to hold class indices, because a margin needs one true class, but got floats."
        )
    if present is not None:
        logits, target, options = leave_out(logits, target, present, **options)
        margins = margins[present]
    dim = class_dim(logits)
    ignored = target == options.get("ignore_index", -100)
    label = target.masked_fill(ignored, 0)
    margin = torch.zeros_like(logits, dtype=torch.promote_types(logits.dtype, torch.float32))
    own = margins.gather(0, label.flatten()).view(label.shape)  # vmap cannot index by a single label
    margin.scatter_(dim, label.unsqueeze(dim), own.unsqueeze(dim).to(margin.dtype))
    return cross_entropy(scale * (logits - margin), target, **options)


def ldam_loss(
    logits: Tensor,
    target: Tensor,
    counts: Vector,
    *,
    max_margin: float = 0.5,
    scale: float = 30.0,
    zero_counts: ZeroCounts = "error",
    **options: Unpack[LossOptions],
) -> Tensor:
    r"""LDAM (Cao et al., 2019): a cross entropy of scaled cosines, with larger margins for rarer classes.

    .. math:: l_n = -\log \frac{e^{s (z_{ny} - m_y)}}{e^{s (z_{ny} - m_y)} + \sum_{d \ne y} e^{s z_{nd}}},
              \qquad m_c \propto N_c^{-1/4}

    Args:
        logits: cosines in [-1, 1] between normalised features and normalised class weights, shape ``(C,)``,
            ``(N, C)`` or ``(N, C, d1, …)``.
        target: class indices, shape ``()``, ``(N,)`` or ``(N, d1, …)``.
        counts: training examples per class, shape ``(C,)``, or sums of sample weights.
        max_margin: the margin of the rarest class.
        scale: the factor :math:`s` of the cosines.
        zero_counts: ``"error"``, ``"mask"`` or ``"one"``, as in
            :func:`class_balanced_softmax <longtail.losses.class_balanced_softmax>`.
        **options: as in ``F.cross_entropy``; see :class:`LossOptions <longtail.losses.LossOptions>`. For deferred
            re-weighting (LDAM-DRW) pass ``weight=effective_number_weights(counts, 0.9999)`` in the last epochs.

    Returns:
        the loss, float32 (float64 for float64 logits); a scalar unless ``reduction="none"``.

    Example:
        >>> cosines = torch.tensor([[0.9, 0.1, -0.2], [0.2, 0.3, 0.8]])
        >>> ldam_loss(cosines, torch.tensor([0, 2]), [500, 50, 5])
        tensor(0.3589)
    """
    check_options(**options)
    scale = check_number("scale", scale)
    margins = ldam_margins(counts, max_margin, zero_counts=zero_counts)
    check_logits(logits, margins.numel())
    margins = margins.to(logits.device)
    return _ldam(logits, target, margins, present_classes(margins), scale, **options)


class LDAMLoss(CountedLoss):
    """LDAM (Cao et al., 2019); see :func:`ldam_loss` for formula and arguments.

    Example:
        >>> loss = LDAMLoss([500, 50, 5])
        >>> loss(torch.tensor([[0.9, 0.1, -0.2], [0.2, 0.3, 0.8]]), torch.tensor([0, 2]))
        tensor(0.3589)
    """

    margins: Tensor
    _shown = ("max_margin", "scale")

    def __init__(
        self,
        counts: Vector,
        max_margin: float = 0.5,
        scale: float = 30.0,
        *,
        zero_counts: ZeroCounts = "error",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(counts, zero_counts, **options)
        self._max_margin = check_number("max_margin", max_margin)
        self.scale = check_number("scale", scale)
        self.read_counts()

    @property
    def max_margin(self) -> float:
        """The margin of the rarest class. Read-only: make another loss for another margin."""
        return self._max_margin

    @property
    def rebalances(self) -> bool:
        """By its margins, which differ by class, or by class weights."""
        margins = self.margins[self.margins.isfinite()]
        return super().rebalances or bool((margins != margins[0]).any())

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of cosines ``logits``, shape ``(N, C, …)``, and ``target``, indices."""
        return _ldam(logits, target, self.margins, self.present, self.scale, **self.options)

    def read_counts(self) -> None:
        """Compute the margins from the counts."""
        super().read_counts()
        self.margins = ldam_margins(self.counts, self.max_margin, zero_counts=self.zero_counts)


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
