"""One file a loss; a pure function and the module over it."""

from longtail.losses._common import LossOptions
from longtail.losses.focal import FocalLoss, focal_loss
from longtail.losses.ldam import LDAMLoss, ldam_loss, ldam_margins
from longtail.losses.softmax import (
    BalancedSoftmaxLoss,
    ClassBalancedSoftmaxLoss,
    LogitAdjustedLoss,
    PriorShiftedSoftmaxLoss,
    balanced_softmax,
    class_balanced_softmax,
    class_shift,
    logit_adjusted_softmax,
    prior_shift,
    prior_shifted_softmax,
    shifted_linear,
)
from longtail.losses.weights import effective_number_weights

__all__ = [
    "BalancedSoftmaxLoss",
    "ClassBalancedSoftmaxLoss",
    "FocalLoss",
    "LDAMLoss",
    "LogitAdjustedLoss",
    "LossOptions",
    "PriorShiftedSoftmaxLoss",
    "balanced_softmax",
    "class_balanced_softmax",
    "class_shift",
    "effective_number_weights",
    "focal_loss",
    "ldam_loss",
    "ldam_margins",
    "logit_adjusted_softmax",
    "prior_shift",
    "prior_shifted_softmax",
    "shifted_linear",
]
