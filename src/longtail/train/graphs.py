"""CUDA graphs and streams: the training step and the forward pass of an evaluation, each replayed as one launch."""

import sys
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail.models import Model
from longtail.train.step import Step

_CAPTURE_MODE = "thread_local"  # other threads load images meanwhile; their calls must not fail the capture
_WARM_UP = 3  # steps before a capture, in which kernels are compiled and chosen and memory is allocated

_free: defaultdict[torch.device, list[torch.cuda.Stream]] = defaultdict(list)


def stream_for(owner: object, device: torch.device) -> torch.cuda.Stream:
    """A stream that belongs to ``owner``; when the owner is deleted, another one gets it.

    torch has 32 streams and starts again with the first. A process that took a new stream for every run would soon use
    the one on which torchvision decodes images, and wait for it in the middle of a step.
    """
    free = _free[device]
    stream = free.pop() if free else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    weakref.finalize(owner, free.append, stream)
    return stream


def join_streams(streams: Sequence[torch.cuda.Stream]) -> None:
    """Make new work on any of the streams wait for the earlier work on all of them."""
    if streams:
        first, *others = streams
        for other in others:
            first.wait_stream(other)
        joined = first.record_event()
        for other in others:
            other.wait_event(joined)


# Capturing


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> Iterator[None]:
    """Capture the operations inside; raises RuntimeError and cleans up if one of them cannot be captured."""
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=_CAPTURE_MODE):
            yield
    except RuntimeError:
        _recover(pool, stream)
        raise


def _recover(pool: Any, stream: torch.cuda.Stream) -> None:
    """Release the memory of a failed capture, and make the GPU's generator usable again.

    Some versions of torch leave the allocator waiting for the end of a failed capture: it then keeps that memory, and
    all memory that other streams use meanwhile. Their generator refuses to draw until a capture has ended.
    """
    device = stream.device
    with suppress(RuntimeError):  # if torch has ended it; some versions then still keep the memory
        torch._C._cuda_endAllocateToPool(device.index, pool)
        torch._C._cuda_releasePool(device.index, pool)
    empty = torch.cuda.CUDAGraph()
    with suppress(RuntimeError), torch.cuda.graph(empty, stream=stream, capture_error_mode=_CAPTURE_MODE):
        torch.zeros(1, device=device)  # captured and never run


def warn_not_captured(what: str, error: BaseException, handled: BaseException | None) -> None:
    """Warn that something could not be captured.

    Args:
        what: what could not be captured.
        error: the last error; the end of a failed capture fails too, with a message that explains nothing.
        handled: an earlier, unrelated error that was being handled.
    """
    while error.__context__ is not None and error.__context__ is not handled:
        error = error.__context__
    reason = str(error).partition("\n")[0]
    warnings.warn(f"{what} cannot be captured ({reason}): its kernels are launched one by one.", stacklevel=3)


# The step


class StepGraphs:
    """CUDA graphs of one training step, by batch size. They never run at the same time and share memory."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.stream = stream_for(self, step.taken.device)
        """Where they run; what they read must be made there or waited for."""
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __contains__(self, size: int) -> bool:
        return size in self._graphs

    def capture(self, size: int, take: Callable[[], None], rewind: Callable[[], None] = lambda: None) -> None:
        """Take a few steps to warm up, undo them, and capture one.

        Args:
            size: batch size.
            take: takes the step, and reads memory that stays in place.
            rewind: called before each of these steps, not part of them.

        Raises:
            RuntimeError: the step cannot be captured. No step was taken, and all graphs are gone.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            self._warm_up(take, rewind)
            self.step.optimizer.zero_grad(set_to_none=True)
            rewind()
            torch.cuda.synchronize(self.stream.device)
            with _capture(graph, self._pool, self.stream):
                take()
        except RuntimeError:
            self._graphs.clear()
            self._pool = torch.cuda.graph_pool_handle()
            raise
        self._graphs[size] = graph

    def _warm_up(self, take: Callable[[], None], rewind: Callable[[], None]) -> None:
        kept = [tensor.clone() for tensor in self._state()]
        try:
            for _ in range(_WARM_UP):
                rewind()
                take()
        finally:
            for tensor, value in zip(self._state(), kept, strict=True):
                tensor.copy_(value)

    def replay(self, size: int) -> None:
        """Take a step; :attr:`stream` must be the current stream."""
        self._graphs[size].replay()

    def settle(self) -> None:
        """Make the current stream wait for all steps so far."""
        torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)

    def _state(self) -> list[Tensor]:
        """All tensors that a step changes."""
        model, objective = self.step.model, self.step.objective
        held = (*model.parameters(), *model.buffers(), *objective.buffers())
        return [*(tensor.detach() for tensor in held), *self.step.state().values()]


# The forward pass


@torch.no_grad()
def forward_eval(model: Model, precision: torch.dtype, images: Tensor) -> tuple[Tensor, Tensor]:
    """Plain logits and features of images, float32 or better; the model's mode is not changed."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
        outputs = model(images, project=False)
    logits = outputs.logits.to(torch.promote_types(outputs.logits.dtype, torch.float32))
    return logits, outputs.features.to(logits.dtype)


_Key = tuple[torch.Size, tuple[int, ...], bool]
"""Shape and strides of a batch, and whether the model was in training mode."""


class _ForwardGraph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    images: Tensor
    outputs: tuple[Tensor, Tensor]


class ReplayedForward:
    """:func:`forward_eval`, replayed from a CUDA graph from the second batch of a shape on.

    In evaluation mode a smaller batch uses the graph of a larger one. If the pass cannot be captured, it runs eagerly.
    Launching a small network takes far longer than its kernels, and the other members of a fleet would have to wait.
    The outputs of a call are overwritten by the next call. Call it on :attr:`stream`, so that passes of several models
    run side by side. The model may change its weights in place and its mode, but must keep its tensors (:meth:`holds`).
    """

    def __init__(self, model: Model, precision: torch.dtype) -> None:
        self.model, self._forward = model, partial(forward_eval, model, precision)
        self._held = _tensors(model)  # keeps alive what the graphs read
        self.stream = stream_for(self, self._held[0].device)
        self._pool = torch.cuda.graph_pool_handle()  # the graphs never run at the same time and share memory
        self._replays = True
        self._seen: set[_Key] = set()
        self._graphs: dict[_Key, _ForwardGraph] = {}

    def holds(self, model: Model) -> bool:
        """Whether the graphs read the tensors of this model."""
        return model is self.model and [t.data_ptr() for t in _tensors(model)] == [t.data_ptr() for t in self._held]

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and features."""
        size = len(images)
        found = self._graph_for(images)
        if found is None:
            key = (images.shape, images.stride(), self.model.training)
            found = self._capture(images) if self._replays and key in self._seen else None
            self._seen.add(key)
            if found is None:
                return self._forward(images)
            self._graphs[key] = found
        found.images[:size].copy_(images)
        found.graph.replay()
        logits, features = found.outputs
        return logits[:size], features[:size]

    def _graph_for(self, images: Tensor) -> _ForwardGraph | None:
        """A graph for this many images, or more in evaluation mode, where images do not affect each other."""
        training = self.model.training
        for (shape, stride, mode), graph in self._graphs.items():
            fits = shape[0] == len(images) if training else shape[0] >= len(images)
            if fits and (shape[1:], stride, mode) == (images.shape[1:], images.stride(), training):
                return graph
        return None

    def _capture(self, images: Tensor) -> _ForwardGraph | None:
        graph, held, handled = torch.cuda.CUDAGraph(), images.clone(), sys.exception()
        try:
            with _capture(graph, self._pool, self.stream):
                return _ForwardGraph(graph, held, self._forward(held))
        except RuntimeError as error:
            self._replays = False
            self._graphs.clear()
            warn_not_captured("The forward pass", error, handled)
            return None


def _tensors(model: Model) -> list[Tensor]:
    return [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]
