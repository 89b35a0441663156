"""A check that the host does not wait for the GPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["no_waiting"]


@contextmanager
def no_waiting() -> Iterator[None]:
    """Raise an error if the host waits for the device."""
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mode warns that it is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
