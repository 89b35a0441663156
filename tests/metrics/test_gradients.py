"""Reward and penalty against autograd, and against the paper's double sum written out in loops."""

import math

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from torch import nn

from longtail import (
    BalancedSoftmaxLoss,
    ClassBalancedSoftmaxLoss,
    Groups,
    LogitAdjustedLoss,
    PriorShiftedSoftmaxLoss,
    class_shift,
)
from longtail.metrics import class_statistics, gradient_balance

COUNTS = (500, 120, 30, 7, 2)


def long_tailed(seed=0, size=60, dimension=6, num_classes=5):
    """Features, labels and a classifier, in float64."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(size, dimension, generator=generator, dtype=torch.float64)
    label = torch.multinomial(torch.tensor(COUNTS[:num_classes]).float(), size, True, generator=generator)
    classifier = nn.Linear(dimension, num_classes).double()
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return features, label, classifier


def by_the_book(logits, label, features=None, shift=0.0):
    """The paper's reward and penalty, sample by sample and class by class."""
    p = softmax(np.asarray(logits, float) + np.asarray(shift, float), axis=1)
    h = np.ones((len(p), 1)) if features is None else np.asarray(features, float)
    reward, penalty = np.zeros((p.shape[1], h.shape[1])), np.zeros((p.shape[1], h.shape[1]))
    for n, y in enumerate(np.asarray(label)):
        for c in range(p.shape[1]):
            for i in range(h.shape[1]):
                if y == c:
                    reward[c, i] += (1 - p[n, c]) * h[n, i]
                else:
                    penalty[c, i] += p[n, c] * h[n, i]
    return (reward[:, 0], penalty[:, 0]) if features is None else (reward, penalty)


def autograd(classifier, loss, features, label):
    """The gradient of weight and bias."""
    classifier.zero_grad()
    loss(classifier(features), label).backward()
    return classifier.weight.grad.clone(), classifier.bias.grad.clone()


LOSSES = [
    pytest.param(nn.CrossEntropyLoss(reduction="sum"), id="softmax"),
    *(
        pytest.param(ClassBalancedSoftmaxLoss(COUNTS, beta=beta, reduction="sum"), id=f"CBS {beta}")
        for beta in (0.0, 0.5, 1.0, 1.8, 3.0)
    ),
    pytest.param(BalancedSoftmaxLoss(COUNTS, reduction="sum"), id="Balanced Softmax"),
    pytest.param(LogitAdjustedLoss(COUNTS, tau=1.3, reduction="sum"), id="logit adjustment"),
    pytest.param(PriorShiftedSoftmaxLoss([0.6, 0.2, 0.1, 0.07, 0.03], [0.2] * 5, reduction="sum"), id="two priors"),
]


def gradient_sums(logits, target, features=None, **options):
    found = class_statistics(logits, target, features, **options)
    if features is None:
        return found.bias_reward, found.bias_penalty
    return found.weight_reward, found.weight_penalty


@pytest.mark.parametrize("loss", LOSSES)
def test_penalty_minus_reward_is_the_gradient_of_autograd(loss):
    features, label, classifier = long_tailed()
    of_weight, of_bias = autograd(classifier, loss, features, label)
    shift = getattr(loss, "logit_shift", None)
    logits = classifier(features)
    reward, penalty = gradient_sums(logits, label, features, shift=shift)
    assert reward.shape == penalty.shape == (5, 6)
    assert reward.dtype == penalty.dtype == torch.float64
    assert not reward.requires_grad
    torch.testing.assert_close(penalty - reward, of_weight, rtol=1e-11, atol=1e-11)
    reward, penalty = gradient_sums(logits, label, shift=shift)
    assert reward.shape == penalty.shape == (5,)
    torch.testing.assert_close(penalty - reward, of_bias, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("loss", LOSSES)
def test_streamed_over_batches_of_any_size(loss):
    features, label, classifier = long_tailed(seed=1)
    of_weight, _ = autograd(classifier, loss, features, label)
    total = torch.zeros(5, 6, dtype=torch.float64)
    before = [parameter.clone() for parameter in classifier.parameters()]
    for part in torch.arange(60).split([1, 19, 0, 33, 7]):
        logits = classifier(features[part])
        reward, penalty = gradient_sums(logits, label[part], features[part], shift=getattr(loss, "logit_shift", None))
        total += penalty - reward
    torch.testing.assert_close(total, of_weight, rtol=1e-11, atol=1e-11)
    assert all(torch.equal(a, b) for a, b in zip(before, classifier.parameters(), strict=True))  # nothing is updated


@pytest.mark.parametrize("beta", [None, 0.7, 1.5])
def test_reward_and_penalty_follow_the_paper(beta):
    features, label, classifier = long_tailed(seed=2)
    shift = None if beta is None else beta * torch.tensor(COUNTS, dtype=torch.float64).log()
    logits = classifier(features).detach()
    for given_features in (features, None):
        wanted = by_the_book(logits, label, given_features, 0.0 if shift is None else shift)
        found = gradient_sums(logits, label, given_features, shift=shift)
        np.testing.assert_allclose(found[0].numpy(), wanted[0], rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(found[1].numpy(), wanted[1], rtol=1e-11, atol=1e-12)


def test_the_bias_form_is_that_of_a_single_feature_of_one():
    features, label, classifier = long_tailed()
    logits = classifier(features).detach()
    for plain, with_ones in zip(
        gradient_sums(logits, label), gradient_sums(logits, label, torch.ones(60, 1)), strict=True
    ):
        torch.testing.assert_close(plain, with_ones[:, 0], rtol=1e-12, atol=1e-12)


def test_a_constant_added_to_the_shift_changes_nothing():
    features, label, classifier = long_tailed()
    shift = torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0], dtype=torch.float64)
    for a, b in zip(
        gradient_sums(classifier(features), label, features, shift=shift),
        gradient_sums(classifier(features), label, features, shift=shift + 50),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_shift_reduces_the_heads_reward_and_the_tails_penalty():
    # The paper: it "reduces the rewards and increases the penalties for head classes", for tail classes the reverse.
    features, label, classifier = long_tailed()
    logits = classifier(features).detach()
    plain_reward, plain_penalty = gradient_sums(logits, label)
    reward, penalty = gradient_sums(logits, label, shift=class_shift(COUNTS, 1.5))
    assert reward[0] < plain_reward[0]
    assert penalty[0] > plain_penalty[0]
    assert penalty[4] < plain_penalty[4]
    assert reward[3] > plain_reward[3]


def test_a_class_masked_out_of_the_softmax():
    counts = (500, 120, 0, 7, 2)
    features, label, classifier = long_tailed()
    label[label == 2] = 0
    loss = ClassBalancedSoftmaxLoss(counts, beta=1.5, zero_counts="mask", reduction="sum")
    of_weight, of_bias = autograd(classifier, loss, features, label)
    reward, penalty = gradient_sums(classifier(features), label, features, shift=loss.logit_shift)
    torch.testing.assert_close(penalty - reward, of_weight, rtol=1e-11, atol=1e-11)
    assert reward[2].tolist() == penalty[2].tolist() == [0.0] * 6
    reward, penalty = gradient_sums(classifier(features), label, shift=loss.logit_shift)
    torch.testing.assert_close(penalty - reward, of_bias, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("margin", [20.0, 80.0])
def test_precision_near_certainty(margin):
    # At a margin of 25 the class misses 4e-11 of certainty: nothing in float32, where 1 - p is a multiple of 6e-8.
    logits = torch.tensor([[margin, 0.0, 0.0, 1.0]])
    with mpmath.workdps(60):
        other = [mpmath.e ** (z - mpmath.mpf(margin)) for z in (0, 0, 1)]
        missed = [float(z / (1 + sum(other))) for z in other]
    label, feature = torch.tensor([0]), torch.tensor([[0.5, 2.0]])
    reward, penalty = gradient_sums(logits, label)
    assert reward.tolist() == pytest.approx([sum(missed), 0, 0, 0], rel=1e-5)
    assert penalty.tolist() == pytest.approx([0, *missed], rel=1e-5)
    reward, penalty = gradient_sums(logits, label, feature)
    assert reward[0].tolist() == pytest.approx([0.5 * sum(missed), 2 * sum(missed)], rel=1e-5)
    assert penalty[3].tolist() == pytest.approx([0.5 * missed[2], 2 * missed[2]], rel=1e-5)


def test_precision_of_the_balance_of_a_model_that_fits():
    # Every sample of class 0 misses about 1e-9; still the balance is good to five digits.
    generator = torch.Generator().manual_seed(0)
    label = torch.tensor([0] * 40 + [1] * 4 + [2] * 2)
    logits = 21 * F.one_hot(label, 3) + torch.rand(46, 3, generator=generator)
    reward, penalty = by_the_book(logits.double(), label)
    groups = Groups.from_indices(head=[0], medium=[1], tail=[2])
    found = gradient_balance(*gradient_sums(logits, label), groups)
    np.testing.assert_allclose(found.per_class.numpy(), (reward - penalty) / reward * 100, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_and_features(dtype):
    features, label, classifier = long_tailed()
    logits, features = classifier(features).detach().to(dtype), features.to(dtype)
    shift = class_shift(COUNTS, 1.5)
    wanted = by_the_book(logits.double(), label, features.double(), shift)
    for found, right in zip(gradient_sums(logits, label, features, shift=shift), wanted, strict=True):
        np.testing.assert_allclose(found.numpy(), right, rtol=1e-4, atol=1e-5)


def test_under_autocast_the_sums_stay_precise():
    # Evaluation often runs under autocast, which turns matrix products into bfloat16 ones.
    features, label, classifier = long_tailed(size=200)
    logits, features = classifier(features).detach().float(), features.float()
    wanted = by_the_book(logits.double(), label, features.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradient_sums(logits, label, features)
    np.testing.assert_allclose(found[0].numpy(), wanted[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1].numpy(), wanted[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ignore_index", [-100, 2])
def test_ignored_samples(ignore_index):
    features, label, classifier = long_tailed(seed=3)
    kept = torch.arange(60) % 4 != 0
    if ignore_index == 2:
        kept &= label != 2
    logits = classifier(features).detach()
    wanted = by_the_book(logits[kept], label[kept], features[kept])
    found = gradient_sums(logits, label.where(kept, ignore_index), features, ignore_index=ignore_index)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-11, atol=1e-12)
    of_weight, _ = autograd(
        classifier, nn.CrossEntropyLoss(reduction="sum", ignore_index=ignore_index), features,
        label.where(kept, ignore_index),
    )  # fmt: skip
    torch.testing.assert_close(found[1] - found[0], of_weight, rtol=1e-11, atol=1e-11)


def test_an_ignored_sample_may_hold_anything():
    # Padding often does; F.cross_entropy never looks at it.
    features, label, classifier = long_tailed()
    logits = classifier(features).detach()
    wanted = gradient_sums(logits[1:], label[1:], features[1:])
    label[0], logits[0], features[0] = -100, math.nan, math.inf
    assert F.cross_entropy(logits, label, reduction="sum").isfinite()
    for a, b in zip(gradient_sums(logits, label, features), wanted, strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(gradient_sums(logits, label), gradient_sums(logits[1:], label[1:]), strict=True):
        torch.testing.assert_close(a, b)


def test_all_samples_ignored_and_no_sample():
    zeros = torch.zeros(3, 2, dtype=torch.float64)
    found = gradient_sums(torch.randn(4, 3), torch.full((4,), -100), torch.randn(4, 2))
    assert all(torch.equal(sums, zeros) for sums in found)
    found = gradient_sums(torch.randn(0, 3), torch.zeros(0, dtype=torch.int64), torch.randn(0, 2))
    assert all(torch.equal(sums, zeros) for sums in found)


def test_one_class_only():
    reward, penalty = gradient_sums(torch.randn(4, 1), torch.zeros(4, dtype=torch.int64), torch.randn(4, 3))
    assert reward.tolist() == penalty.tolist() == [[0.0, 0.0, 0.0]]
    result = gradient_balance(reward, penalty, Groups(("one",), (0,)))
    assert result.undefined == (0,)
    assert result.groups.skipped == ("one",)


@pytest.mark.parametrize("where", [(5,), (2, 3, 2)])
def test_dense_predictions(where):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3, 4, *where, generator=generator, dtype=torch.float64)
    label = torch.randint(0, 5, (3, *where), generator=generator)
    label.view(-1)[::7] = -100
    weight = torch.randn(5, 4, generator=generator, dtype=torch.float64).requires_grad_()
    bias = torch.randn(5, generator=generator, dtype=torch.float64).requires_grad_()
    logits = torch.einsum("cd,nd...->nc...", weight, features) + bias.view(-1, *[1] * len(where))
    loss = ClassBalancedSoftmaxLoss(COUNTS, beta=1.2, reduction="sum")
    of_weight, of_bias = torch.autograd.grad(loss(logits, label), (weight, bias))
    reward, penalty = gradient_sums(logits, label, features, shift=loss.logit_shift)
    torch.testing.assert_close(penalty - reward, of_weight, rtol=1e-11, atol=1e-11)
    reward, penalty = gradient_sums(logits, label, shift=loss.logit_shift)
    torch.testing.assert_close(penalty - reward, of_bias, rtol=1e-11, atol=1e-11)


def test_non_contiguous_tensors():
    features, label, classifier = long_tailed()
    logits = classifier(features).detach()
    wanted = by_the_book(logits, label, features)
    strided = (logits.T.contiguous().T, label.repeat_interleave(2)[::2], features.T.contiguous().T)
    assert not any(tensor.is_contiguous() for tensor in strided)
    for a, b in zip(gradient_sums(*strided), wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-11, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(0, 20),
    num_classes=st.integers(1, 6),
    dimension=st.integers(1, 4),
    scale=st.floats(0.1, 30),
    beta=st.floats(0, 3, allow_subnormal=False),
)
def test_properties(seed, size, num_classes, *, dimension, scale, beta):
    rng = np.random.default_rng(seed)
    logits = torch.tensor(scale * rng.normal(size=(size, num_classes)))
    label = torch.tensor(rng.integers(0, num_classes, size))
    features = torch.tensor(rng.normal(size=(size, dimension)))
    shift = torch.tensor(beta * np.log(rng.integers(1, 10**6, num_classes)))
    reward, penalty = gradient_sums(logits, label, features, shift=shift)
    bias_reward, bias_penalty = gradient_sums(logits, label, shift=shift)
    # What a sample's own class gains, the others lose.
    torch.testing.assert_close(reward.sum(0), penalty.sum(0), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(bias_reward.sum(), bias_penalty.sum(), rtol=1e-9, atol=1e-9)
    assert (bias_reward >= 0).all()
    assert (bias_penalty >= 0).all()
    leaf = (logits + shift).requires_grad_()
    (of_logits,) = torch.autograd.grad(F.cross_entropy(leaf, label, reduction="sum"), leaf)
    torch.testing.assert_close(penalty - reward, of_logits.T @ features, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(bias_penalty - bias_reward, of_logits.sum(0), rtol=1e-9, atol=1e-9)


# --- the balance of the two


GROUPS = Groups.from_indices(head=[0, 1], medium=[2], tail=[3])


def test_balance_by_hand():
    result = gradient_balance(torch.tensor([4.0, 2.0, 1.0, 0.5]), torch.tensor([1.0, 2.0, 3.0, 0.0]), GROUPS)
    assert result.per_class.tolist() == [75.0, 0.0, -200.0, 100.0]
    assert dict(result.groups) == {"head": 37.5, "medium": -200.0, "tail": 100.0}
    assert result.undefined == ()


def test_balance_is_the_mean_of_the_classes_ratios_not_the_ratio_of_the_groups_sums():
    result = gradient_balance(torch.tensor([10.0, 1.0, 1.0, 1.0]), torch.tensor([5.0, 3.0, 1.0, 1.0]), GROUPS)
    assert result.groups["head"] == pytest.approx((50 - 200) / 2)


def test_how_features_are_summed():
    reward = torch.tensor([[3.0, 4.0], [1.0, 1.0], [2.0, 2.0], [1.0, 0.0]])
    penalty = torch.tensor([[0.0, 2.0], [3.0, 1.0], [2.0, 2.0], [0.0, 3.0]])
    by_sum = gradient_balance(reward, penalty, GROUPS)
    assert by_sum.per_class.tolist() == pytest.approx([100 * (7 - 2) / 7, -100, 0, -200])
    assert by_sum.per_class.tolist() == gradient_balance(reward.sum(1), penalty.sum(1), GROUPS).per_class.tolist()


def test_a_class_without_reward_is_left_out_and_named():
    result = gradient_balance(torch.tensor([4.0, 0.0, 0.0, 0.5]), torch.tensor([1.0, 2.0, 3.0, 0.0]), GROUPS)
    assert result.undefined == (1, 2)
    assert result.per_class.isnan().tolist() == [False, True, True, False]
    assert dict(result.groups) == {"head": 75.0, "tail": 100.0}
    assert result.groups.skipped == ("medium",)


@pytest.mark.parametrize("beta", [None, 1.4])
def test_the_whole_way_from_logits_to_groups(beta):
    features, label, classifier = long_tailed(size=300)
    features = features.relu()
    logits = classifier(features).detach()
    shift = None if beta is None else beta * torch.tensor(COUNTS, dtype=torch.float64).log()
    groups = Groups.from_indices(head=[0], medium=[1, 2], tail=[3, 4])
    reward, penalty = (v.sum(1) for v in by_the_book(logits, label, features, 0.0 if shift is None else shift))
    wanted = (reward - penalty) / reward * 100
    statistics = class_statistics(logits[:100], label[:100], features[:100], shift=shift)
    statistics += class_statistics(logits[100:], label[100:], features[100:], shift=shift)
    result = gradient_balance(statistics.weight_reward, statistics.weight_penalty, groups)
    np.testing.assert_allclose(result.per_class.numpy(), wanted, rtol=1e-9)
    assert list(result.groups.values()) == pytest.approx([wanted[0], wanted[1:3].mean(), wanted[3:].mean()])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"penalty": torch.ones(3)}, r"`reward` and `penalty`.*\(4,\) and \(3,\)"),
        ({"penalty": torch.ones(4, 2)}, r"`reward` and `penalty`.*\(4,\) and \(4, 2\)"),
        ({"reward": torch.ones(4, 2, 1), "penalty": torch.ones(4, 2, 1)}, r"\(4, 2, 1\)"),
    ],
)
def test_bad_input_to_the_balance(change, message):
    with pytest.raises(ValueError, match=message):
        gradient_balance(**{"reward": torch.ones(4), "penalty": torch.ones(4), "groups": GROUPS, **change})


def test_groups_of_other_classes():
    with pytest.raises(ValueError, match=r"`(reward|groups)`.*3"):
        gradient_balance(torch.ones(3), torch.ones(3), GROUPS)


BATCH = {"logits": torch.zeros(4, 3), "target": torch.tensor([0, 1, 2, 1])}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"logits": torch.zeros(3)}, ValueError, r"`logits`.*\(3,\)"),
        ({"logits": torch.zeros(4, 3, dtype=torch.int64)}, TypeError, "`logits`.*int64"),
        ({"logits": [[0.0]]}, (TypeError, ValueError), "`logits`"),
        ({"target": torch.tensor([0, 1, 3, 1])}, ValueError, r"`target`.*0…2.*3"),
        ({"target": torch.tensor([0, 1, -1, 1])}, ValueError, r"`target`.*0…2.*-1"),
        ({"target": torch.tensor([0, 1])}, ValueError, r"`target`.*\(4,\).*\(2,\)"),
        ({"target": torch.zeros(4, 3)}, TypeError, "`target`.*float32"),
        ({"target": torch.zeros(4, dtype=torch.bool)}, TypeError, "`target`.*bool"),
        ({"target": [0, 1, 2, 1]}, TypeError, "`target`"),
        ({"shift": torch.zeros(4)}, ValueError, r"`shift`.*\(3,\).*\(4,\)"),
        ({"shift": torch.zeros(1)}, ValueError, r"`shift`.*\(3,\).*\(1,\)"),
        ({"features": torch.zeros(4)}, ValueError, r"`features`.*\(4,\)"),
        ({"features": torch.zeros(5, 2)}, ValueError, r"`features`.*\(5, 2\)"),
        ({"features": torch.zeros(4, 2, 1)}, ValueError, r"`features`.*\(4, 2, 1\)"),
    ],
)
def test_bad_batches(change, error, message):
    with pytest.raises(error, match=message):
        gradient_sums(**{**BATCH, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shift": [0.0, 0.0, 0.0]}, "`shift`"),
        ({"features": [[1.0]] * 4}, "`features`"),
        ({"shift": torch.zeros(3, device="meta")}, "shift.*cpu.*meta"),
        ({"features": torch.zeros(4, 2, device="meta")}, "features.*cpu.*meta"),
        ({"target": torch.zeros(4, dtype=torch.int64, device="meta")}, "target.*cpu.*meta"),
    ],
)
def test_bad_shifts_and_features(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        gradient_sums(**{**BATCH, **change})
