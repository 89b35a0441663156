"""As much of a GPU as replayed steps need, on a CPU: streams, events, graphs and torch's allocator."""

from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from longtail.train import graphs
from longtail.train.step import Step


class FakeStream:
    """Records which streams it waits for, and delays its work until something waits for it or adds more."""

    device = torch.device("cpu")

    def __init__(self, gpu):
        self.gpu, self.put_off = gpu, []

    def wait_stream(self, other):
        other.synchronize()
        self.gpu.waits.append((self, other))

    def synchronize(self):
        while self.put_off:
            self.put_off.pop(0)()

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


class Tape(TorchDispatchMode):
    """The operations of a capture, with the memory that each reads and writes: what Python says later is not heard."""

    def __init__(self):
        super().__init__()
        self._calls, self._before, self._known = [], [], set()

    def __torch_dispatch__(self, operation, types, given=(), named=None):
        masks = [one for one in _tensors_in(given[1:2]) if one.dtype == torch.bool] if operation in _INDEXING else []
        if operation in _ASKING or masks:
            raise RuntimeError(f"{operation} is not permitted when stream is capturing")
        for held in _memory_of((given, named)):
            if held._cdata not in self._known:
                self._before.append((held, held.clone()))
                self._known.add(held._cdata)
        found = operation(*given, **(named or {}))
        made = [held._cdata not in self._known for held in _memory_of(found)]
        self._known.update(held._cdata for held in _memory_of(found))
        self._calls.append((partial(operation, *given, **(named or {})), _tensors_in(found), made))
        return found

    def add(self, call):
        """Have something else be done here, which makes nothing."""
        self._calls.append((call, [], []))

    def undo(self):
        """A capture does nothing."""
        for held, before in self._before:
            held.copy_(before)

    def replay(self):
        with torch.no_grad():
            for call, held, made in self._calls:
                for to, value, new in zip(held, _tensors_in(call()), made, strict=True):
                    if new:
                        to.copy_(value)


_ASKING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.bincount.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.lift_fresh.default,  # of numbers on the host
    torch.ops.aten.masked_select.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.repeat_interleave.Tensor,
}
"""The host waits for what they find, or has to be waited for."""
_INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}
"""So it does where they are given a mask."""


def _tensors_in(values):
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _memory_of(values):
    return [tensor.untyped_storage() for tensor in _tensors_in(values)]


def _read(plain, tensor):
    """What the host makes of a tensor; other threads may do so meanwhile."""
    if isinstance(_get_current_dispatch_mode(), Tape):
        raise RuntimeError("reading is not permitted when stream is capturing")
    return plain(tensor)


class FakeGraph:
    """Remembers what was done with which tensors, and does it with what they hold by then."""

    def __init__(self, gpu):
        self.gpu, self.tape, self.size = gpu, Tape(), 0

    def replay(self):
        assert self.gpu.current is not self.gpu.usual
        self.gpu.replayed.append(self.size)
        if self.size:
            self.gpu.current.put_off.append(self.tape.replay)
        else:  # a pass, whose outputs are used at once
            self.tape.replay()


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
        stream.synchronize()
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
            with graph.tape:
                yield
            self.draws = True
        except RuntimeError:
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904 - as torch does
        finally:
            graph.tape.undo()
            self.capturing = None

    def step(self, plain, step, batches, mixed=None):
        """A step; of one that is captured the size is written down."""
        if self.capturing is not None:
            self.capturing.size = len(batches[0].labels)
            self.captured.append(self.capturing.size)
        plain(step, batches, mixed)

    def optimise(self, plain, optimizer):
        """Change parameters by their gradients: by one kernel, which reads the rate when it runs."""
        if self.capturing is None:
            plain(optimizer)
            return
        changed = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in changed]

        def optimise():
            for parameter, gradient in zip(changed, gradients, strict=True):
                parameter.grad = gradient
            plain(optimizer)

        self.capturing.tape.add(optimise)


def emulate(monkeypatch):
    """Have torch use it, for as long as a test takes."""
    gpu, step, optimise = FakeGPU(), Step.__call__, SGD.step
    monkeypatch.setattr(graphs, "stream_for", lambda owner, device: FakeStream(gpu))
    monkeypatch.setattr(Step, "__call__", lambda self, batches, mixed=None: gpu.step(step, self, batches, mixed))
    monkeypatch.setattr(SGD, "step", lambda self: gpu.optimise(optimise, self))
    for name, plain in {"numpy": Tensor.numpy, "tolist": Tensor.tolist}.items():
        monkeypatch.setattr(Tensor, name, lambda self, plain=plain: _read(plain, self))
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
