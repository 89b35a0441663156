"""beta = "auto": how much further to shift the logits of a model that was trained with beta = 1.

The shift is measured on the validation split. Without one, pilots are trained before the run: each holds out another
tenth of the images, and their held-out logits are pooled. One is enough unless rare classes have only a few images.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from longtail.beta import ShiftFit, fit_shift

__all__ = ["ENOUGH", "FOLDS", "MOST_PILOTS", "NOT_MEASURED", "PILOT", "fit_held_out"]

FOLDS = 10
"""A pilot holds out one of so many parts of the images."""
MOST_PILOTS = 5
ENOUGH = 0.25
"""The standard error of delta below which no further pilot is trained."""
PILOT = "pilot"
"""What the folders of pilots, in that of the run, are called, with a number."""

NOT_MEASURED = ShiftFit(0.0, math.nan, math.inf, 0, "no class has an image to hold out")


def fit_held_out(rows: Iterable[tuple[Tensor, Tensor]], counts: Tensor) -> ShiftFit:
    """The shift that held-out logits need; samples whose image could not be read have a negative label."""
    logits, labels = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return fit_shift(logits[labels >= 0], labels[labels >= 0], counts)
