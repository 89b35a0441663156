"""What a person typed, read by tyro: what is wrong with it is one sentence rather than a box."""

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Annotated, Any, get_type_hints

import tyro

from longtail._checks import nearest

__all__ = ["DEFAULT", "call", "flags_of", "read", "read_later"]

Command = Callable[..., int]
Ready = Callable[[], int]
"""A command with all its arguments."""


def _default(shown: str) -> str:
    return "" if shown in {"None", "", "''"} else f"(default: {shown})"


DEFAULT = tyro.conf.arg(help_behavior_hint=_default)
"""Of a parameter: its help tells the default, unless that is nothing."""


def call(command: Command, arguments: Sequence[str], prog: str) -> int:
    """Call a command with what was typed after its name; its parameters are the flags."""
    return read(
        lambda words: tyro.cli(read_later(command), args=words, prog=prog), arguments, prog, flags_of(command).values()
    )()


def flags_of(command: Command) -> dict[str, str]:
    """The flags of a command, by the names of its parameters.

    Example:
        >>> def show(path: Annotated[str, tyro.conf.Positional], tail_under: int = 20) -> int: ...
        >>> flags_of(show)
        {'tail_under': '--tail-under'}
    """
    hints = get_type_hints(command, include_extras=True)
    return {
        name: f"--{name.replace('_', '-')}"
        for name, hint in hints.items()
        if name != "return" and tyro.conf.Positional not in getattr(hint, "__metadata__", ())
    }


def read_later(command: Command) -> Callable[..., Ready]:
    """The command to tyro's eyes, which does nothing yet: what tyro calls once it has read all is only made ready."""

    def make_ready(*given: Any, **named: Any) -> Ready:
        return functools.partial(_run, command, *given, **named)

    make_ready.__doc__ = command.__doc__
    make_ready.__dict__["__signature__"] = inspect.signature(command)
    for name, hint in get_type_hints(command, include_extras=True).items():
        alone = (tyro.conf.FlagCreatePairsOff,) if name.startswith("no_") else ()  # there is no --no-no-figures
        make_ready.__annotations__[name] = Annotated[hint, DEFAULT, tyro.conf.DisallowNone, *alone]
    return make_ready


def _run(command: Command, *given: Any, **named: Any) -> int:
    """Call a command; what it says of a parameter is said of the flag that a person typed."""
    try:
        return command(*given, **named)
    except (ValueError, TypeError, OSError) as error:
        if len(error.args) == 1:
            flags = flags_of(command)
            error.args = (re.sub(r"`(\w+)`", lambda found: flags.get(found[1], found[0]), str(error)),)
        raise


def read(parse: Callable[[list[str]], Any], arguments: Sequence[str], prog: str, known: Iterable[str]) -> Ready:
    """What tyro makes of a command line; what it refuses is a ``ValueError`` with its words.

    Args:
        parse: calls tyro.
        arguments: what was typed.
        prog: after which words.
        known: words, one of which may have been meant by one that tyro does not know.
    """
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
        raise ValueError(_sentence(said.getvalue(), prog, known)) from None
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


_RULE = r"(?m)^(?:[╭╰].*|[│ ]*[─-]{3,}[│ ]*)$"
"""A line across a box, which is drawn with plain characters where an encoding has no others."""


def _sentence(box: str, prog: str, known: Iterable[str]) -> str:
    """What a box says below its title, up to the next rule, with the known word that is nearest to one that is not.

    Example:
        >>> box = "╭─ Error ─╮\\n│ Unrecognized options: --rot, x │\\n│ ──── │\\n│ For … │\\n╰───╯"
        >>> _sentence(box, "longtail data", ["--root"])
        'Unrecognized options: --rot, x; the closest match is --root; `longtail data --help` shows what there is.'
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    said = " ".join(re.split(_RULE, plain)[1].replace("│", " ").split())
    unknown = re.match(r"Unrecognized options: ([^\s,=]+)", said)
    near = nearest(unknown[1], known) if unknown else ""
    return f"{said.rstrip('.')}{near}; `{prog} --help` shows what there is."
