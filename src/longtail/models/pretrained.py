"""Weights from a local file, read without running code from it, and put into a network strictly."""

import json
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from longtail._checks import shown

__all__ = ["load_weights", "read_mean_std", "read_weights"]


def read_weights(path: str | PathLike[str]) -> dict[str, Tensor]:
    """The state dict in a ``.safetensors`` file, or in a file of ``torch.save`` (tensors only: no code is run).

    A state dict under the key ``state_dict`` or ``model`` is found, and ``module.`` of DataParallel taken off.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Expected weights in {path}, but there is no such file.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # noqa: PLC0415

            found: object = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError as error:
        raise ImportError("Files of safetensors need safetensors: pip install 'longtail[vision]'.") from error
    except Exception as error:
        raise ValueError(
            f"Expected {path} to hold tensors only, in safetensors or torch's format, but got {type(error).__name__}."
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"Expected {path} to hold a state dict, but got something else.")
    return {str(key).removeprefix("module."): value for key, value in found.items()}


def read_mean_std(path: str | PathLike[str]) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The mean and standard deviation that a run's model was trained with, from its file; ``None`` in any other."""
    if Path(path).suffix != ".safetensors" or not Path(path).is_file():
        return None
    try:
        from safetensors import safe_open  # noqa: PLC0415 - an extra

        with safe_open(path, framework="pt") as file:
            card = json.loads((file.metadata() or {}).get("longtail", "{}"))
        return tuple(map(float, card["mean"])), tuple(map(float, card["std"]))
    except Exception:  # which of them it is, reading the weights will tell
        return None


def load_weights(network: nn.Module, path: str | PathLike[str], classifier: tuple[str, ...] = ()) -> None:
    """Put the weights in a file into ``network``: all of them and no others, apart from a classifier's.

    Args:
        network: a backbone.
        path: as in :func:`read_weights`: weights of this network, or of a ``Model`` that holds it as ``backbone``.
        classifier: names of the modules that the file may have and the network has not.
    """
    weights = read_weights(path)
    ours = {key.removeprefix("backbone."): value for key, value in weights.items() if key.startswith("backbone.")}
    if ours:
        weights = {key.removeprefix("network."): value for key, value in ours.items()}
    else:
        dropped = tuple(f"{name}." for name in classifier)
        weights = {key: value for key, value in weights.items() if not key.startswith(dropped)}
    state = network.state_dict()
    wrong = [
        f"{key} of shape {tuple(value.shape)} for {tuple(state[key].shape)}"
        for key, value in weights.items()
        if key in state and value.shape != state[key].shape
    ]
    if not wrong:
        missing, unexpected = network.load_state_dict(weights, strict=False)
        wrong = [f"{key} missing" for key in missing] + [f"{key} too many" for key in unexpected]
    if wrong:
        raise ValueError(f"Expected {path} to hold the weights of the network, but got {shown(wrong)}.")
