"""The classifiers in float64 against numpy, and what all of them promise."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from longtail.losses import LDAMLoss
from longtail.models import (
    ClassScaledHead,
    CosineHead,
    Head,
    LinearHead,
    Projector,
    PrototypeProjector,
    ResLTHead,
    build_head,
)
from longtail.posthoc import tau_normalize, tau_normalize_logits

NAMES = ["linear", "cosine", "class-scaled", "reslt-cifar", "reslt-imagenet"]
D, C, B = 6, 4, 5


def stirred(module: nn.Module) -> nn.Module:
    """In float64, every parameter and statistic away from where it started."""
    module = module.double()
    for tensor in [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]:
        nn.init.uniform_(tensor, 0.2, 1.2)
    for parameter in module.parameters():
        parameter.data.mul_(torch.randn_like(parameter).sign())
    return module


def inputs_for(head: Head) -> Tensor:
    shape = (B, D, 3, 2) if head.wants_maps else (B, D)
    return torch.randn(shape, dtype=torch.float64)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def test_linear() -> None:
    head = stirred(LinearHead(D, C))
    x = inputs_for(head)
    np.testing.assert_allclose(array(head(x).logits), array(x) @ array(head.weight).T + array(head.bias), rtol=1e-12)
    assert LinearHead(D, C, bias=False).bias is None


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_cosine(scale: float) -> None:
    head = stirred(CosineHead(D, C, scale))
    x = inputs_for(head)
    rows, classes = array(x), array(head.class_vectors)
    cosines = rows @ classes.T / np.linalg.norm(rows, axis=1)[:, None] / np.linalg.norm(classes, axis=1)
    np.testing.assert_allclose(array(head(x).logits), scale * cosines, rtol=1e-12)
    assert head.weight is None
    assert head.bias is None


def test_cosine_starts_with_unit_vectors() -> None:
    torch.testing.assert_close(CosineHead(64, 100).class_vectors.norm(dim=1), torch.ones(100))


def test_ldam_wants_the_cosine_head_of_scale_one() -> None:
    head, x = CosineHead(D, C, scale=1), torch.randn(B, D)
    target = torch.tensor([0, 1, 2, 3, 0])
    counts = [1000, 100, 10, 1]
    margins = 0.5 * np.array(counts) ** -0.25
    z = head(x).logits.detach().double().numpy()
    z = 30 * (z - np.eye(C)[target] * margins)
    expected = np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(B), target])
    assert LDAMLoss(counts)(head(x).logits, target).item() == pytest.approx(expected, rel=1e-5)


def test_class_scaled() -> None:
    head = stirred(ClassScaledHead(D, C))
    x = inputs_for(head)
    plain = array(x) @ array(head.linear.weight).T + array(head.linear.bias)
    np.testing.assert_allclose(array(head(x).logits), array(head.scales) * plain, rtol=1e-12)


def test_class_scaled_starts_as_the_linear_head() -> None:
    head, x = ClassScaledHead(D, C), torch.randn(B, D)
    assert torch.equal(head(x).logits, head.linear(x))


def moments(maps: np.ndarray, norm: nn.BatchNorm2d, training: bool) -> tuple[np.ndarray, np.ndarray]:
    if training:
        return maps.mean((0, 2, 3)), maps.var((0, 2, 3))
    return array(norm.running_mean), array(norm.running_var)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("branches", [2, 3])
def test_reslt_for_cifar(branches: int, training: bool) -> None:
    head = stirred(ResLTHead(D, C, "cifar", branches)).train(training)
    maps = inputs_for(head)
    mean, var = moments(array(maps), head.norm, training)
    expected = []
    for scale, shift in zip(array(head.scales), array(head.shifts), strict=True):
        normed = (array(maps) - mean[:, None, None]) / np.sqrt(var + 1e-5)[:, None, None]
        pooled = (normed * scale[:, None, None] + shift[:, None, None]).mean((2, 3))
        expected.append(pooled @ array(head.linear.weight).T + array(head.linear.bias))
    outputs = head(maps)
    np.testing.assert_allclose(array(outputs.extra["branches"]), expected, rtol=1e-10)
    np.testing.assert_allclose(array(outputs.logits), np.sum(expected, axis=0), rtol=1e-10)


def test_reslt_for_cifar_is_three_batchnorms() -> None:
    """As published: gradients, too, and the statistics that evaluation uses."""
    head = stirred(ResLTHead(D, C))
    norms = [nn.BatchNorm2d(D).double() for _ in range(3)]
    for index, norm in enumerate(norms):
        norm.load_state_dict(
            {**head.norm.state_dict(), "weight": head.scales.data[index], "bias": head.shifts.data[index]}
        )
    for training in (True, True, False):
        for module in (head, *norms):
            module.train(training)
        ours = inputs_for(head).requires_grad_()
        theirs = ours.detach().clone().requires_grad_()
        pooled = torch.cat([norm(theirs) for norm in norms]).mean((2, 3))
        expected = head.linear(pooled).reshape(3, B, C)
        branches = head(ours).extra["branches"]
        torch.testing.assert_close(branches, expected, rtol=1e-10, atol=1e-12)
        head.zero_grad()
        (branches**2).sum().backward()
        scales = head.scales.grad
        for norm in norms:
            norm.zero_grad()
        (expected**2).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(scales, torch.stack([n.weight.grad for n in norms]), rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(head.norm.running_var, norms[2].running_var, rtol=1e-12, atol=0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("branches", [2, 3])
def test_reslt_for_imagenet(branches: int, training: bool) -> None:
    head = stirred(ResLTHead(D, C, "imagenet", branches)).train(training)
    maps = inputs_for(head)
    wide = np.einsum("bihw,oi->bohw", array(maps), array(head.conv.weight)[:, :, 0, 0])
    mean, var = moments(wide, head.norm, training)
    normed = (wide - mean[:, None, None]) / np.sqrt(var + 1e-5)[:, None, None]
    normed = normed * array(head.norm.weight)[:, None, None] + array(head.norm.bias)[:, None, None]
    pooled = np.maximum(normed, 0).mean((2, 3))
    expected = [
        pooled[:, k * D : (k + 1) * D] @ array(head.linear.weight).T + array(head.linear.bias) for k in range(branches)
    ]
    outputs = head(maps)
    np.testing.assert_allclose(array(outputs.extra["branches"]), expected, rtol=1e-10)
    np.testing.assert_allclose(array(outputs.logits), np.sum(expected, axis=0), rtol=1e-10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("branches", [2, 3])
def test_what_all_promise(name: str, branches: int) -> None:
    head = stirred(build_head(name, D, C, branches=branches))
    outputs = head(inputs_for(head))
    assert outputs.logits.shape == (B, C)
    assert outputs.features.shape == (B, D)
    assert head.class_vectors.shape == (C, D)
    assert head.wants_maps == name.startswith("reslt")
    assert {id(p) for p in head.classifier_parameters()} <= {id(p) for p in head.parameters()}
    if name.startswith("reslt"):
        assert outputs.extra["branches"].shape == (branches, B, C)
    else:
        assert not outputs.extra
    if name != "cosine":
        torch.testing.assert_close(outputs.logits, outputs.features @ head.weight.T + head.bias)
        # Hence tau-normalisation of stored logits is that of the classifier.
        tau = tau_normalize_logits(outputs.logits, head.bias, head.weight.norm(dim=1), 0.7)
        torch.testing.assert_close(tau, outputs.features @ tau_normalize(head.weight, 0.7).T)


@pytest.mark.parametrize("name", NAMES)
def test_reset_is_a_new_start(name: str) -> None:
    torch.manual_seed(3)
    fresh = build_head(name, D, C).state_dict()
    head = build_head(name, D, C)
    for tensor in head.state_dict().values():
        tensor.copy_(torch.full_like(tensor, 7))
    torch.manual_seed(4)
    head.reset()
    first = {key: value.clone() for key, value in head.state_dict().items()}
    torch.manual_seed(4)
    head.reset()
    assert all(torch.equal(first[key], value) for key, value in head.state_dict().items())
    assert first.keys() == fresh.keys()
    assert not any((value == 7).any() for value in first.values())
    assert not torch.equal(head.class_vectors, fresh[next(k for k in fresh if k.endswith(("weight", "directions")))])


def test_how_a_linear_head_starts() -> None:
    assert LinearHead(2048, 1000).weight.std().item() == pytest.approx((2 / 2048) ** 0.5, rel=0.01)
    torchs = LinearHead(2048, 1000, init="torch").weight
    assert torchs.abs().max() <= 2048**-0.5
    assert torchs.std().item() == pytest.approx((1 / 3 / 2048) ** 0.5, rel=0.01)


@pytest.mark.parametrize("kind", [Projector, PrototypeProjector])
def test_projector(kind: type[Projector]) -> None:
    projector = kind(64, 512, 128)
    assert sum(p.numel() for p in projector.parameters()) == 64 * 512 + 512 + 2 * 512 + 512 * 128 + 128
    projector = stirred(kind(D, 7, 3))
    x = torch.randn(B, D, dtype=torch.float64)
    first, norm, _, last = projector.layers
    hidden = array(x) @ array(first.weight).T + array(first.bias)
    hidden = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5) * array(norm.weight) + array(norm.bias)
    out = np.maximum(hidden, 0) @ array(last.weight).T + array(last.bias)
    np.testing.assert_allclose(array(projector(x)), out / np.linalg.norm(out, axis=1)[:, None], rtol=1e-10)


def test_projections_have_length_one_in_float32_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        out = Projector(64, 512, 128)(torch.randn(8, 64))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.norm(dim=1), torch.ones(8))


def test_a_zero_feature_gives_no_nan() -> None:
    zeros = torch.zeros(2, D, requires_grad=True)
    logits = CosineHead(D, C)(zeros).logits
    logits.sum().backward()
    assert logits.isfinite().all()
    assert zeros.grad.isfinite().all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: LinearHead(0, 3),
        lambda: LinearHead(3, 2.5),
        lambda: LinearHead(3, 3, init="zeros"),
        lambda: CosineHead(3, 3, scale=0),
        lambda: CosineHead(3, 3, scale=-1),
        lambda: CosineHead(3, 3, scale="30"),
        lambda: ResLTHead(3, 3, "places"),
        lambda: ResLTHead(3, 3, branches=4),
        lambda: ResLTHead(3, 3, branches=1),
        lambda: Projector(3, 0, 3),
        lambda: build_head("conv", 3, 3),
    ],
)
def test_wrong_arguments_are_named(make: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^Expected `\w+` to be [^\n]*, but got [^\n]*\.$"):
        make()
