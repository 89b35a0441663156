"""Focal loss: cross entropy at gamma 0, Lin et al.'s formula above, finite where the softmax is saturated."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from tests.losses.reference import Problem, array, problems, property_test
from torch import nn

from longtail.losses import FocalLoss, focal_loss


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_values_of_a_known_probability(gamma: float) -> None:
    """A sample of two classes with p_y = 0.9, 0.5, 0.01 costs -(1 - p)^gamma log p."""
    p = np.array([0.9, 0.5, 0.01])
    z = torch.tensor(np.stack([np.log(p / (1 - p)), np.zeros(3)], 1))
    loss = focal_loss(z, torch.zeros(3, dtype=torch.long), gamma=gamma, reduction="none")
    assert_allclose(loss, -((1 - p) ** gamma) * np.log(p), rtol=1e-10)


@property_test
@given(problem=problems())
def test_gamma_0_is_cross_entropy(problem: Problem) -> None:
    """Under every option, for every shape and kind of target."""
    dtype = torch.promote_types(problem.logits.dtype, torch.float32)
    options = dict(problem.options)
    if "weight" in options:
        options["weight"] = options["weight"].to(dtype)
    target = problem.target.to(dtype) if problem.target.is_floating_point() else problem.target.long()
    expected = F.cross_entropy(problem.logits.to(dtype), target, **options)
    problem.check(focal_loss(problem.logits, problem.target, gamma=0, **problem.options), array(expected))
    problem.check(FocalLoss(0, **problem.options)(problem.logits, problem.target), array(expected))


@property_test
@given(problem=problems(), gamma=st.sampled_from([0.5, 1.0, 2.0, 3.7]))
def test_every_option_against_numpy(problem: Problem, gamma: float) -> None:
    """Each class's term times (1 - p_c)^gamma; reductions, weights and targets as in cross entropy."""
    expected = problem.expected(gamma=gamma)
    problem.check(focal_loss(problem.logits, problem.target, gamma=gamma, **problem.options), expected)
    problem.check(FocalLoss(gamma, **problem.options)(problem.logits, problem.target), expected)


@property_test
@given(
    problem=problems(dtypes=(torch.float64,), scale=3.0),
    low=st.floats(0, 3, allow_subnormal=False),
    more=st.floats(0.01, 3),
)
def test_decreasing_in_gamma(problem: Problem, low: float, more: float) -> None:
    """The more one looks away, the less each sample costs."""
    options = {**problem.options, "reduction": "none"}
    first = focal_loss(problem.logits, problem.target, gamma=low, **options)
    second = focal_loss(problem.logits, problem.target, gamma=low + more, **options)
    assert (second <= first + 1e-12).all()
    assert (second >= 0).all()


def test_strictly_below_cross_entropy() -> None:
    """And less than cross entropy wherever there is something to learn."""
    z, y = torch.randn(50, 4), torch.randint(4, (50,))
    assert (focal_loss(z, y, gamma=0.5, reduction="none") < F.cross_entropy(z, y, reduction="none")).all()


@pytest.mark.parametrize(("gamma", "reduction"), [(0.5, "mean"), (2.0, "sum"), (2.0, "none")])
def test_gradcheck(gamma: float, reduction: str) -> None:
    """In float64, labels and probabilities, dense, with all options."""
    z = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randint(4, (3, 2))
    y[0, 0] = -100
    weight = torch.rand(4, dtype=torch.float64) + 0.1
    loss = FocalLoss(gamma, reduction=reduction, weight=weight, label_smoothing=0.1)
    assert torch.autograd.gradcheck(lambda logits: loss(logits, y), z)
    share = torch.rand_like(z).softmax(1).detach()
    assert torch.autograd.gradcheck(lambda logits: loss(logits, share), z)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_saturated_logits(gamma: float, dtype: torch.dtype) -> None:
    """p = 1 to the last bit: (1 - p)^(gamma - 1) is infinite for gamma < 1, the gradient must not be.

    Right and sure costs nothing and teaches nothing; wrong and sure is plain cross entropy, of gradient p - 1{c = y}.
    """
    z = torch.tensor([[1000.0, 0.0, -1000.0], [0.0, 1000.0, 0.0]], dtype=dtype, requires_grad=True)
    loss = focal_loss(z, torch.tensor([0, 2]), gamma=gamma, reduction="none")
    assert_allclose(array(loss), [0.0, 1000.0], atol=1e-12)
    (grad,) = torch.autograd.grad(loss.sum(), z)
    assert_allclose(array(grad), [[0, 0, 0], [0, 1, -1]], atol=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_a_class_ruled_out_by_minus_infinity(gamma: float) -> None:
    """Logits of -inf for a class that is not the label: the value without that class, and no NaN anywhere."""
    z = torch.randn(4, 3)
    y = torch.tensor([0, 1, 1, 0])
    expected = focal_loss(z[:, :2], y, gamma=gamma)
    z[:, 2] = -torch.inf
    z.requires_grad_()
    loss = focal_loss(z, y, gamma=gamma)
    torch.testing.assert_close(loss, expected)
    (grad,) = torch.autograd.grad(loss, z)
    assert grad.isfinite().all()


def test_unsigned_labels_are_not_taken_for_the_ignored_one() -> None:
    """Label 156 as uint8 is not -100."""
    z, y = torch.randn(2, 200), torch.tensor([156, 3])
    loss = focal_loss(z, y.to(torch.uint8), gamma=0, reduction="none")
    torch.testing.assert_close(loss, F.cross_entropy(z, y, reduction="none"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.slow
def test_compiled_without_a_graph_break(soft: bool) -> None:
    """Values and gradients."""
    torch._dynamo.reset()
    z = torch.randn(8, 5, requires_grad=True)
    y = torch.rand(8, 5).softmax(1) if soft else torch.randint(5, (8,))
    loss = FocalLoss(1.5, weight=torch.rand(5), label_smoothing=0.1)
    value = torch.compile(loss, backend="aot_eager", fullgraph=True)(z, y)
    expected = loss(z, y)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, z), torch.autograd.grad(expected, z))


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_autocast(dtype: torch.dtype) -> None:
    """The loss runs in float32."""
    head, h = nn.Linear(8, 5), torch.randn(16, 8)
    y = torch.randint(5, (16,))
    with torch.autocast("cpu", dtype=dtype):
        z = head(h)
        value = FocalLoss(2.0)(z, y)
    assert z.dtype == dtype
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, focal_loss(z.float(), y, gamma=2.0))


def test_module() -> None:
    """No state but the weight, which casts leave in its precision; copies; repr; function = module."""
    z, y = torch.randn(8, 3), torch.randint(3, (8,))
    before = z.clone()
    assert not FocalLoss(2.0).state_dict()
    loss = FocalLoss(2.0, weight=torch.rand(3), reduction="sum")
    expected = focal_loss(z, y, gamma=2.0, weight=loss.weight, reduction="sum")
    for twin in (loss, copy.deepcopy(loss), pickle.loads(pickle.dumps(loss)), copy.deepcopy(loss).half()):
        assert torch.equal(twin(z, y), expected)
    other = FocalLoss(2.0, weight=torch.rand(3), reduction="sum")
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other(z, y), expected)
    assert repr(FocalLoss(2)) == "FocalLoss(gamma=2)"
    assert torch.equal(z, before)


def test_one_class_only() -> None:
    """Nothing to tell apart."""
    z = torch.randn(4, 1, requires_grad=True)
    loss = focal_loss(z, torch.zeros(4, dtype=torch.long), gamma=0.5)
    loss.backward()
    assert loss.item() == 0.0
    assert z.grad is not None
    assert z.grad.abs().max() == 0.0
