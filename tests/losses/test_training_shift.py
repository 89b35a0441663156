"""The hook that shifts logits in training mode: values, neutral classes, copies, devices, compile and export."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from longtail import AutoBeta, ClassBalancedSoftmaxLoss, shift_in_training

COUNTS = [500, 50, 5]


def test_equals_the_loss_in_value_and_gradient():
    layer, x, y = nn.Linear(4, 3), torch.randn(16, 4, requires_grad=True), torch.randint(3, (16,))
    loss = ClassBalancedSoftmaxLoss(COUNTS, beta=1.5)
    expected = loss(layer(x), y)
    wanted = torch.autograd.grad(expected, [x, *layer.parameters()])
    shift_in_training(layer, COUNTS, beta=1.5)
    found = F.cross_entropy(layer(x), y)
    assert torch.equal(found, expected)
    for one, other in zip(torch.autograd.grad(found, [x, *layer.parameters()]), wanted, strict=True):
        assert torch.equal(one, other)


def test_evaluation_is_plain():
    layer, x = nn.Linear(4, 3), torch.randn(5, 4)
    plain = layer(x)
    hook = shift_in_training(layer, COUNTS, beta=2.0)
    assert not torch.equal(layer(x), plain)
    assert torch.equal(layer.eval()(x), plain)
    layer.train()
    hook.remove()
    assert torch.equal(layer(x), plain)


@pytest.mark.parametrize(
    ("layer", "x", "dim"),
    [
        (nn.Linear(4, 3), torch.randn(2, 3, 5, 4), -1),
        (nn.Conv2d(4, 3, 1), torch.randn(2, 4, 3, 3), 1),
        (nn.Conv2d(4, 3, 1), torch.randn(4, 3, 3), 0),
        (nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 4), 1),
        (nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 3, 4), 2),
    ],
)
def test_class_dimension(layer, x, dim):
    plain = layer(x)
    default = isinstance(layer, nn.Linear) or (dim == 1)
    shift_in_training(layer, COUNTS, beta=1.0, dim=None if default else dim)
    expected = torch.tensor(COUNTS).log() - np.log(COUNTS).mean()
    shape = [1] * x.ndim
    shape[dim] = 3
    torch.testing.assert_close(layer(x) - plain, expected.float().view(shape).expand_as(plain))


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 1.7])
def test_neutral_classes_keep_their_probability(beta):
    """The target prior is N^(1 - beta) within the other classes, and their sum is that of the training data."""
    counts = np.array([1e6, 3000, 200, 10, 7])
    hook = shift_in_training(nn.Linear(2, 5), counts, beta=beta, neutral=(0, 3))
    shift = hook.logit_shift.double().numpy()
    target = counts * np.exp(-shift)
    others = [1, 2, 4]
    assert shift[[0, 3]].tolist() == [0, 0]
    np.testing.assert_allclose(target[others].sum(), counts[others].sum(), rtol=1e-5)
    wanted = counts[others] ** (1 - beta)
    np.testing.assert_allclose(target[others] / target[others].sum(), wanted / wanted.sum(), rtol=1e-5)
    if beta == 1:
        np.testing.assert_allclose(shift[others], np.log(counts[others] / counts[others].mean()), rtol=1e-5)


def test_neutral_classes_keep_their_probability_in_a_trained_model():
    """Without features, the plain bias is the logarithm of the target prior: that of the background does not change."""
    counts = torch.tensor([600.0, 300.0, 90.0, 10.0])
    layer = nn.Linear(1, 4).double()
    shift_in_training(layer, counts, beta=1.0, neutral=[0])
    optimizer = torch.optim.LBFGS([layer.bias], max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe")
    x = torch.zeros(1, 1, dtype=torch.float64)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(layer(x), (counts / counts.sum()).double()[None])
        loss.backward()
        return loss

    optimizer.step(closure)
    found = layer.eval()(x).softmax(1)[0]
    torch.testing.assert_close(found, torch.tensor([0.6, 0.4 / 3, 0.4 / 3, 0.4 / 3]).double(), atol=1e-5, rtol=0)


def test_set_beta_changes_the_shift_in_place():
    layer, x, y = nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    hook = shift_in_training(layer, COUNTS, beta=0.0)
    kept = hook.logit_shift
    plain = layer.eval()(x)
    layer.train()
    for beta in (1.2, torch.tensor(0.7)):
        hook.set_beta(beta)
        assert hook.beta == pytest.approx(float(beta))
        expected = ClassBalancedSoftmaxLoss(COUNTS, beta=float(beta))(plain, y)
        torch.testing.assert_close(F.cross_entropy(layer(x), y), expected)
    assert hook.logit_shift is kept


def test_nothing_in_the_state_dict():
    layer = nn.Linear(4, 3)
    names = [list(layer.state_dict()), [n for n, _ in layer.named_buffers()], [n for n, _ in layer.named_parameters()]]
    shift_in_training(layer, COUNTS, beta=1.0)
    assert names == [
        list(layer.state_dict()),
        [n for n, _ in layer.named_buffers()],
        [n for n, _ in layer.named_parameters()],
    ]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copy_has_its_own_hook(duplicate):
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    plain = layer(x)
    hook = shift_in_training(layer, COUNTS, beta=1.0)
    shifted, twin = layer(x), duplicate(layer)
    assert torch.equal(twin(x), shifted)
    hook.set_beta(0.0)
    assert torch.equal(layer(x), plain)
    assert torch.equal(twin(x), shifted)
    (other,) = twin._forward_hooks.values()
    other.remove()
    assert torch.equal(twin(x), plain)
    assert len(layer._forward_hooks) == 1


def test_devices_and_types():
    """The meta device stands for another one: values come back after it."""
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    shift_in_training(layer, COUNTS, beta=1.0)
    shifted = layer(x)
    elsewhere = copy.deepcopy(layer).to("meta")
    assert elsewhere(x.to("meta")).device.type == "meta"
    weights = layer.state_dict()
    elsewhere.to_empty(device="cpu").load_state_dict(weights)
    assert torch.equal(elsewhere(x), shifted)
    for dtype in (torch.bfloat16, torch.float16):
        half = copy.deepcopy(layer).to(dtype)
        plain = half.eval()(x.to(dtype))
        logits = half.train()(x.to(dtype))
        assert (plain.dtype, logits.dtype) == (dtype, torch.float32)
        y = torch.tensor([0, 2])
        assert torch.equal(F.cross_entropy(logits, y), ClassBalancedSoftmaxLoss(COUNTS, beta=1.0)(plain, y))


@pytest.mark.gpu
def test_hook_follows_the_layer_to_a_gpu():
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    hook = shift_in_training(layer, COUNTS, beta=1.0)
    shifted = layer(x)
    layer.cuda()
    torch.testing.assert_close(layer(x.cuda()).cpu(), shifted)
    hook.set_beta(0.0)
    assert torch.equal(layer(x.cuda()), layer.eval()(x.cuda()))


def test_compile():
    model, x = nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 4)
    plain = model(x)
    hook = shift_in_training(model[0], COUNTS, beta=1.0)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for beta in (1.0, 2.0):
        hook.set_beta(beta)
        torch.testing.assert_close(compiled(x) - plain, hook.logit_shift.expand(2, 3))
    model.eval()
    torch.testing.assert_close(compiled(x), plain)


@pytest.mark.parametrize("strict", [False, True])
def test_export_has_plain_logits(strict):
    model, x = nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 4)
    plain = model(x)
    shift_in_training(model[0], COUNTS, beta=1.0)
    program = torch.export.export(model.eval(), (x,), strict=strict)
    operators = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert operators == [torch.ops.aten.linear.default]
    assert set(program.state_dict) == {"0.weight", "0.bias"}
    assert not program.constants
    torch.testing.assert_close(program.module()(x), plain)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.export.load(buffer).module()(x), plain)


def test_auto_beta_moves_the_hook():
    """As with a loss that has the same counts."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1]).repeat(10)
    logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).repeat(10, 1)
    hook = shift_in_training(nn.Linear(2, 2), [100, 10], beta=1.0)
    loss = ClassBalancedSoftmaxLoss([100, 10], beta=1.0)
    for one in (hook, loss):
        AutoBeta(one).update(logits, labels)
    assert hook.beta == pytest.approx(loss.beta)
    assert hook.beta > 1.1


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: shift_in_training(F.relu, COUNTS, beta=1), TypeError, "`layer`"),
        (lambda: shift_in_training(nn.Linear(4, 3), [5, 0, 1], beta=1), ValueError, "class 1; count"),
        (lambda: shift_in_training(nn.Linear(4, 3), COUNTS, beta=-1), ValueError, "`beta`"),
        (lambda: shift_in_training(nn.Linear(4, 3), COUNTS, beta=1, neutral=[3]), ValueError, "`neutral`"),
        (lambda: shift_in_training(nn.Linear(4, 3), COUNTS, beta=1, neutral=[0, 1, 2]), ValueError, "`neutral`"),
    ],
)
def test_wrong_arguments(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_layer_that_does_not_fit():
    layer = nn.Linear(4, 2)
    shift_in_training(layer, COUNTS, beta=1)
    with pytest.raises(ValueError, match="3 classes in dimension -1"):
        layer(torch.randn(2, 4))
    with pytest.raises(ValueError, match="has one"):
        shift_in_training(layer, COUNTS, beta=1)
    predictor = nn.LSTM(4, 3)
    shift_in_training(predictor, COUNTS, beta=1)
    with pytest.raises(TypeError, match="tensor of logits"):
        predictor(torch.randn(2, 4))


@pytest.mark.parametrize("masks", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_torchvision_detectors_equal_a_patched_loss(masks, monkeypatch):
    """Faster and Mask R-CNN compute their loss inside; class 0 is the background."""
    detection = pytest.importorskip("torchvision").models.detection
    counts, beta = [0, 40, 10, 2], 1.3
    torch.manual_seed(0)
    make = detection.maskrcnn_resnet50_fpn if masks else detection.fasterrcnn_mobilenet_v3_large_320_fpn
    model = make(weights=None, weights_backbone=None, num_classes=4, min_size=64, max_size=64)
    images = list(torch.rand(2, 3, 64, 64))
    boxes = torch.tensor([[4.0, 4.0, 40.0, 40.0], [20.0, 20.0, 60.0, 60.0]])
    labels = (torch.tensor([1, 2]), torch.tensor([3, 1]))
    shape = {"masks": torch.ones(2, 64, 64, dtype=torch.uint8)} if masks else {}
    targets = [{"boxes": boxes, "labels": one, **shape} for one in labels]
    start = copy.deepcopy(model.state_dict())  # batch norm changes in training

    def train():
        model.train().load_state_dict(start)
        model.zero_grad()
        torch.manual_seed(1)  # boxes are sampled
        losses = model(images, targets)
        losses["loss_classifier"].backward()
        return losses, model.roi_heads.box_predictor.cls_score.weight.grad.clone()

    hook = shift_in_training(model.roi_heads.box_predictor.cls_score, counts, beta=beta, neutral=[0])
    found, gradient = train()
    others = np.array(counts[1:], dtype=float)
    shift = beta * np.log(others) + np.log((others ** (1 - beta)).sum()) - np.log(others.sum())
    hook.remove()
    plain, _ = train()
    original = detection.roi_heads.fastrcnn_loss

    def patched(logits, *rest):
        return original(logits + torch.tensor([0.0, *shift], dtype=torch.float32), *rest)

    monkeypatch.setattr(detection.roi_heads, "fastrcnn_loss", patched)
    expected, wanted = train()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    torch.testing.assert_close(gradient, wanted)
    assert not torch.isclose(found["loss_classifier"], plain["loss_classifier"])
