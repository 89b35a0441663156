"""Scripts of the benchmarks as modules, without a GPU."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Return a function that imports a script of the folder."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    known = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - known:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCHMARKS:
            del sys.modules[name]


@pytest.fixture
def command(load, monkeypatch):
    """Return a function that runs a script in this process."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        load(name.removesuffix(".py")).main()

    return run


def script(name, *arguments):
    """Run a script in a new process, and return its output."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, str(BENCHMARKS / name), *map(str, arguments)]
    return subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout
