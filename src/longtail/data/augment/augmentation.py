"""The protocol of augmentations, a sequence of them, normalisation, and helpers to write one."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from longtail._checks import check_integer, describe


class Augmentation(Protocol):
    """A function of a batch of images and of ``draws`` uniform numbers per sample; it draws no numbers itself."""

    @property
    def draws(self) -> int:
        """Uniform numbers in [0, 1) per sample."""

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Return ``images`` ``(B, C, H, W)``, augmented with ``uniforms`` ``(B, draws)``."""


@dataclass(frozen=True)
class Compose:
    """Several augmentations in sequence; each takes its own columns of the uniform numbers, in order.

    Example:
        >>> import torch
        >>> from longtail.data.augment import Cutout, RandomCrop, RandomFlip
        >>> augment = Compose((RandomCrop(32, padding=4), RandomFlip(), Cutout(16)))
        >>> augment.draws
        5
        >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
        >>> augment(images, torch.rand(8, augment.draws)).shape
        torch.Size([8, 3, 32, 32])
    """

    augmentations: tuple[Augmentation, ...]

    @property
    def draws(self) -> int:
        """The sum of its parts."""
        return sum(augmentation.draws for augmentation in self.augmentations)

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Apply every augmentation."""
        uniforms, start = check_uniforms(images, uniforms, self.draws), 0
        for augmentation in self.augmentations:
            images = augmentation(images, uniforms[:, start : start + augmentation.draws])
            start += augmentation.draws
        return images


@dataclass(frozen=True)
class Normalise:
    """Pixels in [0, 255] scaled to [0, 1] and normalised per channel, in float32; the last part of a view.

    Args:
        mean: mean of each channel, on the scale of [0, 1].
        std: standard deviation of each channel, on the same scale.
        dtype: floating-point type of the result.

    Example:
        >>> cifar = Normalise(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
        >>> cifar(torch.zeros(1, 3, 1, 1, dtype=torch.uint8)).flatten()
        tensor([-2.4291, -2.4183, -2.2214])
    """

    draws: ClassVar[int] = 0
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        numbers = all(map(math.isfinite, (*self.mean, *self.std))) and all(std > 0 for std in self.std)
        if len(self.mean) != len(self.std) or not numbers:
            raise ValueError(
                "Expected `mean` and `std` to be a finite number per channel, and `std` > 0, but got "
                f"{self.mean} and {self.std}."
            )

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Return the normalised images."""
        check_uniforms(images, uniforms, self.draws)
        channels = len(self.mean)
        if channels != images.shape[1]:
            raise ValueError(
                f"Expected `images` to have {channels} channels, as `mean` has, but got {images.shape[1]}."
            )
        # Filled number by number: a copy from the host could not be captured in a CUDA graph.
        scale = torch.stack([torch.full((1, 1), 1 / (255 * s), device=images.device) for s in self.std])
        shifts = [-m / s for m, s in zip(self.mean, self.std, strict=True)]
        shift = torch.stack([torch.full((1, 1), shift, device=images.device) for shift in shifts])
        return (images * scale).add_(shift).to(self.dtype)  # in place: on a CPU new memory costs more than the sum


@dataclass(frozen=True)
class Unchanged:
    """No change: the view of feature vectors ``(B, D)``."""

    draws: ClassVar[int] = 0

    def __call__(self, images: Tensor, uniforms: Tensor | None = None) -> Tensor:  # noqa: ARG002 - nothing is drawn
        """Return ``images``."""
        return images


# --- checks


def check_images(images: Tensor, *, byte: bool = False) -> None:
    """Raise unless ``images`` is ``(B, C, H, W)`` with pixels, uint8 or (unless ``byte``) floating-point."""
    wanted = "uint8" if byte else "uint8 or floating-point"
    right = isinstance(images, Tensor) and (images.dtype == torch.uint8 or (images.is_floating_point() and not byte))
    if not right:
        raise TypeError(f"Expected `images` to be a {wanted} tensor of shape (B, C, H, W), but got {describe(images)}.")
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise ValueError(f"Expected `images` to have shape (B, C, H, W), but got {tuple(images.shape)}.")


def check_colour(images: Tensor, *, byte: bool = False) -> None:
    """Raise unless ``images`` has 1 or 3 channels."""
    check_images(images, byte=byte)
    if images.shape[1] not in {1, 3}:
        raise ValueError(f"Expected `images` to have 1 or 3 channels, but got shape {tuple(images.shape)}.")


def check_uniforms(images: Tensor, uniforms: Tensor | None, draws: int) -> Tensor:
    """Return ``uniforms`` after checking that it has a row per sample and ``draws`` columns; ``None`` has 0."""
    check_images(images)
    if uniforms is None and draws == 0:
        return torch.empty((images.shape[0], 0), device=images.device)
    if not isinstance(uniforms, Tensor) or not uniforms.is_floating_point():
        raise TypeError(f"Expected `uniforms` to be a floating-point tensor, but got {describe(uniforms)}.")
    if uniforms.shape != (images.shape[0], draws):
        shape = (images.shape[0], draws)
        raise ValueError(f"Expected `uniforms` to have shape {shape}, but got {tuple(uniforms.shape)}.")
    return uniforms


def check_size(name: str, value: Any) -> tuple[int, int]:
    """Return a side or ``(height, width)`` as ``(height, width)``, both >= 1."""
    height, width = value if isinstance(value, tuple) and len(value) == 2 else (value, value)
    return check_integer(name, height, minimum=1), check_integer(name, width, minimum=1)


# --- parameters from uniform numbers, and pixels


def integers(uniform: Tensor, number: Tensor | int) -> Tensor:
    """Map uniform numbers in [0, 1) to uniform integers in [0, number)."""
    last = number - 1
    index = (uniform * number).long()  # the product of a float just below 1 may round up to `number`
    return torch.minimum(index, last) if isinstance(last, Tensor) else index.clamp(max=last)


def between(uniform: Tensor, low: float, high: float) -> Tensor:
    """Map uniform numbers in [0, 1) to [low, high)."""
    return low + (high - low) * uniform


def over(values: Tensor, divisor: float) -> Tensor:
    """Return ``values / divisor`` with the same rounding everywhere: a GPU would multiply by the reciprocal."""
    return values / torch.full((), divisor, dtype=values.dtype, device=values.device)


def per_sample(parameter: Tensor) -> Tensor:
    """Reshape ``(B,)`` so that it broadcasts over a batch of images."""
    return parameter.view(-1, 1, 1, 1)


def as_pixels(values: Tensor, dtype: torch.dtype, *, rounded: bool) -> Tensor:
    """Clamp to [0, 255] and convert to ``dtype``; for uint8, round to the nearest level or truncate."""
    values = values.clamp(0, 255)
    return (values.round() if rounded and dtype == torch.uint8 else values).to(dtype)


def pick(images: Tensor, rows: Tensor, columns: Tensor, fill: int = 0) -> Tensor:
    """Return the pixels at ``rows`` and ``columns``, which broadcast to ``(B, h, w)``; ``fill`` outside."""
    _, channels, height, width = images.shape
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    index = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    picked = images.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, channels, -1))
    return torch.where(inside[:, None], picked.view(-1, channels, *index.shape[1:]), fill)


def mix(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return weighted sums of pixels, first down, then across; weights are ``(B, h, H)`` and ``(B, w, W)``."""
    with torch.autocast(images.device.type, enabled=False):  # bf16 weights would be wrong by a level or more
        mixed = rows.float()[:, None] @ images.float() @ columns.float()[:, None].mT
    return as_pixels(mixed, images.dtype, rounded=True)
