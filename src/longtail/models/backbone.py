"""What a backbone is: images in, one feature vector an image out, over feature maps where it has them."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from longtail._checks import told

__all__ = ["Backbone", "average", "check_backbone", "check_images", "taking"]


_NEEDED = ("num_features", "has_maps", "maps", "pool")


class Backbone(Protocol):
    """Any ``nn.Module`` with these; :class:`CifarResNet <longtail.models.CifarResNet>` is one.

    Attributes:
        num_features: the length D of a feature vector.
        has_maps: whether :meth:`maps` gives maps of D channels, on which ResLT's heads work.
    """

    @property
    def num_features(self) -> int:
        """The length D of a feature vector."""
        ...

    @property
    def has_maps(self) -> bool:
        """Whether there are maps of D channels."""
        ...

    def __call__(self, images: Tensor, /) -> Tensor:
        """Features of shape ``(B, D)`` of images of shape ``(B, channels, height, width)``: the pooled maps."""
        ...

    def maps(self, images: Tensor) -> Tensor:
        """The last feature maps, shape ``(B, D, h, w)``."""
        ...

    def pool(self, maps: Tensor) -> Tensor:
        """Features of shape ``(B, D)`` from maps."""
        ...


def check_backbone(backbone: object) -> None:
    """``backbone`` must be a :class:`Backbone` and an ``nn.Module``."""
    missing = object()
    # Looked up without being asked: timm's networks run a forward to say whether they have maps.
    names = [name for name in _NEEDED if inspect.getattr_static(backbone, name, missing) is missing]
    if names or not isinstance(backbone, nn.Module):
        raise TypeError(f"Expected `backbone` to be an nn.Module with {', '.join(_NEEDED)}, but got {told(backbone)}.")


def average(maps: Tensor) -> Tensor:
    """The global average pool: ``(B, D, h, w)`` to ``(B, D)``."""
    return maps.mean((2, 3))


def check_images(images: Tensor, channels: int, *, smallest: int) -> None:
    """``images`` must have ``channels`` and at least ``smallest`` pixels a side; looks at shapes only."""
    if images.ndim != 4 or images.shape[1] != channels or min(images.shape[2:]) < smallest:
        raise ValueError(
            f"Expected `images` to have shape (batch, {channels}, height, width) with sides of {smallest} or more, "
            f"but got shape {tuple(images.shape)}."
        )


@contextmanager
def taking(name: str, size: int) -> Iterator[None]:
    """What another library's network raises over images of a size that it does not take, in one sentence."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        said = " ".join(f"{type(error).__name__} {error}".split()).rstrip(".")
        raise ValueError(
            f"Expected {name} to take images of {size} x {size}, but got {said}; `image_size` gives them another size."
        ) from error
