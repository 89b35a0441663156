"""Registries that plugins can extend: methods, heads and data sets, from a file or an installed package."""

import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ENTRY_POINTS = "longtail.plugins"
"""The entry-point group of installed packages whose import registers something."""

_VARIABLE = "LONGTAIL_PLUGINS"  # plugin files for this process and the ones it starts, separated like PATH
_loaded: set[str] = set()


class Registry(Mapping[str, T]):
    """Objects by name, in the order of registration; unknown names and iteration load the plugins first.

    Args:
        kind: what the objects are called in messages, for example ``"method"``.

    Example:
        >>> heads = Registry[int]("head")
        >>> heads.register("linear", 1)
        1
        >>> heads.find("linar")
        Traceback (most recent call last):
        ValueError: Expected `head` to be one of linear, but got 'linar'; the closest match is linear.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}
        self._registered_at: dict[str, tuple[str, int]] = {}

    def register(self, name: str, value: T) -> T:
        """Add an object and return it; names are unique and fit for a folder name.

        A statement that is executed again, because its file is imported twice, replaces what it registered.
        """
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ValueError(f"Expected a {self.kind} name of letters, digits, '-', '_' and '.', but got {name!r}.")
        place = _calling_statement()
        if name in self._entries and self._registered_at[name] != place:
            by = self._registered_at[name][0]
            raise ValueError(f"Expected a new {self.kind} name, but {name!r} is already registered by {by}.")
        self._entries[name], self._registered_at[name] = value, place
        return value

    def unregister(self, name: str) -> None:
        """Remove an object, for example at the end of a test."""
        del self._entries[name]

    def find(self, name: str) -> T:
        """Return the object with this name, or raise an error that lists the known names."""
        if name not in self:
            advice = f"; if a plugin registers this {self.kind}, import it or use --plugin FILE.py"
            advice = nearest(name, self._entries) or advice
            known = ", ".join(self._entries)
            raise ValueError(f"Expected `{self.kind}` to be one of {known}, but got {name!r}{advice}.")
        return self._entries[name]

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            load_plugins()
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(self._entries)

    def __len__(self) -> int:
        load_plugins()
        return len(self._entries)


def _calling_statement() -> tuple[str, int]:
    """File and line outside this package that registers something."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").startswith("longtail.") and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def load_plugins() -> None:
    """Import the plugin files of this process and the plugins of installed packages, each once."""
    for path in filter(None, os.environ.get(_VARIABLE, "").split(os.pathsep)):
        _import_file(Path(path))
    for point in _installed():
        with _once(point.value) as first:
            if first:
                point.load()


@cache
def _installed() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINTS))


def load_plugin(path: Path | str) -> None:
    """Import a Python file that registers something, here and in every process that this one starts."""
    file = Path(path).resolve()
    if not file.is_file():
        raise FileNotFoundError(f"Expected a Python file with a plugin, but {path} does not exist.")
    _import_file(file)
    known = os.environ.get(_VARIABLE, "")
    if str(file) not in known.split(os.pathsep):
        os.environ[_VARIABLE] = os.pathsep.join(filter(None, [known, str(file)]))


def _import_file(file: Path) -> None:
    with _once(str(file)) as first:
        if not first:
            return
        spec = importlib.util.spec_from_file_location(file.stem, file)
        if spec is None or spec.loader is None:
            raise ValueError(f"Expected a Python file with a plugin, but got {file}.")
        module = importlib.util.module_from_spec(spec)
        known = sys.modules.setdefault(file.stem, module)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            if known is module:
                del sys.modules[file.stem]
            raise


@contextmanager
def _once(plugin: str) -> Iterator[bool]:
    """Yield whether to load a plugin: not if it is loaded or being loaded. One that fails counts as not loaded."""
    first = plugin not in _loaded
    _loaded.add(plugin)
    try:
        yield first
    except BaseException:
        if first:
            _loaded.discard(plugin)
        raise


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a suggestion for a misspelled name, as the end of a sentence; empty if no known name is close.

    Example:
        >>> f"got 'trian'{nearest('trian', ['train', 'study'])}"
        "got 'trian'; the closest match is train"
    """
    listed, word = list(known), name.lstrip("-")
    ends = [one for one in listed if len(word) > 3 and one.endswith(f"-{word}")]
    near = get_close_matches(name, listed, n=1, cutoff=0.9) or ends or get_close_matches(name, listed, n=1)
    return f"; the closest match is {near[0]}" if near else ""
