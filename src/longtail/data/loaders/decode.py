"""Decoding of image files on the CPU. Needs Pillow (``longtail[data]``)."""

import struct
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longtail._program import some_of

if TYPE_CHECKING:
    from PIL import Image


IMAGE_FORMATS = {
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "JPEG": (".jpg", ".jpeg"),
    "PNG": (".png",),
    "PPM": (".ppm",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
"""The formats that are always read, by Pillow's names, and the suffixes of their files. Others (EPS) may start
programs."""

MAX_PIXELS = 2**26
"""The largest image that is decoded, for example 8192 x 8192, which takes 0.5 GB while it is decoded or resized."""

BadImages = Literal["error", "skip"]
"""What to do with images that cannot be decoded: stop and name them, or leave them out and list them."""

_NAMED = 5  # files that a message names
_BAND = 2**20  # pixels that are converted together
_ORIENTATION = 0x0112  # the tag in EXIF
_WITH_ORIENTATION = ("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif")  # where Pillow reads it


@cache
def image_formats() -> dict[str, tuple[str, ...]]:
    """Return the formats that the installed Pillow reads: ``IMAGE_FORMATS``, AVIF, and HEIC if there is pillow-heif."""
    found: dict[str, tuple[str, ...]] = dict(IMAGE_FORMATS)
    try:
        from PIL import features  # noqa: PLC0415 - an extra
    except ImportError:
        return found
    if "avif" in features.modules and features.check("avif"):  # built in from Pillow 11.3 on
        found["AVIF"] = (".avif",)
    try:
        heif = import_module("pillow_heif")  # never required
    except ImportError:
        return found
    heif.register_heif_opener()
    return found | {"HEIF": (".heic", ".heif", ".hif")}


class UnreadableImageError(ValueError):
    """An image file cannot be decoded."""

    def __init__(self, path: Path | str, reason: str = "") -> None:
        # A DataLoader that passes it on from a worker creates it again from the message alone.
        super().__init__(f"Expected {path} to be an image, but {reason}." if reason else str(path))
        self.path = Path(path)
        self.reason = reason

    def __reduce__(self) -> tuple[type["UnreadableImageError"], tuple[Path, str]]:
        return type(self), (self.path, self.reason)

    @classmethod
    def of_several(cls, errors: Sequence["UnreadableImageError"], where: str = "") -> "UnreadableImageError":
        """Return one error for those that stop a loader: the first reason, the first names, and the number.

        Example:
            >>> errors = [UnreadableImageError(f"{i}.png", "it is empty") for i in range(2)]
            >>> str(UnreadableImageError.of_several(errors, "in this batch"))
            'Expected 0.png to be an image, but it is empty (2 in this batch cannot be read: 0.png, 1.png);
            `bad_images` = skip leaves out such images.'
        """
        first, several = errors[0], ""
        if len(errors) > 1:
            several = f" ({len(errors)} {where} cannot be read: {some_of([str(one.path) for one in errors], _NAMED)})"
        return cls(first.path, f"{first.reason}{several}; `bad_images` = skip leaves out such images")


def decode(path: Path) -> Tensor:
    """Return an image file as RGB pixels, uint8 ``(3, height, width)``.

    Grey, palette, CMYK and transparent images become RGB; 16 bits become 8; of an animation the first frame is used;
    the image is turned as its EXIF orientation says. A file that is truncated, empty, not an image, in another format
    than :func:`image_formats`, larger than ``MAX_PIXELS``, or has floating-point pixels, whose range is unknown, raises
    :class:`UnreadableImageError`.
    """
    with _opened(path) as image:
        return rgb(image)


def rgb(image: "Image.Image") -> Tensor:
    """Return a PIL image as RGB pixels, upright, uint8 ``(3, height, width)``; 16 bits become 8."""
    image.load()  # the size of a TIFF may change
    orientation = _orientation(image)
    pixels = torch.empty((3, image.height, image.width), dtype=torch.uint8)
    rows = max(_BAND // max(image.width, 1), 1)
    for top in range(0, image.height, rows):  # a band at a time: copies of a large image would need much memory
        bottom = min(top + rows, image.height)
        band = image if rows >= image.height else image.crop((0, top, image.width, bottom))
        if band.mode.startswith("I"):  # grey, 16 bits per pixel
            grey = np.clip(np.asarray(band, dtype=np.float64) / 257, 0, 255).round().astype(np.uint8)
            pixels[:, top:bottom] = torch.from_numpy(grey)
        else:
            pixels[:, top:bottom] = torch.from_numpy(np.array(band.convert("RGB"))).permute(2, 0, 1)
    return pixels if orientation == 1 else _upright(pixels, orientation)


def _orientation(image: "Image.Image") -> int:
    """Return the EXIF orientation, 1…8, in metadata before the pixels; 1 for TIFF, which Pillow turns itself."""
    if hasattr(image, "tag_v2") or not any(name in image.info for name in _WITH_ORIENTATION):
        return 1
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # metadata is damaged more often than pixels are
        return 1
    return int(found) if found in range(1, 9) else 1


def _upright(pixels: Tensor, orientation: int) -> Tensor:
    """Return pixels turned and mirrored as ``PIL.ImageOps.exif_transpose`` does."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 2)
    return pixels.flip({2: [2], 3: [1, 2], 4: [1], 5: [], 6: [2], 7: [1, 2], 8: [1]}[orientation]).contiguous()


def raw_pixels(image: Any) -> Tensor | None:
    """Return an image in memory as uint8 ``(channels, height, width)``, or ``None`` if it is not a raw image.

    Raw images are PIL images, uint8 NumPy arrays ``(height, width)`` or ``(height, width, channels)``, and uint8
    tensors ``(channels, height, width)``.
    """
    if hasattr(image, "convert") and image.mode != "F":  # a PIL image; the range of floating-point pixels is unknown
        return rgb(image)
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim in {2, 3}:
        return pixels_to_tensor(image[..., None] if image.ndim == 2 else image).permute(2, 0, 1)
    return image if isinstance(image, Tensor) and image.ndim == 3 and image.dtype == torch.uint8 else None


def pixels_to_tensor(pixels: "np.ndarray[Any, Any]") -> Tensor:
    """Return a tensor, copied only if the array is read-only, like the pixels of a PIL image."""
    return torch.from_numpy(np.require(pixels, requirements=["C", "W"]))


def image_size(path: Path) -> tuple[int, int]:
    """Return height and width of an image file, upright, from its header; raise like :func:`decode`."""
    with _opened(path) as image:
        if hasattr(image, "tag_v2") and image.tag_v2.get(_ORIENTATION, 1) != 1:
            image.load()  # Pillow turns a TIFF itself, but not in every mode
        return (image.width, image.height) if _orientation(image) >= 5 else (image.height, image.width)


def is_rotated(path: Path) -> bool:
    """Return whether an image file has an EXIF orientation by which it is turned or mirrored; raise like `decode`."""
    with _opened(path) as image:
        return _orientation(image) != 1


@contextmanager
def _opened(path: Path) -> Iterator["Image.Image"]:
    """Open a file with Pillow without reading its pixels; errors in the block name the file."""
    from PIL import Image  # noqa: PLC0415 - an extra

    try:
        if path.stat().st_size == 0:
            raise UnreadableImageError(path, "it is empty")
        with _quiet(), Image.open(path, formats=tuple(image_formats())) as image:
            if image.width * image.height > MAX_PIXELS:
                size = f"{image.width} x {image.height} pixels"
                raise UnreadableImageError(path, f"it has {size}, more than {MAX_PIXELS:,}; make it smaller")
            if image.mode == "F":
                raise UnreadableImageError(path, "its pixels are floating-point numbers of unknown range")
            yield image
    except UnreadableImageError:
        raise
    except FileNotFoundError:
        raise UnreadableImageError(path, "it does not exist") from None
    except Exception as error:  # decoders raise many kinds of errors
        said = str(error).replace(f" {str(path)!r}", "")  # the message names the file already
        reason = " ".join(said.split()).rstrip(".") or type(error).__name__
        raise UnreadableImageError(path, f"the decoder says: {reason}") from None


class _Filters:
    """Warning filters belong to the whole process: the first thread sets them, the last one restores them."""

    lock = threading.Lock()
    inside = 0
    context: "warnings.catch_warnings[None] | None" = None


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore warnings of Pillow."""
    with _Filters.lock:
        if _Filters.inside == 0:
            _Filters.context = warnings.catch_warnings()
            _Filters.context.__enter__()
            warnings.filterwarnings("ignore", module=r"PIL\.")  # only Pillow: other threads may warn
        _Filters.inside += 1
    try:
        yield
    finally:
        with _Filters.lock:
            _Filters.inside -= 1
            if _Filters.inside == 0 and _Filters.context is not None:
                _Filters.context.__exit__(None, None, None)


class JpegHeader(NamedTuple):
    """The header of a JPEG with eight bits per channel, grey or with three colours."""

    height: int
    width: int
    transformed: bool
    """Whether colours are YCbCr; an Adobe segment may say that they are RGB."""
    upright: bool
    """Whether no metadata may say that the image must be turned."""


_START, _FILL, _ADOBE, _METADATA = b"\xff\xd8", 0xFF, 0xEE, 0xE1
_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive


def jpeg_header(content: bytes | bytearray) -> JpegHeader | None:
    """Return the header of a JPEG from the first bytes of the file.

    It is ``None`` if the file is not such a JPEG, if it has more than ``MAX_PIXELS``, or if its size comes later.
    """
    if not content.startswith(_START):
        return None
    place, transformed, upright = len(_START), True, True
    while place + 16 <= len(content) and content[place] == _FILL:
        marker, length = struct.unpack_from(">BH", content, place + 1)
        if marker == _ADOBE and content[place + 4 : place + 9] == b"Adobe" and content[place + 15] == 0:
            transformed = False
        if marker == _METADATA:
            upright = upright and _is_upright(bytes(content[place + 4 : place + 2 + length]))
        if marker in _FRAMES:
            bits, height, width, channels = struct.unpack_from(">BHHB", content, place + 4)
            plain = bits == 8 and channels in {1, 3} and 0 < height * width <= MAX_PIXELS
            return JpegHeader(height, width, transformed, upright) if plain else None
        place += 1 if marker == _FILL else 2 + length
    return None


def _is_upright(segment: bytes) -> bool:
    """Whether metadata of a JPEG certainly has no orientation but 1; Pillow decides about the rest."""
    if not segment.startswith(b"Exif\0\0"):
        return b"tiff:Orientation" not in segment  # XMP
    tiff = segment[6:]
    order = "<" if tiff.startswith(b"II") else ">"
    try:
        (begin,) = struct.unpack_from(f"{order}I", tiff, 4)
        (number,) = struct.unpack_from(f"{order}H", tiff, begin)
        for place in range(begin + 2, begin + 2 + 12 * number, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, place)
            if tag == _ORIENTATION:
                return bool(kind == 3 and value == 1)
    except struct.error:  # damaged
        return False
    return True
