"""The model: a backbone, a classifier, and projections where a method compares features."""

from typing import Literal

from torch import Tensor, nn

from longtail._checks import check_choice
from longtail.models.backbone import Backbone, check_backbone
from longtail.models.heads import Head
from longtail.models.outputs import Outputs
from longtail.models.projection import Projector

__all__ = ["Model", "Part"]

Part = Literal["all", "classifier"]
"""What of a model trains."""


class Model(nn.Module):
    """Images to logits and features, and to projections and prototypes where there are projectors.

    Args:
        backbone: an ``nn.Module`` that is a :class:`Backbone <longtail.models.Backbone>`.
        head: the classifier, for as many features as the backbone has.
        projector: of the features, for contrastive methods.
        prototypes: a projector of the classifier's weights, onto the sphere of ``projector``.

    Example:
        >>> import torch
        >>> from longtail.models import LinearHead, SmallCNN
        >>> model = Model(SmallCNN(in_channels=1), LinearHead(64, 10))
        >>> outputs = model(torch.zeros(2, 1, 8, 8))
        >>> outputs.logits.shape, outputs.features.shape, outputs.extra
        (torch.Size([2, 10]), torch.Size([2, 64]), {})
    """

    backbone: Backbone
    head: Head
    projector: Projector | None
    prototypes: Projector | None

    def __init__(
        self, backbone: Backbone, head: Head, *, projector: Projector | None = None, prototypes: Projector | None = None
    ) -> None:
        super().__init__()
        check_backbone(backbone)
        check_fit(backbone, head)
        for name, one in (("projector", projector), ("prototypes", prototypes)):
            if one is not None and one.num_features != backbone.num_features:
                raise ValueError(
                    f"Expected `{name}` to read {backbone.num_features} features, as `backbone` has, "
                    f"but got {one.num_features}."
                )
        if prototypes is not None and (projector is None or projector.size != prototypes.size):
            found = "none" if projector is None else f"{projector.size} and {prototypes.size}"
            raise ValueError(f"Expected `prototypes` to come with a `projector` of the same size, but got {found}.")
        self.backbone = backbone
        self.head = head
        self.projector = projector
        self.prototypes = prototypes

    @property
    def num_classes(self) -> int:
        """C."""
        return self.head.num_classes

    def forward(self, images: Tensor, *, project: bool = True) -> Outputs:
        """One pass over all views.

        Args:
            images: shape ``(V * B, channels, height, width)``, view after view.
            project: whether projections and prototypes are computed too, where the model has them; predictions do not
                need them.

        Returns:
            :class:`Outputs <longtail.models.Outputs>`, one row an image.
        """
        if self.head.wants_maps:
            maps = self.backbone.maps(images)
            outputs: Outputs = self.head(maps)
            # What contrast compares is the backbone's features, not what the branches make of them.
            features = self.backbone.pool(maps) if project and self.projector is not None else outputs.features
        else:
            features = self.backbone(images)
            outputs = self.head(features)
        if not project or self.projector is None:
            return outputs
        extra = outputs.extra | {"projection": self.projector(features)}
        if self.prototypes is not None:
            extra["prototypes"] = self.prototypes(self.head.class_vectors)
        return Outputs(outputs.logits, outputs.features, extra)

    def trainable(self, part: Part) -> list[nn.Parameter]:
        """Freeze everything but ``part``, and give its parameters, for an optimiser.

        A frozen backbone's BatchNorm statistics still move in ``train()``, as they do in cRT and LWS; only ``eval()``
        holds them.

        Args:
            part: ``"all"``, or ``"classifier"``: the head's ``classifier_parameters()``.
        """
        check_choice("part", part, Part)
        chosen = list(self.parameters()) if part == "all" else self.head.classifier_parameters()
        wanted = {id(parameter) for parameter in chosen}
        for parameter in self.parameters():
            parameter.requires_grad_(id(parameter) in wanted)
        return chosen


def check_fit(backbone: Backbone, head: Head) -> None:
    """``head`` must read what ``backbone`` gives."""
    if head.num_features != backbone.num_features:
        raise ValueError(
            f"Expected `head` to read {backbone.num_features} features, as `backbone` has, but got {head.num_features}."
        )
    if head.wants_maps and not backbone.has_maps:
        raise ValueError(
            f"Expected `backbone` to give feature maps, which {type(head).__name__} reads, but got "
            f"{type(backbone).__name__} without; a ResNet has them."
        )
