"""Argument checks: each converts a value or raises an error that names the argument and the value."""

import math
import numbers
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

Vector = Tensor | Sequence[float] | Any
"""One number per class: a tensor, an array or a sequence."""

ZeroCounts = Literal["error", "mask", "one"]
"""How to treat a class without training examples: raise, leave it out of the softmax, or count it as one."""

_SHOWN = 5  # how many wrong values or classes a message lists
_LONGEST = 60  # how many characters of a value a message repeats


def shown(values: list[Any]) -> str:
    """Return the first few of ``values`` for a message."""
    listed = ", ".join(str(value) for value in values[:_SHOWN])
    return listed if len(values) <= _SHOWN else f"{listed}, … ({len(values)} in all)"


def describe(value: object) -> str:
    """Return a value and its type for a message, on one line."""
    if isinstance(value, Tensor):
        return f"a Tensor of {value.dtype} and shape {tuple(value.shape)}"
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= _LONGEST else text[:_LONGEST] + '…'} of type {type(value).__name__}"


def check_number(name: str, value: object, *, minimum: float = 0.0, below: float = math.inf) -> float:
    """Return ``value`` as a float in [minimum, below)."""
    bound = f"a number >= {minimum:g}" if minimum > -math.inf else "a finite number"
    bound += f" and < {below:g}" if below < math.inf else ""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"Expected `{name}` to be {bound}, but got {describe(value)}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (minimum <= number < below and number > -math.inf):  # NaN fails every comparison
        raise ValueError(f"Expected `{name}` to be {bound}, but got {value}.")
    return number


def check_fraction(name: str, value: object) -> float:
    """Return ``value`` as a float in [0, 1]."""
    number = check_number(name, value)
    if number > 1:
        raise ValueError(f"Expected `{name}` to be in [0, 1], but got {number}.")
    return number


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise unless ``value`` is one of the strings of a ``Literal``."""
    if not isinstance(value, str) or value not in get_args(choices):
        listed = ", ".join(map(repr, get_args(choices)))
        found = repr(value) if isinstance(value, str) else describe(value)
        raise ValueError(f"Expected `{name}` to be one of {listed}, but got {found}.")


def check_integer(name: str, value: object, *, minimum: int | None = None) -> int:
    """Return ``value`` as an int, at least ``minimum`` if one is given."""
    bound = "an integer" + (f" >= {minimum}" if minimum is not None else "")
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError(f"Expected `{name}` to be {bound}, but got {describe(value)}.")
    if minimum is not None and value < minimum:
        raise ValueError(f"Expected `{name}` to be {bound}, but got {value}.")
    return int(value)


def as_tensor(name: str, values: object, *, what: str = "numbers") -> Tensor:
    """Return ``values`` (a tensor, an array or a sequence of numbers) as a tensor; floats of a sequence are float64."""
    if isinstance(values, Tensor):
        tensor = values.detach()
    else:
        device = torch.empty(0).device
        try:  # under `torch.device("meta")`, as in `from_pretrained`, the values must still be readable
            tensor = torch.tensor(np.asarray(values), device="cpu" if device.type == "meta" else device)
        except (TypeError, ValueError, RuntimeError):  # strings, objects, rows of different lengths
            raise TypeError(f"Expected `{name}` to hold {what}, but got {describe(values)}.") from None
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise TypeError(f"Expected `{name}` to hold {what}, but got dtype {tensor.dtype}.")
    return tensor


def as_vector(name: str, values: object, num_classes: int | None = None) -> Tensor:
    """Return ``values`` as a tensor with one entry per class, ``num_classes`` of them if given."""
    vector = as_tensor(name, values, what="one number per class")
    if vector.ndim != 1 or vector.numel() == 0:
        raise ValueError(f"Expected `{name}` to hold one number per class, but got shape {tuple(vector.shape)}.")
    if num_classes is not None and vector.numel() != num_classes:
        raise ValueError(f"Expected `{name}` to have {num_classes} classes, but got {vector.numel()}.")
    return vector


def as_counts(
    counts: object, num_classes: int | None = None, *, name: str = "counts", fractions: bool = False
) -> Tensor:
    """Return ``counts``, numbers >= 0 per class, as int64; with ``fractions`` sums of sample weights stay floats.

    A dictionary or a pandas ``Series``, such as that of ``value_counts``, is put into the order of its class indices.
    """
    if hasattr(counts, "keys"):
        counts = by_class(name, counts, range(len(counts.keys())))
    vector = as_vector(name, counts, num_classes)
    if vector.is_meta:
        raise ValueError(f"Expected `{name}` to hold values, but got a tensor on the meta device; pass a list.")
    whole = True
    if vector.is_floating_point():
        fractional = vector != vector.round()
        wrong = ~(vector.abs() < 2.0**63)
        if not fractions:
            wrong |= fractional
        if wrong.any():
            kind = "numbers" if fractions else "whole numbers"
            raise ValueError(f"Expected `{name}` to hold {kind} below 2^63, but got {shown(vector[wrong].tolist())}.")
        whole = not fractional.any()
    vector = vector.to(torch.int64 if whole else torch.promote_types(vector.dtype, torch.float32))
    if (vector < 0).any():
        raise ValueError(f"Expected `{name}` to hold numbers >= 0, but got {shown(vector[vector < 0].tolist())}.")
    return vector


def positive_counts(counts: object, *, advice: str = "") -> Tensor:
    """Return ``counts`` as :func:`as_counts` does, fractions included, above 0 in every class."""
    vector = as_counts(counts, fractions=True)
    zero = vector == 0
    if zero.any():
        classes = shown(zero.nonzero().flatten().tolist())
        raise ValueError(f"Expected `counts` to be above 0 in every class, but got 0 for class {classes}{advice}.")
    return vector


def training_counts(counts: object, zero_counts: ZeroCounts) -> Tensor:
    """Return ``counts``, fractions included, with classes without examples refused, kept or counted as one."""
    check_choice("zero_counts", zero_counts, ZeroCounts)
    if zero_counts == "error":
        return positive_counts(
            counts,
            advice="; zero_counts='mask' leaves such classes out of the softmax, zero_counts='one' counts them as one",
        )
    vector = as_counts(counts, fractions=True)
    if zero_counts == "one":
        return vector.masked_fill(vector == 0, 1)
    if not vector.any():
        raise ValueError("Expected `counts` to have a class with training examples, but got 0 for every class.")
    return vector


def as_distribution(name: str, values: object, num_classes: int | None = None, *, zeros: bool = False) -> Tensor:
    """Return ``values`` as float64 on the CPU: a distribution up to a factor, with or without ``zeros``."""
    vector = as_vector(name, values, num_classes).cpu().to(torch.float64)
    wrong = ~(vector.isfinite() & ((vector >= 0) if zeros else (vector > 0)))
    if wrong.any():
        bound = ">= 0" if zeros else "> 0"
        raise ValueError(f"Expected `{name}` to hold finite numbers {bound}, but got {shown(vector[wrong].tolist())}.")
    if not vector.any():
        raise ValueError(f"Expected `{name}` to hold a number > 0, but got 0 for every class.")
    return vector


def by_class(name: str, values: Any, classes: Any) -> Any:
    """Return ``values`` in the order of ``classes`` if a dictionary or a pandas ``Series`` has them by class."""
    if not hasattr(values, "keys"):
        return values
    given = dict(values.items())
    known = set(classes)
    unknown = [label for label in given if label not in known]
    missing = [label for label in classes if label not in given]
    if unknown or missing:
        lacks = f"lacks {shown(missing)}" if missing else f"also has {shown(unknown)}"
        raise ValueError(
            f"Expected `{name}` to have the classes {shown(list(classes))}, but it {lacks}; "
            "or pass a list in this order."
        )
    return [given[label] for label in classes]


def class_dim(logits: Tensor) -> int:
    """Return the dimension of the classes as in ``F.cross_entropy``: 1, or 0 for a single sample without a batch."""
    return 1 if logits.ndim > 1 else 0


def along_classes(vector: Tensor, logits: Tensor) -> Tensor:
    """Return ``vector``, one entry per class, in a shape that broadcasts over ``logits``."""
    return vector.view(-1, *[1] * (logits.ndim - class_dim(logits) - 1))


def check_no_probabilities(logits: Tensor) -> None:
    """Raise if all of several rows of ``logits`` are distributions."""
    if len(logits) > 1 and bool(((logits >= 0).all(1) & ((logits.sum(1) - 1).abs() < 1e-3)).all()):
        raise ValueError(
            "Expected `logits` to be logits, but every row sums to 1 as probabilities do; use their logarithm."
        )


def check_logits(logits: Tensor, num_classes: int, *, of: str = "counts") -> None:
    """Raise unless ``logits`` is a floating-point tensor with ``num_classes`` in its class dimension."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise TypeError(f"Expected `logits` to be a floating-point tensor, but got {describe(logits)}.")
    if num_classes == 0:
        raise ValueError(f"Expected `logits` to have classes, but got shape {tuple(logits.shape)}.")
    if logits.ndim == 0 or logits.shape[class_dim(logits)] != num_classes:
        raise ValueError(
            f"Expected `logits` to have {num_classes} classes, as `{of}` has, in dimension {class_dim(logits)}, "
            f"but got shape {tuple(logits.shape)}."
        )
