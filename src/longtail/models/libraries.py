"""Backbones by name: our CIFAR networks, and those of torchvision and timm without their classifier."""

import difflib
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from longtail._checks import check_integer, describe
from longtail.data.datasets.splits import Normalisation
from longtail.models.backbones import Backbone, CifarResNet, FeatureNet, SmallCNN, evaluation_mode
from longtail.models.pretrained import Pretrained, load_weights, read_normalisation

CIFAR_RESNETS = {f"resnet{depth}": depth for depth in (20, 32, 44, 56)}
_SMALL = "small-cnn"
SMALL_MODELS = (*CIFAR_RESNETS, _SMALL)
"""Networks for small images, of which many fit on a GPU at once."""
_MLP = re.compile(r"linear|mlp|mlp(-[1-9]\d*)+")


def is_small(name: str) -> bool:
    """Whether a model is one of ours: a CIFAR ResNet, the small CNN, or a model of features."""
    return name in SMALL_MODELS or is_feature_model(name)


def is_feature_model(name: str) -> bool:
    """Whether a backbone reads feature vectors: ``linear``, ``mlp`` (one hidden layer of 512), ``mlp-256-128``."""
    return _MLP.fullmatch(name) is not None


def build_backbone(
    name: str,
    *,
    in_channels: int = 3,
    pretrained: Pretrained = False,
    image_size: int | None = None,
    drop_path: float | None = None,
) -> Backbone:
    """Build a backbone by name; its parameters are drawn from torch's generator.

    Args:
        name: ``"resnet20"``, ``"resnet32"``, ``"resnet44"`` or ``"resnet56"``
            (:class:`CifarResNet <longtail.models.CifarResNet>`); ``"small-cnn"``
            (:class:`SmallCNN <longtail.models.SmallCNN>`); ``"torchvision:NAME"`` or ``"timm:NAME"``. Any other bare
            name, such as ``"resnet50"``, is looked up in torchvision, then in timm. For feature vectors: ``"linear"``,
            ``"mlp"`` or ``"mlp-256-128"`` (:class:`FeatureNet <longtail.models.FeatureNet>`).
        in_channels: channels of the images.
        pretrained: whether to download the library's weights; or a file of weights for the same network,
            ``.safetensors`` or written by ``torch.save``, which may also hold a classifier; or a folder with such a
            file, as Hugging Face and timm publish them.
        image_size: side of the images, for networks with a fixed size, such as ViTs; default: the network's.
        drop_path: probability that a residual branch is skipped in training, in the last block; it grows from 0 in the
            first. Default: the network's.

    Example:
        >>> build_backbone("resnet32").num_features
        64
    """
    if not isinstance(name, str):
        raise TypeError(f"Expected `name` to be the name of a backbone, but got {describe(name)}.")
    if not isinstance(pretrained, bool | str | PathLike):
        raise TypeError(f"Expected `pretrained` to be False, True or a file, but got {describe(pretrained)}.")
    if drop_path is not None and is_small(name):
        raise _no_drop_path(name, drop_path)
    if is_feature_model(name):
        hidden = {"linear": (), "mlp": (512,)}.get(name) if "-" not in name else map(int, name.split("-")[1:])
        return FeatureNet(in_channels, tuple(hidden or ()))
    if name not in SMALL_MODELS:
        kind, module, rest = _find(name)
        return kind(module, rest, in_channels, pretrained, image_size, drop_path)
    if pretrained is True:
        raise ValueError(f"Expected `pretrained` to be False or a file for {name}, but got True: none is published.")
    backbone = SmallCNN(in_channels) if name == _SMALL else CifarResNet(CIFAR_RESNETS[name], in_channels)
    if pretrained is not False:
        load_weights(backbone, pretrained)
    return backbone


def check_name(name: str) -> None:
    """Raise if no backbone has this name, without building one; the error is about the setting ``model``."""
    if not is_small(name):
        try:
            _find(name)
        except ValueError as error:
            raise ValueError(str(error).replace("`name`", "`model`", 1)) from None


def pretrained_normalisation(name: str, pretrained: Pretrained, channels: int = 3) -> Normalisation | None:
    """Mean and standard deviation of the images on which pretrained weights were trained.

    Args:
        name: as in :func:`build_backbone`.
        pretrained: as in :func:`build_backbone`. The model file of a run stores its own values; any other file is
            taken for the published weights of the network's library.
        channels: of the images; if the weights were trained with another number, each channel gets the mean.

    Returns:
        ``None`` without pretrained weights, or if the values are unknown.

    Example:
        >>> pretrained_normalisation("resnet50", True)
        Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    """
    if pretrained is False:
        return None
    found = None if pretrained is True else read_normalisation(pretrained)
    if found is None and name not in SMALL_MODELS:
        kind, module, rest = _find(name)
        values = kind.weights_config(module, rest)
        found = Normalisation(tuple(values.mean), tuple(values.std))
    if found is None or len(found.mean) == channels:
        return found
    return Normalisation((sum(found.mean) / len(found.mean),) * channels, (sum(found.std) / len(found.std),) * channels)


@contextmanager
def explain_size_errors(name: str, size: int) -> Iterator[None]:
    """Turn any error of a library's network for images of an unsuitable size into one sentence."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        reason = _one_line(f"{type(error).__name__} {error}")
        raise ValueError(
            f"Expected {name} to take images of {size} x {size}, but got {reason}; choose another with `image_size`."
        ) from error


class _LibraryBackbone(Backbone):
    """A network of a library without its classifier; the arguments are those of :func:`build_backbone`."""

    network: Any
    name: str
    size_options: Mapping[str, Any]
    """The options with which the library makes the network for the size of the images."""
    drop_path_option: ClassVar[str]
    """What the library calls ``drop_path``."""

    def __init__(  # noqa: PLR0917 - as in build_backbone
        self,
        library: ModuleType,
        name: str,
        in_channels: int,
        pretrained: Pretrained,
        image_size: int | None,
        drop_path: float | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_integer("in_channels", in_channels, minimum=1)
        self._drop_path = {} if drop_path is None else {self.drop_path_option: float(drop_path)}
        classifier = self._build(library, name, pretrained, image_size)
        if not isinstance(pretrained, bool):
            load_weights(self.network, pretrained, classifier, convert=self._convert)

    def _convert(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights of a file in the layout and for the image size of this network."""
        return weights

    def _build(self, library: ModuleType, name: str, pretrained: Pretrained, image_size: int | None) -> tuple[str, ...]:
        """Set ``network`` and ``num_features``; return the names of the classifier's modules in a file of weights."""
        raise NotImplementedError

    def _create(self, name: str, pretrained: Pretrained, size: Mapping[str, Any], create: Callable[[], Any]) -> None:
        """Set ``network`` to ``create()``, with a clear error for a wrong size or a failed download."""
        self.name, self.size_options = name, size
        try:
            self.network = create()
        except Exception as error:  # each library has its own errors
            if self._drop_path and isinstance(error, TypeError) and self.drop_path_option in str(error):
                raise _no_drop_path(name, self._drop_path[self.drop_path_option]) from error
            if size and not isinstance(error, OSError):
                given = ", ".join(map(str, size.values()))
                raise ValueError(
                    f"Expected `image_size` to be one that {name} supports, but got {given}: {_one_line(error)}."
                ) from error
            if pretrained is not True:
                raise
            raise OSError(
                f"Expected to download pretrained weights of {name}, but got {type(error).__name__} "
                f"({_one_line(error)[:100]}); use a local file instead (`--weights FILE`, or `pretrained='FILE'`)."
            ) from error

    def layers_of_parameters(self) -> dict[str, int]:
        """The layer of each parameter, from 0 on: a numbered module, such as ``layer1.0``, or else its own module."""
        layers: dict[str, int] = {}
        found: dict[str, int] = {}
        for name, _ in self.network.named_parameters():
            numbered = re.match(r".*?\b(\w+_)?\d+(?=\.)", name)
            layer = numbered[0] if numbered else name.rpartition(".")[0]
            found[f"network.{name}"] = layers.setdefault(layer, len(layers))
        return found


class TorchvisionBackbone(_LibraryBackbone):
    """A classification network of torchvision without its last linear layer.

    The first convolution is replaced if the images do not have 3 channels.
    """

    has_maps = False
    drop_path_option = "stochastic_depth_prob"

    def _build(self, library: ModuleType, name: str, pretrained: Pretrained, image_size: int | None) -> tuple[str, ...]:
        if pretrained is not False and self.in_channels != 3:
            raise ValueError(
                f"Expected `in_channels` to be 3 for pretrained weights of {name}, but got {self.in_channels}."
            )
        size: dict[str, Any] = {}  # an option that networks with a fixed size have
        if image_size is not None and name.startswith("vit_"):
            size["image_size"] = image_size
        elif image_size is not None and name.startswith("maxvit_"):
            size["input_size"] = (image_size, image_size)
        weights = "DEFAULT" if pretrained is True else None
        more = {**size, **self._drop_path}
        self._create(name, pretrained, size, lambda: library.models.get_model(name, weights=weights, **more))
        linear = [path for path, module in self.network.named_modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise ValueError(f"Expected `name` to be a network with a linear classifier, but got {name!r}.")
        self.num_features = self.network.get_submodule(linear[-1]).in_features
        replace_module(self.network, linear[-1], nn.Identity())
        if self.in_channels != 3:
            _replace_first_convolution(self.network, self.in_channels)
        # In these families the forward pass is the chain of the children up to the pool.
        self.has_maps = isinstance(self.network, library.models.ResNet | library.models.RegNet)
        return (linear[-1],)

    @staticmethod
    def names(library: ModuleType) -> list[str]:
        """The classification networks of torchvision, without those that have auxiliary classifiers."""
        listed = library.models.list_models(module=library.models)
        return [name for name in listed if name not in {"googlenet", "inception_v3"}]

    @staticmethod
    def weights_config(library: ModuleType, name: str) -> Any:
        """``mean`` and ``std`` of the images for the published weights."""
        return library.models.get_model_weights(name).DEFAULT.transforms()

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


class TimmBackbone(_LibraryBackbone):
    """A network of timm without its classifier. timm adapts pretrained weights to other channels and image sizes."""

    drop_path_option = "drop_path_rate"

    def _build(self, library: ModuleType, name: str, pretrained: Pretrained, image_size: int | None) -> tuple[str, ...]:
        config = self.weights_config(library, name)
        self._name, self._side = name, int(config.input_size[-1])
        size = {}
        if image_size is not None and config.fixed_input_size and image_size != self._side:
            size["img_size"] = self._side = image_size
        more: dict[str, Any] = {"num_classes": 0, "in_chans": self.in_channels, "pretrained": pretrained is True}
        more |= {**size, **self._drop_path}
        self._create(name, pretrained, size, lambda: library.create_model(name, **more))
        # Some networks have a layer between maps and classifier; the classifier reads its output.
        self.num_features = getattr(self.network, "head_hidden_size", None) or self.network.num_features
        self._has_maps: bool | None = None
        classifier = self.network.default_cfg.get("classifier") or ()
        return (classifier,) if isinstance(classifier, str) else tuple(classifier)

    def _convert(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """As timm does with published weights: other layouts, image sizes and numbers of channels."""
        module = sys.modules[type(self.network).__module__]
        convert = getattr(module, "checkpoint_filter_fn", None)
        if convert is not None:
            with suppress(Exception):  # weights of another network: the check of names says what is wrong
                weights = convert(dict(weights), self.network)
        first = self.network.pretrained_cfg.get("first_conv") if self.in_channels != 3 else None
        for name in [first] if isinstance(first, str) else first or ():
            key = f"{name}.weight"
            if key in weights and weights[key].shape[1] == 3:
                adapt = importlib.import_module("timm.models").adapt_input_conv
                weights = weights | {key: adapt(self.in_channels, weights[key])}
        return weights

    @staticmethod
    def names(library: ModuleType) -> list[str]:
        """The networks of timm."""
        return list(library.list_models())

    @staticmethod
    def weights_config(library: ModuleType, name: str) -> Any:
        """timm's description of the published weights, with ``mean`` and ``std``."""
        try:
            return library.get_pretrained_cfg(name)
        except RuntimeError as error:  # the tag after the name's dot is unknown
            raise ValueError(
                f"Expected `name` to be a network of timm, but got {name!r}: {_one_line(error)}."
            ) from error

    def layers_of_parameters(self) -> dict[str, int]:
        """The layer of each parameter, as timm groups them."""
        models = importlib.import_module("timm.models")
        if not hasattr(self.network, "group_matcher"):
            return super().layers_of_parameters()
        found = models.group_parameters(self.network, self.network.group_matcher(coarse=False), reverse=True)
        return {f"network.{name}": int(layer) for name, layer in found.items()}

    @property
    def has_maps(self) -> bool:
        """Whether the last features are maps of D channels; timm does not say, so the first call runs a forward."""
        if self._has_maps is None:
            like = next(self.network.parameters())
            with evaluation_mode(self.network), torch.no_grad(), explain_size_errors(self._name, self._side):
                maps = self.maps(like.new_zeros(1, self.in_channels, self._side, self._side))
            self._has_maps = maps.ndim == 4 and maps.shape[1] == self.num_features
        return self._has_maps

    def maps(self, images: Tensor) -> Tensor:
        """The network's output before the pool: maps of shape ``(B, D, h, w)`` if :attr:`has_maps`."""
        maps: Tensor = self.network.forward_features(images)
        return maps

    def pool(self, maps: Tensor) -> Tensor:
        """Features of shape ``(B, D)``, by the network's own pool."""
        features: Tensor = self.network.forward_head(maps, pre_logits=True)
        return features


_Library = type[TorchvisionBackbone] | type[TimmBackbone]
_LIBRARIES: dict[str, _Library] = {"torchvision": TorchvisionBackbone, "timm": TimmBackbone}
"""The libraries in which a bare name is looked up, in this order."""


def _find(name: str) -> tuple[_Library, ModuleType, str]:
    """The class of a library's networks, the library, and the network's name there."""
    library, _, rest = name.rpartition(":")
    if library and library not in _LIBRARIES:
        raise ValueError(f"Expected `name` to have 'torchvision' or 'timm' before its colon, but got {name!r}.")
    known = [] if library else list(SMALL_MODELS)
    missing = []
    for one in [library] if library else _LIBRARIES:
        try:
            module = importlib.import_module(one)
        except ImportError:
            missing.append(one)
            continue
        listed = _LIBRARIES[one].names(module)
        if rest in listed or (one == "timm" and rest.partition(".")[0] in listed):
            return _LIBRARIES[one], module, rest
        known += listed
    if library in missing or len(missing) == len(_LIBRARIES):
        raise ImportError(f"The backbone {name} needs {' or '.join(missing)}: pip install 'longtail[vision]'.")
    near = difflib.get_close_matches(rest, sorted(set(known)), n=3)
    advice = f"; close matches are {', '.join(near)}" if near else ""
    advice += "".join(f"; {one}, which may have it, is not installed" for one in missing)
    where = library or "longtail, torchvision or timm"
    raise ValueError(f"Expected `name` to be a backbone of {where}, but got {name!r}{advice}.")


def _no_drop_path(name: str, value: float) -> ValueError:
    return ValueError(f"Expected no `drop_path` with {name}, which skips no branches, but got {value:g}.")


def _one_line(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".")


def replace_module(network: nn.Module, path: str, new: nn.Module) -> None:
    """``network.set_submodule(path, new)``, which torch has since 2.5."""
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, new)


def _replace_first_convolution(network: nn.Module, in_channels: int) -> None:
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
    replace_module(network, path, new)
