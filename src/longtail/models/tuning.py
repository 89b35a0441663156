"""Training a part of a pretrained model: LoRA, adapters, and a classifier of class means."""

from typing import Any

import torch
from torch import Tensor, nn

from longtail._io import import_extra
from longtail.models.heads import CosineHead, Head, LinearHead, unit
from longtail.models.libraries import replace_module
from longtail.models.model import Model, seeded


def add_lora(model: Model, rank: int, *, seed: int) -> None:
    """Add a low-rank change, at first zero, to every linear layer of the backbone, with ``peft``.

    ``W`` becomes ``W + B A``, with ``A`` of shape ``(rank, in)`` and ``B`` of shape ``(out, rank)``. In a timm ViT, the
    layers are ``qkv``, ``proj``, ``fc1`` and ``fc2``. torchvision's ViT computes attention without calling its layers,
    so only those of its MLPs change.

    Args:
        model: changed in place; ``model.trainable("lora")`` has the parameters.
        rank: of the changes.
        seed: of ``A``; torch's generators are left as they are.
    """
    peft = import_extra("peft", "lora")
    # A subclass of nn.Linear may be used by its weight alone, as in nn.MultiheadAttention.
    names = [name for name, module in model.backbone.named_modules() if type(module) is nn.Linear]
    if not names:
        raise ValueError(
            "Expected a network with linear layers for `train` = lora, as a ViT has, but got one without; train norm "
            "or all instead."
        )
    config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=names)
    with seeded(seed):
        peft.inject_adapter_in_model(config, model.backbone)


def merge_lora(model: Model) -> None:
    """Add the low-rank changes to the weights; the model is a plain one again."""
    layer = import_extra("peft.tuners.lora", "lora").LoraLayer
    for name, module in list(model.backbone.named_modules()):
        if isinstance(module, layer):
            module.merge()
            replace_module(model.backbone, name, module.get_base_layer())


_ADAPTED = {"mlp", "mlp_channels"}
"""What timm and torchvision call the MLP of a transformer block; in Mixer and ResMLP the second."""


class Adapter(nn.Module):
    """An MLP with a narrow one beside it (AdaptFormer, Chen et al., 2022): ``mlp(x) + up(relu(down(x)))``.

    ``up`` starts at zero, so the output is at first that of the MLP. AdaptFormer multiplies the second part by 0.1; in
    LIFT (Shi et al., 2024) that factor starts at 1. Ours is 1: AdamW's steps do not grow with a gradient, so with 0.1
    the adapters would change the output ten times slower.

    Args:
        mlp: maps D features to D.
        num_features: D.
        rank: features between ``down`` and ``up``.
    """

    def __init__(self, mlp: nn.Module, num_features: int, rank: int) -> None:
        super().__init__()
        self.mlp = mlp
        down, up = nn.Linear(num_features, rank), nn.Linear(rank, num_features)
        for zeros in (down.bias, up.weight, up.bias):
            nn.init.zeros_(zeros)
        self.adapter = nn.Sequential(down, nn.ReLU(), up)

    def forward(self, inputs: Tensor, *more: Any) -> Tensor:
        """The outputs of the MLP, changed; ``more`` are its other arguments."""
        outputs: Tensor = self.mlp(inputs, *more) + self.adapter(inputs)
        return outputs


def add_adapters(model: Model, rank: int, *, seed: int) -> None:
    """Put an :class:`Adapter` beside the MLP of every transformer block of the backbone.

    Args:
        model: changed in place; ``model.trainable("adapter")`` has the parameters.
        rank: of the adapters.
        seed: of ``down``; torch's generators are left as they are.
    """
    found = []
    for name, module in model.backbone.named_modules():
        linear = [one for one in module.modules() if isinstance(one, nn.Linear)]
        square = linear and linear[0].in_features == linear[-1].out_features
        if square and name.rpartition(".")[2] in _ADAPTED:
            found.append((name, module, linear[0]))
    if not found:
        raise ValueError(
            "Expected a network with transformer blocks for `train` = adapter, as a ViT has, but got one without; "
            "train norm or all instead."
        )
    with seeded(seed):
        for name, module, like in found:
            adapter = Adapter(module, like.in_features, rank)
            replace_module(model.backbone, name, adapter.to(like.weight.device).train(module.training))


def check_means(head: Head, init: str = "means") -> None:
    """Raise unless a classifier can start from class means, or from what ``init`` names in their place."""
    if type(head) not in (LinearHead, CosineHead):
        raise ValueError(
            f"Expected `head_init` = random with a {type(head).__name__}, but got {init}, from which only a linear or "
            "a cosine head can start."
        )


@torch.no_grad()
def use_class_means(head: Head, means: Tensor) -> None:
    r"""Make a classifier predict the class with the nearest mean.

    A linear head gets :math:`s (\mu_c^\top x - |\mu_c|^2 / 2)`, with means relative to their mean and s such that the
    logits of the means themselves have standard deviation 1; a cosine head gets the directions of the means.

    Args:
        head: changed in place.
        means: float64, of the features of each class, ``(C, D)``.
    """
    check_means(head)
    if isinstance(head, CosineHead):
        head.directions.copy_(unit(means))
        return
    assert isinstance(head, LinearHead)
    centre = means.mean(0)
    apart = means - centre
    bias = -apart.square().sum(1) / 2
    scale = 1 / (apart @ apart.T + bias).std().clamp(min=1e-12)
    head.linear.weight.copy_(scale * apart)
    if head.linear.bias is not None:
        head.linear.bias.copy_(scale * (bias - apart @ centre))
