"""What a model is trained on: a loss over all of its outputs, with its views and its state."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from longtail.losses import ProCoLoss, balanced_contrastive_loss, effective_number_weights, reslt_terms
from longtail.losses._common import Loss
from longtail.metrics._batch import wide
from longtail.models import Outputs
from longtail.ranks import Ranks

__all__ = [
    "BalancedContrastive",
    "DeferredWeights",
    "Objective",
    "ProbabilisticContrastive",
    "ResLT",
    "SupervisedLoss",
]

Sums = dict[str, Tensor]


class Objective(nn.Module):
    r"""What a model is trained on, :math:`\sum_k w_k S_k / D_k`: terms, each a sum over samples and its denominator.

    Sums and denominators are added up over micro-batches and ranks before one is divided by the other, so that a loss
    means the same on one GPU and on eight. State lives in buffers: it is saved, and a CUDA graph can hold it. So
    ``forward`` waits for no device, and what changes from epoch to epoch is written into buffers by ``begin_epoch``
    and ``end_epoch``.
    """

    views: tuple[str, ...] = ("weak",)
    """The augmentation of each view; a model's outputs have the rows of one view after the other."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        super().__init__()
        self.weights = {"loss": 1.0} if weights is None else dict(weights)
        """Each term's weight, by name."""
        self.ranks = Ranks()
        """The processes that share the batch; the trainer sets it."""

    @property
    def shift(self) -> Tensor | None:
        """What the loss adds to the classifier's logits, ``(C,)``, for measures of its gradient."""
        return None

    @property
    def only_shifts(self) -> bool:
        """Whether the classifier's loss is the cross entropy of its logits and :attr:`shift`, and no more than that.

        Then rewards and penalties of class statistics are its gradient.
        """
        return False

    @property
    def corrects(self) -> bool:
        """Whether the loss itself corrects for class counts: a sampler that does so too would correct twice."""
        return self.shift is not None and bool(self.shift.any())

    def denominators(self, target: Tensor) -> Sums:
        """For each term what its sum is divided by; from the labels alone."""
        return {name: torch.full((), len(target), dtype=torch.int64, device=target.device) for name in self.weights}

    def forward(self, outputs: Outputs, target: Tensor) -> Sums:
        """For each term its sum over the samples.

        Args:
            outputs: of one forward over all views; ``len(self.views) * B`` rows.
            target: class indices, int64 ``(B,)``.
        """
        raise NotImplementedError

    def begin_epoch(self, epoch: int) -> None:
        """Make ready for an epoch, counted from 0."""

    def end_epoch(self) -> None:
        """Finish an epoch."""


class SupervisedLoss(Objective):
    """Any loss of logits and targets, as an objective.

    Args:
        loss: one of ours, made with ``reduction="none"``.
        scale: of a cosine head, where the loss wants cosines and scales them itself (LDAM).

    Example:
        >>> from longtail import ClassBalancedSoftmaxLoss
        >>> objective = SupervisedLoss(ClassBalancedSoftmaxLoss([90, 10], beta=1.5, reduction="none"))
        >>> outputs = Outputs(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.zeros(2, 4), {})
        >>> objective(outputs, torch.tensor([0, 1]))
        {'loss': tensor(2.4053)}
    """

    def __init__(self, loss: Loss, scale: float = 1.0) -> None:
        super().__init__()
        if loss.reduction != "none":
            raise ValueError(f"Expected `loss` to be made with reduction='none', but got {loss}.")
        self.loss = loss
        self.scale = scale

    @property
    def shift(self) -> Tensor | None:
        """The loss's, where it has one."""
        return self.loss.logit_shift

    @property
    def only_shifts(self) -> bool:
        """It has a shift, and neither weights nor smoothed labels."""
        return self.loss.is_pure_shift

    @property
    def corrects(self) -> bool:
        """By its shift or its weights."""
        return self.loss.rebalances

    def denominators(self, target: Tensor) -> Sums:
        """The samples, each with its class's weight."""
        if self.loss.weight is None:
            return super().denominators(target)
        return {"loss": self.loss.weight[target].sum(dtype=wide(target.device))}  # the same over any cut of the batch

    def forward(self, outputs: Outputs, target: Tensor) -> Sums:
        """The sum of the samples' losses."""
        logits = outputs.logits if self.scale == 1.0 else outputs.logits / self.scale
        return {"loss": self.loss(logits, target).sum()}


class DeferredWeights(SupervisedLoss):
    """A loss whose classes weigh the same at first, and by their effective numbers later (DRW; Cao et al., 2019).

    Args:
        loss: makes the loss from its options; given a weight of one for each class.
        counts: training examples a class.
        b: see :func:`longtail.losses.effective_number_weights`.
        from_epoch: the first epoch with weights, counted from 0.
        scale: as in :class:`SupervisedLoss`.
    """

    later: Tensor

    def __init__(
        self, loss: Callable[[Tensor], Loss], counts: Tensor, b: float, from_epoch: int, scale: float = 1.0
    ) -> None:
        super().__init__(loss(torch.ones(len(counts))), scale)
        self.register_buffer("later", effective_number_weights(counts, b), persistent=False)
        self.from_epoch = from_epoch

    def begin_epoch(self, epoch: int) -> None:
        """Set the weights in place, where a captured graph reads them."""
        assert self.loss.weight is not None
        self.loss.weight.copy_(self.later if epoch >= self.from_epoch else torch.ones_like(self.later))


class ResLT(Objective):
    """ResLT (Cui et al., 2022): branches for all classes, for medium and tail, and for tail, and their sum.

    Args:
        sees: which classes each branch sees, bool ``(branches, C)``.
        alpha: how much the branches count; the cross entropy of their sum counts 1 - alpha.
        label_smoothing: how much of a target is spread evenly over the classes.
    """

    sees: Tensor

    def __init__(self, sees: Tensor, alpha: float, label_smoothing: float = 0.0) -> None:
        if not 0 <= alpha <= 1:
            raise ValueError(f"Expected `alpha` to be in [0, 1], but got {alpha}.")
        super().__init__({"branches": alpha, "sum": 1 - alpha})
        self.register_buffer("sees", sees, persistent=False)
        self.label_smoothing = label_smoothing

    def denominators(self, target: Tensor) -> Sums:
        """How often samples are seen by a branch, and the samples."""
        seen = self.sees[:, target].sum()
        return {"branches": seen, "sum": torch.full_like(seen, len(target))}

    def forward(self, outputs: Outputs, target: Tensor) -> Sums:
        """The branches' losses and that of their sum."""
        terms = reslt_terms(
            outputs.extra["branches"], target, self.sees, label_smoothing=self.label_smoothing, check_labels=False
        )
        return {"branches": terms.branch_sum, "sum": terms.fusion_sum}


class _Contrastive(Objective):
    """A classifier's loss on the first view, and a contrastive one on two more."""

    views = ("strong", "contrast", "contrast")

    def __init__(self, classifier: Loss, classifier_weight: float, contrast_weight: float) -> None:
        super().__init__({"classifier": classifier_weight, "contrast": contrast_weight})
        self.classifier = SupervisedLoss(classifier)

    @property
    def shift(self) -> Tensor | None:
        """The classifier's."""
        return self.classifier.shift

    @property
    def only_shifts(self) -> bool:
        """The classifier's loss."""
        return self.classifier.only_shifts

    def forward(self, outputs: Outputs, target: Tensor) -> Sums:
        """The classifier's loss, and the mean of the contrast views'."""
        batch = len(target)
        first = Outputs(outputs.logits[:batch], outputs.features[:batch], {})
        views = outputs.extra["projection"][batch:].view(2, batch, -1)
        return {"classifier": self.classifier(first, target)["loss"], "contrast": self.contrast(views, target, outputs)}

    def contrast(self, views: Tensor, target: Tensor, outputs: Outputs) -> Tensor:
        """The contrastive loss, averaged over the views and summed over the samples.

        Args:
            views: the contrast views' unit vectors, ``(2, B, p)``.
            target: the samples' classes, ``(B,)``.
            outputs: all that the model gave.
        """
        raise NotImplementedError

    def everybodys(self, views: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The views, ``(2, K, p)``, and labels, ``(K,)``, of all ranks, one rank after the other."""
        return self.ranks.gather(views.transpose(0, 1).contiguous()).transpose(0, 1), self.ranks.gather(target)


class BalancedContrastive(_Contrastive):
    """BCL (Zhu et al., 2022): contrast with both views of the batch and with a prototype of each class.

    Args:
        classifier: the classifier's loss, made with ``reduction="none"``.
        temperature: of the similarities.
        classifier_weight: how much the classifier's loss counts.
        contrast_weight: how much the contrastive one counts.
    """

    def __init__(self, classifier: Loss, temperature: float, classifier_weight: float, contrast_weight: float) -> None:
        super().__init__(classifier, classifier_weight, contrast_weight)
        self.temperature = temperature

    def contrast(self, views: Tensor, target: Tensor, outputs: Outputs) -> Tensor:
        """Queries are this rank's, keys those of all ranks."""
        keys, key_labels = self.everybodys(views, target)
        batch, everybody = len(target), len(key_labels)
        mine = self.ranks.rank * batch + torch.arange(batch, device=target.device)
        loss = balanced_contrastive_loss(
            views.flatten(0, 1),
            target.repeat(2),
            keys.flatten(0, 1),
            key_labels.repeat(2),
            outputs.extra["prototypes"],
            temperature=self.temperature,
            query_index=torch.cat([mine, everybody + mine]),
            reduction="sum",
            check_labels=False,
        )
        return loss / 2


class ProbabilisticContrastive(_Contrastive):
    """ProCo (Du et al., 2024): contrast with a von Mises-Fisher distribution a class, estimated from the features.

    Args:
        classifier: the classifier's loss, made with ``reduction="none"``.
        loss: the contrastive loss, which holds the classes' statistics, made with ``reduction="sum"``.
        classifier_weight: how much the classifier's loss counts.
        contrast_weight: how much the contrastive one counts.
    """

    def __init__(
        self, classifier: Loss, loss: ProCoLoss, classifier_weight: float = 1.0, contrast_weight: float = 1.0
    ) -> None:
        super().__init__(classifier, classifier_weight, contrast_weight)
        self.loss = loss

    def contrast(self, views: Tensor, target: Tensor, outputs: Outputs) -> Tensor:  # noqa: ARG002 - no prototypes
        """All ranks' features are counted, then this rank's are compared with what they make."""
        keys, key_labels = self.everybodys(views.detach(), target)
        loss: Tensor = self.loss(views, target, keys=keys, key_labels=key_labels)
        return loss

    def end_epoch(self) -> None:
        """What was gathered in this epoch is where the next one starts."""
        self.loss.end_epoch()
