"""What a benchmark leaves: a JSON file with a part for each thing it measured, and where, when and how that was."""

import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def device_name() -> str:
    """The GPU's, or the processor's where there is none."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return platform.processor() or platform.machine()


def about() -> dict[str, str]:
    """Where, when and how something was measured."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "device": device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def save(out: Path | None, parts: dict[str, Any]) -> None:
    """Write parts.

    Those that an earlier run left under this name in ``results/``, and that were not measured now, are kept.
    """
    if out is None:
        return
    committed = RESULTS / out.name
    kept = json.loads(committed.read_text(encoding="utf-8"))["parts"] if committed.exists() else {}
    found = {name: {**about(), **part} for name, part in parts.items()}
    out.write_text(json.dumps({"parts": {**kept, **found}}, indent=1) + "\n", encoding="utf-8")


def verdict(value: float, goal: float, *, at_most: bool = False) -> str:
    """Whether a goal is reached, for a table."""
    reached = value <= goal if at_most else value >= goal
    return "yes" if reached else "NO"
