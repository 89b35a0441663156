"""Two ways to take an epoch's steps: one after the other from a loader, or replayed from a CUDA graph."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from longtail.data import Draws, Resident, ResidentFiles, Streaming
from longtail.data.plan import Batch, PlannedBatch
from longtail.models.kernels import kernels_for
from longtail.train.step import Step

if TYPE_CHECKING:
    from longtail.train.gathering import Gathering

__all__ = ["Captured", "Driver", "Eager"]


class Driver(Protocol):
    """Takes the steps of an epoch."""

    def epoch(self, seed: int, epoch: int, start: int) -> Iterator[None]:
        """Take the steps of an epoch from ``start`` on; gives control back after each.

        Args:
            seed: the run's.
            epoch: whose draws to take.
            start: the first step.
        """

    def settle(self) -> None:
        """Make what was done so far visible to whatever is done next."""


class Eager:
    """Steps taken one after the other.

    Args:
        step: what a step is.
        loader: where batches come from; ``accumulate`` of them are a step.
        accumulate: micro-batches of a step.
        mixup: alpha of mixup; 0 is none.
    """

    def __init__(
        self, step: Step, loader: Resident | ResidentFiles | Streaming, accumulate: int = 1, mixup: float = 0.0
    ) -> None:
        self.step, self.loader, self.accumulate, self.mixup = step, loader, accumulate, mixup

    def epoch(self, seed: int, epoch: int, start: int) -> Iterator[None]:
        """See :class:`Driver`."""
        batches = self.loader.training(seed, epoch, start * self.accumulate)
        steps = -(-self.loader.plan.steps // self.accumulate)
        mixed = mixed_shares(seed, epoch, self.mixup, steps)
        for number in range(start, steps):
            group = list(islice(batches, self.accumulate))
            if not group:  # all that were left could not be read
                return
            self.step(group, None if mixed is None else mixed[number].to(group[0].labels.device))
            yield

    def settle(self) -> None:
        """See :class:`Driver`; steps are taken where everything else is."""


def mixed_shares(seed: int, epoch: int, alpha: float, steps: int) -> Tensor | None:
    """How much of an image stays in each step's mixup, drawn from Beta(alpha, alpha); ``None`` for alpha 0."""
    if not alpha:
        return None
    from scipy.special import betaincinv  # noqa: PLC0415 - an extra

    uniforms = Draws(seed, epoch).uniforms(0, steps, 1, stream=_MIXUP_STREAM)[:, 0]
    return torch.from_numpy(betaincinv(alpha, alpha, uniforms.double().numpy())).float()


_MIXUP_STREAM = 2**24 - 1  # the last one; views take the first


class _Planned(NamedTuple):
    """The numbers of an epoch, on the CPU."""

    of: tuple[int, int]
    """Seed and epoch."""
    batches: list[PlannedBatch]
    order: Tensor
    uniforms: list[Tensor]
    mixed: Tensor | None


class Captured:
    """Steps replayed from CUDA graphs, each of which holds a whole step: gather, augment, forward, loss, backward, SGD.

    An epoch's order and drawn numbers lie on the device; a graph reads its own rows by a counter that it moves
    on itself, so that a step is one launch. There is one graph for full batches and one for a last batch that is not.

    Args:
        step: what a step is.
        loader: holds the images on the GPU.
        mixup: alpha of mixup; 0 is none.
    """

    def __init__(self, step: Step, loader: Resident, mixup: float = 0.0) -> None:
        self.step, self.loader, self.mixup = step, loader, mixup
        self.device = loader.labels.device
        self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        plan = loader.plan
        rows = plan.steps * plan.batch_size
        self.order = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.uniforms = [torch.zeros(rows, view.draws, device=self.device) for view in plan.views]
        self.mixed = torch.ones(plan.steps, device=self.device)
        self.row = torch.zeros((), dtype=torch.int64, device=self.device)
        self.number = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.places = torch.arange(plan.batch_size, device=self.device)
        self._gathering = self._fused()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._ahead: _Planned | None = None

    def epoch(self, seed: int, epoch: int, start: int) -> Iterator[None]:
        """See :class:`Driver`."""
        planned = self._plan(seed, epoch)
        self._load(planned)
        sizes = [len(batch.indices) for batch in planned.batches[start:]]
        with torch.cuda.stream(self.stream):
            for size in dict.fromkeys(sizes):
                if size not in self.graphs:
                    self.graphs[size] = self._capture(size)
            self.row.fill_(start * self.loader.plan.batch_size)
            self.number.fill_(start)
        for left, size in zip(reversed(range(len(sizes))), sizes, strict=True):
            with torch.cuda.stream(self.stream):
                self.graphs[size].replay()
            if left == 0:  # made while the GPU is still at work: steps are launched far ahead of it
                self._ahead = self._plan(seed, epoch + 1)
            yield
        self.settle()

    def settle(self) -> None:
        """See :class:`Driver`."""
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def _plan(self, seed: int, epoch: int) -> "_Planned":
        """An epoch's numbers, made now unless they were made ahead."""
        if self._ahead is not None and self._ahead.of == (seed, epoch):
            return self._ahead
        plan = self.loader.plan
        batches = list(plan.training(seed, epoch))
        return _Planned(
            (seed, epoch),
            batches,
            torch.cat([batch.indices for batch in batches]),
            [torch.cat([batch.uniforms[place] for batch in batches]) for place in range(len(plan.views))],
            mixed_shares(seed, epoch, self.mixup, plan.steps),
        )

    def _load(self, planned: "_Planned") -> None:
        """Put an epoch's numbers on the device."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            self.order[: len(planned.order)].copy_(planned.order)
            for to, uniforms in zip(self.uniforms, planned.uniforms, strict=True):
                to[: len(uniforms)].copy_(uniforms)
            if planned.mixed is not None:
                self.mixed.copy_(planned.mixed)

    def _take(self, size: int) -> None:
        """The step that a graph holds."""
        mixed = self.mixed.index_select(0, self.number).squeeze(0) if self.mixup else None
        self.step([self._batch(size)], mixed)
        self.row += size
        if self.mixup:
            self.number += 1

    def _batch(self, size: int) -> Batch:
        if self._gathering is not None:
            images, labels = self._gathering(size)
            return Batch((images,), labels, self.places[:size])
        rows = self.row + self.places[:size]
        indices = self.order.index_select(0, rows)
        images = self.loader.pixels.index_select(0, indices)
        views = tuple(
            view(images, drawn.index_select(0, rows))
            for view, drawn in zip(self.loader.plan.views, self.uniforms, strict=True)
        )
        return Batch(views, self.loader.labels.index_select(0, indices), indices)

    def _fused(self) -> "Gathering | None":
        """The batches by one launch each, where there is one view that can be made so."""
        if kernels_for(self.device) != "triton" or len(self.uniforms) != 1:
            return None
        from longtail.train.gathering import Gathering, can_gather  # noqa: PLC0415 - Triton is imported on use

        if not can_gather(self.loader.plan.views[0], self.loader.pixels):
            return None
        return Gathering(self.loader, self.order, self.uniforms[0], self.row, self.step.memory_format)

    def _capture(self, size: int) -> torch.cuda.CUDAGraph:
        """Take a few steps to warm up, undo them, and capture one."""
        kept = [tensor.clone() for tensor in self._state()]
        self.row.zero_()
        for _ in range(3):
            self.number.zero_()
            self.row.zero_()
            self._take(size)
        for tensor, value in zip(self._state(), kept, strict=True):
            tensor.copy_(value)
        self.step.optimizer.zero_grad(set_to_none=True)
        self.row.zero_()
        self.number.zero_()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self._take(size)
        return graph

    def _state(self) -> list[Tensor]:
        """All that a step changes."""
        step = self.step
        momenta = [state["momentum_buffer"] for state in step.optimizer.state.values()]
        held = (*step.model.parameters(), *step.model.buffers(), *step.objective.buffers())
        return [*(tensor.detach() for tensor in held), *momenta, step.loss_sum, step.taken, step.first_bad]
