"""``longtail methods``: what there is to train with."""

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from longtail.cli.parsing import call
from longtail.methods import METHODS

__all__ = ["run"]


def show_methods() -> int:
    """Show the methods: one line each, its reference and its parameters."""
    console = Console()
    for method in METHODS.values():
        reference = f" ({method.reference})" if method.reference else ""
        _tell(console, f"{method.name}  {method.summary}{reference}", bold=len(method.name))
        for name, parameter in method.parameters.items():
            default = "" if parameter.default is None else f", default {parameter.default}"
            flag = name.replace("_", "-")
            _tell(console, f"    --{flag}  {parameter.help}{default}")
    return 0


def _tell(console: Console, line: str, bold: int = 0) -> None:
    """Print a line, its first characters bold; what does not fit follows below it, further to the right."""
    lines = textwrap.wrap(line, console.width, subsequent_indent=" " * 8, break_on_hyphens=False)
    text = Text("\n".join(lines))
    text.stylize("bold", 0, bold)
    console.print(text, soft_wrap=True)


def run(arguments: Sequence[str]) -> int:
    """Parse, print."""
    return call(show_methods, arguments, "longtail methods")
