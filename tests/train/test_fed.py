"""Steps that a loader feeds to CUDA graphs, on an emulated GPU; ``test_fed_on_gpu.py`` has a real one."""

from contextlib import nullcontext
from functools import partial
from itertools import islice

import pytest
import torch
from tests.train.conftest import mostly_slow
from tests.train.feeding import BAD, assert_equal, copy_of, loader_of, sizes_in, state_of, step_of

from longtail.data.loaders.decode import UnreadableImageError
from longtail.train import drivers
from longtail.train.drivers import Eager, Fed
from longtail.train.graphs import StepGraphs


def failing_in_capture(gpu, step, size, error):
    """Have the model raise the error where it is captured on so many images, when it has done its work."""
    forward = step.model.forward

    def fails(images):
        outputs = forward(images)
        if gpu.capturing is not None and len(images) == size:
            raise error
        return outputs

    step.model.forward = fails


def assert_settled_once(gpu, driver):
    """The graphs' stream has waited for the usual one, and at last that for the graphs'."""
    stream = driver.graphs.stream
    assert gpu.waits == [(stream, gpu.usual), (gpu.usual, stream)]
    assert gpu.current is gpu.usual


def three_epochs(driver, step):
    """Take them, with another rate in each."""
    for epoch in range(3):
        step.set_rate(0.02 / (epoch + 1))
        step.objective.begin_epoch(epoch)
        list(driver.epoch(2, epoch, 0))
        step.objective.end_epoch()


@pytest.mark.parametrize(
    "case",
    mostly_slow(
        [("cbs", 0.0), ("cbs", 0.3), ("ldam-drw", 0.0), ("ldam-drw", 0.3), ("bcl", 0.0), ("proco", 0.0)],
        [("ldam-drw", 0.3), ("proco", 0.0)],
    ),
)
def test_replayed_steps_are_exactly_the_plain_ones(gpu, photographs, case):
    """Three epochs; in one of them the last batch lacks an image, and that one is stopped and continued."""
    method, mixup = case
    step, other = step_of(method), step_of(method)
    loader = loader_of(photographs, views=len(step.objective.views))
    before = copy_of(state_of(step))
    three_epochs(Eager(other, loader, mixup=mixup), other)
    driver, sizes = Fed(step, loader, mixup), []
    for epoch in range(3):
        step.set_rate(0.02 / (epoch + 1))
        step.objective.begin_epoch(epoch)
        sizes += sizes_in(loader.plan, 2, epoch)
        start = int(epoch == 1)
        if start:
            steps = driver.epoch(2, epoch, 0)
            next(steps)
            steps.close()
            assert list(driver.graphs._graphs) == [12, 4]
            driver = Fed(step, loader, mixup)
        assert len(list(driver.epoch(2, epoch, start))) == 4 - start
        step.objective.end_epoch()
    assert set(sizes) == {12, 11, 4, 3}
    assert gpu.replayed == [size for size in sizes if size in {12, 4}]
    assert gpu.captured == [12, 4, 12, 4]  # by either driver
    assert_equal(state_of(step), copy_of(state_of(other)))
    assert not any(torch.equal(before[name], value) for name, value in step.model.named_parameters())


@pytest.mark.parametrize(
    ("plan", "captured"),
    [
        ({}, [12, 4]),
        ({"drop_last": True}, [12]),
        ({"batch_size": 10}, [10]),
        ({"batch_size": 39}, [39, 1]),
        ({"batch_size": 64}, [40]),
    ],
)
def test_full_batches_and_the_last_have_graphs(gpu, photographs, plan, captured):
    loader = loader_of(photographs, **plan)
    loader.training = lambda seed, epoch, start: whole_batches(loader.plan, seed, epoch, start)
    step = step_of()
    driver = Fed(step, loader)
    three_epochs(driver, step)
    assert gpu.captured == list(driver.graphs._graphs) == captured
    assert len(gpu.replayed) == int(step.taken) == 3 * loader.plan.steps


def whole_batches(plan, seed, epoch, start):
    """Batches of a plan that have lost no picture; noise."""
    for planned in plan.training(seed, epoch, start):
        labels = plan.labels[planned.indices]
        yield drivers.Batch((torch.randn(len(labels), 3, 16, 16),), labels, planned.indices)


@pytest.mark.parametrize(("size", "tried"), [(12, [12]), (4, [12, 4])])
def test_a_step_that_cannot_be_captured_runs_eagerly(gpu, photographs, size, tried):
    """Full batches, or the last, when there is a graph for full ones already."""
    loader = loader_of(photographs)
    step, other = step_of(), step_of()
    three_epochs(Eager(other, loader, mixup=0.3), other)
    driver = Fed(step, loader, 0.3)
    pool = driver.graphs._pool
    failing_in_capture(gpu, step, size, RuntimeError("not permitted when stream is capturing\nand more"))
    with pytest.warns(UserWarning, match="cannot be captured") as warned:
        three_epochs(driver, step)
    assert [str(warning.message) for warning in warned] == [
        "The step cannot be captured (not permitted when stream is capturing): its kernels are launched one by one."
    ]
    assert gpu.captured == tried  # and never again
    assert not driver.graphs._graphs
    assert not driver._held
    assert gpu.released == [pool, pool]
    assert driver.graphs._pool is not pool
    assert gpu.draws
    assert_equal(state_of(step), copy_of(state_of(other)))


def test_an_allocator_that_has_ended_the_capture_needs_no_cleanup(gpu, photographs, monkeypatch):
    """What it says to that is not what went wrong."""

    def refuses(device, pool):
        raise RuntimeError("no such pool")

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", refuses)
    step = step_of()
    failing_in_capture(gpu, step, 12, RuntimeError("not permitted"))
    batch = next(loader_of(photographs).training(2, 0))
    before = copy_of(state_of(step))
    with pytest.raises(RuntimeError, match="previous error during capture"):
        StepGraphs(step).capture(12, partial(step, [batch]))
    assert_equal(state_of(step), before)


def test_an_earlier_error_is_not_reported_as_the_reason(gpu, photographs):
    step = step_of()
    driver = Fed(step, loader_of(photographs))
    failing_in_capture(gpu, step, 12, RuntimeError("not permitted"))
    try:
        raise FileNotFoundError("no checkpoint")
    except FileNotFoundError:
        with pytest.warns(UserWarning, match=r"captured \(not permitted\)"):
            list(driver.epoch(2, 0, 0))


def test_where_memory_ends_in_a_warm_up_no_graph_is_kept(gpu, photographs):
    step = step_of()
    driver = Fed(step, loader_of(photographs))
    forward, tried = step.model.forward, []

    def ends(images):
        tried.append(len(images))
        if tried.count(4) == 2:
            raise RuntimeError("CUDA out of memory")
        return forward(images)

    step.model.forward = ends
    with pytest.warns(UserWarning, match="out of memory"):
        list(driver.epoch(2, 0, 0))
    assert 12 in tried
    assert not driver.graphs._graphs
    assert not driver._held


def test_an_error_of_another_kind_is_raised(gpu, photographs):
    step = step_of()
    driver = Fed(step, loader_of(photographs))
    failing_in_capture(gpu, step, 12, KeyError("classes"))
    with pytest.raises(KeyError, match="classes"):
        next(driver.epoch(2, 0, 0))
    assert_settled_once(gpu, driver)


def test_two_steps_are_under_way_and_no_more(gpu, photographs):
    loader = loader_of(photographs, batch_size=4)
    step = step_of()
    seen = []
    for _ in Fed(step, loader).epoch(2, 0, 0):
        assert gpu.current is gpu.usual  # in between
        seen.append(len(gpu.under_way))
    assert seen == [1] + 9 * [2]
    assert gpu.most_under_way == 2


def test_a_batch_is_loaded_when_there_is_room_for_it(gpu, photographs):
    loader = loader_of(photographs, batch_size=4)

    def training(seed, epoch, start):
        for batch in whole_batches(loader.plan, seed, epoch, start):
            assert len(gpu.under_way) < 2
            assert gpu.current is not gpu.usual  # on which it is waited for
            yield batch

    loader.training = training
    assert len(list(Fed(step_of(), loader).epoch(2, 0, 0))) == 10


def test_an_epoch_waits_for_what_was_done_and_has_settled_at_its_end(gpu, photographs):
    driver = Fed(step_of(), loader_of(photographs))
    steps = driver.epoch(2, 0, 0)
    next(steps)
    assert gpu.waits == [(driver.graphs.stream, gpu.usual)]
    list(steps)
    assert_settled_once(gpu, driver)


def test_an_epoch_that_is_closed_early_has_settled(gpu, photographs):
    driver = Fed(step_of(), loader_of(photographs))
    steps = driver.epoch(2, 0, 0)
    next(steps)
    steps.close()
    assert_settled_once(gpu, driver)


def test_an_epoch_whose_loader_fails_has_settled(gpu, photographs):
    loader = loader_of(photographs, bad_images="error")
    driver = Fed(step_of(), loader)
    sizes = sizes_in(loader.plan, 2, 0)
    taken = 0
    with pytest.raises(UnreadableImageError, match=f"{BAD}.jpg"):  # noqa: PT012 - where it is raised is the point
        for _ in driver.epoch(2, 0, 0):
            taken += 1
    assert taken == sizes.index(11) > 0
    assert_settled_once(gpu, driver)


def test_an_epoch_ends_with_the_last_batch_that_can_be_read(gpu, photographs):
    loader = loader_of(photographs)
    loader.training = lambda seed, epoch, start: islice(whole_batches(loader.plan, seed, epoch, start), 2)
    driver = Fed(step_of(), loader)
    assert len(list(driver.epoch(2, 0, 0))) == 2
    assert_settled_once(gpu, driver)


@pytest.mark.parametrize("method", ["cbs", "ldam-drw", "bcl", "proco"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_warm_up_leaves_no_trace(gpu, photographs, method, fails):
    """Whether or not its last step fails; momenta and statistics are those of steps before."""
    step = step_of(method)
    batches = list(loader_of(photographs, views=len(step.objective.views)).training(2, 0))
    for batch in batches[1:]:
        step([batch])
    state, called = state_of(step), []
    before = copy_of(state)

    def take():
        called.append(int(step.taken))
        step([batches[0]])
        if fails and called[-1] == 5:
            raise ArithmeticError("the third")

    with pytest.raises(ArithmeticError, match="the third") if fails else nullcontext():
        StepGraphs(step)._warm_up(take, lambda: called.append("rewound"))
    assert called == ["rewound", 3, "rewound", 4, "rewound", 5]
    assert_equal(state, before)
    where = {name: value.data_ptr() for name, value in state.items()}
    assert where == {name: value.data_ptr() for name, value in state_of(step).items()}
