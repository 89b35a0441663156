"""The exponential moving average of a model's weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """The average of the weights after each step, with buffers such as BatchNorm's statistics; it stays on the device.

    After step t (from 1 on) the average moves to the weights by ``1 - min(decay, t / (t + 9))``, so that short runs
    forget the weights with which they started.

    Args:
        model: its trained parameters and its buffers are averaged; frozen parameters do not change.
        decay: the largest weight of the average before a step.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        averaged: dict[str, Tensor] = {name: value for name, value in model.named_parameters() if value.requires_grad}
        averaged |= {name: value for name, value in model.named_buffers() if value.is_floating_point()}
        self._live = [value.detach() for value in averaged.values()]
        self._average = [value.clone() for value in self._live]
        self._names = list(averaged)
        self._steps = torch.zeros((), device=self._live[0].device)

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights after a step; nothing is read back from the device."""
        self._steps += 1
        move = 1 - (self._steps / (self._steps + 9)).clamp(max=self.decay)
        change = torch._foreach_sub(self._live, self._average)
        torch._foreach_mul_(change, move)
        torch._foreach_add_(self._average, change)

    def state(self) -> dict[str, Tensor]:
        """Tensors that a step changes, for a checkpoint."""
        named = zip(self._names, self._average, strict=True)
        return {"ema.steps": self._steps} | {f"ema.{name}": value for name, value in named}

    @torch.no_grad()
    def load(self) -> None:
        """Give the model the average instead of its weights."""
        for live, average in zip(self._live, self._average, strict=True):
            live.copy_(average)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Inside the block the model has the average, in place."""
        weights = [live.clone() for live in self._live]
        self.load()
        try:
            yield
        finally:
            for live, weight in zip(self._live, weights, strict=True):
                live.copy_(weight)
