"""Steps that a loader feeds to CUDA graphs: on a GPU, and on a CPU with a GPU's streams, events and graphs emulated."""

import gc
import json
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image
from tests.contract import METHODS, Task, head_of, knobs_of

from longtail.classes import Groups
from longtail.data import DataSet, FileImages, Plan, ResidentFiles, Split, Streaming
from longtail.data.augment import Compose, Normalise, RandomResizedCrop
from longtail.data.decode import UnreadableImageError
from longtail.models import build_model
from longtail.train import RunFolder, Trainer, defaults, drivers, graphs, stages
from longtail.train.drivers import Eager, Fed
from longtail.train.graphs import StepGraphs
from longtail.train.step import Step, make_optimizer

BAD = 17
"""The picture that cannot be read."""
KINDS = {"fed": Fed, "eager": Eager}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Forty JPEGs of ten classes, one of which is none."""
    root = tmp_path_factory.mktemp("photographs")
    names = [f"{number}.jpg" for number in range(40)]
    generator = np.random.default_rng(0)
    for number, name in enumerate(names):
        pixels = generator.integers(0, 256, (4, 5, 3), dtype=np.uint8).repeat(12, axis=0).repeat(10, axis=1)
        Image.fromarray(pixels).save(root / name, quality=95)
        if number == BAD:
            (root / name).write_bytes(b"no picture")
    return Split(FileImages(root, names), torch.arange(40) % 10)


def loader_of(split, how="streaming", device="cpu", *, views=1, bad_images="skip", **plan):
    """Batches of twelve: three that are full and one of four, one of which has lost a picture."""
    view = Compose((RandomResizedCrop(16), Normalise((0.5,) * 3, (0.3,) * 3)))
    plan = Plan(split.labels, (view,) * views, **{"batch_size": 12, **plan})
    if how == "resident":
        return ResidentFiles(split, plan, device, bad_images=bad_images)
    return Streaming(split, plan, device, decode_in="device", bad_images=bad_images)


def step_of(method="cbs", device="cpu"):
    stage, knobs = METHODS[method].stages[0], knobs_of(method)
    groups = Groups.from_indices(head=range(5), tail=range(5, 10))
    objective = stage.objective(Task(torch.arange(10, 0, -1), groups, 3, knobs)).to(device)
    projection = (knobs["hidden"], knobs["projection"]) if METHODS[method].projection else None
    made = {"head": head_of(stage), "projection": projection, "prototypes": METHODS[method].prototypes}
    model = build_model("small-cnn", 10, **made).to(device)
    optimizer = make_optimizer(model.trainable("all"), momentum=0.9, nesterov=False, weight_decay=5e-4)
    step = Step(model, objective, optimizer)
    step.set_rate(0.02)
    return step


def sizes_in(plan, seed, epoch, start=0):
    """How many pictures each batch has that can be read."""
    return [int((batch.indices != BAD).sum()) for batch in plan.training(seed, epoch, start)]


def state_of(step):
    """All that a step may change, by name; the tensors themselves."""
    momenta = {f"momentum {n}": s["momentum_buffer"] for n, s in enumerate(step.optimizer.state.values())}
    objective = {f"objective {name}": value for name, value in step.objective.named_buffers()}
    counters = {"loss_sum": step.loss_sum, "taken": step.taken, "first_bad": step.first_bad}
    return {**step.model.state_dict(), **momenta, **objective, **counters}


def copy_of(state):
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def assert_equal(state, expected):
    assert state.keys() == expected.keys()
    differing = [name for name, value in expected.items() if not torch.equal(state[name], value)]
    assert not differing


# An emulated GPU


class FakeStream:
    """Writes down whom it waits for."""

    device = torch.device("cpu")

    def __init__(self, gpu):
        self.gpu = gpu

    def wait_stream(self, other):
        self.gpu.waits.append((self, other))

    def record_event(self, event):
        assert self.gpu.current is self
        self.gpu.under_way.append(event)
        self.gpu.most_under_way = max(self.gpu.most_under_way, len(self.gpu.under_way))
        return event


class FakeEvent:
    """Is under way from when it is recorded until it is waited for."""

    def __init__(self, gpu, blocking):
        assert blocking
        self.gpu = gpu

    def synchronize(self):
        self.gpu.under_way.remove(self)


class FakeGraph:
    """Remembers with which tensors a step was called, and takes it with what they hold by then."""

    def __init__(self, gpu):
        self.gpu, self.take, self.size = gpu, None, 0

    def replay(self):
        assert self.gpu.current is not self.gpu.usual
        self.gpu.replayed.append(self.size)
        self.take()


class FakeGPU:
    """As much of a GPU as steps need that are fed; the stream that is current at first is the usual one."""

    def __init__(self):
        self.usual = self.current = FakeStream(self)
        self.waits, self.under_way, self.most_under_way = [], [], 0
        self.capturing = None
        self.captured, self.replayed, self.released = [], [], []

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self.capturing = graph
        try:
            yield
        except RuntimeError:
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904 - as torch does
        finally:
            self.capturing = None

    def step(self, plain, step, batches, mixed=None):
        """A step, which leaves nothing behind while it is captured."""
        if self.capturing is None:
            plain(step, batches, mixed)
            return
        self.capturing.take, self.capturing.size = partial(plain, step, batches, mixed), len(batches[0].labels)
        self.captured.append(self.capturing.size)
        state = state_of(step)
        kept = copy_of(state)
        try:
            plain(step, batches, mixed)
        finally:
            for name, value in state.items():
                value.detach().copy_(kept[name])


@pytest.fixture
def gpu(monkeypatch):
    gpu, plain = FakeGPU(), Step.__call__
    monkeypatch.setattr(graphs, "stream_for", lambda owner, device: FakeStream(gpu))
    monkeypatch.setattr(Step, "__call__", lambda step, batches, mixed=None: gpu.step(plain, step, batches, mixed))
    for name, value in {
        "stream": gpu.stream,
        "current_stream": lambda device=None: gpu.current,
        "synchronize": lambda device=None: None,
        "Event": partial(FakeEvent, gpu),
        "CUDAGraph": partial(FakeGraph, gpu),
        "graph": gpu.graph,
        "graph_pool_handle": object,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, lambda device, pool: gpu.released.append(pool), raising=False)
    return gpu


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


@pytest.mark.parametrize("how", ["streaming", "resident"])
@pytest.mark.parametrize(
    ("method", "mixup"),
    [("cbs", 0.0), ("cbs", 0.3), ("ldam-drw", 0.0), ("ldam-drw", 0.3), ("bcl", 0.0), ("proco", 0.0)],
)
def test_replayed_steps_are_exactly_the_plain_ones(gpu, photographs, method, mixup, how):
    """Three epochs, in one of which the last batch has lost a picture; that one is stopped and gone on with."""
    step, other = step_of(method), step_of(method)
    loader = loader_of(photographs, how, views=len(step.objective.views))
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
def test_a_step_that_cannot_be_captured_is_taken_as_ever(gpu, photographs, size, tried):
    """Full batches, or the last, when there is a graph for full ones already."""
    loader = loader_of(photographs)
    step, other = step_of(), step_of()
    three_epochs(Eager(other, loader, mixup=0.3), other)
    driver = Fed(step, loader, 0.3)
    pool = driver.graphs._pool
    failing_in_capture(gpu, step, size, RuntimeError("not permitted when stream is capturing\nand more"))
    with pytest.warns(UserWarning, match="cannot be captured") as told:
        three_epochs(driver, step)
    assert [str(warning.message) for warning in told] == [
        "The step cannot be captured (not permitted when stream is capturing): its kernels are launched one by one."
    ]
    assert gpu.captured == tried  # and never again
    assert not driver.graphs._graphs
    assert not driver._held
    assert gpu.released == [pool, pool]
    assert driver.graphs._pool is not pool
    assert_equal(state_of(step), copy_of(state_of(other)))


def test_an_allocator_that_has_let_go_need_not_be_told(gpu, photographs, monkeypatch):
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


def test_what_was_wrong_before_is_another_matter(gpu, photographs):
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


def test_a_batch_is_asked_for_when_there_is_room_for_it(gpu, photographs):
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


# A GPU


def weights_of(step):
    return copy_of(step.model.state_dict())


@pytest.mark.gpu
@pytest.mark.parametrize("mixup", [0.0, 0.3])
@pytest.mark.parametrize("how", ["resident", "streaming"])
def test_steps_that_are_fed_are_the_plain_ones(how, mixup, photographs):
    """Two epochs, the second from its middle on, while threads load."""
    found = []
    for kind in ("fed", "eager"):
        loader, step = loader_of(photographs, how, "cuda"), step_of(device="cuda")
        driver = KINDS[kind](step, loader, mixup=mixup)
        sizes = []
        for epoch, start in ((0, 0), (1, 1)):
            step.set_rate(0.02 / (epoch + 1))
            assert len(list(driver.epoch(seed=1, epoch=epoch, start=start))) == 4 - start
            sizes += sizes_in(loader.plan, 1, epoch, start)
        driver.settle()
        torch.cuda.synchronize()
        found.append((weights_of(step), float(step.loss_sum), int(step.taken), int(step.first_bad)))
        assert set(sizes) == {12, 11, 4}
        assert kind == "eager" or list(driver.graphs._graphs) == [12, 4]
    (fed, loss, taken, bad), (eager, expected, number, none) = found
    assert (taken, bad) == (number, none) == (7, -1)
    assert loss == pytest.approx(expected, rel=1e-3)
    for name, value in eager.items():
        torch.testing.assert_close(fed[name], value, rtol=2e-2, atol=2e-3)


def asking(step, change=lambda images: images):
    """Have the model make 64 MB, and ask for a value for which the host waits."""
    forward = step.model.forward

    def asks(images):
        large = images.new_ones(2**24)
        assert float(large.sum()) == 2**24
        return forward(change(images))

    step.model.forward = asks


def bytes_reserved():
    """By torch, without what it keeps for later."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # each stream has one
    torch.cuda.empty_cache()
    return torch.cuda.memory_stats()["reserved_bytes.all.current"]


@pytest.mark.gpu
def test_a_step_that_cannot_be_captured_is_taken_plainly(photographs):
    found, reserved = [], []
    for kind in ("eager", "fed"):
        before = bytes_reserved()
        step = step_of(device="cuda")
        driver = KINDS[kind](step, loader_of(photographs, "streaming", "cuda"))
        asking(step)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            list(driver.epoch(seed=1, epoch=0, start=0))
        reasons = [str(warning.message) for warning in told if "cannot be captured" in str(warning.message)]
        assert len(reasons) == (kind == "fed")
        assert not any("previous error" in reason or "()" in reason for reason in reasons)
        held = []
        for epoch in range(1, 7):
            list(driver.epoch(seed=1, epoch=epoch, start=0))
            torch.cuda.synchronize()
            held.append(torch.cuda.memory_stats()["active_bytes.all.current"])
        assert held[-1] <= held[1]  # what loaders have used is used again
        found.append((weights_of(step), int(step.taken)))
        step.optimizer.zero_grad(set_to_none=True)
        reserved.append(bytes_reserved() - before)
    assert reserved[1] <= reserved[0] + 2**24
    (eager, number), (fed, taken) = found
    assert taken == number == 28
    for name, value in eager.items():
        torch.testing.assert_close(fed[name], value, rtol=2e-2, atol=2e-3)


@pytest.mark.gpu
def test_a_model_that_draws_numbers_trains_on_after_its_capture_has_failed(photographs):
    step = step_of(device="cuda")
    driver = Fed(step, loader_of(photographs, "streaming", "cuda"))
    asking(step, change=lambda images: torch.nn.functional.dropout(images, 0.1))
    before = weights_of(step)
    with pytest.warns(UserWarning, match="cannot be captured"):
        list(driver.epoch(seed=1, epoch=0, start=0))
    list(driver.epoch(seed=1, epoch=1, start=0))
    torch.cuda.synchronize()
    assert (int(step.taken), int(step.first_bad)) == (8, -1)
    assert not any(torch.equal(before[name], value.cpu()) for name, value in step.model.named_parameters())


@pytest.mark.gpu
def test_a_run_from_files_is_fed(tmp_path, photographs, monkeypatch):
    """By the trainer, with an evaluation after every epoch: stopped in between, and not."""
    kept = [i for i in range(40) if i != BAD]
    split = Split(FileImages(photographs.images.root, [f"{i}.jpg" for i in kept]), photographs.labels[kept])
    groups = Groups.from_indices(head=range(5), tail=range(5, 10))
    data = DataSet("photographs", tuple("abcdefghij"), split, split, cut=groups)
    recipe = replace(
        defaults("imagenet-lt", "cbs"), model="resnet18", image_size=32, batch_size=8, epochs=3, device="cuda", lr=0.01,
        precision="fp32", workers=2, evaluate_every=1, compile=False, checkpoint_minutes=0.0,
    )  # fmt: skip
    made, replayed, replay = [], [], StepGraphs.replay

    class Recorded(Fed):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(type(self.loader))

    def recorded(step_graphs, size):
        replayed.append(size)
        replay(step_graphs, size)

    monkeypatch.setattr(stages, "Fed", Recorded)
    monkeypatch.setattr(StepGraphs, "replay", recorded)
    folder, whole = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "whole")
    steps = Trainer(recipe, folder, dataset=data).steps()
    for _ in range(7):
        next(steps)
    steps.close()
    assert not folder.done
    Trainer(recipe, folder, dataset=data).run()
    assert made == [Streaming, Streaming]
    assert replayed == 3 * [8, 8, 8, 8, 7]
    Trainer(recipe, whole, dataset=data).run()
    assert replayed == 6 * [8, 8, 8, 8, 7]
    assert folder.done
    losses, expected = (
        [json.loads(line)["loss"] for line in one.log_file.read_text().splitlines()] for one in (folder, whole)
    )
    assert len(losses) == 3
    assert losses == pytest.approx(expected, rel=0.05)
