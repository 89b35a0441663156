"""The device of the benchmarks, and how they time it."""

import statistics
import time
from collections.abc import Callable

import torch

from longtail.train.recipe import pick_device

DEVICE = pick_device("auto").type
"""``"cuda"`` or ``"cpu"``. Picked at import, before CUDA starts: see `pick_device` for CUDA_DEVICE_MAX_CONNECTIONS."""


def synchronise() -> None:
    """Wait for the GPU, if there is one."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """Return a function that replays a step from a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def wall_seconds(run: Callable[[], object]) -> float:
    """Seconds of one run on the clock of the host."""
    synchronise()
    begin = time.perf_counter()
    run()
    synchronise()
    return time.perf_counter() - begin


def seconds(run: Callable[[], object], repeats: int, device: str = DEVICE) -> float:
    """Mean seconds of several runs in a row, on the clock of the device."""
    if device != "cuda":
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - begin) / repeats
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000 / repeats


def median_ms(run: Callable[[], object], budget: float, device: str = DEVICE) -> float:
    """Median milliseconds of a run, within a budget of seconds."""
    seconds(run, 2, device)
    once = seconds(run, 1, device)
    repeats = max(1, int(0.02 / once))
    rounds = max(3, min(40, int(budget / (once * repeats))))
    return 1000 * statistics.median(seconds(run, repeats, device) for _ in range(rounds))


def peak_bytes(run: Callable[[], object], clean: Callable[[], object] = lambda: None) -> int | None:
    """Bytes of GPU memory that a run needs beyond what is allocated before it; None on a CPU.

    Args:
        run: what is measured; it runs once before.
        clean: frees what the first run left.
    """
    if DEVICE != "cuda":
        return None
    run()
    clean()
    synchronise()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    synchronise()
    return torch.cuda.max_memory_allocated() - before
