"""ProCo: logits against mpmath, the loss against numpy, the classes' statistics against a loop over features."""

import copy
import pickle
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose
from tests.losses import reference
from tests.losses.reference import array, refused
from torch import Tensor

from longtail.losses import ProCoLoss, VonMisesFisherStatistics, class_shift, proco_logits

COUNTS = [5000, 700, 60, 9, 1]
C, P = len(COUNTS), 16


def unit(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return F.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1).to(dtype)


def exact_logit(feature: np.ndarray, mu: np.ndarray, kappa: float, temperature: float) -> float:
    """The definition, to forty digits, with the norm taken of the vector."""
    with mpmath.workdps(40):
        order = mpmath.mpf(len(mu)) / 2 - 1
        vector = [
            mpmath.mpf(float(kappa)) * mpmath.mpf(float(m)) + mpmath.mpf(float(f)) / mpmath.mpf(temperature)
            for m, f in zip(mu, feature, strict=True)
        ]

        def log_c(k: mpmath.mpf) -> mpmath.mpf:
            if k == 0:
                return order * mpmath.log(2) + mpmath.loggamma(order + 1)
            return order * mpmath.log(k) - mpmath.log(mpmath.besseli(order, k))

        return float(log_c(mpmath.mpf(float(kappa))) - log_c(mpmath.sqrt(mpmath.fsum(v * v for v in vector))))


@pytest.mark.parametrize(("dim", "temperature"), [(2, 0.1), (16, 0.07), (128, 0.1), (1024, 0.07)])
def test_logits_against_mpmath(dim: int, temperature: float) -> None:
    """Concentrations of 0 and 1e-3 to 1e5; features beside, on and opposite to the mean: the stated errors."""
    kappa = torch.tensor([0.0, 1e-3, 1.0, 100.0, 3e3, 1e5], dtype=torch.float64)
    mu = unit(len(kappa), dim)
    features = torch.stack([unit(dim), mu[3], -mu[4], F.normalize(mu[5] + 0.3 * unit(dim), dim=0)])
    logits = proco_logits(features, mu, kappa, temperature)
    single = proco_logits(features.float(), mu.float(), kappa.float(), temperature)
    assert logits.dtype == torch.float64
    assert single.dtype == torch.float32
    expected = [
        [exact_logit(array(f), array(m), k, temperature) for m, k in zip(mu, kappa.tolist(), strict=True)]
        for f in features
    ]
    assert_allclose(array(logits), expected, rtol=0, atol=2e-8)
    assert_allclose(array(single), expected, rtol=0, atol=3e-7 / temperature)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """That of shifted logits ``(…, N, C)``, averaged over views and samples."""
    shifted = (logits + class_shift(COUNTS, 1.5)).flatten(0, -2)
    return F.cross_entropy(shifted, target.repeat(len(shifted) // len(target)))


def test_logits_on_the_sphere() -> None:
    """In three dimensions a ratio of sinh(k) / k; in expectation of samples from the class."""
    mu, features = unit(4, 3), unit(5, 3)
    k = torch.tensor([0.5, 2.0, 5.0, 11.0], dtype=torch.float64)
    norm = (k.view(-1, 1) * mu + features.unsqueeze(1) / 0.5).norm(dim=-1)
    expected = (norm.sinh() / norm).log() - (k.sinh() / k).log()
    torch.testing.assert_close(proco_logits(features, mu, k, 0.5), expected, rtol=0, atol=2e-8)


def test_a_class_of_any_direction() -> None:
    """kappa 0: the direction has no say, and no gradient."""
    features = unit(6, P).requires_grad_()
    logits = proco_logits(features, unit(3, P), torch.zeros(3), 0.1)
    torch.testing.assert_close(logits, logits[:1, :1].expand(6, 3), rtol=0, atol=1e-9)
    assert not torch.autograd.grad(logits.sum(), features)[0].any()


@pytest.mark.parametrize("dim", [2, 16])
def test_logits_gradcheck(dim: int) -> None:
    """Of features and directions; with one set of classes, and one per view."""
    kappa = torch.tensor([0.0, 3.0, 50.0, 2000.0], dtype=torch.float64)
    features, mu = unit(2, 3, dim).requires_grad_(), unit(4, dim).requires_grad_()
    assert torch.autograd.gradcheck(lambda f, m: proco_logits(f, m, kappa, 0.1), (features, mu), eps=1e-5, atol=1e-4)
    both = unit(2, 4, dim).requires_grad_()
    kappas = torch.stack([kappa, kappa.flip(0)])
    assert torch.autograd.gradcheck(lambda f, m: proco_logits(f, m, kappas, 0.1), (features, both), eps=1e-5, atol=1e-4)


def test_gradient_through_a_normalisation() -> None:
    """Is that of the norm taken of the vector, with lengths as they are."""
    mu, free = unit(4, 3), torch.randn(5, 3, dtype=torch.float64).requires_grad_()
    k = torch.tensor([0.5, 2.0, 5.0, 11.0], dtype=torch.float64)
    weight = torch.randn(5, 4, dtype=torch.float64)

    def as_it_stands(features: Tensor) -> Tensor:
        norm = (k.view(-1, 1) * mu + features.unsqueeze(1) / 0.5).norm(dim=-1)
        return (norm.sinh() / norm).log()

    (wanted,) = torch.autograd.grad((weight * as_it_stands(F.normalize(free, dim=1))).sum(), free)
    (grad,) = torch.autograd.grad((weight * proco_logits(F.normalize(free, dim=1), mu, k, 0.5)).sum(), free)
    torch.testing.assert_close(grad, wanted, rtol=1e-7, atol=1e-8)


def test_where_the_norm_is_zero() -> None:
    """A concentration of 1 / T and a feature opposite to the mean: no division by it."""
    mu = unit(1, P)
    features = (-mu).requires_grad_()
    logits = proco_logits(features, mu, torch.tensor([10.0]), 0.1)
    assert_allclose(array(logits), exact_logit(array(-mu[0]), array(mu[0]), 10.0, 0.1), atol=1e-7)
    (grad,) = torch.autograd.grad(logits.sum(), features)
    torch.testing.assert_close(grad, 100 / P * mu)  # kappa mu / (T p)
    longer = proco_logits(-1.01 * mu, mu, torch.tensor([10.0]), 0.1)  # a rounding's work, exaggerated
    assert longer.isfinite().all()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "ignore_index": 2, "weight": torch.arange(1.0, 6.0)}])
def test_loss_against_numpy(reduction: str, options: dict[str, Any]) -> None:
    """The cross entropy of shifted logits, averaged over views."""
    features, target = unit(2, 7, P), torch.tensor([0, 1, 2, 3, 4, 0, 0])
    loss = ProCoLoss(COUNTS, P, beta=1.5, reduction=reduction, **options).double().eval()  # type: ignore[arg-type]
    mu, kappa = loss.statistics.estimate()
    plain = {name: array(value) if isinstance(value, Tensor) else value for name, value in options.items()}
    logits = [
        np.array([[exact_logit(array(f), array(m), float(k), 0.1) for m, k in zip(mu, kappa, strict=True)] for f in v])
        for v in features
    ]
    shift = reference.class_shift(np.array(COUNTS), 1.5)
    expected = [reference.cross_entropy(z, array(target), shift=shift, reduction=reduction, **plain) for z in logits]
    assert_allclose(array(loss(features, target)), np.mean(expected, axis=0), rtol=1e-6, atol=1e-6)


def test_loss_gradient_against_differences() -> None:
    loss = ProCoLoss(COUNTS, P, beta=1.0).double().eval()
    features, target = unit(2, 4, P).requires_grad_(), torch.tensor([0, 1, 4, 3])
    assert torch.autograd.gradcheck(lambda f: loss(f, target), features, eps=1e-5, atol=1e-5)


class Published:
    """The running estimate as the authors' repository has it, in our own words: two estimators, class by class."""

    def __init__(self, start: np.ndarray) -> None:
        self.start = start
        self.used, self.epoch = self.fresh(), self.fresh()

    def fresh(self) -> list[Any]:
        return [self.start.copy(), np.zeros(len(self.start))]

    def update(self, features: np.ndarray, labels: np.ndarray) -> None:
        for estimator in (self.used, self.epoch):
            for c in set(labels.tolist()):
                rows = features[labels == c]
                share = len(rows) / (len(rows) + estimator[1][c])
                estimator[0][c] = (1 - share) * estimator[0][c] + share * rows.mean(0)
                estimator[1][c] += len(rows)

    def end_epoch(self) -> None:
        self.used, self.epoch = self.epoch, self.fresh()

    def estimate(self) -> tuple[np.ndarray, np.ndarray]:
        length = np.linalg.norm(self.used[0], axis=1)
        with np.errstate(divide="ignore"):
            kappa = self.used[0].shape[1] * length / (1 - length**2)
        kappa[(kappa > 1e5) | (kappa < 0)] = 1e5
        return self.used[0] / length[:, None], kappa


def clustered(samples: int, labels: Tensor, spread: float = 0.5) -> Tensor:
    """Features near one direction a class."""
    centres = F.normalize(torch.randn(C, P, generator=torch.Generator().manual_seed(7), dtype=torch.float64), dim=1)
    return F.normalize(centres[labels] + spread * unit(samples, P), dim=1)


def test_statistics_are_the_published_ones() -> None:
    """Over three epochs of two views; every class is seen in each, the last batches lack some."""
    statistics = VonMisesFisherStatistics(C, P).double()
    published = Published(array(statistics.mean))
    for epoch in range(3):
        for batch in range(4):
            labels = torch.arange(C) if batch == 1 else torch.randint(3, (8,))
            for _ in range(2):
                features = clustered(len(labels), labels)
                statistics.update(features, labels)
                published.update(array(features), array(labels))
                mu, kappa = statistics.estimate()
                wanted_mu, wanted_kappa = published.estimate()
                assert_allclose(array(mu), wanted_mu, atol=1e-12, err_msg=f"{epoch}, {batch}")
                assert_allclose(array(kappa), wanted_kappa, rtol=1e-9)
        statistics.end_epoch()
        published.end_epoch()


def test_statistics_at_the_start() -> None:
    """Random directions of length 0.9, from the seed; the first feature replaces its class's."""
    statistics = VonMisesFisherStatistics(C, P, seed=3)
    mu, kappa = statistics.estimate()
    assert mu.dtype == torch.float32
    assert kappa.dtype == torch.float64
    assert_allclose(mu.norm(dim=1), 1, rtol=1e-6)
    assert_allclose(kappa, P * 0.9 / 0.19, rtol=1e-5)
    assert torch.equal(VonMisesFisherStatistics(C, P, seed=3).mean, statistics.mean)
    assert not torch.equal(VonMisesFisherStatistics(C, P, seed=4).mean, statistics.mean)
    feature = unit(1, P).float()
    statistics.update(feature, torch.tensor([2]))
    after, kappas = statistics.estimate()
    torch.testing.assert_close(after[2:3], feature)
    assert kappas[2] == 1e5  # one feature is no spread
    torch.testing.assert_close(after[[0, 1, 3, 4]], mu[[0, 1, 3, 4]])


def test_a_class_that_an_epoch_did_not_show() -> None:
    """Keeps its mean, until it is seen again, and then that is forgotten."""
    statistics = VonMisesFisherStatistics(C, P).double()
    first, later = clustered(6, torch.full((6,), 4)), clustered(4, torch.full((4,), 4))
    statistics.update(first, torch.full((6,), 4))
    statistics.end_epoch()
    before = [tensor[4].clone() for tensor in statistics.estimate()]
    statistics.update(unit(3, P), torch.tensor([0, 1, 2]))
    statistics.end_epoch()
    for found, wanted in zip(statistics.estimate(), before, strict=True):
        torch.testing.assert_close(found[4], wanted)
    statistics.update(later, torch.full((4,), 4))
    torch.testing.assert_close(statistics.estimate()[0][4], F.normalize(later.mean(0), dim=0))


def test_length_above_one_by_rounding() -> None:
    """Copies of one feature: the largest concentration, not a negative one."""
    statistics = VonMisesFisherStatistics(1, 3)
    feature = torch.tensor([[0.57735031, 0.57735031, 0.57735034]])  # its float32 length is above 1
    statistics.update(feature.expand(7, 3), torch.zeros(7, dtype=torch.long))
    mu, kappa = statistics.estimate()
    assert kappa.item() == 1e5
    assert mu.isfinite().all()
    opposite = VonMisesFisherStatistics(1, 3)
    opposite.update(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]), torch.zeros(2, dtype=torch.long))
    mu, kappa = opposite.estimate()
    assert kappa.item() == 0
    assert mu.isfinite().all()


def test_ignored_features_are_not_counted() -> None:
    """Not as class 0 either."""
    features, labels = unit(6, P), torch.tensor([-100, 0, 1, -100, 0, -100])
    some, all_kept = (VonMisesFisherStatistics(C, P).double() for _ in range(2))
    some.update(features, labels)
    kept = labels >= 0
    all_kept.update(features[kept], labels[kept])
    assert torch.equal(some.counts, all_kept.counts)
    torch.testing.assert_close(some.sums, all_kept.sums)
    nothing = VonMisesFisherStatistics(C, P)
    nothing.update(features, torch.full((6,), -100))
    assert not nothing.counts.any()
    assert not nothing.sums.any()


def test_sums_do_not_depend_on_the_order_of_rows_of_other_classes() -> None:
    """One row a class is added, so adding in any order gives the same bits; permuting a batch, the same to rounding."""
    features, labels = unit(40, P).float(), torch.randint(C, (40,))
    one, two = VonMisesFisherStatistics(C, P), VonMisesFisherStatistics(C, P)
    one.update(features, labels)
    order = torch.randperm(40)
    two.update(features[order], labels[order])
    torch.testing.assert_close(one.sums, two.sums)
    wanted = torch.zeros(C, P, dtype=torch.float64).index_add_(0, labels, features.double())
    assert_allclose(array(one.sums), array(wanted), atol=1e-5)
    assert torch.equal(one.counts, labels.bincount(minlength=C))


def test_state() -> None:
    """A round trip in the middle of an epoch; pickles; precision kept by half, raised by double; moves."""
    statistics = VonMisesFisherStatistics(C, P)
    statistics.update(unit(9, P).float(), torch.randint(C, (9,)))
    statistics.end_epoch()
    statistics.update(unit(9, P).float(), torch.randint(C, (9,)))
    other = VonMisesFisherStatistics(C, P, seed=5)
    other.load_state_dict(statistics.state_dict())
    for clone in (other, pickle.loads(pickle.dumps(statistics)), copy.deepcopy(statistics).half()):
        for found, wanted in zip(clone.estimate(), statistics.estimate(), strict=True):
            assert torch.equal(found, wanted)
    assert statistics.double().sums.dtype == torch.float64
    assert statistics.float().sums.dtype == torch.float64  # what is known is not rounded
    assert set(statistics.state_dict()) == {"mean", "mean_counts", "sums", "counts"}
    assert repr(statistics) == f"VonMisesFisherStatistics({C} classes, {P} dimensions)"


def batch(samples: int = 12) -> tuple[Tensor, Tensor]:
    labels = torch.randint(C, (samples,))
    return torch.stack([clustered(samples, labels), clustered(samples, labels)]), labels


def test_module_takes_each_view_in_turn() -> None:
    """Count a view, estimate, take its loss: the mean over views; nothing is counted in evaluation mode."""
    views, labels = batch()
    loss = ProCoLoss(COUNTS, P, beta=1.5).double()
    statistics = VonMisesFisherStatistics(C, P).double()
    each = []
    for view in views:
        statistics.update(view, labels)
        each.append(cross_entropy(proco_logits(view, *statistics.estimate(), 0.1), labels))
    torch.testing.assert_close(loss(views, labels), torch.stack(each).mean())
    assert torch.equal(loss.statistics.counts, statistics.counts)
    loss.eval()
    value = loss(views, labels)
    assert torch.equal(loss.statistics.counts, statistics.counts)
    torch.testing.assert_close(value, cross_entropy(proco_logits(views, *statistics.estimate(), 0.1), labels))
    loss.end_epoch()
    assert torch.equal(loss.statistics.mean_counts, statistics.counts)


def test_two_parts_make_the_whole() -> None:
    """Two ranks, each with its own samples and the keys of both: sums and gradients add up to those of one."""
    views, labels = batch()
    views.requires_grad_()
    whole = ProCoLoss(COUNTS, P, beta=1.0, reduction="sum").double()
    total = whole(views, labels)
    (wanted,) = torch.autograd.grad(total, views)
    grad, value = torch.zeros_like(wanted), 0.0
    for part in (slice(0, 5), slice(5, 12)):
        rank = ProCoLoss(COUNTS, P, beta=1.0, reduction="sum").double()
        loss = rank(views[:, part], labels[part], keys=views, key_labels=labels)
        value += loss.item()
        grad += torch.autograd.grad(loss, views)[0]
        torch.testing.assert_close(rank.statistics.sums, whole.statistics.sums, rtol=1e-13, atol=0)
    assert_allclose(value, total.item(), rtol=1e-12)
    torch.testing.assert_close(grad, wanted, rtol=1e-10, atol=1e-14)


def test_permuted_samples_and_renamed_classes() -> None:
    views, labels = batch()
    loss = ProCoLoss(COUNTS, P, beta=1.5).double()
    value = loss(views, labels)
    order = torch.randperm(12)
    torch.testing.assert_close(ProCoLoss(COUNTS, P, beta=1.5).double()(views[:, order], labels[order]), value)
    classes = torch.randperm(C)
    renamed = torch.empty(C, dtype=torch.long)
    renamed[classes] = torch.arange(C)
    other = ProCoLoss([COUNTS[c] for c in classes], P, beta=1.5).double()
    other.statistics.mean.copy_(loss.statistics.mean[classes])
    torch.testing.assert_close(other(views, renamed[labels]), value)


def test_masked_classes() -> None:
    """Without examples, left out of the softmax."""
    views, labels = batch()
    counts = [*COUNTS[:4], 0]
    labels = labels.clamp(max=3)
    loss = ProCoLoss(counts, P, beta=1.0, zero_counts="mask").double()
    smaller = ProCoLoss(COUNTS[:4], P, beta=1.0).double()
    smaller.statistics.mean.copy_(loss.statistics.mean[:4])
    torch.testing.assert_close(loss(views, labels), smaller(views, labels))


def test_edges() -> None:
    """One sample; one class; the same feature again and again: finite, with finite gradients."""
    for views, labels, counts in (
        (unit(2, 1, P), torch.tensor([2]), COUNTS),
        (unit(1, 4, P), torch.zeros(4, dtype=torch.long), [7]),
        (unit(1, 1, P).expand(2, 8, P).clone(), torch.full((8,), 3), COUNTS),
        (unit(2, 0, P), torch.zeros(0, dtype=torch.long), COUNTS),
    ):
        for dtype in (torch.float32, torch.float64):
            leaf = views.to(dtype).requires_grad_()
            value = ProCoLoss(counts, P, beta=1.0, reduction="sum")(leaf, labels)
            assert value.isfinite()
            assert torch.autograd.grad(value, leaf)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Features in half precision, autocast, a half module: float32 of the same numbers in float64."""
    views, labels = batch()
    views = views.to(dtype)
    wanted = ProCoLoss(COUNTS, P, beta=1.5).double()(views.double(), labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = ProCoLoss(COUNTS, P, beta=1.5).to(dtype)(views, labels)
        single = ProCoLoss(COUNTS, P, beta=1.5)(views.float(), labels)
    assert value.dtype == single.dtype == torch.float32
    torch.testing.assert_close(value.double(), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(single.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_compiled_without_a_graph_break() -> None:
    """Values, gradients and what was counted, over two batches."""
    torch._dynamo.reset()
    one, two = ProCoLoss(COUNTS, P, beta=1.5), ProCoLoss(COUNTS, P, beta=1.5)
    compiled = torch.compile(two, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        views, labels = batch()
        leaf = views.float().requires_grad_()
        expected, value = one(leaf, labels), compiled(leaf, labels)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(torch.autograd.grad(value, leaf), torch.autograd.grad(expected, leaf))
        torch.testing.assert_close(two.statistics.sums, one.statistics.sums)
        assert torch.equal(two.statistics.counts, one.statistics.counts)


def test_module_state_and_repr() -> None:
    """Counts and statistics are the state; training continues from them."""
    views, labels = batch()
    loss = ProCoLoss(COUNTS, P, beta=1.5, temperature=0.07)
    assert repr(loss).startswith("ProCoLoss(\n  5 classes, beta=1.5, temperature=0.07\n")
    loss(views.float(), labels)
    loss.end_epoch()
    other = ProCoLoss([1] * C, P, beta=1.5, temperature=0.07, seed=9)
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other(views.float(), labels), loss(views.float(), labels))
    assert set(loss.state_dict()) == {"counts", *(f"statistics.{n}" for n in ("mean", "mean_counts", "sums", "counts"))}


def test_learning_moves_features_to_their_class() -> None:
    """A few steps on free features: the loss falls and the logit of the label is the largest."""
    labels = torch.arange(C).repeat(4)
    free = torch.randn(2, 20, P, requires_grad=True)
    loss = ProCoLoss([1] * C, P, beta=1.0)
    optimizer = torch.optim.SGD([free], lr=3.0)
    values = []
    for _ in range(40):
        value = loss(F.normalize(free, dim=-1), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < 0.5 * values[0]
    logits = proco_logits(F.normalize(free, dim=-1), *loss.statistics.estimate(), 0.1)
    assert (logits.argmax(-1) == labels).float().mean() > 0.9


def test_no_matrix_of_samples_classes_and_dimensions() -> None:
    """The largest tensor has a number for each sample and class, or for each class and dimension."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if isinstance(tensor, Tensor):
                    self.elements = max(self.elements, tensor.numel())
            return result

    views = unit(1, 40, 32).float().requires_grad_()
    loss = ProCoLoss([1] * 100, 32, beta=1.0)
    with Largest() as largest:
        loss(views, torch.arange(40)).backward()
    assert largest.elements == 41 * 100  # one row more for kappa


def test_bad_input() -> None:
    """In one sentence."""
    features, mu, kappa = unit(4, P), unit(C, P), torch.ones(C)
    with refused(ValueError, "`temperature`"):
        proco_logits(features, mu, kappa, 0.0)
    with refused(TypeError, "`features`", "int64"):
        proco_logits(features.long(), mu, kappa, 0.1)
    with refused(ValueError, "`mu`", "16 features", "(5, 3)"):
        proco_logits(features, mu[:, :3], kappa, 0.1)
    with refused(ValueError, "`kappa`", "(5,)", "(4,)"):
        proco_logits(features, mu, kappa[:4], 0.1)
    with refused(TypeError, "`kappa`"):
        proco_logits(features, mu, 3.0, 0.1)  # type: ignore[arg-type]
    with refused(ValueError, "`features`", "`mu`"):
        proco_logits(features, mu.expand(2, C, P), kappa.expand(2, C), 0.1)
    loss = ProCoLoss(COUNTS, P, beta=1.0)
    labels = torch.zeros(4, dtype=torch.long)
    with refused(TypeError, "`target`", "indices"):
        loss(unit(2, 4, P), torch.rand(4, C))
    with refused(ValueError, "`labels`", "9"):
        loss(unit(2, 4, P), torch.full((4,), 9))
    with refused(ValueError, "`features`", "3 dimensions"):
        loss(features, labels)
    with refused(ValueError, "`features`", "16 features"):
        loss(unit(2, 4, 8), labels)
    with refused(ValueError, "`labels`", "0…4", "5"):
        loss.statistics.update(features, labels + 5)
    with refused(ValueError, "`labels`", "(4,)", "(3,)"):
        loss.statistics.update(features, labels[:3])
    with refused(ValueError, "`keys`", "`key_labels`"):
        loss(unit(2, 4, P), labels, keys=unit(2, 8, P))
    with refused(ValueError, "`keys`", "2 views"):
        loss(unit(2, 4, P), labels, keys=unit(1, 4, P), key_labels=labels)
    with refused(ValueError, "`beta`"):
        ProCoLoss(COUNTS, P, beta=-1.0)
    for dim, error in ((1, ValueError), (2.5, TypeError)):
        with refused(error, "`dim`"):
            VonMisesFisherStatistics(C, dim)  # type: ignore[arg-type]
    assert not loss.statistics.counts.any()  # refused before anything was counted


@pytest.mark.gpu
def test_on_the_gpu() -> None:
    """The CPU's values; nothing waits; a captured graph counts and gives the value of what it is given."""
    from tests.waiting import no_waiting

    views, labels = batch(32)
    static, on_gpu = views.float().cuda().requires_grad_(), labels.cuda()
    loss = ProCoLoss(COUNTS, P, beta=1.5).cuda()

    def step() -> tuple[Tensor, Tensor]:
        value = loss(static, on_gpu)
        return value, torch.autograd.grad(value, static)[0]

    with no_waiting():
        step()
        loss.end_epoch()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    state = copy.deepcopy(loss.statistics.state_dict())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value, grad = step()
    loss.statistics.load_state_dict(state)  # in place: the graph reads where it was
    reference_loss = ProCoLoss(COUNTS, P, beta=1.5)
    reference_loss.statistics.load_state_dict(state)
    for _ in range(3):
        views, labels = batch(32)
        with torch.no_grad():
            static.copy_(views)
        on_gpu.copy_(labels)
        graph.replay()
        leaf = views.float().requires_grad_()
        expected = reference_loss(leaf, labels)
        torch.testing.assert_close(value.cpu(), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(grad.cpu(), torch.autograd.grad(expected, leaf)[0], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(loss.statistics.sums.cpu(), reference_loss.statistics.sums)
        assert torch.equal(loss.statistics.counts.cpu(), reference_loss.statistics.counts)


@pytest.mark.gpu
def test_counting_on_the_gpu_is_the_same_twice() -> None:
    """Bit for bit, although many features are of one class."""
    features, labels = unit(512, 128).float().cuda(), torch.randint(C, (512,)).cuda()
    sums = []
    for _ in range(5):
        statistics = VonMisesFisherStatistics(C, 128).cuda()
        for _ in range(3):
            statistics.update(features, labels)
        sums.append(statistics.sums)
    assert all(torch.equal(one, sums[0]) for one in sums)
