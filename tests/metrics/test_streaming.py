"""The streaming metric: over batches, over two processes, and as a torchmetrics.Metric."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longtail import Groups, class_shift
from longtail.metrics import (
    ClassStatistics,
    ClassStatisticsMetric,
    GroupRecallMetric,
    class_statistics,
    gradient_balance,
    recall,
)

SHIFT = class_shift([1000, 100, 10, 1], 1.5)


def data(size=90, num_classes=4, dimension=3):
    """Logits, labels and features; the same in every process."""
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, num_classes, (size,), generator=generator)
    logits = torch.randn(size, num_classes, generator=generator, dtype=torch.float64)
    features = torch.randn(size, dimension, generator=generator, dtype=torch.float64)
    return logits, label.where(torch.arange(size) % 11 > 0, -100), features


def assert_same(found, wanted):
    assert isinstance(found, ClassStatistics)
    found, wanted = found.tensors(), wanted.tensors()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("sizes", [[1] * 90, [30, 0, 59, 1]])
@pytest.mark.parametrize("options", [{}, {"shift": SHIFT, "bins": 7}])
def test_update_over_batches_is_the_statistics_of_all(sizes, options):
    logits, label, features = data()
    metric = ClassStatisticsMetric(4, num_features=3, **options)
    for z, y, h in zip(logits.split(sizes), label.split(sizes), features.split(sizes), strict=True):
        metric.update(z, y, h)
    assert_same(metric.compute(), class_statistics(logits, label, features, **options))


def test_without_features():
    logits, label, _ = data()
    metric = ClassStatisticsMetric(num_classes=4)
    metric.update(logits, label)
    assert metric.compute().weight_reward is None
    assert metric.compute().weight_penalty is None
    assert_same(metric.compute(), class_statistics(logits, label))


def test_dense_half_precision_and_another_ignore_index():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 5, 3, generator=generator).half()
    label = torch.randint(0, 4, (2, 5, 3), generator=generator)
    label[0, 0] = 255
    metric = ClassStatisticsMetric(4, ignore_index=255)
    metric.update(logits[:1], label[:1])
    metric.update(logits[1:], label[1:])
    wanted = class_statistics(logits, label, ignore_index=255)
    assert wanted.samples.sum() == 27
    assert_same(metric.compute(), wanted)


def test_computed_statistics_do_not_change_later():
    logits, label, _ = data()
    metric = ClassStatisticsMetric(4)
    metric.update(logits[:30], label[:30])
    early = metric.compute()
    metric.update(logits[30:], label[30:])
    assert_same(early, class_statistics(logits[:30], label[:30]))
    assert_same(metric.compute(), class_statistics(logits, label))
    metric.reset()
    assert_same(early, class_statistics(logits[:30], label[:30]))


def test_reset():
    logits, label, features = data()
    metric = ClassStatisticsMetric(4, num_features=3, shift=SHIFT)
    metric.update(logits[:50], label[:50], features[:50])
    metric.reset()
    assert all(not getattr(metric, name).any() for name in metric.metric_state)
    metric.update(logits[50:], label[50:], features[50:])
    assert_same(metric.compute(), class_statistics(logits[50:], label[50:], features[50:], shift=SHIFT))


def test_forward_returns_the_batchs_value_and_adds_it_up():
    logits, label, features = data()
    metric = ClassStatisticsMetric(4, num_features=3, shift=SHIFT)
    for part in torch.arange(90).split(40):
        value = metric(logits[part], label[part], features[part])
        assert_same(value, class_statistics(logits[part], label[part], features[part], shift=SHIFT))
    assert_same(metric.compute(), class_statistics(logits, label, features, shift=SHIFT))


def test_compute_before_the_first_update():
    metric = ClassStatisticsMetric(3, num_features=2)
    with pytest.warns(UserWarning, match="before the ``update``"):
        statistics = metric.compute()
    assert_same(statistics, class_statistics(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2)))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda metric: pickle.loads(pickle.dumps(metric)), "clone"])
def test_copies_are_independent(copied):
    logits, label, features = data()
    metric = ClassStatisticsMetric(4, num_features=3, shift=SHIFT, bins=5)
    metric.update(logits[:50], label[:50], features[:50])
    other = metric.clone() if copied == "clone" else copied(metric)
    other.update(logits[50:], label[50:], features[50:])
    assert_same(other.compute(), class_statistics(logits, label, features, shift=SHIFT, bins=5))
    assert_same(metric.compute(), class_statistics(logits[:50], label[:50], features[:50], shift=SHIFT, bins=5))


def test_state_dict():
    logits, label, features = data()
    metric = ClassStatisticsMetric(4, num_features=3, shift=SHIFT)
    assert metric.state_dict() == {}  # the default of every metric
    metric.persistent(True)
    metric.update(logits[:50], label[:50], features[:50])
    saved = metric.state_dict()
    assert saved.keys() == metric.metric_state.keys()
    resumed = ClassStatisticsMetric(4, num_features=3, shift=SHIFT)
    resumed.persistent(True)
    resumed.load_state_dict(saved)
    resumed.update(logits[50:], label[50:], features[50:])
    assert_same(resumed.compute(), class_statistics(logits, label, features, shift=SHIFT))


def test_memory_does_not_depend_on_the_number_of_samples():
    def held(metric):
        return {name: (value.shape, value.dtype) for name, value in metric.metric_state.items()}

    metric = ClassStatisticsMetric(4, num_features=3)
    at_first = held(metric)
    logits, label, features = data(size=2000)
    for part in torch.arange(2000).split(100):
        metric.update(logits[part], label[part], features[part])
    assert held(metric) == at_first
    assert sum(value.numel() * value.element_size() for value in metric.metric_state.values()) < 4000


@pytest.mark.parametrize("cast", [lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.to(torch.float64)])
def test_casting_a_model_does_not_round_the_sums(cast):
    logits, label, features = data(size=4000)
    alone = ClassStatisticsMetric(4, num_features=3, shift=SHIFT)
    model = torch.nn.Module()
    model.metric = ClassStatisticsMetric(4, num_features=3, shift=SHIFT)
    model.metric.update(logits[:100], label[:100], features[:100])
    alone.update(logits[:100], label[:100], features[:100])
    cast(model)
    for _ in range(2):  # and again after a reset, from zeros that are not rounded either
        for part in torch.arange(4000).split(40):
            for metric in (model.metric, alone):
                metric.update(logits[part], label[part], features[part])
        for name, value in alone.compute().tensors().items():
            assert torch.equal(getattr(model.metric.compute(), name), value), name
        model.metric.reset()
        alone.reset()
    assert model.metric.set_dtype(torch.float64).probability_sum.dtype == torch.float64


def test_one_class_only():
    metric = ClassStatisticsMetric(1, num_features=1)
    for _ in range(3):
        value = metric(torch.randn(5, 1), torch.zeros(5, dtype=torch.int64), torch.ones(5, 1))
        assert value.samples.shape == (1,)  # torchmetrics squeezes such where it can
        assert value.weight_reward.shape == (1, 1)
        assert value.bin_samples.shape == (1, 15)
    total = metric.compute()
    assert total.samples.tolist() == [15]
    assert total.bias_reward.shape == (1,)
    assert recall(total.correct, total.samples, Groups(("one",), (0,))).all == 1.0


def test_measures_of_what_it_returns():
    logits, label, features = data()
    metric = ClassStatisticsMetric(4, num_features=3, shift=SHIFT)
    metric.update(logits, label, features)
    statistics = metric.compute()
    groups = Groups.from_indices(head=[0, 1], tail=[2, 3])
    predicted = logits.argmax(1)
    wanted = [(predicted[label == c] == c).double().mean().item() for c in range(4)]
    assert recall(statistics.correct, statistics.samples, groups).per_class.tolist() == pytest.approx(wanted)
    balance = gradient_balance(statistics.bias_reward, statistics.bias_penalty, groups)
    p = (logits + SHIFT).softmax(1)[label >= 0]
    y = label[label >= 0]
    reward = torch.stack([(1 - p[y == c, c]).sum() for c in range(4)])
    penalty = torch.stack([p[y != c, c].sum() for c in range(4)])
    torch.testing.assert_close(balance.per_class, (reward - penalty) / reward * 100)


def test_merge_state():
    logits, label, _ = data()
    a, b = ClassStatisticsMetric(4), ClassStatisticsMetric(4)
    a.update(logits[:50], label[:50])
    b.update(logits[50:], label[50:])
    a.merge_state(b)
    assert_same(a.compute(), class_statistics(logits, label))


def test_the_shift_keeps_its_precision_in_a_model_that_is_cast():
    metric = ClassStatisticsMetric(4, shift=SHIFT)
    torch.nn.ModuleDict({"metric": metric}).half()
    logits, label, _ = data()
    metric.update(logits, label)
    assert_same(metric.compute(), class_statistics(logits, label, shift=SHIFT))


# --- bad input


@pytest.mark.parametrize("num_features", [None, 3])
def test_features_exactly_if_num_features_is_given(num_features):
    logits, label, features = data()
    metric = ClassStatisticsMetric(4, num_features=num_features)
    with pytest.raises(ValueError, match=f"`features`.*num_features={num_features}"):
        metric.update(logits, label, features if num_features is None else None)
    assert metric.samples.sum() == 0


@pytest.mark.parametrize(("announced", "given"), [(3, 5), (3, 1)])
def test_features_of_another_width(announced, given):
    logits, label, features = data(dimension=given)
    metric = ClassStatisticsMetric(4, num_features=announced)
    with pytest.raises(ValueError, match=rf"`features`.*{announced}.*{given}"):
        metric.update(logits, label, features)
    assert metric.samples.sum() == 0  # a batch is added as a whole or not at all
    assert metric.weight_reward.shape == (4, announced)


@pytest.mark.parametrize(("announced", "given"), [(5, 3), (5, 1)])
def test_logits_of_another_width(announced, given):
    metric = ClassStatisticsMetric(announced)
    with pytest.raises(ValueError, match=rf"`logits`.*{announced}.*{given}"):
        metric.update(torch.zeros(4, given), torch.zeros(4, dtype=torch.int64))
    assert metric.samples.tolist() == [0] * announced


def test_labels_out_of_range():
    metric = ClassStatisticsMetric(4)
    with pytest.raises(ValueError, match=r"`target`.*0…3.*4"):
        metric.update(torch.zeros(2, 4), torch.tensor([0, 4]))
    assert metric.samples.sum() == 0


@pytest.mark.parametrize("num_classes", [0, 2.0])
def test_bad_number_of_classes(num_classes):
    with pytest.raises((TypeError, ValueError), match="`num_classes`"):
        ClassStatisticsMetric(num_classes)


@pytest.mark.parametrize("num_features", [-1, 2.5])
def test_bad_number_of_features(num_features):
    with pytest.raises((TypeError, ValueError), match="`num_features`"):
        ClassStatisticsMetric(4, num_features=num_features)


@pytest.mark.parametrize("bins", [0, 1.5])
def test_bad_bins(bins):
    with pytest.raises((TypeError, ValueError), match="`bins`"):
        ClassStatisticsMetric(4, bins=bins)


@pytest.mark.parametrize("shift", [torch.zeros(3), torch.zeros(4, 1), [0.0, 0.0, 0.0, 0.0]])
def test_bad_shift(shift):
    with pytest.raises((TypeError, ValueError), match="`shift`"):
        ClassStatisticsMetric(4, shift=shift)


# --- recall of groups, for loggers


def test_group_recall_is_recall_as_a_flat_dict():
    logits, label, _ = data()
    groups = Groups.from_indices(head=[0, 1], medium=[], tail=[2, 3])
    metric = GroupRecallMetric(groups)
    for part in torch.arange(90).split(20):
        metric.update(logits[part], label[part])
    statistics = class_statistics(logits, label)
    wanted = recall(statistics.correct, statistics.samples, groups)
    found = metric.compute()
    assert list(found) == ["recall", "recall_head", "recall_tail"]
    assert all(isinstance(value, torch.Tensor) and value.ndim == 0 for value in found.values())
    assert found["recall"].item() == pytest.approx(wanted.all, rel=1e-6)
    assert found["recall_head"].item() == pytest.approx(wanted.groups["head"], rel=1e-6)
    assert found["recall_tail"].item() == pytest.approx(wanted.groups["tail"], rel=1e-6)


def test_group_recall_leaves_out_classes_without_a_sample():
    metric = GroupRecallMetric(Groups.from_indices(head=[0], tail=[1, 2]), ignore_index=255)
    metric.update(torch.eye(3)[[0, 1, 1, 0]], torch.tensor([0, 1, 0, 255]))
    assert {name: value.item() for name, value in metric.compute().items()} == {
        "recall": 0.75,
        "recall_head": 0.5,
        "recall_tail": 1.0,
    }
    metric.reset()
    metric.update(torch.eye(3)[[0]], torch.tensor([0]))
    assert metric.compute()["recall_tail"].isnan()


def test_group_recall_is_a_metric_like_any_other():
    logits, label, _ = data()
    groups = Groups.from_indices(head=[0, 1], tail=[2, 3])
    one, other = GroupRecallMetric(groups), pickle.loads(pickle.dumps(GroupRecallMetric(groups)))
    one.update(logits[:50], label[:50])
    other.half().update(logits[50:], label[50:])
    one.merge_state(other)
    whole = GroupRecallMetric(groups)
    assert whole(logits, label) == one.compute()
    with pytest.raises(ValueError, match=r"`logits`.*4.*3"):
        one.update(torch.zeros(2, 3), torch.tensor([0, 1]))


# --- imported only on use


@pytest.mark.slow
def test_torchmetrics_is_imported_only_on_use():
    script = (
        "import sys, longtail, longtail.metrics\n"
        "assert 'torchmetrics' not in sys.modules, 'imported too early'\n"
        "from longtail.metrics import class_statistics\n"
        "assert 'torchmetrics' not in sys.modules, 'imported too early'\n"
        "from longtail.metrics import ClassStatisticsMetric\n"
        "import torchmetrics\n"
        "assert issubclass(ClassStatisticsMetric, torchmetrics.Metric)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_unknown_names_are_refused():
    import longtail.metrics

    assert longtail.metrics.ClassStatisticsMetric is ClassStatisticsMetric
    with pytest.raises(AttributeError, match="NoSuchMetric"):
        _ = longtail.metrics.NoSuchMetric


# --- two processes: this file runs itself


def cases():
    """Name, how the metric is made, the whole data, and which rows each rank sees in which batches."""
    everything = data()
    rows = torch.arange(90)
    yield "halves", {"num_classes": 4}, everything[:2], (rows[:45].split(10), rows[45:].split(30))
    yield "all fields", {"num_classes": 4, "num_features": 3, "shift": SHIFT}, everything, ([rows[::2]], [rows[1::2]])
    yield "uneven", {"num_classes": 4}, everything[:2], ([rows[:1]], rows[1:].split(7))
    yield "an empty rank", {"num_classes": 4, "num_features": 3}, everything, ([rows], [rows[:0]])
    one = (torch.zeros(9, 1), torch.zeros(9, dtype=torch.int64))
    yield "one class", {"num_classes": 1}, one, ([rows[:4]], [rows[4:9]])


def as_rank(rank, folder):
    """Gather this rank's share of every case and save what `compute` gives."""
    init = f"file://{folder / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=init, rank=rank, world_size=2)
    results = {}
    for name, options, tensors, shares in cases():
        metric = ClassStatisticsMetric(**options)
        for part in shares[rank]:
            metric.update(*(tensor[part] for tensor in tensors))
        results[name] = metric.compute().tensors()
        results[f"{name}, here"] = {key: getattr(metric, key) for key in results[name]}  # unsynced again
    torch.save(results, folder / f"rank{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_two_processes_gather_the_statistics_of_all(tmp_path):
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(tmp_path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=120)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(printed)
    for rank in range(2):
        results = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        for name, options, tensors, shares in cases():
            shift = options.get("shift")
            assert_same(ClassStatistics(**results[name]), class_statistics(*tensors, shift=shift))
            mine = torch.cat(list(shares[rank]))
            own = class_statistics(*(tensor[mine] for tensor in tensors), shift=shift)
            assert_same(ClassStatistics(**results[f"{name}, here"]), own)


if __name__ == "__main__":
    as_rank(int(sys.argv[1]), Path(sys.argv[2]))
