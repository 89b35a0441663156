"""What every augmentation does with a batch: check it, turn uniform numbers into parameters, move and mix pixels."""

import numbers
from typing import Any

import torch
from torch import Tensor

from longtail._checks import check_integer, told

__all__: list[str] = []


def check_images(images: Tensor, *, byte: bool = False) -> None:
    """``images`` must be ``(B, C, H, W)`` with pixels in it, uint8 or (unless ``byte``) floating-point."""
    wanted = "uint8" if byte else "uint8 or floating-point"
    right = isinstance(images, Tensor) and (images.dtype == torch.uint8 or (images.is_floating_point() and not byte))
    if not right:
        raise TypeError(f"Expected `images` to be a {wanted} tensor of shape (B, C, H, W), but got {told(images)}.")
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise ValueError(f"Expected `images` to have shape (B, C, H, W), but got {tuple(images.shape)}.")


def check_colour(images: Tensor, *, byte: bool = False) -> None:
    """``images`` must be a batch of grey (1 channel) or RGB (3 channels) images."""
    check_images(images, byte=byte)
    if images.shape[1] not in {1, 3}:
        raise ValueError(f"Expected `images` to have 1 or 3 channels, but got shape {tuple(images.shape)}.")


def check_parameters(images: Tensor, **parameters: Tensor) -> None:
    """Each of ``parameters`` must be a tensor with one number a sample."""
    for name, parameter in parameters.items():
        if not isinstance(parameter, Tensor) or parameter.shape != images.shape[:1]:
            found = told(parameter)
            raise ValueError(f"Expected `{name}` to be a tensor of shape ({images.shape[0]},), but got {found}.")


def check_uniforms(images: Tensor, uniforms: Tensor | None, draws: int) -> Tensor:
    """``uniforms`` must have ``draws`` columns and a row a sample; without draws it may be left out."""
    check_images(images)
    if uniforms is None and draws == 0:
        return torch.empty((images.shape[0], 0), device=images.device)
    if not isinstance(uniforms, Tensor) or not uniforms.is_floating_point():
        raise TypeError(f"Expected `uniforms` to be a floating-point tensor, but got {told(uniforms)}.")
    if uniforms.shape != (images.shape[0], draws):
        shape = (images.shape[0], draws)
        raise ValueError(f"Expected `uniforms` to have shape {shape}, but got {tuple(uniforms.shape)}.")
    return uniforms


def check_fraction(name: str, value: object) -> None:
    """``value`` must be a number in [0, 1]."""
    check_interval(name, (value, value), 0.0, 1.0, shown=value, what="a number")


def check_interval(
    name: str, value: Any, minimum: float, maximum: float, *, shown: Any = None, what: str = "two numbers, low <= high,"
) -> tuple[float, float]:
    """``value`` as a pair of numbers, low <= high, in [minimum, maximum]."""
    shown = value if shown is None else shown
    message = f"Expected `{name}` to be {what} in [{minimum:g}, {maximum:g}], but got {shown}."
    try:
        low, high = value
    except (TypeError, ValueError):
        raise TypeError(message) from None
    if any(isinstance(number, bool) or not isinstance(number, numbers.Real) for number in (low, high)):
        raise TypeError(message)
    if not (minimum <= low <= high <= maximum):  # NaN fails every comparison
        raise ValueError(message)
    return float(low), float(high)


def check_level(name: str, value: object) -> None:
    """``value`` must be a level of uint8 pixels."""
    if check_integer(name, value, minimum=0) > 255:
        raise ValueError(f"Expected `{name}` to be an integer in [0, 255], but got {value}.")


def check_size(name: str, value: Any) -> tuple[int, int]:
    """``value``, a side or ``(height, width)``, as ``(height, width)``, both >= 1."""
    height, width = value if isinstance(value, tuple) and len(value) == 2 else (value, value)
    return check_integer(name, height, minimum=1), check_integer(name, width, minimum=1)


def wide(values: Tensor) -> Tensor:
    """``values`` in float64, so that a root or exponential rounded afterwards is the same on every device."""
    return values if values.device.type == "mps" else values.double()  # Apple's GPUs have no float64


def integers(uniform: Tensor, number: Tensor | int) -> Tensor:
    """Uniform numbers in [0, 1) as uniform integers in [0, number)."""
    last = number - 1
    index = (uniform * number).long()  # the product of a float just below 1 may round up to `number`
    return torch.minimum(index, last) if isinstance(last, Tensor) else index.clamp(max=last)


def between(uniform: Tensor, low: float, high: float) -> Tensor:
    """Uniform numbers in [0, 1) as uniform numbers in [low, high)."""
    return low + (high - low) * uniform


def over(values: Tensor, divisor: float) -> Tensor:
    """``values / divisor``, rounded alike on every device: a GPU multiplies by the reciprocal of a plain number."""
    return values / torch.full((), divisor, dtype=values.dtype, device=values.device)


def per_sample(parameter: Tensor) -> Tensor:
    """``parameter`` of shape ``(B,)`` in a shape that broadcasts over a batch of images."""
    return parameter.view(-1, 1, 1, 1)


def as_pixels(values: Tensor, dtype: torch.dtype, *, rounded: bool) -> Tensor:
    """``values`` clamped to [0, 255] in ``dtype``; for uint8 rounded to the nearest level, or cut off below."""
    values = values.clamp(0, 255)
    return (values.round() if rounded and dtype == torch.uint8 else values).to(dtype)


def pick(images: Tensor, rows: Tensor, columns: Tensor, fill: int = 0) -> Tensor:
    """The pixels of ``images`` at ``rows`` and ``columns``, which broadcast to ``(B, h, w)``; ``fill`` outside."""
    _, channels, height, width = images.shape
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    index = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    picked = images.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, channels, -1))
    return torch.where(inside[:, None], picked.view(-1, channels, *index.shape[1:]), fill)


def mix(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Weighted sums of pixels, first down, then across: ``rows`` is ``(B, h, H)`` and ``columns`` ``(B, w, W)``."""
    with torch.autocast(images.device.type, enabled=False):  # bf16 weights would be wrong by a level or more
        mixed = rows.float()[:, None] @ images.float() @ columns.float()[:, None].mT
    return as_pixels(mixed, images.dtype, rounded=True)
