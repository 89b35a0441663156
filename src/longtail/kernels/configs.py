"""Tile sizes of the kernels: one table, keyed by what is computed and on which shape."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["DEFAULTS", "IMAGE_CHANNELS", "Operation", "Tile", "default_tile", "tile_for", "use_tiles"]

IMAGE_CHANNELS = 4
"""An image's channels are filled up to these."""

Operation = Literal["forward", "input", "weight", "normalise"]
"""Convolution; its input's gradient; its weight's gradient; BatchNorm with ReLU."""

Key = tuple[Operation, int, int, int]
"""What is computed, the channels read and written, and the height of what is written (for ``weight``: of the
gradient that is read)."""


@dataclass(frozen=True)
class Tile:
    """How a kernel cuts its work."""

    rows: int
    """Pixels of a tile, a power of two."""
    chunk: int
    """Of the nine taps' channels, how many are multiplied at a time; a power of two."""
    programs: int
    """At most so many programs, each with a run of tiles. Twelve kernels share the GPU: none needs all of it, and every
    program leaves a row of statistics that each program of the next kernel reads."""
    warps: int = 4
    stages: int = 3
    unrolled: bool = False
    """All chunks of a tile are loaded ahead, tile by tile, rather than chunk by chunk: for few, small chunks."""
    halo: bool = False
    """By the kernels of ``cuda/``: whole rows of an image with what surrounds them. ``chunk``, ``stages`` and
    ``unrolled`` mean nothing there."""


_MEASURED: dict[Key, Tile] = {
    ("input", 16, 16, 32): Tile(128, 0, 64, 4, halo=True),
    ("forward", 16, 16, 32): Tile(256, 0, 128, 4, halo=True),
    ("weight", 16, 16, 32): Tile(256, 0, 64, 4, halo=True),
    ("normalise", 16, 16, 32): Tile(128, 0, 128, 4, 2),
    ("input", 32, 32, 16): Tile(128, 0, 64, 4, halo=True),
    ("forward", 32, 32, 16): Tile(128, 0, 64, 4, halo=True),
    ("weight", 32, 32, 16): Tile(128, 0, 32, 4, halo=True),
    ("normalise", 32, 32, 16): Tile(128, 0, 128, 4, 2),
    ("input", 64, 64, 8): Tile(128, 64, 64, 4, 4),
    ("forward", 64, 64, 8): Tile(128, 64, 64, 4, 4),
    ("weight", 64, 64, 8): Tile(128, 0, 16, 8, halo=True),
    ("normalise", 64, 64, 8): Tile(32, 0, 64, 4, 2),
    ("forward", 4, 16, 32): Tile(128, 64, 128, 4, 1),
    ("weight", 4, 16, 32): Tile(64, 64, 64, 4, 3),
    ("input", 32, 16, 32): Tile(128, 64, 64, 4, 3),
    ("forward", 16, 32, 16): Tile(256, 32, 128, 8, 3),
    ("weight", 16, 32, 16): Tile(128, 64, 16, 4, 2),
    ("input", 64, 32, 16): Tile(64, 64, 64, 4, 3),
    ("forward", 32, 64, 8): Tile(128, 32, 64, 4, 4),
    ("weight", 32, 64, 8): Tile(64, 128, 8, 4, 3),
}
"""What ``benchmarks/tune_kernels.py`` found to be fastest on an H200, twelve networks at a time."""

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


def tile_for(operation: Operation, read: int, written: int, height: int) -> Tile:
    """The tile of one kernel on one shape.

    Args:
        operation: what is computed.
        read: channels that are read.
        written: channels that are written.
        height: of the maps that are written; of ``"weight"``, of the gradient that is read.
    """
    key = (operation, read, written, height)
    found = _chosen.get(key) or _MEASURED.get(key)
    return found or default_tile(operation, read, written)


def default_tile(operation: Operation, read: int, written: int) -> Tile:
    """The tile of a kernel on a shape that was not measured; arguments as those of :func:`tile_for`."""
    width = read if read == IMAGE_CHANNELS else max(read, written)
    return DEFAULTS[operation, next(known for known in (4, 16, 32, 64) if width <= known)]


def use_tiles(tiles: Mapping[Key, Tile] | str | Path | None) -> None:
    """Use other tiles from now on, for measuring; ``None`` goes back to the table.

    Plans that were made before keep theirs.

    Args:
        tiles: a mapping, or the file that ``benchmarks/tune_kernels.py`` writes.
    """
    _chosen.clear()
    if isinstance(tiles, str | Path):
        rows: list[dict[str, Any]] = json.loads(Path(tiles).read_text(encoding="utf-8"))["best"]
        _chosen.update({(r["operation"], r["read"], r["written"], r["height"]): Tile(**r["tile"]) for r in rows})
    elif tiles is not None:
        _chosen.update(tiles)
