"""Decoupled training (Kang et al., 2020): softmax first, then a new or a corrected classifier."""

from dataclasses import dataclass

from longtail.methods.base import Method, Stage
from longtail.methods.params import param
from longtail.methods.softmax import SamplingParams, class_aware, softmax
from longtail.models import HeadSpec

_REFERENCE = "Kang et al., ICLR 2020"


@dataclass(frozen=True)
class ClassifierParams(SamplingParams):
    """Parameters of the second stage of cRT and LWS."""

    classifier_epochs: int = param(10, "epochs of the second stage", at_least=1)
    classifier_lr: float = param(0.1, "learning rate of the second stage, with a cosine schedule", above=0)


@dataclass(frozen=True)
class TauNormParams:
    """Parameters of tau-normalisation."""

    tau: float | None = param(None, "strength of tau-normalisation; default: chosen on validation data", at_least=0)


def _classifier_stage(head: HeadSpec, *, reinit: bool) -> Stage:
    return Stage(
        softmax,
        head,
        sampler=class_aware,
        train="classifier",
        reinit=reinit,
        epochs="classifier_epochs",
        lr="classifier_lr",
    )


TAU_NORM = Method(
    "tau-norm",
    "τ-norm",
    "softmax, then the weight vector of each class divided by a power of its norm",
    _REFERENCE,
    (Stage(softmax),),
    TauNormParams,
    posthoc="tau",
    tau="tau",
)
CRT = Method(
    "crt",
    "cRT",
    "softmax, then a new classifier trained on balanced classes",
    _REFERENCE,
    (Stage(softmax), _classifier_stage(HeadSpec("linear"), reinit=True)),
    ClassifierParams,
)
LWS = Method(
    "lws",
    "LWS",
    "softmax, then one scale per class trained on balanced classes",
    _REFERENCE,
    (Stage(softmax), _classifier_stage(HeadSpec("class-scaled"), reinit=False)),
    ClassifierParams,
)
