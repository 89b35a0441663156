"""A method from outside the package, with a new head and two new parameters.

The classifier is a small network: a hidden layer of `mlp_width` units with a leaky ReLU of slope `mlp_slope`, then a
linear layer, trained on Class-Balanced Softmax:

    longtail train --plugin examples/own_method.py --data digits-lt --method cbs-mlp --mlp-width 64
    longtail study --plugin examples/own_method.py --data digits-lt --methods cbs cbs-mlp --betas 1 1.5 --seeds 3
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from longtail.losses import ClassBalancedSoftmaxLoss
from longtail.methods import Method, Objective, Stage, SupervisedLoss, Task, param, register_method
from longtail.models import Backbone, Head, HeadSpec, Outputs, register_head


class MLPHead(Head):
    """A classifier with one hidden layer."""

    def __init__(self, num_features: int, num_classes: int, width: int, slope: float) -> None:
        super().__init__(num_features, num_classes)
        self.hidden = nn.Linear(num_features, width)
        self.linear = nn.Linear(width, num_classes)
        self.slope = slope

    @property
    def weight(self) -> Tensor:
        """The weight of the last layer: measures of its gradient and tau-normalisation use it."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor:
        """The bias of the last layer."""
        return self.linear.bias

    def forward(self, inputs: Tensor) -> Outputs:
        """Logits of features ``(B, D)``."""
        hidden = F.leaky_relu(self.hidden(inputs), self.slope)
        return Outputs(self.linear(hidden), hidden, {})


def make_head(backbone: Backbone, num_classes: int, width: int = 32, slope: float = 0.01) -> Head:
    """The head for a backbone; the keyword arguments are the options of a `HeadSpec`."""
    return MLPHead(backbone.num_features, num_classes, width, slope)


@dataclass(frozen=True)
class MLPParams:
    """Parameters of the method; they become settings of a recipe and flags of the command line."""

    beta: float = param(1.5, "exponent of the class counts in the shift", at_least=0)
    mlp_width: int = param(32, "width of the hidden layer", at_least=1)
    mlp_slope: float = param(0.01, "slope of the leaky ReLU", at_least=0, below=1)


def head_of(params: MLPParams) -> HeadSpec:
    """The classifier with these parameters; the model file keeps its name and options."""
    return HeadSpec("mlp", {"width": params.mlp_width, "slope": params.mlp_slope})


def make_objective(task: Task) -> Objective:
    """What the model is trained on."""
    return SupervisedLoss(ClassBalancedSoftmaxLoss(task.counts, beta=task.params.beta, **task.options))


register_head("mlp", make_head)
register_method(
    Method(
        name="cbs-mlp",
        title="CBS, MLP head",
        summary="Class-Balanced Softmax over a classifier with one hidden layer",
        reference="an example",
        stages=(Stage(make_objective, head_of),),
        params=MLPParams,
        beta="beta",
        shift="beta",
    )
)
