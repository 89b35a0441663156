"""The optimiser, the schedules of its learning rate, and its state as tensors."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from longtail._io import import_extra
from longtail._registry import Registry, nearest
from longtail.models import Model

CAPTURED = ("sgd", "adamw")
"""Our optimisers, whose steps a CUDA graph can hold; all others are timm's."""

SCHEDULES: Registry[Callable[[float, int, Sequence[float], float], float]] = Registry("schedule")
"""Schedules by name: the factor of the learning rate from epoch, epochs, milestones and decay of a recipe.

``SCHEDULES.register("linear", lambda epoch, epochs, milestones, decay: 1 - epoch / epochs)`` adds one.
"""
SCHEDULES.register(
    "steps",
    lambda e, epochs, milestones, decay: decay ** sum(e >= (round(m * epochs) if m < 1 else m) for m in milestones),
)
SCHEDULES.register("cosine", lambda e, epochs, *_: (1 + math.cos(math.pi * e / epochs)) / 2)
SCHEDULES.register("constant", lambda *_: 1.0)


def learning_rate(
    epoch: float,
    *,
    lr: float,
    epochs: int,
    schedule: str,
    milestones: Sequence[float] = (),
    decay: float = 0.1,
    warmup: int = 0,
    warmup_steps: int = 0,
    step: int = 0,
) -> float:
    r"""The learning rate at an epoch and at a step of the stage, both counted from 0.

    Warm-up is linear, :math:`lr (e + 1) / w` in epoch :math:`e < w`; with ``warmup_steps`` there is no warm-up of
    epochs, and step :math:`s < w` has the rate of its epoch times :math:`(s + 1) / w`. Then ``"steps"`` multiplies by
    ``decay`` at each milestone (values below 1 are fractions of all epochs), ``"cosine"`` goes down to zero,
    :math:`lr (1 + \cos(\pi e / E)) / 2`, and ``"constant"`` stays.

    Example:
        >>> paper = dict(lr=0.1, epochs=200, schedule="steps", milestones=(0.8, 0.9), warmup=5)
        >>> [round(learning_rate(e, **paper), 6) for e in (0, 1, 4, 5, 159, 160, 180)]
        [0.02, 0.04, 0.1, 0.1, 0.1, 0.01, 0.001]
    """
    if not warmup_steps and epoch < warmup:
        return lr * (math.floor(epoch) + 1) / warmup
    factor = (step + 1) / warmup_steps if step < warmup_steps else 1.0
    return lr * SCHEDULES.find(schedule)(epoch, epochs, milestones, decay) * factor


def parameter_groups(
    model: Model,
    parameters: Sequence[nn.Parameter],
    *,
    weight_decay: float,
    decay_all: bool,
    backbone_lr: float = 1.0,
    layer_decay: float = 1.0,
) -> list[dict[str, Any]]:
    """Parameters with the same weight decay and the same factor of the learning rate, in groups for an optimiser.

    Args:
        model: the model.
        parameters: those that are trained.
        weight_decay: of a group.
        decay_all: whether biases and norms, which have fewer than two dimensions, are decayed too.
        backbone_lr: the factor of the backbone's learning rate; that of the head has 1.
        layer_decay: the factor from a layer to the one before it, the head being the last.
    """
    layers, chosen = model.layers_of_parameters(), set(map(id, parameters))
    last = max(layers.values())
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if id(parameter) in chosen:
            decay = weight_decay if decay_all or parameter.ndim > 1 else 0.0
            scale = layer_decay ** (last - layers[name]) * (backbone_lr if name.startswith("backbone.") else 1.0)
            groups.setdefault((decay, scale), []).append(parameter)
    return [
        {"params": found, "weight_decay": float(decay), "lr_scale": scale} for (decay, scale), found in groups.items()
    ]


def make_optimizer(
    groups: Sequence[dict[str, Any]], name: str = "sgd", *, momentum: float = 0.9, nesterov: bool = False
) -> Optimizer:
    """An optimiser by name; the learning rate is set before each epoch.

    State of our own exists from the start, as zeros, and a CUDA graph can read their learning rate.

    Args:
        groups: from :func:`parameter_groups`.
        name: ``"sgd"``, ``"adamw"``, or one of timm's: ``"lion"``, ``"lamb"``, ``"adamp"``, …
        momentum: of SGD, and of those of timm's that have one.
        nesterov: of SGD.
    """
    if name not in CAPTURED:
        check_optimizer(name)
        return _of_timm(groups, name, momentum)
    parameters = [parameter for group in groups for parameter in group["params"]]
    device, fused = parameters[0].device, parameters[0].is_cuda
    given = [{**group, "lr": torch.zeros((), device=device) if fused else 0.0} for group in groups]
    foreach = False if not fused else None
    if name == "sgd":
        sgd = SGD(given, lr=0.0, momentum=float(momentum), nesterov=nesterov, fused=fused, foreach=foreach)
        for parameter in parameters:
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd
    adamw = AdamW(given, fused=fused, capturable=fused, foreach=foreach)
    for parameter in parameters:
        adamw.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=device if fused else "cpu"),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return adamw


def check_optimizer(name: str) -> None:
    """Raise unless an optimiser has this name, its steps need gradients only, and checkpoints can hold its state."""
    if name in CAPTURED:
        return
    optim = import_extra("timm.optim", "vision")
    known = [*CAPTURED, *optim.list_optimizers()]
    if name not in known:
        near = nearest(name, known)
        raise ValueError(f"Expected `optimizer` to be sgd, adamw or one of timm's, but got {name!r}{near}.")
    try:
        sample = [nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))]
        made = _of_timm([{"params": sample, "weight_decay": 0.0}], name, 0.9)
        for parameter in sample:
            parameter.grad = torch.ones_like(parameter)
        made.step()
        optimizer_tensors(made)
    except Exception as error:  # each optimiser has its own
        why = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"Expected `optimizer` to be one that takes gradients and keeps tensors and numbers, but got {name}: {why}."
        ) from error


def _of_timm(groups: Sequence[dict[str, Any]], name: str, momentum: float) -> Optimizer:
    optim = import_extra("timm.optim", "vision")
    made: Optimizer = optim.create_optimizer_v2([dict(group) for group in groups], opt=name, lr=1e-3, momentum=momentum)
    return made


# Its state, for checkpoints without pickle


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
        tensors["optimizer.numbers"] = torch.frombuffer(text, dtype=torch.uint8)
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
        KeyError: a value is missing.
    """
    prefix = "optimizer."
    values: dict[str, Any] = {
        name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
    }
    if "numbers" in values:
        values |= json.loads(bytes(values.pop("numbers").tolist()))
    existing, parameters = _state(optimizer), _parameters(optimizer)
    for name in existing.keys() - values.keys():
        raise KeyError(name)
    for name, value in values.items():
        place, _, key = name.partition(".")
        if isinstance(existing.get(name), Tensor):
            existing[name].copy_(value)  # in place: a captured graph reads it
        elif place.startswith("group"):
            optimizer.param_groups[int(place.removeprefix("group"))][key] = value
        else:  # many optimisers make their state in the first step
            parameter = parameters[int(place)]
            optimizer.state[parameter][key] = value.to(parameter.device) if isinstance(value, Tensor) else value
