"""Networks: backbones by name, the heads of the methods, and the model that puts them together."""

from longtail.models.backbone import Backbone
from longtail.models.build import HeadName, build_head, build_model, check_takes, replace_head
from longtail.models.cifar_resnet import CifarResNet
from longtail.models.heads import ClassScaledHead, CosineHead, Head, LinearHead
from longtail.models.model import Model
from longtail.models.normalisation import pretrained_normalisation
from longtail.models.outputs import Outputs
from longtail.models.projection import Projector, PrototypeProjector
from longtail.models.registry import build_backbone
from longtail.models.reslt import ResLTHead
from longtail.models.small import SmallCNN

__all__ = [
    "Backbone",
    "CifarResNet",
    "ClassScaledHead",
    "CosineHead",
    "Head",
    "HeadName",
    "LinearHead",
    "Model",
    "Outputs",
    "Projector",
    "PrototypeProjector",
    "ResLTHead",
    "SmallCNN",
    "build_backbone",
    "build_head",
    "build_model",
    "check_takes",
    "pretrained_normalisation",
    "replace_head",
]
