"""Backbones by name: the CIFAR networks, the small one, and all that torchvision and timm have."""

import difflib
import importlib
from collections.abc import Callable
from os import PathLike
from types import ModuleType

from longtail._checks import told
from longtail.models.backbone import Backbone
from longtail.models.cifar_resnet import CifarResNet
from longtail.models.libraries import (
    MeanStd,
    Pretrained,
    TimmBackbone,
    TorchvisionBackbone,
    timm_mean_std,
    timm_names,
    torchvision_mean_std,
    torchvision_names,
)
from longtail.models.pretrained import load_weights
from longtail.models.small import SmallCNN

__all__ = ["CIFAR_RESNETS", "SMALL_MODELS", "build_backbone", "check_name", "published_mean_std"]

CIFAR_RESNETS = {f"resnet{depth}": depth for depth in (20, 32, 44, 56)}
_SMALL = "small-cnn"
SMALL_MODELS = (*CIFAR_RESNETS, _SMALL)
"""Those for small images, of which many fit on a GPU at once."""

_Library = tuple[Callable[[ModuleType], list[str]], Callable[..., Backbone], Callable[[ModuleType, str], MeanStd]]

# Where a bare name is looked for, in this order: what each library has, as a backbone, and what its weights expect.
_LIBRARIES: dict[str, _Library] = {
    "torchvision": (torchvision_names, TorchvisionBackbone, torchvision_mean_std),
    "timm": (timm_names, TimmBackbone, timm_mean_std),
}


def build_backbone(
    name: str, *, in_channels: int = 3, pretrained: Pretrained = False, image_size: int | None = None
) -> Backbone:
    """A backbone by name.

    Args:
        name: ``"resnet20"``, ``"resnet32"``, ``"resnet44"`` or ``"resnet56"``
            (:class:`CifarResNet <longtail.models.CifarResNet>`); ``"small-cnn"``
            (:class:`SmallCNN <longtail.models.SmallCNN>`); ``"torchvision:NAME"`` or ``"timm:NAME"``; any other bare
            name, such as ``"resnet50"``, is torchvision's where torchvision has it, else timm's.
        in_channels: channels of the images.
        pretrained: whether to download the library's weights; or a file of weights for the same network,
            ``.safetensors`` or of ``torch.save``, in which only the classifier may be too many.
        image_size: side of the images, for networks that are made for one size, as ViTs are; default: the network's.

    Returns:
        the backbone, its parameters drawn from torch's generator.

    Example:
        >>> build_backbone("resnet32").num_features
        64
    """
    if not isinstance(name, str):
        raise TypeError(f"Expected `name` to be the name of a backbone, but got {told(name)}.")
    if not isinstance(pretrained, bool | str | PathLike):
        raise TypeError(f"Expected `pretrained` to be False, True or a file, but got {told(pretrained)}.")
    if _is_ours(name):
        if pretrained is True:
            raise ValueError(
                f"Expected `pretrained` to be False or a file for {name}, but got True: none is published."
            )
        backbone = SmallCNN(in_channels) if name == _SMALL else CifarResNet(CIFAR_RESNETS[name], in_channels)
        if pretrained is not False:
            load_weights(backbone, pretrained)
        return backbone
    (_, create, _), module, rest = _found(name)
    return create(module, rest, in_channels, pretrained, image_size)


def published_mean_std(name: str) -> MeanStd | None:
    """What images are normalised by for a backbone's published weights; ``None`` where none are published.

    Args:
        name: as in :func:`build_backbone`.

    Example:
        >>> published_mean_std("resnet50")
        ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    """
    if _is_ours(name):
        return None
    (_, _, mean_std), module, rest = _found(name)
    return mean_std(module, rest)


def check_name(name: str) -> None:
    """Refuse a backbone that there is not, without making one."""
    if not _is_ours(name):
        _found(name)


def _is_ours(name: str) -> bool:
    return name in CIFAR_RESNETS or name == _SMALL


def _found(name: str) -> tuple[_Library, ModuleType, str]:
    """The library that has a backbone, and what it is called there."""
    library, _, rest = name.rpartition(":")
    if library and library not in _LIBRARIES:
        raise ValueError(f"Expected `name` to have 'torchvision' or 'timm' before its colon, but got {name!r}.")
    installed = [(one, module) for one in _LIBRARIES if library in ("", one) and (module := _imported(one))]
    if not installed:
        missing = library or "torchvision or timm"
        raise ImportError(f"The backbone {name} needs {missing}: pip install 'longtail[vision]'.")
    known = [] if library else [*CIFAR_RESNETS, _SMALL]
    for one, module in installed:
        listed = _LIBRARIES[one][0](module)
        if rest in listed or (one == "timm" and rest.partition(".")[0] in listed):
            return _LIBRARIES[one], module, rest
        known += listed
    near = difflib.get_close_matches(rest, sorted(set(known)), n=3)
    advice = f"; near are {', '.join(near)}" if near else ""
    for one in set(_LIBRARIES) - {one for one, _ in installed} if not library else ():
        advice += f"; {one}, which may have it, is not installed"
    where = library or "longtail, torchvision or timm"
    raise ValueError(f"Expected `name` to be a backbone of {where}, but got {name!r}{advice}.")


def _imported(library: str) -> ModuleType | None:
    """The library, or nothing where it is not installed."""
    try:
        return importlib.import_module(library)
    except ImportError:
        return None
