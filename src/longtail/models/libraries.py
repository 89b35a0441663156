"""Networks of torchvision and timm as backbones: their classifier taken off, features and maps by our names."""

from os import PathLike
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from longtail._arguments import check_integer
from longtail.models.pretrained import load_weights

__all__ = ["TimmBackbone", "TorchvisionBackbone", "timm_names", "torchvision_names"]

Pretrained = bool | str | PathLike[str]


def torchvision_names(torchvision: ModuleType) -> list[str]:
    """The classification networks of torchvision."""
    names: list[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def timm_names(timm: ModuleType) -> list[str]:
    """The networks of timm."""
    names: list[str] = timm.list_models()
    return names


class TorchvisionBackbone(nn.Module):
    """A classification network of torchvision without its last linear layer.

    Args:
        torchvision: the package.
        name: one of its classification networks.
        in_channels: channels of the images; other than 3, the first convolution is made anew.
        pretrained: whether to download weights, or a file of them.
    """

    num_features: int
    has_maps: bool

    def __init__(
        self, torchvision: ModuleType, name: str, in_channels: int = 3, pretrained: Pretrained = False
    ) -> None:
        super().__init__()
        in_channels = check_integer("in_channels", in_channels, minimum=1)
        if pretrained is not False and in_channels != 3:
            raise ValueError(f"Expected `in_channels` to be 3 for pretrained weights of {name}, but got {in_channels}.")
        # These two warn unless told how to start; downloaded weights start them.
        options = {"init_weights": True} if name in _WITH_AUXILIARY and pretrained is not True else {}
        network = _created(
            name, pretrained, lambda weights: torchvision.models.get_model(name, weights=weights, **options), "DEFAULT"
        )
        if name in _WITH_AUXILIARY:  # further classifiers on the way, whose logits training would give too
            network.aux_logits = False
            network.aux1 = network.aux2 = network.AuxLogits = None
        linear = [path for path, module in network.named_modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise ValueError(f"Expected `name` to be a network with a linear classifier, but got {name!r}.")
        self.num_features = network.get_submodule(linear[-1]).in_features
        network.set_submodule(linear[-1], nn.Identity())
        if in_channels != 3:
            _replace_first_convolution(network, in_channels)
        if not isinstance(pretrained, bool):
            load_weights(network, pretrained, (linear[-1], *_AUXILIARY))
        self.network = network
        # The families whose forward is the chain of its children up to the pool.
        self.has_maps = isinstance(network, torchvision.models.ResNet | torchvision.models.RegNet)

    def maps(self, images: Tensor) -> Tensor:
        """The last feature maps, shape ``(B, D, h, w)``, of a ResNet, ResNeXt or RegNet."""
        if not self.has_maps:
            raise TypeError(f"Expected a network with feature maps, but got {type(self.network).__name__}.")
        for name, child in self.network.named_children():
            if name == "avgpool":
                break
            images = child(images)
        return images

    def pool(self, maps: Tensor) -> Tensor:
        """The global average, shape ``(B, D)``."""
        pooled: Tensor = self.network.avgpool(maps).flatten(1)
        return pooled

    def forward(self, images: Tensor) -> Tensor:
        """Features of shape ``(B, D)`` of images of shape ``(B, in_channels, height, width)``."""
        features: Tensor = self.network(images)
        return features


class TimmBackbone(nn.Module):
    """A network of timm without its classifier.

    Args:
        timm: the package.
        name: one of its networks.
        in_channels: channels of the images; timm fits pretrained first layers to it.
        pretrained: whether to download weights, or a file of them.
    """

    num_features: int

    def __init__(self, timm: ModuleType, name: str, in_channels: int = 3, pretrained: Pretrained = False) -> None:
        super().__init__()
        in_channels = check_integer("in_channels", in_channels, minimum=1)
        self.in_channels = in_channels
        self.network = _created(
            name,
            pretrained,
            lambda weights: timm.create_model(name, num_classes=0, in_chans=in_channels, pretrained=weights),
            True,
        )
        # Some have a layer between the maps and the classifier: what the classifier reads is as long as that gives.
        self.num_features = getattr(self.network, "head_hidden_size", None) or self.network.num_features
        if not isinstance(pretrained, bool):
            classifier = self.network.default_cfg.get("classifier") or ()
            load_weights(self.network, pretrained, (classifier,) if isinstance(classifier, str) else tuple(classifier))
        self._has_maps: bool | None = None

    @property
    def has_maps(self) -> bool:
        """Whether its last features are maps of D channels: found by a forward, once, because timm does not say."""
        if self._has_maps is None:
            side = self.network.default_cfg.get("input_size", (3, 224, 224))[-1]
            like = next(self.network.parameters())
            training = self.network.training
            self.network.eval()
            with torch.no_grad():
                maps = self.maps(like.new_zeros(1, self.in_channels, side, side))
            self.network.train(training)
            self._has_maps = maps.ndim == 4 and maps.shape[1] == self.num_features
        return self._has_maps

    def maps(self, images: Tensor) -> Tensor:
        """What the network has before it pools; maps of shape ``(B, D, h, w)`` where :attr:`has_maps` says so."""
        maps: Tensor = self.network.forward_features(images)
        return maps

    def pool(self, maps: Tensor) -> Tensor:
        """Features of shape ``(B, D)``, as the network pools."""
        features: Tensor = self.network.forward_head(maps, pre_logits=True)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Features of shape ``(B, D)`` of images of shape ``(B, in_channels, height, width)``."""
        return self.pool(self.maps(images))


_WITH_AUXILIARY = ("googlenet", "inception_v3")
_AUXILIARY = ("aux1", "aux2", "AuxLogits")


def _created(name: str, pretrained: Pretrained, create: Any, weights: Any) -> Any:
    """``create(weights)`` with downloaded weights, or without."""
    if pretrained is not True:
        return create(None if weights == "DEFAULT" else False)
    try:
        return create(weights)
    except Exception as error:  # every library has its own for a network that does not answer
        text = " ".join(str(error).split())
        raise OSError(
            f"Expected to download pretrained weights of {name}, but got {type(error).__name__} ({text[:100]}); "
            "a local file can be given instead, as pretrained='path/to/file.safetensors'."
        ) from error


def _replace_first_convolution(network: nn.Module, in_channels: int) -> None:
    """A first convolution that reads ``in_channels``, otherwise like the one there."""
    path, old = next((path, each) for path, each in network.named_modules() if isinstance(each, nn.Conv2d))
    new = nn.Conv2d(
        in_channels,
        old.out_channels,
        old.kernel_size,  # type: ignore[arg-type]
        old.stride,  # type: ignore[arg-type]
        old.padding,  # type: ignore[arg-type]
        bias=old.bias is not None,
    )
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    network.set_submodule(path, new)
