"""What the header of a JPEG says, read without a decoder."""

import struct
from typing import NamedTuple

__all__ = ["Header", "jpeg_header"]

_START, _FILL, _ADOBE = b"\xff\xd8", 0xFF, 0xEE
_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive


class Header(NamedTuple):
    """Of a picture with eight bits a channel, grey or of three colours."""

    height: int
    width: int
    transformed: bool
    """Whether colours are YCbCr, as they mostly are, or an Adobe segment says that they are RGB already."""


def jpeg_header(content: bytes | bytearray) -> Header | None:
    """Read it from the first bytes of a file, as far as they go.

    Returns:
        ``None`` where this is no such JPEG, where it has more pixels than Pillow allows, or where its size comes later.
    """
    from PIL import Image  # noqa: PLC0415 - an extra

    if not content.startswith(_START):
        return None
    place, transformed = len(_START), True
    while place + 16 <= len(content) and content[place] == _FILL:
        marker, length = struct.unpack_from(">BH", content, place + 1)
        if marker == _ADOBE and content[place + 4 : place + 9] == b"Adobe" and content[place + 15] == 0:
            transformed = False
        if marker in _FRAMES:
            bits, height, width, channels = struct.unpack_from(">BHHB", content, place + 4)
            limit = Image.MAX_IMAGE_PIXELS or height * width
            plain = bits == 8 and channels in {1, 3} and 0 < height * width <= limit
            return Header(height, width, transformed) if plain else None
        place += 1 if marker == _FILL else 2 + length
    return None
