"""Which weights a run ends with, if not those of the last step: a moving average, or those of the best epoch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_EPOCH, _RECALL, _WEIGHTS = "best.epoch", "best.recall", "best.model."  # names in a checkpoint


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


class BestEpoch:
    """Remembers the weights of the epoch with the highest recall over all classes on validation data.

    Args:
        patience: stop after this many epochs without a better one; 0: never.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.epoch = -1
        self.recall = -1.0
        self._weights: dict[str, Tensor] = {}

    def consider(self, epoch: int, recall: float, model: nn.Module) -> None:
        """Remember the weights of an epoch if its recall is higher than that of all before."""
        if recall > self.recall:
            self.epoch, self.recall = epoch, recall
            self._weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}

    def stops_before(self, epoch: int) -> bool:
        """Whether training stops before this epoch."""
        return bool(self.patience) and self.epoch >= 0 and epoch - 1 - self.epoch >= self.patience

    def load_into(self, model: nn.Module) -> None:
        """Give the model the weights of the best epoch."""
        model.load_state_dict(self._weights)

    def state(self) -> dict[str, Tensor]:
        """Tensors for a checkpoint."""
        weights = {f"{_WEIGHTS}{name}": value for name, value in self._weights.items()}
        return {_EPOCH: torch.tensor(self.epoch), _RECALL: torch.tensor(self.recall, dtype=torch.float64), **weights}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from the tensors of a checkpoint; one of an earlier stage has none."""
        if _EPOCH in tensors:
            self.epoch, self.recall = int(tensors[_EPOCH]), float(tensors[_RECALL])
            found = {name: value for name, value in tensors.items() if name.startswith(_WEIGHTS)}
            self._weights = {name.removeprefix(_WEIGHTS): value for name, value in found.items()}

    def summary(self, trained: int) -> dict[str, Any]:
        """For ``result.json``: the best epoch from 1 on, the epochs trained in its stage, and the recall."""
        return {"epoch": self.epoch + 1, "epochs_trained": trained, "val_recall": self.recall}
