"""The state of any optimiser as tensors, for checkpoints without pickle."""

import json
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["load_optimizer", "optimizer_tensors"]

_NUMBERS = "optimizer.numbers"


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """All state of an optimiser: its tensors, and its numbers as JSON in bytes if it has any.

    Raises:
        TypeError: it has something else.
    """
    found = _state(optimizer)
    tensors = {f"optimizer.{name}": value for name, value in found.items() if isinstance(value, Tensor)}
    numbers = {name: value for name, value in found.items() if not isinstance(value, Tensor)}
    if numbers:
        text = bytearray(json.dumps(numbers, sort_keys=True).encode())
        tensors[_NUMBERS] = torch.frombuffer(text, dtype=torch.uint8)
    return tensors


def _state(optimizer: Optimizer) -> dict[str, Any]:
    """Values by name: ``0.exp_avg`` of the first parameter, ``group0.step`` of the first group."""
    found: dict[str, Any] = {}
    for number, parameter in enumerate(_parameters(optimizer)):
        found |= {f"{number}.{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
    if not type(optimizer).__module__.startswith("torch."):  # torch's groups have options only, as the recipe has
        for number, group in enumerate(optimizer.param_groups):
            kept = {key: value for key, value in group.items() if isinstance(value, int | float | Tensor)}
            found |= {f"group{number}.{key}": value for key, value in kept.items() if key != "lr"}
    return found


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def load_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load what :func:`optimizer_tensors` returned into an optimiser of the same kind.

    Raises:
        KeyError: a tensor is missing.
    """
    values: dict[str, Any] = {}
    if _NUMBERS in tensors:
        values = json.loads(bytes(tensors[_NUMBERS].tolist()))
    for name, value in _state(optimizer).items():
        if isinstance(value, Tensor):  # in place: a captured graph reads it
            value.copy_(tensors[f"optimizer.{name}"])
    prefix = "optimizer."
    values |= {
        key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix) and key != _NUMBERS
    }
    parameters = _parameters(optimizer)
    for name, value in values.items():
        place, _, key = name.partition(".")
        if place.startswith("group"):
            optimizer.param_groups[int(place.removeprefix("group"))][key] = value
            continue
        parameter = parameters[int(place)]
        if key not in optimizer.state[parameter]:  # other optimisers make their state in the first step
            optimizer.state[parameter][key] = value.to(parameter.device) if isinstance(value, Tensor) else value
