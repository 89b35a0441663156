"""The command ``longtail``: a table of commands, each a module with ``run(words) -> exit code``.

Modules are imported on use, so that a command does not wait for what another needs.
"""

import os
import select
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper

from longtail import __version__
from longtail._io import stop_signals
from longtail._program import plugin_frames, printable, sentence_of
from longtail._registry import load_plugin, nearest

_GROUPS = {
    "train and use a model": {
        "train": "train one or several models, or resume them",
        "evaluate": "metrics of a run, also on new data or after a correction",
        "predict": "labels and probabilities of images or features",
        "embed": "features of images or texts from a pretrained network, to train on",
        "export": "a run as ONNX, torch.export, a state dict or a model of timm",
    },
    "compare methods": {
        "study": "train methods with several seeds, compare them, search for beta",
        "report": "one HTML page about a folder of runs",
        "methods": "the methods and their parameters",
        "demo": "a study of three losses on long-tailed digits, with a report",
    },
    "look at data and predictions": {
        "diagnose": "find what is wrong with a classifier from its predictions",
        "data": "list, get and check data sets, describe your own",
    },
}
COMMANDS = {name: summary for group in _GROUPS.values() for name, summary in group.items()}
"""The summary of each command; its module is ``longtail.cli.NAME``."""

_OPTIONS = {
    "--help": "show the flags of the command",
    "--plugin FILE.py": "import a file that registers methods and more; repeatable",
    "--debug": "show the traceback of an error",
}

_EXTRAS = {"data": "cli", "methods": "cli", "report": "report,train", "diagnose": "report,train", "demo": "demo"}
"""The extras that a command needs; the others need ``train``."""
_PACKAGES = {"PIL": "data", "sklearn": "data", "torchvision": "vision", "timm": "vision", "pyarrow": "parquet"}
_PACKAGES |= {"matplotlib": "report", "jinja2": "report", "pandas": "pandas", "tensorboard": "tensorboard"}
_PACKAGES |= {"onnx": "onnx", "onnxscript": "onnx", "onnxruntime": "onnx", "wandb": "wandb", "mlflow": "mlflow"}
"""The extras of packages that only some uses of a command need."""

_INTERRUPTED = "longtail: Interrupted.\n"


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; a user's mistake is one sentence and code 2.

    If the reader of a pipe has left, as in ``longtail methods | head -1``, the code is 141 and nothing is printed.
    """
    for stream in (sys.stdout, sys.stderr):  # print "?" for characters that the terminal's encoding lacks
        if isinstance(stream, TextIOWrapper) and stream.errors in {"strict", "surrogateescape"}:
            stream.reconfigure(errors="replace")
    try:
        try:
            return _run(list(sys.argv[1:] if words is None else words))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # when the interpreter exits it is too late to catch an error
    except OSError as error:
        if not isinstance(error, BrokenPipeError) or not _is_closed_pipe():
            return _fail(sentence_of(error))
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SystemExit as left:
        if not isinstance(left.__context__, BrokenPipeError):  # rich turns a broken pipe into an exit
            raise
    return 128 + 13  # SIGPIPE


def _is_closed_pipe() -> bool:
    """Whether standard output is a pipe without a reader; other connections may break too."""
    if not hasattr(select, "poll"):  # Windows
        return True
    pipes = select.poll()
    try:
        pipes.register(sys.stdout.fileno(), 0)
    except OSError:
        return False
    return any(event & select.POLLERR for _, event in pipes.poll(0))


def _run(given: Sequence[str]) -> int:
    name, debug, plugins = "", "--debug" in given, list[str]()
    try:
        plugins, words = _split_plugins([word for word in given if word != "--debug"])
        if not words or words[0] in {"-h", "--help"}:
            sys.stdout.write(_usage())
            return 0
        if words[0] in {"-V", "--version"}:
            sys.stdout.write(f"longtail {__version__}\n")
            return 0
        name = words[0]
        if name not in COMMANDS:
            near = nearest(name, COMMANDS)
            raise ValueError(f"Expected a command that `longtail --help` shows, but got {name!r}{near}.")
        with _stopping():
            with stop_signals(_exit_now, in_children=True):
                for plugin in plugins:
                    load_plugin(plugin)
                command = import_module(f"longtail.cli.{name}")
            return int(command.run(words[1:]))
    except BrokenPipeError:
        raise
    except Exception as error:  # of a plugin too
        if debug:
            traceback.print_exc()
        if not isinstance(error, ModuleNotFoundError):
            return _fail(_explained(error, plugins))
        extras, own = _EXTRAS.get(name, "train"), _PACKAGES.get((error.name or "").partition(".")[0])
        if own is not None and own not in extras and not (own == "data" and "train" in extras):  # which installs it
            extras += f",{own}"
        return _fail(f"{error}; install what `longtail {name}` needs with `pip install 'longtail[{extras}]'`.")
    except KeyboardInterrupt:
        sys.stderr.write(_INTERRUPTED)
        return 128 + (_received[0] if _received else signal.SIGINT)


def _explained(error: Exception, plugins: Sequence[str]) -> str:
    """Return an error as one sentence, and where to look for its cause if the error is not one of our messages."""
    sentence = sentence_of(error)
    if not sentence.startswith(type(error).__name__):
        return sentence
    hint = "this is a mistake in longtail, please report it with the output of --debug."
    if plugins:  # torch calls the `forward` of a plugin, so a wrong signature has no frame in the plugin
        hint = "if your plugin is right, this is a mistake in longtail; --debug shows the traceback."
    if plugin_frames(error, plugins):
        hint = "--debug shows the traceback."
    return f"{sentence}; {hint}"


def _split_plugins(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files of ``--plugin FILE``, which may be anywhere, and the other words."""
    plugins, others, left = [], [], iter(given)
    for word in left:
        flag, equals, file = word.partition("=")
        if flag == "--plugin":
            plugins.append(file if equals else next(left, ""))
        else:
            others.append(word)
    if "" in plugins:
        raise ValueError("Expected a file after --plugin, but got none.")
    return plugins, others


def _usage() -> str:
    lines = ["usage: longtail COMMAND …", "       longtail --version"]
    for title, entries in {**_GROUPS, "with any command": _OPTIONS}.items():
        width = 8 if entries is not _OPTIONS else 16
        lines += ["", f"{title}:", *(f"  {name:<{width}}  {summary}" for name, summary in entries.items())]
    return "\n".join([*lines, ""])


def _fail(sentence: str) -> int:
    one_line = printable(sentence.strip()).replace("\n", r"\n")  # a file name may have line ends
    sys.stderr.write(f"longtail: {one_line}\n")
    return 2


# Signals

_received: list[int] = []


def check_interrupted() -> None:
    """Raise ``KeyboardInterrupt`` if a signal has arrived whose exception was lost, for example inside an import."""
    if _received:
        raise KeyboardInterrupt


@contextmanager
def _stopping() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` on a stop signal, unless the command has its own handler."""

    def stop(number: int) -> None:
        _received.append(number)
        check_interrupted()

    _received.clear()
    with stop_signals(stop, in_children=True):
        yield


def _exit_now(number: int) -> None:
    """Leave at once: while torch is imported there is nothing to save, and an exception may be swallowed."""
    os.write(2, _INTERRUPTED.encode())
    os._exit(128 + number)
