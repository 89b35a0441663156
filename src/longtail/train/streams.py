"""CUDA streams: given back, and kept in step."""

import weakref
from collections import defaultdict
from collections.abc import Sequence

import torch

__all__ = ["meet", "stream_for"]

_free: defaultdict[torch.device, list[torch.cuda.Stream]] = defaultdict(list)


def stream_for(owner: object, device: torch.device) -> torch.cuda.Stream:
    """A stream of the owner's own; when the owner is gone, it is another's.

    torch has 32 streams, and gives the first one again after the last: a process that takes a new one for every run
    comes to that on which torchvision decodes pictures, and which it waits for in the middle of a step.

    Args:
        owner: who runs something there, for as long as it lives.
        device: a GPU.
    """
    free = _free[device]
    stream = free.pop() if free else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    weakref.finalize(owner, free.append, stream)
    return stream


def meet(streams: Sequence[torch.cuda.Stream]) -> None:
    """Have whatever these streams are given from now on wait for all that any of them was given before."""
    if streams:
        first, *others = streams
        for other in others:
            first.wait_stream(other)
        met = first.record_event()
        for other in others:
            other.wait_event(met)
