"""The Triton kernels: arithmetic in Triton's interpreter on any CPU, behaviour on a GPU."""

import copy
import json
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.interpreted import run_interpreted
from torch import Tensor, nn

from longtail import kernels as kernel_package
from longtail.kernels import can_run, configs, fits, use_kernels
from longtail.kernels.configs import Tile, tile_for, use_tiles
from longtail.kernels.plan import Layer, Work
from longtail.models import Model, build_model

Found = dict[str, dict[str, float]]


def run_checks(*names: str) -> Found:
    checks: Found = json.loads(run_interpreted("tests.models.kernel_checks", *names).splitlines()[-1])
    return checks


@pytest.mark.slow
def test_evaluation_agrees_with_float64_and_changes_nothing() -> None:
    found = run_checks("evaluation")
    assert found["evaluation"]["changed"] == 0
    assert found["evaluation"]["maps"] < 1e-6


def assert_network(errors: dict[str, float]) -> None:
    """Float32 agrees with float64, and autograd uses the gradients without copying them."""
    assert max(errors["maps"], errors["gradients"], errors["buffers"]) < 5e-6
    assert errors["layout"] == errors["copied"] == 0


@pytest.mark.slow
def test_training_agrees_with_float64() -> None:
    found = run_checks("convolution", "large mean", "network", "network, wide", "modes", "network, bfloat16")
    assert found["convolution"]["cast"] == 0
    assert max(found["convolution"].values()) < 1e-6
    errors = found["large mean"]
    assert errors["naive"] > 0.5  # E[x²] - E[x]² fails here
    # float32 has a resolution of 4e-6 near 100, 4e-4 of the deviation.
    assert errors["mean"] < 2e-3
    assert errors["std"] < 1e-3
    assert errors["normalised"] < 2e-3
    assert_network(found["network"])
    assert_network(found["network, wide"])
    assert found["modes"] == {"different": 0, "changed": 0, "frozen": 0}
    errors = found["network, bfloat16"]
    assert errors["maps"] < 1.5 * errors["torch's maps"]
    assert errors["gradient"] < 1.5 * errors["torch's gradient"]
    assert errors["maps"] < 0.03
    assert errors["layout"] == errors["copied"] == 0


def test_programs_cover_all_pixels() -> None:
    for pixels in (1, 63, 64, 65, 8192, 131_072, 118 * 64):
        work = Work(Tile(64, 64, 12), pixels)
        assert work.programs <= 12
        assert (work.programs - 1) * work.run < pixels <= work.programs * work.run


def test_tiles_come_from_the_table_or_are_chosen() -> None:
    measured = tile_for("forward", 64, 64)
    assert measured == configs._MEASURED["forward", 64, 64]
    assert tile_for("forward", 48, 48) == configs.DEFAULTS["forward", 64]  # these channels were not measured
    assert tile_for("forward", 4, 32) == configs.DEFAULTS["forward", 4]
    try:
        use_tiles({("forward", 64, 64): Tile(32, 64, 7, 2, 1, True)})
        assert Layer(2, 64, 64, 1, 8, 8).work("forward").tile == Tile(32, 64, 7, 2, 1, True)
    finally:
        use_tiles(None)
    assert tile_for("forward", 64, 64) == measured


def test_torch_runs_what_the_kernels_cannot() -> None:
    model, images = build_model("resnet20", 10), torch.randn(2, 3, 8, 8)
    expected = copy.deepcopy(model)(images).logits
    assert use_kernels(model, "cpu", kernels="triton")
    network = copy.deepcopy(model).backbone
    assert network.fast_maps is not None
    assert not can_run(network, images)
    assert torch.equal(model(images).logits, expected)
    assert fits(network, images)
    assert not fits(network, torch.randn(2, 5, 8, 8))
    _, norms = network.layers()
    with torch.no_grad():
        assert fits(network, images)
        network.eval()
        assert fits(network, images)
        norms[3].train()  # some BatchNorms use the batch, some do not
        assert not fits(network, images)
    network.train()
    for change in (network.eval, lambda: setattr(norms[3], "momentum", None), network.double):
        change()
        assert not fits(network, images)
        network.float().train()
        norms[3].momentum = 0.1


def test_kernels_are_used_where_they_were_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model("resnet20", 10)
    assert not use_kernels(model, "cpu")
    monkeypatch.setattr(kernel_package, "is_checked", lambda device: device.type == "cuda")
    assert use_kernels(model, "cuda")
    assert model.backbone.fast_maps is not None
    assert not use_kernels(model, "cuda", torch.float32)
    assert not use_kernels(model, "cuda", kernels="torch")
    assert model.backbone.fast_maps is None
    assert use_kernels(model, "cuda", torch.float32, "triton")  # the next forward pass decides
    assert not use_kernels(build_model("small-cnn", 10), "cuda", kernels="triton")
    with pytest.raises(ValueError, match="`kernels`"):
        use_kernels(model, "cuda", kernels="cudnn")  # type: ignore[arg-type]


# On a GPU


def model_on_gpu(kernels: str) -> Model:
    model = build_model("resnet32", 10).cuda().to(memory_format=torch.channels_last).train()
    use_kernels(model, "cuda", kernels=kernels)  # type: ignore[arg-type]
    return model


def images_and_labels(batch: int, side: int = 32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    images = torch.randn(batch, 3, side, side, generator=generator)
    return images.cuda(), torch.randint(10, (batch,), generator=generator).cuda()


def loss_of(model: nn.Module, images: Tensor, labels: Tensor, bf16: bool = True) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        logits = model(images).logits
    loss = F.cross_entropy(logits.float(), labels)
    model.zero_grad(set_to_none=True)
    loss.backward()
    return loss.detach()


def gradients(model: nn.Module) -> Tensor:
    return torch.cat([one.grad.flatten() for one in model.parameters()]).double()


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [128, 118])
def test_a_step_is_as_exact_as_with_cudnn(batch: int) -> None:
    images, labels = images_and_labels(batch)
    results = {}
    for name, kernels, bf16 in (("ours", "triton", True), ("cudnn", "torch", True), ("fp32", "torch", False)):
        model = model_on_gpu(kernels)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            loss = loss_of(model, images, labels, bf16)
        results[name] = (loss, gradients(model), torch.cat([b.flatten().double() for b in model.buffers()]))
    exact = results["fp32"]
    assert float(results["ours"][0]) == pytest.approx(float(exact[0]), rel=0.01)  # one number, close by chance or not
    for ours, cudnn, wanted in zip(results["ours"][1:], results["cudnn"][1:], exact[1:], strict=True):
        scale = wanted.norm()
        assert float((ours - wanted).norm() / scale) < 1.3 * float((cudnn - wanted).norm() / scale) + 1e-4
    assert float(F.cosine_similarity(results["ours"][1], exact[1], 0)) > 0.99


@pytest.mark.gpu
def test_kernels_run_under_autocast_to_bfloat16() -> None:
    images, _ = images_and_labels(4)
    network = model_on_gpu("triton").backbone
    assert not can_run(network, images)
    with torch.autocast("cuda", torch.bfloat16):
        assert can_run(network, images)
    with torch.autocast("cuda", torch.float16):
        assert not can_run(network, images)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [128, 118])
def test_a_captured_step_equals_the_eager_step_bit_for_bit(batch: int) -> None:
    images, labels = images_and_labels(batch)
    model = model_on_gpu("triton")

    def buffers() -> list[Tensor]:
        return [one.clone() for one in model.buffers()]

    start = buffers()

    def back() -> None:
        for one, value in zip(model.buffers(), start, strict=True):
            one.copy_(value)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            loss_of(model, images, labels)
        back()
        loss_of(model, images, labels)
        eager = [gradients(model), *buffers()]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        loss_of(model, images, labels)
    for _ in range(2):
        back()
        noise = torch.randn(64, 1024, 1024, device="cuda")  # overwrites memory that was freed too early
        graph.replay()
        torch.cuda.synchronize()
        del noise
        assert all(torch.equal(one, two) for one, two in zip(eager, [gradients(model), *buffers()], strict=True))


def train(kernels: str, steps: int, data: Callable[[int], tuple[Tensor, Tensor]]) -> Tensor:
    model = model_on_gpu(kernels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=5e-4, fused=True)
    losses = []
    for number in range(steps):
        losses.append(loss_of(model, *data(number)))
        optimizer.step()
    return torch.stack(losses).cpu()


@pytest.mark.gpu
def test_a_hundred_steps_learn_as_fast_as_with_cudnn() -> None:
    images, labels = images_and_labels(1024)
    images[:, 0] += 0.5 * labels[:, None, None]  # the classes differ in brightness

    def data(number: int) -> tuple[Tensor, Tensor]:
        begin = 128 * number % 1024
        return images[begin : begin + 128], labels[begin : begin + 128]

    ours, cudnn = train("triton", 100, data), train("torch", 100, data)
    assert torch.allclose(ours[:3], cudnn[:3], rtol=0.05)
    assert ours[-20:].mean() < 0.5 * ours[:5].mean()
    # Rounding differences grow over dozens of steps, but at a small learning rate the curves stay together.
    assert float((ours.view(5, 20).mean(1) - cudnn.view(5, 20).mean(1)).abs().max()) < 0.15
