"""The model: a backbone, a classifier, and projectors for contrastive methods."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn

from longtail._checks import check_choice, check_integer, describe
from longtail.models.backbones import Backbone, FeatureNet, evaluation_mode
from longtail.models.heads import HEADS, Head, HeadSpec, LinearHead, Outputs, build_head, unit
from longtail.models.libraries import build_backbone, explain_size_errors
from longtail.models.pretrained import Pretrained

TrainedPart = Literal["all", "classifier", "head", "norm", "lora", "adapter"]
"""The part of a model that trains."""


class Projector(nn.Module):
    """Linear, BatchNorm, ReLU, linear, unit length: the projection of BCL and ProCo.

    On CIFAR 64-512-128, on large data sets 2048-2048-1024. It projects features, shape ``(B, D)``, or the class
    vectors of the classifier, shape ``(C, D)``, to prototypes; BatchNorm then runs over the classes.

    Args:
        num_features: D.
        hidden: length of the hidden layer.
        size: p, the length of a projection.

    Example:
        >>> projection = Projector(64, 512, 128)(torch.randn(4, 64))
        >>> projection.shape, projection.norm(dim=1).round(decimals=4).tolist()
        (torch.Size([4, 128]), [1.0, 1.0, 1.0, 1.0])
    """

    def __init__(self, num_features: int, hidden: int, size: int) -> None:
        super().__init__()
        self.num_features = check_integer("num_features", num_features, minimum=1)
        self.hidden = check_integer("hidden", hidden, minimum=1)
        self.size = check_integer("size", size, minimum=1)
        self.layers = nn.Sequential(
            nn.Linear(num_features, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, size)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Unit vectors of shape ``(B, p)``, float32 or better, of features of shape ``(B, D)``."""
        return unit(self.layers(features))


class Model(nn.Module):
    """Images to logits and features, and to projections and prototypes if the model has projectors.

    Args:
        backbone: a :class:`Backbone <longtail.models.Backbone>`.
        head: the classifier, for as many features as the backbone has.
        projector: projects the features, for contrastive methods.
        prototypes: projects the classifier's class vectors, to the same length as ``projector``.

    Example:
        >>> from longtail.models import LinearHead, SmallCNN
        >>> model = Model(SmallCNN(in_channels=1), LinearHead(64, 10))
        >>> outputs = model(torch.zeros(2, 1, 8, 8))
        >>> outputs.logits.shape, outputs.features.shape, outputs.extra
        (torch.Size([2, 10]), torch.Size([2, 64]), {})
    """

    backbone: Backbone
    head: Head
    projector: Projector | None
    prototypes: Projector | None
    scaler: FeatureNet | None
    """Standardises the features for the head, if the head was trained on the features of a frozen backbone."""
    fixed_statistics: bool = False
    """Whether BatchNorm of the backbone stays in evaluation mode."""

    def __init__(
        self, backbone: Backbone, head: Head, *, projector: Projector | None = None, prototypes: Projector | None = None
    ) -> None:
        super().__init__()
        if not isinstance(backbone, Backbone):
            raise TypeError(f"Expected `backbone` to be a longtail.models.Backbone, but got {describe(backbone)}.")
        _check_fit(backbone, head)
        for name, one in (("projector", projector), ("prototypes", prototypes)):
            if one is not None and one.num_features != backbone.num_features:
                raise ValueError(
                    f"Expected `{name}` to read {backbone.num_features} features, as `backbone` has, "
                    f"but got {one.num_features}."
                )
        if prototypes is not None and (projector is None or projector.size != prototypes.size):
            found = "none" if projector is None else f"{projector.size} and {prototypes.size}"
            raise ValueError(f"Expected `prototypes` to come with a `projector` of the same size, but got {found}.")
        self.backbone = backbone
        self.head = head
        self.projector = projector
        self.prototypes = prototypes
        self.scaler = None

    def train(self, mode: bool = True) -> "Model":
        """Set the mode; see :attr:`fixed_statistics`."""
        super().train(mode)
        if self.fixed_statistics:
            for module in self.backbone.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    @property
    def num_classes(self) -> int:
        """C."""
        return self.head.num_classes

    def forward(self, images: Tensor, *, project: bool = True) -> Outputs:
        """Outputs for all views.

        Args:
            images: shape ``(V * B, channels, height, width)``, view after view.
            project: whether to compute projections and prototypes, if the model has projectors; predictions do not
                need them.
        """
        if self.head.wants_maps:
            maps = self.backbone.maps(images)
            outputs: Outputs = self.head(maps)
            # Contrastive losses compare the features of the backbone, not those of the branches.
            features = self.backbone.pool(maps) if project and self.projector is not None else outputs.features
        else:
            features = self.backbone(images)
            if self.scaler is not None:
                features = self.scaler(features)
            outputs = self.head(features)
        if not project or self.projector is None:
            return outputs
        extra = outputs.extra | {"projection": self.projector(features)}
        if self.prototypes is not None:
            extra["prototypes"] = self.prototypes(self.head.class_vectors)
        return Outputs(outputs.logits, outputs.features, extra)

    def layers_of_parameters(self) -> dict[str, int]:
        """The layer of each parameter by name, from the first of the backbone on; the last one is the head."""
        found = self.backbone.layers_of_parameters()
        last = max(found.values(), default=-1) + 1
        return {name: found.get(name.removeprefix("backbone."), last) for name, _ in self.named_parameters()}

    def trainable(self, part: TrainedPart) -> list[nn.Parameter]:
        """Freeze everything but ``part``, and return its parameters for an optimiser.

        BatchNorm statistics of a frozen backbone still change in ``train()``, as in cRT and LWS.

        Args:
            part: ``"all"``; ``"classifier"``: the head's ``classifier_parameters()``; ``"head"``: all but the backbone;
                ``"norm"``: those and the norm layers of the backbone; ``"lora"``, ``"adapter"``: all
                but the backbone, and what :mod:`longtail.models.tuning` added to it.
        """
        check_choice("part", part, TrainedPart)
        if part == "classifier":
            chosen = self.head.classifier_parameters()
        else:
            chosen = [value for name, value in self.named_parameters() if self._is_in(part, name)]
        wanted = {id(parameter) for parameter in chosen}
        for parameter in self.parameters():
            parameter.requires_grad_(id(parameter) in wanted)
        return chosen

    def _is_in(self, part: TrainedPart, name: str) -> bool:
        """Whether a parameter belongs to a part other than the classifier."""
        if part == "all" or not name.startswith("backbone."):
            return True
        if part == "norm":
            return "norm" in type(self.get_submodule(name.rpartition(".")[0])).__name__.lower()
        return part in {"lora", "adapter"} and f".{part}" in name


def build_model(
    name: str,
    num_classes: int,
    *,
    head: HeadSpec | str = HeadSpec("linear"),  # noqa: B008 - frozen
    in_channels: int = 3,
    pretrained: Pretrained = False,
    projection: tuple[int, int] | None = None,
    prototypes: bool = False,
    image_size: int | None = None,
    drop_path: float | None = None,
    seed: int = 0,
) -> Model:
    """Build a model by names, on the CPU; its parameters depend on ``seed`` alone.

    Torch's generators are left as they are. The backbone's parameters do not depend on the head, nor the head's on
    projectors.

    Args:
        name: the backbone, as in :func:`build_backbone <longtail.models.build_backbone>`.
        num_classes: C.
        head: the classifier, a registered head with its options, or its name.
        in_channels: channels of the images.
        pretrained: as in :func:`build_backbone <longtail.models.build_backbone>`.
        projection: hidden length and length p of a projector of the features; ``None`` for no projector.
        prototypes: whether to project the classifier's class vectors too (BCL).
        image_size: as in :func:`build_backbone <longtail.models.build_backbone>`.
        drop_path: as in :func:`build_backbone <longtail.models.build_backbone>`.
        seed: of the initial parameters.

    Example:
        >>> model = build_model("resnet32", 10, head=HeadSpec("cosine", {"scale": 16}))
        >>> sum(parameter.numel() for parameter in model.parameters())
        464144
    """
    HEADS.find(head if isinstance(head, str) else head.name)
    if prototypes and projection is None:
        raise ValueError("Expected `prototypes` to come with a `projection`, but got none.")
    with seeded(seed):
        backbone = build_backbone(
            name, in_channels=in_channels, pretrained=pretrained, image_size=image_size, drop_path=drop_path
        )
        features = backbone.num_features
        classifier = build_head(head, backbone, num_classes)
        return Model(
            backbone,
            classifier,
            projector=None if projection is None else Projector(features, *projection),
            prototypes=Projector(features, *projection) if prototypes and projection is not None else None,
        )


def replace_head(model: Model, head: HeadSpec | str, *, seed: int, keep_weights: bool = False) -> Model:
    """Give ``model`` another classifier, on the same device, for the next stage.

    cRT is ``replace_head(model, "linear", seed=1)``, LWS ``replace_head(model, "class-scaled", seed=1,
    keep_weights=True)``; then ``model.trainable("classifier")``.

    Args:
        model: changed in place; make a new optimiser afterwards.
        head: as in :func:`build_model`.
        seed: of the new classifier's parameters; torch's generators are left as they are.
        keep_weights: whether to copy weight and bias of the old classifier; both must be linear or class-scaled.

    Returns:
        ``model``.
    """
    old = model.head
    with seeded(seed):
        new = build_head(head, model.backbone, old.num_classes)
    _check_fit(model.backbone, new)
    if keep_weights:
        if not isinstance(old, LinearHead) or not isinstance(new, LinearHead):
            raise ValueError(
                "Expected `keep_weights` to go from a linear or class-scaled head to another, but got "
                f"{type(old).__name__} and {type(new).__name__}."
            )
        new.linear.weight = nn.Parameter(old.weight.detach().clone())
        bias = None if old.bias is None else nn.Parameter(old.bias.detach().clone())
        new.linear.register_parameter("bias", bias)
    like = next(chain(old.parameters(), model.parameters()))
    model.head = new.to(like.device, like.dtype).train(old.training)
    return model


def check_takes(model: Model, name: str, channels: int, size: int) -> None:
    """Raise if ``model``, with the backbone ``name``, fails on images of this size, before the first step.

    Networks of other libraries may fail with any error; this makes it one sentence.
    """
    like = next(model.parameters())
    with evaluation_mode(model), torch.no_grad(), explain_size_errors(name, size):
        model(like.new_zeros(1, channels, size, size), project=False)


def _check_fit(backbone: Backbone, head: Head) -> None:
    if not isinstance(head, Head):
        raise TypeError(f"Expected `head` to be a longtail.models.Head, but got {type(head).__name__}.")
    if head.num_features != backbone.num_features:
        raise ValueError(
            f"Expected `head` to read {backbone.num_features} features, as `backbone` has, but got {head.num_features}."
        )
    if head.wants_maps and not backbone.has_maps:
        raise ValueError(
            f"Expected `backbone` to have feature maps, which {type(head).__name__} reads, but got "
            f"{type(backbone).__name__} without; a ResNet has them."
        )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw on the CPU from ``seed`` inside, and leave every generator as it was."""
    check_integer("seed", seed, minimum=0)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would also seed the generators of GPUs, which fork_rng does not restore here.
        torch.default_generator.manual_seed(seed)
        yield
