"""The CUDA kernels of ``kernels/cuda/``: in an emulator on any CPU, compiled, and on a GPU."""

import json
import shutil
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from tests.interpreted import run_interpreted
from tests.models.halo_checks import check_first_pixel
from tests.models.test_kernels import gradients, images_and_labels, loss_of, model_on_gpu

from longtail.kernels import halo
from longtail.kernels.configs import Tile, default_tile, use_tiles
from longtail.kernels.plan import Layer

Found = dict[str, float]


def emulate(*arguments: str) -> Found:
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    checks: Found = json.loads(run_interpreted("tests.models.halo_checks", *arguments).splitlines()[-1])
    return checks


def assert_few_eps(found: Found) -> None:
    """M2 errs by a few eps (1 + d²/var); on a CPU at most 3 of them were measured, and 5.5e-6 at a corner."""
    assert max(found["first pixel: corner, in eps"], found["first pixel: outlier, in eps"]) < 5
    assert found["first pixel: corner"] < 1e-5


def test_convolution_of_one_shape_agrees_with_float64() -> None:
    found = emulate()
    assert found["convolution"] == 0  # products of whole numbers are exact
    assert max(found["mean"], found["m2"]) < 2e-6


@pytest.mark.slow
def test_all_shapes_and_a_network() -> None:
    found = emulate("all")
    assert found["convolution"] == found["entered"] == found["gradient"] == found["gradient, joined"] == 0
    assert max(found["weight"], found["weight, entered"]) < 1e-6
    assert max(found["mean"], found["m2"], found["sums"], found["affine"]) < 2e-6
    assert found["large mean"] < 1e-4
    assert found["through"] < 2**-8  # rounded to bfloat16
    assert_few_eps(found)
    assert found["network: maps"] < 1.5 * found["network: torch's maps"]
    assert found["network: gradient"] < 1.5 * found["network: torch's gradient"]
    assert found["network: layout"] == found["network: copied"] == 0


def test_a_layer_that_does_not_fit_a_halo_gets_another_tile() -> None:
    use_tiles({("forward", 16, 16): Tile(128, 0, 64, halo=True)})
    try:
        assert Layer(2, 16, 16, 1, 32, 32).work("forward").tile.halo
        assert Layer(2, 16, 16, 1, 64, 64).work("forward").tile.halo
        for other in (Layer(2, 16, 16, 1, 32, 40), Layer(2, 16, 16, 1, 32, 12), Layer(2, 16, 16, 1, 128, 128)):
            assert other.work("forward").tile == default_tile("forward", 16, 16)
    finally:
        use_tiles(None)


def test_compiles_to_machine_code() -> None:
    if torch.version.cuda is None:
        pytest.skip("needs NVRTC")
    try:
        halo._nvrtc()
    except OSError:
        pytest.skip("needs NVRTC")
    shape = ["-DCHANNELS=16", "-DWIDTH=32", "-DHEIGHT=32", "-DROWS=4", "-DENTER=1", "-DWARPS=4"]
    for name, last in (("convolution", "-DBACK=0"), ("convolution", "-DBACK=2"), ("weight_gradient", "-DSPLIT=4")):
        code = halo.compile_cuda(halo.cuda_source(name), [*shape, last], "sm_90")
        assert code.startswith(b"\x7fELF")
    with pytest.raises(RuntimeError, match=r"(?s)^The kernel does not compile:\n.*every warp"):
        halo.compile_cuda(halo.cuda_source("convolution"), [*shape[:-1], "-DWARPS=16", "-DBACK=0"], "sm_90")


# On a GPU

HALO = {
    **{(one, 16, 16): Tile(128, 0, 128, 4, halo=True) for one in ("forward", "input")},
    **{(one, 32, 32): Tile(256, 0, 128, 8, halo=True) for one in ("forward", "input")},
    **{(one, 64, 64): Tile(128, 0, 64, 4, halo=True) for one in ("forward", "input")},
    ("weight", 16, 16): Tile(128, 0, 64, 4, halo=True),
    ("weight", 32, 32): Tile(128, 0, 32, 4, halo=True),
    ("weight", 64, 64): Tile(64, 0, 16, 8, halo=True),
}


@pytest.fixture
def with_halo() -> Iterator[None]:
    use_tiles(HALO)
    yield
    use_tiles(None)


@pytest.mark.gpu
@pytest.mark.usefixtures("with_halo")  # restores the tiles
def test_a_first_pixel_unlike_the_others_on_a_gpu() -> None:
    assert_few_eps(check_first_pixel("cuda"))


@pytest.mark.gpu
@pytest.mark.usefixtures("with_halo")
@pytest.mark.parametrize(("batch", "side"), [(128, 32), (118, 32), (7, 32), (118, 64)])
def test_a_step_is_as_exact_as_with_cudnn(batch: int, side: int) -> None:
    images, labels = images_and_labels(batch, side)
    results = {}
    for name, kernels, bf16 in (("ours", "triton", True), ("cudnn", "torch", True), ("fp32", "torch", False)):
        model = model_on_gpu(kernels)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            loss_of(model, images, labels, bf16)
        results[name] = (gradients(model), torch.cat([b.flatten().double() for b in model.buffers()]))
    for ours, cudnn, wanted in zip(results["ours"], results["cudnn"], results["fp32"], strict=True):
        scale = wanted.norm()
        assert float((ours - wanted).norm() / scale) < 1.3 * float((cudnn - wanted).norm() / scale) + 1e-4


@pytest.mark.gpu
@pytest.mark.usefixtures("with_halo")
def test_a_graph_gives_the_same_bits_as_eager_steps() -> None:
    images, labels = images_and_labels(128)
    model = model_on_gpu("triton")
    start = [one.clone() for one in model.buffers()]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def found() -> list[torch.Tensor]:
        torch.cuda.synchronize()
        left = [gradients(model), *(one.clone() for one in model.buffers())]
        for one, value in zip(model.buffers(), start, strict=True):
            one.copy_(value)
        return left

    with torch.cuda.stream(stream):
        loss_of(model, images, labels)
    eager = found()
    with torch.cuda.stream(stream):
        loss_of(model, images, labels)
    again = found()
    with torch.cuda.graph(graph, stream=stream):
        loss_of(model, images, labels)
    graph.replay()
    for one, two, three in zip(eager, again, found(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@pytest.mark.gpu
@pytest.mark.parametrize("halo", [False, True])
@pytest.mark.parametrize("batch", [1000, 406, 3])
def test_an_evaluation_is_as_exact_as_with_cudnn(batch: int, halo: bool) -> None:
    use_tiles(HALO if halo else None)
    try:
        images, labels = images_and_labels(batch)
        maps = {}
        for name, kernels, bf16 in (("ours", "triton", True), ("cudnn", "torch", True), ("fp32", "torch", False)):
            model = model_on_gpu(kernels)
            loss_of(model, *images_and_labels(128))  # changes the running statistics
            loss_of(model, images, labels)
            flags = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
            with flags, torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                maps[name] = model.eval().backbone.maps(images).double()
        scale = maps["fp32"].norm()
        errors = {name: float((one - maps["fp32"]).norm() / scale) for name, one in maps.items()}
        assert errors["ours"] < 1.3 * errors["cudnn"] + 1e-4
        assert float(F.cosine_similarity(maps["ours"].flatten(), maps["fp32"].flatten(), 0)) > 0.999
    finally:
        use_tiles(None)
