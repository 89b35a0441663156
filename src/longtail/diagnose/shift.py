"""The post-hoc shift that validation data supports, and its effect on test data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.classes import Groups
from longtail.diagnose.predictions import Predictions
from longtail.metrics import recall
from longtail.posthoc import adjust_logits

TAUS = tuple(tenth / 10 for tenth in range(21))
"""The strengths that are tried: 0 to 2 in steps of 0.1."""


@dataclass(frozen=True)
class Shift:
    """The strength of logit adjustment that validation data supports; recalls are in per cent per group."""

    strength: float
    """The chosen strength; 0 if no shift is clearly better than none."""
    best: float
    """The strength with the highest recall on validation data."""
    lead: float
    """How much higher its recall is than without a shift, in points."""
    error: float
    """Standard error of that lead, in points."""
    trace: Mapping[str, list[float]]
    """Recall on validation data at every strength."""
    before: Mapping[str, Mapping[str, float]]
    """Recall on ``val`` and ``test`` without a shift."""
    after: Mapping[str, Mapping[str, float]]
    """The same with the shift."""

    def change(self, split: str, group: str) -> float:
        """Return the effect of the shift on a group, in points."""
        return self.after[split][group] - self.before[split][group]


def choose_shift(val: Predictions, test: Predictions, counts: Tensor, groups: Groups) -> Shift:
    r"""Choose a shift on validation data; its effect is then measured on test data.

    The shift is logit adjustment, ``z - tau log prior``, with tau in 0, 0.1, …, 2. A few tail samples often decide
    which tau has the highest recall over all classes. So a shift is only chosen if the best tau is better than none by
    more than two standard errors, and then it is the smallest tau within one standard error of the best. The error is
    that of a difference on the same samples: if :math:`b_c` and :math:`w_c` of the :math:`n_c` samples of a class are
    right with only one of two taus, :math:`p = (b + 0.5) / (n + 1.5)` and :math:`q = (w + 0.5) / (n + 1.5)`, it is
    :math:`\sqrt{\sum_c (p + q - (p - q)^2) / n_c} / C`. The halves keep a class with one sample from looking certain.
    """
    predicted = [_shifted(val, tau, counts) for tau in TAUS]
    recalls = [_recalls(val.labels, guess, groups) for guess in predicted]
    right = [guess == val.labels for guess in predicted]
    best = max(range(len(TAUS)), key=lambda place: (recalls[place]["all"], -place))
    lead, error = recalls[best]["all"] - recalls[0]["all"], _error(val.labels, right[best], right[0], groups)
    near = (
        place
        for place in range(best)
        if recalls[best]["all"] - recalls[place]["all"] <= _error(val.labels, right[best], right[place], groups)
    )
    chosen = next(near, best) if lead > 2 * error else 0
    return Shift(
        strength=TAUS[chosen],
        best=TAUS[best],
        lead=lead,
        error=error,
        trace={name: [found[name] for found in recalls] for name in recalls[0]},
        before={"val": recalls[0], "test": _recalls(test.labels, test.predicted, groups)},
        after={"val": recalls[chosen], "test": _recalls(test.labels, _shifted(test, TAUS[chosen], counts), groups)},
    )


def _shifted(split: Predictions, tau: float, counts: Tensor) -> Tensor:
    if split.logits is None:
        raise ValueError("Expected logits or probabilities to choose a shift, but got labels only.")
    return split.predicted if tau == 0 else adjust_logits(split.logits, counts, tau, zero_counts="mask").argmax(1)


def _recalls(labels: Tensor, predicted: Tensor, groups: Groups) -> dict[str, float]:
    right = torch.bincount(labels[labels == predicted], minlength=groups.num_classes)
    found = recall(right, torch.bincount(labels, minlength=groups.num_classes), groups)
    return {**{name: 100 * value for name, value in found.groups.items()}, "all": 100 * found.all}


def _error(labels: Tensor, one: Tensor, other: Tensor, groups: Groups) -> float:
    """Standard error, in points, of the difference in recall over all classes between two predictions."""

    def per_class(where: Tensor) -> Tensor:
        return torch.bincount(labels[where], minlength=groups.num_classes).double()

    samples = torch.bincount(labels, minlength=groups.num_classes).double()
    present = samples > 0
    n, b, w = samples[present], per_class(one & ~other)[present], per_class(~one & other)[present]
    p, q = (b + 0.5) / (n + 1.5), (w + 0.5) / (n + 1.5)
    return 100 * math.sqrt(float(((p + q - (p - q) ** 2) / n).sum())) / len(n)
