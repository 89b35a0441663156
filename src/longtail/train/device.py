"""Where to train or predict: the device that a name stands for."""

import os

import torch

__all__ = ["pick_device"]

# How many queues a GPU has, read when CUDA starts. By default they are 8, streams share them, and what should run
# beside a step waits behind it: loading, and the other members of a fleet.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """The device that a recipe names: a CPU, or a GPU of CUDA (or ROCm, which torch calls so too).

    Args:
        name: ``"cpu"``, ``"cuda"``, ``"cuda:1"``; ``"auto"`` is CUDA where torch finds it, else the CPU. Apple's
            ``"mps"`` is refused: it has no float64, which sums and measures are kept in, and none was there to test on.
        local_rank: which GPU ``"auto"`` takes.

    Example:
        >>> pick_device("cpu")
        device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"Expected `device` to be auto, cpu or cuda, but got {name!r}.") from None
    if device.type not in {"cpu", "cuda"}:
        why = ", which has no float64" if device.type == "mps" else ""
        raise ValueError(f"Expected `device` to be auto, cpu or cuda, but got {name!r}{why}.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"Expected a GPU for `device` = {name}, but torch finds none.")
    return device
