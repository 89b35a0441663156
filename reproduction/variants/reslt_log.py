"""ResLT with the branch loss of the authors' code: -log(p + 1e-7) instead of the cross entropy, -log p.

In the authors' CIFAR code (jiequancui/ResLT, CIFAR/cifarTrain_reslt_cifar10.py) only the losses of the three branches
have the constant (lines 62-65 and 152-153); the loss of their sum is ``nn.CrossEntropyLoss`` (lines 86 and 156).

    longtail train --plugin reproduction/variants/reslt_log.py --data digits-lt --method reslt-log --log-epsilon 1e-7

``--log-epsilon 0`` is the built-in method, bit for bit. On CIFAR-10-LT pass the settings of its recipe for `reslt`:
`--alpha 0.998 --medium-from 2 --tail-from 4 --nesterov --drop-last`. results/notes.md has the comparison.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longtail.methods import Objective, Task, find_method, param, register_method
from longtail.models import Outputs

RESLT = find_method("reslt")


@dataclass(frozen=True)
class LogParams(RESLT.params):
    """Parameters of ResLT, and the constant."""

    log_epsilon: float = param(1e-7, "added to the probability in the losses of the branches", at_least=0, below=1)


class LogResLT(Objective):
    """The built-in objective, with other losses of the branches."""

    def __init__(self, reslt: Objective, epsilon: float) -> None:
        super().__init__(reslt.weights)
        self.reslt = reslt
        self.epsilon = epsilon

    def denominators(self, target: Tensor) -> dict[str, Tensor]:
        """Those of the built-in objective."""
        return self.reslt.denominators(target)

    def forward(self, outputs: Outputs, target: Tensor) -> dict[str, Tensor]:
        """The losses of the branches, and the cross entropy of their sum as in the built-in objective."""
        terms = self.reslt(outputs, target)
        if self.epsilon == 0:
            return terms
        branches = outputs.extra["branches"]
        p = branches.to(torch.promote_types(branches.dtype, torch.float32)).softmax(-1)
        p = p.gather(-1, target.expand(len(p), -1).unsqueeze(-1)).squeeze(-1)  # (branches, B)
        seen = self.reslt.sees[:, target].to(p.dtype)
        return {**terms, "branches": -((p + self.epsilon).log() * seen).sum()}


def make_objective(task: Task) -> Objective:
    """The objective; label smoothing, which the authors do not use, is refused."""
    if task.label_smoothing:
        raise ValueError(f"Expected `label_smoothing` to be 0 for reslt-log, but got {task.label_smoothing}.")
    return LogResLT(RESLT.stages[0].objective(task), task.params.log_epsilon)


register_method(
    replace(
        RESLT,
        name="reslt-log",
        title="ResLT, log(p + ε)",
        summary="ResLT with the branch loss of the authors' code",
        stages=(replace(RESLT.stages[0], objective=make_objective),),
        params=LogParams,
    )
)
