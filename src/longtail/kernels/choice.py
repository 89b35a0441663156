"""Which kernels a network uses: torch's everywhere, Triton's where they were checked."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from longtail._gpus import TRITON, checked
from longtail.kernels.configs import IMAGE_CHANNELS

__all__ = ["Kernels", "can_run", "kernels_for"]

Kernels = Literal["torch", "triton"]
"""cuDNN through torch, or the Triton kernels of this folder."""


def kernels_for(device: torch.device | str, precision: torch.dtype = torch.bfloat16) -> Kernels:
    """The kernels to build a CIFAR ResNet with, for training on ``device``.

    Args:
        device: where it will train.
        precision: of the forward pass; the Triton kernels know bfloat16 only.

    Example:
        >>> kernels_for("cpu")
        'torch'
    """
    return "triton" if precision == torch.bfloat16 and checked(torch.device(device)) else "torch"


def can_run(images: Tensor, convolutions: Sequence[nn.Conv2d], norms: Sequence[nn.BatchNorm2d]) -> bool:
    """Whether the Triton kernels compute what torch would, here and now: in bfloat16, on a GPU.

    Looks at nothing on the device.
    """
    if not TRITON or not images.is_cuda or not _in_bfloat16() or images.requires_grad:
        return False
    return fits(images, convolutions, norms)


def _in_bfloat16() -> bool:
    return torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16


def fits(images: Tensor, convolutions: Sequence[nn.Conv2d], norms: Sequence[nn.BatchNorm2d]) -> bool:
    """Whether these layers, in this mode, are what the kernels were written for.

    Training, with all BatchNorms by the batch; or evaluation, with all of them by their running statistics and no
    gradient.
    """
    single = torch.float32
    modes = {norm.training for norm in norms}
    return (
        images.shape[1] <= IMAGE_CHANNELS
        and images.numel() > 0
        and all(conv.weight.dtype == single and conv.weight.device == images.device for conv in convolutions)
        and (modes == {True} or (modes == {False} and not torch.is_grad_enabled()))
        and all(type(norm) is nn.BatchNorm2d and norm.momentum is not None for norm in norms)
        and all(norm.weight is not None and norm.weight.dtype == single for norm in norms)
        and all(norm.running_mean is not None for norm in norms)
    )
