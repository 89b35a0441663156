"""BCL against loops over queries, classes and members; sums that add up; edges."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from tests.losses.reference import DTYPES, array, property_test, refused
from torch import Tensor

from longtail.losses import BalancedContrastiveLoss, balanced_contrastive_loss

C, P = 5, 8


def by_loops(
    *,
    queries: np.ndarray,
    query_labels: list[int],
    keys: np.ndarray,
    key_labels: list[int],
    prototypes: np.ndarray,
    temperature: float,
    query_index: list[int] | None = None,
) -> np.ndarray:
    """The definition: members of each class one by one, the query itself never among them."""
    losses = []
    for i, query in enumerate(queries):
        members: list[list[float]] = [[float(query @ prototypes[c]) / temperature] for c in range(len(prototypes))]
        for k, key in enumerate(keys):
            if query_index is None or k != query_index[i]:
                members[key_labels[k]].append(float(query @ key) / temperature)
        denominator = sum(np.mean(np.exp(np.array(own, dtype=np.longdouble))) for own in members)
        losses.append(np.mean([float(np.log(denominator)) - s for s in members[query_labels[i]]]))
    return np.array(losses)


def unit(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return F.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1).to(dtype)


def problem(samples: int = 6, views: int = 2, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Each feature of each view is a query and a key; class 4 may be missing."""
    keys, labels = unit(views * samples, P, dtype=dtype), torch.randint(4, (samples,)).repeat(views)
    return {
        "queries": keys,
        "query_labels": labels,
        "keys": keys,
        "key_labels": labels,
        "prototypes": unit(C, P, dtype=dtype),
        "query_index": torch.arange(views * samples),
    }


def expected(given: dict[str, Any], temperature: float) -> np.ndarray:
    arrays = {
        name: None if value is None else value.tolist() if "label" in name or "index" in name else array(value)
        for name, value in given.items()
    }
    return by_loops(**arrays, temperature=temperature)


@property_test
@given(
    samples=st.integers(1, 6),
    views=st.integers(1, 3),
    temperature=st.sampled_from([0.07, 0.1, 0.5, 2.0]),
    apart=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31),
)
def test_against_loops(
    *, samples: int, views: int, temperature: float, apart: bool, dtype: torch.dtype, seed: int
) -> None:
    """Each query's loss; queries among the keys, or not."""
    torch.manual_seed(seed)
    given = problem(samples, views, dtype)
    if apart:
        given |= {"queries": unit(3, P, dtype=dtype), "query_labels": torch.randint(C, (3,)), "query_index": None}
    losses = balanced_contrastive_loss(**given, temperature=temperature, reduction="none")
    assert losses.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    wanted = expected(given, temperature)
    exact = dtype == torch.float64
    assert_allclose(array(losses), wanted, rtol=1e-12 if exact else 1e-5, atol=1e-12 if exact else 2e-6 / temperature)
    assert_allclose(array(balanced_contrastive_loss(**given, temperature=temperature)), wanted.mean(), rtol=1e-4)
    total = balanced_contrastive_loss(**given, temperature=temperature, reduction="sum")
    assert_allclose(array(total), wanted.sum(), rtol=1e-4)


def test_a_value_worked_by_hand() -> None:
    """All features and prototypes alike: every class averages to e^s, so a query pays the log of their number."""
    same = torch.ones(4, P) / P**0.5
    labels = torch.tensor([0, 0, 0, 1])
    losses = balanced_contrastive_loss(
        same, labels, same, labels, same[:1].expand(C, P), temperature=0.1, query_index=torch.arange(4)
    )
    assert_allclose(losses, np.log(C), rtol=1e-5)


def test_gradcheck() -> None:
    """To queries, keys and prototypes, in float64; and to features that are both."""
    given = problem(3)
    index = {name: given[name] for name in ("query_labels", "key_labels", "query_index")}
    queries, keys, prototypes = given["queries"][:4].clone(), given["keys"].clone(), given["prototypes"].clone()
    index = {**index, "query_labels": index["query_labels"][:4], "query_index": index["query_index"][:4]}

    def loss(q: Tensor, k: Tensor, c: Tensor) -> Tensor:
        return balanced_contrastive_loss(
            q,
            index["query_labels"],
            k,
            index["key_labels"],
            c,
            temperature=0.3,
            query_index=index["query_index"],
            reduction="none",
        )

    assert torch.autograd.gradcheck(loss, [t.requires_grad_() for t in (queries, keys, prototypes)])
    module, labels = BalancedContrastiveLoss(0.3), torch.tensor([0, 1, 1])
    assert torch.autograd.gradcheck(
        lambda views, c: module(views, labels, c), (unit(2, 3, P).requires_grad_(), unit(C, P).requires_grad_())
    )


def test_two_parts_make_the_whole() -> None:
    """Ranks with their own queries and all keys: sums and gradients add up to those of one."""
    given = problem()
    leaves = {name: given[name].clone().requires_grad_() for name in ("keys", "prototypes")}

    def total(rows: Tensor) -> Tensor:
        return balanced_contrastive_loss(
            leaves["keys"][rows],
            given["key_labels"][rows],
            leaves["keys"],
            given["key_labels"],
            leaves["prototypes"],
            temperature=0.1,
            query_index=rows,
            reduction="sum",
        )

    whole = total(torch.arange(12))
    parts = [total(rows) for rows in (torch.tensor([0, 1, 6, 7]), torch.tensor([2, 3, 4, 5, 8, 9, 10, 11]))]
    torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-12, atol=0)
    wanted = torch.autograd.grad(whole, list(leaves.values()))
    for part in (torch.autograd.grad(p, list(leaves.values())) for p in parts):
        wanted = tuple(w - g for w, g in zip(wanted, part, strict=True))
    assert all(left.abs().max() < 1e-12 for left in wanted)


def test_a_class_weighs_the_same_however_often_it_is_there() -> None:
    """Doubling every key of another class, with its prototype, changes nothing; so does the order of keys."""
    given = problem(views=1) | {"queries": unit(1, P), "query_labels": torch.tensor([0]), "query_index": None}
    given["key_labels"] = torch.tensor([0, 0, 1, 1, 1, 2])
    given["prototypes"][1] = given["keys"][2:5].mean(0)  # the mean of exps is not that, so replace the keys too
    given["keys"][2:5] = given["prototypes"][1]
    before = balanced_contrastive_loss(**given, temperature=0.1)
    more = given | {
        "keys": torch.cat([given["keys"], given["keys"][2:5]]),
        "key_labels": torch.cat([given["key_labels"], given["key_labels"][2:5]]),
    }
    torch.testing.assert_close(balanced_contrastive_loss(**more, temperature=0.1), before)
    order = torch.randperm(9)
    turned = more | {"keys": more["keys"][order], "key_labels": more["key_labels"][order]}
    torch.testing.assert_close(balanced_contrastive_loss(**turned, temperature=0.1), before)


def test_order_of_samples_and_names_of_classes_do_not_matter() -> None:
    """Permutations."""
    views, labels, prototypes = unit(2, 6, P), torch.randint(C, (6,)), unit(C, P)
    loss = BalancedContrastiveLoss(0.1)
    before = loss(views, labels, prototypes)
    samples, classes = torch.randperm(6), torch.randperm(C)
    torch.testing.assert_close(loss(views[:, samples], labels[samples], prototypes), before)
    torch.testing.assert_close(loss(views.flip(0), labels, prototypes), before)
    renamed = torch.empty(C, dtype=torch.long)
    renamed[classes] = torch.arange(C)
    torch.testing.assert_close(loss(views, renamed[labels], prototypes[classes]), before)


def test_edges() -> None:
    """One feature, one class, one label, the same feature again, opposite features at a low temperature."""
    one = unit(1, 1, P).requires_grad_()
    alone = BalancedContrastiveLoss(0.1, reduction="none")(one, torch.tensor([2]), unit(C, P))
    assert alone.shape == (1, 1)
    assert alone.isfinite().all()
    assert BalancedContrastiveLoss(0.1)(unit(2, 3, P), torch.zeros(3, dtype=torch.long), unit(1, P)) >= 0
    labels = torch.full((4,), 3)
    same = unit(1, 1, P).expand(2, 4, P).clone().requires_grad_()
    value = BalancedContrastiveLoss(0.1)(same, labels, unit(C, P))
    assert torch.autograd.grad(value, same)[0].isfinite().all()
    opposite = torch.stack([one[0, 0], -one[0, 0]]).unsqueeze(0).float()
    for temperature in (0.07, 0.005):  # e^400 is more than float32 has
        far = BalancedContrastiveLoss(temperature)(opposite, torch.tensor([0, 0]), -opposite[0])
        assert far.isfinite()
        assert torch.autograd.grad(far, one, retain_graph=True)[0].isfinite().all()
    assert BalancedContrastiveLoss(0.1, reduction="none")(unit(2, 0, P), labels[:0], unit(C, P)).shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Computed in float32, under autocast too."""
    views, labels, prototypes = unit(2, 6, P, dtype=dtype), torch.randint(C, (6,)), unit(C, P, dtype=dtype)
    loss = BalancedContrastiveLoss(0.07)
    wanted = loss(views.double(), labels, prototypes.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(views, labels, prototypes)
        single = loss(views.float(), labels, prototypes.float())
    assert value.dtype == single.dtype == torch.float32
    torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(single.double(), wanted, rtol=1e-5, atol=1e-5)


def test_vmap_over_batches() -> None:
    """Labels are not read there, also where the queries' places are the same in all batches."""
    views, labels, prototypes = unit(3, 2, 6, P), torch.randint(C, (3, 6)), unit(C, P)
    loss = BalancedContrastiveLoss(0.1)
    found = torch.vmap(loss, in_dims=(0, 0, None))(views, labels, prototypes)
    wanted = torch.stack([loss(*each, prototypes) for each in zip(views, labels, strict=True)])
    torch.testing.assert_close(found, wanted)

    def placed(keys: Tensor, labels: Tensor) -> Tensor:
        place = torch.arange(12)
        return balanced_contrastive_loss(keys, labels, keys, labels, prototypes, temperature=0.1, query_index=place)

    torch.testing.assert_close(torch.vmap(placed)(views.flatten(1, 2), labels.repeat(1, 2)), wanted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.slow
def test_compiled_without_a_graph_break() -> None:
    """Values and gradients."""
    torch._dynamo.reset()
    views, labels, prototypes = unit(2, 6, P).requires_grad_(), torch.randint(C, (6,)), unit(C, P).requires_grad_()
    loss = BalancedContrastiveLoss(0.1)
    value = torch.compile(loss, backend="aot_eager", fullgraph=True)(views, labels, prototypes)
    wanted = loss(views, labels, prototypes)
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(value, (views, prototypes)), torch.autograd.grad(wanted, (views, prototypes))
    )


def test_module() -> None:
    """The function over all views; repr; no state; any integer labels."""
    views, labels, prototypes = unit(2, 6, P), torch.randint(C, (6,)), unit(C, P)
    rows, every = views.flatten(0, 1), labels.repeat(2)
    for reduction in ("mean", "sum", "none"):
        loss = BalancedContrastiveLoss(0.07, reduction=reduction)
        wanted = balanced_contrastive_loss(
            rows, every, rows, every, prototypes, temperature=0.07, query_index=torch.arange(12), reduction=reduction
        )
        torch.testing.assert_close(loss(views, labels.to(torch.uint8), prototypes).flatten(), wanted.flatten())
    assert repr(loss) == "BalancedContrastiveLoss(temperature=0.07, reduction=none)"
    assert not copy.deepcopy(loss).state_dict()


def test_bad_input() -> None:
    """In one sentence."""
    given = problem() | {"temperature": 0.1}

    def loss(**changed: Any) -> Tensor:
        return balanced_contrastive_loss(**(given | changed))

    with refused(ValueError, "`temperature`", "0"):
        loss(temperature=0)
    with refused(ValueError, "`reduction`", "'average'"):
        loss(reduction="average")
    with refused(TypeError, "`queries`", "int64"):
        loss(queries=given["queries"].long())
    with refused(ValueError, "`keys`", "2 dimensions", "(12,)"):
        loss(keys=torch.rand(12))
    with refused(ValueError, "`prototypes`", f"{P} features", "(5, 3)"):
        loss(prototypes=torch.rand(5, 3))
    with refused(ValueError, "`key_labels`", "(12,)", "(11,)"):
        loss(key_labels=given["key_labels"][:11])
    with refused(TypeError, "`query_labels`"):
        loss(query_labels=given["query_labels"].float())
    with refused(ValueError, "`query_labels`", "0…4", "7"):
        loss(query_labels=torch.full((12,), 7))
    with refused(ValueError, "`query_index`", "0…11", "12"):
        loss(query_index=torch.arange(1, 13))
    with refused(ValueError, "`query_index`", "other classes"):
        loss(key_labels=(given["key_labels"] + 1) % 4)
    with refused(ValueError, "`features`", "3 dimensions"):
        BalancedContrastiveLoss(0.1)(given["queries"], given["query_labels"], given["prototypes"])
    with refused(ValueError, "`target`", "0…4", "5"):
        BalancedContrastiveLoss(0.1)(unit(2, 1, P), torch.tensor([5]), given["prototypes"])


def test_no_matrix_of_queries_keys_and_classes() -> None:
    """The largest tensor has a number for each query and key."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if isinstance(tensor, Tensor):
                    self.elements = max(self.elements, tensor.numel())
            return result

    views, prototypes = unit(2, 20, 4).requires_grad_(), unit(300, 4).requires_grad_()
    with Largest() as largest:
        BalancedContrastiveLoss(0.1)(views, torch.arange(20), prototypes).backward()
    assert largest.elements == 40 * 340


@pytest.mark.gpu
def test_on_the_gpu() -> None:
    """The CPU's value; nothing waits; a captured graph gives the value of what it is given; the same twice."""
    from tests.waiting import no_waiting

    loss = BalancedContrastiveLoss(0.1)
    views, prototypes = unit(2, 32, 16).float().cuda(), unit(C, 16).float().cuda()
    labels = torch.randint(C, (32,)).cuda()
    views.requires_grad_()
    prototypes.requires_grad_()

    def step() -> tuple[Tensor, ...]:
        value = loss(views, labels, prototypes)
        return value.detach(), *torch.autograd.grad(value, (views, prototypes))

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
        captured = step()
    with torch.no_grad():
        views.copy_(unit(2, 32, 16))
        labels.copy_(torch.randint(C, (32,)))
    graph.replay()
    eager = step()
    torch.testing.assert_close(captured, eager)
    assert all(torch.equal(a, b) for a, b in zip(eager, step(), strict=True))
    wanted = loss(views.detach().cpu(), labels.cpu(), prototypes.detach().cpu())
    torch.testing.assert_close(captured[0].cpu(), wanted, rtol=1e-5, atol=1e-5)
