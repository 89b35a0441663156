"""What a person typed, read by tyro: what is wrong with it is one sentence rather than a box."""

import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from itertools import takewhile
from typing import Any

import tyro

__all__ = ["call", "read", "read_later"]

Command = Callable[..., int]
Ready = Callable[[], int]
"""A command with all its arguments."""


def call(command: Command, arguments: Sequence[str], prog: str) -> int:
    """Call a command with what was typed after its name; its parameters are the flags."""
    return read(lambda words: tyro.cli(read_later(command), args=words, prog=prog), arguments, prog)()


def read_later(command: Command) -> Callable[..., Ready]:
    """The command to tyro's eyes, which does nothing yet: what tyro calls once it has read all is only made ready."""

    @functools.wraps(command)
    def make_ready(*given: Any, **named: Any) -> Ready:
        return functools.partial(command, *given, **named)

    return make_ready


def read(parse: Callable[[list[str]], Any], arguments: Sequence[str], prog: str) -> Ready:
    """What tyro makes of a command line; what it refuses is a ``ValueError`` with its words."""
    if {"-h", "--help"} & set(arguments):
        found: Ready = parse(list(arguments))
        return found
    said = StringIO()
    try:
        with _wide(), redirect_stderr(said):
            found = parse(list(arguments))
    except SystemExit as left:
        if not left.code:
            raise
        raise ValueError(_sentence(said.getvalue(), prog)) from None
    return found


@contextmanager
def _wide() -> Iterator[None]:
    """A terminal in which no line is broken."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "10000"
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _sentence(box: str, prog: str) -> str:
    """What a box says above its first rule.

    Example:
        >>> _sentence("╭─ Error ─╮\\n│ Unrecognized options: --x │\\n│ ──── │\\n│ For … │\\n╰───╯", "longtail data")
        'Unrecognized options: --x; `longtail data --help` shows what there is.'
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    rows = [row.strip("│ ") for row in plain.splitlines() if not row.startswith(("╭", "╰"))]
    said = " ".join(takewhile(lambda row: not row or row.strip("─"), rows))
    return f"{' '.join(said.split()).rstrip('.')}; `{prog} --help` shows what there is."
