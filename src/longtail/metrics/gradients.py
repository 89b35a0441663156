r"""Net gradient of the classifier per class: reward and penalty.

The gradient of the summed cross entropy with respect to the weight :math:`w_c` is :math:`-\Delta^{grad}_c`,

.. math:: \Delta^{grad}_{ci} = \underbrace{\sum_{n \in N_c} (1 - p_{nc}) h_{ni}}_{reward}
          - \underbrace{\sum_{d \ne c} \sum_{n \in N_d} p_{nc} h_{ni}}_{penalty}

and with respect to the bias the same with :math:`h = 1`: the *bias form*, which needs only logits. Class statistics
hold the sums, under plain softmax or any shifted loss.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from longtail._checks import as_tensor, check_choice
from longtail.classes import Groups, GroupValues
from longtail.metrics._batch import wide

__all__ = ["GradientBalance", "gradient_balance"]

OverFeatures = Literal["sum", "norm"]


def other_probabilities(probabilities: Tensor, label: Tensor, valid: Tensor) -> Tensor:
    """Return the probabilities of each row for classes other than its own, ``(M, C)``; 0 for ignored rows."""
    return probabilities.scatter(1, label[:, None], 0.0) * valid[:, None]


def reward_and_penalty(others: Tensor, label: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return reward and penalty of a batch of rows, ``(C,)``, or ``(C, D)`` with features; float64.

    1 - p of a sample's own class is computed as the sum of the other probabilities, which is precise when p is close
    to 1, as it is once a network fits its training data.
    """
    missed = others.sum(1)
    dtype = wide(label.device)
    rows = missed if features is None else missed[:, None] * features
    reward = torch.zeros(others.shape[1], *rows.shape[1:], dtype=dtype, device=label.device)
    reward.index_add_(0, label, rows.to(dtype))
    if features is None:
        return reward, others.sum(0, dtype=dtype)
    with torch.autocast(label.device.type, enabled=False):  # float64 also avoids TF32
        return reward, others.T.to(dtype) @ features.to(dtype)


@dataclass(frozen=True, eq=False)
class GradientBalance:
    """Net gradient per class, in per cent: above 0 the reward is larger, below 0 the penalty."""

    per_class: Tensor
    """(reward - penalty) / reward * 100, float64 ``(C,)``; NaN for a class without reward."""
    groups: GroupValues
    """Means of it over the classes of each group."""
    undefined: tuple[int, ...]
    """Classes without a reward > 0, which the means leave out: they have no sample, or all samples have p = 1, or
    features of both signs have a negative sum (use ``over_features="norm"`` then)."""


def gradient_balance(
    reward: Tensor, penalty: Tensor, groups: Groups, *, over_features: OverFeatures = "sum"
) -> GradientBalance:
    r"""Return :math:`(reward - penalty) / reward \times 100` per class and group.

    Args:
        reward: ``bias_reward`` ``(C,)`` or ``weight_reward`` ``(C, D)`` of
            :class:`ClassStatistics <longtail.metrics.ClassStatistics>`.
        penalty: likewise.
        groups: the groups to average over.
        over_features: how to reduce the D features to one number per class. ``"sum"`` adds them, as in
            :math:`\sum_i \Delta^{grad}_{ci}`; for features >= 0, as after a ReLU, that is the 1-norm. ``"norm"`` takes
            the 2-norm, for features of both signs. It has no effect in the bias form.

    Example:
        >>> groups = Groups.from_indices(head=[0], tail=[1])
        >>> gradient_balance(torch.tensor([1.5, 0.5]), torch.tensor([0.5, 1.5]), groups).groups
        {'head': 66.66666666666666, 'tail': -200.0}
    """
    check_choice("over_features", over_features, OverFeatures)
    reward, penalty = as_tensor("reward", reward), as_tensor("penalty", penalty)
    if reward.shape != penalty.shape or reward.ndim not in {1, 2}:
        raise ValueError(
            "Expected `reward` and `penalty` of one shape, (C,) or (C, D), but got "
            f"{tuple(reward.shape)} and {tuple(penalty.shape)}."
        )
    if len(reward) != groups.num_classes:
        raise ValueError(
            f"Expected `reward` to have {groups.num_classes} classes, as `groups` has, but got {len(reward)}."
        )
    pair = [values.detach().to("cpu", torch.float64) for values in (reward, penalty)]
    if reward.ndim == 2:
        pair = [values.sum(1) if over_features == "sum" else torch.linalg.vector_norm(values, dim=1) for values in pair]
    rewards, penalties = pair
    defined = rewards > 0
    per_class = torch.where(defined, (rewards - penalties) / rewards * 100, torch.nan)
    return GradientBalance(per_class, groups.means(per_class, defined), tuple((~defined).nonzero().flatten().tolist()))
