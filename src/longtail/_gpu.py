"""Triton where it is installed, and the GPUs on which our kernels run."""

from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

CHECKED: tuple[tuple[int, int], ...] = ((9, 0),)
"""Compute capabilities of GPUs on which our kernels were checked and found faster: that of an H200 and an H100."""

TRITON = find_spec("triton") is not None

tl: Any
jit: Any


def is_checked(device: torch.device) -> bool:
    """Whether our kernels were checked on such a device, and can run there.

    Example:
        >>> is_checked(torch.device("cpu"))
        False
    """
    if not TRITON or device.type != "cuda" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) in CHECKED


def device_guard(tensor: Tensor) -> AbstractContextManager[None]:
    """Make the tensor's GPU the current one: Triton launches kernels on the current GPU."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]


def __getattr__(name: str) -> Any:
    """``jit`` and ``tl`` (``triton.language``), imported on use because that takes half a second.

    Without Triton, which CPU builds of torch do not bring, modules of kernels can be imported but not launched.
    """
    if name not in {"jit", "tl"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not TRITON:
        return _NoTriton() if name == "tl" else lambda function: function
    import triton  # type: ignore[import-untyped]  # noqa: PLC0415

    return triton.language if name == "tl" else triton.jit


class _NoTriton:
    """Stands for ``triton.language`` in annotations."""

    constexpr = None
