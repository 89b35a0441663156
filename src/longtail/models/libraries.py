"""Networks of torchvision and timm as backbones: their classifier taken off, features and maps by our names."""

from collections.abc import Callable
from os import PathLike
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from longtail._checks import check_integer
from longtail.models.backbone import taking
from longtail.models.pretrained import load_weights

__all__ = [
    "MeanStd",
    "Pretrained",
    "TimmBackbone",
    "TorchvisionBackbone",
    "timm_mean_std",
    "timm_names",
    "torchvision_mean_std",
    "torchvision_names",
]

Pretrained = bool | str | PathLike[str]
MeanStd = tuple[tuple[float, ...], tuple[float, ...]]
"""What images are normalised by, channel by channel."""


def torchvision_names(torchvision: ModuleType) -> list[str]:
    """The classification networks of torchvision."""
    names: list[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def timm_names(timm: ModuleType) -> list[str]:
    """The networks of timm."""
    names: list[str] = timm.list_models()
    return names


def torchvision_mean_std(torchvision: ModuleType, name: str) -> MeanStd:
    """What the images were normalised by that the published weights were trained on."""
    view = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    return tuple(view.mean), tuple(view.std)


def timm_mean_std(timm: ModuleType, name: str) -> MeanStd:
    """What the images were normalised by that the published weights were trained on."""
    known = _known_by_timm(timm, name)
    return tuple(known.mean), tuple(known.std)


def _known_by_timm(timm: ModuleType, name: str) -> Any:
    """What timm says of a network's published weights."""
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # a tag after the name's dot that there is not
        raise ValueError(f"Expected `name` to be a network of timm, but got {name!r}: {_one_line(error)}.") from error


class TorchvisionBackbone(nn.Module):
    """A classification network of torchvision without its last linear layer.

    Args:
        torchvision: the package.
        name: one of its classification networks.
        in_channels: channels of the images; other than 3, the first convolution is made anew.
        pretrained: whether to download weights, or a file of them.
        image_size: side of the images, for networks that are made for one.
    """

    num_features: int
    has_maps: bool

    def __init__(
        self,
        torchvision: ModuleType,
        name: str,
        in_channels: int = 3,
        pretrained: Pretrained = False,
        image_size: int | None = None,
    ) -> None:
        super().__init__()
        in_channels = check_integer("in_channels", in_channels, minimum=1)
        if pretrained is not False and in_channels != 3:
            raise ValueError(f"Expected `in_channels` to be 3 for pretrained weights of {name}, but got {in_channels}.")
        # These two warn unless told how to start; downloaded weights start them.
        options: dict[str, Any] = {"init_weights": True} if name in _WITH_AUXILIARY and pretrained is not True else {}
        size = _torchvision_size(torchvision, name, pretrained, image_size)
        network = _created(
            name,
            pretrained,
            lambda weights, **sized: torchvision.models.get_model(name, weights=weights, **options, **sized),
            (None, "DEFAULT"),
            size,
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
        pretrained: whether to download weights, which timm fits to the images' size, or a file of them.
        image_size: side of the images, for networks that are made for one.
    """

    num_features: int

    def __init__(
        self,
        timm: ModuleType,
        name: str,
        in_channels: int = 3,
        pretrained: Pretrained = False,
        image_size: int | None = None,
    ) -> None:
        super().__init__()
        in_channels = check_integer("in_channels", in_channels, minimum=1)
        self.in_channels = in_channels
        known = _known_by_timm(timm, name)
        self._name = name
        self._side: int = known.input_size[-1]
        size = {}
        if image_size is not None and known.fixed_input_size and image_size != self._side:
            size["img_size"] = self._side = image_size
        self.network = _created(
            name,
            pretrained,
            lambda weights, **sized: timm.create_model(
                name, num_classes=0, in_chans=in_channels, pretrained=weights, **sized
            ),
            (False, True),
            size,
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
            like = next(self.network.parameters())
            training = self.network.training
            self.network.eval()
            with torch.no_grad(), taking(self._name, self._side):
                maps = self.maps(like.new_zeros(1, self.in_channels, self._side, self._side))
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


_SIZED: dict[str, Callable[[int], dict[str, Any]]] = {
    "vit_": lambda side: {"image_size": side},
    "maxvit_": lambda side: {"input_size": (side, side)},
}
"""How torchvision's networks that are made for one size of image are told it, by how their names begin."""


def _torchvision_size(
    torchvision: ModuleType, name: str, pretrained: Pretrained, image_size: int | None
) -> dict[str, Any]:
    """What makes a network of torchvision one for images of this size; nothing where it takes any."""
    told = next((option for prefix, option in _SIZED.items() if name.startswith(prefix)), None)
    if told is None or image_size is None:
        return {}
    if pretrained is not True:
        return told(image_size)
    side = torchvision.models.get_model_weights(name).DEFAULT.meta["min_size"][0]
    if side != image_size:
        raise ValueError(
            f"Expected `image_size` to be {side} for pretrained weights of torchvision's {name}, but got {image_size}; "
            "timm fits its networks' weights to other sizes."
        )
    return {}


def _created(
    name: str, pretrained: Pretrained, create: Callable[..., Any], weights: tuple[Any, Any], size: dict[str, Any]
) -> Any:
    """A network by ``create``, with downloaded weights or without: ``weights`` says how to ask for either."""
    without, published = weights
    if pretrained is not True or size:  # whose weights are asked for only if it can be made for that size
        try:
            network = create(without, **size)
        except Exception as error:
            if not size:
                raise
            told = ", ".join(map(str, size.values()))
            raise ValueError(
                f"Expected `image_size` to be one that {name} can be made for, but got {told}: {_one_line(error)}."
            ) from error
        if pretrained is not True:
            return network
    try:
        return create(published, **size)
    except Exception as error:  # every library has its own for a network that does not answer
        raise OSError(
            f"Expected to download pretrained weights of {name}, but got {type(error).__name__} "
            f"({_one_line(error)[:100]}); a local file can be given instead "
            "(`--weights FILE`, in Python `pretrained='FILE'`)."
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


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
