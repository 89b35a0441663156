"""Training steps in CUDA graphs."""

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from longtail.train.step import Step
from longtail.train.streams import stream_for

__all__ = ["StepGraphs"]

_OURS = "thread_local"  # other threads load meanwhile: what they ask of the GPU is none of a capture's business
_WARM_UP = 3  # steps before a capture: kernels are compiled and chosen, and memory is had


class StepGraphs:
    """CUDA graphs of one training step, by the size of its batch. They never run at the same time and share memory.

    Args:
        step: what all of them take; its model lies on a GPU.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.stream = stream_for(self, step.taken.device)
        """Where they run; whatever they read has to be made there or waited for."""
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __contains__(self, size: int) -> bool:
        """Whether there is a graph for such batches."""
        return size in self._graphs

    def capture(self, size: int, take: Callable[[], None], rewind: Callable[[], None] = lambda: None) -> None:
        """Take a few steps to warm up, undo them, and capture one.

        Args:
            size: of the batches.
            take: takes the step, from memory that stays where it is.
            rewind: is called before each of these steps, and is not part of them.

        Raises:
            RuntimeError: where a step cannot be captured; then none was taken.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            self._warm_up(take, rewind)
            self.step.optimizer.zero_grad(set_to_none=True)
            rewind()
            torch.cuda.synchronize(self.stream.device)
            with torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode=_OURS):
                take()
        except RuntimeError:
            self._give_up()
            raise
        self._graphs[size] = graph

    def _give_up(self) -> None:
        """Let the memory of all graphs go, and of one that failed, and have the GPU's generator draw again.

        Some versions of torch leave their allocator waiting for the end of a capture that failed: then it keeps that
        memory, and all that other streams have used meanwhile. Their generator waits as well, and refuses to draw,
        until a capture has ended.
        """
        self._graphs.clear()
        pool, self._pool = self._pool, torch.cuda.graph_pool_handle()
        device = self.stream.device.index
        with suppress(RuntimeError):  # where torch has ended it; some versions then keep the memory all the same
            torch._C._cuda_endAllocateToPool(device, pool)
            torch._C._cuda_releasePool(device, pool)
        nothing = torch.cuda.CUDAGraph()
        with suppress(RuntimeError), torch.cuda.graph(nothing, stream=self.stream, capture_error_mode=_OURS):
            self.step.taken.add_(0)  # captured and never done

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
        """Take a step; on :attr:`stream`, which has to be the current one."""
        self._graphs[size].replay()

    def settle(self) -> None:
        """Make what was done so far visible to the current stream."""
        torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)

    def _state(self) -> list[Tensor]:
        """All that a step changes."""
        step = self.step
        momenta = [state["momentum_buffer"] for state in step.optimizer.state.values()]
        held = (*step.model.parameters(), *step.model.buffers(), *step.objective.buffers())
        return [*(tensor.detach() for tensor in held), *momenta, step.loss_sum, step.taken, step.first_bad]
