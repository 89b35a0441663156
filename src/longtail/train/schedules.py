"""The learning rate as a pure function of where training is."""

import math
from typing import Literal

__all__ = ["Schedule", "learning_rate"]

Schedule = Literal["steps", "cosine", "constant"]


def learning_rate(
    epoch: float,
    *,
    lr: float,
    epochs: int,
    schedule: Schedule,
    milestones: tuple[float, ...] = (),
    decay: float = 0.1,
    warmup: int = 0,
) -> float:
    r"""The learning rate at an epoch.

    Warm-up goes up evenly, :math:`lr (e + 1) / w` in epoch :math:`e < w`. Then ``"steps"`` multiplies by ``decay`` at
    each milestone, ``"cosine"`` goes down to zero, :math:`lr (1 + \cos(\pi e / E)) / 2`, and ``"constant"`` stays.

    Args:
        epoch: counted from 0.
        lr: the highest rate.
        epochs: E, how many there are.
        schedule: ``"steps"``, ``"cosine"`` or ``"constant"``.
        milestones: epochs at which ``"steps"`` decays; below 1, shares of all epochs.
        decay: what it multiplies with.
        warmup: epochs of warm-up.

    Example:
        >>> paper = dict(lr=0.1, epochs=200, schedule="steps", milestones=(0.8, 0.9), warmup=5)
        >>> [round(learning_rate(e, **paper), 6) for e in (0, 1, 4, 5, 159, 160, 180)]
        [0.02, 0.04, 0.1, 0.1, 0.1, 0.01, 0.001]
        >>> round(learning_rate(50, lr=0.2, epochs=100, schedule="cosine"), 6)
        0.1
    """
    if epoch < warmup:
        return lr * (math.floor(epoch) + 1) / warmup
    if schedule == "steps":
        reached = [epoch >= (round(m * epochs) if m < 1 else m) for m in milestones]
        return lr * decay ** sum(reached)
    if schedule == "cosine":
        return lr * (1 + math.cos(math.pi * epoch / epochs)) / 2
    return lr
