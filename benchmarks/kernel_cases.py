"""The kernels of the CIFAR ResNet for ``tune_kernels.py``: inputs, float64 references, and tiles to try."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.kernels import launch
from longtail.kernels.configs import Key, Operation, Tile
from longtail.kernels.plan import Layer, NetworkPlan, layers_of
from longtail.models import CifarResNet

SHAPES = [(16, 16, 1, 32), (32, 32, 1, 16), (64, 64, 1, 8), (16, 32, 2, 32), (32, 64, 2, 16)]
"""Channels, stride, height of the layers of a ResNet-32."""
IMAGES = (3, 16, 1, 32)


@dataclass(frozen=True)
class Setting:
    """Device and sizes."""

    device: str = "cuda"
    batch: int = 128
    dtype: torch.dtype = torch.bfloat16
    halo: bool = True
    """Whether kernels of ``cuda/`` can run."""


@dataclass(frozen=True)
class Case:
    """A kernel and the shape of a layer."""

    operation: Operation
    shape: tuple[int, int, int, int]

    def layer(self, batch: int) -> Layer:
        read, written, stride, height = self.shape
        return Layer(batch, read, written, stride, height, height, image=read == 3)

    def key(self) -> Key:
        return key_of(self.operation, self.layer(1))


def key_of(operation: Operation, layer: Layer) -> Key:
    if operation == "input":
        return operation, layer.written, layer.read
    return operation, layer.written if operation == "normalise" else layer.read, layer.written


def launches(batch: int = 128, depth: int = 32) -> Counter[Key]:
    """Launches of each kernel in a step of a ResNet, forward and backward, with the current tiles.

    The images need no gradient, and a layer that normalises its own input needs no launch of "normalise" for it.
    """
    convolutions, _ = CifarResNet(depth).layers()
    weights = [one.weight for one in convolutions]
    plan = NetworkPlan(layers_of(batch, 32, 32, weights, [one.stride[0] for one in convolutions]), weights)
    found: Counter[Key] = Counter()
    for number, layer in enumerate(plan.layers):
        found.update([key_of("forward", layer), key_of("weight", layer)])
        if not layer.image:
            found[key_of("input", layer)] += 1
        if not plan.enters[number + 1]:
            found[key_of("normalise", layer)] += 1
    return found


def cases() -> list[Case]:
    """All kernels, the most expensive first."""
    found = [Case(op, shape) for shape in SHAPES[:3] for op in ("input", "forward", "weight", "normalise")]
    found += [Case("forward", IMAGES), Case("weight", IMAGES)]
    return found + [Case(op, shape) for shape in SHAPES[3:] for op in ("input", "forward", "weight")]


def candidates(case: Case) -> Iterator[Tile]:  # noqa: PLR0912 - a table in the form of code
    """Tiles to try: a small selection. Layers for the CUDA kernels keep Triton's tile."""
    read, written, _, height = case.shape
    if read == written and case.operation != "normalise":
        yield from halo_candidates(case)
        return
    wide = max(read, written)
    few, many = {16: (64, 128), 32: (64, 128), 64: (32, 64)}[wide]
    if case.operation == "normalise":
        for rows in (2048 // wide, 4096 // wide):
            for programs in (few, many, 2 * many):
                yield Tile(rows, 0, programs, 4, 2)
        return
    if case.operation == "weight":
        chunks = {3: (64,), 16: (64, 128, 256), 32: (64, 128)}[read]
        for chunk in chunks:
            for rows in (64, 128):
                for programs in {16: (32, 64, 128), 32: (16, 32, 64), 64: (8, 16, 32)}[wide]:
                    yield Tile(rows, chunk, programs, 8 if chunk * written > 8192 else 4, 2 if rows == 128 else 3)
        return
    if read == 3:
        for rows, warps, stages, unrolled in [
            (128, 4, 1, False),
            (128, 4, 2, True),
            (256, 8, 2, True),
            (128, 4, 3, True),
        ]:
            yield Tile(rows, 64, many, warps, stages, unrolled)
        return
    into = written if case.operation == "input" else read  # channels that the kernel reads
    for rows, warps, programs in ((128, 4, many), (128, 4, few), (64, 4, many), (256, 8, many)):
        if rows == 256 and height == 8:
            continue
        for chunk, stages in ((into, 4), (2 * into, 3)) if into < 64 else ((64, 3), (64, 4)):
            yield Tile(rows, chunk, programs, warps, stages)


def halo_candidates(case: Case) -> Iterator[Tile]:
    """Tiles of the kernels in ``cuda/``."""
    read = case.shape[0]
    if case.operation == "weight":
        for rows, warps in {16: ((128, 4), (256, 4)), 32: ((128, 4), (256, 8)), 64: ((64, 8), (128, 8))}[read]:
            for programs in {16: (32, 64, 96), 32: (16, 32, 64), 64: (8, 16)}[read]:
                yield Tile(rows, 0, programs, warps, halo=True)
        return
    for rows, warps in {
        16: ((128, 4), (256, 8), (256, 4)),
        32: ((128, 4), (256, 8), (256, 4)),
        64: ((64, 4), (128, 4)),
    }[read]:
        for programs in {16: (64, 128), 32: (64, 128), 64: (64, 128)}[read]:
            yield Tile(rows, 0, programs, warps, halo=True)


class Problem:
    """One kernel on one shape, with inputs."""

    def __init__(self, case: Case, setting: Setting) -> None:
        self.case, self.layer = case, case.layer(setting.batch)
        layer = self.layer
        generator = torch.Generator().manual_seed(0)

        def maps(pixels: int, channels: int, positive: bool = False) -> Tensor:
            made = torch.randn(pixels, channels, generator=generator)
            return (made.relu() if positive else made).to(setting.device, setting.dtype)

        def vector(channels: int) -> Tensor:
            return torch.empty(channels).uniform_(0.5, 1.5, generator=generator).to(setting.device)

        self.weight = torch.randn(layer.written, layer.real, 3, 3, generator=generator).to(setting.device) / 10
        self.plan = NetworkPlan([layer], [self.weight], setting.dtype)
        self.cast = launch.cast(self.plan)
        if layer.image:
            size = (layer.batch, layer.real, layer.height, layer.width)
            self.images = torch.randn(size, generator=generator).to(setting.device)
            self.x = launch.pack(self.images, layer, setting.dtype)
        else:
            self.x = maps(layer.pixels_in, layer.real, positive=True)
        self.y, self.gradient = maps(layer.pixels, layer.written), maps(layer.pixels, layer.written)
        self.out = maps(layer.pixels, layer.written, positive=True)
        self.below = launch.NormState(
            maps(layer.pixels_in, layer.read), vector(2 * layer.read), vector(layer.read), vector(layer.read)
        )
        self.above = launch.NormState(self.y, vector(2 * layer.written), vector(layer.written), vector(layer.written))
        self.sums = launch._rows(layer.work("forward"), layer.written, self.y)
        self.sums.rows.copy_(torch.randn(self.sums.rows.shape, generator=generator).square())
        self.running = (
            *(vector(layer.written) for _ in range(2)),
            torch.zeros((), dtype=torch.int64, device=setting.device),
        )
        self.norm = torch.empty(2 * layer.written, device=setting.device)

    @property
    def launches(self) -> int:
        """Launches per :meth:`run`."""
        return 2 if self.case.operation == "input" and self.layer.stride == 1 else 1

    def run(self) -> list[Tensor]:
        """Run the kernel and return its outputs; the gradient of the input with and without the skip connection."""
        layer, (start, turned, end) = self.layer, self.plan.cast_at[0]
        match self.case.operation:
            case "forward":
                y, found = launch.convolve(self.x, self.cast[start:turned], layer)
                return [y, found.rows]
            case "input":
                left: list[Tensor] = []
                joined: list[dict[str, Any]] = [{"skip": self.gradient, "seen": self.x}]
                for how in joined if layer.stride == 2 else [*joined, {}]:
                    g, found = launch.input_gradient(self.gradient, self.cast[turned:end], layer, self.below, **how)
                    left += [g, found.rows]
                return left
            case "weight":
                parts = torch.empty(layer.work("weight").programs, layer.size, device=self.x.device)
                to = (torch.empty_like(self.norm[: layer.written]), torch.empty_like(self.norm[: layer.written]))
                through = launch.weight_part(
                    self.x, self.gradient, layer, self.above, self.sums, parts, to, keep=not layer.image
                )
                return [through, parts, *to] if not layer.image else [parts, *to]
            case "normalise":
                affine = (self.above.gamma, self.above.beta)
                out = launch.normalised(
                    layer, self.y, self.sums, self.norm, affine, self.running,
                    momentum=0.1, eps=1e-5, skip=self.gradient, entry=layer,
                )  # fmt: skip
                return [out, self.norm]

    def summary(self) -> list[Tensor]:
        """Run, and return the outputs that must not depend on the tile."""
        left = [one.double() for one in self.run()]
        if self.case.operation == "weight":
            left[-3] = left[-3].sum(0)
        elif self.case.operation == "input":
            left = [one.sum(0) if number % 2 else one for number, one in enumerate(left)]
        return left[:1] if self.case.operation == "forward" else left


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def flat(maps: Tensor) -> Tensor:
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


def input_reference(
    problem: Problem, weight: Tensor, d: Tensor, left: list[Tensor]
) -> list[tuple[str, Tensor, Tensor]]:
    """Like :func:`reference`, for the gradient of the input, given the gradient of the output ``d``."""
    layer, below = problem.layer, problem.below
    size = [layer.batch, layer.read, layer.height, layer.width]
    dx = flat(torch.nn.grad.conv2d_input(size, weight, d, stride=layer.stride, padding=1))
    xhat = (below.y.double() - below.norm[: layer.read].double()) * below.norm[layer.read :].double()
    flowed = problem.gradient.double()
    if layer.stride == 2:
        side = (layer.written - layer.read) // 2
        inner = torch.zeros(size, dtype=torch.float64, device=d.device)
        inner[:, :, ::2, ::2] = d[:, side : side + layer.read]
        flowed = flat(inner)
    joined = torch.where(problem.x > 0, dx + flowed, 0.0)
    found = [("joined", left[0], joined), ("joined sums", left[1].sum(0)[1], (joined * xhat).sum(0))]
    if layer.stride == 1:
        masked = torch.where(xhat * below.gamma.double() + below.beta.double() > 0, dx, 0.0)
        found += [("masked", left[2], masked), ("masked sums", left[3].sum(0)[1], (masked * xhat).sum(0))]
    return found


def reference(problem: Problem) -> list[tuple[str, Tensor, Tensor]]:
    """Names, outputs of the kernel, and the same computed in float64 from the same bfloat16 inputs."""
    layer, case = problem.layer, problem.case

    def image(maps: Tensor, height: int, width: int) -> Tensor:
        return maps.double().view(layer.batch, height, width, -1).permute(0, 3, 1, 2)

    weight = problem.weight.to(problem.plan.dtype).double()
    x = problem.images.to(problem.plan.dtype).double() if layer.image else image(problem.x, layer.height, layer.width)
    left = problem.run()
    if case.operation == "forward":
        y = flat(F.conv2d(x, weight, stride=layer.stride, padding=1))
        parts = y.split(layer.work("forward").run)
        m2 = torch.stack([(part - part.mean(0)).square().sum(0) for part in parts])
        return [
            ("y", left[0], y),
            ("mean", left[1][:, 0], torch.stack([p.mean(0) for p in parts])),
            ("m2", left[1][:, 1], m2),
        ]
    if case.operation == "input":
        return input_reference(problem, weight, image(problem.gradient, layer.out_height, layer.out_width), left)
    if case.operation == "weight":
        above, sums = problem.above, problem.sums.rows.double().sum(0) / layer.pixels
        mean, rstd = above.norm.double().chunk(2)
        xhat = (problem.y.double() - mean) * rstd
        d = rstd * above.gamma.double() * (problem.gradient.double() - sums[0] - xhat * sums[1])
        wanted = torch.nn.grad.conv2d_weight(
            x, list(weight.shape), image(d, layer.out_height, layer.out_width), stride=layer.stride, padding=1
        )
        parts = left[-3].sum(0).view(9, layer.read, layer.written)[:, : layer.real]
        found = [("weight", parts, wanted.permute(2, 3, 1, 0).reshape(parts.shape))]
        return found if layer.image else [("through", left[0], d), *found]
    means, m2s = problem.sums.rows.double().unbind(1)
    work = problem.sums.work
    n = (layer.pixels - work.run * torch.arange(work.programs)).clamp(0, work.run).double().to(means.device)[:, None]
    mean = (n * means).sum(0) / layer.pixels
    var = (m2s + n * (means - mean).square()).sum(0) / layer.pixels
    scaled = (problem.y.double() - mean) / (
        var + 1e-5
    ).sqrt() * problem.above.gamma.double() + problem.above.beta.double()
    return [("out", left[0], F.relu(scaled + problem.gradient.double())), ("mean", left[1][: layer.written], mean)]
