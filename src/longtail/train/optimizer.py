"""The optimiser and the schedules of its learning rate."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.optim import SGD

from longtail._registry import Registry

__all__ = ["SCHEDULES", "learning_rate", "make_optimizer"]

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


def make_optimizer(parameters: Sequence[nn.Parameter], *, momentum: float, nesterov: bool, weight_decay: float) -> SGD:
    """SGD whose momentum exists from the start, as zeros, and whose learning rate a CUDA graph can read."""
    fused = parameters[0].is_cuda
    optimizer = SGD(
        parameters,
        lr=torch.zeros((), device=parameters[0].device) if fused else 0.0,
        momentum=float(momentum),  # torch refuses large integers
        nesterov=nesterov,
        weight_decay=float(weight_decay),
        fused=fused,
        foreach=False if not fused else None,
    )
    for parameter in parameters:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer
