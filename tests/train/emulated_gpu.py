"""As much of a GPU as replayed steps need, on a CPU: streams, events, graphs and torch's allocator."""

from contextlib import contextmanager
from functools import partial

import torch
from tests.train.feeding import copy_of, state_of

from longtail.train import graphs
from longtail.train.step import Step


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
        self.draws = True
        """Whether its generator does: not in a capture, and not after one that failed until another has not."""

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph, stream, capture_error_mode, pool=None):
        assert capture_error_mode == "thread_local"
        self.capturing, self.draws = graph, False
        try:
            yield
            self.draws = True
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


def emulate(monkeypatch):
    """Have torch use it, for as long as a test takes."""
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
