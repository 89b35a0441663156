"""CUDA C++ compiled by NVRTC, which torch brings along: half a second a kernel, when it is first launched."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["CudaKernel", "compile_cuda"]

_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@cache
def _nvrtc() -> ctypes.CDLL:
    major = str(torch.version.cuda).split(".")[0]
    for name in (f"libnvrtc.so.{major}", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError("Expected NVRTC, which torch's CUDA wheels bring along, but found no libnvrtc.so.")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int, what: str) -> None:
    if result:
        raise RuntimeError(f"{what} failed with error {result}.")


def compile_cuda(source: str, options: Sequence[str], architecture: str) -> bytes:
    """The machine code of a source.

    Args:
        source: CUDA C++ that includes nothing.
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


class CudaKernel:
    """A kernel on the current device; launches go to the current stream, and a CUDA graph can hold them.

    Args:
        name: ``extern "C"`` in the source.
        source: see :func:`compile_cuda`.
        options: likewise.
        threads: of a program.
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
        _check(driver.cuFuncSetAttribute(self._function, _SHARED, shared), "Asking for shared memory")

    def __call__(self, programs: int, *arguments: Tensor | int) -> None:
        """Launch it.

        Args:
            programs: how many.
            arguments: pointers, given as tensors, and ints.
        """
        values: list[Any] = [
            ctypes.c_void_p(one.data_ptr()) if isinstance(one, Tensor) else ctypes.c_int(one) for one in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        sizes = (programs, 1, 1, self.threads, 1, 1, self.shared)
        _check(_driver().cuLaunchKernel(self._function, *sizes, stream, pointers, None), "Launching a kernel")
