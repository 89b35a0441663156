"""Weights from a local file, read without running code from it."""

import json
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from longtail._checks import shown
from longtail._io import open_tensors, reading
from longtail.data.datasets.splits import Normalisation

Pretrained = bool | str | PathLike[str]
"""Whether to download published weights, or a file of weights."""


def load_weights(network: nn.Module, path: str | PathLike[str], classifier: tuple[str, ...] = ()) -> None:
    """Load the weights in a file into ``network``; the file must have all of them, and no others except a classifier.

    Args:
        network: a backbone.
        path: a ``.safetensors`` file, or one of ``torch.save`` with tensors only, with the weights of this network or
            of a ``Model`` that has it as ``backbone``.
        classifier: modules that the file may have and the network does not.
    """
    weights = _read_weights(Path(path))
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
        wrong = [f"{key} missing" for key in missing] + [f"{key} unexpected" for key in unexpected]
    if wrong:
        raise ValueError(f"Expected {path} to hold the weights of the network, but got {shown(wrong)}.")


def read_normalisation(path: str | PathLike[str]) -> Normalisation | None:
    """The normalisation of the run that wrote a model file; ``None`` for any other file."""
    if Path(path).suffix != ".safetensors" or not Path(path).is_file():
        return None
    with open_tensors(Path(path)) as file, reading(Path(path), "a model of longtail"):
        card = json.loads((file.metadata() or {}).get("longtail", "{}"))
        return Normalisation(tuple(card["mean"]), tuple(card["std"])) if "mean" in card else None


def _read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict, from under the key ``state_dict`` or ``model`` if needed, without DataParallel's ``module.``."""
    if not path.is_file():
        raise FileNotFoundError(f"Expected weights in {path}, but there is no such file.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # noqa: PLC0415

            found: object = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError as error:
        raise ImportError("A .safetensors file needs safetensors: pip install 'longtail[vision]'.") from error
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
