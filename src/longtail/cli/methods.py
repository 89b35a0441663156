"""``longtail methods``: the methods and their parameters."""

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from longtail._registry import load_plugins
from longtail.cli.parsing import Parser
from longtail.cli.show import SafeConsole
from longtail.methods import METHODS


def run(words: Sequence[str]) -> int:
    """Show one line per method, its reference and its parameters."""
    Parser("longtail methods", "Show the methods, with their references and parameters.").read(words)
    load_plugins()
    console = SafeConsole()
    for method in METHODS.values():
        reference = f" ({method.reference})" if method.reference else ""
        _print(console, f"{method.name}  {method.summary}{reference}", bold=len(method.name))
        for name, parameter in method.parameters.items():
            default = "" if parameter.default is None else f", default {parameter.default}"
            _print(console, f"    --{name.replace('_', '-')}  {parameter.help}{default}")
    return 0


def _print(console: Console, line: str, bold: int = 0) -> None:
    lines = textwrap.wrap(line, console.width, subsequent_indent=" " * 8, break_on_hyphens=False)
    text = Text("\n".join(lines))
    text.stylize("bold", 0, bold)
    console.print(text, soft_wrap=True)
