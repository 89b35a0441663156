"""Measures: pure functions of class statistics, and streaming metrics that gather these.

``ClassStatisticsMetric`` and ``GroupRecallMetric`` need torchmetrics, so they are imported on use and not part of
``__all__``: ``from longtail.metrics import *`` works without it.
"""

from typing import TYPE_CHECKING, Any

from longtail.metrics.functional import (
    CalibrationError,
    GradientBalance,
    Preference,
    ProbabilityShift,
    Recall,
    TargetProbability,
    expected_calibration_error,
    gradient_balance,
    macro_f1,
    mean_target_probability,
    preference_scores,
    probability_shift,
    recall,
    summary,
    wilson_interval,
)
from longtail.metrics.statistics import ClassStatistics, class_statistics

if TYPE_CHECKING:
    from longtail.metrics.streaming import ClassStatisticsMetric as ClassStatisticsMetric
    from longtail.metrics.streaming import GroupRecallMetric as GroupRecallMetric

__all__ = [
    "CalibrationError",
    "ClassStatistics",
    "GradientBalance",
    "Preference",
    "ProbabilityShift",
    "Recall",
    "TargetProbability",
    "class_statistics",
    "expected_calibration_error",
    "gradient_balance",
    "macro_f1",
    "mean_target_probability",
    "preference_scores",
    "probability_shift",
    "recall",
    "summary",
    "wilson_interval",
]
_STREAMING = ("ClassStatisticsMetric", "GroupRecallMetric")


def __getattr__(name: str) -> Any:
    if name in _STREAMING:
        from longtail.metrics import streaming  # noqa: PLC0415

        return getattr(streaming, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_STREAMING})
