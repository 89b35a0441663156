"""Losses on a GPU: a captured graph can hold them, nothing waits for the device, half precision keeps the shift."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.waiting import no_waiting
from torch import Tensor, nn

from longtail import Groups, adjust_logits, class_counts, tau_normalize, tau_normalize_logits
from longtail.losses import (
    BalancedSoftmaxLoss,
    ClassBalancedSoftmaxLoss,
    FocalLoss,
    LDAMLoss,
    LogitAdjustedLoss,
    PriorShiftedSoftmaxLoss,
    class_balanced_softmax,
    class_shift,
    effective_number_weights,
    ldam_loss,
    shifted_linear,
)

pytestmark = pytest.mark.gpu

C = 7
COUNTS = [10**9, 5000, 700, 60, 9, 2, 1]
ZEROS = [5000, 0, 700, 60, 0, 2, 1]  # no label below names class 1 or 4
SEEN = torch.tensor([0, 2, 3, 5, 6])

LOSSES: dict[str, Callable[..., nn.Module]] = {
    "cbs": lambda **options: ClassBalancedSoftmaxLoss(COUNTS, beta=1.5, **options),
    "cbs masked": lambda **options: ClassBalancedSoftmaxLoss(ZEROS, beta=1.5, zero_counts="mask", **options),
    "balanced": lambda **options: BalancedSoftmaxLoss(COUNTS, **options),
    "adjusted": lambda **options: LogitAdjustedLoss(COUNTS, tau=0.7, **options),
    "prior": lambda **options: PriorShiftedSoftmaxLoss(COUNTS, [1] * C, **options),
    "focal": lambda **options: FocalLoss(0.5, **options),
    "ldam": lambda **options: LDAMLoss(COUNTS, **options),
    "ldam masked": lambda **options: LDAMLoss(ZEROS, zero_counts="mask", **options),
}
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "weighted": lambda: {"weight": torch.rand(C) + 0.1},
    "smoothed": lambda: {"label_smoothing": 0.1, "ignore_index": 6},
    "all": lambda: {"weight": torch.rand(C) + 0.1, "label_smoothing": 0.1, "ignore_index": 6},
    "all summed": lambda: {**OPTIONS["all"](), "reduction": "sum"},
    "all apart": lambda: {**OPTIONS["all"](), "reduction": "none"},
}
every_loss = pytest.mark.parametrize("name", LOSSES)


def batch(samples: int = 32, *, dense: bool = False, soft: bool = False) -> tuple[Tensor, Tensor]:
    """Logits and targets on the GPU."""
    shape = (samples, 3) if dense else (samples,)
    z = torch.randn(samples, C, *shape[1:])
    if soft:
        y = torch.zeros_like(z)
        y[:, SEEN] = torch.rand(samples, len(SEEN), *shape[1:]).softmax(1)
    else:
        y = SEEN[torch.randint(len(SEEN), shape)]
    return z.cuda(), y.cuda()


def test_the_mode_notices_waiting() -> None:
    """What the next tests rely on."""
    z = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="synchroniz"), no_waiting():
        z.sum().item()


@every_loss
def test_as_on_the_cpu(name: str) -> None:
    """Value and gradient."""
    for options in OPTIONS.values():
        loss = LOSSES[name](**options())
        z, y = batch()
        on_cpu, on_gpu = z.cpu().requires_grad_(), z.clone().requires_grad_()
        expected = loss(on_cpu, y.cpu())
        value = loss.cuda()(on_gpu, y)
        assert value.device.type == "cuda"
        torch.testing.assert_close(value.cpu(), expected, rtol=1e-4, atol=1e-4)  # LDAM's scale of 30 adds to rounding
        (grad,) = torch.autograd.grad(value.sum(), on_gpu)
        (wanted,) = torch.autograd.grad(expected.sum(), on_cpu)
        torch.testing.assert_close(grad.cpu(), wanted, rtol=1e-4, atol=1e-4)


@every_loss
@pytest.mark.parametrize("kind", ["labels", "dense", "soft"])
def test_nothing_waits_for_the_device(name: str, kind: str) -> None:
    """Forward and backward, labels of any shape and soft targets."""
    if kind == "soft" and "ldam" in name:
        pytest.skip("index targets only")
    for options in OPTIONS.values():
        more = options()
        if kind == "soft":
            more.pop("ignore_index", None)
        loss = LOSSES[name](**more).cuda()
        z, y = batch(dense=kind == "dense", soft=kind == "soft")
        z.requires_grad_()
        with no_waiting():
            value = loss(z, y)
            value.sum().backward()
        assert z.grad is not None
        assert z.grad.isfinite().all()


def check_replay(loss: nn.Module, *, soft: bool) -> None:
    """Forward and backward captured once, replayed on other data: the eager value and gradient of that data."""
    static_z, static_y = batch(soft=soft)
    static_z.requires_grad_()

    def step() -> tuple[Tensor, Tensor]:
        value = loss(static_z, static_y)
        return value, torch.autograd.grad(value.sum(), static_z)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value, grad = step()

    for _ in range(2):
        z, y = batch(soft=soft)
        with torch.no_grad():
            static_z.copy_(z)
        static_y.copy_(y)
        graph.replay()
        z.requires_grad_()
        expected = loss(z, y)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(grad, torch.autograd.grad(expected.sum(), z)[0])


@every_loss
@pytest.mark.parametrize("kind", ["labels", "soft"])
def test_a_captured_graph_holds_the_loss(name: str, kind: str) -> None:
    """Under every option."""
    if kind == "soft" and "ldam" in name:
        pytest.skip("index targets only")
    for options in OPTIONS.values():
        more = options()
        if kind == "soft":
            more.pop("ignore_index", None)
        check_replay(LOSSES[name](**more).cuda(), soft=kind == "soft")


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")  # of the eager step that the replay is compared with
@pytest.mark.parametrize("bias", [True, False])
def test_a_captured_graph_holds_the_shifted_product(bias: bool) -> None:
    """It reads the parameters at each replay, so training continues."""
    head, shift = nn.Linear(16, C, bias=bias).cuda(), class_shift(COUNTS, 1.5).cuda()
    h, (_, y) = torch.randn(32, 16, device="cuda"), batch()
    parameters = list(head.parameters())

    def step() -> tuple[Tensor, tuple[Tensor, ...]]:
        value = F.cross_entropy(shifted_linear(h, head.weight, head.bias, shift), y)
        return value, torch.autograd.grad(value, parameters)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value, grads = step()
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(-2)
        h.normal_()
    graph.replay()
    expected = class_balanced_softmax(head(h), y, COUNTS, beta=1.5)
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(grads, torch.autograd.grad(expected, parameters), rtol=1e-4, atol=1e-4)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(name: str, dtype: torch.dtype) -> None:
    """The layer in half precision, the loss in float32: that of the same logits in float64."""
    loss = LOSSES[name]().cuda()
    head, (_, y) = nn.Linear(16, C).cuda(), batch()
    h = torch.randn(32, 16, device="cuda")
    with torch.autocast("cuda", dtype=dtype):
        z = head(h)
        value = loss(z, y)
    assert z.dtype == dtype
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), loss(z.double(), y), rtol=1e-5, atol=1e-5)
    value.backward()
    assert head.weight.grad is not None
    assert head.weight.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_of_the_shifted_product(dtype: torch.dtype) -> None:
    """Half-precision logits of the shifted layer, within that precision."""
    head, h = nn.Linear(16, C).cuda(), torch.randn(32, 16, device="cuda")
    shift = class_shift(COUNTS, 1.5).cuda()
    with torch.autocast("cuda", dtype=dtype):
        logits = shifted_linear(h, head.weight, head.bias, shift)
    assert logits.dtype == dtype
    exact = head.double()(h.double()) + shift
    torch.testing.assert_close(logits.double(), exact, rtol=2**-7, atol=2**-7 * shift.abs().max().item())


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_logits_and_a_half_model(name: str, dtype: torch.dtype) -> None:
    """``model.to("cuda", dtype)`` moves the loss and rounds nothing in it."""
    weight = torch.rand(C) + 0.1
    loss = LOSSES[name](weight=weight)
    z, y = batch()
    expected = loss(z.to(dtype).double().cpu(), y.cpu())
    value = loss.to("cuda", dtype)(z.to(dtype), y)
    for tensor in (*loss.buffers(), *([] if loss.logit_shift is None else [loss.logit_shift])):
        assert tensor.device.type == "cuda"
        assert tensor.dtype in (torch.float32, torch.int64)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double().cpu(), expected, rtol=1e-5, atol=1e-5)


def test_counts_given_on_the_gpu() -> None:
    """A loss that is made from counts on the GPU is there, and gives what one made on the CPU gives."""
    z, y = batch()
    counts = torch.tensor(COUNTS, device="cuda")
    pairs = [
        (ClassBalancedSoftmaxLoss(counts, beta=1.5), ClassBalancedSoftmaxLoss(COUNTS, beta=1.5)),
        (BalancedSoftmaxLoss(counts), BalancedSoftmaxLoss(COUNTS)),
        (LogitAdjustedLoss(counts, tau=0.7), LogitAdjustedLoss(COUNTS, tau=0.7)),
        (PriorShiftedSoftmaxLoss(counts, [1] * C), PriorShiftedSoftmaxLoss(COUNTS, [1] * C)),
        (LDAMLoss(counts), LDAMLoss(COUNTS)),
        (
            BalancedSoftmaxLoss(torch.tensor(ZEROS, device="cuda"), zero_counts="mask"),
            BalancedSoftmaxLoss(ZEROS, zero_counts="mask"),
        ),
    ]
    for on_gpu, on_cpu in pairs:
        assert all(buffer.device.type == "cuda" for buffer in on_gpu.buffers())
        torch.testing.assert_close(on_gpu(z, y), on_cpu.cuda()(z, y))
    assert class_shift(counts, 1.5).device.type == "cuda"
    assert effective_number_weights(counts, 0.9999).device.type == "cuda"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_functions_take_counts_from_either_device(device: str) -> None:
    """They read them anyway."""
    counts, zeros = torch.tensor(COUNTS, device=device), torch.tensor(ZEROS, device=device)
    z, y = batch()
    for function in (
        lambda z, y: class_balanced_softmax(z, y, counts, beta=1.5),
        lambda z, y: class_balanced_softmax(z, y, zeros, beta=1.0, zero_counts="mask"),
        lambda z, y: ldam_loss(z, y, counts),
        lambda z, y: ldam_loss(z, y, zeros, zero_counts="mask"),
    ):
        value, expected = function(z, y), function(z.cpu(), y.cpu())
        assert value.device.type == "cuda"
        torch.testing.assert_close(value.cpu(), expected, rtol=1e-5, atol=1e-5)


@every_loss
def test_cpu_and_gpu_mixed(name: str) -> None:
    """Refused in one sentence that names both devices."""
    loss = LOSSES[name]()
    z, y = batch()
    for logits, target in ((z, y.cpu()), (z.cpu(), y)):
        with pytest.raises(ValueError, match=r"^Expected `logits` and .*cuda:0.*\.$|^Expected `logits` and .*cpu.*\.$"):
            loss(logits, target)
    if name != "focal":
        with pytest.raises(ValueError, match=r"`logits` and .*loss.* cuda:0 and cpu"):
            loss(z, y)
        with pytest.raises(ValueError, match=r"`logits` and .*loss.* cpu and cuda:0"):
            loss.cuda()(z.cpu(), y.cpu())


def test_weight_and_shift_on_another_device() -> None:
    """Refused too."""
    z, y = batch()
    with pytest.raises(ValueError, match=r"weight.* cuda:0 and cpu"):
        class_balanced_softmax(z, y, COUNTS, beta=1.5, weight=torch.ones(C))
    with pytest.raises(RuntimeError, match="device"):  # torch's own message
        shifted_linear(z, torch.ones(C, C, device="cuda"), None, class_shift(COUNTS, 1.5))


@every_loss
def test_labels_are_checked_when_asked(name: str) -> None:
    """Off by default, because it waits; on, it names the label."""
    z, y = batch()
    y[3] = C + 2
    with pytest.raises(ValueError, match=rf"`target` .* {C + 2}\.$"):
        LOSSES[name](check_labels=True).cuda()(z, y)


def test_a_label_of_a_masked_class_is_refused_when_asked() -> None:
    """By the same check."""
    z, y = batch()
    y[3] = 1
    with pytest.raises(ValueError, match="count of 0"):
        LOSSES["cbs masked"](check_labels=True).cuda()(z, y)


@every_loss
def test_state_goes_between_devices(name: str) -> None:
    """A state saved on one device is loaded on the other; what follows from the counts follows there."""
    source, onto = LOSSES[name](), LOSSES[name]().cuda()
    onto.load_state_dict(source.state_dict())
    z, y = batch()
    torch.testing.assert_close(onto(z, y), source.cuda()(z, y))
    assert all(buffer.device.type == "cuda" for buffer in onto.buffers())


@pytest.mark.filterwarnings("ignore")  # inductor's own: deprecations, a hint at TF32
def test_compiled() -> None:
    """With inductor's GPU code, in one graph."""
    torch._dynamo.reset()
    z, y = batch()
    loss = ClassBalancedSoftmaxLoss(COUNTS, beta=1.5, label_smoothing=0.1).cuda()
    z.requires_grad_()
    value, expected = torch.compile(loss, fullgraph=True)(z, y), loss(z, y)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, z), torch.autograd.grad(expected, z))


def test_counting_and_post_hoc_steps() -> None:
    """What is not a loss takes tensors on the GPU as well."""
    y = torch.randint(C, (100,), device="cuda")
    assert class_counts(y, C).tolist() == np.bincount(y.cpu().numpy(), minlength=C).tolist()
    z = torch.randn(5, C, device="cuda")
    for counts in (COUNTS, torch.tensor(COUNTS, device="cuda")):
        adjusted = adjust_logits(z, counts, 1.0, target_prior=torch.ones(C, device="cuda"))
        torch.testing.assert_close(adjusted.cpu(), adjust_logits(z.cpu(), COUNTS, 1.0, target_prior=[1] * C))
    layer = nn.Linear(4, C).cuda()
    assert tau_normalize(layer, 0.5).weight.device.type == "cuda"
    norms = layer.weight.norm(dim=1)
    stored = tau_normalize_logits(z, layer.bias, norms, 0.5)
    torch.testing.assert_close(stored.cpu(), tau_normalize_logits(z.cpu(), layer.bias.cpu(), norms.cpu(), 0.5))
    assert Groups.from_counts([500, 5]).means(torch.tensor([0.5, 0.1], device="cuda"))["tail"] == pytest.approx(0.1)
