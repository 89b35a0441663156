"""A loss from outside the package: the VS loss of Kini et al. (NeurIPS 2021).

    l(z, y) = w_y * cross_entropy(Delta * z + iota, y)

with Delta_c = (N_c / N_max)^gamma and iota_c = tau log(N_c / N). Tail classes get smaller factors Delta and smaller
offsets iota; w_c is proportional to N_c^-power. Use it like a built-in method:

    longtail train --plugin examples/vs_loss.py --data digits-lt --method vs --gamma 0.1
    longtail study --plugin examples/vs_loss.py --data digits-lt --methods softmax vs --betas 1 1.25 --seeds 3
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.losses import Loss
from longtail.methods import Task, param, register_loss


class VSLoss(Loss):
    """The vector-scaling loss."""

    scale: Tensor
    shift: Tensor

    def __init__(self, counts: Tensor, *, gamma: float, tau: float, power: float = 0.0, **options: Any) -> None:
        n = counts.double()
        weight = n**-power
        super().__init__(weight=(weight / weight.mean()).float() if power else None, **options)
        self.register_buffer("scale", ((n / n.max()) ** gamma).float())
        self.register_buffer("shift", (tau * (n / n.sum()).log()).float())

    @property
    def rebalances(self) -> bool:
        """Always, so a re-balancing sampler would correct twice. The loss is not a pure shift and declares none."""
        return True

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of plain logits ``(N, C)`` and class indices ``(N,)``."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) * self.scale + self.shift
        weight = None if self.weight is None else self.weight.to(logits.dtype)
        options = {"reduction": self.reduction, "label_smoothing": self.label_smoothing}
        return F.cross_entropy(logits, target, weight, ignore_index=self.ignore_index, **options)


@dataclass(frozen=True)
class VSParams:
    """Parameters of the VS loss; they become settings of a recipe and flags of the command line."""

    gamma: float = param(0.15, "exponent of the class counts in the factors of the logits", at_least=0)
    vs_tau: float = param(1.25, "strength of the offsets of the logits", at_least=0)
    vs_power: float = param(0.0, "exponent of the class counts in the class weights", at_least=0)


def make_loss(task: Task) -> VSLoss:
    """The loss of a run."""
    params = task.params
    return VSLoss(task.counts, gamma=params.gamma, tau=params.vs_tau, power=params.vs_power, **task.options)


register_loss(
    "vs",
    make_loss,
    title="VS loss",
    summary="cross entropy of scaled and shifted logits",
    reference="Kini et al., NeurIPS 2021",
    params=VSParams,
    beta="vs_tau",
)
