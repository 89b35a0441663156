"""The summary against the functions that it gathers, and against values worked out by hand."""

import math

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score

from longtail import Groups
from longtail.metrics import class_statistics, expected_calibration_error, summary

GROUPS = Groups.from_indices(head=[0, 1], medium=[], tail=[2])


def split(seed, size=200):
    generator = torch.Generator().manual_seed(seed)
    label = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), size, True, generator=generator)
    return 2 * torch.nn.functional.one_hot(label, 3) + torch.randn(size, 3, generator=generator), label


def test_without_training_data():
    logits, label = split(0)
    test = class_statistics(logits, label)
    found = summary(test, GROUPS)
    assert list(found) == ["accuracy", "recall", "recall_head", "recall_tail", "calibration_error"]
    assert all(type(value) is float for value in found.values())
    predicted = logits.argmax(1)
    assert found["accuracy"] == pytest.approx(accuracy_score(label, predicted))
    assert found["recall"] == pytest.approx(balanced_accuracy_score(label, predicted))
    assert found["recall_tail"] == pytest.approx((predicted[label == 2] == 2).double().mean().item())
    error = expected_calibration_error(test.bin_samples, test.bin_correct, test.bin_confidence, GROUPS)
    assert found["calibration_error"] == error.all


def test_with_training_data():
    """G = 100 (train - test) / train, P = 100 - 100 train + G, I = the range of P."""
    train, test = class_statistics(*split(1)), class_statistics(*split(2))
    found = summary(test, GROUPS, train)
    for name in ("head", "tail"):
        trained, tested = found[f"train_recall_{name}"], found[f"recall_{name}"]
        assert found[f"gap_{name}"] == pytest.approx(100 * (trained - tested) / trained)
        assert found[f"preference_{name}"] == pytest.approx(100 - 100 * trained + found[f"gap_{name}"])
    assert found["model_imbalance_level"] == pytest.approx(abs(found["preference_head"] - found["preference_tail"]))
    assert found["train_recall"] == summary(train, GROUPS)["recall"]
    assert not [name for name in found if "medium" in name]


def test_an_undefined_level_is_nan():
    """A group with zero training recall has no preference score."""
    train = class_statistics(torch.eye(3)[[0, 1, 0]], torch.tensor([0, 1, 2]))
    found = summary(train, GROUPS, train)
    assert math.isnan(found["model_imbalance_level"])
    assert "preference_tail" not in found
