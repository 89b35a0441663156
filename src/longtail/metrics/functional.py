"""Measures: pure functions of class statistics."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from longtail._checks import Vector, as_counts, as_tensor, as_vector, check_choice, check_number, shown
from longtail.classes import Groups, GroupValues
from longtail.metrics.statistics import ClassStatistics

Absent = Literal["skip", "zero"]


@dataclass(frozen=True, eq=False)
class Recall:
    """Recall as fractions in [0, 1]."""

    per_class: Tensor
    """float64 ``(C,)``; NaN for an absent class (0 under ``absent="zero"``)."""
    low: Tensor
    """Lower end of the Wilson interval per class, ``(C,)``; NaN for an absent class."""
    high: Tensor
    """Upper end of the Wilson interval."""
    groups: GroupValues
    """Means over the classes of each group."""
    all: float
    """Mean over all classes."""
    absent: tuple[int, ...]
    """Classes without a sample, which are left out of the means or counted as 0."""


def recall(
    correct: Vector, samples: Vector, groups: Groups, *, absent: Absent = "skip", confidence: float = 0.95
) -> Recall:
    r"""Return recall per class, :math:`R_c = correct_c / samples_c`, its Wilson interval, and its means.

    Args:
        correct: correctly predicted samples per class, ``(C,)``.
        samples: samples per class, ``(C,)``.
        groups: the groups to average over.
        absent: leave a class without a sample out of the means (``"skip"``), or set its recall to 0 (``"zero"``, as in
            the paper's LVIS row).
        confidence: confidence level of the Wilson interval.

    Example:
        >>> groups = Groups.from_indices(head=[0], tail=[1, 2])
        >>> result = recall(torch.tensor([9, 1, 0]), torch.tensor([10, 4, 0]), groups)
        >>> result.groups, result.all, result.absent
        ({'head': 0.9, 'tail': 0.25}, 0.575, (2,))
        >>> recall(torch.tensor([9, 1, 0]), torch.tensor([10, 4, 0]), groups, absent="zero").groups
        {'head': 0.9, 'tail': 0.125}
    """
    check_choice("absent", absent, Absent)
    right = as_counts(correct, groups.num_classes, name="correct").cpu()
    total = as_counts(samples, groups.num_classes, name="samples").cpu()
    present = total > 0
    if not present.any() and absent == "skip":
        raise ValueError("Expected `samples` to have a class with a sample, but got 0 for every class.")
    low, high = wilson_interval(right, total, confidence)
    per_class = right.to(torch.float64) / total
    if absent == "zero":
        per_class = per_class.where(present, 0.0)
    counted = present if absent == "skip" else torch.ones_like(present)
    return Recall(
        per_class=per_class,
        low=low,
        high=high,
        groups=groups.means(per_class, counted),
        all=float(per_class.where(counted, 0.0).sum() / counted.sum()),
        absent=tuple((~present).nonzero().flatten().tolist()),
    )


def macro_f1(correct: Vector, samples: Vector, predicted: Vector) -> float:
    r"""Return the mean over classes of :math:`F_1 = 2\, correct_c / (samples_c + predicted_c)`, as scikit-learn does.

    A class that has no sample and is never predicted is left out; one that is predicted without a sample counts as 0.

    Args:
        correct: correctly predicted samples per class, ``(C,)``.
        samples: samples per class, ``(C,)``.
        predicted: samples of any class that are predicted as this class, ``(C,)``.

    Example:
        >>> round(macro_f1([9, 1, 0], [10, 4, 0], [12, 2, 0]), 3)
        0.576
    """
    total = as_counts(samples, name="samples").cpu() + as_counts(predicted, name="predicted").cpu()
    right, counted = as_counts(correct, total.numel(), name="correct").cpu(), total > 0
    if not counted.any():
        raise ValueError("Expected `samples` to have a class with a sample, but got 0 for every class.")
    return float((2 * right[counted].double() / total[counted]).mean())


def wilson_interval(correct: Vector, samples: Vector, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    r"""Return Wilson's score interval of a fraction :math:`\hat p` of :math:`n` samples; it is good for small n, too.

    .. math:: \frac{\hat p + z^2 / 2n \pm z \sqrt{\hat p (1 - \hat p) / n + z^2 / 4n^2}}{1 + z^2 / n}

    Args:
        correct: number of correct samples, ``(C,)``.
        samples: number of samples, ``(C,)``.
        confidence: confidence level.

    Returns:
        lower and upper ends, float64 ``(C,)``; NaN without a sample.

    Example:
        >>> wilson_interval([0, 9], [10, 10])
        (tensor([0.0000, 0.5958], dtype=torch.float64), tensor([0.2775, 0.9821], dtype=torch.float64))
    """
    confidence = check_number("confidence", confidence, below=1.0)
    total = as_counts(samples, name="samples").cpu()
    right = as_counts(correct, total.numel(), name="correct").cpu()
    if (right > total).any():
        worst = int((right - total).argmax())
        raise ValueError(
            f"Expected `correct` to be at most `samples`, but got {right[worst]} of {total[worst]} in class {worst}."
        )
    n = total.to(torch.float64)
    fraction = right / n
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = fraction + z**2 / (2 * n)
    half = z * (fraction * (1 - fraction) / n + z**2 / (4 * n**2)).sqrt()
    scale = 1 + z**2 / n
    low, high = (centre - half) / scale, (centre + half) / scale
    return low.where(fraction != 0, 0.0), high.where(fraction != 1, 1.0)  # exact, unlike the rounded formula


@dataclass(frozen=True)
class Preference:
    """G, P and I of the paper, in per cent."""

    gap: GroupValues
    """Relative generalisation gap G per group, in per cent of its training recall."""
    score: GroupValues
    """Preference score P per group: training error plus G; lower is better."""
    level: float
    """Model imbalance level I, the range of P over the groups that have a class; NaN if a P is undefined, or if there
    are fewer than two groups to compare."""
    undefined: tuple[str, ...]
    """Groups with zero training recall, which have no G and no P."""


def preference_scores(train_recall: Vector, test_recall: Vector, groups: Groups) -> Preference:
    r"""Return preference scores and the model imbalance level.

    With :math:`R_g` the mean recall of group :math:`g`, in per cent,

    .. math:: G_g = 100 \frac{R^{tr}_g - R^{te}_g}{R^{tr}_g}, \qquad P_g = (100 - R^{tr}_g) + G_g,
              \qquad I = \max_g P_g - \min_g P_g.

    Args:
        train_recall: recall per class on the training data, ``(C,)``, as fractions in [0, 1]; NaN for a class without
            a sample.
        test_recall: the same on test data. A class without a sample in one of them is left out of both means, so that
            both are over the same classes.
        groups: head, medium and tail, or any other groups.

    Returns:
        G and P of the groups, and I. Groups without a class are in their ``skipped``. A group with zero training recall
        is in ``undefined`` and makes I NaN: it has no preference score, and without the worst group the range would
        show a balanced model.

    Example:
        >>> groups = Groups.from_indices(head=[0], medium=[1], tail=[2])
        >>> result = preference_scores([1.0, 0.8, 0.5], [0.9, 0.6, 0.2], groups)
        >>> {name: round(score, 6) for name, score in result.score.items()}
        {'head': 10.0, 'medium': 45.0, 'tail': 110.0}
        >>> round(result.level, 6)
        100.0
    """
    recalls = _recalls("train_recall", train_recall, groups), _recalls("test_recall", test_recall, groups)
    present = ~(recalls[0].isnan() | recalls[1].isnan())
    train, test = (groups.means(values, present) for values in recalls)
    skipped = train.skipped
    gap, score, undefined = {}, {}, []
    for name in train:
        if train[name] == 0:
            undefined.append(name)
            continue
        gap[name] = 100 * (train[name] - test[name]) / train[name]
        score[name] = (100 - 100 * train[name]) + gap[name]
    level = math.nan if undefined or len(score) < 2 else max(score.values()) - min(score.values())
    return Preference(GroupValues(gap, skipped), GroupValues(score, skipped), level, tuple(undefined))


def _recalls(name: str, recall: Vector, groups: Groups) -> Tensor:
    values = as_vector(name, recall, groups.num_classes).to("cpu", torch.float64)
    wrong = values[~values.isnan() & ~((values >= 0) & (values <= 1))]
    if wrong.numel():
        raise ValueError(f"Expected `{name}` to be fractions in [0, 1], not per cent, but got {wrong[0].item():g}.")
    return values


@dataclass(frozen=True, eq=False)
class ProbabilityShift:
    r"""How the class probabilities :math:`p(y=c)` of a model differ from class frequency :math:`N_c / N`."""

    probability: Tensor
    r"""p(y=c), float64 ``(C,)``."""
    difference: Tensor
    """The paper's Δp (Δp̂ for an imbalanced model): relative difference to class frequency, in per cent, ``(C,)``."""
    groups: GroupValues
    """Means of it over the classes of each group."""
    slope: float
    r"""b of the fit log κ_c = b log N_c + const; NaN if all classes have the same count."""
    r_squared: float
    """How much of the variation of log κ over the classes the fit explains; NaN if it does not vary."""
    left_out: tuple[int, ...]
    """Classes that the fit leaves out: those with p(y=c) = 0 and those without a sample (which have no Δp)."""


def probability_shift(probability_sum: Vector, counts: Vector, groups: Groups) -> ProbabilityShift:
    r"""Return p(y=c) over the training set, its relative difference to class frequency, and a power-law fit.

    .. math:: p(y=c) = \frac{1}{N} \sum_n p(y=c \mid n), \qquad
              \Delta p_c = 100 \frac{p(y=c) - N_c / N}{N_c / N}, \qquad
              \kappa_c \propto \frac{p(y=c)}{N_c / N} \approx N_c^{b}

    The slope is :math:`\beta^b` for a model that was trained on balanced data and :math:`\beta^{ib}` for one that was
    trained on the long-tailed set with plain softmax, both measured on the long-tailed set. Their difference
    :math:`\beta^{ib} - \beta^b` is the beta that they imply. The fit is ordinary least squares over the classes.

    Args:
        probability_sum: sum of the softmax over the samples, ``(C,)``
            (``probability_sum`` of :class:`ClassStatistics <longtail.metrics.ClassStatistics>`).
        counts: samples per class, ``(C,)`` (its ``samples``).
        groups: the groups to average over.

    Example:
        >>> groups = Groups.from_indices(head=[0], tail=[1])
        >>> shift = probability_shift(torch.tensor([85.0, 15.0]), [90, 10], groups)
        >>> {name: round(value, 4) for name, value in shift.groups.items()}
        {'head': -5.5556, 'tail': 50.0}
        >>> round(shift.slope, 4)
        -0.2105
    """
    number = as_counts(counts, groups.num_classes).to("cpu", torch.float64)
    sums = _as_sums("probability_sum", probability_sum, groups)
    total = float(number.sum())
    if not math.isclose(float(sums.sum()), total, rel_tol=1e-3) or total == 0:
        raise ValueError(
            f"Expected `probability_sum` to add up to the number of samples, {total:g}, but got {float(sums.sum()):g}."
        )
    probability = sums / total
    present = number > 0
    difference = (probability / (number / total) - 1) * 100
    difference = difference.where(present, torch.nan)
    fitted = present & (probability > 0)
    slope, r_squared = _fit(number[fitted].log(), (probability / number)[fitted].log())
    return ProbabilityShift(
        probability=probability,
        difference=difference,
        groups=groups.means(difference, present),
        slope=slope,
        r_squared=r_squared,
        left_out=tuple((~fitted).nonzero().flatten().tolist()),
    )


def _as_sums(name: str, values: Vector, groups: Groups) -> Tensor:
    sums = as_vector(name, values, groups.num_classes).to("cpu", torch.float64)
    wrong = ~(sums.isfinite() & (sums >= 0))
    if wrong.any():
        raise ValueError(f"Expected `{name}` to hold finite numbers >= 0, but got {shown(sums[wrong].tolist())}.")
    return sums


def _fit(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return slope and R² of the least-squares line; NaN if x does not vary."""
    dx, dy = x - x.mean(), y - y.mean()
    if x.numel() < 2 or float(dx.abs().max()) < 1e-12:
        return math.nan, math.nan
    slope = (dx * dy).sum() / (dx * dx).sum()
    if float(dy.abs().max()) < 1e-9:  # a flat line up to rounding has no variation to explain
        return float(slope), math.nan
    return float(slope), float(1 - ((dy - slope * dx) ** 2).sum() / (dy * dy).sum())


@dataclass(frozen=True, eq=False)
class TargetProbability:
    """Mean probability of the true class."""

    per_class: Tensor
    """float64 ``(C,)``; NaN for a class without a sample."""
    groups: GroupValues
    """Means over the classes of each group that have a sample."""


def mean_target_probability(target_probability_sum: Vector, samples: Vector, groups: Groups) -> TargetProbability:
    r"""Return the mean probability of the true class per class, :math:`\frac{1}{N_c} \sum_{n \in N_c} p_{nc}`.

    Args:
        target_probability_sum: ``(C,)``, of :class:`ClassStatistics <longtail.metrics.ClassStatistics>`.
        samples: samples per class, ``(C,)``.
        groups: the groups to average over.

    Example:
        >>> groups = Groups.from_indices(head=[0], tail=[1])
        >>> mean_target_probability(torch.tensor([80.0, 3.0]), [100, 10], groups).groups
        {'head': 0.8, 'tail': 0.3}
    """
    number = as_counts(samples, groups.num_classes, name="samples").to("cpu", torch.float64)
    sums = _as_sums("target_probability_sum", target_probability_sum, groups)
    wrong = sums > number * (1 + 1e-6)
    if wrong.any():
        c = int(wrong.nonzero()[0])
        raise ValueError(
            "Expected `target_probability_sum` to be at most `samples`, "
            f"but got {sums[c]:g} of {number[c]:g} in class {c}."
        )
    present = number > 0
    means = (sums / number).where(present, torch.nan)
    return TargetProbability(means, groups.means(means, present))


@dataclass(frozen=True, eq=False)
class GradientBalance:
    """Net gradient per class, in per cent: above 0 the reward is larger, below 0 the penalty."""

    per_class: Tensor
    """(reward - penalty) / reward * 100, float64 ``(C,)``; NaN for a class without reward."""
    groups: GroupValues
    """Means of it over the classes of each group."""
    undefined: tuple[int, ...]
    """Classes without a reward > 0, which the means leave out: they have no sample, or all samples have p = 1, or
    features of both signs have a negative sum."""


def gradient_balance(reward: Tensor, penalty: Tensor, groups: Groups) -> GradientBalance:
    r"""Return the net gradient of the classifier, :math:`(reward - penalty) / reward \times 100`, per class and group.

    The gradient of the summed cross entropy with respect to the weight :math:`w_c` is :math:`-\Delta^{grad}_c`,

    .. math:: \Delta^{grad}_{ci} = \underbrace{\sum_{n \in N_c} (1 - p_{nc}) h_{ni}}_{reward}
              - \underbrace{\sum_{d \ne c} \sum_{n \in N_d} p_{nc} h_{ni}}_{penalty}

    and with respect to the bias the same with :math:`h = 1`: the *bias form*, which needs only logits. Class statistics
    hold the sums, under plain softmax or any shifted loss. In the weight form, rewards and penalties are summed over
    the features, :math:`\sum_i \Delta^{grad}_{ci}`; for features >= 0, as after a ReLU, that is the 1-norm.

    Args:
        reward: ``bias_reward`` ``(C,)`` or ``weight_reward`` ``(C, D)`` of
            :class:`ClassStatistics <longtail.metrics.ClassStatistics>`.
        penalty: likewise.
        groups: the groups to average over.

    Example:
        >>> groups = Groups.from_indices(head=[0], tail=[1])
        >>> gradient_balance(torch.tensor([1.5, 0.5]), torch.tensor([0.5, 1.5]), groups).groups
        {'head': 66.66666666666666, 'tail': -200.0}
    """
    reward, penalty = as_tensor("reward", reward), as_tensor("penalty", penalty)
    if reward.shape != penalty.shape or reward.ndim not in {1, 2}:
        raise ValueError(
            "Expected `reward` and `penalty` of one shape, (C,) or (C, D), but got "
            f"{tuple(reward.shape)} and {tuple(penalty.shape)}."
        )
    if len(reward) != groups.num_classes:
        raise ValueError(
            f"Expected `reward` to have {groups.num_classes} classes, as `groups` has, but got {len(reward)}."
        )
    both = (values.to("cpu", torch.float64) for values in (reward, penalty))
    rewards, penalties = (values.sum(1) if values.ndim == 2 else values for values in both)
    defined = rewards > 0
    per_class = torch.where(defined, (rewards - penalties) / rewards * 100, torch.nan)
    return GradientBalance(per_class, groups.means(per_class, defined), tuple((~defined).nonzero().flatten().tolist()))


@dataclass(frozen=True)
class CalibrationError:
    """Expected calibration error, as fractions in [0, 1]."""

    all: float
    """Over all samples; NaN without samples."""
    groups: GroupValues
    """Over the samples whose true class is in the group."""


def expected_calibration_error(
    bin_samples: Vector, bin_correct: Vector, bin_confidence: Vector, groups: Groups
) -> CalibrationError:
    r"""Return the expected calibration error of all samples and of each group.

    .. math:: ECE = \sum_b \frac{n_b}{n} \left| acc_b - conf_b \right|

    over bins :math:`b` of confidence. A group has the samples whose *true* class is in it.

    Args:
        bin_samples: samples per true class and bin, ``(C, bins)``, of
            :class:`ClassStatistics <longtail.metrics.ClassStatistics>`.
        bin_correct: how many of them are predicted correctly.
        bin_confidence: the sum of their confidences.
        groups: the groups.

    Example:
        >>> groups = Groups.from_indices(head=[0], tail=[1])
        >>> samples, correct = torch.tensor([[0, 10], [0, 10]]), torch.tensor([[0, 9], [0, 4]])
        >>> error = expected_calibration_error(samples, correct, torch.tensor([[0.0, 9.0], [0.0, 8.0]]), groups)
        >>> error
        CalibrationError(all=0.2, groups={'head': 0.0, 'tail': 0.4})
    """
    bin_samples, bin_correct = as_tensor("bin_samples", bin_samples), as_tensor("bin_correct", bin_correct)
    bin_confidence = as_tensor("bin_confidence", bin_confidence)
    if not bin_samples.shape == bin_correct.shape == bin_confidence.shape or bin_samples.ndim != 2:
        raise ValueError(
            "Expected `bin_samples`, `bin_correct` and `bin_confidence` of one shape (C, bins), but got "
            f"{tuple(bin_samples.shape)}, {tuple(bin_correct.shape)} and {tuple(bin_confidence.shape)}."
        )
    if len(bin_samples) != groups.num_classes:
        raise ValueError(
            f"Expected `bin_samples` to have {groups.num_classes} classes, as `groups` has, but got {len(bin_samples)}."
        )
    if (bin_correct > bin_samples).any():
        raise ValueError("Expected `bin_correct` to be at most `bin_samples`, but got a bin where it is larger.")
    samples, correct, confidence = (groups.sums(values) for values in (bin_samples, bin_correct, bin_confidence))
    # n_b / n * |acc_b - conf_b| is |correct_b - confidence_b| / n, so empty bins are no special case.
    errors = (correct - confidence).abs().sum(1) / samples.sum(1)
    kept = {name: e for name, e, n in zip(groups.names, errors.tolist(), samples.sum(1).tolist(), strict=True) if n > 0}
    overall = (correct.sum(0) - confidence.sum(0)).abs().sum() / samples.sum()
    return CalibrationError(
        all=float(overall) if samples.sum() > 0 else torch.nan,
        groups=GroupValues(kept, tuple(name for name in groups.names if name not in kept)),
    )


def summary(test: ClassStatistics, groups: Groups, train: ClassStatistics | None = None) -> dict[str, float]:
    """Return the main measures of a model by name.

    Args:
        test: class statistics on test or validation data.
        groups: head, medium and tail, or any other groups.
        train: class statistics on the training data, for the measures that compare the two.

    Returns:
        ``accuracy``, ``recall`` (the mean over classes), ``recall_<group>`` and ``calibration_error`` as fractions in
        [0, 1]; with ``train`` also ``train_recall``, ``train_recall_<group>``, and in per cent, as in the paper,
        ``gap_<group>``, ``preference_<group>`` and ``model_imbalance_level`` (NaN if it is undefined). Groups without a
        sample have no entry.

    Example:
        >>> import torch
        >>> from longtail.metrics import class_statistics
        >>> logits = torch.tensor([[2.0, 0.0], [3.0, 0.0], [1.0, 0.0], [0.0, 4.0]])
        >>> test = class_statistics(logits, torch.tensor([0, 0, 1, 1]))
        >>> measures = summary(test, Groups.from_indices(head=[0], tail=[1]))
        >>> {name: round(value, 2) for name, value in measures.items()}
        {'accuracy': 0.75, 'recall': 0.75, 'recall_head': 1.0, 'recall_tail': 0.5, 'calibration_error': 0.23}
    """
    tested = recall(test.correct, test.samples, groups)
    error = expected_calibration_error(test.bin_samples, test.bin_correct, test.bin_confidence, groups)
    values = {
        "accuracy": test.accuracy,
        "recall": tested.all,
        **{f"recall_{name}": value for name, value in tested.groups.items()},
        "calibration_error": error.all,
    }
    if train is not None:
        trained = recall(train.correct, train.samples, groups)
        preference = preference_scores(trained.per_class, tested.per_class, groups)
        values["train_recall"] = trained.all
        values |= {f"train_recall_{name}": value for name, value in trained.groups.items()}
        values |= {f"gap_{name}": value for name, value in preference.gap.items()}
        values |= {f"preference_{name}": value for name, value in preference.score.items()}
        values["model_imbalance_level"] = preference.level
    return values
