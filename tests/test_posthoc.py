"""Post-hoc corrections: logit adjustment, and tau-normalization of weights, layers and logits."""

from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from tests.losses.reference import array, property_test, refused
from torch import Tensor, nn

from longtail.posthoc import adjust_logits, tau_normalize, tau_normalize_logits

COUNTS = [900, 90, 10]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


class TestAdjustLogits:
    """`adjust_logits`: z - tau log prior + log target prior."""

    @property_test
    @given(
        counts=st.lists(st.integers(1, 10**9), min_size=1, max_size=8),
        tau=st.floats(-3, 3, allow_subnormal=False),
        samples=st.sampled_from([(), (0,), (4,), (3, 2), (2, 2, 3)]),
        dtype=st.sampled_from(DTYPES),
        known=st.booleans(),
        seed=st.integers(0, 2**32 - 1),
    )
    def test_against_numpy(  # noqa: PLR0917
        self, counts: list[int], tau: float, samples: tuple[int, ...], dtype: torch.dtype, known: bool, seed: int
    ) -> None:
        """Equal to numpy up to a constant per sample, for any shape, dtype, counts and tau."""
        rng = np.random.default_rng(seed)
        classes = len(counts)
        z = torch.tensor(3 * rng.standard_normal((*samples[:1], classes, *samples[1:]))).to(dtype)
        prior = np.array(counts) / np.sum(counts)
        target = rng.dirichlet(np.ones(classes)) + 1e-6
        before = z.clone()
        adjusted = adjust_logits(z, counts, tau, target_prior=target if known else None)
        assert torch.equal(z, before)
        assert adjusted.shape == z.shape
        assert adjusted.dtype == torch.promote_types(dtype, torch.float32)
        shift = -tau * np.log(prior) + (np.log(target / target.sum()) if known else 0.0)
        rows = np.moveaxis(array(z), len(samples[:1]), -1) + shift
        got = np.moveaxis(array(adjusted), len(samples[:1]), -1)
        assert_allclose(got - got[..., :1], rows - rows[..., :1], rtol=1e-5, atol=1e-4)

    def test_adjustment_of_the_paper(self) -> None:
        """tau = 1 predicts like z - log N, tau = 0 like z."""
        z = torch.randn(200, 3)
        expected = (array(z) - np.log(COUNTS)).argmax(1)
        assert (adjust_logits(z, COUNTS, 1).argmax(1).numpy() == expected).all()
        assert torch.equal(adjust_logits(z, COUNTS, 0), z)
        assert (expected != z.argmax(1).numpy()).any()

    def test_known_value(self) -> None:
        """The priors are 0.9, 0.09 and 0.01."""
        adjusted = adjust_logits(torch.zeros(3), COUNTS, 2.0)
        assert_allclose(adjusted, -2 * np.log([0.9, 0.09, 0.01]), rtol=1e-6)

    def test_bayes_on_a_gaussian_mixture(self) -> None:
        """The posterior under the training prior becomes the posterior under the target prior, exactly.

        And so it predicts better than the unadjusted one, on samples drawn from the target.
        """
        rng = np.random.default_rng(0)
        centres = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])
        prior, target = np.array(COUNTS) / np.sum(COUNTS), np.array([0.1, 0.2, 0.7])
        y = rng.choice(3, 5000, p=target)
        x = centres[y] + rng.standard_normal((5000, 2))
        likelihood = np.stack([scipy.stats.multivariate_normal(c).pdf(x) for c in centres], 1)

        def posterior(p: np.ndarray) -> np.ndarray:
            return likelihood * p / (likelihood * p).sum(1, keepdims=True)

        # Logits are log probabilities up to any constant a sample.
        z = torch.tensor(np.log(posterior(prior)) + rng.standard_normal((5000, 1)))
        for wanted in (target, np.full(3, 1 / 3), prior):
            adjusted = adjust_logits(z, COUNTS, 1, target_prior=wanted)
            assert_allclose(scipy.special.softmax(adjusted.numpy(), 1), posterior(wanted), atol=1e-6)
        balanced = adjust_logits(z, COUNTS, 1)
        assert_allclose(scipy.special.softmax(balanced.numpy(), 1), posterior(np.full(3, 1 / 3)), atol=1e-6)

        def accuracy(logits: Tensor) -> float:
            return float((logits.argmax(1).numpy() == y).mean())

        to_target = accuracy(adjust_logits(z, COUNTS, 1, target_prior=target))
        assert to_target > accuracy(balanced) + 0.02 > accuracy(z) + 0.2

    def test_target_prior_is_normalised(self) -> None:
        """Counts can be used as a target prior; the training prior returns the logits."""
        z = torch.randn(5, 3)
        one = adjust_logits(z, COUNTS, 1, target_prior=[0.2, 0.3, 0.5])
        torch.testing.assert_close(adjust_logits(z, COUNTS, 1, target_prior=[20, 30, 50]), one)
        back = adjust_logits(z, COUNTS, 1, target_prior=torch.tensor(COUNTS))
        torch.testing.assert_close(back, z, rtol=1e-5, atol=1e-5)

    def test_after_a_shifted_loss(self) -> None:
        """With tau = 0 only the logarithm of the target prior is added."""
        z = torch.randn(5, 3)
        adjusted = adjust_logits(z, COUNTS, 0, target_prior=[0.2, 0.3, 0.5])
        assert_allclose(adjusted, array(z) + np.log([0.2, 0.3, 0.5]), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("tau", [0.0, 1.0])
    def test_classes_without_examples(self, tau: float) -> None:
        """Zero counts are refused, masked or counted as one, without NaN."""
        z = torch.randn(20, 3)
        with refused(ValueError, "`counts`", "0 for class 1"):
            adjust_logits(z, [9, 0, 1], tau)
        for prior in (None, [0.2, 0.3, 0.5]):
            masked = adjust_logits(z, [9, 0, 1], tau, zero_counts="mask", target_prior=prior)
            assert (masked[:, 1] == -torch.inf).all()
            assert (masked.argmax(1) != 1).all()
            assert masked[:, [0, 2]].isfinite().all()
        one = adjust_logits(z, [9, 0, 1], tau, zero_counts="one")
        assert torch.equal(one, adjust_logits(z, [9, 1, 1], tau))

    def test_gradient(self) -> None:
        """The gradient is that of the logits."""
        z = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda logits: adjust_logits(logits, COUNTS, 1.0), z)

    def test_class_with_target_prior_zero_is_not_predicted(self) -> None:
        """Its probability is 0; the others are as without the class."""
        z = torch.randn(4, 3, dtype=torch.float64)
        adjusted = adjust_logits(z, COUNTS, 1, target_prior=[0.5, 0.5, 0.0]).softmax(1)
        assert (adjusted[:, 2] == 0).all()
        torch.testing.assert_close(adjusted[:, :2], adjust_logits(z[:, :2], COUNTS[:2], 1).softmax(1))

    @pytest.mark.parametrize("prior", [[0.5, 0.6, -0.1], [0.5, 0.5, float("nan")]], ids=str)
    def test_bad_target_prior(self, prior: list[float]) -> None:
        """A target prior has finite numbers >= 0."""
        with refused(ValueError, "`target_prior`", prior[2]):
            adjust_logits(torch.randn(2, 3), COUNTS, 1, target_prior=prior)

    def test_target_prior_of_another_length(self) -> None:
        """One number per class; a single number is refused, although it would broadcast."""
        for prior in ([1.0], [0.5, 0.5], [0.25] * 4):
            with refused(ValueError, "`target_prior`", 3, len(prior)):
                adjust_logits(torch.randn(2, 3), COUNTS, 1, target_prior=prior)

    @pytest.mark.parametrize("shape", [(2, 1), (2, 4), ()], ids=str)
    def test_logits_of_another_width(self, shape: tuple[int, ...]) -> None:
        """They are refused, also if they would broadcast."""
        with refused(ValueError, "`logits`", 3, shape):
            adjust_logits(torch.randn(shape), COUNTS, 1)

    def test_numpy_logits(self) -> None:
        """Arrays give what tensors give."""
        logits = torch.randn(4, 3, dtype=torch.float64)
        assert torch.equal(adjust_logits(logits.numpy(), COUNTS, 1), adjust_logits(logits, COUNTS, 1))

    @pytest.mark.parametrize("logits", [[[0.0, 0.0, 0.0]], None, torch.ones(2, 3, dtype=torch.int64)], ids=str)
    def test_logits_of_another_type(self, logits: Any) -> None:
        """Logits are a floating-point tensor."""
        with refused(TypeError, "`logits`"):
            adjust_logits(logits, COUNTS, 1)


@pytest.mark.parametrize("tau", [float("nan"), float("inf"), "1"], ids=repr)
def test_wrong_tau_is_refused(tau: Any) -> None:
    """tau is a finite number in all functions, and that of tau-normalisation is not negative."""
    with refused(ValueError, "`tau`", -1):
        tau_normalize(torch.randn(3, 4), -1)
    error = ValueError if isinstance(tau, (int, float)) and not isinstance(tau, bool) else TypeError
    with refused(error, "`tau`", tau):
        adjust_logits(torch.randn(2, 3), COUNTS, tau)
    with refused(error, "`tau`", tau):
        tau_normalize(torch.randn(3, 4), tau)
    with refused(error, "`tau`", tau):
        tau_normalize(nn.Linear(4, 3), tau)
    with refused(error, "`tau`", tau):
        tau_normalize_logits(torch.randn(2, 3), None, [1.0, 1.0, 1.0], tau)


class TestTauNormalize:
    """`tau_normalize`: w / ||w||^tau without bias, for a matrix, a layer or stored logits."""

    @pytest.mark.parametrize("tau", [0.0, 0.7, 2.0])
    def test_matrix_layer_and_stored_logits_agree(self, tau: float) -> None:
        """All three forms equal numpy."""
        layer = nn.Linear(6, 4, dtype=torch.float64)
        h = torch.randn(10, 6, dtype=torch.float64)
        w = array(layer.weight)
        norms = np.sqrt((w**2).sum(1))
        expected = array(h) @ (w / norms[:, None] ** tau).T
        matrix = tau_normalize(layer.weight, tau)
        assert_allclose(array(h) @ array(matrix).T, expected)
        assert_allclose(array(tau_normalize(layer, tau)(h)), expected)
        stored = tau_normalize_logits(layer(h).detach(), layer.bias, norms, tau)
        assert stored.dtype == torch.float64
        assert_allclose(array(stored), expected)
        without = nn.Linear(6, 4, bias=False, dtype=torch.float64)
        without.weight = layer.weight
        assert_allclose(array(tau_normalize_logits(without(h).detach(), None, norms, tau)), expected)

    def test_tau_0_and_1(self) -> None:
        """tau = 0 keeps the weights, tau = 1 gives norms of one."""
        w = torch.randn(5, 8) * torch.tensor([[0.01], [0.1], [1.0], [10.0], [1000.0]])
        torch.testing.assert_close(tau_normalize(w, 0), w, rtol=0, atol=0)
        assert_allclose(np.linalg.norm(array(tau_normalize(w, 1)), axis=1), np.ones(5), rtol=1e-6)

    @pytest.mark.parametrize("tau", [0.0, 1.0])
    def test_zero_rows(self, tau: float) -> None:
        """A zero weight stays zero in all three forms."""
        w = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
        layer = nn.Linear(2, 2)
        layer.weight.data = w.clone()
        assert_allclose(tau_normalize(w, tau), [[3 / 5**tau, 4 / 5**tau], [0, 0]], rtol=1e-6)
        assert torch.equal(tau_normalize(layer, tau).weight, tau_normalize(w, tau))
        stored = tau_normalize_logits(torch.tensor([[7.0, 2.0]]), [2.0, 2.0], [5.0, 0.0], tau)
        assert_allclose(stored, [[5 / 5**tau, 0]], rtol=1e-6)

    def test_layer_is_replaced_by_a_new_one(self) -> None:
        """The new layer has no bias and the same type; the old layer is not changed."""
        layer = nn.Linear(4, 3, dtype=torch.bfloat16).eval()
        before = {key: value.clone() for key, value in layer.state_dict().items()}
        normalized = tau_normalize(layer, 0.5)
        assert type(normalized) is nn.Linear
        assert normalized.bias is None
        assert normalized.weight.dtype == torch.bfloat16
        assert (normalized.in_features, normalized.out_features) == (4, 3)
        assert not normalized.training
        assert isinstance(normalized.weight, nn.Parameter)
        with torch.no_grad():
            normalized.weight.zero_()
        assert all(torch.equal(before[key], value) for key, value in layer.state_dict().items())

    def test_no_random_number_is_drawn(self) -> None:
        """Normalizing between two epochs does not change the second."""
        layer = nn.Linear(4, 3)
        state = torch.get_rng_state()
        tau_normalize(layer, 0.5)
        assert torch.equal(torch.get_rng_state(), state)

    def test_weight_matrix_is_not_changed(self) -> None:
        """A new matrix is returned, also for tau = 0."""
        for tau in (0, 1):
            w = torch.randn(3, 4)
            before = w.clone()
            tau_normalize(w, tau).zero_()
            assert torch.equal(w, before)

    @property_test
    @given(
        tau=st.floats(0, 2, allow_subnormal=False),
        samples=st.sampled_from([(), (0,), (4,), (3, 2), (2, 2, 3)]),
        dtype=st.sampled_from(DTYPES),
        bias=st.booleans(),
        seed=st.integers(0, 2**32 - 1),
    )
    def test_stored_logits_against_numpy(
        self, tau: float, samples: tuple[int, ...], dtype: torch.dtype, bias: bool, seed: int
    ) -> None:
        """(z - b) / ||w||^tau per class, in float32 or better, for logits of any dtype."""
        rng = np.random.default_rng(seed)
        z = torch.tensor(5 * rng.standard_normal((*samples[:1], 4, *samples[1:]))).to(dtype)
        offset, norms = rng.standard_normal(4), 10 ** rng.uniform(-3, 3, 4)
        got = tau_normalize_logits(z, offset if bias else None, norms, tau)
        assert got.dtype == torch.promote_types(dtype, torch.float32)
        rows = np.moveaxis(array(z), len(samples[:1]), -1)
        expected = (rows - (offset if bias else 0.0)) / norms**tau
        assert_allclose(np.moveaxis(array(got), len(samples[:1]), -1), expected, rtol=1e-4, atol=1e-5 * 1000**tau)

    def test_gradient(self) -> None:
        """The gradient also goes through the norm."""
        w = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda weight: tau_normalize(weight, 0.7), w)

    @pytest.mark.parametrize(
        "classifier",
        [[[1.0, 2.0]], None, torch.ones(3), torch.ones(2, 2, dtype=torch.int64), nn.Conv2d(2, 2, 1)],
        ids=lambda c: f"{type(c).__name__}{tuple(getattr(c, 'shape', ()))}",
    )
    def test_bad_classifier(self, classifier: Any) -> None:
        """Anything but a layer or a matrix is refused."""
        found = tuple(classifier.shape) if isinstance(classifier, Tensor) else type(classifier).__name__
        with refused((TypeError, ValueError), "`classifier`", found):
            tau_normalize(classifier, 1)

    def test_bad_norms_and_bias(self) -> None:
        """Norms and biases are finite, one per class; norms are >= 0."""
        z = torch.randn(2, 3)
        for bad in (-1.0, float("nan"), float("inf")):
            with refused(ValueError, "`norms`", bad):
                tau_normalize_logits(z, None, [1.0, bad, 1.0], 1)
        with refused(ValueError, "`logits`", "`norms`", (2, 3)):
            tau_normalize_logits(z, None, [1.0, 1.0], 1)
        with refused(ValueError, "`logits`", "`norms`", (2, 3)):
            tau_normalize_logits(z, None, [1.0], 1)
        for bias in ([1.0], [1.0, 2.0]):
            with refused(ValueError, "`bias`", 3, len(bias)):
                tau_normalize_logits(z, bias, [1.0, 1.0, 1.0], 1)
        with refused(ValueError, "`bias`", "()"):
            tau_normalize_logits(z, 0.5, [1.0, 1.0, 1.0], 1)
        with refused(TypeError, "`logits`"):
            tau_normalize_logits(z.long(), None, [1.0, 1.0, 1.0], 1)
