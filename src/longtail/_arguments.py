"""Arguments: what they may be, and checks that say in one sentence which one is wrong and what it was."""

import math
import numbers
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

Vector = Tensor | Sequence[float] | Any
"""One number a class: a tensor, an array or a sequence."""

ZeroCounts = Literal["error", "mask", "one"]
"""What to do with a class that has no training example: refuse, leave it out of the softmax, or count it as one."""

_SHOWN = 5  # how many offending values or classes a message lists


def shown(values: list[Any]) -> str:
    """The first few of ``values``, for a message."""
    listed = ", ".join(str(value) for value in values[:_SHOWN])
    return listed if len(values) <= _SHOWN else f"{listed}, … ({len(values)} in all)"


def check_number(name: str, value: object, *, minimum: float = 0.0, below: float = math.inf) -> float:
    """``value`` as a float in [minimum, below)."""
    bound = f"a number >= {minimum:g}" + (f" and < {below:g}" if below < math.inf else "")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"Expected `{name}` to be {bound}, but got {value!r} of type {type(value).__name__}.")
    number = float(value)
    if not (minimum <= number < below):  # NaN fails every comparison
        raise ValueError(f"Expected `{name}` to be {bound}, but got {value}.")
    return number


def check_choice(name: str, value: object, choices: Any) -> None:
    """``value`` must be one of a ``Literal``'s strings."""
    if value not in get_args(choices):
        raise ValueError(
            f"Expected `{name}` to be one of {', '.join(map(repr, get_args(choices)))}, but got {value!r}."
        )


def as_vector(name: str, values: object) -> Tensor:
    """``values`` (a tensor, an array or a sequence of numbers) as a tensor with one entry a class."""
    if isinstance(values, Tensor):
        vector = values.detach()
    else:
        try:
            vector = torch.tensor(np.asarray(values))  # by way of numpy, which makes floats float64
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"Expected `{name}` to hold one number a class, but got {type(values).__name__}: {error}."
            ) from None
    if vector.ndim != 1 or vector.numel() == 0:
        raise ValueError(f"Expected `{name}` to hold one number a class, but got shape {tuple(vector.shape)}.")
    if vector.dtype == torch.bool or vector.is_complex():
        raise TypeError(f"Expected `{name}` to hold numbers, but got dtype {vector.dtype}.")
    return vector


def as_counts(counts: object, *, name: str = "counts") -> Tensor:
    """``counts`` as int64, one entry a class; whole numbers >= 0, whatever type they came in."""
    vector = as_vector(name, counts)
    if vector.is_floating_point():
        wrong = ~torch.isfinite(vector) | (vector != vector.round())
        if wrong.any():
            raise ValueError(f"Expected `{name}` to hold whole numbers, but got {shown(vector[wrong].tolist())}.")
    vector = vector.to(torch.int64)
    if (vector < 0).any():
        raise ValueError(f"Expected `{name}` to hold numbers >= 0, but got {shown(vector[vector < 0].tolist())}.")
    return vector


def training_counts(counts: object, zero_counts: ZeroCounts) -> Tensor:
    """``counts`` as int64, with classes of zero training examples refused, kept (``"mask"``) or counted as one."""
    check_choice("zero_counts", zero_counts, ZeroCounts)
    vector = as_counts(counts)
    zero = vector == 0
    if zero.any():
        if zero_counts == "error":
            classes = shown(zero.nonzero().flatten().tolist())
            raise ValueError(
                f"Expected `counts` to be at least 1 in every class, but got 0 for class {classes}; "
                "zero_counts='mask' leaves such classes out of the softmax, zero_counts='one' counts them as one."
            )
        if zero_counts == "one":
            vector = vector.clamp(min=1)
        elif zero.all():
            raise ValueError("Expected `counts` to have a class with training examples, but got 0 for every class.")
    return vector


def as_distribution(name: str, values: object) -> Tensor:
    """``values`` as float64 weights > 0, one a class; a distribution up to a constant factor."""
    vector = as_vector(name, values).to(torch.float64)
    wrong = ~(torch.isfinite(vector) & (vector > 0))
    if wrong.any():
        raise ValueError(f"Expected `{name}` to hold finite numbers > 0, but got {shown(vector[wrong].tolist())}.")
    return vector


def class_dim(logits: Tensor) -> int:
    """Where ``F.cross_entropy`` has the classes: dimension 1, or 0 for a single unbatched sample."""
    return 1 if logits.ndim > 1 else 0


def along_classes(vector: Tensor, logits: Tensor) -> Tensor:
    """``vector``, one entry a class, in a shape that broadcasts over ``logits``."""
    return vector.view(-1, *[1] * (logits.ndim - class_dim(logits) - 1))


def check_logits(logits: Tensor, num_classes: int, *, of: str = "counts") -> None:
    """``logits`` must be a floating-point tensor with ``num_classes`` in its class dimension."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"Expected `logits` to be a floating-point tensor, but got {kind}.")
    if logits.ndim == 0 or logits.shape[class_dim(logits)] != num_classes:
        raise ValueError(
            f"Expected `logits` to have {num_classes} classes, as `{of}` has, in dimension {class_dim(logits)}, "
            f"but got shape {tuple(logits.shape)}."
        )
