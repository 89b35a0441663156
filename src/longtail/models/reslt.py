"""ResLT's classifier: branches over the last feature maps, for all classes, for the rarer and for the rarest."""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._checks import check_choice, check_integer
from longtail.models.backbone import average
from longtail.models.heads import Head
from longtail.models.outputs import Outputs

__all__ = ["Form", "ResLTHead"]

Form = Literal["cifar", "imagenet"]
"""What sets the branches apart: a BatchNorm each, or a 1x1 convolution with BatchNorm and ReLU each."""


class ResLTHead(Head):
    """ResLT (Cui et al., 2022): each branch makes its own features of the maps; one linear layer serves all.

    Logits are the sum of the branches' (``extra["branches"]``), in the order all classes, medium and tail, tail.
    ``features`` are the sum of the branches' features, so that ``logits = features @ weight.T + bias``, where ``bias``
    is the linear layer's times the number of branches: tau-normalisation of the sum is that of the branches.

    *CIFAR form*: a BatchNorm a branch, without ReLU, then the average pool. All branches normalise the same maps, so
    their statistics are one and the same and only scale and shift differ; those are the same before and after the pool.
    Hence one BatchNorm without scale and shift, one pool, and a scale and a shift a branch: what the published three
    BatchNorms compute, at a third of the cost.

    *ImageNet form*: a 1x1 convolution to D channels a branch, BatchNorm, ReLU, then the average pool; in evaluation as
    in training (the authors' code pools first in evaluation, which is not the same before a ReLU).

    Args:
        num_features: D, the maps' channels.
        num_classes: C.
        form: ``"cifar"`` or ``"imagenet"``.
        branches: 3, or 2 (iNaturalist 2018).

    Example:
        >>> outputs = ResLTHead(64, 10)(torch.randn(2, 64, 8, 8))
        >>> outputs.logits.shape, outputs.extra["branches"].shape
        (torch.Size([2, 10]), torch.Size([3, 2, 10]))
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
            self.scales = nn.Parameter(torch.empty(branches, num_features))
            self.shifts = nn.Parameter(torch.empty(branches, num_features))
        else:
            self.conv = nn.Conv2d(num_features, branches * num_features, 1, bias=False)
            self.norm = nn.BatchNorm2d(branches * num_features)
        self.linear = nn.Linear(num_features, num_classes)
        self.reset()

    @property
    def weight(self) -> Tensor:
        """The linear layer's W, shape ``(C, D)``."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor:
        """What the branches' biases add up to, shape ``(C,)``."""
        return self.branches * self.linear.bias

    @property
    def class_vectors(self) -> Tensor:
        """W, shape ``(C, D)``."""
        return self.linear.weight

    def reset(self) -> None:
        """Draw all again; BatchNorm forgets its statistics."""
        self.norm.reset_parameters()
        if self.form == "cifar":
            nn.init.ones_(self.scales)
            nn.init.zeros_(self.shifts)
        else:
            nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        self.linear.reset_parameters()  # as torch draws it: in the authors' code, on CIFAR too

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

    def extra_repr(self) -> str:
        """Sizes, form and branches."""
        return f"{super().extra_repr()}, form={self.form!r}, branches={self.branches}"
