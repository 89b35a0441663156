"""The result files of the benchmarks: JSON with one part per measurement, and where, when and how it was measured."""

import functools
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from longtail._io import write_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CODE = ("src", "benchmarks/*.py")  # what results depend on
QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


def device_name() -> str:
    """The name of the GPU, or of the processor if there is no GPU."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return platform.processor() or platform.machine()


def command_line(words: Sequence[str]) -> str:
    """The command without folders of this machine: ``--out`` and absolute paths are shortened to their names."""
    shown = [f"benchmarks/{Path(words[0]).name}"]
    for before, word in pairwise(words):
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        shorten = "--out" in (before, flag) or Path(value).is_absolute()
        shown.append(f"{flag}{equals}{Path(value).name if shorten else value}")
    return " ".join(["python", *shown])


def output_of(*command: str) -> str | None:
    """The output of a command, run in the repository; None if it does not exist or fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def processor() -> str:
    """The name of the processor on Linux, its kind elsewhere."""
    file = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", file.read_text(), re.MULTILINE) if file.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def commit() -> str | None:
    """The current commit, with a plus if the library or a benchmark was changed since."""
    head = output_of("git", "rev-parse", "--short", "HEAD")
    if head is None:
        return None
    return head + ("+" if output_of("git", "--no-optional-locks", "status", "--porcelain", "--", *CODE) else "")


@functools.cache
def machine() -> dict[str, str | int]:
    """What results depend on and does not change during a run; unknown values are left out."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {"processor": processor(), "cores": cores, "commit": commit()}
    if torch.cuda.is_available():
        with suppress(PackageNotFoundError):
            found["triton"] = version("triton")
        drivers = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        found["driver"] = drivers.splitlines()[0] if drivers else None  # one line per GPU
    return {name: value for name, value in found.items() if value is not None}


def about() -> dict[str, str | int]:
    """Where, when and how something was measured."""
    queues = os.environ.get(QUEUES, "32")  # `pick_device` sets 32
    return {
        "command": command_line(sys.argv) if queues == "32" else f"{QUEUES}={queues} {command_line(sys.argv)}",
        "device": device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        **machine(),
        "date": time.strftime("%Y-%m-%d"),
    }


def save(out: Path | None, parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Write all parts measured so far, atomically; call it again after each new one.

    Parts of the committed file of this name that were not measured now are kept.
    """
    if out is None:
        return
    committed = RESULTS / out.name
    kept = json.loads(committed.read_text(encoding="utf-8"))["parts"] if committed.exists() else {}
    write_json(out, {"parts": {**kept, **{name: {**about(), **part} for name, part in parts.items()}}})


def verdict(value: float, goal: float, *, at_most: bool = False) -> str:
    """Whether a goal is reached, as a word in a table."""
    reached = value <= goal if at_most else value >= goal
    return "yes" if reached else "NO"


def warn(problems: Sequence[str]) -> None:
    """Print what is wrong with the things being measured."""
    for sentence in problems:
        print(f"WRONG: {sentence}", flush=True)
