"""What to try next with a trained classifier: another strength of the shift that it was trained with, or the post-hoc
shift that validation data speaks for, and its price."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longtail.classes import Groups
from longtail.diagnose.outside import Outside
from longtail.methods import METHODS
from longtail.metrics import recall
from longtail.train.posthoc import TAUS, Classifier, PostHoc

__all__ = ["Shift", "TrainedShift", "choose_shift", "trained_shift"]


@dataclass(frozen=True)
class TrainedShift:
    """The shift in the loss that a run was trained on."""

    loss: str
    """What tables call the method."""
    name: str
    """What its strength is called."""
    strength: float
    searched: str
    """The method for which ``longtail study beta`` finds the strength; empty if it cannot."""


def trained_shift(method: str, params: Mapping[str, Any]) -> TrainedShift | None:
    """The shift in a method's loss; ``None`` if it has none, or the method is not registered.

    Example:
        >>> trained_shift("cbs", {"beta": 1.5})
        TrainedShift(loss='CBS', name='beta', strength=1.5, searched='cbs')
    """
    known = METHODS.get(method)
    values = None if known is None else known.make_params(params)
    strength = None if known is None else known.shift_factor(values)
    if known is None or not strength:
        return None
    searched = method if known.beta else "cbs" if isinstance(known.shift, float) else ""
    return TrainedShift(known.title, str(known.shift) if isinstance(known.shift, str) else "beta", strength, searched)


@dataclass(frozen=True)
class Shift:
    """The strength of logit adjustment that validation data speaks for, and what it does."""

    strength: float
    """The one to use; 0 where none is clearly worth it."""
    best: float
    """The strength with the highest recall there."""
    lead: float
    """How much higher that is than without a shift, in points."""
    error: float
    """Standard error of that lead, in points."""
    trace: Mapping[str, list[float]]
    """Recall on validation data, in per cent, of each group and over all classes, at every strength."""
    before: Mapping[str, Mapping[str, float]]
    """For ``val`` and ``test``, recall in per cent of each group and over all classes, as it was."""
    after: Mapping[str, Mapping[str, float]]
    """The same with the shift."""

    @property
    def strengths(self) -> tuple[float, ...]:
        """Those that were tried."""
        return TAUS

    def change(self, split: str, group: str) -> float:
        """What the shift does to a group, in points."""
        return self.after[split][group] - self.before[split][group]


def choose_shift(val: Outside, test: Outside, counts: Tensor, groups: Groups) -> Shift:
    r"""Choose a shift on validation data, and see what it does to test data, which has no say in it.

    The shift is logit adjustment, ``z - tau log prior``, with tau in 0, 0.1, …, 2. The highest recall over all classes
    is often won by a handful of tail samples. So there is a shift only if the highest is ahead of no shift by more than
    two standard errors, and then it is the smallest tau within one of the highest. The error is that of a difference on
    the same samples: with :math:`b_c` and :math:`w_c` of the :math:`n_c` samples of a class right under one tau only,
    :math:`p = (b + 0.5) / (n + 1.5)` and :math:`q = (w + 0.5) / (n + 1.5)`, it is
    :math:`\sqrt{\sum_c (p + q - (p - q)^2) / n_c} / C`; the halves keep a class of one sample from seeming certain.

    Args:
        val: validation predictions, with logits or probabilities.
        test: test predictions, with logits or probabilities.
        counts: training samples of each class.
        groups: head, medium and tail.
    """
    classifier = Classifier(counts, None, None)
    steps = [PostHoc("adjust", strength) for strength in TAUS]
    predicted = [val.predicted if step.strength == 0 else _shifted(val, step, classifier) for step in steps]
    recalls = [_recalls(val.labels, guess, groups) for guess in predicted]
    best = max(range(len(steps)), key=lambda place: (recalls[place]["all"], -place))
    right = [guess == val.labels for guess in predicted]
    lead, error = recalls[best]["all"] - recalls[0]["all"], _error(val.labels, right[best], right[0], groups)
    near = (
        place
        for place in range(best)
        if recalls[best]["all"] - recalls[place]["all"] <= _error(val.labels, right[best], right[place], groups)
    )
    chosen = next(near, best) if lead > 2 * error else 0
    after = {"val": recalls[chosen], "test": recalls_after(test, steps[chosen], classifier, groups)}
    return Shift(
        strength=steps[chosen].strength,
        best=steps[best].strength,
        lead=lead,
        error=error,
        trace={name: [found[name] for found in recalls] for name in recalls[0]},
        before={"val": recalls[0], "test": _recalls(test.labels, test.predicted, groups)},
        after=after,
    )


def recalls_after(split: Outside, step: PostHoc, classifier: Classifier, groups: Groups) -> dict[str, float]:
    """Recall in per cent of each group and over all classes after a step; one of strength 0 changes nothing."""
    predicted = split.predicted if step.strength == 0 else _shifted(split, step, classifier)
    return _recalls(split.labels, predicted, groups)


def _shifted(split: Outside, step: PostHoc, classifier: Classifier) -> Tensor:
    if split.logits is None:
        raise ValueError("Expected logits or probabilities to shift, but got labels only.")
    return step.apply(split.logits, classifier).argmax(1)


def _recalls(labels: Tensor, predicted: Tensor, groups: Groups) -> dict[str, float]:
    right = torch.bincount(labels[labels == predicted], minlength=groups.num_classes)
    found = recall(right, torch.bincount(labels, minlength=groups.num_classes), groups)
    return {**{name: 100 * value for name, value in found.groups.items()}, "all": 100 * found.all}


def _error(labels: Tensor, one: Tensor, other: Tensor, groups: Groups) -> float:
    """Standard error, in points, of the difference in recall over all classes between two predictions."""

    def by_class(where: Tensor) -> Tensor:
        return torch.bincount(labels[where], minlength=groups.num_classes).double()

    samples = torch.bincount(labels, minlength=groups.num_classes).double()
    present = samples > 0
    n, b, w = samples[present], by_class(one & ~other)[present], by_class(~one & other)[present]
    p, q = (b + 0.5) / (n + 1.5), (w + 0.5) / (n + 1.5)
    return 100 * math.sqrt(float(((p + q - (p - q) ** 2) / n).sum())) / len(n)
