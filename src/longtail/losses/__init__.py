"""Losses: one per file, as a pure function and as a thin module over it."""

from longtail.losses._common import Loss, LossOptions
from longtail.losses.balanced_contrastive import BalancedContrastiveLoss, balanced_contrastive_loss
from longtail.losses.focal import FocalLoss, focal_loss
from longtail.losses.ldam import LDAMLoss, effective_number_weights, ldam_loss, ldam_margins
from longtail.losses.probabilistic_contrastive import (
    ProCoLoss,
    VonMisesFisherStatistics,
    proco_logits,
)
from longtail.losses.reslt import (
    ResLTTerms,
    branches_from_counts,
    branches_from_groups,
    reslt_terms,
)
from longtail.losses.softmax import (
    BalancedSoftmaxLoss,
    ClassBalancedSoftmaxLoss,
    LogitAdjustedLoss,
    PriorShiftedSoftmaxLoss,
    class_balanced_softmax,
    class_shift,
    prior_shift,
    shifted_linear,
)
from longtail.losses.training_shift import TrainingShift, shift_in_training

__all__ = [
    "BalancedContrastiveLoss",
    "BalancedSoftmaxLoss",
    "ClassBalancedSoftmaxLoss",
    "FocalLoss",
    "LDAMLoss",
    "LogitAdjustedLoss",
    "Loss",
    "LossOptions",
    "PriorShiftedSoftmaxLoss",
    "ProCoLoss",
    "ResLTTerms",
    "TrainingShift",
    "VonMisesFisherStatistics",
    "balanced_contrastive_loss",
    "branches_from_counts",
    "branches_from_groups",
    "class_balanced_softmax",
    "class_shift",
    "effective_number_weights",
    "focal_loss",
    "ldam_loss",
    "ldam_margins",
    "prior_shift",
    "proco_logits",
    "reslt_terms",
    "shift_in_training",
    "shifted_linear",
]
