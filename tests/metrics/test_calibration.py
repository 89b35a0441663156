"""Expected calibration error against a plain loop and against torchmetrics."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from torchmetrics.functional import calibration_error

from longtail import Groups
from longtail.metrics import class_statistics, expected_calibration_error

GROUPS = Groups.from_indices(head=[0, 1], medium=[2], tail=[3, 4])


def split(seed=0, size=700, num_classes=5, scale=2.0):
    """Logits of an overconfident model on a long-tailed split."""
    rng = np.random.default_rng(seed)
    weights = 0.5 ** np.arange(num_classes)
    label = rng.choice(num_classes, size, p=weights / weights.sum())
    return scale * (rng.normal(size=(size, num_classes)) + 0.7 * np.eye(num_classes)[label]), label


def by_the_book(logits, label, bins=15):
    """The sum over bins (b / B, (b + 1) / B] of n_b / n |acc_b - conf_b|."""
    p = softmax(logits, axis=1)
    confidence, right = p.max(1), p.argmax(1) == label
    error = 0.0
    for b in range(bins):
        inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return error


def measured(logits, label, groups=GROUPS, **options):
    statistics = class_statistics(torch.as_tensor(logits), torch.as_tensor(label), **options)
    return expected_calibration_error(statistics.bin_samples, statistics.bin_correct, statistics.bin_confidence, groups)


@pytest.mark.parametrize("bins", [1, 15, 100])
@pytest.mark.parametrize("seed", range(2))
def test_against_a_plain_loop(seed, bins):
    logits, label = split(seed)
    error = measured(logits, label, bins=bins)
    assert error.all == pytest.approx(by_the_book(logits, label, bins), rel=1e-10)
    assert error.all > 0.05
    for name, value in error.groups.items():
        members = np.isin(label, GROUPS.members(name))
        assert value == pytest.approx(by_the_book(logits[members], label[members], bins), rel=1e-10)


@pytest.mark.parametrize("seed", range(2))
def test_against_torchmetrics(seed):
    logits, label = split(seed)
    p, target = torch.tensor(softmax(logits, axis=1)), torch.tensor(label)
    options = {"task": "multiclass", "num_classes": 5, "norm": "l1", "n_bins": 15}
    # The two put an edge on different sides: no confidence may lie on one.
    assert ((p.amax(1) * 15 - (p.amax(1) * 15).round()).abs() > 1e-6).all()
    error = measured(logits, label)
    assert error.all == pytest.approx(calibration_error(p, target, **options).item(), rel=1e-5)
    for name, value in error.groups.items():
        members = torch.isin(target, torch.tensor(GROUPS.members(name)))
        assert value == pytest.approx(calibration_error(p[members], target[members], **options).item(), rel=1e-5)


def test_over_and_under_confident_groups_do_not_cancel_within_a_group_but_may_over_all():
    # In one bin, 8 of 10 are confident of 0.8; the head is right always, the tail in 6 of 10.
    samples, correct = torch.tensor([[10], [10]]), torch.tensor([[10], [6]])
    confidence = torch.tensor([[8.0], [8.0]], dtype=torch.float64)
    error = expected_calibration_error(samples, correct, confidence, Groups.from_indices(head=[0], tail=[1]))
    assert dict(error.groups) == pytest.approx({"head": 0.2, "tail": 0.2})
    assert error.all == pytest.approx(0.0, abs=1e-12)


def test_classes_of_a_group_share_their_bins():
    samples, correct = torch.tensor([[10], [10]]), torch.tensor([[10], [6]])
    confidence = torch.tensor([[8.0], [8.0]], dtype=torch.float64)
    error = expected_calibration_error(samples, correct, confidence, Groups(("one",), (0, 0)))
    assert error.groups["one"] == error.all == pytest.approx(0.0, abs=1e-12)


def test_a_perfectly_calibrated_model_and_a_certain_one_that_is_wrong():
    logits = torch.zeros(4, 2)
    assert measured(logits, [0, 0, 1, 1], Groups(("one",), (0, 0))).all == 0.0  # argmax 0, right in half
    certain = torch.tensor([[200.0, 0.0]]).repeat(4, 1)
    assert measured(certain, [1, 1, 1, 1], Groups(("one",), (0, 0))).all == 1.0


@pytest.mark.parametrize(
    ("confidence", "bins", "bin_"),
    [(0.5, 2, 0), (0.5, 10, 4), (0.5, 1, 0), (0.5, 3, 1), (1.0, 15, 14), (1.0, 1, 0), (0.75, 4, 2)],
)
def test_an_edge_belongs_to_the_bin_below(confidence, bins, bin_):
    margin = 100.0 if confidence == 1 else math.log(confidence / (1 - confidence))
    logits = torch.tensor([[margin, 0.0]], dtype=torch.float64)
    assert torch.softmax(logits, 1)[0, 0].item() == confidence
    statistics = class_statistics(logits, torch.tensor([0]), bins=bins)
    assert statistics.bin_samples[0].nonzero().flatten().tolist() == [bin_]


def test_the_lowest_confidence_there_is_has_a_bin():
    # 1 / C, down to classes so many that it is in the first bin.
    statistics = class_statistics(torch.zeros(3, 1000), torch.tensor([0, 1, 2]))
    assert statistics.bin_samples[:3, 0].tolist() == [1, 1, 1]
    assert statistics.bin_samples.sum() == 3


def test_a_group_without_a_sample_is_skipped():
    logits, label = split(num_classes=3)
    logits = np.pad(logits, ((0, 0), (0, 2)), constant_values=-5.0)
    error = measured(logits, label)
    assert list(error.groups) == ["head", "medium"]
    assert error.groups.skipped == ("tail",)
    assert error.all == pytest.approx(by_the_book(logits, label))


def test_no_sample_at_all():
    error = measured(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))
    assert math.isnan(error.all)
    assert error.groups.skipped == ("head", "medium", "tail")


def test_ignored_samples_do_not_count():
    logits, label = split()
    kept = np.arange(label.size) % 3 > 0
    error = measured(logits, np.where(kept, label, -100))
    assert error.all == pytest.approx(by_the_book(logits[kept], label[kept]))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 60), bins=st.integers(1, 30), scale=st.floats(0.1, 20))
def test_properties(seed, size, bins, scale):
    logits, label = split(seed, size, scale=scale)
    error = measured(logits, label, bins=bins)
    assert error.all == pytest.approx(by_the_book(logits, label, bins), abs=1e-9)
    assert 0 <= error.all <= 1
    # By the triangle inequality the whole errs no more than its parts.
    shares = {name: np.isin(label, GROUPS.members(name)).mean() for name in error.groups}
    assert error.all <= sum(shares[name] * error.groups[name] for name in shares) + 1e-12


def test_additive_over_batches():
    logits, label = split()
    parts = [
        class_statistics(torch.tensor(logits[part]), torch.tensor(label[part]))
        for part in (slice(0, 1), slice(1, 400), slice(400, None))
    ]
    whole = parts[0] + parts[1] + parts[2]
    error = expected_calibration_error(whole.bin_samples, whole.bin_correct, whole.bin_confidence, GROUPS)
    assert error.all == pytest.approx(by_the_book(logits, label))


@pytest.mark.parametrize(
    "shapes", [((5, 3), (5, 4), (5, 3)), ((5, 3), (5, 3), (4, 3)), ((5,), (5,), (5,)), ((5, 3, 1),) * 3]
)
def test_bad_input(shapes):
    with pytest.raises(ValueError, match=r"`bin_samples`, `bin_correct` and `bin_confidence`.*\("):
        expected_calibration_error(*(torch.ones(shape) for shape in shapes), GROUPS)


def test_groups_of_other_classes():
    with pytest.raises(ValueError, match=r"`(bin_samples|groups)`.*4"):
        expected_calibration_error(torch.ones(4, 3), torch.ones(4, 3), torch.ones(4, 3), GROUPS)
