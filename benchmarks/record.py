"""What a benchmark leaves: a JSON file with a part for each thing it measured, and where, when and how that was."""

import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from longtail.train.files import write_json

RESULTS = Path(__file__).parent / "results"
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


def about() -> dict[str, str]:
    """Where, when and how something was measured."""
    queues = os.environ.get(QUEUES, "32")  # what `longtail.train` sets
    return {
        "command": command_line(sys.argv) if queues == "32" else f"{QUEUES}={queues} {command_line(sys.argv)}",
        "device": device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
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
