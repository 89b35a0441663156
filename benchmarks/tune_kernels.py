"""Which tiles the Triton kernels of the CIFAR ResNet like best on this GPU.

Correctness first: every kernel on every layer shape of a ResNet-32, against float64. Then, shape by shape, the most
frequent first, each candidate tile is timed as CUDA graphs, alone and twelve at a time on twelve streams, which is how
a fleet runs them and what is chosen by; a tile whose result differs is left out. Candidates are compiled ahead by some
processes, into Triton's cache on disk. At the end the whole pass, forward and backward, is timed with the table's tiles
and with those found: only if the second is faster are they worth writing into ``configs.py``.

    python benchmarks/tune_kernels.py [--out tiles.json] [--seconds 100] [--check]
    TRITON_INTERPRET=1 python benchmarks/tune_kernels.py --dry      # the script itself, on any CPU

``use_tiles("tiles.json")`` of ``longtail.models.kernels.configs`` reads the file; ``benchmarks/fleet.py --tiles`` too.
"""

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.models.cifar_resnet import CifarResNet
from longtail.models.kernels import launch
from longtail.models.kernels.chain import run_chain
from longtail.models.kernels.configs import Operation, Tile, tile_for, use_tiles
from longtail.models.kernels.plan import Layer, Plan

MEMBERS = 12
REPEATS = 8  # launches in a graph
SHAPES = [(16, 16, 1, 32, 10), (32, 32, 1, 16, 9), (64, 64, 1, 8, 9), (16, 32, 2, 32, 1), (32, 64, 2, 16, 1)]
"""Channels, stride, height, and how many layers of a ResNet-32 are so."""
IMAGES = (3, 16, 1, 32, 1)


@dataclass(frozen=True)
class Setting:
    """Where and how large."""

    device: str = "cuda"
    batch: int = 128
    dtype: torch.dtype = torch.bfloat16


@dataclass(frozen=True)
class Case:
    """A kernel on a shape."""

    operation: Operation
    shape: tuple[int, int, int, int, int]

    def layer(self, batch: int) -> Layer:
        read, written, stride, height, _ = self.shape
        return Layer(batch, read, written, stride, height, height, image=read == 3)

    def key(self) -> tuple[Operation, int, int, int]:
        layer = self.layer(1)
        if self.operation == "input":
            return "input", layer.written, layer.read, layer.height
        return (
            self.operation,
            layer.written if self.operation == "normalise" else layer.read,
            layer.written,
            (layer.out_height),
        )


def cases() -> list[Case]:
    """All kernels, those that cost most first."""
    found = [Case(op, shape) for shape in SHAPES[:3] for op in ("input", "forward", "weight", "normalise")]
    found += [Case("forward", IMAGES), Case("weight", IMAGES)]
    return found + [Case(op, shape) for shape in SHAPES[3:] for op in ("input", "forward", "weight")]


def candidates(case: Case) -> Iterator[Tile]:  # noqa: PLR0912 - a table in the form of code
    """A bounded search: what differs much, not every product."""
    read, written, _, height, _ = case.shape
    wide = max(read, written)
    few, many = {16: (64, 128), 32: (64, 128), 64: (32, 64)}[wide]
    if case.operation == "normalise":
        for rows in (2048 // wide, 4096 // wide):
            for programs in (few, many, 2 * many):
                yield Tile(rows, 0, programs, 4, 2)
        return
    if case.operation == "weight":
        chunks = {3: (64,), 16: (64, 128, 256), 32: (64, 128), 64: (64, 128, 256)}[read]
        for chunk in chunks:
            for rows in (64, 128):
                for programs in {16: (32, 64, 128), 32: (16, 32, 64), 64: (8, 16, 32)}[wide]:
                    yield Tile(rows, chunk, programs, 8 if chunk * written > 8192 else 4, 2 if rows == 128 else 3)
        return
    if read == 3:
        for rows, warps, stages in [(64, 4, 1), (64, 4, 2), (128, 8, 1), (128, 4, 1)]:
            yield Tile(rows, 64, many, warps, stages)
        return
    into = written if case.operation == "input" else read  # channels that the kernel reads
    for rows, warps, programs in ((128, 4, many), (128, 4, few), (64, 4, many), (256, 8, many)):
        if rows == 256 and height == 8:
            continue
        if into <= 32:  # few chunks of several taps, all of a tile's loaded ahead, or one after the other
            for chunk, stages in ((2 * into, 2), (4 * into, 2), (4 * into, 1)):
                yield Tile(rows, chunk, programs, warps, stages, True)
        for chunk, stages in ((into, 4), (2 * into, 3), (4 * into, 2)) if into < 64 else ((64, 3), (64, 4), (128, 2)):
            yield Tile(rows, chunk, programs, warps, stages)


class Problem:
    """One kernel on one shape, with data to run it on."""

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
        self.plan = Plan([layer], [self.weight], setting.dtype)
        self.cast = launch.cast(self.plan)
        if layer.image:
            size = (layer.batch, layer.real, layer.height, layer.width)
            self.x = torch.randn(size, generator=generator).to(setting.device)
        else:
            self.x = maps(layer.pixels_in, layer.real, positive=True)
        self.y, self.gradient = maps(layer.pixels, layer.written), maps(layer.pixels, layer.written)
        self.out = maps(layer.pixels, layer.written, positive=True)
        self.below = launch.Below(
            maps(layer.pixels_in, layer.read), vector(2 * layer.read), vector(layer.read), vector(layer.read)
        )
        self.above = launch.Below(self.y, vector(2 * layer.written), vector(layer.written), vector(layer.written))
        self.sums = launch._rows(layer.work("forward"), layer.written, self.y)
        self.sums.rows.copy_(torch.randn(self.sums.rows.shape, generator=generator).square())
        self.running = (
            *(vector(layer.written) for _ in range(2)),
            torch.zeros((), dtype=torch.int64, device=setting.device),
        )
        self.norm = torch.empty(2 * layer.written, device=setting.device)

    def run(self) -> list[Tensor]:
        """What the kernel leaves; of the input's gradient, with and without the join where a layer has either place."""
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
        """What must not depend on the tile."""
        left = [one.double() for one in self.run()]
        if self.case.operation == "weight":
            left[-3] = left[-3].sum(0)
        elif self.case.operation == "input":
            left = [one.sum(0) if number % 2 else one for number, one in enumerate(left)]
        return left[:1] if self.case.operation == "forward" else left


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def reference(problem: Problem) -> list[tuple[str, Tensor, Tensor]]:
    """What a kernel leaves beside what float64 makes of the same bfloat16 numbers."""
    layer, case = problem.layer, problem.case

    def image(maps: Tensor, height: int, width: int) -> Tensor:
        return maps.double().view(layer.batch, height, width, -1).permute(0, 3, 1, 2)

    def flat(maps: Tensor) -> Tensor:
        return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])

    weight = problem.weight.to(problem.plan.dtype).double()
    x = problem.x.to(problem.plan.dtype).double() if layer.image else image(problem.x, layer.height, layer.width)
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
        d = image(problem.gradient, layer.out_height, layer.out_width)
        size = list(x.shape)
        dx = flat(torch.nn.grad.conv2d_input(size, weight, d, stride=layer.stride, padding=1))
        below = problem.below
        centred = below.y.double() - below.norm[: layer.read].double()
        xhat = centred * below.norm[layer.read :].double()
        inner = F.pad(d, (0, 0, 0, 0, 0, 0)) if layer.stride == 1 else torch.zeros_like(x)
        if layer.stride == 2:
            side = (layer.written - layer.read) // 2
            inner[:, :, ::2, ::2] = d[:, side : side + layer.read]
        joined = torch.where(problem.x > 0, dx + flat(inner), 0.0)
        found = [("joined", left[0], joined), ("joined sums", left[1].sum(0)[1], (joined * xhat).sum(0))]
        if layer.stride == 1:
            masked = torch.where(xhat * below.gamma.double() + below.beta.double() > 0, dx, 0.0)
            found += [("masked", left[2], masked), ("masked sums", left[3].sum(0)[1], (masked * xhat).sum(0))]
        return found
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


def check(setting: Setting) -> float:
    """The largest error of all kernels; bfloat16 rounds to 2^-9, and what is rounded twice errs a little more."""
    worst = 0.0
    for case in cases():
        for name, found, wanted in reference(Problem(case, setting)):
            bound = 1e-2 if "sums" in name else 4e-3
            value = error(found, wanted)
            worst = max(worst, value)
            if not value < bound:
                raise SystemExit(f"{case}: {name} is off by {value:.2e}, more than {bound}")
    return worst


def compile_one(job: tuple[Case, Tile, Setting]) -> str | None:
    """Run it once, so that it lies in Triton's cache; why not, where it does not."""
    case, tile, setting = job
    try:
        use_tiles({case.key(): tile})
        Problem(case, setting).run()
        torch.cuda.synchronize()
    except Exception as failure:  # of any kind: the candidate is left out
        return f"{type(failure).__name__}: {failure}"[:200]
    return None


def timed(runs: list[Callable[[], object]], repeats: int = REPEATS) -> float:
    """Microseconds of one run, where all of ``runs`` are replayed at once, each a graph on a stream of its own."""
    streams = [torch.cuda.Stream() for _ in runs]
    graphs, kept = [], []
    for run, stream in zip(runs, streams, strict=True):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept.append([run() for _ in range(repeats)][-1])
        graphs.append(graph)

    def replay() -> None:
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()

    best = float("inf")
    replay()
    for _ in range(4):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(3):
            replay()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begin) / 3)
    return 1e6 * best / len(runs) / repeats


def search(setting: Setting, deadline: float, failed: dict[tuple[Case, Tile], str]) -> list[dict[str, Any]]:
    """The best tile of each case."""
    found = []
    for case in cases():
        default = tile_for(*case.key())
        tried: list[tuple[float, Tile]] = []
        use_tiles(None)
        problems = [Problem(case, setting) for _ in range(MEMBERS)]
        wanted = problems[0].summary()
        for tile in dict.fromkeys([default, *candidates(case)]):
            if time.monotonic() > deadline and tried:
                break
            if (case, tile) in failed:
                continue
            use_tiles({case.key(): tile})
            try:
                left = problems[0].summary()
                if any(not error(one, other) < 1e-2 for one, other in zip(left, wanted, strict=True)):
                    print(f"  {case.key()} {tile}: another result, left out")
                    continue
                tried.append((timed([problem.run for problem in problems]), tile))
            except Exception as failure:  # not compiled ahead, and asks for more than the GPU has
                print(f"  {case.key()} {tile}: {type(failure).__name__}, left out")
        together, tile = min(tried, key=lambda one: one[0])
        use_tiles({case.key(): tile})
        alone = timed([problems[0].run])
        operation, read, written, height = case.key()
        was = tried[0][0]
        found.append(
            {
                "operation": operation, "read": read, "written": written, "height": height, "tile": asdict(tile),
                "us_twelve": round(together, 2), "us_alone": round(alone, 2), "us_default": round(was, 2),
                "layers": case.shape[-1], "tried": len(tried),
            }
        )  # fmt: skip
        shape = f"{operation:10}{read:4}{written:4} {height:3}"
        print(
            f"{shape}  default {was:7.2f}  best {together:7.2f}  alone {alone:7.2f} us  of {len(tried):2}  {tile}",
            flush=True,
        )
    use_tiles(None)
    return found


def whole(setting: Setting, depth: int = 32) -> float:
    """Microseconds of a whole pass, forward and backward, twelve at a time."""
    runs: list[Callable[[], object]] = []
    for seed in range(MEMBERS):
        torch.manual_seed(seed)
        network = CifarResNet(depth).to(setting.device).train()
        images = torch.randn(setting.batch, 3, 32, 32, device=setting.device)
        gradient = torch.randn(setting.batch, 64, 8, 8, device=setting.device)

        def run(network: CifarResNet = network, images: Tensor = images, gradient: Tensor = gradient) -> Tensor:
            network.zero_grad(set_to_none=True)
            maps = run_chain(network, images, *network._layers(), setting.dtype)
            maps.backward(gradient.to(maps.dtype))
            return maps

        runs.append(run)
    return timed(runs, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=100.0, help="when to stop searching, compilation included")
    parser.add_argument("--workers", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--check", action="store_true", help="correctness alone")
    parser.add_argument("--dry", action="store_true", help="on a CPU, in Triton's interpreter: correctness alone, tiny")
    given = parser.parse_args()
    began = time.monotonic()
    setting = Setting("cpu", 2, torch.float32) if given.dry else Setting()
    print(f"correct: largest error {check(setting):.1e}, {time.monotonic() - began:.0f} s", flush=True)
    if given.check or given.dry:
        counts = {case.key(): len(dict.fromkeys(candidates(case))) for case in cases()}
        print(f"{sum(counts.values())} candidates")
        return
    jobs = [(case, tile, setting) for case in cases() for tile in dict.fromkeys(candidates(case))]
    failed: dict[tuple[Case, Tile], str] = {}
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        for (case, tile, _), why in zip(jobs, pool.imap(compile_one, jobs, chunksize=1), strict=True):
            if why is not None:
                failed[case, tile] = why
            if time.monotonic() - began > 0.6 * given.seconds:
                print("compilation takes too long: the rest is compiled on use")
                pool.terminate()
                break
    print(f"{len(jobs)} candidates compiled, {len(failed)} cannot run, {time.monotonic() - began:.0f} s", flush=True)
    for (case, tile), why in list(failed.items())[:3]:
        print(f"  {case.key()} {tile}: {why}")
    best = search(setting, began + given.seconds, failed)
    chosen = {(r["operation"], r["read"], r["written"], r["height"]): Tile(**r["tile"]) for r in best}
    times = {"default": whole(setting)}
    use_tiles(chosen)
    times["tuned"] = whole(setting)
    print(f"forward and backward, twelve at a time, us a model: {times}; {time.monotonic() - began:.0f} s in all")
    if given.out:
        about = {
            "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"), "command": " ".join(sys.argv),
        }  # fmt: skip
        text = json.dumps({**about, "us_whole": times, "best": best}, indent=1)
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
