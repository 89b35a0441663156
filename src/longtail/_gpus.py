"""Which GPUs our own kernels run on."""

from contextlib import AbstractContextManager
from importlib.util import find_spec

import torch
from torch import Tensor

__all__ = ["CHECKED", "TRITON", "checked", "where_it_lies"]

CHECKED: tuple[tuple[int, int], ...] = ((9, 0),)
"""Compute capabilities of GPUs on which our kernels were checked and found faster: an H200's, and so an H100's."""

TRITON = find_spec("triton") is not None
"""Whether Triton is there; it is imported on use."""


def checked(device: torch.device) -> bool:
    """Whether our kernels were checked on such a device, and can run there.

    Example:
        >>> checked(torch.device("cpu"))
        False
    """
    if not TRITON or device.type != "cuda" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) in CHECKED


def where_it_lies(tensor: Tensor) -> AbstractContextManager[None]:
    """Has kernels be launched on a tensor's GPU: they are launched on the current one, and that may be another."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]
