"""A classifier from outside the package: one prototype per class, and logits from distances to it.

In Python, from the root of the repository, with options of the head:

    from longtail.models import HeadSpec, build_model
    import examples.own_head  # registers the head
    model = build_model("resnet32", 10, head=HeadSpec("prototype", {"temperature": 0.5}))

On the command line with its defaults, for every method that trains a linear classifier:

    longtail train --plugin examples/own_head.py --data digits-lt --method cbs --head prototype
"""

import torch
from torch import Tensor, nn

from longtail.models import Backbone, Head, Outputs, register_head


class PrototypeHead(Head):
    """Logits ``-|x - p_c|^2 / temperature`` of a feature vector x and the prototype p_c of class c."""

    def __init__(self, num_features: int, num_classes: int, temperature: float = 1.0) -> None:
        super().__init__(num_features, num_classes)
        if temperature <= 0:
            raise ValueError(f"Expected `temperature` to be a number > 0, but got {temperature}.")
        self.temperature = temperature
        self.prototypes = nn.Parameter(torch.randn(num_classes, num_features))

    @property
    def class_vectors(self) -> Tensor:
        """The prototypes; BCL needs one vector per class, other methods do not."""
        return self.prototypes

    def forward(self, inputs: Tensor) -> Outputs:
        """Logits of shape ``(B, C)`` of features of shape ``(B, D)``."""
        products = inputs @ self.prototypes.T
        squares = inputs.square().sum(1, keepdim=True) + self.prototypes.square().sum(1)
        return Outputs((2 * products - squares) / self.temperature, inputs, {})


def make_head(backbone: Backbone, num_classes: int, temperature: float = 1.0) -> Head:
    """The head for a backbone; the keyword arguments are the options of a ``HeadSpec``."""
    return PrototypeHead(backbone.num_features, num_classes, temperature)


register_head("prototype", make_head)
