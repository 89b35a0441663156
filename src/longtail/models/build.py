"""Models from names, drawn from a seed; and a new head on a model, for a second stage."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from longtail._checks import check_choice, check_integer
from longtail.models.backbone import Backbone, taking
from longtail.models.cifar_resnet import CifarResNet
from longtail.models.heads import ClassScaledHead, CosineHead, Head, Init, LinearHead
from longtail.models.libraries import Pretrained
from longtail.models.model import Model, check_fit
from longtail.models.projection import Projector, PrototypeProjector
from longtail.models.registry import build_backbone
from longtail.models.reslt import ResLTHead
from longtail.models.small import SmallCNN

__all__ = ["HeadName", "build_head", "build_model", "check_takes", "replace_head"]

HeadName = Literal["linear", "cosine", "class-scaled", "reslt-cifar", "reslt-imagenet"]
"""The classifiers by name."""


@contextmanager
def _drawn_from(seed: int) -> Iterator[None]:
    """Draw on the CPU from ``seed`` inside, and leave every generator as it was."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would also seed the GPUs' generators, which nobody puts back.
        torch.default_generator.manual_seed(seed)
        yield


def build_head(
    name: HeadName, num_features: int, num_classes: int, *, scale: float = 30.0, branches: int = 3, init: Init = "torch"
) -> Head:
    """A classifier by name; its parameters come from torch's generator.

    Args:
        name: ``"linear"``, ``"cosine"``, ``"class-scaled"`` (LWS), ``"reslt-cifar"`` or ``"reslt-imagenet"``.
        num_features: D.
        num_classes: C.
        scale: of ``"cosine"``.
        branches: of ResLT's heads.
        init: of ``"linear"`` and ``"class-scaled"``.

    Example:
        >>> build_head("cosine", 64, 10, scale=1)
        CosineHead(num_features=64, num_classes=10, scale=1)
    """
    check_choice("head", name, HeadName)
    match name:
        case "linear":
            return LinearHead(num_features, num_classes, init=init)
        case "cosine":
            return CosineHead(num_features, num_classes, scale)
        case "class-scaled":
            return ClassScaledHead(num_features, num_classes, init=init)
        case "reslt-cifar":
            return ResLTHead(num_features, num_classes, "cifar", branches)
        case "reslt-imagenet":
            return ResLTHead(num_features, num_classes, "imagenet", branches)


def _init(backbone: Backbone) -> Init:
    """How a linear head over this backbone starts in the literature."""
    return "kaiming" if isinstance(backbone, CifarResNet | SmallCNN) else "torch"


def build_model(
    name: str,
    num_classes: int,
    *,
    head: HeadName = "linear",
    in_channels: int = 3,
    pretrained: Pretrained = False,
    projection: tuple[int, int] | None = None,
    prototypes: bool = False,
    scale: float = 30.0,
    branches: int = 3,
    image_size: int | None = None,
    seed: int = 0,
) -> Model:
    """A model by names, on the CPU, its parameters a function of ``seed`` alone.

    No generator of torch is moved. The backbone does not depend on what is built on it, nor the head on projectors.

    Args:
        name: the backbone, as in :func:`build_backbone <longtail.models.build_backbone>`.
        num_classes: C.
        head: the classifier, as in :func:`build_head`.
        in_channels: channels of the images.
        pretrained: as in :func:`build_backbone <longtail.models.build_backbone>`.
        projection: the hidden length and the length p of a projector of the features; ``None`` for no projector.
        prototypes: whether to project the classifier's weights too (BCL).
        scale: of a cosine head.
        branches: of a ResLT head.
        image_size: as in :func:`build_backbone <longtail.models.build_backbone>`.
        seed: what the parameters are drawn from.

    Example:
        >>> model = build_model("resnet32", 10)
        >>> sum(parameter.numel() for parameter in model.parameters())
        464154
    """
    check_choice("head", head, HeadName)
    if prototypes and projection is None:
        raise ValueError("Expected `prototypes` to come with a `projection`, but got none.")
    with _drawn_from(check_integer("seed", seed, minimum=0)):
        backbone = build_backbone(name, in_channels=in_channels, pretrained=pretrained, image_size=image_size)
        features = backbone.num_features
        classifier = build_head(head, features, num_classes, scale=scale, branches=branches, init=_init(backbone))
        return Model(
            backbone,
            classifier,
            projector=None if projection is None else Projector(features, *projection),
            prototypes=PrototypeProjector(features, *projection) if prototypes and projection is not None else None,
        )


def check_takes(model: Model, name: str, channels: int, size: int) -> None:
    """``model``, with the backbone ``name``, must take images of this size: it is shown one, and learns nothing.

    Errors of other libraries' networks, which may be anything, are then one sentence before the first step.
    """
    training = model.training
    like = next(model.parameters())
    model.eval()
    try:
        with torch.no_grad(), taking(name, size):
            model(like.new_zeros(1, channels, size, size), project=False)
    finally:
        model.train(training)


def replace_head(
    model: Model,
    name: HeadName,
    *,
    seed: int,
    keep_weights: bool = False,
    scale: float = 30.0,
    branches: int = 3,
) -> Model:
    """Give ``model`` another classifier, on the old one's device, for the next stage.

    cRT is ``replace_head(model, "linear", seed=1)``, LWS ``replace_head(model, "class-scaled", seed=1,
    keep_weights=True)``; then ``model.trainable("classifier")``.

    Args:
        model: changed in place. An optimiser of the old classifier knows nothing of the new one.
        name: as in :func:`build_head`.
        seed: what the new classifier is drawn from; no generator of torch is moved.
        keep_weights: whether weight and bias of the old classifier go into the new one, both linear or class-scaled.
        scale: of a cosine head.
        branches: of a ResLT head.

    Returns:
        ``model``.
    """
    old = model.head
    with _drawn_from(check_integer("seed", seed, minimum=0)):
        new = build_head(
            name, old.num_features, old.num_classes, scale=scale, branches=branches, init=_init(model.backbone)
        )
    check_fit(model.backbone, new)
    if keep_weights:
        if not isinstance(old, LinearHead) or not isinstance(new, LinearHead):
            raise ValueError(
                "Expected `keep_weights` to go from a linear or class-scaled head to another, but got "
                f"{type(old).__name__} and {type(new).__name__}."
            )
        new.linear.weight = nn.Parameter(old.weight.detach().clone())
        bias = None if old.bias is None else nn.Parameter(old.bias.detach().clone())
        new.linear.register_parameter("bias", bias)
    like = old.class_vectors
    model.head = new.to(like.device, like.dtype).train(old.training)
    return model
