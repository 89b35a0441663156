"""ResLT: one branch for all classes, one for medium and tail, one for the tail, and their sum."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail._checks import Vector, as_counts, check_fraction, check_integer, describe
from longtail.classes import Groups
from longtail.losses._common import check_batch


class ResLTTerms(NamedTuple):
    """Sums of a batch and what to divide them by. Those of the parts of a batch add up.

    Example:
        >>> z, y, sees = torch.randn(3, 8, 4), torch.arange(8) % 4, branches_from_counts([50, 20, 5, 1], 3, 1)
        >>> first, second = reslt_terms(z[:, :5], y[:5], sees), reslt_terms(z[:, 5:], y[5:], sees)
        >>> both = ResLTTerms(*(a + b for a, b in zip(first, second)))
        >>> torch.allclose(both.loss(0.9), reslt_terms(z, y, sees).loss(0.9))
        True
    """

    branch_sum: Tensor
    """The losses of the branches, summed over the samples that each branch sees."""
    branch_count: Tensor
    """How many samples that is; a sample counts once for every branch that sees it."""
    fusion_sum: Tensor
    """The cross entropy of the sum of the branches, summed over all samples."""
    fusion_count: Tensor
    """How many samples that is."""

    def loss(self, alpha: float) -> Tensor:
        """Return ``alpha`` times the mean of the branches plus 1 - ``alpha`` times the mean of the sum.

        The authors use an alpha of 0.995, 0.99, 0.72 on CIFAR-100-LT and 0.998, 0.998, 0.96 on CIFAR-10-LT at imbalance
        100, 50, 10; 0.99 on ImageNet-LT; 0.85 on iNaturalist2018.
        """
        alpha = check_fraction("alpha", alpha)
        return alpha * self.branch_sum / self.branch_count + (1 - alpha) * self.fusion_sum / self.fusion_count


def branches_from_counts(counts: Vector, *rarest: int) -> Tensor:
    """Return what each branch sees for classes in any order: all, then the given numbers of ``rarest`` classes.

    Args:
        counts: training examples per class, shape ``(C,)``.
        *rarest: how many classes the second branch sees, the third, …, descending. The authors use 8 and 6 on
            CIFAR-10, 65 and 30 on CIFAR-100, 825 and 220 on ImageNet-LT, and 6600 (two branches) on iNaturalist2018.
            Of two equally rare classes the one with the larger index counts as rarer, as on CIFAR.

    Returns:
        bool, shape ``(branches, C)``.

    Example:
        >>> branches_from_counts([5, 500, 50], 2, 1).int()
        tensor([[1, 1, 1],
                [1, 0, 1],
                [1, 0, 0]], dtype=torch.int32)
    """
    counts = as_counts(counts).cpu()
    sizes = [counts.numel(), *(check_integer("rarest", size, minimum=1) for size in rarest)]
    if sorted(sizes, reverse=True) != sizes:
        raise ValueError(f"Expected `rarest` to be descending from {counts.numel()}, but got {tuple(rarest)}.")
    rank = torch.empty_like(counts)
    rank[counts.argsort(stable=True, descending=True)] = torch.arange(counts.numel()).flip(0)
    return rank < torch.tensor(sizes).unsqueeze(1)


def branches_from_groups(groups: Groups) -> Tensor:
    """Return what each branch sees, one branch per group: all classes, then all but the first group, and so on.

    Args:
        groups: the groups, most frequent first.

    Returns:
        bool, shape ``(groups, C)``.

    Example:
        >>> branches_from_groups(Groups.from_counts([500, 50, 5])).int()
        tensor([[1, 1, 1],
                [0, 1, 1],
                [0, 0, 1]], dtype=torch.int32)
    """
    return torch.tensor(groups.index) >= torch.arange(len(groups.names)).unsqueeze(1)


def reslt_terms(
    branches: Tensor,
    target: Tensor,
    sees: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    check_labels: bool | None = None,
) -> ResLTTerms:
    r"""Return the sums and counts of ResLT (Cui et al., 2023): branches for rarer and rarer classes, and their sum.

    With branches :math:`b` that see the classes :math:`S_b` (all; medium and tail; tail) and the cross entropy
    :math:`\ell`, always over *all* classes, the loss is

    .. math:: l = \alpha \frac{\sum_b \sum_{n : y_n \in S_b} \ell(z^b_n, y_n)}{\sum_b |\{n : y_n \in S_b\}|}
              + (1 - \alpha) \frac1N \sum_n \ell\Big(\sum_b z^b_n, y_n\Big)

    Predict with ``branches.sum(0)``. As in the authors' repository (jiequancui/ResLT), a sample whose class a branch
    does not see has weight 0 in that branch, and the softmax of every branch is over all classes; :math:`\alpha` is
    their ``beta``; the classes that branches see are not the groups of the tables. Their loss is the log of the
    probability plus 1e-7, which removes the gradient of samples with a smaller probability; here it is the cross
    entropy.

    Args:
        branches: logits of each branch, shape ``(branches, N, C)``: three, or two on iNaturalist.
        target: class indices, shape ``(N,)``, or class probabilities, shape ``(N, C)``.
        sees: which classes each branch sees, bool of shape ``(branches, C)``.
        ignore_index: see :class:`LossOptions <longtail.losses.LossOptions>`, like the others.
        label_smoothing: likewise.
        check_labels: likewise.

    Returns:
        float32 sums and counts (float64 for float64 logits); ``.loss(alpha)`` is the loss.

    Example:
        >>> branches = torch.tensor([[[2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]] * 3)
        >>> reslt_terms(branches, torch.tensor([0, 2]), branches_from_counts([9, 5, 1], 2, 1)).loss(alpha=0.9)
        tensor(0.4311)
    """
    if not isinstance(sees, Tensor) or sees.dtype != torch.bool or sees.ndim != 2 or not sees.numel():
        raise TypeError(f"Expected `sees` to be a bool tensor of shape (branches, classes), but got {describe(sees)}.")
    smoothing = check_fraction("label_smoothing", label_smoothing)
    if not isinstance(branches, Tensor) or not branches.is_floating_point():
        raise TypeError(f"Expected `branches` to be a floating-point tensor, but got {describe(branches)}.")
    if branches.ndim != 3 or (branches.shape[0], branches.shape[2]) != sees.shape:
        raise ValueError(
            f"Expected `branches` to have shape ({sees.shape[0]}, samples, {sees.shape[1]}), as `sees` has it, "
            f"but got {tuple(branches.shape)}."
        )
    target = check_batch(
        branches[0],
        target,
        sees.shape[1],
        of="sees",
        held=sees,
        ignore_index=ignore_index,
        check_labels=check_labels,
    )
    branches = branches.to(torch.promote_types(branches.dtype, torch.float32))
    # The branches, and their sum as one more that sees every class: (branches + 1, N, C).
    logits = torch.cat([branches, branches.sum(0, keepdim=True)])
    reach = torch.cat([sees, torch.ones_like(sees[:1])]).to(logits.dtype)
    if target.is_floating_point():
        target = target.to(logits.dtype)
        log_p = logits.log_softmax(-1)
        # Linear in the target: the loss of a mixed sample is the mixture of the losses of its labels.
        weight = target @ reach.T
        losses = -torch.einsum("bnc,nc,bc->bn", log_p, target, reach)
        if smoothing:
            losses = (1 - smoothing) * losses - smoothing * weight.T * log_p.mean(-1)
        seen = weight.T
    else:
        ignored = target == ignore_index
        seen = reach[:, target.masked_fill(ignored, 0)].masked_fill(ignored, 0.0)
        every = target.expand(logits.shape[0], -1).reshape(-1)
        losses = F.cross_entropy(
            logits.flatten(0, 1), every, ignore_index=ignore_index, reduction="none", label_smoothing=smoothing
        )
        losses = losses.view(seen.shape) * seen  # a factor of 0, because selecting samples would wait for the GPU
    return ResLTTerms(losses[:-1].sum(), seen[:-1].sum(), losses[-1].sum(), seen[-1].sum())
