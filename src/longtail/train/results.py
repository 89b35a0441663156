"""All measures of a run, from its class statistics; before any rounding, and with no time in them."""

from collections.abc import Mapping
from typing import Any, Literal

from longtail.classes import Groups, imbalance_factor
from longtail.metrics import (
    ClassStatistics,
    expected_calibration_error,
    gradient_balance,
    mean_target_probability,
    preference_scores,
    probability_shift,
    recall,
)

__all__ = ["measures"]

TrainStats = Literal["eval", "paper"]


def measures(
    statistics: Mapping[str, ClassStatistics],
    groups: Groups,
    class_names: tuple[str, ...],
    train_stats: TrainStats,
    *,
    gradients: bool = True,
) -> dict[str, Any]:
    """All measures of a run, as ``result.json`` has them.

    Args:
        statistics: of ``train`` (evaluation mode), ``train_paper`` (training mode, augmented), ``val`` and ``test``;
            those that there are.
        groups: head, medium and tail.
        class_names: of the classes.
        train_stats: which of the training statistics the preference scores are taken from.
        gradients: whether the statistics' rewards and penalties are the gradient of the loss that was trained on.

    Returns:
        plain data. Recalls are fractions; G, P, I, Δp and the gradients' balance are in per cent, as in the paper.
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
        "accuracy": int(one.correct.sum()) / int(one.samples.sum()),
        "absent_classes": list(found.absent),
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
