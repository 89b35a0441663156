"""Methods that train a linear classifier in one stage: softmax losses, class weights and class-aware sampling."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from longtail.data.sampling.samplers import ClassAware, Sampler
from longtail.losses import (
    BalancedSoftmaxLoss,
    ClassBalancedSoftmaxLoss,
    FocalLoss,
    LogitAdjustedLoss,
    LossOptions,
    effective_number_weights,
)
from longtail.methods.base import Method, Stage, Task
from longtail.methods.objective import SupervisedLoss
from longtail.methods.params import param


def softmax(task: Task, weight: Tensor | None = None) -> SupervisedLoss:
    """Cross entropy, with class weights if given: Class-Balanced Softmax with beta = 0."""
    options: LossOptions = {**task.options, "weight": weight}
    return SupervisedLoss(ClassBalancedSoftmaxLoss(task.counts, beta=0.0, zero_counts="one", **options))


def class_aware(params: Any) -> Sampler:
    """A sampler in whose batches all classes are equally frequent."""
    return ClassAware(params.per_class)


def _cbs(task: Task) -> SupervisedLoss:
    beta = task.params.beta
    return SupervisedLoss(ClassBalancedSoftmaxLoss(task.counts, beta=beta, zero_counts="mask", **task.options))


def _balanced_softmax(task: Task) -> SupervisedLoss:
    return SupervisedLoss(BalancedSoftmaxLoss(task.counts, zero_counts="mask", **task.options))


def _logit_adjusted(task: Task) -> SupervisedLoss:
    tau = task.params.tau
    return SupervisedLoss(LogitAdjustedLoss(task.counts, tau=tau, zero_counts="mask", **task.options))


def _focal(task: Task) -> SupervisedLoss:
    return SupervisedLoss(FocalLoss(task.params.gamma, **task.options))


def _weighted(task: Task) -> SupervisedLoss:
    return softmax(task, effective_number_weights(task.counts, task.params.effective_b))


@dataclass(frozen=True)
class CBSParams:
    """Parameters of Class-Balanced Softmax."""

    beta: float | Literal["auto"] = param(
        "auto",
        "exponent of the class counts in the shift; 0 is softmax, 1 Balanced Softmax; auto: measured on held-out data",
        at_least=0,
    )


@dataclass(frozen=True)
class FocalParams:
    """Parameters of focal loss."""

    gamma: float = param(2.0, "how much easy samples are down-weighted (LDAM's repository: 1)", at_least=0)


@dataclass(frozen=True)
class AdjustParams:
    """Parameters of logit adjustment."""

    tau: float = param(1.0, "strength of logit adjustment", at_least=0)


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of class-balanced sampling."""

    per_class: int = param(4, "consecutive samples of one class in class-aware sampling", at_least=1)


@dataclass(frozen=True)
class WeightParams:
    """Parameters of class-balanced weights."""

    effective_b: float = param(0.9999, "b of the effective numbers (1 - b) / (1 - b^N_c)", at_least=0, below=1)


SOFTMAX = Method("softmax", "Softmax", "plain cross entropy", "Bridle, Neurocomputing 1990", (Stage(softmax),))
FOCAL = Method(
    "focal",
    "Focal loss",
    "cross entropy that down-weights easy samples",
    "Lin et al., ICCV 2017",
    (Stage(_focal),),
    FocalParams,
)
LOGIT_ADJUST = Method(
    "logit-adjust",
    "Logit adjustment",
    "cross entropy of logits shifted by tau times the log prior",
    "Menon et al., ICLR 2021",
    (Stage(_logit_adjusted),),
    AdjustParams,
    shift="tau",
)
LOGIT_ADJUST_POSTHOC = Method(
    "logit-adjust-posthoc",
    "Adjust logit",
    "softmax, then tau times the log prior subtracted from the logits (the paper's Adjust logit)",
    "Menon et al., ICLR 2021",
    (Stage(softmax),),
    AdjustParams,
    posthoc="adjust",
    tau="tau",
)
BALANCED_SOFTMAX = Method(
    "balanced-softmax",
    "Balanced Softmax",
    "cross entropy of logits shifted by log N_c",
    "Ren et al., NeurIPS 2020",
    (Stage(_balanced_softmax),),
    shift=1.0,
)
CBS = Method(
    "cbs",
    "CBS",
    "Class-Balanced Softmax: cross entropy of logits shifted by beta log N_c",
    "the paper",
    (Stage(_cbs),),
    CBSParams,
    beta="beta",
    shift="beta",
)
CLASS_BALANCED_SAMPLING = Method(
    "class-balanced-sampling",
    "Class-balanced sampling",
    "softmax on batches in which classes are equally frequent",
    "Shen et al., ECCV 2016",
    (Stage(softmax, sampler=class_aware),),
    SamplingParams,
)
CLASS_BALANCED_WEIGHTS = Method(
    "class-balanced-weights",
    "Class-balanced weights",
    "softmax with classes weighted by their effective numbers",
    "Cui et al., CVPR 2019",
    (Stage(_weighted),),
    WeightParams,
)
