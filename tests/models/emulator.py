"""The kernels of ``kernels/cuda/`` on a CPU: compiled as C++ with ``emulated.h``, one library per shape."""

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from torch import Tensor

from longtail.kernels import halo

_HERE = Path(__file__).parent
_FOLDER = tempfile.TemporaryDirectory()
_START = """
extern "C" void start(int programs, int shared, void** p, const long* bytes, int tensors, const int* n) {
    emulated::ranges.clear();
    for (int i = 0; i < tensors; i++) emulated::ranges.push_back({(char*)p[i], (char*)p[i] + bytes[i]});
    emulated::run(programs, THREADS, shared, [&] {
#if defined(BACK)
        convolution((u16*)p[0], (u16*)p[1], (u16*)p[2], (float*)p[3], (u16*)p[4], (float*)p[5], (float*)p[6],
                    (float*)p[7], (u16*)p[8], (u16*)p[9], n[0], n[1]);
#else
        weight_gradient((u16*)p[0], (u16*)p[1], (u16*)p[2], (float*)p[3], (float*)p[4], (float*)p[5], (u16*)p[6],
                        (float*)p[7], (float*)p[8], (float*)p[9], (float*)p[10], (float*)p[11], (float*)p[12], n[0],
                        n[1], n[2]);
#endif
    });
}
"""


@cache
def _library(name: str, defines: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    source = Path(_FOLDER.name) / f"{'-'.join(f'{key}{value}' for key, value in defines)}.cpp"
    source.write_text(f'#include "{_HERE / "emulated.h"}"\n{halo.cuda_source(name)}\n{_START}', encoding="utf-8")
    options = [f"-D{key}={value}" for key, value in defines]
    command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", *options, str(source)]
    subprocess.run([*command, "-o", str(source.with_suffix(".so"))], check=True)
    return ctypes.CDLL(str(source.with_suffix(".so")))


def launch(
    name: str, defines: tuple[tuple[str, int], ...], shared: int, programs: int, *arguments: Tensor | int
) -> None:
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    numbers = [one for one in arguments if isinstance(one, int)]
    assert all(one.is_contiguous() for one in tensors)
    pointers = (ctypes.c_void_p * len(tensors))(*(one.data_ptr() for one in tensors))
    sizes = (ctypes.c_long * len(tensors))(*(one.nbytes for one in tensors))
    _library(name, defines).start(
        programs, shared, pointers, sizes, len(tensors), (ctypes.c_int * len(numbers))(*numbers)
    )


def use() -> None:
    """Redirect the launches of these kernels here."""
    halo.launch_cuda = launch
