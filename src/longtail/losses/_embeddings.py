"""Shared by the losses on normalised features: checks of features and labels, products in full precision."""

import torch
from torch import Tensor

from longtail._checks import check_number, describe
from longtail.losses._common import check_label_range, reads_labels


def check_temperature(temperature: object) -> float:
    """Return ``temperature`` as a float above 0."""
    number = check_number("temperature", temperature)
    if number == 0:
        raise ValueError(f"Expected `temperature` to be above 0, but got {temperature}.")
    return number


def check_features(name: str, features: object, *, like: Tensor | None = None, ndim: int | None = 2) -> Tensor:
    """Check that ``features`` is a floating-point tensor of rows as long as those of ``like``, on its device."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        raise TypeError(f"Expected `{name}` to be a floating-point tensor, but got {describe(features)}.")
    if features.ndim != ndim if ndim is not None else features.ndim < 2:
        wanted = f"{ndim}" if ndim is not None else "at least 2"
        raise ValueError(f"Expected `{name}` to have {wanted} dimensions, but got shape {tuple(features.shape)}.")
    if like is not None and features.shape[-1] != like.shape[-1]:
        raise ValueError(
            f"Expected `{name}` to have {like.shape[-1]} features per row, but got shape {tuple(features.shape)}."
        )
    if like is not None and features.device != like.device:
        raise ValueError(f"Expected `{name}` to be on {like.device}, but got {features.device}.")
    return features


def check_row_labels(
    name: str, labels: object, rows: Tensor, below: int, check_labels: bool | None, *, ignore_index: int | None = None
) -> Tensor:
    """Return ``labels`` as int64, one per row of ``rows``, in 0…``below`` - 1 or ``ignore_index``.

    The range is checked as ``check_labels`` says; ``None``: on the CPU, where that waits for nothing.
    """
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise TypeError(f"Expected `{name}` to be a tensor of indices, but got {describe(labels)}.")
    if labels.shape != rows.shape[:1]:
        raise ValueError(f"Expected `{name}` to have shape ({rows.shape[0]},), but got {tuple(labels.shape)}.")
    if labels.device != rows.device:
        raise ValueError(f"Expected `{name}` to be on {rows.device}, but got {labels.device}.")
    labels = labels.long()
    if labels.numel() and reads_labels(labels, check_labels):
        check_label_range(name, labels, below, ignore_index)
    return labels


def full_precision(tensor: Tensor) -> torch.autocast:
    """Switch autocast off: dividing by a temperature of 0.1 or less would multiply the rounding of bfloat16."""
    return torch.autocast(tensor.device.type, enabled=False)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in float32, or float64 if it is that already."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
