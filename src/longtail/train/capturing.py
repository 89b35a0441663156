"""Captures of CUDA graphs, and what is done where one fails."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

__all__ = ["capturing", "tell_why_not"]

_OURS = "thread_local"  # other threads load meanwhile: what they ask of the GPU is none of a capture's business


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> Iterator[None]:
    """Capture what is done inside; where that fails, torch is as before.

    Args:
        graph: takes it.
        pool: the memory that its graphs share, as ``torch.cuda.graph_pool_handle`` gives it.
        stream: on which it is done.

    Raises:
        RuntimeError: where something cannot be captured.
    """
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=_OURS):
            yield
    except RuntimeError:
        _get_over(pool, stream)
        raise


def _get_over(pool: Any, stream: torch.cuda.Stream) -> None:
    """Let the memory of a capture that failed go, and have the GPU's generator draw again.

    Some versions of torch leave their allocator waiting for the end of a capture that failed: then it keeps that
    memory, and all that other streams have used meanwhile. Their generator waits as well, and refuses to draw, until a
    capture has ended.
    """
    device = stream.device
    with suppress(RuntimeError):  # where torch has ended it; some versions then keep the memory all the same
        torch._C._cuda_endAllocateToPool(device.index, pool)
        torch._C._cuda_releasePool(device.index, pool)
    nothing = torch.cuda.CUDAGraph()
    with suppress(RuntimeError), torch.cuda.graph(nothing, stream=stream, capture_error_mode=_OURS):
        torch.zeros(1, device=device)  # captured and never done


def tell_why_not(what: str, error: BaseException, handled: BaseException | None) -> None:
    """Warn of something that could not be captured.

    Args:
        what: it is.
        error: what went wrong last: the end of a capture that failed fails too, and says nothing.
        handled: what had gone wrong before all that, and is another matter.
    """
    while error.__context__ is not None and error.__context__ is not handled:
        error = error.__context__
    reason = str(error).partition("\n")[0]
    warnings.warn(f"{what} cannot be captured ({reason}): its kernels are launched one by one.", stacklevel=3)
