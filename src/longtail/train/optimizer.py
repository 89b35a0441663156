"""The optimiser and the schedules of its learning rate."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from longtail._registry import Registry

__all__ = ["SCHEDULES", "OptimizerName", "learning_rate", "make_optimizer"]

OptimizerName = Literal["sgd", "adamw"]

SCHEDULES: Registry[Callable[[float, int, Sequence[float], float], float]] = Registry("schedule")
"""Schedules by name: the factor of the learning rate from epoch, epochs, milestones and decay of a recipe.

``SCHEDULES.register("linear", lambda epoch, epochs, milestones, decay: 1 - epoch / epochs)`` adds one.
"""
SCHEDULES.register(
    "steps",
    lambda e, epochs, milestones, decay: decay ** sum(e >= (round(m * epochs) if m < 1 else m) for m in milestones),
)
SCHEDULES.register("cosine", lambda e, epochs, *_: (1 + math.cos(math.pi * e / epochs)) / 2)
SCHEDULES.register("constant", lambda *_: 1.0)


def learning_rate(
    epoch: float,
    *,
    lr: float,
    epochs: int,
    schedule: str,
    milestones: Sequence[float] = (),
    decay: float = 0.1,
    warmup: int = 0,
) -> float:
    r"""The learning rate at an epoch, counted from 0.

    Warm-up is linear, :math:`lr (e + 1) / w` in epoch :math:`e < w`. Then ``"steps"`` multiplies by ``decay`` at each
    milestone (values below 1 are fractions of all epochs), ``"cosine"`` goes down to zero,
    :math:`lr (1 + \cos(\pi e / E)) / 2`, and ``"constant"`` stays.

    Example:
        >>> paper = dict(lr=0.1, epochs=200, schedule="steps", milestones=(0.8, 0.9), warmup=5)
        >>> [round(learning_rate(e, **paper), 6) for e in (0, 1, 4, 5, 159, 160, 180)]
        [0.02, 0.04, 0.1, 0.1, 0.1, 0.01, 0.001]
    """
    if epoch < warmup:
        return lr * (math.floor(epoch) + 1) / warmup
    return lr * SCHEDULES.find(schedule)(epoch, epochs, milestones, decay)


def make_optimizer(
    parameters: Sequence[nn.Parameter],
    name: OptimizerName = "sgd",
    *,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
) -> Optimizer:
    """An optimiser whose state exists from the start, as zeros, and whose learning rate a CUDA graph can read.

    Args:
        parameters: what to train.
        name: ``"sgd"``, or ``"adamw"``, whose weight decay leaves out biases and norms (fewer than two dimensions).
        momentum: of SGD.
        nesterov: of SGD.
        weight_decay: of both.
    """
    fused = parameters[0].is_cuda
    lr = torch.zeros((), device=parameters[0].device) if fused else 0.0
    if name == "sgd":
        sgd = SGD(
            parameters,
            lr=lr,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            fused=fused,
            foreach=False if not fused else None,
        )
        for parameter in parameters:
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd
    decayed = [parameter for parameter in parameters if parameter.ndim > 1]
    others = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    adamw = AdamW(
        [group for group in groups if group["params"]],
        lr=lr,
        fused=fused,
        capturable=fused,
        foreach=False if not fused else None,
    )
    for parameter in parameters:
        adamw.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device if fused else "cpu"),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return adamw
