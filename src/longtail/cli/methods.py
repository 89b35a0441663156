"""``longtail methods``: what there is to train with."""

from collections.abc import Sequence

from rich.console import Console

from longtail.cli.parsing import call
from longtail.methods import METHODS

__all__ = ["run"]


def show_methods() -> int:
    """Show the methods: one line each, its reference and its knobs."""
    console = Console()
    for method in METHODS.values():
        reference = f" ({method.reference})" if method.reference else ""
        console.print(f"[bold]{method.name}[/bold]  {method.summary}{reference}", soft_wrap=True, highlight=False)
        for name, knob in method.knobs.items():
            default = "" if knob.default is None else f", default {knob.default}"
            flag = name.replace("_", "-")
            console.print(f"    --{flag}  {knob.what}{default}", soft_wrap=True, highlight=False, markup=False)
    return 0


def run(arguments: Sequence[str]) -> int:
    """Parse, print."""
    return call(show_methods, arguments, "longtail methods")
