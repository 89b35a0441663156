r"""Net gradient of the classifier per class: reward and penalty.

The gradient of the summed cross entropy with respect to the weight :math:`w_c` is :math:`-\Delta^{grad}_c`,

.. math:: \Delta^{grad}_{ci} = \underbrace{\sum_{n \in N_c} (1 - p_{nc}) h_{ni}}_{reward}
          - \underbrace{\sum_{d \ne c} \sum_{n \in N_d} p_{nc} h_{ni}}_{penalty}

and with respect to the bias the same with :math:`h = 1`: the *bias form*, which needs only logits. Class statistics
hold the sums, under plain softmax or any shifted loss.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from longtail._checks import as_tensor
from longtail.classes import Groups, GroupValues


@dataclass(frozen=True, eq=False)
class GradientBalance:
    """Net gradient per class, in per cent: above 0 the reward is larger, below 0 the penalty."""

    per_class: Tensor
    """(reward - penalty) / reward * 100, float64 ``(C,)``; NaN for a class without reward."""
    groups: GroupValues
    """Means of it over the classes of each group."""
    undefined: tuple[int, ...]
    """Classes without a reward > 0, which the means leave out: they have no sample, or all samples have p = 1, or
    features of both signs have a negative sum."""


def gradient_balance(reward: Tensor, penalty: Tensor, groups: Groups) -> GradientBalance:
    r"""Return :math:`(reward - penalty) / reward \times 100` per class and group.

    In the weight form, rewards and penalties are summed over the features, :math:`\sum_i \Delta^{grad}_{ci}`; for
    features >= 0, as after a ReLU, that is the 1-norm.

    Args:
        reward: ``bias_reward`` ``(C,)`` or ``weight_reward`` ``(C, D)`` of
            :class:`ClassStatistics <longtail.metrics.ClassStatistics>`.
        penalty: likewise.
        groups: the groups to average over.

    Example:
        >>> groups = Groups.from_indices(head=[0], tail=[1])
        >>> gradient_balance(torch.tensor([1.5, 0.5]), torch.tensor([0.5, 1.5]), groups).groups
        {'head': 66.66666666666666, 'tail': -200.0}
    """
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
    both = (values.to("cpu", torch.float64) for values in (reward, penalty))
    rewards, penalties = (values.sum(1) if values.ndim == 2 else values for values in both)
    defined = rewards > 0
    per_class = torch.where(defined, (rewards - penalties) / rewards * 100, torch.nan)
    return GradientBalance(per_class, groups.means(per_class, defined), tuple((~defined).nonzero().flatten().tolist()))
