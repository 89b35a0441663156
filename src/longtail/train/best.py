"""The best epoch on validation data: its weights, and when to stop early."""

from typing import Any

import torch
from torch import Tensor, nn

_EPOCH, _RECALL, _WEIGHTS = "best.epoch", "best.recall", "best.model."  # names in a checkpoint


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
