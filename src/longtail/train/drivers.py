"""Three ways to take the steps of an epoch: eagerly, or replayed from CUDA graphs with or without a loader.

Every driver has ``epoch``, which takes the steps of an epoch from step ``start`` on and yields after each; ``stream``,
on which steps are replayed, if they are; and ``settle``, which makes the current stream wait for all steps so far. An
epoch that ends early has settled.
"""

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from longtail._gpu import is_checked
from longtail.data import Draws, Resident, Streaming
from longtail.data.sampling.batch_plan import Batch, PlannedBatch
from longtail.train.graphs import StepGraphs, warn_not_captured
from longtail.train.mixing import mixed_rows
from longtail.train.step import Step

if TYPE_CHECKING:
    from longtail.train.gathering import Gathering


class Eager:
    """Eager steps; ``accumulate`` batches of the loader are one step; ``mixup`` and ``cutmix`` are their alphas."""

    def __init__(
        self,
        step: Step,
        loader: Resident | Streaming,
        accumulate: int = 1,
        mixup: float = 0.0,
        cutmix: float = 0.0,
    ) -> None:
        self.step, self.loader, self.accumulate, self.mixup, self.cutmix = step, loader, accumulate, mixup, cutmix
        self.stream = None

    def epoch(self, seed: int, epoch: int, start: int) -> Iterator[None]:
        """Take the steps of an epoch."""
        batches = self.loader.training(seed, epoch, start * self.accumulate)
        steps = -(-self.loader.plan.steps // self.accumulate)
        mixed = mixed_rows(seed, epoch, self.mixup, self.cutmix, steps)
        for number in range(start, steps):
            group = list(islice(batches, self.accumulate))
            if not group:  # the remaining images could not be read
                return
            with seeded(group[0].labels.device, seed, epoch, number, self.step.objective.ranks.rank):
                self.step(group, None if mixed is None else mixed[number].to(group[0].labels.device))
            yield

    def settle(self) -> None:
        """Do nothing: all work is on the current stream already."""


class Fed:
    """Steps replayed from CUDA graphs into which the batches of a loader are copied.

    The step of a large model is hundreds of launches, and the threads of a loader make as many: they wait for each
    other, in Python and in the driver. A replayed step is one launch. There is one graph for full batches and one for
    the last batch. Batches of other sizes, in which images were skipped, run eagerly, and so do all batches if the step
    cannot be captured, for example because the model reads a value from the GPU.
    """

    def __init__(self, step: Step, loader: Streaming, mixup: float = 0.0, cutmix: float = 0.0) -> None:
        self.step, self.loader, self.mixup, self.cutmix = step, loader, mixup, cutmix
        self.graphs = StepGraphs(step)
        self.stream = self.graphs.stream
        self._held: dict[int, tuple[Batch, Tensor | None]] = {}
        self._replays = True

    def epoch(self, seed: int, epoch: int, start: int) -> Iterator[None]:
        """Take the steps of an epoch."""
        plan, stream = self.loader.plan, self.stream
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        batches = self.loader.training(seed, epoch, start)
        with torch.cuda.stream(stream):
            shares = mixed_rows(seed, epoch, self.mixup, self.cutmix, plan.steps)
            shares = None if shares is None else shares.to(stream.device)
        under_way: deque[torch.cuda.Event] = deque()
        try:
            for number in range(start, plan.steps):
                with torch.cuda.stream(stream):
                    if len(under_way) == _UNDER_WAY:
                        under_way.popleft().synchronize()
                    batch = next(batches, None)
                    if batch is None:  # the remaining images could not be read
                        break
                    self._take(batch, None if shares is None else shares[number])
                    del batch  # or it would stay in memory until the next one arrives
                    under_way.append(stream.record_event(torch.cuda.Event(blocking=True)))  # type: ignore[no-untyped-call]
                yield
        finally:
            self.settle()

    def settle(self) -> None:
        """Make the current stream wait for all steps so far."""
        self.graphs.settle()

    def _take(self, batch: Batch, share: Tensor | None) -> None:
        size, plan = len(batch.labels), self.loader.plan
        if self._replays and size not in self._held and size in {plan.batch_size, len(plan.labels) % plan.batch_size}:
            self._capture(size, batch, share)
        if size not in self._held:
            self.step([batch], share)
            return
        held, held_share = self._held[size]
        for to, value in zip((*held.views, held.labels), (*batch.views, batch.labels), strict=True):
            to.copy_(value)
        if held_share is not None and share is not None:
            held_share.copy_(share)
        self.graphs.replay(size)

    def _capture(self, size: int, batch: Batch, share: Tensor | None) -> None:
        held = Batch(tuple(view.clone() for view in batch.views), batch.labels.clone(), batch.indices)
        held_share = None if share is None else share.clone()
        handled = sys.exception()
        try:
            self.graphs.capture(size, partial(self.step, [held], held_share))
            self._held[size] = held, held_share
        except RuntimeError as error:
            self._replays = False
            self._held.clear()
            warn_not_captured("The step", error, handled)


_UNDER_WAY = 2  # steps that are launched but not finished: each holds a batch


@contextmanager
def seeded(device: torch.device, seed: int, epoch: int, step: int = 0, rank: int = 0) -> Iterator[None]:
    """On a CPU, draw torch's random numbers in the block, as dropout and drop-path do, from these numbers alone."""
    if device.type != "cpu":
        yield
        return
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed((_torch_seed(seed, epoch, rank) + step) % 2**63)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


@lru_cache(maxsize=64)
def _torch_seed(seed: int, epoch: int, rank: int) -> int:
    high, low = Draws(seed, epoch).uniforms(0, 1, 2, stream=_TORCH_STREAM - rank)[0].tolist()
    return int(high * 2**24) * 2**36 + int(low * 2**24) * 2**12


_TORCH_STREAM = 2**24 - 3  # and those before it, one per rank; mixing uses the last two


class _Planned(NamedTuple):
    """Order and random draws of an epoch, on the CPU."""

    seed_and_epoch: tuple[int, int]
    batches: list[PlannedBatch]
    order: Tensor
    uniforms: list[Tensor]
    mixed: Tensor | None


class Captured:
    """Steps replayed from CUDA graphs that hold a whole step: gather, augment, forward, loss, backward, SGD.

    Order and random draws of an epoch are on the device; a graph reads its rows by a counter that it advances itself,
    so that a step is one launch. There is one graph for full batches and one for the last batch. If the step cannot be
    captured, it runs eagerly. ``last`` is the last epoch, if known: samplers may have no order beyond it.
    """

    def __init__(
        self, step: Step, loader: Resident, mixup: float = 0.0, last: int | None = None, cutmix: float = 0.0
    ) -> None:
        self.step, self.loader, self.mixup, self.last, self.cutmix = step, loader, mixup, last, cutmix
        self.device = loader.labels.device
        self.graphs = StepGraphs(step)
        self.stream = self.graphs.stream
        plan = loader.plan
        rows = plan.steps * plan.batch_size
        self.order = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.uniforms = [torch.zeros(rows, view.draws, device=self.device) for view in plan.views]
        self.mixed = torch.ones((plan.steps, 5) if cutmix else plan.steps, device=self.device)
        self.row = torch.zeros((), dtype=torch.int64, device=self.device)
        self.number = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.places = torch.arange(plan.batch_size, device=self.device)
        self._gathering = self._fused()
        self._ahead: _Planned | None = None
        self._replays = True

    def epoch(self, seed: int, epoch: int, start: int) -> Iterator[None]:
        """Take the steps of an epoch."""
        planned = self._plan(seed, epoch)
        self._load(planned)
        sizes = [len(batch.indices) for batch in planned.batches[start:]]
        try:
            with torch.cuda.stream(self.stream):
                for size in dict.fromkeys(sizes):
                    if self._replays and size not in self.graphs:
                        self._capture(size)
                self.row.fill_(start * self.loader.plan.batch_size)
                self.number.fill_(start)
            for left, size in zip(reversed(range(len(sizes))), sizes, strict=True):
                with torch.cuda.stream(self.stream):
                    if self._replays:
                        self.graphs.replay(size)
                    else:
                        self._take(size)
                if left == 0 and epoch != self.last:  # while the GPU still works: steps are launched far ahead
                    self._ahead = self._plan(seed, epoch + 1)
                yield
        finally:
            self.settle()

    def settle(self) -> None:
        """Make the current stream wait for all steps so far."""
        self.graphs.settle()

    def _capture(self, size: int) -> None:
        handled = sys.exception()
        try:
            self.graphs.capture(size, partial(self._take, size), self._rewind)
        except RuntimeError as error:
            self._replays = False
            warn_not_captured("The step", error, handled)

    def _plan(self, seed: int, epoch: int) -> _Planned:
        if self._ahead is not None and self._ahead.seed_and_epoch == (seed, epoch):
            return self._ahead
        plan = self.loader.plan
        batches = list(islice(plan.training(seed, epoch), plan.steps))  # a sampler may give more
        return _Planned(
            (seed, epoch),
            batches,
            torch.cat([batch.indices for batch in batches]),
            [torch.cat([batch.uniforms[place] for batch in batches]) for place in range(len(plan.views))],
            mixed_rows(seed, epoch, self.mixup, self.cutmix, plan.steps),
        )

    def _load(self, planned: _Planned) -> None:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            self.order[: len(planned.order)].copy_(planned.order)
            for to, uniforms in zip(self.uniforms, planned.uniforms, strict=True):
                to[: len(uniforms)].copy_(uniforms)
            if planned.mixed is not None:
                self.mixed.copy_(planned.mixed)

    def _take(self, size: int) -> None:
        """The step that a graph captures."""
        mixes = self.mixup or self.cutmix
        mixed = self.mixed.index_select(0, self.number).squeeze(0) if mixes else None
        self.step([self._batch(size)], mixed)
        self.row += size
        if mixes:
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
        """One launch per batch, if there is a single view that the kernel supports."""
        if not is_checked(self.device) or len(self.uniforms) != 1:
            return None
        from longtail.train.gathering import Gathering, can_gather  # noqa: PLC0415 - Triton is imported on use

        if not can_gather(self.loader.plan.views[0], self.loader.pixels):
            return None
        return Gathering(self.loader, self.order, self.uniforms[0], self.row, self.step.memory_format)

    def _rewind(self) -> None:
        self.row.zero_()  # the first rows exist for every batch size
        self.number.zero_()


Driver = Eager | Fed | Captured
