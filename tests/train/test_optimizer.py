"""Groups of parameters: layer-wise learning rates, the backbone's rate, weight decay of biases and norms; clipping."""

import numpy as np
import pytest
import timm
import torch
from tests.train.conftest import recipe_for
from timm.optim import list_optimizers, param_groups_layer_decay

from longtail.models import build_model
from longtail.train import Trainer
from longtail.train.optimizer import (
    check_optimizer,
    load_optimizer,
    make_optimizer,
    optimizer_tensors,
    parameter_groups,
)


def scales(model, **options):
    """Return the factor of the learning rate and the weight decay of each parameter."""
    usual = {"weight_decay": 0.1, "decay_all": False}
    groups = parameter_groups(model, list(model.parameters()), **usual | options)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {names[id(p)]: (group["lr_scale"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert len(found) == sum(len(group["params"]) for group in groups) == len(names)
    return found


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "convnext_atto", "efficientnet_lite0", "resnet18"])
def test_layer_decay_is_that_of_timm(name):
    """timm's own groups of its network with a classifier; ours is the head."""
    size = {"img_size": 32} if name.startswith("vit") else {}
    network = timm.create_model(name, num_classes=7, **size)
    ours = scales(build_model(f"timm:{name}", 7, image_size=32 if size else None), layer_decay=0.5)
    names = {id(parameter): key for key, parameter in network.named_parameters()}
    expected = {}
    for group in param_groups_layer_decay(network, weight_decay=0.1, layer_decay=0.5):
        expected |= {names[id(p)]: (group["lr_scale"], group["weight_decay"]) for p in group["params"]}
    depths = {scale for scale, _ in ours.values()}
    assert len(depths) > 3
    backbone = {key.removeprefix("backbone.network."): value for key, value in ours.items() if "network." in key}
    # timm counts some last layers of its network together with the classifier; the ratios between layers agree.
    ratios = {key: value[0] / expected[key][0] for key, value in backbone.items()}
    assert set(np.round(list(ratios.values()), 9)) <= {1.0, 0.5}
    assert all(value[1] == expected[key][1] for key, value in backbone.items())
    assert {value[0] for key, value in ours.items() if key.startswith("head.")} == {1.0}


def test_layers_of_our_networks_and_of_torchvision():
    for name in ("resnet20", "torchvision:resnet18", "torchvision:vgg11", "mlp-8-8", "small-cnn"):
        model = build_model(name, 5, in_channels=3)
        layers = model.layers_of_parameters()
        assert list(layers) == [key for key, _ in model.named_parameters()]
        order = list(layers.values())
        assert order == sorted(order)  # from the input to the head
        assert order[0] == 0
        assert {layer for key, layer in layers.items() if key.startswith("head.")} == {max(order)}


def test_rate_of_the_backbone():
    found = scales(build_model("small-cnn", 5), backbone_lr=0.1, decay_all=True)
    assert {value for key, value in found.items() if key.startswith("backbone.")} == {(0.1, 0.1)}
    assert {value for key, value in found.items() if key.startswith("head.")} == {(1.0, 0.1)}


def test_a_backbone_with_rate_zero_does_not_change(tmp_path):
    trainer = Trainer(recipe_for("softmax", epochs=1, backbone_lr=0.0, weight_decay=0.0), tmp_path)
    model = trainer.stages.build()
    before = {name: value.clone() for name, value in model.named_parameters()}
    running = trainer.stages.start(model, 0)
    running.step.set_rate(0.1)
    for _ in running.driver.epoch(0, 0, 0):
        pass
    changed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if name.startswith("head.")}


def test_clipped_gradient_has_the_norm(tmp_path):
    """With SGD without momentum, the first step is as long as the clipped gradient times the rate."""
    lengths = {}
    for clip in (0.0, 0.01):
        settings = {"epochs": 1, "momentum": 0.0, "weight_decay": 0.0, "clip_grad": clip}
        trainer = Trainer(recipe_for("softmax", **settings), tmp_path / str(clip))
        model = trainer.stages.build()
        before = torch.cat([value.detach().flatten().clone() for value in model.parameters()])
        running = trainer.stages.start(model, 0)
        running.step.set_rate(1.0)
        next(running.driver.epoch(0, 0, 0))
        after = torch.cat([value.detach().flatten() for value in model.parameters()])
        lengths[clip] = float((after - before).norm())
    assert lengths[0.01] == pytest.approx(0.01, rel=1e-3)
    assert lengths[0.0] > 0.1


def test_blocks_of_a_vit_of_torchvision_are_layers():
    """Its class token is a parameter of the network itself."""
    layers = build_model("torchvision:vit_b_16", 5).layers_of_parameters()
    blocks = [layers[f"backbone.network.encoder.layers.encoder_layer_{number}.ln_1.weight"] for number in range(12)]
    assert blocks == sorted(set(blocks))
    assert layers["backbone.network.class_token"] < blocks[0]


# --- timm's optimisers


@pytest.mark.parametrize("name", list_optimizers())
def test_optimisers_of_timm_continue_where_they_stopped(name):
    """Bit for bit, from a checkpoint without pickle; others are refused before training."""
    if name.startswith(("bnb", "fused", "kron", "adahessian")):  # CUDA, random numbers, second derivatives
        with pytest.raises(ValueError, match=name):
            check_optimizer(name)
        return

    def made():
        generator = torch.Generator().manual_seed(0)
        parameters = [
            torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 3), (3,), (2, 3, 3, 3))
        ]
        groups = [{"params": parameters[::2], "weight_decay": 0.1}, {"params": parameters[1:2], "weight_decay": 0.0}]
        return parameters, make_optimizer(groups, name)

    def take(parameters, optimizer, steps):
        for number in steps:
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (number + 1)
            for place, parameter in enumerate(parameters):
                generator = torch.Generator().manual_seed(100 * place + number)
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()

    parameters, optimizer = made()
    take(parameters, optimizer, range(4))
    kept = {key: value.clone() for key, value in optimizer_tensors(optimizer).items()}
    weights = [parameter.detach().clone() for parameter in parameters]
    take(parameters, optimizer, range(4, 9))
    again, other = made()
    with torch.no_grad():
        for parameter, value in zip(again, weights, strict=True):
            parameter.copy_(value)
    load_optimizer(other, kept)
    take(again, other, range(4, 9))
    assert all(torch.equal(one, two) for one, two in zip(parameters, again, strict=True))
    assert not any(torch.equal(one, two) for one, two in zip(parameters, weights, strict=True))
