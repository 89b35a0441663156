"""Backbones: the base class, the ResNets of the CIFAR experiments, and a small network for tiny images."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._checks import check_integer

_WIDTHS = (16, 32, 64)
_ROWS = 2**14  # feature vectors that are standardised together


class Backbone(nn.Module):
    """Base class of backbones. A subclass sets ``num_features`` and implements :meth:`maps`, or :meth:`forward`.

    Attributes:
        num_features: D, the length of a feature vector.
        linear_init: how a linear classifier on it is initialised: ``"torch"`` or ``"kaiming"``.
        reslt_form: which ResLT head it gets: ``"imagenet"`` or ``"cifar"``.
    """

    num_features: int
    linear_init: Literal["kaiming", "torch"] = "torch"
    reslt_form: Literal["cifar", "imagenet"] = "imagenet"

    @property
    def has_maps(self) -> bool:
        """Whether :meth:`maps` returns maps of D channels, which ResLT needs."""
        return True

    def maps(self, images: Tensor) -> Tensor:  # noqa: ARG002 - a subclass uses it
        """The last feature maps, shape ``(B, D, h, w)``, of images of shape ``(B, channels, height, width)``."""
        raise TypeError(f"Expected a network with feature maps, but got {type(self).__name__}.")

    def pool(self, maps: Tensor) -> Tensor:
        """Features of shape ``(B, D)`` from maps: the global average."""
        return average(maps)

    def forward(self, images: Tensor) -> Tensor:
        """Features of shape ``(B, D)``: the pooled maps of images of shape ``(B, channels, height, width)``."""
        return self.pool(self.maps(images))

    def layers_of_parameters(self) -> dict[str, int]:
        """The layer of each parameter by name, from 0 on, for layer-wise learning rates: each child is a layer."""
        children: dict[str, int] = {}
        names = [name for name, _ in self.named_parameters()]
        return {name: children.setdefault(name.split(".")[0], len(children)) for name in names}


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every part has the mode from before."""
    before = {one: one.training for one in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for one, training in before.items():
            one.training = training


def average(maps: Tensor) -> Tensor:
    """The global average pool: ``(B, D, h, w)`` to ``(B, D)``."""
    return maps.mean((2, 3))


def _check_images(images: Tensor, channels: int, *, smallest: int) -> None:
    if images.ndim != 4 or images.shape[1] != channels or min(images.shape[2:]) < smallest:
        raise ValueError(
            f"Expected `images` to have shape (batch, {channels}, height, width) with sides of {smallest} or more, "
            f"but got shape {tuple(images.shape)}."
        )


class SmallCNN(Backbone):
    """Three 3x3 convolutions of 16, 32 and 64 channels with BatchNorm and ReLU, about 23,000 parameters.

    The second and third halve the image, so an 8 x 8 digit ends as maps of 2 x 2. Tests and demonstrations train it
    in a second on a CPU.

    Args:
        in_channels: channels of the images.
    """

    num_features = 64
    linear_init = "kaiming"
    reslt_form = "cifar"

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__()
        self.in_channels = check_integer("in_channels", in_channels, minimum=1)
        layers: list[nn.Module] = []
        width = in_channels
        for channels, stride in ((16, 1), (32, 2), (64, 2)):
            conv = nn.Conv2d(width, channels, 3, stride=stride, padding=1, bias=False)
            nn.init.kaiming_normal_(conv.weight)
            layers += [conv, nn.BatchNorm2d(channels), nn.ReLU()]
            width = channels
        self.layers = nn.Sequential(*layers)

    def maps(self, images: Tensor) -> Tensor:
        """The last feature maps, shape ``(B, 64, h, w)``: a quarter of the image's sides, rounded up."""
        _check_images(images, self.in_channels, smallest=4)
        maps: Tensor = self.layers(images)
        return maps


class FeatureNet(Backbone):
    """Feature vectors, standardised, and hidden layers if there are any: linear, LayerNorm and ReLU.

    Args:
        in_features: length of the feature vectors.
        hidden: lengths of the hidden layers; without any, the model is linear.

    Example:
        >>> import torch
        >>> FeatureNet(384, (256, 128))(torch.zeros(2, 384)).shape
        torch.Size([2, 128])
    """

    has_maps = False
    mean: Tensor
    std: Tensor

    def __init__(self, in_features: int, hidden: Sequence[int] = ()) -> None:
        super().__init__()
        self.in_features = check_integer("in_features", in_features, minimum=1)
        widths = [in_features, *(check_integer("hidden", width, minimum=1) for width in hidden)]
        self.num_features = widths[-1]
        self.register_buffer("mean", torch.zeros(in_features))
        self.register_buffer("std", torch.ones(in_features))
        layers: list[nn.Module] = []
        for width, next_width in pairwise(widths):
            layers += [nn.Linear(width, next_width), nn.LayerNorm(next_width), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def standardise(self, vectors: Tensor) -> None:
        """Use mean and standard deviation of these vectors ``(N, D)``; a constant feature is only centred."""
        parts = torch.split(vectors, _ROWS)  # a copy in float64 may not fit into memory
        mean = torch.stack([part.double().sum(0) for part in parts]).sum(0) / len(vectors)
        variance = torch.stack([(part.double() - mean).square().sum(0) for part in parts]).sum(0) / len(vectors)
        self.mean.copy_(mean)
        self.std.copy_(torch.where(variance > 0, variance.sqrt(), 1.0))

    def forward(self, vectors: Tensor) -> Tensor:
        """Features of shape ``(B, num_features)`` of vectors of shape ``(B, in_features)``."""
        if vectors.ndim != 2 or vectors.shape[1] != self.in_features:
            raise ValueError(
                f"Expected features of shape (batch, {self.in_features}), but got shape {tuple(vectors.shape)}."
            )
        found: Tensor = self.layers((vectors - self.mean) / self.std)
        return found


def shortcut(maps: Tensor, channels: int, stride: int) -> Tensor:
    """The shortcut without parameters ("option A"): every ``stride``-th pixel, with zero channels on both sides.

    Args:
        maps: shape ``(B, D, h, w)``.
        channels: channels of the result, D plus an even number.
        stride: 1 or 2.

    Example:
        >>> import torch
        >>> shortcut(torch.arange(1.0, 10.0).reshape(1, 1, 3, 3), channels=3, stride=2)[0].tolist()
        [[[0.0, 0.0], [0.0, 0.0]], [[1.0, 3.0], [7.0, 9.0]], [[0.0, 0.0], [0.0, 0.0]]]
    """
    if stride != 1:
        maps = maps[:, :, ::stride, ::stride]
    side = (channels - maps.shape[1]) // 2
    return F.pad(maps, (0, 0, 0, 0, side, side)) if side else maps


class _Block(nn.Module):
    """Two 3x3 convolutions with BatchNorm and the shortcut; ReLU after the sum."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.channels = channels
        self.stride = stride
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, maps: Tensor) -> Tensor:
        residual = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(maps)))))
        return F.relu(residual + shortcut(maps, self.channels, self.stride))


class CifarResNet(Backbone):
    """ResNet for small images (He et al., 2016, section 4.2): three stages of 16, 32 and 64 channels.

    A 3x3 convolution, then ``(depth - 2) / 6`` blocks per stage; the second and third stage halve the image. Weights
    of convolutions are drawn by ``kaiming_normal_``.

    Args:
        depth: layers with weights, the classifier included: 6 n + 2.
        in_channels: channels of the images.

    Attributes:
        fast_maps: an implementation of :meth:`maps`, called first with this module and the images; it returns ``None``
            for images that it cannot process. :func:`use_kernels <longtail.kernels.use_kernels>` sets it.

    Example:
        >>> import torch
        >>> backbone = CifarResNet(32)
        >>> backbone.maps(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64, 8, 8])
    """

    num_features = _WIDTHS[-1]
    linear_init = "kaiming"
    reslt_form = "cifar"

    def __init__(self, depth: int, in_channels: int = 3) -> None:
        super().__init__()
        depth = check_integer("depth", depth, minimum=8)
        if depth % 6 != 2:
            raise ValueError(f"Expected `depth` to be 6 n + 2, as 20, 32, 44 or 56, but got {depth}.")
        self.depth = depth
        self.in_channels = check_integer("in_channels", in_channels, minimum=1)
        self.fast_maps: Callable[[CifarResNet, Tensor], Tensor | None] | None = None
        self.conv = nn.Conv2d(in_channels, _WIDTHS[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(_WIDTHS[0])
        blocks: list[nn.Module] = []
        width = _WIDTHS[0]
        for channels in _WIDTHS:
            for index in range((depth - 2) // 6):
                stride = 2 if index == 0 and channels != _WIDTHS[0] else 1
                blocks.append(_Block(width, channels, stride))
                width = channels
        self.blocks = nn.Sequential(*blocks)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def layers(self) -> tuple[list[nn.Conv2d], list[nn.BatchNorm2d]]:
        """All convolutions, and the BatchNorm after each."""
        blocks = [block for block in self.blocks if isinstance(block, _Block)]
        convolutions = [self.conv, *(conv for block in blocks for conv in (block.conv1, block.conv2))]
        return convolutions, [self.norm, *(norm for block in blocks for norm in (block.norm1, block.norm2))]

    def maps(self, images: Tensor) -> Tensor:
        """The last feature maps, shape ``(B, 64, h, w)``: a quarter of the image's sides, rounded up."""
        _check_images(images, self.in_channels, smallest=8)
        if self.fast_maps is not None:
            fast = self.fast_maps(self, images)
            if fast is not None:
                return fast
        maps: Tensor = self.blocks(F.relu(self.norm(self.conv(images))))
        return maps
