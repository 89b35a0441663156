"""Measures: pure functions of class statistics, and one streaming metric that gathers those."""

from typing import TYPE_CHECKING, Any

from longtail.metrics import theory
from longtail.metrics.calibration import CalibrationError, expected_calibration_error
from longtail.metrics.gradients import GradientBalance, gradient_balance, gradient_sums
from longtail.metrics.preference import Preference, preference_scores
from longtail.metrics.probability import (
    ProbabilityShift,
    TargetProbability,
    implied_beta,
    mean_target_probability,
    probability_shift,
)
from longtail.metrics.recall import Recall, recall, wilson_interval
from longtail.metrics.statistics import ClassStatistics, class_statistics

if TYPE_CHECKING:
    from longtail.metrics.streaming import ClassStatisticsMetric

__all__ = [
    "CalibrationError",
    "ClassStatistics",
    "ClassStatisticsMetric",
    "GradientBalance",
    "Preference",
    "ProbabilityShift",
    "Recall",
    "TargetProbability",
    "class_statistics",
    "expected_calibration_error",
    "gradient_balance",
    "gradient_sums",
    "implied_beta",
    "mean_target_probability",
    "preference_scores",
    "probability_shift",
    "recall",
    "theory",
    "wilson_interval",
]


def __getattr__(name: str) -> Any:
    if name == "ClassStatisticsMetric":  # the only one that needs torchmetrics
        from longtail.metrics.streaming import ClassStatisticsMetric  # noqa: PLC0415

        return ClassStatisticsMetric
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
