"""Shapes, tiles and memory layout of a network: one plan per batch size."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from longtail.kernels.configs import IMAGE_CHANNELS, Operation, Tile, default_tile, tile_for

ELEMENTS = 256
"""Elements of a weight per program of ``cast_weights`` and ``sum_parts``."""


@dataclass(frozen=True)
class Work:
    """Tile, pixels and programs of a kernel over pixels."""

    tile: Tile
    pixels: int

    @property
    def per(self) -> int:
        """Tiles per program."""
        return -(-self._tiles // self.tile.programs)

    @property
    def programs(self) -> int:
        """Number of programs; each writes a row of statistics."""
        return -(-self._tiles // self.per)

    @property
    def run(self) -> int:
        """Pixels per program."""
        return self.per * self.tile.rows

    @property
    def _tiles(self) -> int:
        return -(-self.pixels // self.tile.rows)


@dataclass(frozen=True)
class Layer:
    """A convolution of one shape."""

    batch: int
    real: int
    """Channels of the input."""
    written: int
    stride: int
    height: int
    """Of the input."""
    width: int
    image: bool = False
    """Whether the input are the images, whose channels are padded."""

    @property
    def read(self) -> int:
        """Channels of the input, padded."""
        return IMAGE_CHANNELS if self.image else self.real

    @property
    def out_height(self) -> int:
        """Of the output."""
        return -(-self.height // self.stride)

    @property
    def out_width(self) -> int:
        """Of the output."""
        return -(-self.width // self.stride)

    @property
    def pixels_in(self) -> int:
        """Pixels of the input, over the batch."""
        return self.batch * self.height * self.width

    @property
    def pixels(self) -> int:
        """Pixels of the output, over the batch."""
        return self.batch * self.out_height * self.out_width

    @property
    def size(self) -> int:
        """Elements of the padded weight."""
        return 9 * self.read * self.written

    def work(self, operation: Operation) -> Work:
        """Tile and programs of one of its kernels."""
        if operation == "input":
            read, written, pixels = self.written, self.read, self.pixels_in
        else:
            read = self.written if operation == "normalise" else self.read
            written, pixels = self.written, self.pixels
        tile = tile_for(operation, read, written)
        if tile.halo and not self.fits_halo(tile):
            tile = default_tile(operation, read, written)
        if operation == "input" and self.stride == 2:  # tiles of each of the four parities of pixels
            pixels = 4 * -(-self.pixels // tile.rows) * tile.rows
        return Work(tile, pixels)

    def fits_halo(self, tile: Tile) -> bool:
        """Whether the kernels of ``cuda/`` support it with a tile."""
        square = not self.image and self.stride == 1 and self.read == self.written
        if not square or self.read not in {16, 32, 64} or self.width not in {8, 16, 32, 64} or tile.rows % self.width:
            return False
        if 32 * tile.warps % (self.width * self.read // 8):  # threads copy whole rows of eight channels each
            return False
        if self.pixels * self.read >= 2**31:  # they use 32-bit offsets
            return False
        lines = tile.rows // self.width
        return self.height % lines == 0 or lines % self.height == 0

    @property
    def enters(self) -> bool:
        """Whether its kernels apply BatchNorm and ReLU to their input, so the normalised maps are never written."""
        return self.work("forward").tile.halo and self.work("weight").tile.halo

    @property
    def groups(self) -> int:
        """Number of groups of rows of its weight gradient."""
        return -(-9 * self.read // self.work("weight").tile.chunk)


def layers_of(batch: int, height: int, width: int, weights: Sequence[Tensor], strides: Sequence[int]) -> list[Layer]:
    """The layers of a network; the first reads the images."""
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


def _cast_rows(layers: Sequence[Layer], weights: Sequence[Tensor]) -> list[list[int]]:
    """The table of ``cast_weights``; both copies of a layer are adjacent, at ``NetworkPlan.cast_at``."""
    rows = []
    at = 0
    for layer, weight in zip(layers, weights, strict=True):
        shape = [layer.read, layer.real, layer.written, *weight.stride()]
        for start in range(0, layer.size, ELEMENTS):
            rows.append([weight.data_ptr(), start, *shape, at, at + layer.size])
        at += 2 * layer.size
    return rows


def _part_rows(layers: Sequence[Layer], weights: Sequence[Tensor]) -> list[list[int]]:
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


class NetworkPlan:
    """All layers of a network for one batch size, and the tables that its kernels read.

    A captured CUDA graph reads the tables, so the plan must be kept as long as the graph.

    Args:
        layers: their shapes.
        weights: their parameters, to which the tables point.
        dtype: of maps and cast weights; float32 is for checking the kernels' arithmetic.
    """

    def __init__(self, layers: Sequence[Layer], weights: Sequence[Tensor], dtype: torch.dtype = torch.bfloat16) -> None:
        self.layers, self.dtype = list(layers), dtype
        device = weights[0].device
        self.cast_table = torch.tensor(_cast_rows(layers, weights), dtype=torch.int64, device=device)
        self.part_table = torch.tensor(_part_rows(layers, weights), dtype=torch.int64, device=device)
        cast = _starts([2 * layer.size for layer in layers])
        self.cast_at = [
            (start, start + layer.size, end) for (start, end), layer in zip(pairwise(cast), layers, strict=True)
        ]
        """Offsets of each layer's cast weight, of its transposed copy, and of the end of that."""
        self.parts_at = _starts([layer.work("weight").programs * layer.size for layer in layers])
        self.gradients_at = _starts([weight.numel() for weight in weights])
        self.channels_at = _starts([layer.written for layer in layers])
        self.enters = [number % 2 == 0 and layer.enters for number, layer in enumerate(layers)] + [False]
        """Layers that apply the BatchNorm below themselves (second layers of blocks); one False after the last."""
