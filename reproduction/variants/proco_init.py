"""ProCo whose linear classifier is initialised as ``nn.Linear`` does, as in the authors' code, on CIFAR too.

In the authors' CIFAR code (LeapLabTHU/ProCo, ProCo_cifar/models/resnet_cifar.py) ``kaiming_normal_`` is applied by the
encoder to itself (lines 8-11, 83); classifier and projection head are made later, outside it (lines 153-165).

    longtail train --plugin reproduction/variants/proco_init.py --data digits-lt --method proco-init

``--classifier-init kaiming`` is the built-in method, bit for bit. On CIFAR-10-LT pass the settings of its recipe for
`proco`: `--batch-size 256 --lr 0.3 --weight-decay 2e-4 --drop-last`. results/notes.md has the comparison.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn

from longtail.methods import find_method, param, register_method
from longtail.models import Backbone, Head, HeadSpec, LinearHead, register_head

PROCO = find_method("proco")


@dataclass(frozen=True)
class InitParams(PROCO.params):
    """Parameters of ProCo, and the initialisation of its classifier."""

    classifier_init: str = param("torch", "initialisation of the linear classifier")


def make_head(backbone: Backbone, num_classes: int, init: str = "torch") -> Head:
    """A linear head.

    Both initialisations use up the same random numbers, so that the projection head, which is drawn next, starts with
    the same weights: the runs of a seed differ in the weight of the classifier only.
    """
    head = LinearHead(backbone.num_features, num_classes, init=init)
    if init == "torch":
        nn.init.kaiming_normal_(torch.empty_like(head.linear.weight))
    return head


def head_of(params: InitParams) -> HeadSpec:
    """The classifier of these parameters."""
    return HeadSpec("linear-init", {"init": params.classifier_init})


register_head("linear-init", make_head)
register_method(
    replace(
        PROCO,
        name="proco-init",
        title="ProCo, torch's initialisation",
        summary="ProCo with the initial classifier of the authors' code",
        stages=(replace(PROCO.stages[0], head=head_of),),
        params=InitParams,
    )
)
