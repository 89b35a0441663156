"""What is known before a step: shapes, tiles, where things lie. One plan a batch size."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from longtail.kernels.configs import IMAGE_CHANNELS, Operation, Tile, default_tile, tile_for

__all__ = ["ELEMENTS", "Layer", "Plan", "Work", "layers_of", "part_table", "weight_table"]

ELEMENTS = 256
"""Elements of a weight that a program of ``cast_weights`` or ``sum_parts`` does."""


@dataclass(frozen=True)
class Work:
    """How a kernel over pixels is launched."""

    tile: Tile
    pixels: int

    @property
    def per(self) -> int:
        """Tiles of a program."""
        return -(-self._tiles // self.tile.programs)

    @property
    def programs(self) -> int:
        """How many there are; each leaves a row of statistics."""
        return -(-self._tiles // self.per)

    @property
    def run(self) -> int:
        """Pixels of a program."""
        return self.per * self.tile.rows

    @property
    def _tiles(self) -> int:
        return -(-self.pixels // self.tile.rows)


@dataclass(frozen=True)
class Layer:
    """A convolution of one shape."""

    batch: int
    real: int
    """Channels that are read."""
    written: int
    stride: int
    height: int
    """Of what is read."""
    width: int
    image: bool = False
    """Whether it reads the images, whose channels are filled up."""

    @property
    def read(self) -> int:
        """Channels that are read, as computed."""
        return IMAGE_CHANNELS if self.image else self.real

    @property
    def out_height(self) -> int:
        """Of what is written."""
        return -(-self.height // self.stride)

    @property
    def out_width(self) -> int:
        """Of what is written."""
        return -(-self.width // self.stride)

    @property
    def pixels_in(self) -> int:
        """All pixels that are read."""
        return self.batch * self.height * self.width

    @property
    def pixels(self) -> int:
        """All pixels that are written."""
        return self.batch * self.out_height * self.out_width

    @property
    def size(self) -> int:
        """Elements of the weight, as computed."""
        return 9 * self.read * self.written

    def work(self, operation: Operation) -> Work:
        """How one of its kernels is launched."""
        if operation == "input":
            read, written, height, pixels = self.written, self.read, self.height, self.pixels_in
        else:
            read = self.written if operation == "normalise" else self.read
            written, height, pixels = self.written, self.out_height, self.pixels
        tile = tile_for(operation, read, written, height)
        if tile.halo and not self.fits_halo(tile.rows):  # the table knows heights, but not widths
            tile = default_tile(operation, read, written)
        if operation == "input" and self.stride == 2:  # tiles of each of four kinds of pixels
            pixels = 4 * -(-self.pixels // tile.rows) * tile.rows
        return Work(tile, pixels)

    def fits_halo(self, rows: int) -> bool:
        """Whether it can be cut into tiles of so many pixels with their halo, as ``cuda/`` wants them."""
        square = not self.image and self.stride == 1 and self.read == self.written
        if not square or self.read not in {16, 32, 64} or self.width not in {8, 16, 32} or rows % self.width:
            return False
        if self.pixels * self.read >= 2**31:  # places are counted in 32 bits there
            return False
        lines = rows // self.width
        return self.height % lines == 0 or lines % self.height == 0

    @property
    def enters(self) -> bool:
        """Whether its kernels take what they read through BatchNorm and ReLU themselves, so that nobody writes it."""
        return self.work("forward").tile.halo and self.work("weight").tile.halo

    @property
    def groups(self) -> int:
        """Into how many groups of rows its weight's gradient is cut."""
        return -(-9 * self.read // self.work("weight").tile.chunk)


def layers_of(batch: int, height: int, width: int, weights: Sequence[Tensor], strides: Sequence[int]) -> list[Layer]:
    """The layers of a network, the first of which reads images."""
    layers = []
    for number, (weight, stride) in enumerate(zip(weights, strides, strict=True)):
        layers.append(Layer(batch, weight.shape[1], weight.shape[0], stride, height, width, image=number == 0))
        height, width = layers[-1].out_height, layers[-1].out_width
    return layers


def _starts(sizes: Sequence[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts


def weight_table(layers: Sequence[Layer], weights: Sequence[Tensor]) -> list[list[int]]:
    """The table of ``cast_weights``. Both copies of a layer lie one after the other, in :attr:`Plan.cast_at`."""
    rows = []
    at = 0
    for layer, weight in zip(layers, weights, strict=True):
        shape = [layer.read, layer.real, layer.written, *weight.stride()]
        for start in range(0, layer.size, ELEMENTS):
            rows.append([weight.data_ptr(), start, *shape, at, at + layer.size])
        at += 2 * layer.size
    return rows


def part_table(layers: Sequence[Layer], weights: Sequence[Tensor]) -> list[list[int]]:
    """The table of ``sum_parts``."""
    rows = []
    at = to = 0
    for layer, weight in zip(layers, weights, strict=True):
        splits = layer.work("weight").programs
        for start in range(0, layer.size, ELEMENTS):
            rows.append([at, splits, start, layer.read, layer.real, layer.written, to, *weight.stride()])
        at += splits * layer.size
        to += weight.numel()
    return rows


class Plan:
    """All layers of a network for one batch size, and the tables that its kernels read.

    A captured graph reads the tables: whoever captures one must keep the plan.

    Args:
        layers: their shapes.
        weights: their parameters, which the tables point to.
        dtype: of maps and cast weights. float32 is for checking the kernels' arithmetic.
    """

    def __init__(self, layers: Sequence[Layer], weights: Sequence[Tensor], dtype: torch.dtype = torch.bfloat16) -> None:
        self.layers, self.dtype = list(layers), dtype
        device = weights[0].device
        self.cast_table = torch.tensor(weight_table(layers, weights), dtype=torch.int64, device=device)
        self.part_table = torch.tensor(part_table(layers, weights), dtype=torch.int64, device=device)
        cast = _starts([2 * layer.size for layer in layers])
        self.cast_at = [
            (start, start + layer.size, end) for (start, end), layer in zip(pairwise(cast), layers, strict=True)
        ]
        """Where a layer's weight begins as cast, where its copy turned round does, and where that ends."""
        self.parts_at = _starts([layer.work("weight").programs * layer.size for layer in layers])
        self.gradients_at = _starts([weight.numel() for weight in weights])
        self.channels_at = _starts([layer.written for layer in layers])
        self.enters = [number % 2 == 0 and layer.enters for number, layer in enumerate(layers)] + [False]
        """Which layers, all of them second ones of a block, read what BatchNorm read; nobody follows the last."""
