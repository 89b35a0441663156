"""Recall against scikit-learn and scipy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, recall_score

from longtail import Groups
from longtail.metrics import macro_f1, recall, wilson_interval

GROUPS = Groups.from_indices(head=[0, 1], medium=[2, 3], tail=[4, 5, 6])


def predictions(seed=0, classes=range(7), size=400):
    """Labels and predictions of a long-tailed split that has only ``classes``."""
    rng = np.random.default_rng(seed)
    classes = np.array(list(classes))
    weights = 0.6 ** np.arange(len(classes))
    label = np.concatenate([classes, rng.choice(classes, size, p=weights / weights.sum())])
    guess = rng.choice(classes, label.size)
    return label, np.where(rng.random(label.size) < 0.5 + 0.4 / (1 + label), label, guess)


def tally(label, predicted, num_classes=7):
    """Right ones and samples of each class."""
    return (
        np.array([np.sum((label == c) & (predicted == c)) for c in range(num_classes)]),
        np.array([np.sum(label == c) for c in range(num_classes)]),
    )


@pytest.mark.parametrize("seed", range(2))
def test_recall_per_class_equals_scikit_learn(seed):
    label, predicted = predictions(seed)
    result = recall(*tally(label, predicted), GROUPS)
    np.testing.assert_allclose(result.per_class.numpy(), recall_score(label, predicted, average=None), rtol=1e-14)
    assert result.per_class.dtype == torch.float64
    assert result.absent == ()


@pytest.mark.parametrize("seed", range(2))
def test_all_is_balanced_accuracy(seed):
    label, predicted = predictions(seed)
    result = recall(*tally(label, predicted), GROUPS)
    assert result.all == pytest.approx(balanced_accuracy_score(label, predicted), rel=1e-14)
    assert result.all != pytest.approx(accuracy_score(label, predicted), abs=0.01)  # the two do differ here


def test_a_groups_recall_is_the_macro_recall_of_its_classes():
    label, predicted = predictions()
    result = recall(*tally(label, predicted), GROUPS)
    assert list(result.groups) == ["head", "medium", "tail"]
    for name, value in result.groups.items():
        macro = recall_score(label, predicted, labels=GROUPS.members(name), average="macro")
        assert value == pytest.approx(macro, rel=1e-14)


@pytest.mark.parametrize(("samples", "confidence"), [(1, 0.95), (7, 0.5), (1000, 0.999)])
def test_wilson_interval_equals_scipy(samples, confidence):
    correct = np.unique(np.linspace(0, samples, 9).round().astype(int))
    groups = Groups(("one",), (0,) * correct.size)
    result = recall(correct, np.full(correct.size, samples), groups, confidence=confidence)
    for low, high, k in zip(result.low.tolist(), result.high.tolist(), correct.tolist(), strict=True):
        wanted = binomtest(k, samples).proportion_ci(confidence, method="wilson")
        assert low == pytest.approx(wanted.low, rel=1e-9, abs=1e-12)
        assert high == pytest.approx(wanted.high, rel=1e-9)


def test_wilson_interval_by_hand():
    # 9 of 10 at 95 %: the textbook's 0.596 to 0.982.
    low, high = wilson_interval([9], [10])
    assert low.item() == pytest.approx(0.59585, abs=1e-5)
    assert high.item() == pytest.approx(0.98212, abs=1e-5)


def test_the_interval_is_95_per_cent_by_default():
    default, given = (recall([3], [10], Groups(("one",), (0,)), **o) for o in ({}, {"confidence": 0.95}))
    assert default.low.item() == given.low.item()
    assert default.low.item() == pytest.approx(binomtest(3, 10).proportion_ci(0.95, "wilson").low)


def test_absent_classes_are_left_out_and_named():
    label, predicted = predictions(classes=[0, 1, 2, 5])
    result = recall(*tally(label, predicted), GROUPS)
    assert result.absent == (3, 4, 6)
    assert result.per_class.isnan().nonzero().flatten().tolist() == [3, 4, 6]
    assert result.low.isnan().nonzero().flatten().tolist() == [3, 4, 6]
    assert result.high.isnan().nonzero().flatten().tolist() == [3, 4, 6]
    assert result.all == pytest.approx(balanced_accuracy_score(label, predicted), rel=1e-14)
    assert result.groups["medium"] == pytest.approx(recall_score(label, predicted, labels=[2], average="macro"))
    assert result.groups["tail"] == pytest.approx(recall_score(label, predicted, labels=[5], average="macro"))


def test_absent_classes_count_as_zero_with_absent_zero():
    label, predicted = predictions(classes=[0, 1, 2, 5])
    result = recall(*tally(label, predicted), GROUPS, absent="zero")
    wanted = recall_score(label, predicted, labels=range(7), average=None, zero_division=0)
    np.testing.assert_allclose(result.per_class.numpy(), wanted, rtol=1e-14)
    assert result.all == pytest.approx(wanted.mean(), rel=1e-14)
    assert result.groups["medium"] == pytest.approx(wanted[2] / 2, rel=1e-14)
    assert result.absent == (3, 4, 6)  # named all the same
    assert result.low.isnan().nonzero().flatten().tolist() == [3, 4, 6]  # of nothing there is no interval


def test_a_group_of_absent_classes_is_skipped_or_zero():
    correct, samples = [5, 5, 5, 5, 0, 0, 0], [9, 9, 9, 9, 0, 0, 0]
    result = recall(correct, samples, GROUPS)
    assert list(result.groups) == ["head", "medium"]
    assert result.groups.skipped == ("tail",)
    assert result.all == pytest.approx(5 / 9)
    result = recall(correct, samples, GROUPS, absent="zero")
    assert result.groups["tail"] == 0.0
    assert result.all == pytest.approx(4 * 5 / 9 / 7)


def test_a_group_without_a_class_is_skipped():
    result = recall([1, 2], [2, 2], Groups.from_indices(head=[0], medium=[], tail=[1]))
    assert result.groups == {"head": 0.5, "tail": 1.0}
    assert result.groups.skipped == ("medium",)


def test_no_sample_at_all():
    with pytest.raises(ValueError, match=r"`samples`.*0 for every class"):
        recall([0, 0], [0, 0], Groups(("one",), (0, 0)))
    assert recall([0, 0], [0, 0], Groups(("one",), (0, 0)), absent="zero").all == 0.0


@pytest.mark.parametrize("convert", [list, np.asarray, lambda x: torch.tensor(x).double()])
def test_counts_may_come_in_any_form(convert):
    result = recall(convert([9, 1, 0]), convert([10, 4, 0]), Groups.from_indices(head=[0], tail=[1, 2]))
    assert result.per_class[:2].tolist() == [0.9, 0.25]
    assert (result.groups, result.absent) == ({"head": 0.9, "tail": 0.25}, (2,))


def test_one_class_only():
    result = recall([3], [4], Groups(("one",), (0,)))
    assert (result.all, result.groups, result.per_class.shape) == (0.75, {"one": 0.75}, (1,))


def test_large_counts_keep_their_precision():
    result = recall([999_999_999], [1_000_000_000], Groups(("one",), (0,)))
    assert 1 - result.all == pytest.approx(1e-9, rel=1e-6)
    wanted = binomtest(999_999_999, 1_000_000_000).proportion_ci(0.95, "wilson")
    assert (result.low.item(), result.high.item()) == pytest.approx((wanted.low, wanted.high), rel=1e-12)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_properties(data):
    num_classes = data.draw(st.integers(1, 8))
    samples = data.draw(st.lists(st.integers(1, 300), min_size=num_classes, max_size=num_classes))
    correct = [data.draw(st.integers(0, n)) for n in samples]
    confidence = data.draw(st.floats(0.01, 0.999))
    groups = Groups(("a", "b"), tuple(data.draw(st.integers(0, 1)) for _ in samples))
    result = recall(correct, samples, groups, confidence=confidence)
    p, low, high = (values.numpy() for values in (result.per_class, result.low, result.high))
    assert np.all(low >= 0)
    assert np.all(high <= 1)
    assert np.all(low <= p + 1e-12)
    assert np.all(p <= high + 1e-12)
    assert p.min() - 1e-12 <= result.all <= p.max() + 1e-12
    sizes = groups.sizes
    together = math.fsum(result.groups[name] * sizes[name] for name in result.groups) / num_classes
    assert result.all == pytest.approx(together, abs=1e-12)
    # Wrong ones in place of right ones: everything is mirrored.
    mirrored = recall([n - k for k, n in zip(correct, samples, strict=True)], samples, groups, confidence=confidence)
    np.testing.assert_allclose(mirrored.low.numpy(), 1 - high, atol=1e-12)
    assert mirrored.all == pytest.approx(1 - result.all, abs=1e-12)
    # The order of classes does not matter.
    order = data.draw(st.permutations(range(num_classes)))
    shuffled = recall(
        [correct[c] for c in order],
        [samples[c] for c in order],
        Groups(("a", "b"), tuple(groups.index[c] for c in order)),
    )
    assert shuffled.groups == pytest.approx(dict(result.groups), abs=1e-12)


GOOD = {"correct": [1, 1, 1], "samples": [2, 2, 2], "groups": Groups.from_indices(head=[0], tail=[1, 2])}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"correct": [1, 3, 1]}, ValueError, "`correct`.*3 of 2 in class 1"),
        ({"correct": [1, -1, 1]}, ValueError, "`correct`.*-1"),
        ({"samples": [2, -2, 2]}, ValueError, "`samples`.*-2"),
        ({"correct": [1, 0.5, 1]}, ValueError, r"`correct`.*whole.*0\.5"),
        ({"correct": [1, 1]}, ValueError, "`correct`.*3 classes.*2"),
        ({"correct": [1, 1], "samples": [2, 2]}, ValueError, "3 classes.*2"),
        ({"absent": "drop"}, ValueError, "`absent`.*'skip', 'zero'.*'drop'"),
        ({"confidence": 1.0}, ValueError, "`confidence`.*1"),
        ({"confidence": -0.1}, ValueError, r"`confidence`.*-0\.1"),
    ],
)
def test_bad_input(change, error, message):
    with pytest.raises(error, match=message):
        recall(**{**GOOD, **change})


@pytest.mark.parametrize(("classes", "guesses"), [(range(7), range(7)), (range(5), range(6)), (range(4), range(2))])
def test_macro_f1_equals_scikit_learn(classes, guesses):
    """Also with classes that are predicted without a sample, absent, or never predicted."""
    rng = np.random.default_rng(1)
    label, predicted = rng.choice(classes, 300), rng.choice(guesses, 300)
    counts = [np.bincount(values, minlength=7) for values in (label[label == predicted], label, predicted)]
    assert macro_f1(*counts) == pytest.approx(f1_score(label, predicted, average="macro"))
