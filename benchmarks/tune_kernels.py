"""Find the fastest tiles of the kernels of the CIFAR ResNet on this GPU.

First, every kernel, including those of ``cuda/``, is checked on every layer shape of a ResNet-32 against float64. Then,
for each shape, the most frequent first, each candidate tile is timed as CUDA graphs, alone and twelve at a time on
twelve streams, as in a fleet; the latter decides. Tiles with other results are skipped. Candidates first run in other
processes, which fill Triton's cache on disk and may crash. Last, the whole forward and backward pass is timed with the
current and with the new tiles: write the new ones into ``configs.py`` only if they are faster there.

    python benchmarks/tune_kernels.py [--out tiles.json] [--seconds 100] [--check]
    TRITON_INTERPRET=1 python benchmarks/tune_kernels.py --dry      # tests the script on any CPU

``benchmarks/fleet.py --tiles`` reads the file.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from kernel_cases import Case, Problem, Setting, candidates, cases, error, launches, reference
from record import about
from timing import synchronise
from torch import Tensor

from longtail._io import write_json
from longtail.kernels.chain import run_chain
from longtail.kernels.configs import Tile, default_tile, tile_for, use_tiles
from longtail.models import CifarResNet

MEMBERS = 12
REPEATS = 32  # runs per graph, so that the 20 us of a replay on the host do not matter


def check(setting: Setting) -> float:
    """The largest error of all kernels. bfloat16 rounds to 2^-9, and some values are rounded twice."""
    worst = 0.0
    for case in cases():
        others = (default_tile(*case.key()), next(candidates(case)))
        for tile in dict.fromkeys([tile_for(*case.key()), *others]):
            if tile.halo and not setting.halo:
                continue
            use_tiles({case.key(): tile})
            for name, found, wanted in reference(Problem(case, setting)):
                bound = 1e-2 if "sums" in name else 4e-3
                value = error(found, wanted)
                worst = max(worst, value)
                if not value < bound:
                    raise SystemExit(f"{case}, {tile}: the error of {name} is {value:.2e}, more than {bound}")
    use_tiles(None)
    return worst


def compile_one(job: tuple[Case, Tile, Setting]) -> str | None:
    """Run a candidate once to fill Triton's cache, and return the error if it fails."""
    case, tile, setting = job
    try:
        use_tiles({case.key(): tile})
        Problem(case, setting).run()
        synchronise()
    except Exception as failure:  # any: the candidate is skipped
        return f"{type(failure).__name__}: {failure}"[:200]
    return None


def timed(runs: list[Callable[[], object]], repeats: int = REPEATS) -> float:
    """Microseconds per run if all ``runs`` are replayed at the same time, each as a graph on its own stream."""
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
        for _ in range(2):
            replay()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begin) / 2)
    return 1e6 * best / len(runs) / repeats


def search(setting: Setting, deadline: float, failed: dict[tuple[Case, Tile], str]) -> list[dict[str, Any]]:
    """The best tile of each case, with its times."""
    found: list[dict[str, Any]] = []
    for case in cases():
        tiles = list(dict.fromkeys([tile_for(*case.key()), *candidates(case)]))
        tried: list[tuple[float, Tile]] = []
        use_tiles({case.key(): tiles[0]})
        problems = [Problem(case, setting) for _ in range(MEMBERS)]
        wanted = problems[0].summary()
        for tile in tiles:
            if time.monotonic() > deadline and tried:
                break
            if (case, tile) in failed:
                continue
            use_tiles({case.key(): tile})
            try:
                left = problems[0].summary()
                if any(not error(one, other) < 1e-2 for one, other in zip(left, wanted, strict=True)):
                    print(f"  {case.key()} {tile}: other result, skipped")
                    continue
                tried.append((timed([problem.run for problem in problems]) / problems[0].launches, tile))
            except Exception as failure:  # needs more than the GPU has
                print(f"  {case.key()} {tile}: {type(failure).__name__}, skipped")
        if not tried:
            continue
        together, tile = min(tried, key=lambda one: one[0])
        use_tiles({case.key(): tile})
        alone = timed([problems[0].run]) / problems[0].launches
        operation, read, written = case.key()
        was = tried[0][0]
        row = {
            "operation": operation, "read": read, "written": written, "tile": asdict(tile),
            "us_twelve": round(together, 2), "us_alone": round(alone, 2), "us_default": round(was, 2),
            "tried": len(tried),
        }  # fmt: skip
        shape = f"{operation:10}{read:4}{written:4}"
        print(
            f"{shape}  default {was:7.2f}  best {together:7.2f}  alone {alone:7.2f} us  of {len(tried):2}  {tile}",
            flush=True,
        )
        found.append(row)
    use_tiles(None)
    return found


def whole(setting: Setting, depth: int = 32) -> float:
    """Microseconds of a forward and backward pass per model, twelve at a time."""
    runs: list[Callable[[], object]] = []
    for seed in range(MEMBERS):
        torch.manual_seed(seed)
        network = CifarResNet(depth).to(setting.device).train()
        images = torch.randn(setting.batch, 3, 32, 32, device=setting.device)
        gradient = torch.randn(setting.batch, 64, 8, 8, device=setting.device)

        def run(network: CifarResNet = network, images: Tensor = images, gradient: Tensor = gradient) -> Tensor:
            network.zero_grad(set_to_none=True)
            maps = run_chain(network, images, setting.dtype)
            maps.backward(gradient.to(maps.dtype))
            return maps

        runs.append(run)
    return timed(runs, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=100.0, help="time limit, including compilation")
    parser.add_argument("--workers", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--check", action="store_true", help="only check the results")
    parser.add_argument(
        "--dry", action="store_true", help="only check the results, small, on a CPU in Triton's interpreter"
    )
    given = parser.parse_args()
    began = time.monotonic()
    setting = Setting("cpu", 2, torch.float32, halo=False) if given.dry else Setting()
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
                print("compilation takes too long; the rest is compiled on use")
                pool.terminate()
                break
    print(f"{len(jobs)} candidates compiled, {len(failed)} cannot run, {time.monotonic() - began:.0f} s", flush=True)
    for (case, tile), why in list(failed.items())[:3]:
        print(f"  {case.key()} {tile}: {why}")
    best = search(setting, began + given.seconds, failed)
    chosen = {(r["operation"], r["read"], r["written"]): Tile(**r["tile"]) for r in best}
    times = {"default": whole(setting)}
    use_tiles(chosen)
    often = launches(setting.batch)  # depends on the tiles
    best = [{**row, "launches": often[key]} for key, row in zip(chosen, best, strict=True)]
    times["tuned"] = whole(setting)
    print(f"forward and backward, twelve at a time, us per model: {times}; {time.monotonic() - began:.0f} s in total")
    if given.out:
        write_json(given.out, {**about(), "us_whole": times, "best": best})  # the format of fleet.py --tiles


if __name__ == "__main__":
    main()
