"""The methods. A method is data: a title, typed parameters, stages, and what else depends on it."""

from collections.abc import Iterable

from longtail.methods import contrastive, ldam, reslt, softmax, two_stage
from longtail.methods.base import (
    AUTO,
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
    "AUTO",
    "METHODS",
    "Method",
    "NoParams",
    "Objective",
    "Parameter",
    "Stage",
    "SupervisedLoss",
    "Task",
    "UnknownParams",
    "default_reference",
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


def default_reference(names: Iterable[str]) -> str:
    """Return the method of a comparison that others are tested against: Balanced Softmax, softmax, or the first.

    Example:
        >>> default_reference(["cbs", "softmax"]), default_reference(["focal", "cbs"])
        ('softmax', 'focal')
    """
    given = list(names)
    preferred = (softmax.BALANCED_SOFTMAX.name, softmax.SOFTMAX.name)
    return next((name for name in (*preferred, *given) if name in given), preferred[0])
