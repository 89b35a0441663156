"""LDAM: margins by formula, the loss against numpy, index targets only."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from tests.losses import reference
from tests.losses.reference import Problem, array, problems, property_test, refused

from longtail.losses import LDAMLoss, effective_number_weights, ldam_loss, ldam_margins

COUNTS = [5000, 700, 60, 9, 1]


def margins_of(counts: list[int], max_margin: float) -> np.ndarray:
    """N^(-1/4), scaled so that the largest is ``max_margin``."""
    margins = np.array(counts, dtype=float) ** -0.25
    return margins * (max_margin / margins.max())


def less_margin(logits: np.ndarray, target: np.ndarray, margins: np.ndarray) -> np.ndarray:
    """``logits`` with each sample's margin taken off its true class; classes in dimension 1 (0 if unbatched)."""
    logits = logits.copy()
    dim = 1 if logits.ndim > 1 else 0
    rows = np.moveaxis(logits, dim, -1)
    for index in np.ndindex(target.shape):
        if 0 <= target[index] < len(margins):
            rows[(*index, target[index])] -= margins[target[index]]
    return logits


@property_test
@given(
    counts=st.lists(st.integers(1, 10**9), min_size=1, max_size=8),
    max_margin=st.floats(0, 2, allow_subnormal=False),
)
def test_margins(counts: list[int], max_margin: float) -> None:
    """float32, the formula's, the rarest class's the largest."""
    margins = ldam_margins(counts, max_margin)
    assert margins.dtype == torch.float32
    assert_allclose(margins, margins_of(counts, max_margin), rtol=1e-6, atol=1e-30)


def test_defaults() -> None:
    """A largest margin of 0.5 and a scale of 30."""
    assert_allclose(ldam_margins(COUNTS), margins_of(COUNTS, 0.5), rtol=1e-6)
    assert_allclose(LDAMLoss(COUNTS).margins, margins_of(COUNTS, 0.5), rtol=1e-6)
    z, y = torch.rand(8, 5) * 2 - 1, torch.randint(5, (8,))
    expected = reference.cross_entropy(30 * less_margin(array(z), array(y), margins_of(COUNTS, 0.5)), array(y))
    assert_allclose(LDAMLoss(COUNTS)(z, y), expected, rtol=1e-5)
    assert_allclose(ldam_loss(z, y, COUNTS), expected, rtol=1e-5)


def test_a_value_worked_by_hand() -> None:
    """Counts 16 and 1 have margins 1/4 and 1/2; at cosines of 0 a sample pays log(1 + e^(s m))."""
    loss = ldam_loss(torch.zeros(2, 2), torch.tensor([0, 1]), [16, 1], scale=4.0, reduction="none")
    assert_allclose(loss, np.log1p(np.exp([1.0, 2.0])), rtol=1e-6)


@property_test
@given(
    problem=problems(probabilities=False, scale=0.5),
    max_margin=st.sampled_from([0.0, 0.3, 0.5]),
    scale=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_every_option_against_numpy(problem: Problem, max_margin: float, scale: float) -> None:
    """The margin off the true class's cosine, before scaling; options as in cross entropy."""
    target = array(problem.target)
    ignore = problem.options.get("ignore_index", -100)
    labelled = np.where(target == ignore, -1, target)
    logits = scale * less_margin(array(problem.logits), labelled, margins_of(problem.counts, max_margin))
    expected = reference.cross_entropy(logits, target, **problem.reference_options)
    size = 1 + np.abs(logits).max(initial=0.0)
    knobs: dict[str, Any] = {"max_margin": max_margin, "scale": scale, **problem.options}
    function = ldam_loss(problem.logits, problem.target, problem.counts, **knobs)
    module = LDAMLoss(problem.counts, **knobs)(problem.logits, problem.target)
    assert function.dtype == torch.promote_types(problem.logits.dtype, torch.float32)
    assert_allclose(array(function), expected, rtol=2e-5, atol=1e-5 * size)
    assert_allclose(array(module), array(function), rtol=0, atol=0)


def test_no_margin_and_no_scale_is_cross_entropy() -> None:
    """With max_margin 0 and scale 1."""
    z, y = torch.randn(8, 5), torch.randint(5, (8,))
    torch.testing.assert_close(ldam_loss(z, y, COUNTS, max_margin=0, scale=1), F.cross_entropy(z, y))


def test_a_margin_costs() -> None:
    """Every sample pays more than without margins, one of the rarest class the most."""
    z, y = torch.zeros(5, 5), torch.arange(5)
    loss = ldam_loss(z, y, COUNTS, reduction="none")
    assert (loss > ldam_loss(z, y, COUNTS, max_margin=0, reduction="none")).all()
    assert (loss.diff() > 0).all()


def test_index_targets_only() -> None:
    """A margin needs one true class."""
    with refused(TypeError, "`target`", "float"):
        ldam_loss(torch.rand(4, 5), torch.rand(4, 5).softmax(1), COUNTS)
    with refused(TypeError, "`target`", "float"):
        LDAMLoss(COUNTS)(torch.rand(4, 5), torch.rand(4, 5).softmax(1))


def test_deferred_reweighting() -> None:
    """LDAM-DRW: weights from the effective number of samples, set on the loss in the last epochs."""
    z, y = torch.rand(8, 5) * 2 - 1, torch.randint(5, (8,))
    loss = LDAMLoss(COUNTS)
    before = loss(z, y)
    loss.weight = effective_number_weights(COUNTS, 0.9999)
    effective = (1 - 0.9999 ** np.array(COUNTS, dtype=float)) / (1 - 0.9999)
    expected = reference.cross_entropy(
        30 * less_margin(array(z), array(y), margins_of(COUNTS, 0.5)), array(y), weight=1 / effective
    )
    assert_allclose(loss(z, y), expected, rtol=1e-5)
    assert loss(z, y) != before


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradcheck(reduction: str) -> None:
    """In float64, dense, with all options."""
    z = (torch.rand(3, 5, 2, dtype=torch.float64) * 2 - 1).requires_grad_()
    y = torch.randint(5, (3, 2))
    y[0, 0] = -100
    weight = torch.rand(5, dtype=torch.float64) + 0.1
    loss = LDAMLoss(COUNTS, scale=5.0, reduction=reduction, weight=weight, label_smoothing=0.1)
    assert torch.autograd.gradcheck(lambda logits: loss(logits, y), z)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("counts", [[*COUNTS], [5000, 700, 0, 9, 0]])
@pytest.mark.slow
def test_compiled_without_a_graph_break(counts: list[int]) -> None:
    """Values and gradients, with classes masked too."""
    torch._dynamo.reset()
    z = (torch.rand(8, 5) * 2 - 1).requires_grad_()
    y = torch.tensor([0, 1, 3, 0, 1, 3, 0, -100])
    loss = LDAMLoss(counts, zero_counts="mask", weight=torch.rand(5), label_smoothing=0.1)
    value = torch.compile(loss, backend="aot_eager", fullgraph=True)(z, y)
    expected = loss(z, y)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, z), torch.autograd.grad(expected, z))


@property_test
@given(problem=problems(probabilities=False, zeros=True, scale=0.5))
def test_mask_is_the_problem_without_those_classes(problem: Problem) -> None:
    """Classes without examples have no margin and no place in the softmax, and a gradient of 0."""
    present = np.flatnonzero(problem.counts)
    position = {int(c): k for k, c in enumerate(present)}
    dim = 1 if problem.logits.ndim > 1 else 0
    options = problem.reference_options
    ignore = options.pop("ignore_index", -100)
    target = array(problem.target)
    target = np.array([-7 if y == ignore else position[int(y)] for y in target.reshape(-1)], dtype=int).reshape(
        target.shape
    )
    if "weight" in options:
        options["weight"] = options["weight"][present]
    margins = margins_of([problem.counts[c] for c in present], 0.5)
    logits = 30 * less_margin(array(problem.logits).take(present, dim), target, margins)
    expected = reference.cross_entropy(logits, target, ignore_index=-7, **options)
    z = problem.logits.clone().requires_grad_()
    loss = ldam_loss(z, problem.target, problem.counts, zero_counts="mask", **problem.options)
    size = 1 + np.abs(logits).max(initial=0.0)
    assert_allclose(array(loss), expected, rtol=2e-5, atol=1e-5 * size)
    module = LDAMLoss(problem.counts, zero_counts="mask", **problem.options)
    assert_allclose(array(module(problem.logits, problem.target)), array(loss), rtol=0, atol=0)
    (grad,) = torch.autograd.grad(loss.sum(), z)
    assert (array(grad).take(np.flatnonzero(np.array(problem.counts) == 0), dim) == 0).all()


def test_one_counts_as_one() -> None:
    """A class of zero examples as if it had one."""
    z, y = torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    expected = ldam_loss(z, y, [100, 1, 5])
    assert torch.equal(ldam_loss(z, y, [100, 0, 5], zero_counts="one"), expected)
    assert torch.equal(LDAMLoss([100, 0, 5], zero_counts="one")(z, y), expected)
    assert_allclose(ldam_margins([100, 0, 5], zero_counts="one"), margins_of([100, 1, 5], 0.5), rtol=1e-6)


def test_unsigned_labels_are_not_taken_for_the_ignored_one() -> None:
    """Label 156 as uint8 is not -100: it gets its own margin."""
    counts = list(range(1, 201))
    z, y = torch.rand(2, 200), torch.tensor([156, 3])
    torch.testing.assert_close(
        ldam_loss(z, y.to(torch.uint8), counts, reduction="none"), ldam_loss(z, y, counts, reduction="none")
    )


def test_module() -> None:
    """Counts are the state; margins follow them, and stay float32; copies; repr."""
    z, y = torch.rand(8, 5), torch.randint(5, (8,))
    loss = LDAMLoss(COUNTS, max_margin=0.3, reduction="sum")
    expected = ldam_loss(z, y, COUNTS, max_margin=0.3, reduction="sum")
    assert set(loss.state_dict()) == {"counts"}
    assert loss.counts.dtype == torch.int64
    for twin in (loss, copy.deepcopy(loss), pickle.loads(pickle.dumps(loss)), copy.deepcopy(loss).bfloat16()):
        assert twin.margins.dtype == torch.float32
        assert torch.equal(twin(z, y), expected)
    other = LDAMLoss([1, 2, 3, 4, 5], max_margin=0.3, reduction="sum")
    assert other(z, y) != expected
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other(z, y), expected)
    assert repr(LDAMLoss(COUNTS)) == "LDAMLoss(5 classes, max_margin=0.5, scale=30)"


def test_logits_are_not_changed() -> None:
    """The margin is taken off a copy."""
    z, y = torch.rand(8, 5), torch.randint(5, (8,))
    before = z.clone()
    ldam_loss(z, y, COUNTS)
    assert torch.equal(z, before)


def test_one_class_only() -> None:
    """Nothing to tell apart, with a margin too."""
    z = torch.randn(4, 1, requires_grad=True)
    loss = ldam_loss(z, torch.zeros(4, dtype=torch.long), [7])
    loss.backward()
    assert loss.item() == 0.0
    assert z.grad is not None
    assert z.grad.abs().max() == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_cosines(dtype: torch.dtype) -> None:
    """The margin is taken off in float32: half precision holds a cosine of 0.9 to 0.004 only, and s is 30."""
    z, y = (torch.rand(8, 5) * 2 - 1).to(dtype), torch.randint(5, (8,))
    loss = ldam_loss(z, y, COUNTS)
    assert loss.dtype == torch.float32
    expected = reference.cross_entropy(30 * less_margin(array(z), array(y), margins_of(COUNTS, 0.5)), array(y))
    assert_allclose(loss, expected, rtol=1e-5)
