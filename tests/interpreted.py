"""Run checks of Triton kernels in Triton's interpreter, on any CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run_interpreted(module: str, *arguments: str) -> str:
    """Run a module of checks in a new process, since the interpreter is chosen when a kernel is defined.

    Args:
        module: for example ``"tests.data.resize_checks"``.
        arguments: of the module's command line.

    Returns:
        what the module prints.
    """
    pytest.importorskip("triton")
    ran = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[1],
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()
