"""JPEG files decoded on the GPU, where torchvision can; what it cannot goes the way of all files."""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from longtail.data.decode import UnreadableImageError, decode

__all__ = ["decode_on", "read_image"]

_START, _END = b"\xff\xd8", b"\xff\xd9"
_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive
_ADOBE, _FILL = 0xEE, 0xFF


def read_image(path: str, device: torch.device) -> Tensor | UnreadableImageError:
    """An image file, as far as the CPU has to go with it.

    Args:
        path: a string, since joining a ``Path`` takes as long as reading a small file.
        device: where it will be decoded.

    Returns:
        The bytes of a JPEG that a CUDA device can decode, uint8 and one-dimensional; of any other file, and on any
        other device, pixels ``(3, height, width)``, or why there are none. :func:`decode_on` takes either.
    """
    if device.type == "cuda":
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - see `path`
                content = bytearray(os.fstat(file.fileno()).st_size)
                file.readinto(content)
        except OSError:
            content = bytearray()  # `decode` says what is wrong with it
        if _suits_the_gpu(content):
            return torch.frombuffer(content, dtype=torch.uint8)
    return _on_cpu(Path(path))


def decode_on(
    device: torch.device, found: Sequence[Tensor | UnreadableImageError], paths: Sequence[str]
) -> list[Tensor | UnreadableImageError]:
    """What :func:`read_image` gave, as RGB pixels on the device, uint8 ``(3, height, width)``, or why not.

    JPEGs are decoded together; nvJPEG and the CPU's decoder differ by a few levels a pixel. What nvJPEG refuses is
    decoded on the CPU, which says what is wrong with it.

    Args:
        device: any; bytes only where it is a CUDA device.
        found: one a file.
        paths: where each of them lies.
    """
    images = list(found)
    places = [i for i, image in enumerate(found) if isinstance(image, Tensor) and image.ndim == 1]
    if places:
        # The decoder writes on a stream of its own into memory that this stream may have freed but not yet done with.
        torch.cuda.current_stream(device).synchronize()
        for i, image in zip(places, _decode_jpegs([images[i] for i in places], device), strict=True):
            images[i] = _on_cpu(Path(paths[i])) if image is None else image
    return [image.to(device, non_blocking=True) if isinstance(image, Tensor) else image for image in images]


def _decode_jpegs(files: list[Tensor | UnreadableImageError], device: torch.device) -> list[Tensor | None]:
    """Each decoded, or None where nvJPEG refuses it, which is found by halving: it refuses all that come with it."""
    from torchvision.io import ImageReadMode, decode_jpeg  # noqa: PLC0415 - an extra

    try:
        decoded: list[Tensor | None] = decode_jpeg(files, mode=ImageReadMode.RGB, device=device)
        return decoded
    except RuntimeError:
        if len(files) == 1:
            return [None]
        middle = len(files) // 2
        return _decode_jpegs(files[:middle], device) + _decode_jpegs(files[middle:], device)


def _on_cpu(path: Path) -> Tensor | UnreadableImageError:
    try:
        return decode(path)
    except UnreadableImageError as error:
        return error


def _suits_the_gpu(content: bytearray) -> bool:
    """Whether a file is a whole JPEG, grey or YCbCr, with no more pixels than Pillow allows.

    nvJPEG fills up what is cut off, takes CMYK for something else and knows no limit: all these are Pillow's.
    """
    from PIL import Image  # noqa: PLC0415 - an extra

    if not (content.startswith(_START) and content.endswith(_END)):
        return False
    place = len(_START)
    while place + 16 <= len(content) and content[place] == _FILL:
        marker, length = struct.unpack_from(">BH", content, place + 1)
        if marker == _ADOBE and content[place + 4 : place + 9] == b"Adobe" and content[place + 15] == 0:
            return False  # colours that are RGB or CMYK already
        if marker in _FRAMES:
            bits, height, width, channels = struct.unpack_from(">BHHB", content, place + 4)
            pixels = height * width
            return bits == 8 and channels in {1, 3} and 0 < pixels <= (Image.MAX_IMAGE_PIXELS or pixels)
        place += 1 if marker == _FILL else 2 + length
    return False
