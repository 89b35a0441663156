"""The ResNet of the CIFAR experiments: 20, 32, 44 or 56 layers, shortcuts without parameters."""

import torch.nn.functional as F
from torch import Tensor, nn

from longtail._checks import check_choice, check_integer
from longtail.kernels import Kernels, can_run
from longtail.models.backbone import average, check_images

__all__ = ["CifarResNet", "shortcut"]

_WIDTHS = (16, 32, 64)


def shortcut(maps: Tensor, channels: int, stride: int) -> Tensor:
    """The shortcut without parameters ("option A"): every ``stride``-th pixel, new channels of zeros on both sides.

    Args:
        maps: shape ``(B, D, h, w)``.
        channels: how many channels there shall be, D plus an even number.
        stride: 1 or 2.

    Returns:
        shape ``(B, channels, ceil(h / stride), ceil(w / stride))``.

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


class CifarResNet(nn.Module):
    """ResNet for small images (He et al., 2016, section 4.2): three stages of 16, 32 and 64 channels.

    A 3x3 convolution, then ``(depth - 2) / 6`` blocks a stage; the second and third stage halve the image. Weights of
    convolutions are drawn by ``kaiming_normal_``.

    Args:
        depth: layers with weights, the classifier included: 6 n + 2.
        in_channels: channels of the images.
        kernels: ``"triton"`` trains and evaluates with kernels of our own, on a GPU under autocast to bfloat16;
            everything else is torch's as ever. Parameters are the same. :func:`kernels_for
            <longtail.kernels.kernels_for>` says where it pays.

    Example:
        >>> import torch
        >>> backbone = CifarResNet(32)
        >>> backbone.maps(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64, 8, 8])
        >>> backbone(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64])
    """

    num_features = _WIDTHS[-1]
    has_maps = True

    def __init__(self, depth: int, in_channels: int = 3, *, kernels: Kernels = "torch") -> None:
        super().__init__()
        check_choice("kernels", kernels, Kernels)
        self.kernels: Kernels = kernels
        depth = check_integer("depth", depth, minimum=8)
        if depth % 6 != 2:
            raise ValueError(f"Expected `depth` to be 6 n + 2, as 20, 32, 44 or 56, but got {depth}.")
        self.depth = depth
        self.in_channels = check_integer("in_channels", in_channels, minimum=1)
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

    def maps(self, images: Tensor) -> Tensor:
        """The last feature maps, shape ``(B, 64, h, w)``: a quarter of the image's sides, rounded up."""
        check_images(images, self.in_channels, smallest=8)
        if self.kernels == "triton" and can_run(images, *(layers := self._layers())):
            from longtail.kernels.chain import run_chain  # noqa: PLC0415 - Triton is imported on use

            found: Tensor = run_chain(self, images, *layers)
            return found
        maps: Tensor = self.blocks(F.relu(self.norm(self.conv(images))))
        return maps

    def _layers(self) -> tuple[list[nn.Conv2d], list[nn.BatchNorm2d]]:
        """All convolutions, and the BatchNorm after each."""
        blocks = [block for block in self.blocks if isinstance(block, _Block)]
        convolutions = [self.conv, *(conv for block in blocks for conv in (block.conv1, block.conv2))]
        return convolutions, [self.norm, *(norm for block in blocks for norm in (block.norm1, block.norm2))]

    def pool(self, maps: Tensor) -> Tensor:
        """The global average, shape ``(B, 64)``."""
        return average(maps)

    def forward(self, images: Tensor) -> Tensor:
        """Features of shape ``(B, 64)`` of images of shape ``(B, in_channels, height, width)``."""
        return self.pool(self.maps(images))

    def extra_repr(self) -> str:
        """Depth and channels."""
        return f"depth={self.depth}, in_channels={self.in_channels}"
