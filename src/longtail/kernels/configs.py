"""Tile sizes of the kernels: one table by operation and shape."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

IMAGE_CHANNELS = 4
"""Channels of an image are padded to this number."""

Operation = Literal["forward", "input", "weight", "normalise"]
"""Convolution; gradient of its input; gradient of its weight; BatchNorm with ReLU."""

Key = tuple[Operation, int, int]
"""Operation, channels of input and output."""


@dataclass(frozen=True)
class Tile:
    """How a kernel divides its work."""

    rows: int
    """Pixels of a tile, a power of two."""
    chunk: int
    """How many of the 9 x channels products are done at a time, a power of two."""
    programs: int
    """Maximum number of programs, each with consecutive tiles. Twelve networks share the GPU, so no kernel needs all of
    it, and each program of the next kernel reads the statistics of all programs."""
    warps: int = 4
    stages: int = 3
    unrolled: bool = False
    """Pipeline over tiles instead of chunks: for few, small chunks."""
    halo: bool = False
    """Use the kernels of ``cuda/``, whose tiles are whole rows of an image with a halo; they ignore ``chunk``,
    ``stages`` and ``unrolled``."""


_MEASURED: dict[Key, Tile] = {
    ("input", 16, 16): Tile(128, 0, 64, 4, halo=True),
    ("forward", 16, 16): Tile(256, 0, 128, 4, halo=True),
    ("weight", 16, 16): Tile(256, 0, 64, 4, halo=True),
    ("normalise", 16, 16): Tile(128, 0, 128, 4, 2),
    ("input", 32, 32): Tile(128, 0, 64, 4, halo=True),
    ("forward", 32, 32): Tile(128, 0, 64, 4, halo=True),
    ("weight", 32, 32): Tile(128, 0, 32, 4, halo=True),
    ("normalise", 32, 32): Tile(128, 0, 128, 4, 2),
    ("input", 64, 64): Tile(128, 64, 64, 4, 4),
    ("forward", 64, 64): Tile(128, 64, 64, 4, 4),
    ("weight", 64, 64): Tile(128, 0, 16, 8, halo=True),
    ("normalise", 64, 64): Tile(32, 0, 64, 4, 2),
    ("forward", 4, 16): Tile(128, 64, 128, 4, 1),
    ("weight", 4, 16): Tile(64, 64, 64, 4, 3),
    ("input", 32, 16): Tile(128, 64, 64, 4, 3),
    ("forward", 16, 32): Tile(256, 32, 128, 8, 3),
    ("weight", 16, 32): Tile(128, 64, 16, 4, 2),
    ("input", 64, 32): Tile(64, 64, 64, 4, 3),
    ("forward", 32, 64): Tile(128, 32, 64, 4, 4),
    ("weight", 32, 64): Tile(64, 128, 8, 4, 3),
}
"""The fastest on an H200 with twelve networks at a time on images of 32 x 32, by ``benchmarks/tune_kernels.py``."""

DEFAULTS: dict[tuple[Operation, int], Tile] = {
    # By the wider side of the convolution. 32 x 32 x 16, 16 x 16 x 32 and 8 x 8 x 64 at a batch of 128 are 1024, 256
    # and 64 tiles of 128 pixels.
    ("forward", 4): Tile(64, 64, 128, 4, 2),
    ("weight", 4): Tile(64, 64, 64, 4, 2),
    ("forward", 16): Tile(128, 64, 128, 4, 2, True),
    ("forward", 32): Tile(128, 32, 128, 4, 4),
    ("forward", 64): Tile(128, 64, 64, 4, 3),
    ("input", 16): Tile(128, 64, 128, 4, 2, True),
    ("input", 32): Tile(128, 32, 128, 4, 4),
    ("input", 64): Tile(128, 64, 64, 4, 3),
    ("weight", 16): Tile(128, 64, 64, 4, 3),
    ("weight", 32): Tile(64, 128, 32, 4, 3),
    ("weight", 64): Tile(64, 128, 16, 4, 3),
    ("normalise", 16): Tile(128, 0, 128, 4, 2),
    ("normalise", 32): Tile(64, 0, 128, 4, 2),
    ("normalise", 64): Tile(32, 0, 64, 4, 2),
}

_chosen: dict[Key, Tile] = {}


def tile_for(operation: Operation, read: int, written: int) -> Tile:
    """The tile of a kernel for a layer."""
    key = (operation, read, written)
    found = _chosen.get(key) or _MEASURED.get(key)
    return found or default_tile(operation, read, written)


def default_tile(operation: Operation, read: int, written: int) -> Tile:
    """The tile of a kernel for channels that were not measured."""
    width = read if read == IMAGE_CHANNELS else max(read, written)
    return DEFAULTS[operation, next(known for known in (4, 16, 32, 64) if width <= known)]


def use_tiles(tiles: Mapping[Key, Tile] | None) -> None:
    """Use other tiles for new plans, for measuring; ``None`` restores the table."""
    _chosen.clear()
    _chosen.update(tiles or {})
