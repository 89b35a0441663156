"""What one forward gives: logits, features, and what only some methods use."""

from typing import NamedTuple

from torch import Tensor

__all__ = ["Outputs"]


class Outputs(NamedTuple):
    """What a forward over all views of a batch gives; rows are views x batch, view after view.

    For a head with a ``weight``, ``logits == features @ weight.T + bias``.

    Attributes:
        logits: shape ``(V * B, C)``.
        features: what the classifier saw, shape ``(V * B, D)``.
        extra: ``"branches"``, shape ``(2 or 3, V * B, C)``, from ResLT's heads, which sum to the logits;
            ``"projection"``, shape ``(V * B, p)``, of unit length, from a projector; ``"prototypes"``, shape
            ``(C, p)``, of unit length, from a projector of the classifier's weights.
    """

    logits: Tensor
    features: Tensor
    extra: dict[str, Tensor]
