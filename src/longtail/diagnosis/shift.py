"""The post-hoc shift that validation data supports, and its effect on test data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.beta import NO_SKILL, fit_shift
from longtail.classes import Groups
from longtail.diagnosis.inputs import LOG_ZERO, SplitPredictions
from longtail.metrics import ClassStatistics, recall
from longtail.posthoc import adjust_logits

USELESS = (
    "The scores predict the classes of the validation data no better than guessing, so neither a shift nor another "
    "loss is recommended: check the labels, and that the classes have the same order in the labels and in the scores."
)
_SMALL = 0.5
"""A shift that is certainly smaller gains little."""


@dataclass(frozen=True)
class Shift:
    """A shift ``z - tau log N`` of the logits, fitted on validation data; recalls are in per cent per group."""

    tau: float
    """:attr:`ShiftFit.tau <longtail.ShiftFit>`, rounded to two decimals. Positive: the model prefers frequent classes;
    negative: it prefers rare ones."""
    delta: float
    """The estimate; tau is nearer to zero, by its uncertainty and where more would mostly cost accuracy."""
    std_error: float
    """Standard error of delta."""
    samples: int
    """Validation samples that it was fitted on."""
    left_out: int
    """Validation samples that were left out, because their classes have no training samples."""
    before: Mapping[str, Mapping[str, float]]
    """Recall on ``val`` and ``test`` without a shift."""
    after: Mapping[str, Mapping[str, float]]
    """The same with the shift."""
    accuracy: tuple[float, float]
    """On test data, in per cent, without and with the shift."""

    @property
    def clear(self) -> bool:
        """Whether delta differs from zero by more than two standard errors."""
        return abs(self.delta) > 2 * self.std_error

    @property
    def recommended(self) -> bool:
        """Whether tau is clear and raises the recall over all classes on validation data."""
        return self.clear and self.change("val", "all") > 0

    @property
    def small(self) -> bool:
        """Whether the shift is small even if delta is wrong by two standard errors."""
        return abs(self.delta) + 2 * self.std_error < _SMALL

    def change(self, split: str, group: str) -> float:
        """Return the effect of the shift on a group, in points."""
        return self.after[split][group] - self.before[split][group]


def recommend_shift(splits: Mapping[str, SplitPredictions], counts: Tensor, groups: Groups) -> tuple[Shift | None, str]:
    r"""Fit a shift on validation data and measure it on validation and test data; without a shift, say why.

    The shift is ``tau`` of :func:`longtail.beta.fit_shift`. In the fit, a probability of 0 counts as half the smallest
    positive one, because it may be rounded.
    """
    problem = _missing(splits)
    if problem:
        return None, problem
    val, trained = splits["val"], counts[splits["val"].labels] > 0
    if not bool(trained.any()):
        return None, "A post-hoc shift needs validation samples of classes with training samples, and there are none."
    if torch.equal(val.labels, val.predicted):
        return None, "All validation samples are classified correctly, so a post-hoc shift can gain nothing."
    fit = fit_shift(_scores(val)[trained], val.labels[trained], counts)
    if fit.problem is not None:
        return None, USELESS if fit.problem == NO_SKILL else f"No post-hoc shift is recommended: {fit.problem}."
    tau, measured = round(fit.tau, 2), {name: splits[name] for name in ("val", "test")}
    before = {
        name: ClassStatistics.from_predictions(one.labels, one.predicted, len(counts)) for name, one in measured.items()
    }
    after = {name: shifted(one, tau, counts) for name, one in measured.items()}
    shift = Shift(
        tau,
        fit.delta,
        fit.std_error,
        int(trained.sum()),
        int((~trained).sum()),
        before={name: recall_per_group(one, groups) for name, one in before.items()},
        after={name: recall_per_group(one, groups) for name, one in after.items()},
        accuracy=(100 * before["test"].accuracy, 100 * after["test"].accuracy),
    )
    return (shift, "") if shift.after["val"]["all"] > 100 * _guessing(val.labels) else (None, USELESS)


def _missing(splits: Mapping[str, SplitPredictions]) -> str:
    """What a shift needs and is not given, in a sentence."""
    only_classes = [splits[name].source for name in ("val", "test") if name in splits and splits[name].logits is None]
    if only_classes:
        has = "has" if len(only_classes) == 1 else "have"
        return (
            "A post-hoc shift needs logits or probabilities on validation and test data, but "
            f"{' and '.join(only_classes)} {has} only predicted labels; add them to those files."
        )
    if "val" in splits:
        return ""
    return (
        "Without validation data, no post-hoc shift was chosen: chosen on test data, it would look too good. Give "
        "predictions on other data as --val. To have such data, hold out a tenth of every class before training "
        "(`longtail train --validation 0.1`), or, without training again, split the test samples of every class into "
        "halves: one for --val, the other for --test."
    )


def _guessing(labels: Tensor) -> float:
    """The recall over all classes that guessing reaches, plus two standard errors."""
    samples = labels.bincount()
    samples = samples[samples > 0].double()
    chance = 1 / len(samples)
    return chance + 2 * chance * math.sqrt(chance * (1 - chance) * float(samples.reciprocal().sum()))


def shifted(split: SplitPredictions, tau: float, counts: Tensor) -> ClassStatistics:
    """Return the statistics of the classes predicted with the shift; those without training samples are masked."""
    assert split.logits is not None
    predicted = adjust_logits(split.logits, counts, tau, zero_counts="mask").argmax(1)
    return ClassStatistics.from_predictions(split.labels, predicted, len(counts))


def recall_per_group(found: ClassStatistics, groups: Groups) -> dict[str, float]:
    """Return recall in per cent, per group and ``all``."""
    recalls = recall(found.correct, found.samples, groups)
    return {**{name: 100 * value for name, value in recalls.groups.items()}, "all": 100 * recalls.all}


def _scores(split: SplitPredictions) -> Tensor:
    """Logits without the values that stand for a probability of 0."""
    assert split.logits is not None
    zero = split.logits <= (LOG_ZERO if split.kind == "probabilities" else -torch.inf)
    return (
        split.logits.masked_fill(zero, float(split.logits[~zero].min()) - math.log(2)) if zero.any() else split.logits
    )
