"""Checks of Triton kernels in Triton's interpreter, on any CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run_interpreted(module: str) -> str:
    """What a module of checks prints, run in a process of its own: the interpreter is chosen when a kernel is defined.

    Args:
        module: such as ``"tests.data.resize_checks"``.
    """
    pytest.importorskip("triton")
    ran = subprocess.run(
        [sys.executable, "-m", module],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[1],
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()
