"""The paper's statements on simulated data, in the exact forms: never from the closed formula alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal

from longtail import Groups
from longtail.metrics import class_statistics, probability_shift
from reproduction.theory import balanced_model_shift, imbalanced_model_shift, initial_gradient, two_prior_softmax

# C10-LT100 (12406 images), a step profile, and small odd ones.
COUNTS = [
    [int(5000 * 100 ** (-c / 9)) for c in range(10)],
    [500] * 5 + [5] * 5,
    [90, 10],
    [7, 5, 3, 1],
    [4, 4, 4],
]

count_lists = st.lists(st.integers(1, 400), min_size=2, max_size=8)


# --- theorem 1: the first gradient


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("counts", COUNTS)
def test_initial_gradient_is_that_of_an_untrained_classifier(counts, beta):
    label = np.repeat(np.arange(len(counts)), counts)
    shifted = np.tile(beta * np.log(counts), (label.size, 1))  # logits of zero, shifted
    p = softmax(shifted, axis=1)
    simulated = np.array(
        [np.sum(1 - p[label == c, c]) - np.sum(p[label != c, c]) for c in range(len(counts))]
    )  # features are 1
    found = initial_gradient(counts, beta)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), simulated, rtol=1e-9, atol=1e-8)
    shift = torch.tensor(beta * np.log(counts))
    found = class_statistics(torch.zeros(label.size, len(counts)), torch.tensor(label), shift=shift)
    reward, penalty = found.bias_reward, found.bias_penalty
    np.testing.assert_allclose((reward - penalty).numpy(), simulated, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("counts", COUNTS)
def test_without_a_shift_it_is_proportional_to_the_papers_c_n_c_less_n(counts):
    number = np.array(counts, float)
    paper = len(counts) * number - number.sum()
    np.testing.assert_allclose(initial_gradient(counts).numpy() * len(counts), paper, rtol=1e-12, atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(counts=count_lists, beta=st.floats(0, 4, allow_subnormal=False))
def test_signs_of_the_initial_gradient(counts, beta):
    gradient = initial_gradient(counts, beta).numpy()
    assert gradient.sum() == pytest.approx(0, abs=1e-8)
    np.testing.assert_allclose(initial_gradient(counts, 1.0).numpy(), 0, atol=1e-9)
    largest, smallest = int(np.argmax(counts)), int(np.argmin(counts))
    assume(counts[largest] > counts[smallest])
    if beta < 0.99:
        assert gradient[largest] > 0 > gradient[smallest]  # in the head's favour
    if beta > 1.01:
        assert gradient[largest] < 0 < gradient[smallest]  # in the tail's


def test_counts_in_the_millions_and_a_large_beta_do_not_overflow():
    found = initial_gradient([10**9, 10**6, 1], beta=60.0)
    assert found.isfinite().all()
    # All of the softmax is the first class's.
    assert found.tolist() == pytest.approx([10**9 - (10**9 + 10**6 + 1), 10**6, 1])


# --- theorem 3 and appendix D: p(y=c) of a model that errs


def simulate(counts, epsilon):
    """p(y=c) - N_c / N of a model that gives a sample's own class 1 - epsilon, sample by sample."""
    num_classes, total = len(counts), sum(counts)
    p = np.zeros(num_classes)
    for c, (number, error) in enumerate(zip(counts, epsilon, strict=True)):
        for _ in range(number):
            sample = np.full(num_classes, error / (num_classes - 1))
            sample[c] = 1 - error
            p += sample / total
    return p - np.array(counts) / total


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("counts", COUNTS[1:])
def test_a_balanced_model(counts, epsilon):
    simulated = simulate(counts, [epsilon] * len(counts))
    found = balanced_model_shift(counts, epsilon)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), simulated, rtol=1e-9, atol=1e-11)
    number, total = np.array(counts, float), sum(counts)
    exact = epsilon * (total - len(counts) * number) / (total * (len(counts) - 1))
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-9, atol=1e-15)


@settings(deadline=None, max_examples=60)
@given(counts=count_lists, epsilon=st.floats(0.001, 1.0))
def test_theorem_3(counts, epsilon):
    found = balanced_model_shift(counts, epsilon).numpy()
    above = len(counts) * np.array(counts) > sum(counts)
    equal = len(counts) * np.array(counts) == sum(counts)
    assert np.all(found[above] < 0)
    assert np.all(found[~above & ~equal] > 0)
    np.testing.assert_allclose(found[equal], 0, atol=1e-12)
    assert found.sum() == pytest.approx(0, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(data=st.data(), counts=st.lists(st.integers(1, 40), min_size=2, max_size=6))
def test_an_imbalanced_model(data, counts):
    epsilon = [data.draw(st.floats(0, 1, allow_subnormal=False)) for _ in counts]
    np.testing.assert_allclose(imbalanced_model_shift(counts, epsilon).numpy(), simulate(counts, epsilon), atol=1e-11)


@settings(deadline=None, max_examples=80)
@given(data=st.data(), counts=count_lists)
def test_the_sign_condition_of_appendix_d(data, counts):
    epsilon = [data.draw(st.floats(0, 1, allow_subnormal=False)) for _ in counts]
    found = imbalanced_model_shift(counts, epsilon).numpy()
    missed = np.array(counts) * np.array(epsilon)
    for c, value in enumerate(found):
        mean_of_others = np.mean(np.delete(missed, c))
        if abs(missed[c] - mean_of_others) > 1e-9 * sum(counts):
            assert (value > 0) == (missed[c] < mean_of_others)


def test_a_smaller_error_does_not_suffice_for_the_head():
    # The paper's appendix D says that it does; with errors of 5 and 10 per cent the head still loses.
    found = imbalanced_model_shift([90, 10], [0.05, 0.1])
    assert found[0] < 0 < found[1]
    np.testing.assert_allclose(found.numpy(), simulate([90, 10], [0.05, 0.1]), atol=1e-12)


def test_equal_errors_are_the_balanced_model():
    counts = COUNTS[0]
    torch.testing.assert_close(imbalanced_model_shift(counts, [0.07] * 10), balanced_model_shift(counts, 0.07))


def test_the_measure_finds_what_the_theory_says():
    counts, epsilon = np.array([300, 60, 12]), np.array([0.02, 0.1, 0.4])
    label = np.repeat(np.arange(3), counts)
    p = np.where(np.eye(3)[label] > 0, 1 - epsilon[label, None], epsilon[label, None] / 2)
    statistics = class_statistics(torch.tensor(np.log(p)), torch.tensor(label))
    groups = Groups.from_indices(head=[0], medium=[1], tail=[2])
    measured = probability_shift(statistics.probability_sum, statistics.samples, groups)
    wanted = imbalanced_model_shift(counts, epsilon).numpy()
    np.testing.assert_allclose(measured.probability.numpy() - counts / counts.sum(), wanted, atol=1e-12)
    np.testing.assert_allclose(measured.difference.numpy(), 100 * wanted / (counts / counts.sum()), atol=1e-9)


# --- theorem 2: two priors


def mixture(seed=0, size=400, num_classes=4, dimension=2):
    """Points of a Gaussian mixture and their log densities under each class."""
    rng = np.random.default_rng(seed)
    classes = [
        multivariate_normal(rng.normal(0, 2, dimension), np.diag(rng.uniform(0.5, 2, dimension)))
        for _ in range(num_classes)
    ]
    return classes, rng


def posterior(classes, prior, x):
    joint = np.stack([c.logpdf(x) for c in classes], 1) + np.log(prior)
    return np.exp(joint - logsumexp(joint, axis=1, keepdims=True))


@pytest.mark.parametrize("seed", range(3))
def test_the_posterior_under_one_prior_gives_that_under_another(seed):
    classes, rng = mixture(seed)
    x = rng.normal(0, 3, (400, 2))
    p, p_hat = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4))
    z = torch.tensor(np.log(posterior(classes, p, x)) + rng.normal(size=(400, 1)))  # up to a constant a sample
    found = two_prior_softmax(z, p_hat, p).numpy()
    np.testing.assert_allclose(found, posterior(classes, p_hat, x), atol=2e-7)
    assert np.abs(found - posterior(classes, p, x)).max() > 0.1  # the prior does matter here


def test_decisions_under_the_other_prior_are_bayes_optimal_there():
    classes, rng = mixture(seed=4)
    p, p_hat = np.full(4, 0.25), np.array([0.85, 0.1, 0.04, 0.01])
    label = rng.choice(4, 20_000, p=p_hat)
    x = np.stack([classes[c].rvs(20_000, random_state=rng) for c in range(4)], 1)[np.arange(20_000), label]
    z = torch.tensor(np.log(posterior(classes, p, x)))
    shifted = two_prior_softmax(z, p_hat, p).numpy()
    assert np.mean(shifted.argmax(1) == label) > np.mean(z.numpy().argmax(1) == label) + 0.01
    np.testing.assert_array_equal(shifted.argmax(1), (z.numpy() + np.log(p_hat / p)).argmax(1))
    # Averaged over samples drawn under p_hat, its posterior is p_hat (five standard errors).
    error = 5 * shifted.std(0) / math.sqrt(20_000)
    assert np.all(np.abs(shifted.mean(0) - p_hat) < error)


def test_the_same_prior_twice_is_plain_softmax():
    z = torch.randn(5, 3)
    torch.testing.assert_close(two_prior_softmax(z, [5, 3, 2], [0.5, 0.3, 0.2]), z.softmax(1))


@pytest.mark.parametrize("shape", [(3,), (4, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_shapes_and_constant_factors(shape):
    z = torch.randn(shape, dtype=torch.float64)
    axis = 0 if len(shape) == 1 else 1
    p_hat, p = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.3, 0.5])
    ratio = (p_hat / p).reshape([3 if a == axis else 1 for a in range(len(shape))])
    wanted = ratio * np.exp(z.numpy())
    wanted /= wanted.sum(axis, keepdims=True)
    found = two_prior_softmax(z, 10 * p_hat, 0.1 * p)
    assert found.shape == shape
    np.testing.assert_allclose(found.numpy(), wanted, atol=2e-7)


def test_priors_far_apart_do_not_overflow():
    found = two_prior_softmax(torch.tensor([[300.0, 0.0]]), p_hat=[1e-300, 1.0], p=[1.0, 1e-300])
    assert found.tolist() == [[0.0, 1.0]]


def test_power_laws_give_class_balanced_softmax():
    # The step from the two-prior form to CBS is exact: the sums over classes cancel.
    counts, beta_ib, beta_b = np.array([500.0, 50, 5]), 0.3, -0.8
    p_hat, p = counts ** (1 + beta_ib), counts ** (1 + beta_b)
    z = torch.randn(6, 3, dtype=torch.float64)
    wanted = softmax(z.numpy() + (beta_ib - beta_b) * np.log(counts), axis=1)
    np.testing.assert_allclose(two_prior_softmax(z, p_hat / p_hat.sum(), p / p.sum()).numpy(), wanted, atol=5e-7)


# --- bad input


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: initial_gradient([3, 0]), ValueError, "`counts`.*0 for class 1"),
        (lambda: initial_gradient([3, -1]), ValueError, "`counts`.*-1"),
        (lambda: initial_gradient([]), ValueError, "`counts`"),
        (lambda: initial_gradient([3, 1], -0.5), ValueError, r"`beta`.*-0\.5"),
        (lambda: initial_gradient([3, 1], math.nan), ValueError, "`beta`.*nan"),
        (lambda: initial_gradient([3, 1], math.inf), ValueError, "`beta`.*inf"),
        (lambda: initial_gradient([3, 1], "1"), TypeError, "`beta`.*'1'"),
        (lambda: balanced_model_shift([3, 1], 1.2), ValueError, r"`epsilon`.*1\.2"),
        (lambda: balanced_model_shift([3, 1], -0.1), ValueError, r"`epsilon`.*-0\.1"),
        (lambda: balanced_model_shift([3, 1], math.nan), ValueError, "`epsilon`.*nan"),
        (lambda: balanced_model_shift([3], 0.1), ValueError, "`counts`.*two classes.*1"),
        (lambda: balanced_model_shift([3, 0], 0.1), ValueError, "`counts`.*0 for class 1"),
        (lambda: imbalanced_model_shift([3, 1], [0.1, 1.1]), ValueError, r"`epsilon`.*1\.1"),
        (lambda: imbalanced_model_shift([3, 1], [0.1, math.nan]), ValueError, "`epsilon`.*nan"),
        (lambda: imbalanced_model_shift([3, 1], [0.1]), ValueError, "`epsilon`.*2.*1"),
        (lambda: imbalanced_model_shift([3, 1], 0.1), ValueError, "`epsilon`"),
        (lambda: imbalanced_model_shift([3], [0.1]), ValueError, "`counts`.*two classes.*1"),
        (lambda: two_prior_softmax(torch.zeros(2, 2), [0.5, 0.5], [1.0, 0.0]), ValueError, r"`p`.*0\.0"),
        (lambda: two_prior_softmax(torch.zeros(2, 2), [0.5, -0.5], [0.5, 0.5]), ValueError, r"`p_hat`.*-0\.5"),
        (lambda: two_prior_softmax(torch.zeros(2, 2), [0.5, math.nan], [0.5, 0.5]), ValueError, "`p_hat`.*nan"),
        (lambda: two_prior_softmax(torch.zeros(2, 2), [0.5, 0.3, 0.2], [0.5, 0.5]), ValueError, "`p_hat`.*3.*2"),
        (lambda: two_prior_softmax(torch.zeros(2, 3), [0.5, 0.5], [0.5, 0.5]), ValueError, r"`logits`.*\(2, 3\)"),
        (lambda: two_prior_softmax(torch.zeros(2, 2, dtype=torch.int64), [1, 1], [1, 1]), TypeError, "`logits`"),
        (lambda: two_prior_softmax([[0.0, 0.0]], [1, 1], [1, 1]), TypeError, "`logits`"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("epsilon", ["0.1", [0.1, 0.2], None])
def test_the_error_of_a_balanced_model_is_one_number(epsilon):
    with pytest.raises((TypeError, ValueError), match="`epsilon`"):
        balanced_model_shift([3, 1], epsilon)


@pytest.mark.parametrize(
    "call", [lambda: initial_gradient([3, 0]), lambda: balanced_model_shift([3, 0], 0.1)], ids=["gradient", "shift"]
)
def test_no_message_offers_an_option_that_the_function_has_not(call):
    with pytest.raises(ValueError, match="`counts`") as caught:
        call()
    assert "zero_counts" not in str(caught.value)
