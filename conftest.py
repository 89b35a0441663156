"""Settings of every test, doctests included."""

import os
import signal
from collections.abc import Iterator

# oneDNN's bf16 products die with SIGILL on some CPUs that announce AMX but cannot run it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

# A shell that starts tests in the background lets them ignore Ctrl-C, and with them the commands that they interrupt;
# nohup does the same with a closed terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

collect_ignore = ["reproduction/variants", "reproduction/lvis/plugin.py"]  # importing plugins registers their names


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Seed torch, and forget the plugin files that a test has loaded."""
    torch.manual_seed(0)
    before = os.environ.get("LONGTAIL_PLUGINS")
    yield
    os.environ.pop("LONGTAIL_PLUGINS", None)
    if before is not None:
        os.environ["LONGTAIL_PLUGINS"] = before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
