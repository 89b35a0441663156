"""The CIFAR ResNet in Triton and CUDA: few large programs per kernel, so that many small networks share a GPU.

Maps are bfloat16 with the channels of a pixel together; weights and sums are float32. ``use_kernels`` attaches the
kernels to a model, ``chain`` is the whole pass (forward and backward, or evaluation), ``launch`` has one function per
kernel, and ``configs`` says which kernel and tile computes which shape.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from longtail._checks import check_choice
from longtail._gpu import TRITON, is_checked
from longtail.kernels.configs import IMAGE_CHANNELS
from longtail.models import CIFAR_RESNETS, CifarResNet, Model

__all__ = ["Kernels", "can_run", "checked_for", "fits", "use_kernels"]

Kernels = Literal["auto", "torch", "triton"]


def use_kernels(
    model: Model, device: torch.device | str, precision: torch.dtype = torch.bfloat16, kernels: Kernels = "auto"
) -> bool:
    """Run the backbone of ``model`` with our kernels if they support it; return whether they do.

    They train and evaluate a :class:`CifarResNet <longtail.models.CifarResNet>` on a GPU under autocast to bfloat16.
    For every other input torch runs the same parameters as before.

    Args:
        model: its backbone is changed in place.
        device: where it will run.
        precision: of the forward pass; the kernels support bfloat16 only.
        kernels: ``"auto"`` uses them on GPUs on which they were checked, ``"triton"`` on any, ``"torch"`` never.

    Example:
        >>> from longtail.models import build_model
        >>> use_kernels(build_model("resnet32", 10), "cpu")
        False
    """
    check_choice("kernels", kernels, Kernels)
    if not isinstance(model.backbone, CifarResNet):
        return False
    pays = precision == torch.bfloat16 and is_checked(torch.device(device))
    used = kernels == "triton" or (kernels == "auto" and pays)
    model.backbone.fast_maps = _fast_maps if used else None
    return used


def checked_for(name: str, device: torch.device) -> bool:
    """Whether the kernels were checked for a backbone on a device: bfloat16 has the recall of float32 there."""
    return name in CIFAR_RESNETS and is_checked(device)


def _fast_maps(network: CifarResNet, images: Tensor) -> Tensor | None:
    if not can_run(network, images):
        return None
    from longtail.kernels.chain import run_chain  # noqa: PLC0415 - Triton is imported on use

    maps: Tensor = run_chain(network, images)
    return maps


def can_run(network: CifarResNet, images: Tensor) -> bool:
    """Whether the kernels compute what torch would in this call: in bfloat16, on a GPU. Reads nothing on the device."""
    autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    return TRITON and images.is_cuda and autocast and not images.requires_grad and fits(network, images)


def fits(network: CifarResNet, images: Tensor) -> bool:
    """Whether the layers are in a state that the kernels support.

    Either training, with all BatchNorms using the batch; or evaluation, with all of them using their running statistics
    and no gradient.
    """
    convolutions, norms = network.layers()
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
