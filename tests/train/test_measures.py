"""What a result says about itself: an undefined imbalance level, classes that are never predicted, underfitting."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

from longtail.classes import Groups
from longtail.cli import show
from longtail.metrics import class_statistics
from longtail.train.measures import is_underfitted, measures, predicted_classes, why_no_level

FOUR = Groups.from_indices(head=[0, 1], tail=[2, 3])


def result_of(predicted, labels, groups=FOUR, trained=None):
    """The result of a model that predicts these classes on test data, and ``trained`` on training data."""
    splits = {"test": (labels, predicted), "train": (labels, predicted if trained is None else trained)}
    one_hot = torch.eye(groups.num_classes)
    found = {
        name: class_statistics(one_hot[torch.as_tensor(guess)], torch.as_tensor(true))
        for name, (true, guess) in splits.items()
    }
    return measures(found, groups, tuple("abcd")[: groups.num_classes], "eval")


def test_one_class_of_four_is_said_and_underfitted(capsys):
    result = result_of([0] * 8, [0, 1, 2, 3] * 2)
    assert predicted_classes(result, "test") == (
        "predicts 1 of 4 classes and has 25.0 % recall on training data: underfitted"
    )
    assert why_no_level(result, "test") == "no training image of the tail is recognised"
    show.show_measures(result)
    out = capsys.readouterr().out
    assert "test: the model predicts 1 of 4 classes and has 25.0 % recall on training data: underfitted\n" in out
    assert "model imbalance level I undefined: no training image of the tail is recognised\n" in out


def test_one_group_has_no_level_and_the_reason_is_printed(capsys):
    result = result_of([0, 0, 1], [0, 1, 1], Groups.from_counts([50, 30]))
    show.show_measures(result)
    out = capsys.readouterr().out
    assert "model imbalance level I undefined: all classes are in one group, the medium; choose other groups" in out
    result["preference_test"]["model_imbalance_level"] = 0.0  # as runs before this version wrote it
    assert "one group" in why_no_level(result, "test")


def test_images_of_one_group_only_give_no_level():
    result = result_of([0, 1, 1], [0, 0, 1])
    assert why_no_level(result, "test") == "fewer than two groups have images in the test data"
    assert why_no_level(result, "val") == "there are no measures on both training and val data"
    assert predicted_classes(result, "test") == ""  # of the two classes that are in the data


@pytest.mark.parametrize("seed", range(20))
def test_underfitted_is_half_of_the_balanced_accuracy_above_chance(seed):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(40) % 4)
    trained = np.where(rng.random(40) < rng.random(), labels, rng.integers(0, 3, 40))
    tested = np.where(labels == 3, rng.integers(0, 3, 40), labels)
    for predicted, never in ((tested, True), (labels, False)):
        result = result_of(predicted, labels, trained=trained)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            learnt = balanced_accuracy_score(labels, trained, adjusted=True)
        assert is_underfitted(result, "test") == (never and learnt < 0.5)
        assert predicted_classes(result, "test").startswith("predicts 3 of 4 classes" if never else "")
        assert bool(predicted_classes(result, "test")) == never
