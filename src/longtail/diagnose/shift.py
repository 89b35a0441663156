"""The post-hoc shift that validation data supports, and its effect on test data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from longtail.classes import Groups
from longtail.diagnose.inputs import SplitPredictions
from longtail.metrics import recall
from longtail.posthoc import TAUS, adjust_logits


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


def recommend_shift(splits: Mapping[str, SplitPredictions], counts: Tensor, groups: Groups) -> tuple[Shift | None, str]:
    r"""Choose a shift on validation data and measure it on test data; without a shift, say why.

    The shift is logit adjustment, ``z - tau log prior``, with tau in 0, 0.1, …, 2. A few tail samples often decide
    which tau has the highest recall over all classes. So a shift is only chosen if the best tau is better than none by
    more than two standard errors, and then it is the smallest tau within one standard error of the best. The error is
    that of a difference on the same samples: if :math:`b_c` and :math:`w_c` of the :math:`n_c` samples of a class are
    right with only one of two taus, :math:`p = (b + 0.5) / (n + 1.5)` and :math:`q = (w + 0.5) / (n + 1.5)`, it is
    :math:`\sqrt{\sum_c (p + q - (p - q)^2) / n_c} / C`. The halves keep a class with one sample from looking certain.
    """
    only_classes = [splits[name].source for name in ("val", "test") if name in splits and splits[name].logits is None]
    if only_classes:
        has = "has" if len(only_classes) == 1 else "have"
        return None, (
            "A post-hoc shift needs logits or probabilities on validation and test data, but "
            f"{' and '.join(only_classes)} {has} only predicted labels."
        )
    if "val" not in splits:
        return None, (
            "Without validation data, no post-hoc shift was chosen: chosen on test data, it would look too good. Give "
            "--val predictions on data that was used neither for training nor for testing."
        )
    if not bool((counts > 0).any()):
        return None, "A post-hoc shift needs the training samples per class, and all are 0."
    labels = splits["val"].labels
    predicted = [_shifted(splits["val"], tau, counts) for tau in TAUS]
    recalls = [_recalls(labels, guess, groups) for guess in predicted]
    best = max(range(len(TAUS)), key=lambda place: (recalls[place]["all"], -place))
    errors = [_error(labels, predicted[best] == labels, guess == labels, groups.num_classes) for guess in predicted]
    behind = [recalls[best]["all"] - found["all"] for found in recalls]
    chosen = 0
    if behind[0] > 2 * errors[0]:
        chosen = next((place for place in range(best) if behind[place] <= errors[place]), best)
    test, shifted = splits["test"], _shifted(splits["test"], TAUS[chosen], counts)
    shift = Shift(
        strength=TAUS[chosen],
        best=TAUS[best],
        lead=behind[0],
        error=errors[0],
        trace={name: [found[name] for found in recalls] for name in recalls[0]},
        before={"val": recalls[0], "test": _recalls(test.labels, test.predicted, groups)},
        after={"val": recalls[chosen], "test": _recalls(test.labels, shifted, groups)},
    )
    return shift, ""


def _shifted(split: SplitPredictions, tau: float, counts: Tensor) -> Tensor:
    if tau == 0 or split.logits is None:
        return split.predicted
    return adjust_logits(split.logits, counts, tau, zero_counts="mask").argmax(1)


def _recalls(labels: Tensor, predicted: Tensor, groups: Groups) -> dict[str, float]:
    right = labels[labels == predicted].bincount(minlength=groups.num_classes)
    found = recall(right, labels.bincount(minlength=groups.num_classes), groups)
    return {**{name: 100 * value for name, value in found.groups.items()}, "all": 100 * found.all}


def _error(labels: Tensor, one: Tensor, other: Tensor, num_classes: int) -> float:
    """Standard error, in points, of the difference in recall over all classes between two predictions."""
    n, b, w = (
        labels[which].bincount(minlength=num_classes).double() for which in (labels >= 0, one & ~other, ~one & other)
    )
    p, q = (b + 0.5) / (n + 1.5), (w + 0.5) / (n + 1.5)
    present = n > 0
    variance = ((p + q - (p - q) ** 2) / n)[present]
    return 100 * math.sqrt(float(variance.sum())) / int(present.sum())
