"""Networks: backbones by name, registered heads, and the model that joins them."""

from longtail.models.backbones import Backbone, CifarResNet, FeatureNet, SmallCNN
from longtail.models.heads import (
    HEADS,
    ClassScaledHead,
    CosineHead,
    Head,
    HeadSpec,
    LinearHead,
    Outputs,
    ResLTHead,
    build_head,
    register_head,
)
from longtail.models.libraries import (
    CIFAR_RESNETS,
    build_backbone,
    check_name,
    is_feature_model,
    is_small,
    pretrained_normalisation,
)
from longtail.models.model import Model, Projector, build_model, check_takes, replace_head

__all__ = [
    "CIFAR_RESNETS",
    "HEADS",
    "Backbone",
    "CifarResNet",
    "ClassScaledHead",
    "CosineHead",
    "FeatureNet",
    "Head",
    "HeadSpec",
    "LinearHead",
    "Model",
    "Outputs",
    "Projector",
    "ResLTHead",
    "SmallCNN",
    "build_backbone",
    "build_head",
    "build_model",
    "check_name",
    "check_takes",
    "is_feature_model",
    "is_small",
    "pretrained_normalisation",
    "register_head",
    "replace_head",
]
