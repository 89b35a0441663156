"""BCL and ProCo: a balanced classifier on one view of an image, and a contrastive loss on two more."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from longtail.losses import ClassBalancedSoftmaxLoss, Loss, ProCoLoss, balanced_contrastive_loss
from longtail.methods.base import Method, Stage, Task
from longtail.methods.objective import Objective, Sums, SupervisedLoss
from longtail.methods.params import param
from longtail.models import Outputs


class _Contrastive(Objective):
    """The classifier's loss on the first view, and a contrastive loss on two more."""

    views = ("strong", "contrast", "contrast")

    def __init__(self, classifier: Loss, classifier_weight: float, contrast_weight: float) -> None:
        super().__init__({"classifier": classifier_weight, "contrast": contrast_weight})
        self.classifier = SupervisedLoss(classifier)

    @property
    def classifier_loss(self) -> Loss:
        """The loss of the first view."""
        return self.classifier.loss

    def forward(self, outputs: Outputs, target: Tensor) -> Sums:
        """The classifier's loss, and the contrastive loss averaged over its views."""
        batch = len(target)
        first = Outputs(outputs.logits[:batch], outputs.features[:batch], {})
        views = outputs.extra["projection"][batch:].view(2, batch, -1)
        return {"classifier": self.classifier(first, target)["loss"], "contrast": self.contrast(views, target, outputs)}

    def contrast(self, views: Tensor, target: Tensor, outputs: Outputs) -> Tensor:
        """The contrastive loss of unit vectors ``(2, B, p)``, averaged over views and summed over samples."""
        raise NotImplementedError

    def gather(self, views: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The views, ``(2, K, p)``, and labels, ``(K,)``, of all ranks, one rank after the other."""
        return self.ranks.gather(views.transpose(0, 1).contiguous()).transpose(0, 1), self.ranks.gather(target)


class BalancedContrastive(_Contrastive):
    """BCL (Zhu et al., 2022): contrast with both views of the batch and with one prototype per class."""

    def __init__(self, classifier: Loss, temperature: float, classifier_weight: float, contrast_weight: float) -> None:
        super().__init__(classifier, classifier_weight, contrast_weight)
        self.temperature = temperature

    @property
    def is_pure_shift(self) -> bool:
        """No: the contrastive loss also changes the classifier's weights, through the prototypes."""
        return False

    def contrast(self, views: Tensor, target: Tensor, outputs: Outputs) -> Tensor:
        """Queries come from this rank, keys from all ranks."""
        keys, key_labels = self.gather(views, target)
        batch, total = len(target), len(key_labels)
        mine = self.ranks.rank * batch + torch.arange(batch, device=target.device)
        loss = balanced_contrastive_loss(
            views.flatten(0, 1),
            target.repeat(2),
            keys.flatten(0, 1),
            key_labels.repeat(2),
            outputs.extra["prototypes"],
            temperature=self.temperature,
            query_index=torch.cat([mine, total + mine]),
            reduction="sum",
            check_labels=False,
        )
        return loss / 2


class ProbabilisticContrastive(_Contrastive):
    """ProCo (Du et al., 2024): contrast with a von Mises-Fisher distribution per class, estimated from the features.

    Args:
        classifier: the classifier's loss, made with ``reduction="none"``.
        loss: the contrastive loss, which holds the class statistics, made with ``reduction="sum"``.
        classifier_weight: weight of the classifier's loss.
        contrast_weight: weight of the contrastive loss.
    """

    def __init__(
        self, classifier: Loss, loss: ProCoLoss, classifier_weight: float = 1.0, contrast_weight: float = 1.0
    ) -> None:
        super().__init__(classifier, classifier_weight, contrast_weight)
        self.loss = loss

    def contrast(self, views: Tensor, target: Tensor, outputs: Outputs) -> Tensor:  # noqa: ARG002 - no prototypes
        """The features of all ranks update the statistics, then those of this rank are compared with them."""
        keys, key_labels = self.gather(views.detach(), target)
        loss: Tensor = self.loss(views, target, keys=keys, key_labels=key_labels)
        return loss

    def end_epoch(self) -> None:
        """Start the next epoch from the statistics of this one."""
        self.loss.end_epoch()


@dataclass(frozen=True)
class BCLParams:
    """Parameters of BCL."""

    beta: float | Literal["auto"] = param(
        1.0,
        "beta of the classifier's loss: 0 softmax, 1 Balanced Softmax, else CBS; auto: measured on held-out data",
        at_least=0,
    )
    temperature: float = param(0.1, "of the similarities (large data sets: 0.07)", above=0)
    classifier_weight: float = param(2.0, "weight of the classifier's loss", at_least=0)
    contrast_weight: float = param(0.6, "weight of the contrastive loss", at_least=0)
    hidden: int = param(512, "hidden width of the projection head (large data sets: 2048)", at_least=1)
    projection: int = param(128, "output width of the projection head (large data sets: 1024)", at_least=2)


@dataclass(frozen=True)
class ProCoParams(BCLParams):
    """Parameters of ProCo."""

    classifier_weight: float = param(1.0, "weight of the classifier's loss", at_least=0)
    contrast_weight: float = param(1.0, "weight of the contrastive loss", at_least=0)


def _classifier(task: Task) -> Loss:
    return ClassBalancedSoftmaxLoss(task.counts, beta=task.params.beta, zero_counts="mask", **task.options)


def _bcl(task: Task) -> Objective:
    params = task.params
    return BalancedContrastive(_classifier(task), params.temperature, params.classifier_weight, params.contrast_weight)


def _proco(task: Task) -> Objective:
    params = task.params
    contrast = ProCoLoss(
        task.counts,
        params.projection,
        beta=params.beta,
        temperature=params.temperature,
        seed=task.seed,
        reduction="sum",
        check_labels=False,
    )
    return ProbabilisticContrastive(_classifier(task), contrast, params.classifier_weight, params.contrast_weight)


def _projection(params: Any) -> tuple[int, int]:
    return params.hidden, params.projection


def _classifier_label(beta: float | Literal["auto"]) -> str:
    if isinstance(beta, str):
        return "CBS (β auto)"
    return {0.0: "Softmax", 1.0: "Balanced Softmax"}.get(beta, f"CBS (β = {beta:g})")


BCL = Method(
    "bcl",
    "BCL",
    "balanced classifier, and contrast in which all classes have the same weight",
    "Zhu et al., CVPR 2022",
    (Stage(_bcl),),
    BCLParams,
    beta="beta",
    shift="beta",
    mixes=False,
    projection=_projection,
    prototypes=True,
    label_of=lambda params: f"BCL + {_classifier_label(params.beta)}",
)
PROCO = Method(
    "proco",
    "ProCo",
    "balanced classifier, and contrast with one distribution per class",
    "Du et al., TPAMI 2024",
    (Stage(_proco),),
    ProCoParams,
    beta="beta",
    shift="beta",
    mixes=False,
    projection=_projection,
    label_of=lambda params: f"ProCo + {_classifier_label(params.beta)}",
)
