"""Focal loss: a softmax cross entropy that gives less weight to samples that are already right."""

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._checks import along_classes, check_number, class_dim, describe
from longtail.losses._common import Loss, LossOptions, Reduction, check_batch, check_options


def focal_loss(logits: Tensor, target: Tensor, *, gamma: float, **options: Unpack[LossOptions]) -> Tensor:
    r"""Focal loss (Lin et al., 2017) over a softmax.

    .. math:: l_n = -\sum_c t_{nc} (1 - p_{nc})^\gamma \log p_{nc}

    with the target distribution :math:`t`: the label, or the result of label smoothing, or class probabilities.
    ``gamma=0`` is cross entropy; reductions and class weights are those of cross entropy.

    Args:
        logits: shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, …)``.
        target: class indices, shape ``()``, ``(N,)`` or ``(N, d1, …)``, or class probabilities of the logits' shape.
        gamma: how strongly to reduce the weight of easy samples, >= 0; 1 and 2 are usual.
        **options: as in ``F.cross_entropy``; see :class:`LossOptions <longtail.losses.LossOptions>`.

    Returns:
        the loss, float32 (float64 for float64 logits); a scalar unless ``reduction="none"``.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.0, 1.0]])
        >>> focal_loss(logits, torch.tensor([0, 2]), gamma=2.0)
        tensor(0.1057)
    """
    check_options(**options)
    return _focal_loss(logits, target, check_number("gamma", gamma), **options)


def _focal_loss(logits: Tensor, target: Tensor, gamma: float, **options: Unpack[LossOptions]) -> Tensor:
    if not isinstance(logits, Tensor):
        raise TypeError(f"Expected `logits` to be a floating-point tensor, but got {describe(logits)}.")
    dim = class_dim(logits)
    num_classes = logits.shape[dim] if logits.ndim else 0
    target = check_batch(logits, target, num_classes, of="logits", **options)
    smoothing, reduction = options.get("label_smoothing", 0.0), options.get("reduction", "mean")

    log_p = F.log_softmax(logits, dim, dtype=torch.promote_types(logits.dtype, torch.float32))
    given = options.get("weight")
    weight = log_p.new_ones(num_classes) if given is None else given.to(log_p.dtype)
    weight = along_classes(weight, logits).expand_as(log_p)
    if target.is_floating_point():
        share = target.to(log_p.dtype) * (1 - smoothing) + smoothing / num_classes
        loss = (_focal(log_p, gamma) * weight * share).sum(dim)
        return _reduced(loss, reduction, torch.ones_like(loss))
    ignored = target == options.get("ignore_index", -100)
    label = target.masked_fill(ignored, 0).unsqueeze(dim)
    label_weight = weight.gather(dim, label).squeeze(dim).masked_fill(ignored, 0.0)
    # Without smoothing only the label's term: a logit of -inf elsewhere must not give a NaN.
    loss = _focal(log_p.gather(dim, label), gamma).squeeze(dim) * label_weight
    if smoothing:
        loss = (1 - smoothing) * loss + smoothing / num_classes * (_focal(log_p, gamma) * weight).sum(dim)
    return _reduced(loss.masked_fill(ignored, 0.0), reduction, label_weight)


def _focal(log_p: Tensor, gamma: float) -> Tensor:
    """``-(1 - p)^gamma log p``; the clamp keeps its gradient finite where p rounds to 1 and gamma < 1."""
    return -((-log_p.expm1()).clamp(min=torch.finfo(log_p.dtype).tiny) ** gamma) * log_p


def _reduced(loss: Tensor, reduction: Reduction, weight: Tensor) -> Tensor:
    """The loss reduced as ``F.cross_entropy`` does, a mean over the weight of the samples."""
    if reduction == "mean":
        return loss.sum() / weight.sum()
    return loss.sum() if reduction == "sum" else loss


class FocalLoss(Loss):
    """Focal loss (Lin et al., 2017) over a softmax; see :func:`focal_loss` for formula and arguments.

    Example:
        >>> loss = FocalLoss(gamma=2.0)
        >>> loss(torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.0, 1.0]]), torch.tensor([0, 2]))
        tensor(0.1057)
    """

    _shown = ("gamma",)

    def __init__(self, gamma: float, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.gamma = check_number("gamma", gamma)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of ``logits``, shape ``(N, C, …)``, and ``target``, indices or probabilities."""
        return _focal_loss(logits, target, self.gamma, **self.options)
