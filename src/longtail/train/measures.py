"""The measures of a run from its class statistics, and post-hoc steps on its logits."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from longtail._checks import check_number
from longtail._registry import Registry
from longtail.classes import Groups, imbalance_factor
from longtail.metrics import (
    ClassStatistics,
    expected_calibration_error,
    gradient_balance,
    macro_f1,
    mean_target_probability,
    preference_scores,
    probability_shift,
    recall,
)
from longtail.posthoc import TAUS, adjust_logits, tau_normalize_logits

TrainStats = Literal["eval", "paper"]


def measures(
    statistics: Mapping[str, ClassStatistics],
    groups: Groups,
    class_names: tuple[str, ...],
    train_stats: TrainStats,
    *,
    gradients: bool = True,
) -> dict[str, Any]:
    """All measures of a run, as in ``result.json``: not rounded, and without times.

    Args:
        statistics: of ``train`` (evaluation mode), ``train_paper`` (training mode, augmented), ``val`` and ``test``, as
            far as they exist.
        groups: head, medium and tail.
        class_names: names of the classes.
        train_stats: which training statistics the preference scores use.
        gradients: whether rewards and penalties of the statistics are the gradient of the training loss.

    Returns:
        plain data. Recalls are fractions; G, P, I, Δp and gradient balances are in per cent, as in the paper.
    """
    splits: dict[str, Any] = {name: _of_split(one, groups) for name, one in statistics.items()}
    if gradients:
        for name, one in statistics.items():
            splits[name]["gradient_balance"] = _balance(one, groups)
    trained = "train_paper" if train_stats == "paper" and "train_paper" in statistics else "train"
    result: dict[str, Any] = {
        "classes": list(class_names),
        "groups": {name: list(groups.members(name)) for name in groups.names},
        "train_stats": "paper" if trained == "train_paper" else "eval",
        "splits": splits,
    }
    if trained in statistics:
        counts = statistics[trained].samples
        result["counts"] = counts.tolist()
        result["imbalance_factor"] = imbalance_factor(counts) if bool(counts.all()) else None
    for measured in ("val", "test"):
        if measured in statistics and trained in statistics:
            result[f"preference_{measured}"] = _preference(statistics[trained], statistics[measured], groups)
    return result


def _of_split(one: ClassStatistics, groups: Groups) -> dict[str, Any]:
    found = recall(one.correct, one.samples, groups)
    zero = recall(one.correct, one.samples, groups, absent="zero")
    shift = probability_shift(one.probability_sum, one.samples, groups)
    target = mean_target_probability(one.target_probability_sum, one.samples, groups)
    error = expected_calibration_error(one.bin_samples, one.bin_correct, one.bin_confidence, groups)
    return {
        "samples": int(one.samples.sum()),
        "recall": {"all": found.all, **found.groups},
        "recall_absent_as_zero": {"all": zero.all, **zero.groups},
        "accuracy": one.accuracy,
        "macro_f1": macro_f1(one.correct, one.samples, one.predicted),
        "absent_classes": list(found.absent),
        "unpredicted_classes": ((one.predicted == 0) & (one.samples > 0)).nonzero().flatten().tolist(),
        "recall_per_class": found.per_class.tolist(),
        "recall_low": found.low.tolist(),
        "recall_high": found.high.tolist(),
        "probability": shift.probability.tolist(),
        "probability_shift": dict(shift.groups),
        "probability_slope": shift.slope,
        "target_probability": dict(target.groups),
        "target_probability_per_class": target.per_class.tolist(),
        "calibration_error": {"all": error.all, **error.groups},
    }


def _balance(one: ClassStatistics, groups: Groups) -> dict[str, dict[str, float]]:
    found = {"bias": gradient_balance(one.bias_reward, one.bias_penalty, groups)}
    if one.weight_reward is not None and one.weight_penalty is not None:
        found["weight"] = gradient_balance(one.weight_reward, one.weight_penalty, groups)
    return {form: dict(balance.groups) for form, balance in found.items()}


def _preference(train: ClassStatistics, other: ClassStatistics, groups: Groups) -> dict[str, Any]:
    trained = recall(train.correct, train.samples, groups).per_class
    tested = recall(other.correct, other.samples, groups).per_class
    found = preference_scores(trained, tested, groups)
    return {
        "gap": dict(found.gap),
        "score": dict(found.score),
        "model_imbalance_level": found.level,
        "undefined": list(found.undefined),
    }


# What a result says


def why_no_level(result: Mapping[str, Any], split: str) -> str:
    """Why the model imbalance level of a result is undefined on a split, in words; empty if it is defined."""
    found, filled = result.get(f"preference_{split}"), [name for name, members in result["groups"].items() if members]
    if not found:
        return f"there are no measures on both training and {split} data"
    if len(filled) < 2:
        return f"all classes are in one group, the {filled[0]}; choose other groups with --groups"
    level = found["model_imbalance_level"]  # null in files
    if level is not None and not math.isnan(level):
        return ""
    if found.get("undefined"):
        return f"no training image of the {' and the '.join(found['undefined'])} is recognised"
    return f"fewer than two groups have images in the {split} data"


def predicted_classes(result: Mapping[str, Any], split: str) -> str:
    """``"predicts 1 of 4 classes"``, of the classes with images in a split; empty if all are predicted, or unknown."""
    found = result["splits"].get(split, {})
    never, present = found.get("unpredicted_classes"), len(result["classes"]) - len(found.get("absent_classes", ()))
    if not never:
        return ""
    among = " that have samples" if found.get("absent_classes") else ""
    text = f"predicts {present - len(never):,} of {present:,} classes{among}"
    if is_underfitted(result, split):
        recall = result["splits"][_trained(result)]["recall"]["all"]
        text += f" and has {100 * recall:.1f} % recall on training data: underfitted"
    return text


def is_underfitted(result: Mapping[str, Any], split: str) -> bool:
    """Whether some classes of a split are never predicted, and less than half is learnt, see :func:`learns_little`."""
    trained, never = result["splits"].get(_trained(result)), result["splits"].get(split, {}).get("unpredicted_classes")
    return trained is not None and bool(never) and learns_little(trained["recall"]["all"], len(result["classes"]))


def learns_little(train_recall: float, num_classes: int) -> bool:
    """Whether less than half is learnt.

    What is learnt is the recall over all classes on training data, above the 1/C of guessing among C classes, as a
    share of what is possible: ``balanced_accuracy_score(adjusted=True)`` of scikit-learn.
    """
    chance = 1 / num_classes
    return chance < 1 and (train_recall - chance) / (1 - chance) < 0.5


def _trained(result: Mapping[str, Any]) -> str:
    return "train_paper" if result.get("train_stats") == "paper" else "train"


# Post-hoc steps


@dataclass(frozen=True, eq=False)
class Classifier:
    """What a post-hoc step needs to know about a classifier and its training data."""

    counts: Tensor
    norms: Tensor | None
    """Norm of the weight vector of each class; ``None`` if the classifier is not linear."""
    bias: Tensor | None

    @classmethod
    def of(cls, weight: Tensor | None, bias: Tensor | None, counts: Tensor) -> "Classifier":
        """From a linear classifier's weight ``(C, D)`` and bias ``(C,)``."""
        norms = None if weight is None else torch.linalg.vector_norm(weight.detach().double().cpu(), dim=1)
        return cls(counts.cpu(), norms, None if bias is None else bias.detach().double().cpu())


POSTHOCS: Registry[Callable[[Tensor, Classifier, float], Tensor]] = Registry("posthoc")
"""Post-hoc steps by name: new logits from logits, classifier and strength."""


def _tau_normalize(logits: Tensor, classifier: Classifier, tau: float) -> Tensor:
    if classifier.norms is None:
        raise ValueError("Expected a linear classifier for tau-normalisation, but the run has another one.")
    return tau_normalize_logits(logits, classifier.bias, classifier.norms, tau)


POSTHOCS.register("tau", _tau_normalize)
POSTHOCS.register("adjust", lambda logits, known, tau: adjust_logits(logits, known.counts, tau, zero_counts="mask"))


@dataclass(frozen=True)
class PostHoc:
    """A step after training.

    Args:
        kind: ``"tau"`` divides the weight vector of each class by a power of its norm; ``"adjust"`` subtracts the log
            prior; others can be registered in :data:`POSTHOCS`.
        strength: tau of either.
        temperature: what the logits are divided by afterwards.

    Example:
        >>> PostHoc.parse("tau=0.7")
        PostHoc(kind='tau', strength=0.7, temperature=1.0)
    """

    kind: str
    strength: float
    temperature: float = 1.0

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> "PostHoc | None":
        """The step of a finished run, with the temperature that ``beta = "auto"`` measured; ``None`` without one."""
        if not result.get("posthoc"):
            return None
        return replace(cls.parse(result["posthoc"]), temperature=result.get("auto_beta", {}).get("temperature", 1.0))

    @classmethod
    def parse(cls, text: str) -> "PostHoc":
        """From ``tau=0.7`` or ``adjust=1``."""
        kind, _, strength = text.partition("=")
        POSTHOCS.find(kind)
        try:
            number = float(strength)
        except ValueError:
            raise ValueError(f"Expected `posthoc` to be like tau=0.7 or adjust=1, but got {text!r}.") from None
        return cls(kind, check_number("posthoc", number, minimum=-math.inf if kind == "adjust" else 0.0))

    def __str__(self) -> str:
        short = f"{self.strength:g}"
        return f"{self.kind}={short if float(short) == self.strength else self.strength}"

    def apply(self, logits: Tensor, classifier: Classifier) -> Tensor:
        """Logits after the step."""
        after = POSTHOCS.find(self.kind)(logits, classifier, self.strength)
        return after if self.temperature == 1 else after / self.temperature


def choose_posthoc(
    kind: str, classifier: Classifier, groups: Groups, batches: Iterable[tuple[Tensor, Tensor]]
) -> tuple[PostHoc, dict[str, float]]:
    """The step with the highest mean recall on validation data (the weakest one of several), and all recalls.

    Args:
        kind: of the step.
        classifier: what the step needs to know.
        groups: head, medium and tail.
        batches: logits ``(B, C)`` and labels ``(B,)``.
    """
    steps = [PostHoc(kind, strength) for strength in TAUS]
    correct = torch.zeros(len(TAUS), groups.num_classes, dtype=torch.int64)
    samples = torch.zeros(groups.num_classes, dtype=torch.int64)
    for logits, labels in batches:
        samples += torch.bincount(labels, minlength=len(samples))
        for place, step in enumerate(steps):
            right = labels[step.apply(logits, classifier).argmax(1) == labels]
            correct[place] += torch.bincount(right, minlength=len(samples))
    recalls = [recall(hits, samples, groups).all for hits in correct]
    best = max(range(len(recalls)), key=lambda place: (recalls[place], -place))
    return steps[best], {str(step): value for step, value in zip(steps, recalls, strict=True)}
