"""How the benchmarks time: a step as a CUDA graph, seconds by the device's own clock, and waiting for the device."""

import time
from collections.abc import Callable

import torch


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """A CUDA graph of one step."""
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


def synchronise() -> None:
    """Wait for the device, where there is one to wait for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(run: Callable[[], object], repeats: int, device: str) -> float:
    """Seconds of one run, as the mean of several in a row."""
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
