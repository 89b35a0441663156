"""Prefetching: items in order, a bounded number of them, errors raised, threads ended."""

import gc
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from longtail.data.loaders.prefetch import ahead, batches_ahead
from longtail.data.sampling.batch_plan import Batch


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("longtail-")]


def settled(condition, seconds=5.0):
    """Whether something comes true."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    if threads():
        gc.collect()
    assert settled(lambda: not threads())


class Source:
    """Numbers, and how many of them were made; `closed` when no more are needed."""

    def __init__(self, number, wrong=None):
        self.number, self.wrong = number, wrong
        self.made, self.closed, self.thread = 0, False, None

    def items(self):
        self.thread = threading.current_thread()
        try:
            for i in range(self.number):
                if i == self.wrong:
                    raise ValueError(f"number {i}")
                self.made += 1
                yield i
        finally:
            self.closed = True


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_items_come_in_order_from_another_thread(depth):
    source = Source(20)
    assert list(ahead(source.items(), depth)) == list(range(20))
    assert source.thread is not threading.current_thread()
    assert source.closed


def test_nothing_starts_before_the_first_item():
    source = Source(3)
    waiting = ahead(source.items(), 2)
    assert not threads()
    waiting.close()
    assert source.made == 0


@pytest.mark.parametrize("depth", [1, 3])
def test_at_most_depth_items_are_made_in_advance(depth):
    source = Source(100)
    items = ahead(source.items(), depth)
    for taken in range(1, 4):
        next(items)
        assert settled(lambda taken=taken: source.made == taken + depth)
        time.sleep(0.02)
        assert source.made == taken + depth
    items.close()


def test_errors_of_the_thread_are_raised_in_order():
    items = ahead(Source(10, wrong=3).items(), 2)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="number 3"):
        next(items)
    assert list(items) == []


@pytest.mark.parametrize("how", ["close", "forget", "error"])
def test_closing_ends_the_thread(how):
    source = Source(1000)
    items = ahead(source.items(), 2)
    assert next(items) == 0
    if how == "close":
        items.close()
    elif how == "forget":
        del items
    else:
        with pytest.raises(ZeroDivisionError):
            items.throw(ZeroDivisionError)
    assert source.closed
    assert source.made <= 4
    assert not threads()


def test_items_are_not_kept():
    class Thing:
        alive = 0

        def __init__(self):
            Thing.alive += 1

        def __del__(self):
            Thing.alive -= 1

    for thing in ahead((Thing() for _ in range(50)), 2):
        assert thing.alive <= 1 + 2 + 1  # here, waiting, and in the making
    del thing
    assert Thing.alive == 0


def batches(number):
    for i in range(number):
        yield Batch((torch.full((2, 3), i),), torch.tensor([i, i]), torch.tensor([i, i]))


def test_batches_on_a_cpu():
    found = list(batches_ahead(batches(5), torch.device("cpu")))
    assert [int(batch.labels[0]) for batch in found] == list(range(5))


@pytest.mark.gpu
def test_batches_on_a_gpu_are_complete_and_not_overwritten():
    """Each batch is a long row of kernels on the side stream; the consumer's stream is kept busy behind it."""

    def made():
        for i in range(30):
            image = torch.zeros(2048, 2048, device="cuda")
            for _ in range(20):
                image = image + 1
            yield Batch((image + i,), torch.full((4,), i, device="cuda"), torch.arange(4))

    sums = []
    weight = torch.eye(2048, device="cuda")
    for batch in batches_ahead(made(), torch.device("cuda")):
        image = batch.views[0]
        for _ in range(10):
            image = image @ weight  # slow, and leaves it as it is
        sums.append((image.double().mean(), batch.labels.sum()))
        del batch, image
    assert [(round(float(a)), int(b)) for a, b in sums] == [(20 + i, 4 * i) for i in range(30)]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists a process's threads there")
def test_the_operating_system_has_ended_the_thread_after_close():
    """Python's join comes before that: a process forked between the two may inherit a lock that stays locked."""

    def products():
        while True:
            yield torch.randn(8, 16, 16) @ torch.randn(8, 16, 16)

    for _ in range(200):
        made = ahead(products(), depth=1)
        next(made)
        (thread,) = (one for one in threading.enumerate() if one.name == "longtail-ahead")
        made.close()
        assert not Path(f"/proc/self/task/{thread.native_id}").exists()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_garbage_collection_in_the_thread_does_not_deadlock(depth):
    """Each thread is waited for by the one above; the innermost collects them all as garbage."""

    class Holder:
        pass

    forgotten, collected = threading.Event(), threading.Event()

    def letters():
        yield "a"
        forgotten.wait()
        gc.collect()
        collected.set()
        yield from iter(lambda: "b", None)

    def through(items):
        with closing(items):
            yield from items

    items = letters()
    for _ in range(depth):
        items = through(ahead(items, 1))
    holder = Holder()
    holder.me, holder.items = holder, items
    gc.disable()
    try:
        assert next(items) == "a"
        del holder, items
        forgotten.set()
        assert collected.wait(10)
        patience = time.monotonic() + 10
        while threads() and time.monotonic() < patience:
            time.sleep(0.01)
        assert not threads()
    finally:
        gc.enable()
