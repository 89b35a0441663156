"""Text for messages: the command that users type, and an error as one sentence."""

import os
import re
import shlex
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path


def printable(text: str) -> str:
    r"""Return a text with its control characters, and the bytes of a file name that are not UTF-8, as escapes.

    Example:
        >>> print(printable("caf\udce9 \x1b[2J"))
        caf\xe9 \x1b[2J
    """
    return _CONTROL.sub(_escape, text)


def count(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural.

    Example:
        >>> count(1, "class"), count(2000, "class"), count(3, "run"), count(2, "search")
        ('1 class', '2,000 classes', '3 runs', '2 searches')
    """
    ending = "" if number == 1 else "es" if noun.endswith(("s", "rch")) else "s"
    return f"{number:,} {noun}{ending}"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first of several names, and how many more there are.

    Example:
        >>> some_of(["ant", "bee", "cow", "dog", "elk"])
        'ant, bee, cow and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# All but tabs and line ends; characters that change the direction of the text; surrogates.
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code & 0xFF:02x}" if code < 0x100 or 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def program() -> str:
    """``longtail``, with the plugin files that this process was started with."""
    return shlex.join(["longtail", *(word for file in _plugin_files() for word in ("--plugin", file))])


def sentence_of(error: Exception) -> str:
    """Return an error as one sentence.

    Our own messages, which say what was expected, stay as they are. A system error names the file that the user meant.
    Any other error, such as a ``TypeError`` in a plugin, gets its type and its place.

    Example:
        >>> sentence_of(PermissionError(13, "Permission denied", "out/.labels.csv.laptop-4711.part"))
        'Expected access to out/labels.csv, but got: permission denied.'
        >>> sentence_of(ValueError("Expected `beta` to be a number >= 0, but got -1."))
        'Expected `beta` to be a number >= 0, but got -1.'
    """
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str | bytes):
        path = Path(os.fsdecode(error.filename))
        temporary = re.fullmatch(r"\.(.+)\.[\w-]+-\d+\.part", path.name)
        meant = path.with_name(temporary[1]) if temporary else path
        return f"Expected access to {meant}, but got: {error.strerror[:1].lower()}{error.strerror[1:]}."
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__} in {error.filename}:{error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    if "Expected" in str(error) or isinstance(error, OSError | ImportError) or not frames:
        text = str(error)
        return text if text.endswith(".") else f"{text}."
    place = (plugin_frames(error) or frames)[-1]
    return f"{type(error).__name__} in {place.filename}:{place.lineno}: {' '.join(str(error).split())}"


def plugin_frames(error: Exception, loading: Iterable[str] = ()) -> list[traceback.FrameSummary]:
    """Return the frames of an error's traceback that are in plugin files, also those that are being loaded."""
    files = {*_plugin_files(), *(str(Path(file).resolve()) for file in loading)}
    return [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]


def _plugin_files() -> list[str]:
    return list(filter(None, os.environ.get("LONGTAIL_PLUGINS", "").split(os.pathsep)))
