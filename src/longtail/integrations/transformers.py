"""Class-Balanced Softmax in the ``Trainer`` of Transformers: loss, metrics by group, and beta found during training."""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._checks import Vector, check_number, describe
from longtail._io import import_extra
from longtail.beta import AutoBeta
from longtail.classes import Groups
from longtail.losses import ClassBalancedSoftmaxLoss
from longtail.metrics import class_statistics, summary

import_extra("transformers", "transformers")  # its error names the extra
from transformers import Trainer, TrainerCallback  # noqa: E402

__all__ = ["AutoBetaCallback", "TrainerLoss", "compute_metrics", "loss_func"]

_IGNORED = -100  # the label that Transformers leaves out
_STATE = "AutoBeta"  # in trainer_state.json; not the name of the callback, which the Trainer would build again


def loss_func(counts: Vector, *, beta: float) -> "TrainerLoss":
    r"""Return Class-Balanced Softmax for ``Trainer(compute_loss_func=...)``.

    In training it is the cross entropy of :math:`z_c + \beta \log N_c`. It is divided by the number of labels in all
    batches of a step, so gradient accumulation changes nothing. Its label smoothing is ``label_smoothing_factor`` of
    the ``TrainingArguments``. In evaluation it is the loss that the Trainer computes without it, so ``eval_loss`` can
    be compared between runs.

    Args:
        counts: training examples per class, shape ``(C,)``; for token classification, tokens per class.
        beta: how strongly to shift, >= 0.

    It is for models that classify sequences, images or tokens, with logits ``(..., C)`` and labels ``(...)``. For other
    models use :func:`shift_in_training <longtail.shift_in_training>` on their last layer.

    Example:
        >>> loss = loss_func([500, 50, 5], beta=1.5)
        >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.0, 1.0]])
        >>> loss({"logits": logits}, torch.tensor([0, 2]), num_items_in_batch=2)
        tensor(3.2200)
        >>> with torch.no_grad():
        ...     loss({"logits": logits}, torch.tensor([0, 2]))  # plain
        tensor(0.5439)
    """
    return TrainerLoss(counts, beta)


class TrainerLoss:
    """The loss that :func:`loss_func` returns."""

    def __init__(self, counts: Vector, beta: float) -> None:
        self.loss = ClassBalancedSoftmaxLoss(counts, beta=beta, reduction="sum")
        """The loss in training, summed over the labels."""
        self.held_out: list[tuple[Tensor, Tensor]] | None = None
        """Logits and labels of an evaluation, for :class:`AutoBetaCallback`; ``None``: not kept."""

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the mean over ``num_items_in_batch`` labels, by default those of this batch."""
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.shape != logits.shape[:-1]:
            raise ValueError(
                f"Expected `labels` to be class indices of shape {tuple(logits.shape[:-1])}, but got "
                f"{describe(labels)}; longtail.shift_in_training works with other models."
            )
        logits, labels = logits.flatten(0, -2), labels.flatten().to(logits.device)
        if torch.is_grad_enabled():
            if self.loss.counts.device != logits.device:
                self.loss.to(logits.device)
            self.loss.label_smoothing = _label_smoothing()
            total: Tensor = self.loss(logits, labels)
        else:  # the Trainer evaluates without gradients
            total = F.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=_label_smoothing())
            if self.held_out is not None:
                kept = labels != _IGNORED
                self.held_out.append((logits[kept], labels[kept]))
        number = (labels != _IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        return total / (number.to(total.device) if isinstance(number, Tensor) else number)


def _label_smoothing() -> float:
    """Return the label smoothing of the Trainer that is calling; it passes neither itself nor its arguments."""
    # Users could forget a parameter for it, and their label_smoothing_factor would then be ignored without a warning.
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer):
            return float(caller.args.label_smoothing_factor)
    return 0.0


def compute_metrics(groups: Groups) -> Callable[[Any], dict[str, float]]:
    """Return a function for ``Trainer(compute_metrics=...)``: recall by group, see :func:`longtail.metrics.summary`.

    Args:
        groups: head, medium and tail, or any other groups.

    Example:
        >>> import numpy as np
        >>> metrics = compute_metrics(Groups.from_indices(head=[0], tail=[1]))
        >>> found = metrics((np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), np.array([0, 1, 1])))
        >>> found["recall"], found["recall_head"], found["recall_tail"]
        (0.75, 1.0, 0.5)
    """

    def metrics(prediction: Any) -> dict[str, float]:
        predictions, labels = prediction
        logits = torch.as_tensor(predictions[0] if isinstance(predictions, tuple) else predictions)
        return summary(class_statistics(logits.flatten(0, -2), torch.as_tensor(labels).flatten()), groups)

    return metrics


class AutoBetaCallback(TrainerCallback):
    """Moves beta after each evaluation during training, until the evaluation data show no need of another.

    ``eval_dataset`` must be validation data, never test data. Evaluations outside ``train()`` change nothing. Beta is
    part of checkpoints. After training, ``callback.auto.adjust(logits)`` subtracts what beta still lacks in the model
    that was evaluated last. See :class:`AutoBeta <longtail.AutoBeta>`.

    Args:
        loss: from :func:`loss_func`; its beta is the start, for example 1. The Trainer must use it.
        gain: which part of the measured shift is added to beta.
        after: epochs before the first change, because the first logits say little.

    Example:
        >>> loss = loss_func([500, 50, 5], beta=1.0)
        >>> callback = AutoBetaCallback(loss)  # Trainer(..., compute_loss_func=loss, callbacks=[callback])
    """

    def __init__(self, loss: TrainerLoss, *, gain: float = 0.5, after: float = 1.0) -> None:
        if not isinstance(loss, TrainerLoss):
            raise TypeError(f"Expected `loss` to come from `loss_func`, but got {describe(loss)}.")
        self.loss = loss
        self.auto = AutoBeta(loss.loss, gain=gain)
        """Has the trace of all updates, and ``adjust``."""
        self.after = check_number("after", after)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Load beta if training is resumed, and keep the logits of evaluations from now on."""
        self.loss.held_out = []
        saved = state.stateful_callbacks.get(_STATE)
        if saved is not None:
            tensors = self.auto.state_dict()
            tensors["beta"].fill_(saved["beta"])
            if saved["trace"]:
                tensors["_rows"][-len(saved["trace"]) :] = torch.tensor(saved["trace"], dtype=torch.float64)
            self.auto.load_state_dict(tensors)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Measure the shift on the data just evaluated, and move beta."""
        if self.loss.held_out is None:
            return
        if "eval_loss" not in kwargs.get("metrics", {}) or not self.loss.held_out:
            raise ValueError(
                "Expected one labelled `eval_dataset` and, as `compute_loss_func`, the `loss` of AutoBetaCallback."
            )
        logits, labels = (torch.cat(parts) for parts in zip(*self.loss.held_out, strict=True))
        self.loss.held_out.clear()
        if state.epoch is not None and state.epoch >= self.after:
            self.auto.update(logits, labels)
            rows = self.auto.state_dict()["_rows"]
            trace = rows[~rows[:, 0].isnan()].tolist()
            state.stateful_callbacks[_STATE] = {"beta": self.loss.loss.beta, "trace": trace}

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Keep no further logits: what comes now may be test data."""
        self.loss.held_out = None
