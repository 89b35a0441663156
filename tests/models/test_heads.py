"""The classifiers in float64 against numpy, and the registry of heads."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from longtail.losses import LDAMLoss
from longtail.models import (
    HEADS,
    Backbone,
    ClassScaledHead,
    CosineHead,
    Head,
    HeadSpec,
    LinearHead,
    Outputs,
    Projector,
    ResLTHead,
    SmallCNN,
    build_head,
    build_model,
    register_head,
)
from longtail.posthoc import tau_normalize, tau_normalize_logits

D, C, B = 6, 4, 5
ALL = [
    pytest.param(lambda: LinearHead(D, C), id="linear"),
    pytest.param(lambda: CosineHead(D, C), id="cosine"),
    pytest.param(lambda: ClassScaledHead(D, C), id="class-scaled"),
    pytest.param(lambda: ResLTHead(D, C, "cifar"), id="reslt-cifar"),
    pytest.param(lambda: ResLTHead(D, C, "imagenet", 2), id="reslt-imagenet"),
]


def randomised(module: nn.Module) -> nn.Module:
    """The module in float64, with random parameters and statistics away from 0 and 1."""
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
    head = randomised(LinearHead(D, C))
    x = inputs_for(head)
    np.testing.assert_allclose(array(head(x).logits), array(x) @ array(head.weight).T + array(head.bias), rtol=1e-12)
    assert LinearHead(D, C, bias=False).bias is None


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_cosine(scale: float) -> None:
    head = randomised(CosineHead(D, C, scale))
    x = inputs_for(head)
    rows, classes = array(x), array(head.class_vectors)
    cosines = rows @ classes.T / np.linalg.norm(rows, axis=1)[:, None] / np.linalg.norm(classes, axis=1)
    np.testing.assert_allclose(array(head(x).logits), scale * cosines, rtol=1e-12)
    assert head.weight is None
    assert head.bias is None


def test_cosine_starts_with_unit_vectors() -> None:
    torch.testing.assert_close(CosineHead(64, 100).class_vectors.norm(dim=1), torch.ones(100))


def test_ldam_needs_the_cosine_head_with_scale_one() -> None:
    head, x = CosineHead(D, C, scale=1), torch.randn(B, D)
    target = torch.tensor([0, 1, 2, 3, 0])
    counts = [1000, 100, 10, 1]
    margins = 0.5 * np.array(counts) ** -0.25
    z = head(x).logits.detach().double().numpy()
    z = 30 * (z - np.eye(C)[target] * margins)
    expected = np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(B), target])
    assert LDAMLoss(counts)(head(x).logits, target).item() == pytest.approx(expected, rel=1e-5)


def test_class_scaled() -> None:
    head = ClassScaledHead(D, C)
    x = torch.randn(B, D)
    assert torch.equal(head(x).logits, head.linear(x))  # it starts as the linear head
    head = randomised(head)
    x = inputs_for(head)
    plain = array(x) @ array(head.linear.weight).T + array(head.linear.bias)
    np.testing.assert_allclose(array(head(x).logits), array(head.scales) * plain, rtol=1e-12)


def moments(maps: np.ndarray, norm: nn.BatchNorm2d, training: bool) -> tuple[np.ndarray, np.ndarray]:
    if training:
        return maps.mean((0, 2, 3)), maps.var((0, 2, 3))
    return array(norm.running_mean), array(norm.running_var)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("branches", [2, 3])
def test_reslt_for_cifar(branches: int, training: bool) -> None:
    head = randomised(ResLTHead(D, C, "cifar", branches)).train(training)
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


def test_reslt_for_cifar_equals_the_published_three_batchnorms() -> None:
    """Logits, gradients and the statistics for evaluation."""
    head = randomised(ResLTHead(D, C))
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
    head = randomised(ResLTHead(D, C, "imagenet", branches)).train(training)
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


@pytest.mark.parametrize("make", ALL)
def test_contract_of_every_head(make: object) -> None:
    head = randomised(make())
    outputs = head(inputs_for(head))
    assert outputs.logits.shape == (B, C)
    assert outputs.features.shape == (B, D)
    assert head.class_vectors.shape == (C, D)
    assert {id(p) for p in head.classifier_parameters()} <= {id(p) for p in head.parameters()}
    if head.wants_maps:
        assert outputs.extra["branches"].shape == (head.branches, B, C)
    else:
        assert not outputs.extra
    if head.weight is not None:
        torch.testing.assert_close(outputs.logits, outputs.features @ head.weight.T + head.bias)
        # Hence tau-normalisation of stored logits equals that of the classifier.
        tau = tau_normalize_logits(outputs.logits, head.bias, head.weight.norm(dim=1), 0.7)
        torch.testing.assert_close(tau, outputs.features @ tau_normalize(head.weight, 0.7).T)


def test_initialisation_of_a_linear_head() -> None:
    assert LinearHead(2048, 1000).weight.std().item() == pytest.approx((2 / 2048) ** 0.5, rel=0.01)
    plain = LinearHead(2048, 1000, init="torch").weight
    assert plain.abs().max() <= 2048**-0.5
    assert plain.std().item() == pytest.approx((1 / 3 / 2048) ** 0.5, rel=0.01)


def test_projector() -> None:
    projector = Projector(64, 512, 128)
    assert sum(p.numel() for p in projector.parameters()) == 64 * 512 + 512 + 2 * 512 + 512 * 128 + 128
    with torch.autocast("cpu", torch.bfloat16):
        out = projector(torch.randn(8, 64))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.norm(dim=1), torch.ones(8))
    projector = randomised(Projector(D, 7, 3))
    x = torch.randn(B, D, dtype=torch.float64)
    first, norm, _, last = projector.layers
    hidden = array(x) @ array(first.weight).T + array(first.bias)
    hidden = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5) * array(norm.weight) + array(norm.bias)
    expected = np.maximum(hidden, 0) @ array(last.weight).T + array(last.bias)
    expected /= np.linalg.norm(expected, axis=1)[:, None]
    np.testing.assert_allclose(array(projector(x)), expected, rtol=1e-10)


def test_zero_features_give_no_nan() -> None:
    zeros = torch.zeros(2, D, requires_grad=True)
    logits = CosineHead(D, C)(zeros).logits
    logits.sum().backward()
    assert logits.isfinite().all()
    assert zeros.grad.isfinite().all()


# By name


class Other(SmallCNN):
    """One that says nothing about the heads that fit it."""

    linear_init = Backbone.linear_init
    reslt_form = Backbone.reslt_form


def test_the_backbone_says_how_a_head_starts() -> None:
    for backbone, init, form in ((SmallCNN(), "kaiming", "cifar"), (Other(), "torch", "imagenet")):
        torch.manual_seed(0)
        expected = LinearHead(64, C, init=init).weight
        for name in ("linear", "class-scaled"):
            torch.manual_seed(0)
            assert torch.equal(build_head(name, backbone, C).weight, expected)
        assert build_head(HeadSpec("reslt", {"branches": 2}), backbone, C).form == form


class DoubleHead(Head):
    """Twice the features of the first classes; it has neither parameters nor class vectors."""

    def __init__(self, num_features: int, num_classes: int, factor: float) -> None:
        super().__init__(num_features, num_classes)
        self.factor = factor

    def forward(self, inputs: Tensor) -> Outputs:
        return Outputs(self.factor * inputs[:, : self.num_classes], inputs, {})


@pytest.fixture
def double() -> object:
    yield register_head(
        "double", lambda backbone, classes, factor=2.0: DoubleHead(backbone.num_features, classes, factor)
    )
    HEADS.unregister("double")


@pytest.mark.usefixtures("double")
def test_a_head_from_outside() -> None:
    model = build_model("small-cnn", C, head=HeadSpec("double", {"factor": 3}))
    outputs = model(torch.randn(2, 3, 8, 8))
    assert torch.equal(outputs.logits, 3 * outputs.features[:, :C])
    assert build_model("small-cnn", C, head="double").head.factor == 2
    with pytest.raises(NotImplementedError, match="DoubleHead has no class vectors"):
        build_model("small-cnn", C, head="double", projection=(4, 4), prototypes=True)(torch.randn(2, 3, 8, 8))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: LinearHead(0, 3), "num_features"),
        (lambda: LinearHead(3, 2.5), "num_classes"),
        (lambda: LinearHead(3, 3, init="zeros"), "init"),
        (lambda: CosineHead(3, 3, scale=0), "scale"),
        (lambda: ResLTHead(3, 3, "places"), "form"),
        (lambda: ResLTHead(3, 3, branches=4), "branches"),
        (lambda: Projector(3, 0, 3), "hidden"),
        (lambda: build_head("conv", SmallCNN(), 3), "head"),
        (lambda: build_head(HeadSpec("linear", {"scale": 3}), SmallCNN(), 3), "options"),
        (lambda: HeadSpec("cosine", {"scale": torch.ones(1)}), "options"),
        (lambda: HeadSpec("cosine", {"scale": {1, 2}}), "options"),
    ],
)
def test_wrong_arguments_are_named(make: object, name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^Expected `{name}` "):
        make()
