"""An error where the host waits for the GPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["no_waiting"]


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever waits for the device is an error."""
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mode announces that it is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
