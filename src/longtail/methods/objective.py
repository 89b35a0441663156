"""Objectives: what a model is trained on, from all of its outputs, with its views and its state."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from longtail._ranks import Ranks
from longtail.losses import Loss
from longtail.metrics.statistics import wide
from longtail.models import Outputs

Sums = dict[str, Tensor]


class Objective(nn.Module):
    r"""A weighted sum of terms, :math:`\sum_k w_k S_k / D_k`, each a sum over samples and its denominator.

    Sums and denominators are added up over micro-batches and ranks before the division, so that the loss means the
    same on one GPU and on eight. State belongs in buffers: then checkpoints save it and a CUDA graph can use it.
    ``forward`` must not wait for the device. What changes between epochs is written into buffers by ``begin_epoch``
    and ``end_epoch``.
    """

    views: tuple[str, ...] = ("weak",)
    """The augmentation of each view; the model's outputs hold the rows of one view after the other."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        super().__init__()
        self.weights = {"loss": 1.0} if weights is None else dict(weights)
        """The weight of each term, by name."""
        self.ranks = Ranks()
        """The processes that share the batch; set by the trainer."""

    @property
    def classifier_loss(self) -> Loss | None:
        """The loss of the classifier's logits, which declares the three properties below."""
        return None

    @property
    def logit_shift(self) -> Tensor | None:
        """What the loss adds to the classifier's logits, ``(C,)``, for measures of its gradient."""
        return None if self.classifier_loss is None else self.classifier_loss.logit_shift

    @property
    def is_pure_shift(self) -> bool:
        """Whether the classifier's loss is exactly the cross entropy of the logits plus :attr:`logit_shift`.

        Then rewards and penalties of class statistics are its gradient.
        """
        return self.classifier_loss is not None and self.classifier_loss.is_pure_shift

    @property
    def rebalances(self) -> bool:
        """Whether the loss corrects for class counts: a re-balancing sampler would correct a second time."""
        return self.classifier_loss is not None and self.classifier_loss.rebalances

    def denominators(self, target: Tensor) -> Sums:
        """What the sum of each term is divided by; a function of the labels only."""
        return {name: torch.full((), len(target), dtype=torch.int64, device=target.device) for name in self.weights}

    def forward(self, outputs: Outputs, target: Tensor) -> Sums:
        """The sum over samples of each term.

        Args:
            outputs: of one forward pass over all views; ``len(self.views) * B`` rows.
            target: class indices, int64 ``(B,)``.
        """
        raise NotImplementedError

    def begin_epoch(self, epoch: int) -> None:
        """Prepare for an epoch, counted from 0."""

    def end_epoch(self) -> None:
        """Finish an epoch."""


class SupervisedLoss(Objective):
    """A loss of logits and targets, as an objective.

    Args:
        loss: made with ``reduction="none"``.
        scale: scale of the cosine head if the loss expects cosines and scales them itself (LDAM).

    Example:
        >>> from longtail import ClassBalancedSoftmaxLoss
        >>> objective = SupervisedLoss(ClassBalancedSoftmaxLoss([90, 10], beta=1.5, reduction="none"))
        >>> outputs = Outputs(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.zeros(2, 4), {})
        >>> objective(outputs, torch.tensor([0, 1]))
        {'loss': tensor(2.4053)}
    """

    def __init__(self, loss: Loss, scale: float = 1.0) -> None:
        super().__init__()
        if not isinstance(loss, Loss):
            raise TypeError(f"Expected `loss` to be a subclass of longtail.losses.Loss, but got {type(loss).__name__}.")
        if loss.reduction != "none":
            raise ValueError(
                f"Expected `loss` to be made with reduction='none', but got {loss}; pass it `**task.options`."
            )
        self.loss = loss
        self.scale = scale

    @property
    def classifier_loss(self) -> Loss:
        """The loss."""
        return self.loss

    @property
    def is_pure_shift(self) -> bool:
        """Whether the loss is, and sees the logits as they are."""
        return self.scale == 1.0 and super().is_pure_shift

    def denominators(self, target: Tensor) -> Sums:
        """The number of samples, or the sum of their class weights."""
        if self.loss.weight is None:
            return super().denominators(target)
        return {"loss": self.loss.weight[target].sum(dtype=wide(target.device))}  # the same for any micro-batches

    def forward(self, outputs: Outputs, target: Tensor) -> Sums:
        """The sum of the losses of the samples."""
        logits = outputs.logits if self.scale == 1.0 else outputs.logits / self.scale
        losses = self.loss(logits, target)
        if losses.shape != target.shape[:1]:
            raise ValueError(
                f"Expected {type(self.loss).__name__} to return one value per sample, shape ({len(target)},), but got "
                f"shape {tuple(losses.shape)}."
            )
        return {"loss": losses.sum()}
