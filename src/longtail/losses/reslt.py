"""ResLT: branches that each see the classes up to some rarity, and their sum that sees all."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._checks import Vector, as_counts, check_integer, check_number, told
from longtail.classes import Groups
from longtail.losses._common import check_batch

__all__ = [
    "ResLTLoss",
    "ResLTTerms",
    "branches_from_counts",
    "branches_from_groups",
    "branches_from_index",
    "reslt_loss",
    "reslt_terms",
]


class ResLTTerms(NamedTuple):
    """What a batch, or a part of it, gives: sums and what to divide them by; those of the parts add up.

    Example:
        >>> z, y, sees = torch.randn(3, 8, 10), torch.arange(8), branches_from_index(10, 2, 4)
        >>> first, second = reslt_terms(z[:, :5], y[:5], sees), reslt_terms(z[:, 5:], y[5:], sees)
        >>> both = ResLTTerms(*(a + b for a, b in zip(first, second)))
        >>> torch.allclose(both.loss(0.9), reslt_loss(z, y, sees, alpha=0.9))
        True
    """

    branch_sum: Tensor
    """The branches' losses, summed over the samples that each sees."""
    branch_count: Tensor
    """How many those are: a sample counts once for every branch that sees it."""
    fusion_sum: Tensor
    """The cross entropy of the branches' sum, summed over all samples."""
    fusion_count: Tensor
    """How many those are."""

    def loss(self, alpha: float) -> Tensor:
        """The loss: ``alpha`` times the branches' mean, 1 - ``alpha`` times the mean of the sum."""
        return alpha * self.branch_sum / self.branch_count + (1 - alpha) * self.fusion_sum / self.fusion_count


def branches_from_index(num_classes: int, *first: int) -> Tensor:
    """What each branch sees, where classes are in order, most frequent first: all, and all from each ``first`` on.

    Args:
        num_classes: how many classes there are.
        *first: the first class of the second branch, of the third, …, ascending. The authors' are 35 and 70 of
            CIFAR-100's classes, 2 and 4 of CIFAR-10's.

    Returns:
        bool, shape ``(branches, num_classes)``.

    Example:
        >>> branches_from_index(10, 2, 4).sum(1)
        tensor([10,  8,  6])
    """
    num_classes = check_integer("num_classes", num_classes, minimum=1)
    starts = [0, *(check_integer("first", start, minimum=0) for start in first)]
    if sorted(starts) != starts or starts[-1] >= num_classes:
        raise ValueError(f"Expected `first` to be ascending and below {num_classes}, but got {tuple(first)}.")
    return torch.arange(num_classes) >= torch.tensor(starts).unsqueeze(1)


def branches_from_counts(counts: Vector, *rarest: int) -> Tensor:
    """What each branch sees, where classes are in any order: all, and as many of the ``rarest`` as is said.

    Args:
        counts: training examples a class, shape ``(C,)``.
        *rarest: how many classes the second branch sees, the third, …, descending. The authors' are 825 and 220 of
            ImageNet-LT's 1000 classes, 6600 (two branches) of iNaturalist2018's 8142. Of equally rare classes the one
            with the larger index counts as rarer, as on CIFAR, whose classes become rarer by their index.

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
    """What each branch sees, a branch a group: the first all classes, the second all but the first group's, ….

    Args:
        groups: most frequent first.

    Returns:
        bool, shape ``(groups, C)``.

    Example:
        >>> branches_from_groups(Groups.from_counts([500, 50, 5])).int()
        tensor([[1, 1, 1],
                [0, 1, 1],
                [0, 0, 1]], dtype=torch.int32)
    """
    return torch.tensor(groups.index) >= torch.arange(len(groups.names)).unsqueeze(1)


def _check_sees(sees: object) -> Tensor:
    """``sees`` must be a bool matrix."""
    if not isinstance(sees, Tensor) or sees.dtype != torch.bool or sees.ndim != 2 or not sees.numel():
        raise TypeError(f"Expected `sees` to be a bool tensor of shape (branches, classes), but got {told(sees)}.")
    return sees


def _check_smoothing(label_smoothing: object) -> float:
    smoothing = check_number("label_smoothing", label_smoothing)
    if smoothing > 1:
        raise ValueError(f"Expected `label_smoothing` to be in [0, 1], but got {smoothing}.")
    return smoothing


def _check_alpha(alpha: object) -> float:
    share = check_number("alpha", alpha)
    if share > 1:
        raise ValueError(f"Expected `alpha` to be in [0, 1], but got {share}.")
    return share


def reslt_terms(
    branches: Tensor,
    target: Tensor,
    sees: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    check_labels: bool | None = None,
) -> ResLTTerms:
    """The sums and counts of :func:`reslt_loss`, which has the formula, for batches that lie on several ranks.

    Args:
        branches: logits of each branch, shape ``(branches, N, C)``.
        target: class indices, shape ``(N,)``, or class probabilities, shape ``(N, C)``.
        sees: which classes each branch sees, bool of shape ``(branches, C)``.
        ignore_index: samples with this label are left out.
        label_smoothing: how much of a target is spread evenly over the classes.
        check_labels: check the labels; default: on the CPU.

    Returns:
        float32 sums and counts (float64 for float64 logits).
    """
    sees = _check_sees(sees)
    smoothing = _check_smoothing(label_smoothing)
    if not isinstance(branches, Tensor) or not branches.is_floating_point():
        raise TypeError(f"Expected `branches` to be a floating-point tensor, but got {told(branches)}.")
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
        # Linear in the target: a mixed sample costs what its two labels cost, in their shares.
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
        losses = losses.view(seen.shape) * seen  # by a factor of 0: picking samples would wait for the GPU
    return ResLTTerms(losses[:-1].sum(), seen[:-1].sum(), losses[-1].sum(), seen[-1].sum())


def reslt_loss(
    branches: Tensor,
    target: Tensor,
    sees: Tensor,
    *,
    alpha: float,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    check_labels: bool | None = None,
) -> Tensor:
    r"""ResLT (Cui et al., 2023): branches for ever rarer classes, whose sum is the classifier.

    With branches :math:`b` that see the classes :math:`S_b` (all; medium and tail; tail) and the cross entropy
    :math:`\ell`, always over *all* classes,

    .. math:: l = \alpha \frac{\sum_b \sum_{n : y_n \in S_b} \ell(z^b_n, y_n)}{\sum_b |\{n : y_n \in S_b\}|}
              + (1 - \alpha) \frac1N \sum_n \ell\Big(\sum_b z^b_n, y_n\Big)

    Predict with ``branches.sum(0)``. Facts from the authors' repository (jiequancui/ResLT): a branch that does not see
    a sample's class is given a weight of 0 for it, and its softmax has all classes even so; :math:`\alpha` is their
    ``beta``; the classes seen are not the groups of the tables (:func:`branches_from_index`,
    :func:`branches_from_counts`). There the branches' loss is the log of a probability plus 1e-7, which takes the
    gradient from samples that are more wrong than that; here it is the cross entropy itself.

    Args:
        branches: logits of each branch, shape ``(branches, N, C)``: three, or two in the authors' iNaturalist form.
        target: class indices, shape ``(N,)``, or class probabilities, shape ``(N, C)``, which cost what their labels
            cost, in their shares.
        sees: which classes each branch sees, bool of shape ``(branches, C)``.
        alpha: what the branches weigh, in [0, 1]. The authors': CIFAR-100-LT 0.995, 0.99, 0.72 and CIFAR-10-LT 0.998,
            0.998, 0.96 at imbalance 100, 50, 10; ImageNet-LT 0.99; iNaturalist2018 0.85.
        ignore_index: samples with this label are left out.
        label_smoothing: how much of a target is spread evenly over the classes, in [0, 1].
        check_labels: check the labels; default: on the CPU.

    Returns:
        the loss, a float32 scalar (float64 for float64 logits). NaN without a sample.

    Example:
        >>> branches = torch.tensor([[[2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]] * 3)
        >>> reslt_loss(branches, torch.tensor([0, 2]), branches_from_index(3, 1, 2), alpha=0.9)
        tensor(0.4311)
    """
    alpha = _check_alpha(alpha)
    terms = reslt_terms(
        branches, target, sees, ignore_index=ignore_index, label_smoothing=label_smoothing, check_labels=check_labels
    )
    return terms.loss(alpha)


class ResLTLoss(nn.Module):
    """ResLT (Cui et al., 2023); see :func:`reslt_loss` for formula and arguments.

    Example:
        >>> loss = ResLTLoss(branches_from_index(3, 1, 2), alpha=0.9)
        >>> loss
        ResLTLoss(3 branches, 3 classes, alpha=0.9)
        >>> branches = torch.tensor([[[2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]] * 3)
        >>> loss(branches, torch.tensor([0, 2]))
        tensor(0.4311)
    """

    sees: Tensor

    def __init__(
        self,
        sees: Tensor,
        alpha: float,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        check_labels: bool | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("sees", _check_sees(sees).clone())
        self.alpha = _check_alpha(alpha)
        self.ignore_index = check_integer("ignore_index", ignore_index)
        self.label_smoothing = _check_smoothing(label_smoothing)
        self.check_labels = check_labels

    def terms(self, branches: Tensor, target: Tensor) -> ResLTTerms:
        """Sums and counts, as :func:`reslt_terms` gives them."""
        return reslt_terms(
            branches,
            target,
            self.sees,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            check_labels=self.check_labels,
        )

    def forward(self, branches: Tensor, target: Tensor) -> Tensor:
        """The loss of ``branches``, shape ``(branches, N, C)``, and ``target``, indices or probabilities."""
        return self.terms(branches, target).loss(self.alpha)

    def extra_repr(self) -> str:
        """Sizes, and what differs from the defaults."""
        text = f"{self.sees.shape[0]} branches, {self.sees.shape[1]} classes, alpha={self.alpha:g}"
        return text + (f", label_smoothing={self.label_smoothing:g}" if self.label_smoothing else "")
