"""Objectives: ranks, micro-batches, saved state, compilation, and the values of each loss."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tests import contract
from tests.contract import COUNTS, EPOCHS, STAGES, joined, model_of, objective_of, rank_batches, taken, updated
from tests.train.conftest import mostly_slow
from tests.waiting import no_waiting

from longtail.losses import ClassBalancedSoftmaxLoss, Loss
from longtail.methods import METHODS, Objective, SupervisedLoss
from longtail.models import Outputs
from longtail.train.optimizer import make_optimizer
from longtail.train.step import Step

ROOT = Path(__file__).parents[1]
N = COUNTS.double().numpy()
each_stage = pytest.mark.parametrize(("name", "number"), STAGES)
one_sample_alone = [(name, number) for name, number in STAGES if METHODS[name].mixes]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """A folder with the results of all methods on two ranks; one pair of processes, because starting is slow."""
    folder = tmp_path_factory.mktemp("ranks")
    # Without the hostname's address, which not every machine can resolve.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.contract"]
    running = [
        subprocess.Popen([*command, str(rank), str(folder)], cwd=ROOT, env=environment, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for process in running:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err.decode()
    return folder


def assert_same(found, expected, rtol=1e-10, atol=1e-12):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=rtol, atol=atol, msg=lambda text, key=key: f"{key}: {text}")


# --- several ranks, several micro-batches


@pytest.mark.parametrize("rank", [0, 1])
def test_sums_and_rows_of_two_ranks(two_ranks, rank):
    found = load_file(two_ranks / f"ranks-{rank}")
    assert found["sum"].tolist() == [3.0, 20.0]
    assert found["rows"].tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2
    # Rank r weights row i by (r + 1) times its place; the gradient of a row is the sum over both ranks.
    weights = torch.arange(1.0, 13.0, dtype=torch.float64).view(4, 3)
    assert torch.equal(found["gradient"], 3 * weights[2 * rank : 2 * rank + 2])
    assert found["any"].tolist() == [0, 1, 1]
    assert found["agreed"].tolist() == [7.0, 7.0]


@each_stage
def test_two_ranks_equal_one_process_with_the_whole_batch(two_ranks, name, number):
    alone = taken(name, number, [[joined(rank_batches(name, step))] for step in range(2)])
    assert any(value.abs().max() > 1e-6 for key, value in alone.items() if key.startswith("gradient"))
    for rank in range(2):
        assert_same(load_file(two_ranks / f"{name}-{number}-{rank}"), alone)


@pytest.mark.parametrize("name", ["beta", "beta-alone"])
def test_auto_beta_of_two_ranks_equals_that_of_one_process(two_ranks, name):
    first, second = (load_file(two_ranks / f"{name}-{rank}") for rank in range(2))
    assert first["beta"] > 1.2
    assert first["problems"].tolist() == [0, 0, 0, 1]
    assert_same(first, second, rtol=0, atol=0)
    assert_same(first, updated(slice(None)), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", contract.ACCUMULATED)
def test_micro_batches_of_two_ranks_equal_one_batch(two_ranks, name):
    alone = taken(name, 0, [[joined(rank_batches(name, 0))]])
    for rank in range(2):
        assert_same(load_file(two_ranks / f"{name}-halves-{rank}"), alone)


@pytest.mark.parametrize("name", ["class-balanced-weights", "ldam-drw", "reslt", "bcl", "proco"])
def test_mean_of_rank_means_would_differ(name):
    """The tests above are sensitive: without sums over ranks the gradients of these methods differ."""
    alone = taken(name, 0, [[joined(rank_batches(name, step))] for step in range(2)])
    parts = [taken(name, 0, [[rank_batches(name, step)[rank]] for step in range(2)]) for rank in range(2)]
    keys = [key for key in alone if key.startswith("gradient")]
    worst = max(
        float(((parts[0][key] + parts[1][key]) / 2 - alone[key]).abs().max() / alone[key].abs().max()) for key in keys
    )
    assert worst > 0.05


@each_stage
def test_order_of_the_samples_does_not_matter(name, number):
    batch = joined(rank_batches(name, 0))
    shuffled = torch.randperm(len(batch.labels), generator=torch.Generator().manual_seed(1))
    views = tuple(view[shuffled] for view in batch.views)
    other = batch._replace(views=views, labels=batch.labels[shuffled])
    assert_same(taken(name, number, [[other]]), taken(name, number, [[batch]]))


@pytest.mark.parametrize(("name", "number"), one_sample_alone)
def test_micro_batches_equal_one_batch(name, number):
    micro = rank_batches(name, 0)
    assert_same(taken(name, number, [micro]), taken(name, number, [[joined(micro)]]))


# --- state


def loss_of(objective, outputs, labels):
    sums, below = objective(outputs, labels), objective.denominators(labels)
    assert sums.keys() == below.keys() == objective.weights.keys()
    return sum(objective.weights[term] * sums[term] / below[term] for term in sums)


@each_stage
def test_state_dict_restores_an_objective(name, number):
    model, _ = model_of(name, number)
    model = model.double().eval()
    objective = objective_of(name, number).double()
    objective.begin_epoch(0)
    for step in range(2):
        batch = joined(rank_batches(name, step))
        loss_of(objective, model(torch.cat(batch.views)), batch.labels)
        objective.end_epoch()
        objective.begin_epoch(step + 1)
    saved = {key: value.clone() for key, value in objective.state_dict().items()}
    other = objective_of(name, number).double()
    other.load_state_dict(saved)
    other.begin_epoch(2)
    batch = joined(rank_batches(name, 5))
    with torch.no_grad():
        outputs = model(torch.cat(batch.views))
        fresh = objective_of(name, number).double()
        values = [float(loss_of(one, outputs, batch.labels)) for one in (objective, other, fresh)]
    assert values[0] == values[1]
    if name == "proco":  # its statistics matter
        assert values[0] != values[2]
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in objective.state_dict().items())


def number_of(value):
    return value.detach().item()


def test_proco_uses_the_statistics_of_the_last_epoch():
    objective = objective_of("proco").double()
    model, _ = model_of("proco")
    batch = joined(rank_batches("proco", 0))
    with torch.no_grad():
        objective(model.double().eval()(torch.cat(batch.views)), batch.labels)
    statistics, seen = objective.loss.statistics, 2 * torch.bincount(batch.labels)  # two contrast views
    assert torch.equal(statistics.counts, seen)
    objective.end_epoch()
    assert torch.equal(statistics.mean_counts, seen)
    assert not statistics.counts.any()


# --- compilers and graphs


@pytest.mark.parametrize("name", mostly_slow(["cbs", "ldam-drw", "reslt", "bcl", "proco"], ["cbs"]))
def test_compiled_with_its_model_without_a_graph_break(name):
    torch.compiler.reset()
    model, _ = model_of(name)
    model = model.double().eval()
    objective, again = objective_of(name).double(), objective_of(name).double()
    batch = joined(rank_batches(name, 0))
    images = torch.cat(batch.views)

    def loss(images, labels):
        return loss_of(objective, model(images), labels)

    found = torch.compile(loss, fullgraph=True, backend="aot_eager")(images, batch.labels)
    gradients = torch.autograd.grad(found, [p for p in model.parameters() if p.requires_grad])
    expected = loss_of(again, model(images), batch.labels)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    plain = torch.autograd.grad(expected, [p for p in model.parameters() if p.requires_grad])
    for one, other in zip(gradients, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    for key, value in again.state_dict().items():
        torch.testing.assert_close(objective.state_dict()[key], value)


def gpu_step(name, number):
    model, parameters = model_of(name, number)
    model = model.cuda().train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer([{"params": parameters, "weight_decay": 5e-4}], momentum=0.9)
    step = Step(model, objective_of(name, number).cuda(), optimizer)
    step.set_rate(0.01)
    batches = [joined(rank_batches(name, place)) for place in range(2)]
    batches = [
        b._replace(views=tuple(view.float().cuda() for view in b.views), labels=b.labels.cuda()) for b in batches
    ]
    return step, batches


@pytest.mark.gpu
@each_stage
def test_captured_step_does_not_wait_and_equals_the_eager_step(name, number):
    plain, batches = gpu_step(name, number)
    for place in (0, 0, 0, 0, 1):  # three to warm up, then the two that are compared
        plain([batches[place]])
    graphed, (first, second) = gpu_step(name, number)
    held = first._replace(views=tuple(view.clone() for view in first.views), labels=first.labels.clone())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graphed([held])  # libraries make themselves ready
        with no_waiting():
            for _ in range(2):
                graphed([held])
        torch.cuda.synchronize()
        graphed.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, stream=stream):
            graphed([held])
        graph.replay()
        for into, view in zip((*held.views, held.labels), (*second.views, second.labels), strict=True):
            into.copy_(view)
        graph.replay()
    torch.cuda.synchronize()
    assert int(graphed.taken) == 5
    for one, other in zip(graphed.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(graphed.loss_sum, plain.loss_sum, rtol=1e-4, atol=1e-4)


# --- values, from the formulas


def logits_and_labels():
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(8, len(COUNTS), dtype=torch.float64, generator=generator)
    return Outputs(logits, torch.zeros(8, 2), {}), torch.tensor([0, 0, 1, 2, 3, 4, 0, 1])


def cross_entropy(z, y):
    """The loss of each row, by definition."""
    z = z.detach().numpy() if isinstance(z, torch.Tensor) else z
    return np.array([np.log(np.exp(row - row[c]).sum()) for row, c in zip(z, np.asarray(y), strict=True)])


def effective(b):
    weights = (1 - b) / (1 - b**N)
    return weights * len(N) / weights.sum()


@pytest.mark.parametrize(
    ("name", "given", "shift"),
    [
        ("softmax", {}, 0 * N),
        ("balanced-softmax", {}, np.log(N)),
        ("cbs", {}, 1.5 * np.log(N)),
        ("cbs", {"beta": 0.4}, 0.4 * np.log(N)),
        ("logit-adjust", {"tau": 0.8}, 0.8 * np.log(N / N.sum())),
        ("logit-adjust-posthoc", {}, 0 * N),
        ("tau-norm", {}, 0 * N),
        ("class-balanced-sampling", {}, 0 * N),
    ],
)
def test_shifted_losses(name, given, shift):
    outputs, labels = logits_and_labels()
    objective = objective_of(name, **given)
    expected = cross_entropy(outputs.logits + torch.from_numpy(shift), labels).mean()
    assert number_of(loss_of(objective, outputs, labels)) == pytest.approx(expected, rel=1e-6)
    found = objective.logit_shift.double().numpy()
    np.testing.assert_allclose(found - found.mean(), shift - shift.mean(), rtol=1e-6, atol=1e-6)


def test_focal():
    outputs, labels = logits_and_labels()
    entropy = cross_entropy(outputs.logits, labels)
    expected = ((1 - np.exp(-entropy)) ** 2 * entropy).mean()
    assert number_of(loss_of(objective_of("focal"), outputs, labels)) == pytest.approx(expected, rel=1e-9)


def test_class_weights_are_a_weighted_mean():
    outputs, labels = logits_and_labels()
    weights = effective(0.9999)[labels]
    expected = (weights * cross_entropy(outputs.logits, labels)).sum() / weights.sum()
    found = loss_of(objective_of("class-balanced-weights"), outputs, labels)
    assert number_of(found) == pytest.approx(expected, rel=1e-6)


def ldam(cosines, labels, weights):
    """Cao et al.: subtract the margin from the cosine of the true class, then multiply by 30."""
    margin = N**-0.25 * 0.5 / (N**-0.25).max()
    z = np.array(cosines)
    z[np.arange(len(labels)), labels] -= margin[labels]
    weights = weights[labels]
    return (weights * cross_entropy(30 * z, labels)).sum() / weights.sum()


def cosine_outputs(name):
    model, _ = model_of(name)
    model = model.double().eval()
    batch = joined(rank_batches(name, 0))
    outputs = model(batch.views[0])
    features = F.normalize(model.backbone(batch.views[0]), dim=1)
    cosines = (features @ F.normalize(model.head.class_vectors, dim=1).T).detach().numpy()
    return outputs, cosines, batch.labels


def test_ldam_over_the_cosine_head():
    outputs, cosines, labels = cosine_outputs("ldam")
    found = loss_of(objective_of("ldam"), outputs, labels)
    assert number_of(found) == pytest.approx(ldam(cosines, labels.numpy(), np.ones(len(N))), rel=1e-6)


@pytest.mark.parametrize(("epoch", "weighted"), [(0, False), (7, False), (8, True), (9, True)])
def test_deferred_weights_begin_at_their_epoch(epoch, weighted):
    """Weights are on in the last two of ten epochs; in the paper from epoch 160 of 200."""
    assert EPOCHS == 10
    outputs, cosines, labels = cosine_outputs("ldam-drw")
    objective = objective_of("ldam-drw")
    objective.begin_epoch(9)
    objective.begin_epoch(epoch)  # whatever was before
    weights = effective(0.9999) if weighted else np.ones(len(N))
    assert number_of(loss_of(objective, outputs, labels)) == pytest.approx(
        ldam(cosines, labels.numpy(), weights), rel=1e-6
    )


def test_deferred_weights_of_the_papers_run_begin_at_epoch_160():
    from longtail.methods import Task

    task = Task(COUNTS, contract.GROUPS, 200, METHODS["ldam-drw"].params())
    assert METHODS["ldam-drw"].stages[0].objective(task).from_epoch == 160


def test_reslt_counts_each_branchs_samples():
    """H uses all samples, M medium and tail, T tail; sums are divided by the number of samples used in all."""
    generator = torch.Generator().manual_seed(4)
    branches = torch.randn(3, 8, len(COUNTS), dtype=torch.float64, generator=generator)
    _, labels = logits_and_labels()
    total, seen = 0.0, 0
    for logits, classes in zip(branches, ({0, 1, 2, 3, 4}, {2, 3, 4}, {3, 4}), strict=True):
        rows = [row for row, label in enumerate(labels.tolist()) if label in classes]
        total += cross_entropy(logits[rows], labels[rows]).sum()
        seen += len(rows)
    expected = 0.99 * total / seen + 0.01 * cross_entropy(branches.sum(0), labels).mean()
    outputs = Outputs(branches.sum(0), torch.zeros(8, 2), {"branches": branches})
    assert number_of(loss_of(objective_of("reslt"), outputs, labels)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["bcl", "proco"])
@pytest.mark.parametrize(("given", "beta"), [({}, 1.0), ({"beta": 0}, 0.0), ({"beta": 1.2}, 1.2)])
def test_beta_of_contrastive_methods_shifts_both_parts(name, given, beta):
    objective = objective_of(name, **given)
    shift = beta * np.log(N)
    model, _ = model_of(name)
    batch = joined(rank_batches(name, 0))
    outputs = model.double().eval()(torch.cat(batch.views))
    rows = len(batch.labels)
    expected = cross_entropy(outputs.logits[:rows] + torch.from_numpy(shift), batch.labels).sum()
    assert number_of(objective(outputs, batch.labels)["classifier"]) == pytest.approx(expected, rel=1e-6)
    if name == "proco":
        held = objective.loss._shift.double().numpy()
        np.testing.assert_allclose(held - held.mean(), shift - shift.mean(), rtol=1e-6, atol=1e-6)


def test_contrastive_logits_of_proco_are_shifted():
    """The loss is the cross entropy of shifted logits: without the part of the shift, both are equal."""
    model, _ = model_of("proco")
    batch = joined(rank_batches("proco", 0))
    outputs = model.double().eval()(torch.cat(batch.views))
    values = {}
    for beta in (0.0, 1.2):
        objective = objective_of("proco", beta=beta).double()
        values[beta] = number_of(objective(outputs, batch.labels)["contrast"])
        from longtail.losses import proco_logits

        rows = len(batch.labels)
        views = outputs.extra["projection"][rows:].view(2, rows, -1).detach()
        again = objective_of("proco", beta=beta).double()
        expected = 0.0
        for view in views:
            again.loss.statistics.update(view, batch.labels)
            logits = proco_logits(view, *again.loss.statistics.estimate(), 0.1)
            expected += cross_entropy(logits + torch.from_numpy(beta * np.log(N)), batch.labels).sum() / 2
        assert values[beta] == pytest.approx(expected, rel=1e-5)
    assert values[0.0] != pytest.approx(values[1.2], rel=1e-3)


# --- options


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_label_smoothing_is_that_of_cross_entropy(smoothing):
    outputs, labels = logits_and_labels()
    for name, shift in (("softmax", 0 * N), ("cbs", 1.5 * np.log(N))):
        found = loss_of(objective_of(name, label_smoothing=smoothing), outputs, labels)
        shifted = outputs.logits + torch.from_numpy(shift)
        assert number_of(found) == pytest.approx(float(F.cross_entropy(shifted, labels, label_smoothing=smoothing)))


@pytest.mark.parametrize(("name", "number"), STAGES)
def test_label_smoothing_reaches_every_objective(name, number):
    model, _ = model_of(name, number)
    batch = joined(rank_batches(name, 0))
    with torch.no_grad():
        outputs = model.double().eval()(torch.cat(batch.views))
    plain, smooth = (
        float(loss_of(objective_of(name, number, label_smoothing=s).double(), outputs, batch.labels))
        for s in (0.0, 0.2)
    )
    assert plain != pytest.approx(smooth, rel=1e-6)


def mixed_step(name, number, share):
    model, parameters = model_of(name, number)
    model = model.double().eval()
    objective = objective_of(name, number).double()
    objective.begin_epoch(EPOCHS - 1)
    optimizer = make_optimizer([{"params": parameters, "weight_decay": 0.0}], momentum=0.0)
    step = Step(model, objective, optimizer)
    batch = joined(rank_batches(name, 0))
    step([batch], None if share is None else torch.tensor(share, dtype=torch.float64))
    return step, model, objective, batch, [p.grad.clone() for p in parameters]


@pytest.mark.parametrize(("name", "number"), one_sample_alone)
def test_mixup_with_weight_one_changes_nothing(name, number):
    plain, *_, gradients = mixed_step(name, number, None)
    mixed, *_, others = mixed_step(name, number, 1.0)
    assert float(plain.loss_sum) == float(mixed.loss_sum)
    for one, other in zip(gradients, others, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("name", "number"), one_sample_alone)
def test_mixup_follows_the_formula(name, number):
    """Zhang et al.: the loss of the mixed image with both labels, weighted by the shares."""
    share = 0.3
    step, model, objective, batch, _ = mixed_step(name, number, share)
    images, other = batch.views[0], batch.labels.flip(0)
    with torch.no_grad():
        outputs = model(share * images + (1 - share) * images.flip(0))
        expected = 0.0
        for term, weight in objective.weights.items():
            below = sum(
                part * float(objective.denominators(labels)[term])
                for part, labels in ((share, batch.labels), (1 - share, other))
            )
            above = share * objective(outputs, batch.labels)[term] + (1 - share) * objective(outputs, other)[term]
            expected += weight * float(above) / below
    assert float(step.loss_sum) == pytest.approx(expected, rel=1e-9)


def test_loss_that_averages_is_refused():
    with pytest.raises(ValueError, match="reduction='none'"):
        SupervisedLoss(ClassBalancedSoftmaxLoss([3, 1], beta=1.0))


class Unreduced(Objective):
    """One correct term, and one whose value or denominator is not a sum."""

    def __init__(self, spoilt):
        super().__init__({"right": 1.0, "wrong": 0.5})
        self.spoilt = spoilt

    def denominators(self, target):
        below = super().denominators(target)
        return below if self.spoilt == "sum" else below | {"wrong": torch.ones(len(target))}

    def forward(self, outputs, target):
        each = F.cross_entropy(outputs.logits, target, reduction="none")
        return {"right": each.sum(), "wrong": each if self.spoilt == "sum" else each.sum()}


@pytest.mark.parametrize(
    ("spoilt", "shapes"),
    [
        ("sum", r"shape \(22,\) for the term 'wrong' and \(\) for its denominator"),
        ("denominator", r"shape \(\) for the term 'wrong' and \(22,\) for its denominator"),
    ],
)
@pytest.mark.parametrize("share", [None, 0.3])
def test_term_that_is_not_summed_is_named_with_its_shape(spoilt, shapes, share):
    model, parameters = model_of("softmax")
    optimizer = make_optimizer([{"params": parameters, "weight_decay": 0.0}], momentum=0.0)
    step = Step(model.double(), Unreduced(spoilt), optimizer)
    with pytest.raises(ValueError, match=rf"Expected the objective to give sums .* of shape \(\), but got {shapes}\."):
        step([joined(rank_batches("softmax", 0))], None if share is None else torch.tensor(share))


def test_objective_can_be_copied_and_moved():
    for name, number in STAGES:
        objective = copy.deepcopy(objective_of(name, number)).to("cpu", torch.float32)
        assert objective.state_dict().keys() == objective_of(name, number).state_dict().keys()


def test_scaled_loss_is_not_a_pure_shift():
    loss = ClassBalancedSoftmaxLoss([90, 10], beta=1.5, reduction="none")
    assert SupervisedLoss(loss).is_pure_shift
    assert not SupervisedLoss(loss, scale=30.0).is_pure_shift


class MeanLoss(Loss):
    def forward(self, logits, target):
        return F.cross_entropy(logits, target)


def test_a_loss_without_one_value_per_sample_is_refused():
    outputs = Outputs(torch.zeros(4, 3), torch.zeros(4, 2), {})
    with pytest.raises(ValueError, match=r"MeanLoss.*per sample, shape \(4,\), but got shape \(\)"):
        SupervisedLoss(MeanLoss(reduction="none"))(outputs, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"task\.options"):
        SupervisedLoss(MeanLoss())
    with pytest.raises(TypeError, match=r"longtail\.losses\.Loss, but got CrossEntropyLoss"):
        SupervisedLoss(torch.nn.CrossEntropyLoss(reduction="none"))
