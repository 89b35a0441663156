"""Projections onto the unit sphere, where contrastive methods compare: of features, and of the classifier's weights."""

from torch import Tensor, nn

from longtail._checks import check_integer
from longtail.models.heads import unit

__all__ = ["Projector", "PrototypeProjector"]


class Projector(nn.Module):
    """Linear, BatchNorm, ReLU, linear, length 1: the projection of BCL and ProCo.

    On CIFAR 64-512-128, on large data sets 2048-2048-1024.

    Args:
        num_features: D.
        hidden: the length in between.
        size: p, the length of a projection.

    Example:
        >>> import torch
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


class PrototypeProjector(Projector):
    """BCL's class prototypes: a projection, by an MLP of its own, of the classifier's weights.

    BatchNorm runs over the classes here: row c of the weights, shape ``(C, D)``, gives prototype c of ``(C, p)``.

    Example:
        >>> import torch
        >>> PrototypeProjector(64, 512, 128)(torch.randn(10, 64)).shape
        torch.Size([10, 128])
    """
