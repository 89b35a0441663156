"""Balanced contrastive learning (BCL): a supervised contrastive loss in which every class has the same weight."""

import torch
from torch import Tensor, nn

from longtail._checks import check_choice
from longtail.losses._common import Reduction, reads_labels
from longtail.losses._embeddings import (
    at_least_float32,
    check_features,
    check_row_labels,
    check_temperature,
    full_precision,
)


def balanced_contrastive_loss(
    queries: Tensor,
    query_labels: Tensor,
    keys: Tensor,
    key_labels: Tensor,
    prototypes: Tensor,
    *,
    temperature: float,
    query_index: Tensor | None = None,
    reduction: Reduction = "mean",
    check_labels: bool | None = None,
) -> Tensor:
    r"""The loss of balanced contrastive learning (Zhu et al., 2022).

    The keys are the features of the batch (all views) and one prototype per class, so that every class has a key. Let
    :math:`s_{ik} = q_i \cdot k / T` be the similarities of query :math:`i`, and :math:`M_{ic}` the keys of class
    :math:`c`, without :math:`i` itself. Then

    .. math:: l_i = \log \sum_c \frac{1}{|M_{ic}|} \sum_{k \in M_{ic}} e^{s_{ik}}
              - \frac{1}{|M_{i y_i}|} \sum_{k \in M_{i y_i}} s_{ik}

    This is what the published code computes (FlamieZhu/Balanced-Contrastive-Learning, ``loss/contrastive.py``), which
    gave the published numbers. Each class of the denominator is averaged over its members, the prototype included; the
    query's own class over all members but the query. The mean is over the queries of all views.

    A key of class :math:`c` counts :math:`1 / |M_{ic}|`, so the denominator is computed as a log-sum-exp over
    :math:`s_{ik} - \log |M_{i y_k}|`: one product of queries and keys and a few passes over its result.

    For a batch on several ranks, each rank passes its own queries and the keys of all ranks with ``reduction="sum"``;
    add the sums and divide by the number of all queries. Gradients flow to queries, keys and prototypes.

    Args:
        queries: normalised features, shape ``(Q, p)``.
        query_labels: their classes, shape ``(Q,)``.
        keys: normalised features of the batch, all views, shape ``(K, p)``.
        key_labels: their classes, shape ``(K,)``.
        prototypes: normalised, one per class, shape ``(C, p)``. The authors use a projection of the classifier's
            weights.
        temperature: :math:`T`, above 0. The authors use 0.1 on CIFAR-LT, 0.07 on larger data sets.
        query_index: the position of each query among the keys, shape ``(Q,)``; ``None`` if they are not keys.
        reduction: ``"mean"`` over the queries, ``"sum"`` or ``"none"``.
        check_labels: check labels and ``query_index``; default: on the CPU.

    Returns:
        the loss, float32 (float64 for float64 features); a scalar, or shape ``(Q,)`` with ``reduction="none"``.

    Example:
        >>> keys = torch.nn.functional.normalize(torch.tensor([[1.0, 0.2], [1.0, -0.2], [-0.1, 1.0]]), dim=1)
        >>> labels = torch.tensor([0, 0, 1])
        >>> balanced_contrastive_loss(
        ...     keys, labels, keys, labels, torch.eye(2), temperature=0.5, query_index=torch.arange(3)
        ... )
        tensor(0.1285)
    """
    temperature = check_temperature(temperature)
    check_choice("reduction", reduction, Reduction)
    check_features("queries", queries)
    check_features("keys", keys, like=queries)
    check_features("prototypes", prototypes, like=queries)
    classes = prototypes.shape[0]
    query_labels = check_row_labels("query_labels", query_labels, queries, classes, check_labels)
    key_labels = check_row_labels("key_labels", key_labels, keys, classes, check_labels)
    if query_index is not None:
        query_index = check_row_labels("query_index", query_index, queries, keys.shape[0], check_labels)
        read = all(reads_labels(labels, check_labels) for labels in (query_index, query_labels, key_labels))
        if read and (key_labels[query_index] != query_labels).any():
            raise ValueError("Expected `query_index` to point to keys of the queries' classes, but got other classes.")
    queries, keys, prototypes = at_least_float32(queries), at_least_float32(keys), at_least_float32(prototypes)
    with full_precision(queries):
        similarity = (queries / temperature) @ torch.cat([keys, prototypes]).T  # (Q, K + C)
    labels = torch.cat([key_labels, torch.arange(classes, device=key_labels.device)])
    members = torch.ones(classes, device=labels.device, dtype=similarity.dtype)  # the prototypes
    members = members.index_add(0, key_labels, torch.ones_like(key_labels, dtype=members.dtype))
    own_members = members[query_labels] - (0 if query_index is None else 1)
    own = query_labels.unsqueeze(1) == labels
    averaged = similarity - torch.where(own, own_members.log().unsqueeze(1), members.log()[labels])
    if query_index is not None:
        at = query_index.unsqueeze(1)
        averaged = averaged.scatter(1, at, -torch.inf)
        own = own.scatter(1, at, False)
    loss = averaged.logsumexp(1) - similarity.where(own, 0.0).sum(1) / own_members
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


class BalancedContrastiveLoss(nn.Module):
    """Balanced contrastive learning (Zhu et al., 2022) of a batch; see :func:`balanced_contrastive_loss`.

    Example:
        >>> loss = BalancedContrastiveLoss(temperature=0.1)
        >>> views = torch.nn.functional.normalize(torch.randn(2, 8, 16), dim=-1)
        >>> prototypes = torch.nn.functional.normalize(torch.randn(10, 16), dim=-1)
        >>> loss(views, torch.arange(8), prototypes).shape
        torch.Size([])
    """

    def __init__(
        self, temperature: float = 0.1, *, reduction: Reduction = "mean", check_labels: bool | None = None
    ) -> None:
        super().__init__()
        self.temperature = check_temperature(temperature)
        check_choice("reduction", reduction, Reduction)
        self.reduction: Reduction = reduction
        self.check_labels = check_labels

    def forward(self, features: Tensor, target: Tensor, prototypes: Tensor) -> Tensor:
        """The loss of normalised ``features``, shape ``(views, N, p)``, each a query and a key; labels ``(N,)``.

        With ``reduction="none"`` of shape ``(views, N)``. For a batch on several ranks use the function.
        """
        check_features("features", features, ndim=3)
        check_features("prototypes", prototypes, like=features)
        target = check_row_labels("target", target, features[0], prototypes.shape[0], self.check_labels)
        views, samples = features.shape[:2]
        rows, labels = features.flatten(0, 1), target.repeat(views)
        loss = balanced_contrastive_loss(
            rows,
            labels,
            rows,
            labels,
            prototypes,
            temperature=self.temperature,
            query_index=torch.arange(views * samples, device=rows.device),
            reduction=self.reduction,
            check_labels=False,
        )
        return loss.view(views, samples) if self.reduction == "none" else loss

    def extra_repr(self) -> str:
        """Temperature, and reduction unless it is the default."""
        text = f"temperature={self.temperature:g}"
        return text + (f", reduction={self.reduction}" if self.reduction != "mean" else "")
