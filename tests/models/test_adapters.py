"""Adapters beside the MLP of each transformer block: AdaptFormer's formula, with factor 1, in timm and torchvision."""

import numpy as np
import pytest
import torch

from longtail.models import build_model
from longtail.models.tuning import Adapter, add_adapters

NETWORKS = {
    "timm:test_vit": 6,
    "timm:deit_tiny_patch16_224": 12,
    "timm:swin_tiny_patch4_window7_224": 12,
    "timm:mixer_s32_224": 8,
    "timm:eva02_tiny_patch14_224": 12,
    "timm:pvt_v2_b0": 8,  # its MLPs take the size of the maps too
    "torchvision:vit_b_32": 12,
    "torchvision:swin_t": 12,
}


def adapters_of(model):
    return [module for module in model.modules() if isinstance(module, Adapter)]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_at_first_unchanged_and_every_adapter_is_used(name):
    model = build_model(name, 3).eval()
    size = 160 if name == "timm:test_vit" else 224
    images = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(images).logits
    state = torch.get_rng_state()
    add_adapters(model, 4, seed=1)
    assert torch.get_rng_state().equal(state)
    with torch.no_grad():
        assert model(images).logits.equal(before)
    trained = model.trainable("adapter")
    model(images).logits.square().sum().backward()
    added = adapters_of(model)
    assert len(added) == NETWORKS[name]
    assert len(trained) == 4 * len(added) + 2  # and the head
    assert all(module.adapter[2].weight.grad.any() for module in added)
    assert sum(parameter.grad is not None for parameter in model.parameters()) == len(trained)


def test_an_adapter_is_the_published_formula():
    torch.manual_seed(0)
    adapter = Adapter(torch.nn.Linear(6, 6), 6, 2).double()
    down, _, up = adapter.adapter
    assert down.weight.abs().max() <= 6**-0.5  # as torch draws nn.Linear
    assert not down.bias.any()
    torch.nn.init.normal_(up.weight)
    x = np.random.default_rng(0).normal(size=(5, 6))
    mlp = x @ adapter.mlp.weight.detach().numpy().T + adapter.mlp.bias.detach().numpy()
    change = np.maximum(x @ down.weight.detach().numpy().T, 0) @ up.weight.detach().numpy().T
    np.testing.assert_allclose(adapter(torch.tensor(x)).detach(), mlp + change, rtol=1e-12)
