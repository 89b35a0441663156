"""Classifiers on top of a backbone, by name: linear, cosine, class-scaled (LWS), ResLT, and your own."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._checks import check_choice, check_integer, check_number
from longtail._registry import Registry
from longtail.models.backbones import Backbone, average

Init = Literal["kaiming", "torch"]
Form = Literal["cifar", "imagenet"]


class Outputs(NamedTuple):
    """Outputs of a model for all views of a batch; rows are views x batch, view after view.

    For a head with a ``weight``, ``logits == features @ weight.T + bias``.

    Attributes:
        logits: shape ``(V * B, C)``.
        features: input of the classifier, shape ``(V * B, D)``.
        extra: ``"branches"``, shape ``(2 or 3, V * B, C)``, from a ResLT head, which sum to the logits;
            ``"projection"``, shape ``(V * B, p)``, of unit length, from a projector; ``"prototypes"``, shape
            ``(C, p)``, of unit length, from a projector of the classifier's weights.
    """

    logits: Tensor
    features: Tensor
    extra: dict[str, Tensor]


def unit(vectors: Tensor) -> Tensor:
    """Scale ``vectors`` to length 1 along the last dimension, in float32 or better even under autocast."""
    return F.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=-1)


class Head(nn.Module):
    """Base class of classifiers. A subclass implements :meth:`forward`; the rest is optional.

    Attributes:
        num_features: D, the length of a feature vector.
        num_classes: C.
        wants_maps: whether the head reads maps, shape ``(B, D, h, w)``, instead of features, shape ``(B, D)``.
    """

    wants_maps: ClassVar[bool] = False

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.num_features = check_integer("num_features", num_features, minimum=1)
        self.num_classes = check_integer("num_classes", num_classes, minimum=1)

    @property
    def weight(self) -> Tensor | None:
        """W, shape ``(C, D)``, of ``logits = features @ W.T + bias``; ``None`` if the head is not linear."""
        return None

    @property
    def bias(self) -> Tensor | None:
        """The bias of shape ``(C,)`` that belongs to :attr:`weight`, or ``None``."""
        return None

    @property
    def class_vectors(self) -> Tensor:
        """One vector per class, shape ``(C, D)``, from which prototypes are projected (BCL): W, unless overridden."""
        if self.weight is None:
            raise NotImplementedError(f"{type(self).__name__} has no class vectors, which prototypes need.")
        return self.weight

    def classifier_parameters(self) -> list[nn.Parameter]:
        """The parameters that a stage with ``train="classifier"`` trains."""
        return list(self.parameters())

    def forward(self, inputs: Tensor) -> Outputs:
        """Logits of shape ``(B, C)``, and the features they were computed from."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Sizes."""
        return f"num_features={self.num_features}, num_classes={self.num_classes}"


@dataclass(frozen=True)
class HeadSpec:
    """The name of a registered head and its options, as they are stored in a model file.

    Args:
        name: of a registered head.
        options: keyword arguments of its factory, which JSON can store.

    Example:
        >>> from longtail.models import CifarResNet
        >>> build_head(HeadSpec("cosine", {"scale": 16}), CifarResNet(32), 10)
        CosineHead(num_features=64, num_classes=10, scale=16)
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        try:
            json.dumps(dict(self.options))
        except (TypeError, ValueError) as error:
            raise TypeError(f"Expected `options` that JSON can store, but got {self.options!r}: {error}.") from error


HeadFactory = Callable[..., Head]
HEADS: Registry[HeadFactory] = Registry("head")


def register_head(name: str, factory: HeadFactory) -> HeadFactory:
    """Add a classifier under a new name and return its factory.

    Args:
        name: for :class:`HeadSpec`, ``--head`` and a model's file.
        factory: called as ``factory(backbone, num_classes, **options)``; returns a :class:`Head`.
    """
    return HEADS.register(name, factory)


def build_head(spec: HeadSpec | str, backbone: Backbone, num_classes: int) -> Head:
    """Build the head that ``spec`` describes; its parameters come from torch's generator.

    Args:
        spec: name and options of a registered head; a name alone has no options.
        backbone: what the head is for.
        num_classes: C.
    """
    spec = HeadSpec(spec) if isinstance(spec, str) else spec
    factory = HEADS.find(spec.name)
    try:
        inspect.signature(factory).bind(backbone, num_classes, **spec.options)
    except TypeError as error:
        raise ValueError(f"Expected `options` to fit the head {spec.name!r}, but got {error}.") from None
    return factory(backbone, num_classes, **spec.options)


class LinearHead(Head):
    """The plain classifier, ``W x + b``.

    Args:
        num_features: D.
        num_classes: C.
        bias: whether to have b.
        init: ``"kaiming"`` draws W by ``kaiming_normal_`` (the CIFAR networks of the literature), ``"torch"`` as
            ``nn.Linear`` does (the ImageNet networks).
    """

    def __init__(self, num_features: int, num_classes: int, bias: bool = True, *, init: Init = "kaiming") -> None:
        super().__init__(num_features, num_classes)
        check_choice("init", init, Init)
        self.linear = nn.Linear(num_features, num_classes, bias=bias)
        self.linear.reset_parameters()  # a second draw, as in all published runs: seeds must keep giving their models
        if init == "kaiming":
            nn.init.kaiming_normal_(self.linear.weight)

    @property
    def weight(self) -> Tensor:
        """W, shape ``(C, D)``."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        """b, shape ``(C,)``."""
        return self.linear.bias

    def forward(self, inputs: Tensor) -> Outputs:
        """Logits of shape ``(B, C)`` of features of shape ``(B, D)``."""
        return Outputs(self.linear(inputs), inputs, {})


class CosineHead(Head):
    r"""The normalised classifier, :math:`s \cos(w_c, x)`.

    BCL and ProCo use scale 30 on large data sets. LDAM's loss subtracts the margins and then scales, so
    :class:`LDAMLoss <longtail.losses.LDAMLoss>` needs ``scale=1``. Predictions do not depend on the scale;
    probabilities of an LDAM model are those of its logits times the loss's scale.

    Class vectors start with length 1, in the direction of a point drawn uniformly from a cube. Their length does not
    change the logits, but it does change how fast they turn in training.

    Args:
        num_features: D.
        num_classes: C.
        scale: s, > 0.
    """

    def __init__(self, num_features: int, num_classes: int, scale: float = 30.0) -> None:
        super().__init__(num_features, num_classes)
        self.scale = check_number("scale", scale)
        if self.scale == 0:
            raise ValueError("Expected `scale` to be a number > 0, but got 0.")
        self.directions = nn.Parameter(torch.empty(num_classes, num_features))
        with torch.no_grad():
            self.directions.uniform_(-1, 1)
            self.directions.copy_(unit(self.directions))

    @property
    def class_vectors(self) -> Tensor:
        """The class vectors before normalisation, shape ``(C, D)``."""
        return self.directions

    def forward(self, inputs: Tensor) -> Outputs:
        """Logits of shape ``(B, C)`` of features of shape ``(B, D)``."""
        return Outputs(self.scale * F.linear(unit(inputs), unit(self.directions)), inputs, {})

    def extra_repr(self) -> str:
        """Sizes and scale."""
        return f"{super().extra_repr()}, scale={self.scale:g}"


class ClassScaledHead(LinearHead):
    """Learnable weight scaling (LWS, Kang et al., 2020): ``scale_c (w_c x + b_c)``; only the scales train.

    The bias is scaled too, as in the authors' code (the paper's formula has no bias). Scales start at 1, so with W and
    b of a trained classifier it starts as that classifier. Arguments are those of :class:`LinearHead`.
    """

    def __init__(self, num_features: int, num_classes: int, bias: bool = True, *, init: Init = "kaiming") -> None:
        super().__init__(num_features, num_classes, bias, init=init)
        self.scales = nn.Parameter(torch.ones(num_classes))

    @property
    def weight(self) -> Tensor:
        """W with scaled rows, shape ``(C, D)``."""
        return self.scales[:, None] * self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        """The scaled b, shape ``(C,)``."""
        return None if self.linear.bias is None else self.scales * self.linear.bias

    def classifier_parameters(self) -> list[nn.Parameter]:
        """The scales."""
        return [self.scales]

    def forward(self, inputs: Tensor) -> Outputs:
        """Logits of shape ``(B, C)`` of features of shape ``(B, D)``."""
        return Outputs(self.scales * self.linear(inputs), inputs, {})


class ResLTHead(Head):
    """ResLT (Cui et al., 2022): each branch computes its own features from the maps; all share one linear layer.

    The logits are the sum of the branches' logits (``extra["branches"]``), in the order all classes, medium and tail,
    tail. ``features`` is the sum of the branches' features, so ``logits = features @ weight.T + bias``, where ``bias``
    is the linear layer's times the number of branches: tau-normalising the sum tau-normalises every branch.

    *CIFAR form*: a BatchNorm per branch without ReLU, then the average pool. All branches normalise the same maps, so
    their statistics are equal and only scale and shift differ, and these commute with the pool. One BatchNorm without
    scale and shift, one pool, and a scale and shift per branch compute the same at a third of the cost.

    *ImageNet form*: per branch a 1x1 convolution to D channels, BatchNorm and ReLU, then the average pool, in
    evaluation as in training (the authors' code pools first in evaluation, which is not the same before a ReLU).

    Args:
        num_features: D, the channels of the maps.
        num_classes: C.
        form: ``"cifar"`` or ``"imagenet"``.
        branches: 3, or 2 (iNaturalist 2018).
    """

    wants_maps: ClassVar[bool] = True

    def __init__(self, num_features: int, num_classes: int, form: Form = "cifar", branches: int = 3) -> None:
        super().__init__(num_features, num_classes)
        check_choice("form", form, Form)
        self.form = form
        self.branches = check_integer("branches", branches)
        if self.branches not in (2, 3):
            raise ValueError(f"Expected `branches` to be 2 or 3, but got {branches}.")
        if form == "cifar":
            self.norm = nn.BatchNorm2d(num_features, affine=False)
            self.scales = nn.Parameter(torch.ones(branches, num_features))
            self.shifts = nn.Parameter(torch.zeros(branches, num_features))
            self.linear = nn.Linear(num_features, num_classes)
        else:
            self.conv = nn.Conv2d(num_features, branches * num_features, 1, bias=False)
            self.norm = nn.BatchNorm2d(branches * num_features)
            self.linear = nn.Linear(num_features, num_classes)
            nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        # Torch's initialisation on CIFAR too, as in the authors' code; drawn twice, as in all published runs.
        self.linear.reset_parameters()

    @property
    def weight(self) -> Tensor:
        """W of the linear layer, shape ``(C, D)``."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor:
        """The sum of the branches' biases, shape ``(C,)``."""
        return self.branches * self.linear.bias

    def forward(self, inputs: Tensor) -> Outputs:
        """Logits of shape ``(B, C)``, the sum of the branches', of maps of shape ``(B, D, h, w)``."""
        if self.form == "cifar":
            pooled = average(self.norm(inputs))
            features = pooled * self.scales[:, None] + self.shifts[:, None]
        else:
            pooled = average(F.relu(self.norm(self.conv(inputs))))
            features = pooled.reshape(-1, self.branches, self.num_features).transpose(0, 1)
        branches = self.linear(features)
        return Outputs(branches.sum(0), features.sum(0), {"branches": branches})


def _linear(backbone: Backbone, num_classes: int, bias: bool = True) -> Head:
    return LinearHead(backbone.num_features, num_classes, bias, init=backbone.linear_init)


def _cosine(backbone: Backbone, num_classes: int, scale: float = 30.0) -> Head:
    return CosineHead(backbone.num_features, num_classes, scale)


def _class_scaled(backbone: Backbone, num_classes: int, bias: bool = True) -> Head:
    return ClassScaledHead(backbone.num_features, num_classes, bias, init=backbone.linear_init)


def _reslt(backbone: Backbone, num_classes: int, branches: int = 3) -> Head:
    return ResLTHead(backbone.num_features, num_classes, backbone.reslt_form, branches)


register_head("linear", _linear)
register_head("cosine", _cosine)
register_head("class-scaled", _class_scaled)
register_head("reslt", _reslt)
