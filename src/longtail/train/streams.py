"""CUDA streams that are given back."""

import weakref
from collections import defaultdict

import torch

__all__ = ["stream_for"]

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
