"""The Triton kernels against float64, in Triton's interpreter: on any CPU, with tiny shapes.

``test_kernels.py`` runs this in a new process, with the names of the checks as arguments, and reads the JSON that it
prints: the largest error of each quantity.

In most checks maps are float32: without rounding, a wrong index or formula is obvious. The interpreter multiplies the
bits of bfloat16 numbers as integers and truncates instead of rounding, so the check in bfloat16 patches both.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import numpy as np
import torch
import torch.nn.functional as F
import triton.language as tl
from torch import Tensor, nn
from triton.runtime import interpreter

from longtail.kernels import configs, launch
from longtail.kernels.chain import run_chain
from longtail.kernels.configs import Tile
from longtail.kernels.plan import Layer, NetworkPlan
from longtail.models import CifarResNet

torch.set_num_threads(1)


def use(tiles: dict[str, Tile]) -> None:
    """Use one tile per operation for all shapes."""
    configs._MEASURED.clear()
    for operation, width in list(configs.DEFAULTS):
        configs.DEFAULTS[operation, width] = tiles[operation]


# Several tiles per program and several programs, the last of each not full; chunks of more and of less than one tap.
MANY = {
    "forward": Tile(16, 64, 3, unrolled=True),
    "input": Tile(16, 64, 3, unrolled=True),
    "weight": Tile(32, 64, 3),
    "normalise": Tile(16, 0, 3),
}
WIDE = {
    "forward": Tile(128, 16, 5),
    "input": Tile(256, 32, 2, warps=1),  # so wide that it sums tile by tile
    "weight": Tile(64, 128, 2),
    "normalise": Tile(64, 0, 2),
}


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def rows(maps: Tensor) -> Tensor:
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1]).contiguous()


def check_convolution() -> dict[str, float]:
    """Convolution and its statistics per program; the cast weight, plain and transposed."""
    found = dict.fromkeys(("cast", "convolution", "mean", "m2"), 0.0)

    def note(name: str, value: float) -> None:
        found[name] = max(found[name], value)

    for channels, written, stride, height, width in [
        (3, 16, 1, 9, 8), (1, 16, 1, 8, 8), (16, 16, 1, 8, 8), (16, 32, 2, 8, 8), (16, 32, 2, 9, 7), (32, 32, 1, 4, 4),
    ]:  # fmt: skip
        weight = torch.randn(written, channels, 3, 3)
        layer = Layer(3, channels, written, stride, height, width, image=channels < 16)
        plan = NetworkPlan([layer], [weight], torch.float32)
        cast = launch.cast(plan)
        start, turned, end = plan.cast_at[0]
        forward = cast[start:turned].view(9, layer.read, written)
        backward = cast[turned:end].view(9, written, layer.read)
        note("cast", error(forward[:, :channels], weight.permute(2, 3, 1, 0).reshape(9, channels, written).double()))
        wanted = weight.flip(2, 3).permute(2, 3, 0, 1).reshape(9, written, channels)
        note("cast", error(backward[:, :, :channels], wanted.double()))
        images = torch.randn(3, channels, height, width)
        x = launch.pack(images, layer, torch.float32) if layer.image else rows(images)
        y, statistics = launch.convolve(x, cast[start:turned], layer)
        wanted = rows(F.conv2d(images.double(), weight.double(), stride=stride, padding=1))
        note("convolution", error(y, wanted))
        for number, part in enumerate(wanted.split(statistics.work.run)):
            mean, m2 = statistics.rows[number]
            note("mean", error(mean, part.mean(0)))
            note("m2", error(m2, (part - part.mean(0)).square().sum(0)))
    return found


def check_large_mean() -> dict[str, float]:
    """Statistics of maps with mean 100 and deviation 0.01, for which E[x²] - E[x]² fails."""
    layer = Layer(4, 16, 16, 1, 8, 8)
    weight = torch.zeros(16, 16, 3, 3)
    weight[:, :, 1, 1] = torch.eye(16)  # the identity
    plan = NetworkPlan([layer], [weight], torch.float32)
    x = 100 + 0.01 * torch.randn(layer.pixels, 16)
    cast = launch.cast(plan)
    y, statistics = launch.convolve(x, cast[: layer.size], layer)
    norm = torch.empty(32)
    affine = (torch.ones(16), torch.zeros(16))
    out = launch.normalised(layer, y, statistics, norm, affine, None, momentum=0.1, eps=0.0)
    exact = x.double()
    std = exact.std(0, correction=0)
    return {
        "mean": float((norm[:16] - exact.mean(0)).abs().max() / 0.01),
        "std": float((norm[16:] * std - 1).abs().max()),
        "normalised": error(out, F.relu((exact - exact.mean(0)) / std)),
        "naive": float(((x.square().mean(0) - x.mean(0).square()).clamp(min=0).sqrt() / std - 1).abs().max()),
    }


def networks(memory_format: torch.memory_format) -> tuple[CifarResNet, CifarResNet]:
    torch.manual_seed(1)
    ours = CifarResNet(8).train().to(memory_format=memory_format)
    for module in ours.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    wanted = CifarResNet(8).train().double()
    wanted.load_state_dict(ours.state_dict())
    return ours, wanted


def step(ours: CifarResNet, images: Tensor, gradient: Tensor, dtype: torch.dtype) -> Tensor:
    maps = run_chain(ours, images, dtype)
    maps.backward(gradient.to(dtype))
    return maps.detach()


def gradient_of(network: nn.Module) -> Tensor:
    return torch.cat([one.grad.flatten().double() for one in network.parameters()])


def check_network(height: int, width: int, memory_format: torch.memory_format, dtype: torch.dtype) -> dict[str, float]:
    """Stem, a block of stride 1 and two of stride 2, forward and backward, and running statistics."""
    ours, wanted = networks(memory_format)
    images = torch.randn(3, 3, height, width).contiguous(memory_format=memory_format)
    maps = wanted.maps(images.double())
    gradient = torch.randn_like(maps) / maps[0].numel()
    maps.backward(gradient)
    found = {"maps": error(step(ours, images, gradient, dtype), maps)}
    if dtype == torch.bfloat16:  # BatchNorm magnifies rounding in so small a batch: compare with torch
        others, _ = networks(memory_format)
        with torch.autocast("cpu", torch.bfloat16):
            theirs = others.maps(images)
        theirs.backward(gradient.to(theirs.dtype))
        found["torch's maps"] = error(theirs, maps)
        found["torch's gradient"] = error(gradient_of(others), gradient_of(wanted))
    found["gradient"] = error(gradient_of(ours), gradient_of(wanted))
    pairs = list(zip(ours.parameters(), wanted.parameters(), strict=True))
    found["gradients"] = max(error(one.grad, other.grad) for one, other in pairs)
    buffers = zip(ours.buffers(), wanted.buffers(), strict=True)
    found["buffers"] = max(float((one.double() - other.double()).abs().max()) for one, other in buffers)
    found["layout"] = float(any(one.grad.stride() != one.stride() for one, _ in pairs))
    # Autograd copies a gradient that it cannot use as it is: one launch per parameter.
    found["copied"] = float(any(one.grad.untyped_storage().nbytes() == one.grad.nbytes for one, _ in pairs))
    return found


def check_modes() -> dict[str, float]:
    """Two runs are bit-identical; a pass without running statistics and with frozen parameters."""
    images, gradient = torch.randn(2, 3, 8, 8), torch.randn(2, 64, 2, 2)
    twice = []
    for _ in range(2):
        ours, _ = networks(torch.contiguous_format)
        maps = step(ours, images, gradient, torch.float32)
        twice.append([maps, *(one.grad for one in ours.parameters()), *ours.buffers()])
    found = {"different": float(not all(torch.equal(one, other) for one, other in zip(*twice, strict=True)))}
    before = [one.clone() for one in ours.buffers()]
    for module in ours.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
    ours.requires_grad_(False)
    again = run_chain(ours, images, torch.float32)
    found["changed"] = float(
        not all(torch.equal(one, other) for one, other in zip(before, ours.buffers(), strict=True))
    )
    found["frozen"] = float(again.requires_grad or not torch.equal(again, maps))
    return found


def check_evaluation() -> dict[str, float]:
    """Evaluation mode; no buffer changes."""
    ours, wanted = networks(torch.channels_last)
    for module, other in zip(ours.modules(), wanted.modules(), strict=True):
        if isinstance(module, nn.BatchNorm2d) and isinstance(other, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            other.load_state_dict(module.state_dict())
    before = [one.clone() for one in ours.buffers()]
    found = {}
    images = torch.randn(2, 3, 9, 8)
    with torch.no_grad():
        maps = run_chain(ours.eval(), images, torch.float32)
        found["maps"] = error(maps, wanted.eval().maps(images.double()))
    found["changed"] = float(
        not all(torch.equal(one, other) for one, other in zip(before, ours.buffers(), strict=True))
    )
    return found


def mend_bfloat16() -> None:
    """Make the interpreter multiply and round bfloat16 numbers as a GPU does."""
    builder = interpreter.InterpreterBuilder
    dot, cast = builder.create_dot, builder.cast_impl

    def single(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def mended_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, single(a), single(b), *rest)

    def mended_cast(self: Any, source: Any, to: Any) -> Any:
        if source.dtype.scalar == tl.float32 and to.scalar == tl.bfloat16:
            data = np.ascontiguousarray(source.data, dtype=np.float32)
            bits = torch.from_numpy(data).bfloat16().view(torch.int16).numpy().view(np.uint16)
            return interpreter.TensorHandle(bits.reshape(source.data.shape), tl.bfloat16)
        return cast(self, source, to)

    builder.create_dot, builder.cast_impl = mended_dot, mended_cast
    builder.create_fp_trunc = mended_cast


def check_wide_network() -> dict[str, float]:
    use(WIDE)
    return check_network(8, 8, torch.contiguous_format, torch.float32)


def check_bfloat16_network() -> dict[str, float]:
    use(WIDE)
    mend_bfloat16()
    return check_network(8, 8, torch.channels_last, torch.bfloat16)


CHECKS: dict[str, Callable[[], dict[str, float]]] = {
    "convolution": check_convolution,
    "large mean": check_large_mean,
    "network": lambda: check_network(9, 8, torch.channels_last, torch.float32),
    "evaluation": check_evaluation,
    "modes": check_modes,
    "network, wide": check_wide_network,
    "network, bfloat16": check_bfloat16_network,
}


def main() -> None:
    use(MANY)
    found = {}
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        found[name] = CHECKS[name]()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
