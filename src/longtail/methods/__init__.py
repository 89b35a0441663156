"""The methods. A method is data: a title, typed parameters, stages, and what else depends on it."""

from longtail.methods import contrastive, ldam, reslt, softmax, two_stage
from longtail.methods.base import (
    METHODS,
    Method,
    Stage,
    Task,
    find_method,
    parse_method,
    register_loss,
    register_method,
    unknown_method,
)
from longtail.methods.objective import Objective, SupervisedLoss
from longtail.methods.params import NoParams, Parameter, UnknownParams, param

__all__ = [
    "METHODS",
    "Method",
    "NoParams",
    "Objective",
    "Parameter",
    "Stage",
    "SupervisedLoss",
    "Task",
    "UnknownParams",
    "find_method",
    "param",
    "parse_method",
    "register_loss",
    "register_method",
    "unknown_method",
]

for _method in (
    softmax.SOFTMAX,
    softmax.FOCAL,
    two_stage.TAU_NORM,
    softmax.LOGIT_ADJUST,
    softmax.LOGIT_ADJUST_POSTHOC,
    reslt.RESLT,
    two_stage.CRT,
    two_stage.LWS,
    ldam.LDAM,
    ldam.LDAM_DRW,
    softmax.BALANCED_SOFTMAX,
    softmax.CBS,
    softmax.CLASS_BALANCED_SAMPLING,
    softmax.CLASS_BALANCED_WEIGHTS,
    contrastive.BCL,
    contrastive.PROCO,
):
    register_method(_method)
