"""Triton where it is installed. Without it the modules of kernels can be imported, but nothing in them launched."""

from typing import Any

try:
    import triton.language as tl  # type: ignore[import-untyped]
    from triton import jit
except ImportError:  # a torch without CUDA brings no Triton

    class _Nothing:
        """Stands for ``triton.language`` in annotations."""

        constexpr = None

    tl: Any = _Nothing()  # type: ignore[no-redef]

    def jit(function: Any) -> Any:
        """Leave the function as it is."""
        return function


__all__ = ["jit", "tl"]
