"""The main measures of a model as one flat dictionary, for loggers and tables."""

from longtail.classes import Groups
from longtail.metrics.calibration import expected_calibration_error
from longtail.metrics.preference import preference_scores
from longtail.metrics.recall import recall
from longtail.metrics.statistics import ClassStatistics


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
