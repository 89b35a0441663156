"""ResLT against loops over branches and samples; sums that add up; which classes a branch sees."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from tests.losses import reference
from tests.losses.reference import array, property_test, refused
from torch import Tensor

from longtail import Groups
from longtail.losses import (
    ResLTTerms,
    branches_from_counts,
    branches_from_groups,
    reslt_terms,
)

C = 6


def branches_from_index(num_classes: int, *first: int) -> Tensor:
    return branches_from_counts(range(num_classes, 0, -1), *(num_classes - start for start in first))


def reslt_loss(branches: Tensor, target: Tensor, sees: Tensor, *, alpha: float, **options: Any) -> Tensor:
    return reslt_terms(branches, target, sees, **options).loss(alpha)


SEES = branches_from_index(C, 2, 4)


def by_loops(
    branches: np.ndarray, target: np.ndarray, sees: np.ndarray, *, ignore_index: int = -100, smoothing: float = 0.0
) -> tuple[float, int, float, int]:
    """The definition: for each branch and each sample whose class it sees, one cross entropy over all classes."""

    def cost(logits: np.ndarray, label: int) -> float:
        log_p = reference.log_softmax(logits)
        return float(-(1 - smoothing) * log_p[label] - smoothing * log_p.mean())

    branch_sum, branch_count, fusion_sum, fusion_count = 0.0, 0, 0.0, 0
    for n, label in enumerate(target):
        if label == ignore_index:
            continue
        for b in range(len(branches)):
            if sees[b][label]:
                branch_sum += cost(branches[b, n], label)
                branch_count += 1
        fusion_sum += cost(sum(branches[b, n] for b in range(len(branches))), label)
        fusion_count += 1
    return branch_sum, branch_count, fusion_sum, fusion_count


def batch(samples: int = 9, branches: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(branches, samples, C, dtype=dtype) * 3, torch.randint(C, (samples,))


@property_test
@given(
    branches=st.integers(1, 4),
    samples=st.integers(0, 7),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    ignored=st.booleans(),
    dtype=st.sampled_from(reference.DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_option_against_loops(
    *, branches: int, samples: int, smoothing: float, ignored: bool, dtype: torch.dtype, seed: int
) -> None:
    """Sums, counts, and the loss made of them; any branches, any classes seen."""
    rng = np.random.default_rng(seed)
    z = torch.tensor(3 * rng.standard_normal((branches, samples, C))).to(dtype)
    y = torch.tensor(rng.integers(C, size=samples))
    sees = torch.tensor(rng.random((branches, C)) < 0.6)
    if ignored:
        y[torch.tensor(rng.random(samples) < 0.4)] = 255
    expected = by_loops(array(z), array(y), array(sees), ignore_index=255, smoothing=smoothing)
    terms = reslt_terms(z, y, sees, ignore_index=255, label_smoothing=smoothing)
    for found, wanted in zip(terms, expected, strict=True):
        assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert_allclose(array(found), wanted, rtol=2e-5, atol=1e-4)
    if expected[1] and expected[3]:
        wanted = 0.7 * expected[0] / expected[1] + 0.3 * expected[2] / expected[3]
        knobs = {"alpha": 0.7, "ignore_index": 255, "label_smoothing": smoothing}
        assert_allclose(array(reslt_loss(z, y, sees, **knobs)), wanted, rtol=2e-5, atol=1e-5)


def test_a_value_worked_by_hand() -> None:
    """Two classes, logits of 0: each term is log 2; the head sample is seen once, the tail's twice."""
    z, y = torch.zeros(2, 2, 2), torch.tensor([0, 1])
    terms = reslt_terms(z, y, branches_from_index(2, 1))
    assert_allclose(terms.branch_sum, 3 * np.log(2), rtol=1e-6)
    assert [terms.branch_count.item(), terms.fusion_count.item()] == [3, 2]
    assert_allclose(terms.fusion_sum, 2 * np.log(2), rtol=1e-6)
    assert_allclose(terms.loss(0.3), np.log(2), rtol=1e-6)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradcheck(soft: bool, smoothing: float) -> None:
    """In float64; no gradient where a branch does not see."""
    z, y = batch(4)
    z.requires_grad_()
    target = F.one_hot(y, C).double() * 0.5 + torch.rand(4, C).double().softmax(1) * 0.5 if soft else y
    assert torch.autograd.gradcheck(
        lambda branches: reslt_loss(branches, target, SEES, alpha=0.7, label_smoothing=smoothing), z
    )
    (grad,) = torch.autograd.grad(reslt_terms(z, y, SEES).branch_sum, z)
    for b in range(3):
        for n, label in enumerate(y.tolist()):
            assert grad[b, n].any() == SEES[b, label]


def test_two_parts_make_the_whole() -> None:
    """Sums and counts add up, so ranks with different shares of head and tail have the loss of one."""
    z, y = batch(9)
    whole = reslt_terms(z, y, SEES)
    parts = [reslt_terms(z[:, part], y[part], SEES) for part in (slice(0, 2), slice(2, 9))]
    added = ResLTTerms(*(a + b for a, b in zip(*parts, strict=True)))
    torch.testing.assert_close(added, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(added.loss(0.9), reslt_loss(z, y, SEES, alpha=0.9), rtol=1e-12, atol=0)


def test_class_probabilities() -> None:
    """One-hot ones are labels; a mixed sample costs what its labels cost, in their shares."""
    z, y = batch()
    other = torch.randint(C, y.shape)
    one, two = (reslt_terms(z, label, SEES, label_smoothing=0.1) for label in (y, other))
    hard = reslt_terms(z, F.one_hot(y, C).double(), SEES, label_smoothing=0.1)
    torch.testing.assert_close(hard, one)
    mixed = 0.3 * F.one_hot(y, C).double() + 0.7 * F.one_hot(other, C).double()
    soft = reslt_terms(z, mixed, SEES, label_smoothing=0.1)
    torch.testing.assert_close(soft, ResLTTerms(*(0.3 * a + 0.7 * b for a, b in zip(one, two, strict=True))))


def test_one_branch_that_sees_all_is_cross_entropy() -> None:
    """Whatever alpha."""
    z, y = batch(branches=1)
    everything = torch.ones(1, C, dtype=torch.bool)
    torch.testing.assert_close(reslt_loss(z, y, everything, alpha=0.3), F.cross_entropy(z[0], y))


def test_edges() -> None:
    """One sample; a batch of head classes only; no sample at all."""
    z, y = batch(1)
    assert reslt_loss(z, y, SEES, alpha=0.9).isfinite()
    z = torch.randn(3, 4, C)
    terms = reslt_terms(z, torch.zeros(4, dtype=torch.long), SEES)
    assert terms.branch_count.item() == 4
    torch.testing.assert_close(terms.loss(1.0), F.cross_entropy(z[0], torch.zeros(4, dtype=torch.long)))
    assert reslt_terms(z[:, :0], torch.zeros(0, dtype=torch.long), SEES) == (0, 0, 0, 0)
    assert reslt_loss(z, torch.full((4,), -100), SEES, alpha=0.9).isnan()
    assert reslt_terms(z, torch.full((4,), -100), SEES) == (0, 0, 0, 0)


def test_order_of_samples_and_names_of_classes_do_not_matter() -> None:
    """Permutations."""
    z, y = batch()
    expected = reslt_loss(z, y, SEES, alpha=0.9)
    samples, classes = torch.randperm(9), torch.randperm(C)
    torch.testing.assert_close(reslt_loss(z[:, samples], y[samples], SEES, alpha=0.9), expected)
    renamed = torch.empty(C, dtype=torch.long)
    renamed[classes] = torch.arange(C)
    torch.testing.assert_close(reslt_loss(z[:, :, classes], renamed[y], SEES[:, classes], alpha=0.9), expected)


def test_from_index() -> None:
    """The authors' CIFAR forms."""
    sees = branches_from_index(100, 35, 70)
    assert sees.dtype == torch.bool
    assert [row.nonzero().flatten().tolist() for row in sees] == [[*range(b, 100)] for b in (0, 35, 70)]
    assert branches_from_index(10, 2, 4).sum(1).tolist() == [10, 8, 6]
    assert branches_from_index(5).tolist() == [[True] * 5]


def test_from_counts() -> None:
    """The rarest, wherever they are; two branches are a form too."""
    counts = [100, 3, 50, 3, 1]
    sees = branches_from_counts(counts, 3, 2)
    assert sees.int().tolist() == [[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 0, 1, 1]]
    assert branches_from_counts(torch.arange(8142), 6600).sum(1).tolist() == [8142, 6600]


def test_of_equal_counts_the_later_class_is_the_rarer() -> None:
    """With a fold of CIFAR-100-LT held out, classes 69 and 70 may be as many: branches begin at 35 and 70 even so."""
    counts = [max(13, 500 - 7 * c) for c in range(100)]
    assert torch.equal(branches_from_counts(counts, 65, 30), branches_from_index(100, 35, 70))
    assert torch.equal(branches_from_counts([9] * 100, 65, 30), branches_from_index(100, 35, 70))


def test_from_groups() -> None:
    """One branch per group; on sorted classes the same as by index."""
    groups = Groups.from_indices(head=range(35), medium=range(35, 70), tail=range(70, 100))
    assert torch.equal(branches_from_groups(groups), branches_from_index(100, 35, 70))
    mixed = Groups.from_counts([5, 500, 50])
    assert branches_from_groups(mixed).int().tolist() == [[1, 1, 1], [1, 0, 1], [1, 0, 0]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.slow
def test_compiled_without_a_graph_break(soft: bool) -> None:
    """Values and gradients."""
    torch._dynamo.reset()
    z, y = batch(dtype=torch.float32)
    z.requires_grad_()
    target = torch.rand(9, C).softmax(1) if soft else y

    def loss(z: Tensor, target: Tensor) -> Tensor:
        return reslt_loss(z, target, SEES, alpha=0.9, label_smoothing=0.1)

    value, expected = torch.compile(loss, backend="aot_eager", fullgraph=True)(z, target), loss(z, target)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, z), torch.autograd.grad(expected, z))


def test_bad_input() -> None:
    """In one sentence."""
    z, y = batch()
    for wrong in (z[:2], z[0], z[..., :5], z.flatten()):
        with refused(ValueError, "`branches`", "(3, samples, 6)", tuple(wrong.shape)):
            reslt_loss(wrong, y, SEES, alpha=0.9)
    for untyped in (None, z.long()):
        with refused(TypeError, "`branches`"):
            reslt_loss(untyped, y, SEES, alpha=0.9)  # type: ignore[arg-type]
    with refused(TypeError, "`sees`", "bool"):
        reslt_loss(z, y, SEES.float(), alpha=0.9)
    with refused(TypeError, "`sees`"):
        reslt_loss(z, y, [[True]], alpha=0.9)  # type: ignore[arg-type]
    for alpha in (-0.1, 1.1):
        with refused(ValueError, "`alpha`"):
            reslt_loss(z, y, SEES, alpha=alpha)
    with refused(ValueError, "`label_smoothing`", 1.5):
        reslt_loss(z, y, SEES, alpha=0.9, label_smoothing=1.5)
    with refused(ValueError, "`target`", "7"):
        reslt_loss(z, torch.full((9,), 7), SEES, alpha=0.9)
    with refused(ValueError, "`target`", "(9,)"):
        reslt_loss(z, y[:4], SEES, alpha=0.9)
    with refused(ValueError, "`rarest`"):
        branches_from_counts([3, 2, 1], 1, 2)
    with refused(TypeError, "`rarest`"):
        branches_from_counts([3, 2, 1], 0.5)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("soft", [False, True])
def test_on_the_gpu(soft: bool) -> None:
    """The CPU's value; nothing waits; a captured graph gives the value of what it is given."""
    from tests.waiting import no_waiting

    def loss(z: Tensor, y: Tensor, sees: Tensor) -> Tensor:
        return reslt_loss(z, y, sees, alpha=0.9, label_smoothing=0.1)

    def drawn() -> tuple[Tensor, Tensor]:
        z, y = batch(32, dtype=torch.float32)
        return z.cuda(), (torch.rand(32, C).softmax(1) if soft else y).cuda()

    (z, y), sees = drawn(), SEES.cuda()
    z.requires_grad_()

    def step() -> tuple[Tensor, Tensor]:
        value = loss(z, y, sees)
        return value, torch.autograd.grad(value, z)[0]

    with no_waiting():
        step()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value, grad = step()
    other_z, other_y = drawn()
    with torch.no_grad():
        z.copy_(other_z)
    y.copy_(other_y)
    graph.replay()
    there = other_z.cpu().requires_grad_()
    expected = loss(there, other_y.cpu(), SEES)
    torch.testing.assert_close(value.cpu(), expected)
    torch.testing.assert_close(grad.cpu(), torch.autograd.grad(expected, there)[0])
