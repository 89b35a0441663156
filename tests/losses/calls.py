"""Every loss that takes logits and labels: as a module, as a function, and where it is plain cross entropy."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from longtail.losses import (
    BalancedSoftmaxLoss,
    ClassBalancedSoftmaxLoss,
    FocalLoss,
    LDAMLoss,
    LogitAdjustedLoss,
    PriorShiftedSoftmaxLoss,
    class_balanced_softmax,
    focal_loss,
    ldam_loss,
)

C = 4
COUNTS = [500, 50, 5, 1]
Z, Y = torch.randn(6, C, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 0, 0])

MODULES: dict[str, Callable[..., nn.Module]] = {
    "cbs": lambda **options: ClassBalancedSoftmaxLoss(COUNTS, beta=1.5, **options),
    "balanced": lambda **options: BalancedSoftmaxLoss(COUNTS, **options),
    "adjusted": lambda **options: LogitAdjustedLoss(COUNTS, tau=1.0, **options),
    "prior": lambda **options: PriorShiftedSoftmaxLoss(COUNTS, [1] * C, **options),
    "focal": lambda **options: FocalLoss(2.0, **options),
    "ldam": lambda **options: LDAMLoss(COUNTS, **options),
}
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "cbs": lambda z, y, **options: class_balanced_softmax(z, y, COUNTS, beta=1.5, **options),
    "focal": lambda z, y, **options: focal_loss(z, y, gamma=2.0, **options),
    "ldam": lambda z, y, **options: ldam_loss(z, y, COUNTS, **options),
}
CALLS: dict[str, Callable[..., Tensor]] = {
    **{f"{name} function": function for name, function in FUNCTIONS.items()},
    **{
        f"{name} module": lambda z, y, module=module, **options: module(**options)(z, y)
        for name, module in MODULES.items()
    },
}
NEUTRAL: dict[str, Callable[..., Tensor]] = {  # each of these is plain cross entropy
    "cbs": lambda z, y, **options: ClassBalancedSoftmaxLoss(COUNTS, beta=0, **options)(z, y),
    "prior": lambda z, y, **options: PriorShiftedSoftmaxLoss(COUNTS, COUNTS, **options)(z, y),
    "focal": lambda z, y, **options: FocalLoss(0, **options)(z, y),
    "ldam": lambda z, y, **options: LDAMLoss(COUNTS, max_margin=0, scale=1, **options)(z, y),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
every_neutral = pytest.mark.parametrize("neutral", NEUTRAL.values(), ids=NEUTRAL)
