"""From an image file to pixels. Needs Pillow (``longtail[data]``)."""

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["BadImages", "UnreadableImageError", "decode", "as_tensor", "image_size", "raw_pixels", "rgb"]

BadImages = Literal["error", "skip"]
"""What to do about images that cannot be decoded: stop and name them, or leave them out and list them."""

_NAMED = 5  # files that a message names


class UnreadableImageError(ValueError):
    """A file that the decoder refuses, and why."""

    def __init__(self, path: Path | str, reason: str = "") -> None:
        # A DataLoader that hands it over from a worker makes it anew from the message alone.
        super().__init__(f"Expected {path} to be an image, but {reason}." if reason else str(path))
        self.path = Path(path)
        self.reason = reason

    def __reduce__(self) -> tuple[type["UnreadableImageError"], tuple[Path, str]]:
        return type(self), (self.path, self.reason)

    def with_hint(self) -> ValueError:
        """The same for who typed a command that can leave such images out."""
        return ValueError(f"{str(self).removesuffix('.')}; `--bad-images skip` leaves out what cannot be read.")

    @classmethod
    def of_several(cls, errors: Sequence["UnreadableImageError"], where: str) -> "UnreadableImageError":
        """One for all: what is wrong with the first, the names of the first few, and how many there are.

        Example:
            >>> errors = [UnreadableImageError(f"{i}.png", "it is empty") for i in range(2)]
            >>> str(UnreadableImageError.of_several(errors, "in this batch"))
            'Expected 0.png to be an image, but it is empty (2 in this batch cannot be read: 0.png, 1.png).'
        """
        first = errors[0]
        if len(errors) == 1:
            return first
        listed = ", ".join(str(error.path) for error in errors[:_NAMED]) + (", …" if len(errors) > _NAMED else "")
        return cls(first.path, f"{first.reason} ({len(errors)} {where} cannot be read: {listed})")


def decode(path: Path) -> Tensor:
    """An image file as RGB pixels, uint8 ``(3, height, width)``.

    Grey, palette, CMYK and transparent images become RGB; 16 bits become 8; of an animation the first frame is taken.
    Nothing is repaired or guessed: a file that is cut off, empty, no image, larger than Pillow's limit against
    decompression bombs, or of floating-point pixels, whose range nobody knows, raises :class:`UnreadableImageError`.
    """
    with _opened(path) as image:
        return rgb(image)


def rgb(image: "Image.Image") -> Tensor:
    """A PIL image as RGB pixels, uint8 ``(3, height, width)``; 16 bits become 8."""
    if image.mode.startswith("I"):  # 16 bits a pixel, grey
        grey = np.clip(np.asarray(image, dtype=np.float64) / 257, 0, 255).round().astype(np.uint8)
        pixels = np.repeat(grey[..., None], 3, axis=2)
    else:
        pixels = np.array(image.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def raw_pixels(image: Any) -> Tensor | None:
    """An image in memory as uint8 ``(channels, height, width)``; ``None`` where it is no raw image.

    It is a PIL image, or uint8 pixels: a NumPy array ``(height, width)`` or ``(height, width, channels)``, or a tensor
    ``(channels, height, width)``.
    """
    if hasattr(image, "convert") and image.mode != "F":  # a PIL image; floating-point pixels have no known range
        return rgb(image)
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim in {2, 3}:
        return as_tensor(image[..., None] if image.ndim == 2 else image).permute(2, 0, 1)
    return image if isinstance(image, Tensor) and image.ndim == 3 and image.dtype == torch.uint8 else None


def as_tensor(pixels: "np.ndarray[Any, Any]") -> Tensor:
    """torch warns of memory that is not to be written to, such as a PIL image's: only that is copied."""
    return torch.from_numpy(np.require(pixels, requirements=["C", "W"]))


def image_size(path: Path) -> tuple[int, int]:
    """Height and width that an image file's header tells; what :func:`decode` refuses by the header is refused."""
    with _opened(path) as image:
        return image.height, image.width


@contextmanager
def _opened(path: Path) -> Iterator["Image.Image"]:
    """A file opened by Pillow, its pixels not yet read; what goes wrong then or later says which file it is."""
    from PIL import Image  # noqa: PLC0415 - an extra

    try:
        if path.stat().st_size == 0:
            raise UnreadableImageError(path, "it is empty")
        with _quiet(), Image.open(path) as image:
            if image.width * image.height > (Image.MAX_IMAGE_PIXELS or float("inf")):
                raise UnreadableImageError(path, f"it has {image.width} x {image.height} pixels")
            if image.mode == "F":
                raise UnreadableImageError(path, "its pixels are floating-point numbers of unknown range")
            yield image
    except UnreadableImageError:
        raise
    except FileNotFoundError:
        raise UnreadableImageError(path, "it is not there") from None
    except Exception as error:  # a decoder meets damage in as many ways as there are formats
        said = str(error).replace(f" {str(path)!r}", "")  # which is named already
        reason = " ".join(said.split()).rstrip(".") or type(error).__name__
        raise UnreadableImageError(path, f"the decoder says: {reason}") from None


class _Filters:
    """Python's filters of warnings belong to the whole process: the first thread sets them, the last puts them back."""

    lock = threading.Lock()
    inside = 0
    context: "warnings.catch_warnings[None] | None" = None


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of Pillow's about damage that does no harm, or that is refused anyway."""
    with _Filters.lock:
        if _Filters.inside == 0:
            _Filters.context = warnings.catch_warnings()
            _Filters.context.__enter__()
            warnings.filterwarnings("ignore", module=r"PIL\.")  # and nobody else's: other threads may have to warn
        _Filters.inside += 1
    try:
        yield
    finally:
        with _Filters.lock:
            _Filters.inside -= 1
            if _Filters.inside == 0 and _Filters.context is not None:
                _Filters.context.__exit__(None, None, None)
