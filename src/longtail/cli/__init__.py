"""The command ``longtail``: a table of commands, each a module of its own. Needs ``longtail[cli]``.

A command's module offers ``run(arguments) -> int``: parse, call, print, and give the exit code. Modules are imported on
use, so that one command does not wait for what another needs.
"""

import os
import re
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType

from longtail import __version__
from longtail._checks import nearest
from longtail._registry import load_plugin

__all__ = ["COMMANDS", "check_interrupted", "main", "sentence_of"]

COMMANDS = {
    "data": ("data sets: list, get, check, and describe your own", "longtail.cli.data"),
    "methods": ("the methods, with their references and parameters", "longtail.cli.methods"),
    "train": ("train a model, several at once, or go on with one", "longtail.cli.train"),
    "study": ("many runs: methods, betas and seeds, compared in tables", "longtail.cli.study"),
    "evaluate": ("the measures of a finished run again, or after a post-hoc step", "longtail.cli.evaluate"),
    "report": ("one HTML page about a folder of runs, with figures", "longtail.cli.report"),
    "diagnose": ("the same from anybody's predictions, with what to try next", "longtail.cli.diagnose"),
    "predict": ("labels and probabilities of images, by a finished run", "longtail.cli.predict"),
}
"""Each command's summary and module."""

_EXTRAS = {"data": "cli", "methods": "cli", "report": "report,train", "diagnose": "report,train"}
"""What brings all that a command needs; the others need ``train``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what a person did wrong is one sentence and exit code 2.

    Where nobody reads on, as in ``longtail methods | head -1``, it ends without a word, with 141 as a shell has it.
    """
    _print_anything()
    try:
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # at the interpreter's end it would be too late to catch anything
    except OSError as error:
        if not isinstance(error, BrokenPipeError) or not _is_unread():
            return _refuse(sentence_of(error))
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is not written yet
    except SystemExit as left:
        if not isinstance(left.__context__, BrokenPipeError):  # which rich makes this of
            raise
    return 128 + signal.SIGPIPE


def _print_anything() -> None:
    """Have what an encoding lacks printed as a question mark, unless the environment says how."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in {"strict", "surrogateescape"}:
            stream.reconfigure(errors="replace")


def _is_unread() -> bool:
    """Whether what is printed goes into a pipe that nobody reads any more; a connection may break, too."""
    pipes = select.poll()
    try:
        pipes.register(sys.stdout.fileno(), 0)
    except OSError:  # what is printed goes nowhere that the system knows of
        return False
    return any(event & select.POLLERR for _, event in pipes.poll(0))


def _run(given: Sequence[str]) -> int:
    """Run a command, and say what a person did wrong."""
    plugins, given = _split_plugins(given)
    answer = _ANSWERS.get(given[0] if given else "--help")
    if answer is not None:
        sys.stdout.write(answer())
        return 0
    name, rest = given[0], given[1:]
    if name not in COMMANDS:
        near = nearest(name, COMMANDS)
        return _refuse(f"Expected a command that `longtail --help` shows, but got {name!r}{near}.")
    try:
        with _heeding_signals():
            with _leaving_at_once():
                for plugin in plugins:
                    load_plugin(plugin)
                command = import_module(COMMANDS[name][1])
            return int(command.run(rest))
    except ModuleNotFoundError as error:
        extras = _EXTRAS.get(name, "train")
        return _refuse(f"{error}; `pip install 'longtail[{extras}]'` brings what `longtail {name}` needs.")
    except BrokenPipeError:
        raise
    except (ValueError, TypeError, OSError, ImportError) as error:
        return _refuse(sentence_of(error))
    except KeyboardInterrupt as error:
        sys.stderr.write(_INTERRUPTED)
        return 128 + (signal.SIGTERM if isinstance(error, _TerminatedError) else signal.SIGINT)


def _split_plugins(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files of ``--plugin FILE``, which may stand anywhere, and the other arguments."""
    plugins, others = [], list(given)
    while "--plugin" in others[:-1]:
        place = others.index("--plugin")
        plugins.append(others[place + 1])
        del others[place : place + 2]
    return plugins, others


_INTERRUPTED = "longtail: Interrupted.\n"


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, which is to end a command as Ctrl-C does."""


_heard: list[int] = []
"""Signals that have asked the command to end."""


def check_interrupted() -> None:
    """Raise again what a signal has raised, should that have been lost: what is imported may catch anything."""
    if _heard:
        raise _TerminatedError if _heard[0] == signal.SIGTERM else KeyboardInterrupt


@contextmanager
def _heeding_signals() -> Iterator[None]:
    """Have SIGTERM and Ctrl-C raise, unless a command has its own way to stop; in processes that it forks as usual."""
    ours = os.getpid()

    def stop(number: int, _: FrameType | None) -> None:
        if os.getpid() == ours:
            _heard.append(number)
            check_interrupted()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if current_thread() is not main_thread():
        yield
        return
    _heard.clear()
    before = {number: signal.signal(number, stop) for number in _not_ignored()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _not_ignored() -> list[signal.Signals]:
    """The signals that a shell has not told the process to ignore."""
    return [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN]


@contextmanager
def _leaving_at_once() -> Iterator[None]:
    """Have Ctrl-C and SIGTERM end the process, for as long as torch is imported.

    Nothing is to be saved then, and what an extension module makes of an exception in its midst is anybody's guess.
    """

    def leave(number: int, _: FrameType | None) -> None:
        os.write(2, _INTERRUPTED.encode())
        os._exit(128 + number)

    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in _not_ignored()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def sentence_of(error: Exception) -> str:
    """What an error says; what the system refuses is told with the file that was meant, not one on the way to it.

    Example:
        >>> sentence_of(PermissionError(13, "Permission denied", "out/.labels.csv.4711.part"))
        'Expected access to out/labels.csv, but the system says: permission denied.'
    """
    if not isinstance(error, OSError) or not error.strerror or not isinstance(error.filename, str | bytes):
        return str(error)
    path = Path(os.fsdecode(error.filename))
    temporary = re.fullmatch(r"\.(.+)\.\d+\.part", path.name)
    meant = path.with_name(temporary[1]) if temporary else path
    return f"Expected access to {meant}, but the system says: {error.strerror[:1].lower()}{error.strerror[1:]}."


def _usage() -> str:
    widest = max(map(len, COMMANDS))
    rows = "".join(f"  {name:<{widest}}  {summary}\n" for name, (summary, _) in COMMANDS.items())
    return f"usage: longtail COMMAND …\n       longtail --version\n\n{rows}\n`longtail COMMAND --help` tells more.\n"


def _version() -> str:
    return f"longtail {__version__}\n"


_ANSWERS = {"-h": _usage, "--help": _usage, "-V": _version, "--version": _version}
"""What is printed for a word that is no command."""


def _refuse(sentence: str) -> int:
    sys.stderr.write(f"longtail: {sentence}\n")
    return 2
