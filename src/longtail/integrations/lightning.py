"""Lightning callbacks: recall by group on validation data, and beta found during training.

Both read what ``validation_step`` returns:

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        return {"logits": self(images), "labels": labels}
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from longtail._checks import check_number, describe
from longtail._io import import_extra
from longtail.beta import AutoBeta
from longtail.classes import Groups
from longtail.losses import ClassBalancedSoftmaxLoss

import_extra("lightning.pytorch", "lightning")  # its error names the extra
from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402

__all__ = ["AutoBetaCallback", "GroupRecallCallback"]


class GroupRecallCallback(Callback):
    """Logs ``val_recall`` and ``val_recall_<group>`` with ``self.log``, over all batches and processes.

    Args:
        groups: head, medium and tail, or any other groups.
        prefix: in front of the names, also with a slash.

    Example:
        >>> callback = GroupRecallCallback(Groups.from_indices(head=[0], tail=[1]))
        >>> # Trainer(callbacks=[callback, ModelCheckpoint(monitor="val_recall", mode="max")])
    """

    def __init__(self, groups: Groups, *, prefix: str = "val_") -> None:
        from longtail.metrics import GroupRecallMetric  # noqa: PLC0415 - it needs torchmetrics, which Lightning has

        self.metric = GroupRecallMetric(groups)
        self.prefix = prefix

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Start anew."""
        self.metric.reset()
        self.metric.to(pl_module.device)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:  # noqa: ARG002
        """Add a batch."""
        self.metric.update(*_read(outputs))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Log the recalls, which are the same on all ranks."""
        values = {f"{self.prefix}{name}": value for name, value in self.metric.compute().items()}
        pl_module.log_dict(values, rank_zero_only=False, sync_dist=False)


class AutoBetaCallback(Callback):
    """Moves the beta of a loss after each validation during ``fit``, until held-out data show no need of another.

    The validation data must not be the test data; ``trainer.validate`` and the sanity check change nothing. Beta is
    logged as ``beta`` and is part of checkpoints. After training, ``callback.auto.adjust(logits)`` subtracts what beta
    still lacks in the model that was validated last. See :class:`AutoBeta <longtail.AutoBeta>`.

    Args:
        loss: the loss of the module; its beta is the start, for example 1.
        gain: which part of the measured shift is added to beta.
        after: epochs before the first change, because the first logits say little.

    Example:
        >>> loss = ClassBalancedSoftmaxLoss([500, 50, 5], beta=1.0)
        >>> callback = AutoBetaCallback(loss)  # Trainer(callbacks=[callback])
    """

    def __init__(self, loss: ClassBalancedSoftmaxLoss, *, gain: float = 0.5, after: float = 1.0) -> None:
        self.auto = AutoBeta(loss, gain=gain)
        """Has the trace of all updates, and ``adjust``."""
        self.after = check_number("after", after)
        self._held_out: list[tuple[Tensor, Tensor]] = []

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Forget earlier logits."""
        self._held_out.clear()

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:  # noqa: ARG002
        """Keep the logits of a batch."""
        if self._measures(trainer):
            self._held_out.append(_read(outputs))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the shift on all of them, and move beta."""
        if self._measures(trainer):
            logits, labels = (torch.cat(parts) for parts in zip(*self._held_out, strict=True))
            self._held_out.clear()
            self.auto.update(logits, labels)
            pl_module.log("beta", self.auto.beta.float().to(pl_module.device), sync_dist=False)

    def state_dict(self) -> dict[str, Any]:
        """Return beta and the trace, for a checkpoint."""
        return dict(self.auto.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set beta and the trace, and the beta of the loss."""
        self.auto.load_state_dict(state_dict)

    def _measures(self, trainer: Trainer) -> bool:
        return trainer.state.fn == "fit" and not trainer.sanity_checking and trainer.current_epoch + 1 >= self.after


def _read(outputs: Any) -> tuple[Tensor, Tensor]:
    """Return logits and labels from what ``validation_step`` returned."""
    if not isinstance(outputs, Mapping) or not {"logits", "labels"} <= outputs.keys():
        raise TypeError(
            f'Expected `validation_step` to return {{"logits": ..., "labels": ...}}, but got {describe(outputs)}.'
        )
    return outputs["logits"].detach(), outputs["labels"]
