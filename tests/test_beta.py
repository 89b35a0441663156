"""fit_shift against scipy, known posteriors, and the exact relation of a linear classifier."""

import math
import time

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp

from longtail import adjust_logits
from longtail.beta import fit_shift

COUNTS = torch.tensor([500, 200, 80, 30, 10])


def _sample(rows: int, seed: int = 0, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Log posteriors of a balanced population, up to a constant per row, and labels drawn from them."""
    generator = np.random.default_rng(seed)
    log_p = 2.0 * generator.standard_normal((rows, classes))
    log_p -= logsumexp(log_p, axis=1, keepdims=True)
    labels = (log_p + generator.gumbel(size=log_p.shape)).argmax(1)
    return torch.from_numpy(log_p), torch.from_numpy(labels)


def _optimum(logits: np.ndarray, labels: np.ndarray, counts: np.ndarray, prior: np.ndarray) -> tuple[float, float]:
    """The minimum by scipy: a and b."""
    present = np.unique(labels)
    weights = prior[labels] / np.bincount(labels)[labels]
    log_counts = np.log(counts)

    def loss(theta: np.ndarray) -> float:
        u = theta[0] * logits - theta[1] * log_counts
        return float(weights @ (logsumexp(u[:, present], axis=1) - u[np.arange(len(u)), labels]) / weights.sum())

    found = minimize(loss, [0.5, 0.1], method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 4000})
    return found.x


@pytest.mark.parametrize("prior", [None, [1.0, 2.0, 3.0, 4.0, 5.0]])
def test_finds_the_minimum_that_scipy_finds(prior: list[float] | None) -> None:
    logits, labels = _sample(300)
    logits = 1.7 * logits + 0.6 * COUNTS.log()
    fit = fit_shift(logits, labels, COUNTS, target_prior=prior)
    a, b = _optimum(logits.numpy(), labels.numpy(), COUNTS.numpy(), np.ones(5) if prior is None else np.array(prior))
    assert fit.problem is None
    assert (fit.delta, fit.temperature) == (pytest.approx(b / a, abs=1e-6), pytest.approx(1 / a, abs=1e-6))


@pytest.mark.parametrize("shift", [-1.0, 0.0, 0.8, 2.5])
def test_gives_back_a_known_shift(shift: float) -> None:
    log_p, labels = _sample(40_000)
    fit = fit_shift(log_p + shift * COUNTS.log(), labels, COUNTS)
    assert abs(fit.delta - shift) < 4 * fit.std_error
    assert fit.std_error < 0.02
    # On the same samples another shift adds exactly to delta and changes nothing else.
    moved = fit_shift(log_p + (shift + 0.3) * COUNTS.log(), labels, COUNTS)
    assert moved.delta - fit.delta == pytest.approx(0.3, abs=1e-6)
    assert moved.temperature == pytest.approx(fit.temperature, rel=1e-6)


def _shrunk(delta: float, error: float) -> float:
    return delta * max(0.0, 1 - (error / delta) ** 2)


def _worth(logits: np.ndarray, labels: np.ndarray, log_posterior: np.ndarray, tau: float) -> float:
    """Expected recall over all classes plus 0.05 times expected accuracy, of predictions with tau."""
    counts = COUNTS.double().numpy()
    log_counts = np.log(counts)
    posterior = np.exp(log_posterior - logsumexp(log_posterior, axis=1, keepdims=True))
    predicted = (logits - tau * log_counts).argmax(1)
    expected = posterior[np.arange(len(labels)), predicted]
    balanced = 1 / np.bincount(labels)[labels] / len(counts)
    accuracy = balanced @ (expected * len(counts) * counts[predicted] / counts.sum())
    return float(balanced @ expected + 0.05 * accuracy)


def test_tau_is_zero_unless_delta_exceeds_its_standard_error() -> None:
    certain = []
    for seed in range(40):
        log_p, labels = _sample(250, seed)
        fit = fit_shift(log_p + 0.02 * COUNTS.log(), labels, COUNTS)
        certain.append(abs(fit.delta) > fit.std_error)
        assert 0 <= fit.tau / fit.delta <= _shrunk(1, fit.std_error / fit.delta) + 1e-12
        assert certain[-1] or fit.tau == 0
    assert 5 < sum(certain) < 35


@pytest.mark.parametrize("shift", [-0.8, 0.3, 1.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_tau_has_the_highest_expected_recall_with_a_little_accuracy(shift: float, seed: int) -> None:
    log_p, labels = _sample(600, seed)
    logits = log_p + shift * COUNTS.log()
    fit = fit_shift(logits, labels, COUNTS)
    most = _shrunk(fit.delta, fit.std_error)
    log_posterior = ((logits - most * COUNTS.log()) / fit.temperature).numpy()
    strengths = np.linspace(0, most, 33)
    worth = [_worth(logits.numpy(), labels.numpy(), log_posterior, tau) for tau in strengths]
    assert fit.tau == pytest.approx(strengths[np.argmax(worth)], abs=1e-9)
    assert max(worth) > worth[0]


def test_a_shift_that_only_lowers_accuracy_is_hardly_used() -> None:
    """Two frequent classes that are recognised and thirty rare ones that nobody can tell apart."""
    counts = torch.tensor([4000, 3000, *[10] * 30])
    generator = np.random.default_rng(0)
    labels = generator.choice(32, 4000, p=np.full(32, 1 / 32))
    frequent = labels < 2
    looks = generator.random(4000) < np.where(frequent, 0.7, 0.3)  # like a frequent class
    share = np.where(looks, 2 * 0.7 / (2 * 0.7 + 30 * 0.3), 2 * 0.3 / (2 * 0.3 + 30 * 0.7))
    which = np.where(frequent, labels, generator.integers(0, 2, 4000))
    posterior = np.repeat((1 - share[:, None]) / 30, 32, axis=1)
    posterior[:, :2] = 0.02 * share[:, None]
    posterior[np.arange(4000), which] = 0.98 * share
    logits = np.log(posterior) + np.log(counts.numpy())
    fit = fit_shift(logits, labels, counts)
    assert fit.delta == pytest.approx(1, abs=0.1)
    assert fit.tau < 0.8 * fit.delta

    def measure(tau: float) -> tuple[float, float]:
        predicted = (logits - tau * np.log(counts.numpy())).argmax(1)
        recalls = np.bincount(labels, predicted == labels) / np.bincount(labels)
        return float(recalls.mean()), float(np.average(recalls, weights=counts))

    (recall, accuracy), (most, least) = measure(fit.tau), measure(fit.delta)
    assert recall > most - 0.01
    assert accuracy > least + 0.05


def test_standard_error_is_the_spread_over_samples() -> None:
    fits = [fit_shift(*_sample(400, seed), COUNTS) for seed in range(200)]
    spread = float(np.std([fit.delta for fit in fits]))
    assert np.mean([fit.std_error for fit in fits]) == pytest.approx(spread, rel=0.2)


@pytest.mark.parametrize("factor", [1e-3, 0.5, 40.0])
def test_scaled_logits_scale_delta_and_temperature(factor: float) -> None:
    logits, labels = _sample(300)
    logits = logits + 0.5 * COUNTS.log()
    fit, scaled = fit_shift(logits, labels, COUNTS), fit_shift(factor * logits, labels, COUNTS)
    assert scaled.delta == pytest.approx(factor * fit.delta, rel=1e-6)
    assert scaled.temperature == pytest.approx(factor * fit.temperature, rel=1e-6)


def test_a_factor_on_counts_and_a_constant_per_row_change_nothing() -> None:
    logits, labels = _sample(300)
    fit = fit_shift(logits, labels, COUNTS)
    other = fit_shift(logits + torch.randn(300, 1), labels, 0.37 * COUNTS)
    assert other.delta == pytest.approx(fit.delta, abs=1e-7)


def test_absent_classes_are_left_out_of_the_softmax() -> None:
    log_p, labels = _sample(4000)
    kept = labels != 4  # the rarest class has no held-out sample
    logits = log_p[kept] + 0.8 * COUNTS.log()
    fit = fit_shift(logits, labels[kept], COUNTS)
    without = fit_shift(logits[:, :4], labels[kept], COUNTS[:4])
    assert fit.delta == pytest.approx(without.delta, abs=1e-7)
    assert abs(fit.delta - 0.8) < 4 * fit.std_error


def test_target_prior_of_the_training_data_needs_no_shift() -> None:
    log_p, labels = _sample(100_000)
    # Where classes are as frequent as in training, the posterior is proportional to N_c times the balanced one.
    fit = fit_shift(log_p + COUNTS.log(), labels, COUNTS, target_prior=COUNTS)
    assert abs(fit.delta) < 0.05


def test_linear_classifier_absorbs_the_shift_exactly() -> None:
    """With a free bias and a converged fit, delta(beta) = delta(0) - beta."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([400, 100, 25])
    means = torch.tensor([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]], dtype=torch.float64)

    def draw(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(3).repeat_interleave(numbers)
        return means[labels] + torch.randn(len(labels), 2, generator=generator, dtype=torch.float64), labels

    (x, y), (held_x, held_y) = draw(counts), draw(torch.tensor([200, 50, 12]))

    def delta(beta: float) -> float:
        head = torch.nn.Linear(2, 3).double()
        optimizer = torch.optim.LBFGS(
            head.parameters(), max_iter=100, tolerance_grad=1e-10, tolerance_change=0, line_search_fn="strong_wolfe"
        )

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(head(x) + beta * counts.log(), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        return fit_shift(head(held_x).detach(), held_y, counts).delta

    at_zero = delta(0.0)
    assert at_zero > 0.5  # plain softmax favours the frequent classes
    assert delta(1.6) == pytest.approx(at_zero - 1.6, abs=1e-5)


def test_float32_logits_and_lists_are_accepted() -> None:
    logits, labels = _sample(300)
    fit = fit_shift(logits, labels, COUNTS)
    assert fit_shift(logits.float(), labels.int(), COUNTS.tolist()).delta == pytest.approx(fit.delta, abs=1e-5)


def test_numpy_logits_are_accepted() -> None:
    logits, labels = _sample(300)
    assert fit_shift(logits.numpy(), labels.numpy(), COUNTS.numpy()) == fit_shift(logits, labels, COUNTS)


def test_one_class_with_samples_is_a_problem() -> None:
    fit = fit_shift(torch.randn(4, 5), [2, 2, 2, 2], COUNTS)
    assert fit.problem == "only one class has held-out samples"


def test_two_classes() -> None:
    log_p, labels = _sample(20_000, classes=2)
    fit = fit_shift(log_p + 1.2 * torch.tensor([90.0, 10.0]).log(), labels, [90, 10])
    assert abs(fit.delta - 1.2) < 4 * fit.std_error


def test_equal_counts_leave_delta_undetermined() -> None:
    logits, labels = _sample(300)
    fit = fit_shift(logits, labels, [7] * 5)
    assert math.isnan(fit.delta)
    assert fit.tau == 0
    assert fit.std_error == math.inf
    assert "same count" in str(fit.problem)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_are_reported(bad: float) -> None:
    logits, labels = torch.randn(200, 5), torch.arange(200) % 5
    logits[3, 2] = bad
    fit = fit_shift(logits, labels, COUNTS)
    assert "infinite or NaN" in str(fit.problem)
    assert math.isnan(fit.delta)


def test_separated_samples_are_reported() -> None:
    fit = fit_shift(5 * torch.eye(5), torch.arange(5), COUNTS)
    assert "misclassified" in str(fit.problem)


@pytest.mark.parametrize("logits", [torch.zeros(50, 5), -_sample(50)[0]], ids=["constant", "reversed"])
def test_logits_that_predict_nothing_are_reported(logits: torch.Tensor) -> None:
    labels = _sample(50)[1]
    assert fit_shift(logits, labels, COUNTS).problem is not None


def test_few_samples_have_a_large_error() -> None:
    logits, labels = _sample(40)
    fit = fit_shift(logits, labels, [105, 104, 103, 102, 101])
    assert "standard error" in str(fit.problem)


def test_rows_with_huge_logits_are_named() -> None:
    logits, labels = _sample(400)
    logits[:3] = -1e5 * torch.nn.functional.one_hot(labels[:3], 5)
    assert fit_shift(logits[3:], labels[3:], COUNTS).problem is None
    assert "3 of 400 rows" in str(fit_shift(logits, labels, COUNTS).problem)


@pytest.mark.parametrize("scale", [1, 3])
def test_probabilities_are_refused(scale: float) -> None:
    log_p, labels = _sample(50)
    with pytest.raises(ValueError, match=r"`logits`.*logarithm"):
        fit_shift((scale * log_p).softmax(1), labels, COUNTS)
    with pytest.raises(ValueError, match=r"`logits`.*logarithm"):
        adjust_logits((scale * log_p).softmax(1), COUNTS, 1.0)


def test_counts_by_class_are_put_in_order() -> None:
    log_p, labels = _sample(300)
    expected = fit_shift(log_p, labels, COUNTS)
    by_class = {4: 10, 0: 500, 3: 30, 1: 200, 2: 80}
    for counts in (by_class, pd.Series(by_class), pd.Series(np.repeat(np.arange(5), COUNTS)).value_counts()):
        assert fit_shift(log_p, labels, counts) == expected
    with pytest.raises(ValueError, match=r"`counts`.*order"):
        fit_shift(log_p, labels, {"a": 500, "b": 200, "c": 80, "d": 30, "e": 10})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"logits": torch.zeros(4, 3)}, "logits"),
        ({"logits": torch.zeros(0, 5), "labels": torch.zeros(0, dtype=torch.int64)}, "logits"),
        ({"labels": torch.tensor([0, 1, 2])}, "labels"),
        ({"labels": torch.tensor([0, 1, 2, 5])}, "labels"),
        ({"labels": torch.tensor([0.0, 1.0, 2.0, 3.0])}, "labels"),
        ({"counts": [5, 4, 0, 2, 1]}, "counts"),
        ({"target_prior": [1, 1, 1, 1]}, "target_prior"),
        ({"target_prior": [0, 0, 0, 0, 1]}, "target_prior"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], named: str) -> None:
    arguments = {"logits": torch.randn(4, 5), "labels": torch.tensor([0, 1, 2, 3]), "counts": COUNTS, **change}
    with pytest.raises(ValueError, match=f"`{named}`"):
        fit_shift(**arguments)  # type: ignore[arg-type]


def test_ten_thousand_classes_take_a_second() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10_000, (1000,), generator=generator)
    logits = 2 * torch.randn(1000, 10_000, generator=generator)
    logits[torch.arange(1000), labels] += 6
    began = time.process_time()  # of all threads
    fit = fit_shift(logits, labels, torch.arange(1, 10_001))
    assert time.process_time() - began < 2  # 0.25 s measured
    assert abs(fit.delta) < 4 * fit.std_error
