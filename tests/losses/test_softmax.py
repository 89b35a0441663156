"""Shifted cross entropies: the paper's formulas, the identities between the names, the shift inside the product."""

import copy
import io
import pickle
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from tests.losses import reference
from tests.losses.reference import Problem, array, problems, property_test
from torch import Tensor, nn

from longtail.losses import (
    BalancedSoftmaxLoss,
    ClassBalancedSoftmaxLoss,
    LogitAdjustedLoss,
    PriorShiftedSoftmaxLoss,
    class_balanced_softmax,
    class_shift,
    prior_shift,
    shifted_linear,
)

COUNTS = [5000, 700, 60, 9, 1]
P_HAT, P = [0.5, 0.2, 0.15, 0.1, 0.05], [0.1, 0.1, 0.2, 0.3, 0.3]

MODULES: dict[str, Callable[..., nn.Module]] = {  # the other losses are subclasses of CBS
    "cbs": lambda **options: ClassBalancedSoftmaxLoss(COUNTS, beta=1.5, **options),
    "prior": lambda **options: PriorShiftedSoftmaxLoss(P_HAT, P, **options),
}
SHIFTS = {  # written out, each in its paper's form
    "cbs": 1.5 * np.log(COUNTS),
    "prior": np.log(np.array(P_HAT) / np.array(P)),
}
HAS_COMPILER = shutil.which("g++") and (Path(sysconfig.get_path("include")) / "Python.h").exists()
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="needs g++ and Python's headers")
every_loss = pytest.mark.parametrize("name", MODULES)


def batch(samples: int = 16, *, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Logits and labels over the classes of COUNTS."""
    return 2 * torch.randn(samples, len(COUNTS), dtype=dtype), torch.randint(len(COUNTS), (samples,))


class TestFormulas:
    """Values, against formulas in float64 numpy."""

    def test_balanced_softmax_follows_ren_et_al(self) -> None:
        """Each sample's loss is -log of N_y e^{z_y} / sum_d N_d e^{z_d}."""
        z, y = batch()
        counts, e = np.array(COUNTS), np.exp(array(z))
        phi = counts * e / (counts * e).sum(1, keepdims=True)
        expected = -np.log(phi[np.arange(len(y)), y])
        assert_allclose(BalancedSoftmaxLoss(COUNTS, reduction="none")(z, y), expected, rtol=1e-5)
        assert_allclose(class_balanced_softmax(z, y, COUNTS, beta=1, reduction="none"), expected, rtol=1e-5)

    @pytest.mark.parametrize("beta", [0.5, 1.5])
    def test_cbs_follows_the_equation_of_the_paper(self, beta: float) -> None:
        """N_c^beta e^{z_c} / sum_d N_d^beta e^{z_d}, and the gradient phi - 1{c = y} that follows from it."""
        z, y = batch(dtype=torch.float64)
        z.requires_grad_()
        loss = class_balanced_softmax(z, y, COUNTS, beta=beta, reduction="sum")
        (grad,) = torch.autograd.grad(loss, z)
        e = np.array(COUNTS, dtype=float) ** beta * np.exp(array(z))
        phi = e / e.sum(1, keepdims=True)
        assert_allclose(loss.item(), -np.log(phi[np.arange(len(y)), y]).sum(), rtol=1e-6)
        assert_allclose(grad, phi - np.eye(len(COUNTS))[y], atol=1e-6)

    def test_a_value_worked_by_hand(self) -> None:
        """N = 4, 1 and beta 1/2 make odds of 2 to 1 of equal logits."""
        loss = class_balanced_softmax(torch.zeros(2, 2), torch.tensor([0, 1]), [4, 1], beta=0.5, reduction="none")
        assert_allclose(loss, [np.log(3 / 2), np.log(3)], rtol=1e-6)

    @pytest.mark.parametrize("name", ["cbs", "balanced", "adjusted", "prior"])
    @property_test
    @given(problem=problems(), data=st.data())
    def test_every_option_against_numpy(self, name: str, problem: Problem, data: st.DataObject) -> None:
        """Shapes, dtypes, counts, betas, targets, options: function and module give the reference's value."""
        counts, beta = problem.counts, problem.beta
        number = np.array(counts, dtype=float)
        if name == "cbs":
            shift = beta * np.log(number)
            values = [
                class_balanced_softmax(problem.logits, problem.target, counts, beta=beta, **problem.options),
                ClassBalancedSoftmaxLoss(counts, beta=beta, **problem.options)(problem.logits, problem.target),
            ]
        elif name == "balanced":
            shift = np.log(number)
            values = [BalancedSoftmaxLoss(counts, **problem.options)(problem.logits, problem.target)]
        elif name == "adjusted":
            shift = beta * np.log(number / number.sum())
            values = [LogitAdjustedLoss(counts, tau=beta, **problem.options)(problem.logits, problem.target)]
        else:
            p = np.array(data.draw(st.lists(st.floats(1e-9, 1e9), min_size=len(counts), max_size=len(counts))))
            shift = np.log(number) - np.log(p)
            values = [PriorShiftedSoftmaxLoss(counts, p, **problem.options)(problem.logits, problem.target)]
        expected = problem.expected(shift)
        for value in values:
            problem.check(value, expected, shift - shift.mean())

    @every_loss
    def test_half_logits_are_shifted_in_float32(self, name: str) -> None:
        """The loss of half-precision logits is as exact as that of the same numbers in float32."""
        z, y = batch()
        z = z.to(torch.float16)
        loss = MODULES[name]()(z, y)
        assert loss.dtype == torch.float32
        assert_allclose(loss, reference.cross_entropy(array(z), array(y), shift=SHIFTS[name]), rtol=1e-6)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_logits_with_a_billion_examples(self, dtype: torch.dtype) -> None:
        """Counts of 1 and 1e9, whose shift float16 would round by 0.03 and whose counts it cannot hold."""
        z = torch.tensor([[-3.0, 17.0], [10.0, -12.0]], dtype=dtype, requires_grad=True)
        y = torch.tensor([1, 0])
        loss = class_balanced_softmax(z, y, [10**9, 1], beta=1.5, reduction="none")
        assert_allclose(
            loss.detach(), reference.cross_entropy(array(z), array(y), shift=[1.5 * np.log(1e9), 0], reduction="none"),
            rtol=1e-5, atol=1e-6,
        )  # fmt: skip
        loss.sum().backward()
        assert z.grad is not None
        assert z.grad.dtype == dtype
        assert z.grad.isfinite().all()

    @pytest.mark.parametrize("dtype", [torch.bfloat16])
    @every_loss
    def test_autocast_keeps_the_shift(self, name: str, dtype: torch.dtype) -> None:
        """Under autocast the layer runs in half precision, the loss in float32."""
        head, h = nn.Linear(8, len(COUNTS)), torch.randn(16, 8)
        y = torch.randint(len(COUNTS), (16,))
        loss = MODULES[name]()
        with torch.autocast("cpu", dtype=dtype):
            z = head(h)
            value = loss(z, y)
        assert z.dtype == dtype
        assert value.dtype == torch.float32
        assert_allclose(value.item(), reference.cross_entropy(array(z), array(y), shift=SHIFTS[name]), rtol=1e-6)
        value.backward()
        assert head.weight.grad is not None
        assert head.weight.grad.isfinite().all()

    def test_one_class_only(self) -> None:
        """The loss and the gradient are exactly 0."""
        z = torch.randn(4, 1, requires_grad=True)
        loss = ClassBalancedSoftmaxLoss([7], beta=1.5)(z, torch.zeros(4, dtype=torch.long))
        loss.backward()
        assert loss.item() == 0.0
        assert z.grad is not None
        assert z.grad.abs().max() == 0.0


class TestIdentities:
    """What equals what, over all options."""

    @property_test
    @given(problem=problems())
    def test_beta_0_is_cross_entropy(self, problem: Problem) -> None:
        """That of ``F.cross_entropy`` in float32 (or float64), to the last bit."""
        dtype = torch.promote_types(problem.logits.dtype, torch.float32)
        options = dict(problem.options)
        if "weight" in options:
            options["weight"] = options["weight"].to(dtype)
        target = problem.target.to(dtype) if problem.target.is_floating_point() else problem.target.long()
        expected = F.cross_entropy(problem.logits.to(dtype), target, **options)
        # A weighted and smoothed mean may be summed in another order: before 2.15, torch's reads a size back for it.
        rtol = 1e-5 if {"weight", "label_smoothing"} <= options.keys() and options["reduction"] == "mean" else 0
        for value in (
            class_balanced_softmax(problem.logits, problem.target, problem.counts, beta=0, **problem.options),
            ClassBalancedSoftmaxLoss(problem.counts, beta=0, **problem.options)(problem.logits, problem.target),
            PriorShiftedSoftmaxLoss(problem.counts, problem.counts, **problem.options)(problem.logits, problem.target),
        ):
            torch.testing.assert_close(value, expected, rtol=rtol, atol=rtol, equal_nan=True)

    @property_test
    @given(problem=problems())
    def test_the_names_of_one_loss(self, problem: Problem) -> None:
        """tau = beta; Balanced Softmax = beta 1; counts times k; priors times k: all change nothing."""
        z, y, counts, beta, options = (
            problem.logits, problem.target, problem.counts, problem.beta, problem.options,
        )  # fmt: skip
        pairs = [
            (LogitAdjustedLoss(counts, tau=beta, **options), ClassBalancedSoftmaxLoss(counts, beta=beta, **options)),
            (BalancedSoftmaxLoss(counts, **options), ClassBalancedSoftmaxLoss(counts, beta=1, **options)),
            (
                ClassBalancedSoftmaxLoss([17 * n for n in counts], beta=beta, **options),
                ClassBalancedSoftmaxLoss(counts, beta=beta, **options),
            ),
            (
                PriorShiftedSoftmaxLoss([1e-6 * n for n in counts], [1e6] * len(counts), **options),
                BalancedSoftmaxLoss(counts, **options),
            ),
        ]
        for one, other in pairs:
            value, expected = one(z, y), other(z, y)
            problem.check(value, array(expected), beta * np.log(np.array(counts)) + np.log(max(counts)))

    @pytest.mark.parametrize(("beta_ib", "beta_b"), [(0.25, -0.5), (0.3, 0.1)])
    def test_the_papers_two_priors(self, beta_ib: float, beta_b: float) -> None:
        """p_hat = N^(1 + beta_ib) and p = N^(1 + beta_b) are CBS with beta = beta_ib - beta_b, gradients too."""
        z, y = batch(dtype=torch.float64)
        number = np.array(COUNTS, dtype=float)
        p_hat, p = number ** (1 + beta_ib), number ** (1 + beta_b)
        results = []
        for loss in (
            PriorShiftedSoftmaxLoss(p_hat / p_hat.sum(), p / p.sum()),
            PriorShiftedSoftmaxLoss(p_hat, p),
            ClassBalancedSoftmaxLoss(COUNTS, beta=beta_ib - beta_b),
        ):
            logits = z.clone().requires_grad_()
            value = loss(logits, y)
            results.append((value.detach(), torch.autograd.grad(value, logits)[0]))
        for value, grad in results[1:]:
            torch.testing.assert_close(value, results[0][0], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(grad, results[0][1], rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("reduction", ["mean", "none"])
    def test_function_and_module_agree(self, reduction: str) -> None:
        """Bit for bit, with all options and both kinds of target."""
        z, y = batch()
        y[0] = 2
        options: dict[str, Any] = {
            "reduction": reduction, "label_smoothing": 0.1, "weight": torch.rand(len(COUNTS)), "ignore_index": 2,
        }  # fmt: skip
        expected = class_balanced_softmax(z, y, COUNTS, beta=1.5, **options)
        assert torch.equal(MODULES["cbs"](**options)(z, y), expected)
        options["ignore_index"] = -100
        share = torch.rand(16, len(COUNTS)).softmax(1)
        expected = class_balanced_softmax(z, share, COUNTS, beta=1.5, **options)
        assert torch.equal(MODULES["cbs"](**options)(z, share), expected)

    def test_the_theorem_of_two_priors(self) -> None:
        """Trained to the end on data with prior p_hat, the plain logits are the posterior under p.

        x is one of six things with known p(x | y); a logit for each (x, y) can fit any posterior.
        """
        rng = np.random.default_rng(0)
        p_hat, p = np.array(COUNTS) / np.sum(COUNTS), np.array([0.1, 0.1, 0.2, 0.3, 0.3])
        given_class = rng.dirichlet(np.ones(6), len(COUNTS)).T  # p(x | y), shape (6, C)
        trained = given_class * p_hat / (given_class * p_hat).sum(1, keepdims=True)
        wanted = given_class * p / (given_class * p).sum(1, keepdims=True)

        z = torch.zeros(6, len(COUNTS), dtype=torch.float64, requires_grad=True)
        loss = PriorShiftedSoftmaxLoss(p_hat, p)
        optimizer = torch.optim.LBFGS(
            [z], max_iter=1000, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = loss(z, torch.tensor(trained))
            value.backward()
            return value

        optimizer.step(closure)
        assert_allclose(z.detach().softmax(1), wanted, atol=1e-5)
        assert np.abs(trained - wanted).max() > 0.1


class TestShift:
    """The shift itself."""

    @property_test
    @given(
        counts=st.lists(st.integers(1, 10**9), min_size=1, max_size=8),
        beta=st.floats(0, 5, allow_subnormal=False),
    )
    def test_class_shift_is_beta_log_n_up_to_a_constant(self, counts: list[int], beta: float) -> None:
        """float32, mean zero, differences those of beta log N."""
        shift = class_shift(counts, beta)
        expected = beta * np.log(counts)
        assert shift.dtype == torch.float32
        assert shift.shape == (len(counts),)
        assert_allclose(shift, expected - expected.mean(), rtol=1e-6, atol=1e-6)

    def test_prior_shift_is_the_log_ratio_up_to_a_constant(self) -> None:
        """float32, mean zero, differences those of log p_hat / p."""
        shift = prior_shift(P_HAT, P)
        expected = np.log(np.array(P_HAT) / np.array(P))
        assert shift.dtype == torch.float32
        assert_allclose(shift, expected - expected.mean(), rtol=1e-6)

    @pytest.mark.parametrize(
        "counts",
        [
            (5000, 700, 60, 9, 1),
            np.array(COUNTS),
            np.array(COUNTS, dtype=np.int32),
            np.array(COUNTS, dtype=np.float32),
            np.array(COUNTS, dtype=np.uint64),
            torch.tensor(COUNTS),
            torch.tensor(COUNTS, dtype=torch.int32),
            torch.tensor(COUNTS, dtype=torch.float64),
            [float(n) for n in COUNTS],
        ],
        ids=lambda counts: f"{type(counts).__name__}-{getattr(counts, 'dtype', '')}",
    )
    def test_counts_in_any_container(self, counts: Any) -> None:
        """Tuples, arrays, tensors, whole numbers as floats: the same int64 counts, the same shift."""
        loss = ClassBalancedSoftmaxLoss(counts, beta=1.5)
        assert loss.counts.dtype == torch.int64
        assert loss.counts.tolist() == COUNTS
        assert torch.equal(loss.logit_shift, class_shift(COUNTS, 1.5))


class TestGradients:
    """Derivatives, compilation."""

    @every_loss
    def test_gradcheck(self, name: str) -> None:
        """In float64, to the second derivative, labels and probabilities, dense too."""
        z = torch.randn(3, len(COUNTS), 2, dtype=torch.float64, requires_grad=True)
        y = torch.randint(len(COUNTS), (3, 2))
        y[0, 0] = -100
        weight = torch.rand(len(COUNTS), dtype=torch.float64) + 0.1
        loss = MODULES[name](reduction="none", weight=weight, label_smoothing=0.1)
        assert torch.autograd.gradcheck(lambda logits: loss(logits, y), z)
        share = torch.rand_like(z).softmax(1).detach()
        assert torch.autograd.gradcheck(lambda logits: loss(logits, share), z)
        assert torch.autograd.gradgradcheck(lambda logits: loss(logits, y), z)

    @every_loss
    def test_gradient_flows_to_soft_targets(self, name: str) -> None:
        """As in ``F.cross_entropy``: distillation may train the teacher."""
        z, _ = batch(3, dtype=torch.float64)
        share = torch.rand(3, len(COUNTS), dtype=torch.float64).softmax(1).requires_grad_()
        assert torch.autograd.gradcheck(lambda target: MODULES[name]()(z, target), share)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
    def test_compiled_without_a_graph_break(self) -> None:
        """Values and gradients, under every option, labels and probabilities."""
        torch._dynamo.reset()
        z, y = batch()
        y[3] = -100
        for target in (y, torch.rand(16, len(COUNTS)).softmax(1)):
            loss = MODULES["cbs"](weight=torch.rand(len(COUNTS)), label_smoothing=0.1)
            compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
            eager_z, compiled_z = z.clone().requires_grad_(), z.clone().requires_grad_()
            expected, value = loss(eager_z, target), compiled(compiled_z, target)
            torch.testing.assert_close(value, expected)
            torch.testing.assert_close(torch.autograd.grad(value, compiled_z), torch.autograd.grad(expected, eager_z))

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
    def test_compiled_with_classes_masked(self) -> None:
        """Leaving classes out breaks no graph either."""
        torch._dynamo.reset()
        loss = ClassBalancedSoftmaxLoss([50, 0, 5, 0, 1], beta=1.5, zero_counts="mask", label_smoothing=0.1)
        z, y = torch.randn(8, 5), torch.tensor([0, 2, 4, 0, 2, 4, 0, -100])
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(z, y), loss(z, y))

    @every_loss
    def test_logits_and_loss_are_not_changed(self, name: str) -> None:
        """The shift stays in the loss: logits, classifier and buffers are as before, in training and in evaluation."""
        head, h = nn.Linear(4, len(COUNTS)), torch.randn(16, 4)
        y = torch.randint(len(COUNTS), (16,))
        loss = MODULES[name]()
        state = copy.deepcopy(head.state_dict())
        buffers = {key: value.clone() for key, value in loss.named_buffers()}
        z = head(h)
        plain = z.detach().clone()
        value = loss(z, y)
        value.backward()
        assert torch.equal(z, plain)
        assert torch.equal(head(h), plain)
        assert all(torch.equal(state[key], now) for key, now in head.state_dict().items())
        assert all(torch.equal(buffers[key], now) for key, now in loss.named_buffers())
        assert not list(loss.parameters())
        assert torch.equal(loss.eval()(plain, y), value)


class TestZeroCounts:
    """Classes without a training example."""

    @property_test
    @given(problem=problems(zeros=True))
    def test_mask_is_the_problem_without_those_classes(self, problem: Problem) -> None:
        """Every option and shape: as if the classes, their logits, weights and probabilities had never been there."""
        present = np.flatnonzero(problem.counts)
        position = {int(c): k for k, c in enumerate(present)}
        logits, target = array(problem.logits), array(problem.target)
        dim = 1 if logits.ndim > 1 else 0
        options = problem.reference_options
        ignore = options.pop("ignore_index", -100)
        if problem.target.is_floating_point():
            target = target.take(present, dim)
        else:
            target = np.array(
                [-7 if y == ignore else position[int(y)] for y in target.reshape(-1)], dtype=np.int64
            ).reshape(target.shape)
        if "weight" in options:
            options["weight"] = options["weight"][present]
        shift = problem.beta * np.log(np.array(problem.counts)[present])
        expected = reference.cross_entropy(logits.take(present, dim), target, shift=shift, ignore_index=-7, **options)
        z = problem.logits.clone().requires_grad_()
        function = class_balanced_softmax(
            z, problem.target, problem.counts, beta=problem.beta, zero_counts="mask", **problem.options
        )
        module = ClassBalancedSoftmaxLoss(problem.counts, beta=problem.beta, zero_counts="mask", **problem.options)(
            problem.logits, problem.target
        )
        full_shift = np.zeros(len(problem.counts))
        full_shift[present] = shift - shift.mean()
        problem.check(function, expected, full_shift)
        problem.check(module, expected, full_shift)
        (grad,) = torch.autograd.grad(function.sum(), z)
        absent = np.flatnonzero(np.array(problem.counts) == 0)
        assert (array(grad).take(absent, dim) == 0).all()

    @pytest.mark.parametrize("beta", [0.0, 1.5])
    def test_mask_never_gives_a_nan(self, beta: float) -> None:
        """0 * log 0 is nowhere; wild logits of masked classes do nothing."""
        z = torch.randn(4, 4)
        z[:, 1] = torch.tensor([torch.inf, 1e38, -torch.inf, torch.nan])
        z.requires_grad_()
        y = torch.tensor([0, 2, 3, 0])
        loss = ClassBalancedSoftmaxLoss([100, 0, 10, 1], beta=beta, zero_counts="mask", label_smoothing=0.1)
        value = loss(z, y)
        value.backward()
        assert z.grad is not None
        assert value.isfinite()
        assert z.grad.isfinite().all()
        assert (z.grad[:, 1] == 0).all()
        expected = reference.cross_entropy(
            array(z)[:, [0, 2, 3]], np.array([0, 1, 2, 0]), shift=beta * np.log([100, 10, 1]), label_smoothing=0.1
        )
        assert_allclose(value.item(), expected, rtol=1e-5)

    def test_one_counts_as_one(self) -> None:
        """A class of zero examples as if it had one, in the module and in the function."""
        z, y = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
        value = class_balanced_softmax(z, y, [100, 0, 5], beta=1.5, zero_counts="one")
        assert torch.equal(value, class_balanced_softmax(z, y, [100, 1, 5], beta=1.5))
        for loss, more in (
            (ClassBalancedSoftmaxLoss, {"beta": 1.5}), (LogitAdjustedLoss, {"tau": 1.5}), (BalancedSoftmaxLoss, {}),
        ):  # fmt: skip
            assert torch.equal(loss([100, 0, 5], zero_counts="one", **more)(z, y), loss([100, 1, 5], **more)(z, y))

    def test_the_shift_of_a_masked_class_leaves_it_out_of_any_softmax(self) -> None:
        """-inf in the shift: with ``shifted_linear`` and plain cross entropy the class is masked, its row untouched."""
        shift = class_shift([100, 0, 5], 1.5, zero_counts="mask")
        assert shift[1] == -torch.inf
        head, h, y = nn.Linear(4, 3), torch.randn(6, 4), torch.tensor([0, 2, 0, 0, 2, 0])
        value = F.cross_entropy(shifted_linear(h, head.weight, head.bias, shift), y)
        value.backward()
        expected = class_balanced_softmax(head(h), y, [100, 0, 5], beta=1.5, zero_counts="mask")
        torch.testing.assert_close(value, expected)
        assert head.weight.grad is not None
        assert (head.weight.grad[1] == 0).all()
        assert head.weight.grad.isfinite().all()

    def test_soft_targets_in_half_precision_that_name_no_masked_class(self) -> None:
        """A thousand probabilities in bfloat16 do not sum to one; that alone is no reason to refuse them."""
        share = torch.cat([torch.rand(64, 1000).softmax(1), torch.zeros(64, 1)], 1)
        loss = BalancedSoftmaxLoss([5] * 1000 + [0], zero_counts="mask")
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            assert loss(torch.randn(64, 1001), share.to(dtype)).isfinite()


class TestState:
    """Buffers, copies, precision, repr."""

    def test_the_state_is_the_counts(self) -> None:
        """int64 counts alone are saved; a loss made from other counts becomes the same by loading them."""
        z, y = batch()
        others = [
            ClassBalancedSoftmaxLoss([1, 2, 3, 4, 5], beta=1.5),
            BalancedSoftmaxLoss([1, 2, 3, 4, 5]),
            LogitAdjustedLoss([1, 2, 3, 4, 5], tau=0.7),
        ]
        losses = [MODULES["cbs"](), BalancedSoftmaxLoss(COUNTS), LogitAdjustedLoss(COUNTS, tau=0.7)]
        for loss, other in zip(losses, others, strict=True):
            assert set(loss.state_dict()) == {"counts"}
            assert loss.counts.dtype == torch.int64
            file = io.BytesIO()
            torch.save(loss.state_dict(), file)
            file.seek(0)
            assert other(z, y) != loss(z, y)
            other.load_state_dict(torch.load(file, weights_only=True))
            assert torch.equal(other.logit_shift, loss.logit_shift)
            assert torch.equal(other(z, y), loss(z, y))

    def test_assigning_counts_is_not_silent(self) -> None:
        loss = BalancedSoftmaxLoss([9, 3, 1])
        for counts in (torch.tensor([1, 1, 1]), [1, 1, 1]):
            with pytest.warns(UserWarning, match="`counts`"):
                loss.counts = counts
        loss.counts = torch.tensor([9, 3, 1])  # the same: no warning
        assert loss.counts.tolist() == [9, 3, 1]

    def test_the_state_of_a_prior_shift(self) -> None:
        """The ratio of the priors; the shift is derived, so that Transformers cannot overwrite it."""
        loss = PriorShiftedSoftmaxLoss(P_HAT, P)
        assert set(loss.state_dict()) == {"counts"}
        assert torch.nn.utils.parameters_to_vector(loss.buffers()).log().diff().tolist() == pytest.approx(
            loss.logit_shift.diff().tolist(), abs=1e-6
        )
        other = PriorShiftedSoftmaxLoss(P, P_HAT)
        other.load_state_dict(loss.state_dict())
        z, y = batch()
        assert torch.equal(other(z, y), loss(z, y))

    def test_loading_counts_with_zeros(self) -> None:
        """Which classes are masked follows the counts as well."""
        masked = ClassBalancedSoftmaxLoss([9, 0, 4], beta=1.5, zero_counts="mask")
        other = ClassBalancedSoftmaxLoss([1, 2, 3], beta=1.5, zero_counts="mask")
        z, y = torch.randn(4, 3), torch.tensor([0, 2, 0, 2])
        other.load_state_dict(masked.state_dict())
        assert torch.equal(other(z, y), masked(z, y))
        back = ClassBalancedSoftmaxLoss([1, 2, 3], beta=1.5, zero_counts="mask")
        other.load_state_dict(back.state_dict())
        assert torch.equal(other(z, y), back(z, y))

    def test_loading_zeros_where_they_count_as_one(self) -> None:
        """A loss that counts zeros as one does so with loaded counts too."""
        masked = ClassBalancedSoftmaxLoss([9, 0, 4], beta=1.5, zero_counts="mask")
        loss = ClassBalancedSoftmaxLoss([1, 2, 3], beta=1.5, zero_counts="one")
        loss.load_state_dict(masked.state_dict())
        z, y = torch.randn(3, 3), torch.tensor([0, 1, 2])
        torch.testing.assert_close(loss(z, y), class_balanced_softmax(z, y, [9, 1, 4], beta=1.5))

    def test_later_changes_of_the_counts_have_no_effect(self) -> None:
        """Changing them later does not reach the loss, and loading a state does not reach them."""
        counts = torch.tensor([100, 10, 1])
        loss, twin = BalancedSoftmaxLoss(counts), BalancedSoftmaxLoss(counts)
        counts[0] = 7
        assert loss.counts.tolist() == [100, 10, 1]
        loss.load_state_dict(BalancedSoftmaxLoss([5, 5, 5]).state_dict())
        assert counts.tolist() == [7, 10, 1]
        assert twin.counts.tolist() == [100, 10, 1]

    @every_loss
    @pytest.mark.parametrize("cast", ["half", "double"])
    def test_casts_leave_the_shift_in_float32(self, name: str, cast: str) -> None:
        """``model.half()`` reaches the loss inside a model; its shift, weight and value stay."""
        weight = torch.rand(len(COUNTS))
        model = nn.ModuleDict({"head": nn.Linear(4, len(COUNTS)), "loss": MODULES[name](weight=weight)})
        z, y = batch()
        expected, shift = model["loss"](z, y), model["loss"].logit_shift.clone()
        getattr(model, cast)()
        assert model["loss"].logit_shift.dtype == torch.float32
        assert torch.equal(model["loss"].logit_shift, shift)
        assert torch.equal(model["loss"].weight, weight)
        assert torch.equal(model["loss"](z, y), expected)
        if name != "prior":
            assert model["loss"].counts.dtype == torch.int64

    @every_loss
    @pytest.mark.parametrize(
        "again", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))], ids=["deepcopy", "pickle"]
    )
    def test_copies(self, name: str, again: Callable[[nn.Module], nn.Module]) -> None:
        """A copy gives the same, and follows its own state, not the first one's."""
        loss = MODULES[name](reduction="sum", label_smoothing=0.1)
        z, y = batch()
        expected = loss(z, y)
        twin = again(loss)
        assert torch.equal(twin(z, y), expected)
        assert repr(twin) == repr(loss)
        if name != "prior":
            twin.load_state_dict({"counts": torch.ones(len(COUNTS), dtype=torch.int64)})
            assert_allclose(twin.logit_shift, 0.0, atol=1e-7)
            assert torch.equal(loss(z, y), expected)

    def test_repr(self) -> None:
        """Classes, knob, and options that were given."""
        assert repr(ClassBalancedSoftmaxLoss(COUNTS, beta=1.5)) == "ClassBalancedSoftmaxLoss(5 classes, beta=1.5)"
        assert repr(LogitAdjustedLoss(COUNTS, tau=1)) == "LogitAdjustedLoss(5 classes, tau=1)"
        assert repr(BalancedSoftmaxLoss(COUNTS)) == "BalancedSoftmaxLoss(5 classes)"
        loss = BalancedSoftmaxLoss(COUNTS, reduction="sum", weight=torch.ones(5))
        assert repr(loss).startswith("BalancedSoftmaxLoss(5 classes, reduction=")
        assert "weight" in repr(loss)

    def test_the_weight_can_change_between_epochs(self) -> None:
        """Deferred re-weighting sets ``weight`` on a loss that was made without."""
        loss = BalancedSoftmaxLoss(COUNTS)
        z, y = batch()
        weight = torch.rand(len(COUNTS))
        loss.weight = weight
        assert torch.equal(loss(z, y), BalancedSoftmaxLoss(COUNTS, weight=weight)(z, y))


class TestShiftedLinear:
    """The shift inside the product."""

    @pytest.mark.parametrize("bias", [True, False])
    @every_loss
    def test_with_cross_entropy_it_is_the_shifted_loss(self, name: str, bias: bool) -> None:
        """Value, and gradients of features, weight and bias."""
        head = nn.Linear(6, len(COUNTS), bias=bias, dtype=torch.float64)
        h, y = torch.randn(16, 6, dtype=torch.float64, requires_grad=True), torch.randint(len(COUNTS), (16,))
        loss = MODULES[name](label_smoothing=0.1)
        inputs = [h, *head.parameters()]
        expected = loss(head(h), y)
        value = F.cross_entropy(shifted_linear(h, head.weight, head.bias, loss.logit_shift), y, label_smoothing=0.1)
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(
            torch.autograd.grad(value, inputs), torch.autograd.grad(expected, inputs), rtol=1e-9, atol=1e-10
        )

    @pytest.mark.parametrize("shape", [(6,), (2, 3, 6)])
    def test_logits_against_numpy(self, shape: tuple[int, ...]) -> None:
        """W h + b + a, for features with any leading dimensions."""
        h, weight, bias = torch.randn(shape), torch.randn(5, 6), torch.randn(5)
        logits = shifted_linear(h, weight, bias, class_shift(COUNTS, 1.5))
        expected = array(h) @ array(weight).T + array(bias) + (1.5 * np.log(COUNTS) - 1.5 * np.log(COUNTS).mean())
        assert logits.shape == (*shape[:-1], 5)
        assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("bias", [True, False])
    def test_bfloat16_features_and_weights(self, bias: bool) -> None:
        """bfloat16 in, bfloat16 out, off by bfloat16's rounding of the sum and of the shift, and no more."""
        h, weight = torch.randn(8, 16, dtype=torch.bfloat16), torch.randn(5, 16, dtype=torch.bfloat16)
        b = torch.randn(5, dtype=torch.bfloat16) if bias else None
        shift = class_shift(COUNTS, 1.5)
        logits = shifted_linear(h, weight, b, shift)
        expected = array(h) @ array(weight).T + (array(b) if bias else 0.0) + array(shift)
        assert logits.dtype == torch.bfloat16
        assert_allclose(array(logits), expected, rtol=2**-7, atol=2**-8 * np.abs(array(shift)).max() + 0.02)

    def test_200_steps_of_sgd_end_where_the_shifted_loss_does(self) -> None:
        """Momentum and decay: the parameters end equal, because decay never sees the shift.

        Beside it, a shift that is put into the bias, as one might: decay pulls at it, and it ends elsewhere.
        """
        counts = [400, 40, 4]
        loss = ClassBalancedSoftmaxLoss(counts, beta=1.5)
        y = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
        x = torch.randn(len(y), 4, dtype=torch.float64) + 1.5 * torch.eye(3, 4, dtype=torch.float64)[y]
        start = nn.Linear(4, 3, dtype=torch.float64)

        def train(step: Callable[[nn.Linear, Tensor, Tensor], Tensor], head: nn.Linear) -> nn.Linear:
            optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-3)
            generator = torch.Generator().manual_seed(1)
            for _ in range(200):
                rows = torch.randint(len(y), (32,), generator=generator)
                optimizer.zero_grad()
                step(head, x[rows], y[rows]).backward()
                optimizer.step()
            return head

        outside = train(lambda head, h, t: loss(head(h), t), copy.deepcopy(start))
        inside = train(
            lambda head, h, t: F.cross_entropy(shifted_linear(h, head.weight, head.bias, loss.logit_shift), t),
            copy.deepcopy(start),
        )
        for one, other in zip(inside.parameters(), outside.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
        moved = max((a - b).abs().max().item() for a, b in zip(outside.parameters(), start.parameters(), strict=True))
        assert moved > 0.5

        naive = copy.deepcopy(start)
        naive.bias.data += loss.logit_shift
        train(lambda head, h, t: F.cross_entropy(head(h), t), naive)
        assert (naive.bias.data - loss.logit_shift - outside.bias).abs().max() > 0.1

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
    @pytest.mark.parametrize(
        "backend", ["aot_eager", pytest.param("inductor", marks=[needs_compiler, pytest.mark.slow])]
    )
    def test_compiled(self, backend: str) -> None:
        """Loss and product in one graph, values and gradients."""
        torch._dynamo.reset()
        head, h, y = nn.Linear(8, 5), torch.randn(16, 8), torch.randint(5, (16,))
        loss = ClassBalancedSoftmaxLoss(COUNTS, beta=1.5)

        def step(features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            logits = shifted_linear(features, head.weight, head.bias, loss.logit_shift)
            return F.cross_entropy(logits, target), loss(head(features), target)

        inside, outside = torch.compile(step, backend=backend, fullgraph=True)(h, y)
        expected = loss(head(h), y)
        torch.testing.assert_close(inside, expected)
        torch.testing.assert_close(outside, expected)
        parameters = list(head.parameters())
        wanted = torch.autograd.grad(expected, parameters)
        torch.testing.assert_close(torch.autograd.grad(inside + outside, parameters), tuple(2 * g for g in wanted))
