"""A small network for tiny images: what tests and demonstrations train in a second on a CPU."""

from torch import Tensor, nn

from longtail._checks import check_integer
from longtail.models.backbone import average, check_images

__all__ = ["SmallCNN"]


class SmallCNN(nn.Module):
    """Three 3x3 convolutions of 16, 32 and 64 channels with BatchNorm and ReLU, about 23,000 parameters.

    The second and the third halve the image, so that the digits (8 x 8) end as maps of 2 x 2.

    Args:
        in_channels: channels of the images.

    Example:
        >>> import torch
        >>> SmallCNN(in_channels=1)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 64])
    """

    num_features = 64
    has_maps = True

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
        check_images(images, self.in_channels, smallest=4)
        maps: Tensor = self.layers(images)
        return maps

    def pool(self, maps: Tensor) -> Tensor:
        """The global average, shape ``(B, 64)``."""
        return average(maps)

    def forward(self, images: Tensor) -> Tensor:
        """Features of shape ``(B, 64)`` of images of shape ``(B, in_channels, height, width)``."""
        return self.pool(self.maps(images))
