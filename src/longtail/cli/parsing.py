"""One parser for all commands: flags become values, and a mistake becomes one sentence."""

import argparse
import re
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from longtail._registry import nearest
from longtail.data import CATALOG, DataSet, Texts, load, open_path
from longtail.data.datasets.features import GROUP, has_groups
from longtail.data.datasets.rows import Rows
from longtail.data.datasets.texts import read_texts
from longtail.methods.params import parse_setting
from longtail.train.recipe import OPENING, Recipe, check_settings, parameter_names, setting_help, setting_types

TOGETHER_HELP = "runs at a time (default: 12 small models on a GPU, else 1)"

_COMMON = ("data", "imbalance", "method", "beta", "model", "pretrained", "epochs", "batch_size", "lr", "seed", "device")
"""Settings that the help shows first."""
_GROUPS = {
    "data": "data",
    "method": "parameters of methods",
    "model": "model",
    "augment": "images",
    "epochs": "optimisation",
    "seed": "hardware and reading",
    "best_epoch": "evaluation and files",
}
"""Groups of the other settings in the help, by the first setting of each."""
_LAST = "parameters of methods"


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help with one short word for the values of a flag, as wide as the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=min(max(shutil.get_terminal_size().columns, 80), 120))

    def _format_args(self, action: argparse.Action, default: str) -> str:
        if action.option_strings and action.nargs in {"*", "+"} and isinstance(action.metavar, str):
            return f"{action.metavar} …" if action.nargs == "+" else action.metavar
        return super()._format_args(action, default)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises a ``ValueError`` with one sentence instead of leaving the process.

    ``usage`` replaces the list of flags after the command, if there are too many.
    """

    def __init__(self, prog: str, description: str, epilog: str = "", usage: str | None = None) -> None:
        super().__init__(
            prog,
            usage=None if usage is None else f"{prog} {usage}",
            description=description,
            epilog=epilog,
            formatter_class=_Help,
            allow_abbrev=False,
        )

    def flag(self, name: str, help: str, **options: Any) -> None:
        """Add a flag; its default is shown by the help."""
        self.add_argument(name, help=_help(help, options.get("default")), **options)

    def print_help(self, file: Any = None) -> None:
        """Print the help; unlike argparse's, this raises an error if the pipe is closed."""
        (file or sys.stdout).write(self.format_help())

    def read(self, words: Iterable[str]) -> argparse.Namespace:
        """Return the values of a command line."""
        written = [re.sub(r"^--[^=]*", lambda flag: flag[0].replace("_", "-"), word) for word in words]
        flags = Counter(word.partition("=")[0] for word in written if word.startswith("--"))
        for flag, times in flags.items():
            if times > 1:
                self.error(f"Expected {flag} once, with all its values, but got it twice.")
        given, rest = self.parse_known_intermixed_args(written)
        if rest:
            unknown = rest[0].partition("=")[0]
            if not unknown.startswith("-"):
                self.error(f"Expected no further arguments, but got {unknown!r}.")
            near = self._named_in_help(unknown) or nearest(unknown, self._option_string_actions)
            self.error(f"Expected a flag that `{self.prog} --help` shows, but got {unknown}{near}.")
        return given

    def _named_in_help(self, unknown: str) -> str:
        """Return the flag whose help has the words of an unknown flag, as `--lr` has those of `--learning-rate`."""
        words = unknown.strip("-").replace("-", " ").replace("_", " ")
        found = [one.option_strings[0] for one in self._actions if one.option_strings and words in (one.help or "")]
        return f"; the closest match is {found[0]}" if " " in words and found else ""

    @contextmanager
    def errors_name_flags(self) -> Iterator[None]:
        """Replace the names of parameters in the message of an error by the flags of this command."""
        try:
            yield
        except (ValueError, TypeError, OSError) as error:
            if len(error.args) == 1:
                error.args = (re.sub(r"`(\w+)`( = )?", self._as_flag, str(error)),)
            raise

    def _as_flag(self, found: re.Match[str]) -> str:
        flag = f"--{found[1].replace('_', '-')}"
        return flag + " " * bool(found[2]) if flag in self._option_string_actions else found[0]

    def error(self, message: str) -> NoReturn:
        """Raise a ``ValueError`` with the message as a sentence."""
        if message.startswith("Expected"):
            raise ValueError(message)
        for pattern, sentence in _MESSAGES.items():
            if re.fullmatch(pattern, message):
                plain = re.sub(r"'([\w.+-]+)'", r"\1", re.sub(pattern, sentence, message))  # no quotes around words
                raise ValueError(f"Expected {plain.replace('COMMAND', self.prog)}.")
        raise ValueError(f"Expected a command line that `{self.prog} --help` describes: {message}.")


_MESSAGES = {
    r"argument (\S+): expected (?:one|at least one) argument": r"a value after \1, but got none",
    r"argument (\S+): invalid choice: (.+?) \(choose from (.+)\)": r"\1 to be one of \3, but got \2",
    r"argument (\S+): invalid positive_integer value: (.+)": r"\1 to be an integer >= 1, but got \2",
    r"argument (\S+): invalid int value: (.+)": r"\1 to be an integer, but got \2",
    r"argument (\S+): invalid float value: (.+)": r"\1 to be a number, but got \2",
    r"argument (\S+): ignored explicit argument (.+)": r"no value after \1, but got \2",
    r"the following arguments are required: (.+)": r"\1, but got none; see `COMMAND --help`",
}
"""Messages of argparse, and ours."""


def _help(text: str, default: Any) -> str:
    """Return the help of a flag with its default."""
    shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
    return text.replace("%", "%%") + (
        "" if default is None or default is False or shown == "" else f" (default: {shown})"
    )


def add_settings(
    parser: Parser, defaults: Mapping[str, Any], leave_out: Collection[str] = (), *, common: bool = False
) -> None:
    """Add a flag for every setting of a recipe but some, in groups; ``defaults`` are shown by the help.

    Args:
        parser: the parser.
        defaults: the values that the help shows.
        leave_out: settings without a flag.
        common: add the common settings, to the parser's own group; otherwise add all others.
    """
    hints = setting_types()
    if common:
        for name in _COMMON:
            if name in hints and name not in leave_out:
                _add_setting(parser, name, hints[name], defaults.get(name))
        return
    titles = [*(title for title in _GROUPS.values() if title != _LAST), _LAST]
    groups = {title: parser.add_argument_group(title) for title in titles}
    parameters, title = parameter_names(), ""
    for name, hint in hints.items():
        title = _GROUPS.get(name, title)
        if name not in leave_out and name not in _COMMON:
            _add_setting(groups[_LAST if name in parameters else title], name, hint, defaults.get(name))


def _add_setting(to: Parser | argparse._ArgumentGroup, name: str, hint: Any, default: Any) -> None:
    flag, help = name.replace("_", "-"), _help(setting_help(name), default)
    metavar = "" if hint is bool else name.rsplit("_", 1)[-1].upper()
    to.add_argument(f"--{flag}", nargs="*", default=argparse.SUPPRESS, metavar=metavar, help=help)
    if hint is bool:
        to.add_argument(f"--no-{flag}", dest=f"no_{name}", action="store_true", help=argparse.SUPPRESS)


def add_opening(parser: Parser) -> None:
    """Add the flags that say how your own data is opened."""
    for name in OPENING:
        metavar = name.rsplit("_", 1)[-1].upper()
        parser.flag(f"--{name.replace('_', '-')}", setting_help(name), default=getattr(Recipe, name), metavar=metavar)


def open_given(data: str, given: argparse.Namespace) -> DataSet:
    """Return the data set of this name, or one's own, opened as the flags of :func:`add_opening` say."""
    opening = {name: getattr(given, name) for name in OPENING}
    if getattr(given, "text", None) is not None:
        return open_texts(data, given, labelled=True).dataset(Path(data).stem, Path(data))
    if data not in CATALOG:
        if opening["split_by"] is None and has_groups(data):
            opening["split_by"] = GROUP
        return open_path(data, **opening)
    Recipe(data=data, **opening)  # refuses them
    return load(data, given.root)


def open_texts(data: str, given: argparse.Namespace, *, labelled: bool = False) -> Rows[Texts]:
    """Return the rows of your own table of texts, opened as ``--text`` and the flags of :func:`add_opening` say."""
    if data in CATALOG:
        raise ValueError(f"Expected no --text for {data}, a data set by name, but got {given.text}.")
    for name in ("image_root", "path_column"):
        if getattr(given, name) != getattr(Recipe, name):
            raise ValueError(f"Expected no `{name}` with --text, but got {getattr(given, name)}.")
    return read_texts(data, given.text, labelled=labelled, label=given.label_column, group=given.split_by)


def add_reading(parser: Parser) -> None:
    """Add the flags that say how files are read, and where a model runs."""
    parser.flag("--batch-size", "images or texts per batch", type=positive_integer, default=64, metavar="N")
    parser.flag("--device", "auto (CUDA if available), cpu, cuda or cuda:1", default="auto", metavar="NAME")
    parser.flag("--workers", "threads that read files", type=int, default=4, metavar="N")
    parser.flag("--bad-images", "stop at an unreadable image, or skip it", choices=("error", "skip"), default="error")


def read_settings(
    given: argparse.Namespace, *, several: bool = True, leave_out: Collection[str] = ()
) -> dict[str, list[Any]]:
    """Return the values of each setting that was given but those to leave out; ``several`` allows more than one."""
    found: dict[str, list[Any]] = {}
    for name, hint in setting_types().items():
        flag, texts = f"--{name.replace('_', '-')}", getattr(given, name, None)
        if getattr(given, f"no_{name}", False):
            if texts is not None:
                raise ValueError(f"Expected {flag} or --no-{flag[2:]}, but got both.")
            texts = ["false"]
        if texts is None or name in leave_out:
            continue
        if not texts and hint is not bool:
            raise ValueError(f"Expected a value after {flag}, but got none.")
        values = [_value(name, hint, text) for text in texts or ["true"]]
        if _is_list(hint):
            values = [tuple(values)]
        if len(values) > 1 and not several:
            raise ValueError(f"Expected one value after {flag}, but got {' '.join(texts)}.")
        found[name] = values
    return found


def _value(name: str, hint: Any, text: str) -> Any:
    value = parse_setting(text, hint)
    try:
        check_settings({name: (value,) if _is_list(hint) else value}, "the command line")
    except ValueError as error:
        message = str(error).replace(f"`{name}`", f"--{name.replace('_', '-')}").replace(repr((value,)), repr(value))
        remedy = "; separate several values by spaces" if "," in text else ""
        if Path(text).exists():
            remedy = "; data comes before the flags, or after --data"
        raise ValueError(f"{message.removesuffix('.')}{remedy}.") from None
    return value


def _is_list(hint: Any) -> bool:
    return any(get_origin(kind) is tuple for kind in (hint, *get_args(hint)))


def positive_integer(text: str) -> int:
    """Return a positive integer from text, for ``type=`` of a flag."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def check_folder_of(flag: str, file: Path | None) -> None:
    """Raise an error unless the folder of an output file exists; otherwise work would be lost at the end."""
    if file is not None and not file.absolute().parent.is_dir():
        raise FileNotFoundError(f"Expected {flag} to be in an existing folder, but got {file}.")
