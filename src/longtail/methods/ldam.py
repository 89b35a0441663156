"""LDAM: a cosine classifier with larger margins for rarer classes, and deferred class weights (Cao et al., 2019)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longtail.losses import LDAMLoss, Loss, LossOptions, effective_number_weights
from longtail.methods.base import Method, Stage, Task
from longtail.methods.objective import SupervisedLoss
from longtail.methods.params import param
from longtail.models import HeadSpec


class DeferredWeights(SupervisedLoss):
    """A loss with equal class weights at first, and weights from effective numbers later (DRW).

    Args:
        loss: makes the loss from its class weights.
        counts: training examples per class.
        b: see :func:`longtail.losses.effective_number_weights`.
        from_epoch: the first epoch with weights, counted from 0.
        scale: as in :class:`SupervisedLoss`.
    """

    later: Tensor

    def __init__(
        self, loss: Callable[[Tensor], Loss], counts: Tensor, b: float, from_epoch: int, scale: float = 1.0
    ) -> None:
        super().__init__(loss(torch.ones(len(counts))), scale)
        self.register_buffer("later", effective_number_weights(counts, b), persistent=False)
        self.from_epoch = from_epoch

    def begin_epoch(self, epoch: int) -> None:
        """Set the weights in place, because a captured graph reads them."""
        assert self.loss.weight is not None
        self.loss.weight.copy_(self.later if epoch >= self.from_epoch else torch.ones_like(self.later))


@dataclass(frozen=True)
class LDAMParams:
    """Parameters of LDAM."""

    max_margin: float = param(0.5, "margin of the rarest class (the paper's large data sets: 0.3)", at_least=0)
    scale: float = param(30.0, "factor of the cosines", above=0)


@dataclass(frozen=True)
class LDAMDRWParams(LDAMParams):
    """Parameters of LDAM with deferred weights."""

    effective_b: float = param(0.9999, "b of the effective numbers (1 - b) / (1 - b^N_c)", at_least=0, below=1)
    defer: float = param(0.8, "fraction of the epochs before the weights start", at_least=0, at_most=1)


def _loss(task: Task, weight: Tensor | None = None) -> Loss:
    options: LossOptions = {**task.options, "weight": weight}
    return LDAMLoss(task.counts, task.params.max_margin, task.params.scale, zero_counts="mask", **options)


def _ldam(task: Task) -> SupervisedLoss:
    return SupervisedLoss(_loss(task), task.params.scale)


def _ldam_drw(task: Task) -> SupervisedLoss:
    params = task.params
    from_epoch = round(params.defer * task.epochs)
    return DeferredWeights(
        lambda weight: _loss(task, weight), task.counts, params.effective_b, from_epoch, params.scale
    )


def _cosine(params: Any) -> HeadSpec:
    return HeadSpec("cosine", {"scale": params.scale})


LDAM = Method(
    "ldam",
    "LDAM",
    "cosine classifier with larger margins for rarer classes",
    "Cao et al., NeurIPS 2019",
    (Stage(_ldam, _cosine),),
    LDAMParams,
)
LDAM_DRW = Method(
    "ldam-drw",
    "LDAM-DRW",
    "LDAM with class weights in the last epochs",
    "Cao et al., NeurIPS 2019",
    (Stage(_ldam_drw, _cosine),),
    LDAMDRWParams,
)
