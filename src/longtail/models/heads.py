"""Classifiers over a feature vector: linear, cosine, and linear with one scale a class (LWS)."""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._checks import check_choice, check_integer, check_number
from longtail.models.outputs import Outputs

__all__ = ["ClassScaledHead", "CosineHead", "Head", "Init", "LinearHead", "unit"]

Init = Literal["kaiming", "torch"]
"""How a linear layer starts: ``kaiming_normal_`` (the CIFAR networks) or as torch does (the large ones)."""


def unit(vectors: Tensor) -> Tensor:
    """``vectors`` scaled to length 1 along the last dimension, in float32 or better whatever autocast does."""
    return F.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=-1)


class Head(nn.Module):
    """What every classifier has, whatever it makes of the features.

    Attributes:
        num_features: D, what it reads.
        num_classes: C, what it gives.
        wants_maps: whether it reads maps, shape ``(B, D, h, w)``, rather than features, shape ``(B, D)``.
    """

    wants_maps: ClassVar[bool] = False

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.num_features = check_integer("num_features", num_features, minimum=1)
        self.num_classes = check_integer("num_classes", num_classes, minimum=1)

    @property
    def weight(self) -> Tensor | None:
        """The matrix W, shape ``(C, D)``, of ``logits = features @ W.T + bias``; ``None`` where logits are not that."""
        return None

    @property
    def bias(self) -> Tensor | None:
        """The bias that goes with :attr:`weight`, shape ``(C,)``; ``None`` where there is none."""
        return None

    @property
    def class_vectors(self) -> Tensor:
        """The parameters that stand for the classes, shape ``(C, D)``: what prototypes are projected from."""
        raise NotImplementedError

    def classifier_parameters(self) -> list[nn.Parameter]:
        """What "train the classifier only" trains."""
        return list(self.parameters())

    def reset(self) -> None:
        """Start anew (cRT): draw every parameter again."""
        raise NotImplementedError

    def forward(self, inputs: Tensor) -> Outputs:
        """Logits of shape ``(B, C)``, and the features they were made of."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Sizes."""
        return f"num_features={self.num_features}, num_classes={self.num_classes}"


class LinearHead(Head):
    """The plain classifier, ``W x + b``.

    Args:
        num_features: D.
        num_classes: C.
        bias: whether there is a b.
        init: W by ``kaiming_normal_`` (the CIFAR networks of the literature), or as torch draws a linear layer (its
            ImageNet networks); b as torch draws it.

    Example:
        >>> head = LinearHead(64, 10)
        >>> head(torch.zeros(2, 64)).logits.shape
        torch.Size([2, 10])
    """

    def __init__(self, num_features: int, num_classes: int, bias: bool = True, *, init: Init = "kaiming") -> None:
        super().__init__(num_features, num_classes)
        check_choice("init", init, Init)
        self.init = init
        self.linear = nn.Linear(num_features, num_classes, bias=bias)
        self.reset()

    @property
    def weight(self) -> Tensor:
        """W, shape ``(C, D)``."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        """b, shape ``(C,)``."""
        return self.linear.bias

    @property
    def class_vectors(self) -> Tensor:
        """W, shape ``(C, D)``."""
        return self.linear.weight

    def reset(self) -> None:
        """Draw W and b again."""
        self.linear.reset_parameters()
        if self.init == "kaiming":
            nn.init.kaiming_normal_(self.linear.weight)

    def forward(self, inputs: Tensor) -> Outputs:
        """Logits of shape ``(B, C)`` of features of shape ``(B, D)``."""
        return Outputs(self.linear(inputs), inputs, {})


class CosineHead(Head):
    r"""The normalised classifier, :math:`s \cos(w_c, x)`.

    With BCL and ProCo on large data sets the scale is 30. LDAM's loss scales by itself, after it has taken the margins
    off, so :class:`LDAMLoss <longtail.losses.LDAMLoss>` wants ``scale=1``: cosines. Predictions are the same for all
    scales; probabilities of an LDAM model are those of its logits times the loss's scale.

    Class vectors start with length 1, in the direction of a point drawn uniformly from a cube. Their length does not
    move the logits, but it does move how fast they turn.

    Args:
        num_features: D.
        num_classes: C.
        scale: s, > 0.

    Example:
        >>> head = CosineHead(64, 10, scale=1)
        >>> bool(head(torch.randn(2, 64)).logits.abs().max() <= 1)
        True
    """

    def __init__(self, num_features: int, num_classes: int, scale: float = 30.0) -> None:
        super().__init__(num_features, num_classes)
        self.scale = check_number("scale", scale)
        if self.scale == 0:
            raise ValueError("Expected `scale` to be a number > 0, but got 0.")
        self.directions = nn.Parameter(torch.empty(num_classes, num_features))
        self.reset()

    @property
    def class_vectors(self) -> Tensor:
        """The class vectors before they are normalised, shape ``(C, D)``."""
        return self.directions

    def reset(self) -> None:
        """Draw the class vectors again."""
        with torch.no_grad():
            self.directions.uniform_(-1, 1)
            self.directions.copy_(unit(self.directions))

    def forward(self, inputs: Tensor) -> Outputs:
        """Logits of shape ``(B, C)`` of features of shape ``(B, D)``."""
        return Outputs(self.scale * F.linear(unit(inputs), unit(self.directions)), inputs, {})

    def extra_repr(self) -> str:
        """Sizes and scale."""
        return f"{super().extra_repr()}, scale={self.scale:g}"


class ClassScaledHead(LinearHead):
    """Learnable weight scaling (LWS, Kang et al., 2020): ``scale_c (w_c x + b_c)``, of which only the scales train.

    The bias is scaled too, as in the authors' code (the paper writes the formula without one). Scales start at 1: with
    W and b of a trained classifier it begins as that classifier.

    Example:
        >>> head = ClassScaledHead(64, 10)
        >>> [parameter.shape for parameter in head.classifier_parameters()]
        [torch.Size([10])]
    """

    def __init__(self, num_features: int, num_classes: int, bias: bool = True, *, init: Init = "kaiming") -> None:
        super().__init__(num_features, num_classes, bias, init=init)
        self.scales = nn.Parameter(torch.ones(num_classes))

    @property
    def weight(self) -> Tensor:
        """W with its rows scaled, shape ``(C, D)``."""
        return self.scales[:, None] * self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        """b scaled, shape ``(C,)``."""
        return None if self.linear.bias is None else self.scales * self.linear.bias

    def classifier_parameters(self) -> list[nn.Parameter]:
        """The scales."""
        return [self.scales]

    def reset(self) -> None:
        """Draw W and b again and set the scales to 1."""
        super().reset()
        if hasattr(self, "scales"):  # not yet there when the linear head's constructor calls this
            nn.init.ones_(self.scales)

    def forward(self, inputs: Tensor) -> Outputs:
        """Logits of shape ``(B, C)`` of features of shape ``(B, D)``."""
        return Outputs(self.scales * self.linear(inputs), inputs, {})
