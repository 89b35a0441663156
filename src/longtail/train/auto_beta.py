"""``beta = "auto"``: train with beta = 1, measure the shift that held-out data still needs, and subtract it.

Held-out data is the validation split. Without one, pilots are trained before the run: each holds out another tenth of
the images, and their held-out logits are pooled. One is enough unless the held-out images are few.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longtail.beta import ShiftFit, fit_shift

__all__ = ["FOLDS", "MOST_PILOTS", "PILOT", "is_enough", "not_measurable", "pooled_fit", "summary"]

FOLDS = 10
"""A pilot holds out one of so many parts of the images."""
MOST_PILOTS = 5
PILOT = "pilot"
"""The folders of pilots, in that of the run, have this name and a number."""
_ENOUGH = 0.25  # the standard error below which no further pilot is trained

Rows = tuple[Tensor, Tensor]
"""Logits and labels."""


def not_measurable(counts: Tensor) -> str | None:
    """Why beta cannot be measured for these training examples per class; ``None`` if it can be."""
    if int(counts.min()) == int(counts.max()):
        return "all classes have the same count"
    return "no class has two images, so none can be held out" if int(counts.max()) < 2 else None


def pooled_fit(rows: Sequence[Rows], counts: Tensor) -> ShiftFit:
    """The shift that held-out logits need, all rows together; a label below 0 marks an image that was not read."""
    logits, labels = (torch.cat(parts) for parts in zip(*rows, strict=True))
    read = labels >= 0
    return fit_shift(logits[read], labels[read], counts)


def is_enough(fit: ShiftFit) -> bool:
    """Whether the held-out data measures beta well enough."""
    return fit.problem is None and fit.std_error < _ENOUGH


def summary(fit: ShiftFit) -> dict[str, Any]:
    """What a log and a result say about a measurement: beta, or why it stays at 1."""
    if fit.problem is not None:
        return {"beta": 1.0, "problem": fit.problem}
    return {"beta": 1.0 + fit.delta, "std_error": fit.std_error}
