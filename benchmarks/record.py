"""What a benchmark leaves: a JSON file with a part for each thing it measured, and where, when and how that was."""

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
CODE = ("src", "benchmarks/*.py")  # what a figure may depend on; results and pages are written by the benchmarks
QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


def device_name() -> str:
    """The GPU's, or the processor's where there is none."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return platform.processor() or platform.machine()


def command_line(words: Sequence[str]) -> str:
    """How a script was called, without folders of the machine that ran it: ``--out`` and whole paths by name alone."""
    shown = [f"benchmarks/{Path(words[0]).name}"]
    for before, word in pairwise(words):
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        named = "--out" in (before, flag) or Path(value).is_absolute()
        shown.append(f"{flag}{equals}{Path(value).name if named else value}")
    return " ".join(["python", *shown])


def said_by(*command: str) -> str | None:
    """What a command prints, run in the repository; ``None`` where there is none, or it fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def processor() -> str:
    """Its name, where Linux tells; its kind elsewhere."""
    told = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", told.read_text(), re.MULTILINE) if told.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def commit() -> str | None:
    """The one that is checked out, with a plus where the library or a benchmark differs from it."""
    there = said_by("git", "rev-parse", "--short", "HEAD")
    if there is None:
        return None
    return there + ("+" if said_by("git", "--no-optional-locks", "status", "--porcelain", "--", *CODE) else "")


@functools.cache
def machine() -> dict[str, str | int]:
    """What figures depend on and does not change while they are measured; what is not known is left out."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {"processor": processor(), "cores": cores, "commit": commit()}
    if torch.cuda.is_available():
        with suppress(PackageNotFoundError):
            found["triton"] = version("triton")
        drivers = said_by("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        found["driver"] = drivers.splitlines()[0] if drivers else None  # a line a GPU
    return {name: value for name, value in found.items() if value is not None}


def about() -> dict[str, str | int]:
    """Where, when and how something was measured."""
    queues = os.environ.get(QUEUES, "32")  # what `longtail.train` sets
    return {
        "command": command_line(sys.argv) if queues == "32" else f"{QUEUES}={queues} {command_line(sys.argv)}",
        "device": device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        **machine(),
        "date": time.strftime("%Y-%m-%d"),
    }


def save(out: Path | None, parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Write parts, whole or not at all; called again whenever there is more, with all that was measured so far.

    Those that an earlier run left under this name in ``results/``, and that were not measured now, are kept.
    """
    if out is None:
        return
    committed = RESULTS / out.name
    kept = json.loads(committed.read_text(encoding="utf-8"))["parts"] if committed.exists() else {}
    write_json(out, {"parts": {**kept, **{name: {**about(), **part} for name, part in parts.items()}}})


def verdict(value: float, goal: float, *, at_most: bool = False) -> str:
    """Whether a goal is reached, for a table."""
    reached = value <= goal if at_most else value >= goal
    return "yes" if reached else "NO"


def tell(wrong: Sequence[str]) -> None:
    """Say what is wrong with what is being measured."""
    for sentence in wrong:
        print(f"WRONG: {sentence}", flush=True)
