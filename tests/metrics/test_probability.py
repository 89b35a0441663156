"""Class probabilities on training data, against numpy and scipy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import linregress

from longtail import Groups, prior_shift
from longtail.metrics import class_statistics, mean_target_probability, probability_shift

# C10-LT100: 5000 * 100 ** (-c / 9), 12406 in all.
CIFAR = np.array([int(5000 * 100 ** (-c / 9)) for c in range(10)])
CIFAR_GROUPS = Groups.from_indices(head=range(3), medium=range(3, 6), tail=range(6, 10))


def power_law(counts, b):
    """Sums of p(y=c) under the paper's model, p(y=c) proportional to N_c / N * N_c^b."""
    weight = np.asarray(counts, float) ** (1 + b)
    return weight / weight.sum() * np.sum(counts)


def noisy(seed, counts=CIFAR):
    rng = np.random.default_rng(seed)
    sums = counts * np.exp(rng.normal(0, 0.5, len(counts)))
    return sums / sums.sum() * counts.sum()


@pytest.mark.parametrize("seed", range(2))
def test_the_papers_formulas(seed):
    sums = noisy(seed)
    result = probability_shift(sums, CIFAR, CIFAR_GROUPS)
    p, frequency = sums / CIFAR.sum(), CIFAR / CIFAR.sum()
    difference = (p - frequency) / frequency * 100
    np.testing.assert_allclose(result.probability.numpy(), p, rtol=1e-13)
    assert result.probability.sum().item() == pytest.approx(1)
    np.testing.assert_allclose(result.difference.numpy(), difference, rtol=1e-10, atol=1e-10)
    wanted = {"head": difference[:3].mean(), "medium": difference[3:6].mean(), "tail": difference[6:].mean()}
    assert dict(result.groups) == pytest.approx(wanted)
    assert result.left_out == ()


@pytest.mark.parametrize("seed", range(2))
def test_the_fit_is_scipys(seed):
    sums = noisy(seed)
    result = probability_shift(sums, CIFAR, CIFAR_GROUPS)
    kappa = (sums / CIFAR.sum()) / (CIFAR / CIFAR.sum())
    fit = linregress(np.log(CIFAR), np.log(kappa))
    assert result.slope == pytest.approx(fit.slope, rel=1e-9)
    assert result.r_squared == pytest.approx(fit.rvalue**2, rel=1e-9)
    assert 0 < result.r_squared < 0.99


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 10**6), min_size=2, max_size=12, unique=True),
    b=st.floats(-0.9, 0.9, allow_subnormal=False).filter(lambda b: abs(b) > 1e-3),
)
def test_a_known_power_law_is_found_again(counts, b):
    result = probability_shift(power_law(counts, b), counts, Groups(("one",), (0,) * len(counts)))
    assert result.slope == pytest.approx(b, rel=1e-5)
    assert result.r_squared == pytest.approx(1, abs=1e-6)


def test_sign_of_the_slope():
    # beta_b <= 0: a balanced model gives the tail more than its frequency; beta_ib >= 0: an imbalanced one less.
    balanced = probability_shift(power_law(CIFAR, -0.2), CIFAR, CIFAR_GROUPS)
    assert balanced.groups["head"] < 0 < balanced.groups["tail"]
    imbalanced = probability_shift(power_law(CIFAR, 0.2), CIFAR, CIFAR_GROUPS)
    assert imbalanced.groups["tail"] < 0 < imbalanced.groups["head"]


@pytest.mark.parametrize(("of_balanced", "of_imbalanced"), [(-0.3, 0.2), (0.1, 0.1)])
def test_implied_beta(of_balanced, of_imbalanced):
    balanced = probability_shift(power_law(CIFAR, of_balanced), CIFAR, CIFAR_GROUPS)
    imbalanced = probability_shift(power_law(CIFAR, of_imbalanced), CIFAR, CIFAR_GROUPS)
    beta = imbalanced.slope - balanced.slope
    assert beta == pytest.approx(of_imbalanced - of_balanced, abs=1e-10)
    # It is the beta whose shift is the two-prior one, log p_hat / p, up to a constant.
    wanted = beta * np.log(CIFAR)
    shift = prior_shift(imbalanced.probability, balanced.probability).numpy()
    np.testing.assert_allclose(shift, wanted - wanted.mean(), atol=1e-5)


def test_a_model_that_matches_class_frequency():
    rng = np.random.default_rng(0)
    for counts in (CIFAR, *rng.integers(1, 5000, (50, 10))):
        result = probability_shift(counts.astype(float), counts, CIFAR_GROUPS)
        np.testing.assert_allclose(result.difference.numpy(), 0, atol=1e-10)
        assert result.slope == pytest.approx(0, abs=1e-12)
        # log kappa does not vary, so there is nothing to explain: no R², rather than one of rounding errors.
        assert math.isnan(result.r_squared), f"counts {counts}"


@pytest.mark.parametrize("counts", [[50, 50, 50], [7]])
def test_no_slope_where_counts_do_not_vary(counts):
    sums = np.linspace(0.5, 1.5, len(counts)) * counts if len(counts) > 1 else np.array(counts, float)
    result = probability_shift(sums, counts, Groups(("one",), (0,) * len(counts)))
    assert math.isnan(result.slope)
    assert math.isnan(result.r_squared)
    np.testing.assert_allclose(result.difference.numpy(), 100 * (sums / counts - 1), atol=1e-10)


def test_a_class_without_a_sample_has_no_difference():
    counts = np.array([600, 300, 0, 100])
    sums = np.array([550.0, 300.0, 20.0, 130.0])
    result = probability_shift(sums, counts, Groups.from_indices(head=[0, 1], medium=[2], tail=[3]))
    assert result.left_out == (2,)
    assert result.probability[2].item() == pytest.approx(0.02)
    assert result.difference.isnan().tolist() == [False, False, True, False]
    assert dict(result.groups) == pytest.approx({"head": -50 / 6 / 2, "tail": 30})
    assert result.groups.skipped == ("medium",)
    kept = [0, 1, 3]
    fit = linregress(np.log(counts[kept]), np.log(sums[kept] / counts[kept]))
    assert (result.slope, result.r_squared) == pytest.approx((fit.slope, fit.rvalue**2))


def test_a_class_that_gets_no_probability_is_not_in_the_fit():
    counts, sums = np.array([600, 300, 100]), np.array([660.0, 340.0, 0.0])
    result = probability_shift(sums, counts, Groups.from_indices(head=[0], medium=[1], tail=[2]))
    assert result.left_out == (2,)
    assert result.groups["tail"] == -100.0
    fit = linregress(np.log(counts[:2]), np.log(sums[:2] / counts[:2]))
    assert result.slope == pytest.approx(fit.slope)


def test_from_the_statistics_of_a_model():
    rng = np.random.default_rng(0)
    counts = np.array([400, 80, 16])
    label = np.repeat(np.arange(3), counts)
    logits = rng.normal(0, 1, (label.size, 3)) + 2 * np.eye(3)[label]
    p = softmax(logits, axis=1)
    statistics = class_statistics(torch.tensor(logits, dtype=torch.float32), torch.tensor(label))
    groups = Groups.from_indices(head=[0], medium=[1], tail=[2])
    result = probability_shift(statistics.probability_sum, statistics.samples, groups)
    np.testing.assert_allclose(result.probability.numpy(), p.mean(0), rtol=1e-6)
    np.testing.assert_allclose(result.difference.numpy(), (p.mean(0) / (counts / counts.sum()) - 1) * 100, atol=1e-4)
    result = mean_target_probability(statistics.target_probability_sum, statistics.samples, groups)
    wanted = [p[label == c, c].mean() for c in range(3)]
    np.testing.assert_allclose(result.per_class.numpy(), wanted, rtol=1e-6)
    assert list(result.groups.values()) == pytest.approx(wanted, rel=1e-6)


def test_sums_of_float32_are_exact_enough():
    # A million samples of float32 probabilities do not add up to a million exactly.
    sums = torch.tensor(power_law(CIFAR, 0.1), dtype=torch.float32) * (1 + 1e-5)
    assert probability_shift(sums, CIFAR, CIFAR_GROUPS).slope == pytest.approx(0.1, abs=1e-5)


GOOD = {"probability_sum": [85.0, 15.0], "counts": [90, 10], "groups": Groups.from_indices(head=[0], tail=[1])}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"probability_sum": [0.85, 0.15]}, ValueError, "`probability_sum`.*100.*got 1"),  # means, not sums
        ({"probability_sum": [95.0, 15.0]}, ValueError, "`probability_sum`.*100.*110"),
        ({"probability_sum": [85.0, math.nan]}, ValueError, "`probability_sum`.*nan"),
        ({"probability_sum": [math.inf, 15.0]}, ValueError, "`probability_sum`.*inf"),
        ({"probability_sum": [85.0, 10.0, 5.0]}, ValueError, "`probability_sum`.*2 classes.*3"),
        ({"counts": [90, 5, 5]}, ValueError, "`counts`.*2 classes.*3"),
        ({"counts": [90.5, 9.5]}, ValueError, r"`counts`.*whole.*90\.5"),
        ({"counts": [110, -10]}, ValueError, "`counts`.*-10"),
        ({"counts": [0, 0], "probability_sum": [0.0, 0.0]}, ValueError, "0"),
        ({"groups": Groups(("one",), (0, 0, 0))}, ValueError, "3 classes.*2"),
        ({"probability_sum": "ab"}, (TypeError, ValueError), "`probability_sum`"),
    ],
)
def test_bad_input(change, error, message):
    with pytest.raises(error, match=message):
        probability_shift(**{**GOOD, **change})


def test_negative_sums_are_refused():
    with pytest.raises(ValueError, match=r"`probability_sum`.*-10"):
        probability_shift([110.0, -10.0], [90, 10], GOOD["groups"])


def test_mean_target_probability():
    groups = Groups.from_indices(head=[0], medium=[1, 2], tail=[3])
    result = mean_target_probability([80.0, 3.0, 0.75, 0.0], [100, 10, 1, 0], groups)
    means, by_group = result.per_class, result.groups
    assert means[:3].tolist() == pytest.approx([0.8, 0.3, 0.75])
    assert means.dtype == torch.float64
    assert math.isnan(means[3])
    assert dict(by_group) == pytest.approx({"head": 0.8, "medium": (0.3 + 0.75) / 2})
    assert by_group.skipped == ("tail",)


@pytest.mark.parametrize(
    ("sums", "samples", "message"),
    [
        ([1.0, 1.0, 1.0], [2, 2], "`target_probability_sum`.*3"),
        ([1.0, 1.0], [2, 2.5], r"`samples`.*2\.5"),
        ([1.0, 1.0], [2, -2], "`samples`.*-2"),
        ([[1.0, 1.0]], [2, 2], r"`target_probability_sum`.*\(1, 2\)"),
    ],
)
def test_mean_target_probability_of_bad_input(sums, samples, message):
    with pytest.raises(ValueError, match=message):
        mean_target_probability(sums, samples, GOOD["groups"])


@pytest.mark.parametrize("sums", [[3.0, 1.0], [-1.0, 1.0]])
def test_a_mean_that_is_no_probability_is_refused(sums):
    with pytest.raises(ValueError, match="`target_probability_sum`"):
        mean_target_probability(sums, [2, 2], GOOD["groups"])


def test_groups_of_other_classes_are_refused_by_the_arguments_own_name():
    with pytest.raises(ValueError, match=r"`(target_probability_sum|samples|groups)`.*3"):
        mean_target_probability([1.0, 1.0, 1.0], [2, 2, 2], GOOD["groups"])
