"""Class statistics on a GPU: the same numbers, no waiting for the device, and capturable in a graph."""

import contextlib
import copy

import pytest
import torch
from tests.waiting import no_waiting

from longtail import Groups, class_shift
from longtail.metrics import (
    ClassStatisticsMetric,
    class_statistics,
    expected_calibration_error,
    gradient_balance,
    mean_target_probability,
    probability_shift,
    recall,
)

pytestmark = pytest.mark.gpu

COUNTS = [1000, 300, 100, 30, 10, 3, 1]
SHIFT = class_shift(COUNTS, 1.5)


def data(size=500, dtype=torch.float64, where=()):
    """Logits, labels and features on the CPU, some labels ignored."""
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, 7, (size, *where), generator=generator)
    logits = 2 * torch.randn(size, 7, *where, generator=generator, dtype=torch.float64)
    features = torch.randn(size, 16, *where, generator=generator, dtype=torch.float64)
    label.view(-1)[::13] = -100
    return logits.to(dtype), label, features.to(dtype)


def on_gpu(*tensors):
    return tuple(tensor.cuda() for tensor in tensors)


def assert_same(found, wanted, rtol=1e-9, atol=1e-9, bins=True):
    found, wanted = found.tensors(), wanted.tensors()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].is_cuda
        here = found[name].cpu()
        if not bins and name.startswith("bin_"):  # rounding may put a confidence on the other side of an edge
            here, value = here.sum(1), value.sum(1)  # noqa: PLW2901
        torch.testing.assert_close(here, value, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("where", [(), (5, 3)])
@pytest.mark.parametrize("shift", [None, SHIFT])
def test_statistics_are_those_of_the_cpu(where, shift):
    batch = data(where=where)
    found = class_statistics(*on_gpu(*batch), shift=None if shift is None else shift.cuda())
    assert_same(found, class_statistics(*batch, shift=shift))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_statistics_of_lower_precision(dtype):
    batch = data(dtype=dtype)
    found = class_statistics(*on_gpu(*batch), shift=SHIFT.cuda())
    wanted = class_statistics(batch[0].double(), batch[1], batch[2].double(), shift=SHIFT)
    assert_same(found, wanted, rtol=2e-5, atol=2e-5, bins=False)


def test_metric_is_that_of_the_cpu():
    batch = data()
    metric = ClassStatisticsMetric(7, num_features=16, shift=SHIFT).cuda()
    assert metric.shift.is_cuda
    for part in torch.arange(500).split(128):
        metric.update(*on_gpu(*(tensor[part] for tensor in batch)))
    assert_same(metric.compute(), class_statistics(*batch, shift=SHIFT))
    metric.reset()
    assert metric.samples.is_cuda
    value = metric(*on_gpu(*batch))
    assert_same(value, class_statistics(*batch, shift=SHIFT))
    assert_same(copy.deepcopy(metric).compute(), class_statistics(*batch, shift=SHIFT))


@contextlib.contextmanager
def tf32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["tf32", "float16", "bfloat16"])
def test_sums_stay_precise_under_tf32_and_autocast(dtype):
    # Both are common where a model is evaluated, and neither may cost the statistics their digits.
    logits, label, features = data(size=4096, dtype=torch.float32)
    wanted = class_statistics(logits.double(), label, features.double(), shift=SHIFT)
    batch, shift = on_gpu(logits, label, features), SHIFT.cuda()
    with tf32() if dtype == torch.float32 else torch.autocast("cuda", dtype=dtype):
        found = class_statistics(*batch, shift=shift)
    assert_same(found, wanted, rtol=1e-4, atol=1e-4, bins=False)


def test_statistics_do_not_wait():
    batch, shift = on_gpu(*data()), SHIFT.cuda()
    with no_waiting():
        class_statistics(*batch, shift=shift)
        class_statistics(batch[0], batch[1])
    with no_waiting(), pytest.raises(RuntimeError, match="synchroniz"):
        batch[1].sum().item()  # that does wait: the check is on


def test_update_does_not_wait():
    batch = on_gpu(*data())
    metric = ClassStatisticsMetric(7, num_features=16, shift=SHIFT).cuda()
    with no_waiting():
        metric.update(*batch)
        metric.update(*batch)
    assert metric.compute().samples.sum().item() == 2 * (data()[1] >= 0).sum().item()


def warm_up(function):
    """Run once beside the current stream, as a capture requires."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)


def test_statistics_in_a_captured_graph():
    batch = data(size=512)
    static = [torch.empty_like(tensor[:128], device="cuda") for tensor in batch]
    for held, tensor in zip(static, batch, strict=True):
        held.copy_(tensor[:128])
    shift = SHIFT.cuda()
    warm_up(lambda: class_statistics(*static, shift=shift))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        statistics = class_statistics(*static, shift=shift)
    for start in range(0, 512, 128):
        for held, tensor in zip(static, batch, strict=True):
            held.copy_(tensor[start : start + 128])
        graph.replay()
        wanted = class_statistics(*(tensor[start : start + 128] for tensor in batch), shift=SHIFT)
        assert_same(statistics, wanted)


def test_a_captured_update_adds_up_over_replays():
    batch = data(size=512)
    static = [torch.empty_like(tensor[:128], device="cuda") for tensor in batch]
    for held, tensor in zip(static, batch, strict=True):
        held.copy_(tensor[:128])
    metric = ClassStatisticsMetric(7, num_features=16, shift=SHIFT).cuda()
    warm_up(lambda: metric.update(*static))  # counts the first 128 once
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # records, runs nothing
        metric.update(*static)
    for start in range(128, 512, 128):
        for held, tensor in zip(static, batch, strict=True):
            held.copy_(tensor[start : start + 128])
        graph.replay()
    assert_same(metric.compute(), class_statistics(*batch, shift=SHIFT))


def test_measures_take_statistics_from_the_gpu():
    batch = data()
    groups = Groups.from_indices(head=[0, 1], medium=[2, 3], tail=[4, 5, 6])
    there, here = class_statistics(*on_gpu(*batch)), class_statistics(*batch)
    for measure, names in (
        (recall, ("correct", "samples")),
        (probability_shift, ("probability_sum", "samples")),
        (mean_target_probability, ("target_probability_sum", "samples")),
        (gradient_balance, ("bias_reward", "bias_penalty")),
        (gradient_balance, ("weight_reward", "weight_penalty")),
        (expected_calibration_error, ("bin_samples", "bin_correct", "bin_confidence")),
    ):
        found, wanted = (measure(*(getattr(s, name) for name in names), groups) for s in (there, here))
        assert dict(found.groups) == pytest.approx(dict(wanted.groups), rel=1e-7)


@pytest.mark.parametrize("left_behind", ["target", "features", "shift"])
def test_mixes_of_devices_are_refused(left_behind):
    logits, target, features = data()
    arguments = {"target": target, "features": features, "shift": SHIFT}
    arguments = {name: value if name == left_behind else value.cuda() for name, value in arguments.items()}
    with pytest.raises(ValueError, match=f"{left_behind}.*cuda.*cpu"):
        class_statistics(logits.cuda(), **arguments)


def test_a_metric_left_on_the_cpu_is_refused():
    logits, target, _ = data()
    metric = ClassStatisticsMetric(7)
    with pytest.raises((ValueError, RuntimeError), match="device"):
        metric.update(logits.cuda(), target.cuda())
    assert metric.samples.sum() == 0


def test_labels_are_checked_where_asked_for():
    logits, target, _ = data()
    target[0] = 7
    with pytest.raises(ValueError, match=r"`target`.*7"):
        class_statistics(logits.cuda(), target.cuda(), check_labels=True)
