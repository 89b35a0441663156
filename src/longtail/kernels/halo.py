"""The kernels of ``cuda/``: convolutions of stride 1 whose tiles hold their halo in shared memory."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from longtail.kernels.compiled import CudaKernel
from longtail.kernels.plan import Layer, Work

__all__ = ["convolve_with_halo", "cuda_source", "weight_part_with_halo"]

_FOLDER = Path(__file__).with_name("cuda")


def _defines(layer: Layer, work: Work, **more: int) -> tuple[tuple[str, int], ...]:
    lines = work.tile.rows // layer.width
    shape = {"CHANNELS": layer.read, "WIDTH": layer.width, "HEIGHT": layer.height, "ROWS": lines}
    return tuple({**shape, "WARPS": work.tile.warps, **more}.items())


def _pixel_bytes(layer: Layer) -> int:
    return 2 * layer.read + 16


def _tile_bytes(layer: Layer, work: Work) -> int:
    lines = work.tile.rows // layer.width
    block = min(lines, layer.height)
    return lines // block * (block + 2) * (layer.width + 2) * _pixel_bytes(layer)


def cuda_source(name: str) -> str:
    """The CUDA C++ of a kernel."""
    return "".join((_FOLDER / f"{part}.cu").read_text(encoding="utf-8") for part in ("tile", name))


@cache
def _kernel(name: str, defines: tuple[tuple[str, int], ...], shared: int, _device: int) -> CudaKernel:
    options = [f"-D{key}={value}" for key, value in defines]
    return CudaKernel(name, cuda_source(name), options, 32 * dict(defines)["WARPS"], shared)


def launch_cuda(
    name: str, defines: tuple[tuple[str, int], ...], shared: int, programs: int, *arguments: Tensor | int
) -> None:
    """Launch a kernel of ``cuda/``; a test puts an emulator in this place."""
    _kernel(name, defines, shared, torch.cuda.current_device())(programs, *arguments)


def convolve_with_halo(layer: Layer, work: Work, back: int, enter: bool, *tensors: Tensor) -> None:
    """The convolution or the gradient of its input.

    Args:
        layer: the shapes.
        work: how it is cut.
        back: 0 forward; 1 the gradient of the input; 2 the same where a shortcut joins.
        enter: whether, forward, x has still to go through the BatchNorm and ReLU below.
        tensors: the first ten arguments of the kernel ``convolution``.
    """
    channels, warps = layer.read, work.tile.warps
    shared = 2 * _tile_bytes(layer, work) + 9 * channels * _pixel_bytes(layer) + 4 * (2 * warps + 1) * channels
    defines = _defines(layer, work, ENTER=int(enter), BACK=back)
    launch_cuda("convolution", defines, shared, work.programs, *tensors, layer.pixels, work.per)


def weight_part_with_halo(layer: Layer, work: Work, runs: int, enter: bool, *tensors: Tensor) -> None:
    """Backward through BatchNorm, and the parts of the weight's gradient.

    Args:
        layer: the shapes.
        work: how it is cut.
        runs: rows of the sums.
        enter: whether x has still to go through the BatchNorm and ReLU below.
        tensors: the first thirteen arguments of the kernel ``weight_gradient``.
    """
    wide = 32 if layer.read == 64 else 16  # columns of a warp's part, of sixteen rows
    blocks = layer.read // 16 * (layer.read // wide)
    defines = _defines(layer, work, ENTER=int(enter), SPLIT=work.tile.warps // blocks)
    shared = 2 * _tile_bytes(layer, work) + work.tile.rows * _pixel_bytes(layer) + 128 * work.tile.warps
    shared = max(shared, blocks * 9 * 16 * wide * 4)  # at last, warps add up in it what they share
    launch_cuda("weight_gradient", defines, shared, work.programs, *tensors, layer.pixels, work.per, runs)
