"""CUDA C++ kernels of ``cuda/``: convolutions of stride 1 whose tiles hold their halo in shared memory.

They are compiled by NVRTC, which is part of torch's CUDA wheels, in half a second per kernel at the first launch.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail.kernels.plan import Layer, Work

_FOLDER = Path(__file__).with_name("cuda")
_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@cache
def _nvrtc() -> ctypes.CDLL:
    major = str(torch.version.cuda).split(".")[0]
    for name in (f"libnvrtc.so.{major}", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError("Expected NVRTC, which is part of torch's CUDA wheels, but found no libnvrtc.so.")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int, what: str) -> None:
    if result:
        raise RuntimeError(f"{what} failed with error {result}.")


def compile_cuda(source: str, options: Sequence[str], architecture: str) -> bytes:
    """Compile CUDA C++ to machine code.

    Args:
        source: CUDA C++ without includes.
        options: of NVRTC, such as ``-DNAME=1``.
        architecture: such as ``"sm_90"``.
    """
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None), "NVRTC")
    given = [one.encode() for one in (f"-arch={architecture}", "-std=c++17", *options)]
    failed = nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
    size = ctypes.c_size_t()
    if failed:
        _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)), "NVRTC")
        log = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetProgramLog(program, log), "NVRTC")
        raise RuntimeError(f"The kernel does not compile:\n{log.value.decode()}")
    _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "NVRTC")
    code = ctypes.create_string_buffer(size.value)
    _check(nvrtc.nvrtcGetCUBIN(program, code), "NVRTC")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


class _CudaKernel:
    """A kernel on the current device; it is launched on the current stream, and a CUDA graph can hold it.

    Args:
        name: ``extern "C"`` in the source.
        source: as in :func:`compile_cuda`.
        options: as in :func:`compile_cuda`.
        threads: per program.
        shared: bytes of dynamic shared memory.
    """

    def __init__(self, name: str, source: str, options: Sequence[str], threads: int, shared: int) -> None:
        major, minor = torch.cuda.get_device_capability()
        code = compile_cuda(source, options, f"sm_{major}{minor}")
        self.threads, self.shared = threads, shared
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        driver = _driver()
        _check(driver.cuModuleLoadData(ctypes.byref(module), code), "Loading a kernel")
        _check(driver.cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()), "Loading a kernel")
        _check(driver.cuFuncSetAttribute(self._function, _SHARED, shared), "Reserving shared memory")

    def __call__(self, programs: int, *arguments: Tensor | int) -> None:
        """Launch ``programs`` programs; ``arguments`` are tensors, passed as pointers, and ints."""
        values: list[Any] = [
            ctypes.c_void_p(one.data_ptr()) if isinstance(one, Tensor) else ctypes.c_int(one) for one in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        sizes = (programs, 1, 1, self.threads, 1, 1, self.shared)
        _check(_driver().cuLaunchKernel(self._function, *sizes, stream, pointers, None), "Launching a kernel")


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
def _kernel(name: str, defines: tuple[tuple[str, int], ...], shared: int, _device: int) -> _CudaKernel:
    options = [f"-D{key}={value}" for key, value in defines]
    return _CudaKernel(name, cuda_source(name), options, 32 * dict(defines)["WARPS"], shared)


def launch_cuda(
    name: str, defines: tuple[tuple[str, int], ...], shared: int, programs: int, *arguments: Tensor | int
) -> None:
    """Launch a kernel of ``cuda/``; tests replace this function by an emulator."""
    _kernel(name, defines, shared, torch.cuda.current_device())(programs, *arguments)


def convolve_with_halo(layer: Layer, work: Work, back: int, enter: bool, *tensors: Tensor) -> None:
    """The convolution or the gradient of its input.

    Args:
        layer: the shapes.
        work: tile and programs.
        back: 0 forward; 1 the gradient of the input; 2 the same, plus the gradient of the shortcut.
        enter: whether, forward, the kernel applies the BatchNorm and ReLU below to x.
        tensors: the first ten arguments of the kernel ``convolution``.
    """
    channels, warps = layer.read, work.tile.warps
    shared = 2 * _tile_bytes(layer, work) + 9 * channels * _pixel_bytes(layer) + 4 * (2 * warps + 1) * channels
    defines = _defines(layer, work, ENTER=int(enter), BACK=back)
    launch_cuda("convolution", defines, shared, work.programs, *tensors, layer.pixels, work.per)


def weight_part_with_halo(layer: Layer, work: Work, runs: int, enter: bool, *tensors: Tensor) -> None:
    """The backward of BatchNorm, and the parts of the weight gradient.

    Args:
        layer: the shapes.
        work: tile and programs.
        runs: rows of the sums.
        enter: whether the kernel applies the BatchNorm and ReLU below to x.
        tensors: the first thirteen arguments of the kernel ``weight_gradient``.
    """
    wide = 32 if layer.read == 64 else 16  # columns of a warp's part, which has sixteen rows
    blocks = layer.read // 16 * (layer.read // wide)
    defines = _defines(layer, work, ENTER=int(enter), SPLIT=work.tile.warps // blocks)
    shared = 2 * _tile_bytes(layer, work) + work.tile.rows * _pixel_bytes(layer) + 128 * work.tile.warps
    shared = max(shared, blocks * 9 * 16 * wide * 4)  # the warps of a part add their results there
    launch_cuda("weight_gradient", defines, shared, work.programs, *tensors, layer.pixels, work.per, runs)
