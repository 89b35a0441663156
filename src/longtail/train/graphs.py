"""Training steps in CUDA graphs."""

from collections.abc import Callable

import torch
from torch import Tensor

from longtail.train.capturing import capturing
from longtail.train.step import Step
from longtail.train.streams import stream_for

__all__ = ["StepGraphs"]

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
            RuntimeError: where a step cannot be captured; then none was taken, and there is no graph any more.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            self._warm_up(take, rewind)
            self.step.optimizer.zero_grad(set_to_none=True)
            rewind()
            torch.cuda.synchronize(self.stream.device)
            with capturing(graph, self._pool, self.stream):
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
