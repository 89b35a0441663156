"""How the commands that we print begin."""

import shlex
import sys
from pathlib import Path

from longtail.methods import BUILT_IN, METHODS

__all__ = ["program"]


def program() -> str:
    """``longtail``, or where a method of one's own is there the file that adds it (``FILE.py`` if no file was run)."""
    if METHODS.keys() <= BUILT_IN:
        return "longtail"
    file = Path(sys.argv[0])
    named = file.suffix == ".py" and file.name != "ipykernel_launcher.py"  # Jupyter's
    return shlex.join(["python", str(file) if named else "FILE.py"])
