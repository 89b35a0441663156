"""``beta = "auto"``: train with beta = 1, measure the shift that held-out data still needs, and subtract it.

Held-out data is the validation split. Without one, pilots are trained before the run: each holds out another tenth of
the images, and their held-out logits are pooled.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longtail.beta import ShiftFit, fit_shift

__all__ = ["FOLDS", "NO_PILOTS", "Rows", "pilots_needed", "pooled_fit", "summary"]

FOLDS = 10
"""A pilot holds out one of so many parts of the images."""
NO_PILOTS = "all classes that have two images or more have the same count"
"""Why no pilot is trained."""
_MOST = 5  # pilots
_SAMPLES = 100  # held-out samples that a slope needs

Rows = tuple[Tensor, Tensor]
"""Logits and labels."""


def pilots_needed(counts: Tensor) -> int:
    r"""The number of pilots for these training examples per class: one, or up to five if rare classes have few.

    A pilot holds out :math:`n_c` samples of a class, none of a class with a single one. The shift is a slope against
    :math:`\ell_c = \log N_c`, less its mean, and as certain as with :math:`C \sum_c \ell_c^2 / \sum_c (\ell_c^2 /
    n_c)` samples that are spread evenly over C classes. Pilots are trained until there are 100 of these; none is
    trained if all classes have the same count.

    Example:
        >>> [pilots_needed(torch.tensor(counts)) for counts in ([9000, 900], [5000, 500, 50], [90, 9], [7, 7])]
        [1, 4, 5, 0]
    """
    several = counts[counts > 1].double()
    held = torch.where(several < FOLDS, 1.0, several / FOLDS)
    leverage = (several.log() - several.log().mean()).square()
    samples = len(held) * leverage.sum() / (leverage / held).sum()  # NaN if all counts are the same
    return 0 if not samples > 0 else min(_MOST, math.ceil(_SAMPLES / float(samples)))


def pooled_fit(rows: Sequence[Rows], counts: Tensor) -> ShiftFit:
    """The shift that held-out logits need, all rows together; a label below 0 marks an image that was not read."""
    logits, labels = (torch.cat(parts) for parts in zip(*rows, strict=True))
    read = labels >= 0
    return fit_shift(logits[read], labels[read], counts)


def summary(fit: ShiftFit) -> dict[str, Any]:
    """What a log and a result say about a measurement: beta, or why it stays at 1."""
    if fit.problem is not None:
        return {"beta": 1.0, "problem": fit.problem}
    return {"beta": 1.0 + fit.delta, "std_error": fit.std_error}
