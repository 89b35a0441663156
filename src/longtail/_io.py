"""Atomic file writes, file locks and stop signals, each implemented once for the whole package."""

import json
import math
import os
import re
import signal
import socket
import stat
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from glob import escape
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from longtail._program import plugin_frames, printable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


claimed: dict[Path, Callable[[], None]] = {}
"""Folders that this process holds by a lease, and the function that raises an error when the lease is lost."""


def check_claim(path: Path) -> None:
    """Raise an error if a file is in a folder that this process held and lost."""
    place = path.resolve() if claimed else path
    for folder, check in list(claimed.items()):
        if place.is_relative_to(folder):
            check()


def process_name() -> str:
    """Host and number of this process, without dots: a name for files on a disk that several machines share."""
    return f"{_host()}-{os.getpid()}"


def _host() -> str:
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', socket.gethostname())}-{process_namespace()}"


@cache
def process_namespace() -> str:
    """The number of the namespace of process numbers: containers of one host may each have a process 1."""
    with suppress(OSError):
        return re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))  # noqa: PTH115 - it is not a path
    return "0"


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file that becomes ``path`` after the block, or is removed when the block raises.

    The content is on disk before the rename, so ``path`` never holds half a file, not even after a power failure. What
    a killed process left of its own attempt is removed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "a.txt"
        ...     with new_file(path) as temporary:
        ...         _ = temporary.write_text("whole")
        ...     path.read_text(), [file.name for file in Path(folder).iterdir()]
        ('whole', ['a.txt'])
    """
    if not path.name:
        raise ValueError(f"Expected the name of a file to write, but got {str(path)!r}.")
    temporary = path.with_name(f".{path.name}.{process_name()}.part")
    try:
        temporary.touch()
        remove_leftovers(path.parent, temporary.stat().st_mtime, path.name)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        check_claim(path)
        temporary.replace(path)
        _sync_folder(path.parent)
    except FileNotFoundError:
        check_claim(path)  # the process that took the folder over may have removed the file
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, present: float, name: str = "") -> None:
    """Remove temporary files of processes that ended; those of other hosts, or without ``/proc``, after an hour.

    Args:
        folder: the folder.
        present: the time by the clock of the file system.
        name: of the file that was written; default: any.
    """
    here = _host() if Path("/proc/self/stat").exists() else ""
    for part in folder.glob(f".{escape(name) or '*'}.*.part"):
        host, _, process = part.name.split(".")[-2].rpartition("-")
        with suppress(OSError):  # another process removed it
            if host == here:
                ended = not (process.isdigit() and process_start(int(process)))
            else:
                ended = present - part.stat().st_mtime > _ABANDONED
            if ended:
                part.unlink()


_ABANDONED = 3600.0  # seconds


def process_start(number: int) -> str:
    """When a process started; empty if it ended, also if its parent has not noticed yet."""
    with suppress(OSError, IndexError):
        state, *rest = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    return ""


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # not every file system can sync a folder
        os.fsync(descriptor)
    os.close(descriptor)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with new_file(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically; NaN and infinity become null."""
    write_text(path, json.dumps(plain(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def reading(path: Path | str, what: str) -> Iterator[None]:
    """Turn every error of the block into a ``ValueError`` with one sentence that names the file.

    Errors of the system, of missing packages and in plugins stay as they are, and so do sentences that name the file.

    Args:
        path: the file that the block reads; a file may hold anything.
        what: what it should be, for example ``"a JSON file"``.

    Example:
        >>> with reading("a.json", "a JSON file"):
        ...     json.loads("[" * 100_000)
        Traceback (most recent call last):
        ValueError: Expected a.json to be a JSON file, but it is damaged (RecursionError).
    """
    try:
        yield
    except (OSError, ImportError):
        raise
    except MemoryError as error:
        raise ValueError(f"Expected {path} to fit into memory, but it does not.") from error
    except Exception as error:
        said = " ".join(str(error).split()).rstrip(".")
        if (str(path) in said and "Expected" in said) or plugin_frames(error):
            raise
        if said.startswith("Expected"):
            raise ValueError(f"{path}: {said}.") from error
        kind = type(error)  # the words of a parser or of torch are clear
        clear = kind.__module__ != "builtins" or kind in {UnicodeDecodeError, RuntimeError}
        why = f"damaged: {said}" if clear and said else f"damaged ({kind.__name__})"
        why = f"incomplete: it has no {said}" if kind is KeyError else why
        raise ValueError(f"Expected {path} to be {what}, but it is {why}.") from error


def read_toml(path: Path | str) -> dict[str, Any]:
    """Return the content of a TOML file."""
    with reading(path, "TOML"):
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))


NUMBER = (int, float, type(None))
"""The shape of a number in JSON, where NaN is null."""
_KINDS: dict[Any, str] = {str: "a text", dict: "an object", list: "a list", int: "a whole number"}
_KINDS |= {bool: "true or false", NUMBER: "a number", (int, float): "a number"}


def read_json(path: Path, shape: Any = None) -> Any:
    """Return the content of a JSON file.

    Args:
        path: the file.
        shape: what the content must be: types, a set of texts, ``[shape]`` for a list, ``{str: shape}`` for an object
            with any names, or ``{"name": shape}`` for one with these names; those that end in ``?`` may be missing.

    Raises:
        ValueError: the file is not valid JSON, or has another shape.
    """
    with reading(path, "a JSON file"):
        found = json.loads(path.read_text(encoding="utf-8"))
        if shape is not None:
            check_shape(found, shape, "its content")
        return found


def check_shape(found: Any, shape: Any, place: str) -> None:
    """Raise an error unless the content of a JSON file has a shape; see :func:`read_json`."""
    if isinstance(shape, set):
        if not isinstance(found, str) or found not in shape:
            raise ValueError(f"Expected {place} to be one of {', '.join(sorted(shape))}, but got {str(found)[:80]!r}.")
        return
    kind: Any = type(shape) if isinstance(shape, dict | list) else shape
    if not isinstance(found, kind):
        raise ValueError(f"Expected {place} to be {_KINDS.get(kind, kind)}, but got {str(found)[:80]!r}.")
    if isinstance(shape, list):
        plain_items = isinstance(shape[0], type | tuple) and all(isinstance(item, shape[0]) for item in found)
        for number, item in enumerate(() if plain_items else found):
            check_shape(item, shape[0], f"item {number} of {place}")
    elif isinstance(shape, dict) and str in shape:
        for name, item in found.items():
            check_shape(item, shape[str], f"`{name}` in {place}")
    elif isinstance(shape, dict):
        for name, of in shape.items():
            if name.removesuffix("?") in found:
                check_shape(found[name.removesuffix("?")], of, f"`{name.removesuffix('?')}`")
            elif not name.endswith("?"):
                raise ValueError(f"Expected {place} to have `{name}`, but it is missing.")


def plain(value: Any) -> Any:
    """Convert tensors to lists and NaN and infinity to ``None``, as JSON needs it."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # a tensor or an array; torch is not imported here
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def safe_cell(value: Any) -> Any:
    """Return a cell of a CSV file that no spreadsheet runs: a quote before a text that would be a formula.

    Numbers stay as they are, and control characters become escapes.

    Example:
        >>> [safe_cell(value) for value in ("=1+1", "@home", "-", "-1.5", "+1", "oak", -2.5)]
        ["'=1+1", "'@home", "'-", '-1.5', '+1', 'oak', -2.5]
    """
    if not isinstance(value, str):
        return value
    text = printable(value)
    if not text.startswith(("=", "+", "-", "@", "\t", "\n")):
        return text
    with suppress(ValueError):
        float(text)
        return text
    return "'" + text


def map_files(function: Callable[[_Item], _Found], items: Iterable[_Item]) -> list[_Found]:
    """Apply a function that reads files to many items, 32 at a time: a network file system answers in milliseconds."""
    given = list(items)
    if len(given) <= _FEW:
        return [function(item) for item in given]
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return list(pool.map(function, given))


_FEW, _AT_A_TIME = 64, 32


# --- locks


@dataclass(eq=False)
class _Lock:
    descriptor: int
    holders: int = 0


_locks: dict[Path, _Lock] = {}
_locks_guard = threading.Lock()
_forget_registered: list[bool] = []


@contextmanager
def file_lock(path: Path, busy: str, *, required: bool = True, remove: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on a file; the operating system releases it when the process ends.

    The process that has the lock can take it again. A forked child does not keep the lock.

    Args:
        path: the lock file; created if necessary.
        busy: message of the ``BlockingIOError`` when another process has the lock.
        required: raise when the file system has no locks; otherwise continue without one.
        remove: delete the lock file afterwards.
    """
    place = path.parent.resolve() / path.name
    with _locks_guard:
        if place not in _locks:
            _locks[place] = _Lock(_acquire(place, busy, required))
        held = _locks[place]
        held.holders += 1
    try:
        yield
    finally:
        with _locks_guard:
            held.holders -= 1
            if held.holders == 0 and _locks.get(place) is held:
                del _locks[place]
                if remove and os.name != "nt":  # an open file cannot be deleted on Windows
                    place.unlink(missing_ok=True)
                os.close(held.descriptor)
                if remove and os.name == "nt":
                    with suppress(OSError):  # another process has opened it
                        place.unlink(missing_ok=True)


def _acquire(path: Path, busy: str, required: bool) -> int:
    if not _forget_registered and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget_locks)
        _forget_registered.append(True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock_descriptor(descriptor)
        except OSError as error:
            if isinstance(error, BlockingIOError):
                os.close(descriptor)
                raise BlockingIOError(busy) from None
            if required:
                os.close(descriptor)
                raise
        if os.name == "nt":
            return descriptor
        # Its last holder may have deleted the file between open and lock; then another process can lock a new file.
        with suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        os.close(descriptor)


def _lock_descriptor(descriptor: int) -> None:
    """Lock an open file or raise ``BlockingIOError``."""
    if os.name == "nt":
        import msvcrt  # noqa: PLC0415 - only on Windows

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        except PermissionError as error:
            raise BlockingIOError(str(error)) from None
    else:
        import fcntl  # noqa: PLC0415 - not on Windows

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _forget_locks() -> None:
    """Close the parent's lock files in a forked child, which may live longer than its parent."""
    global _locks_guard  # noqa: PLW0603 - another thread of the parent may have held it
    _locks_guard = threading.Lock()
    for held in _locks.values():
        os.close(held.descriptor)
    _locks.clear()


# --- signals


@contextmanager
def stop_signals(callback: Callable[[int], None], *, in_children: bool = False) -> Iterator[None]:
    """Call ``callback(number)`` on SIGINT, SIGTERM, SIGHUP and SIGUSR1, and restore the previous handlers afterwards.

    Signals that the process ignores (``nohup``, a background job of a shell) stay ignored. Outside the main thread
    nothing changes.

    Args:
        callback: receives the signal's number; it may raise.
        in_children: forked child processes act on the signal as Python does by default. By default they ignore it: the
            parent decides, and a data loader's workers must survive until the parent has saved.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def handle(number: int, _: FrameType | None) -> None:
        _leave_closed_terminal()
        if os.getpid() == owner:
            callback(number)
        elif in_children:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    before: dict[int, Any] = {}
    try:
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
            number = getattr(signal, name, None)  # Windows has only the first two
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _leave_closed_terminal() -> None:
    """Send the output of a terminal that was closed to nowhere: to write to it would be an error, while we save."""
    for descriptor in (1, 2):
        with suppress(OSError):  # it is not open
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


# --- tensors


def write_tensors(path: Path, tensors: Mapping[str, "Tensor"], metadata: Mapping[str, Any]) -> None:
    """Write named tensors and JSON metadata atomically, as a safetensors file."""
    content = import_extra("safetensors.torch", "train").save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        {"longtail": json.dumps(metadata)},
    )
    write_bytes(path, content)


def read_tensors(path: Path) -> tuple[dict[str, "Tensor"], dict[str, Any]]:
    """Return the tensors and the metadata of :func:`write_tensors`; nothing in the file is executed."""
    with open_tensors(path) as file:
        metadata = json.loads((file.metadata() or {}).get("longtail", "{}"))
        check_shape(metadata, dict, "its header")
        return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118 - not a mapping


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Yield a safetensors file, whose tensors are read one by one."""
    safetensors = import_extra("safetensors", "train")
    path.stat()  # its error says more than that of safetensors
    with reading(path, "a whole safetensors file"), safetensors.safe_open(path, framework="pt") as file:
        yield file


def import_extra(module: str, extra: str) -> Any:
    """Return a module that is not part of the base installation; the error names the extra to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"Expected {module} to be installed: pip install 'longtail[{extra}]'.") from error


_DTYPES = {"float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32"}


@contextmanager
def tensor_writer(
    path: Path, shapes: "Mapping[str, tuple[torch.dtype, tuple[int, ...]]]"
) -> "Iterator[Callable[[str, Tensor, Tensor], None]]":
    """Write a safetensors file of known shapes row by row, so that memory does not grow with the number of rows.

    Yields ``write(name, rows, values)``, where ``rows`` are in ascending order. The file exists after the block.

    Args:
        path: the file.
        shapes: type and shape of each tensor.
    """
    header: dict[str, Any] = {}
    places: dict[str, tuple[int, int]] = {}  # the start of each tensor, and the bytes of a row
    end = 0
    for name, (dtype, shape) in shapes.items():
        row = dtype.itemsize * math.prod(shape[1:])
        begin, end = end, end + row * shape[0]
        kind = _DTYPES[str(dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
        places[name] = begin, row
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with new_file(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)

        def write(name: str, rows: "Tensor", values: "Tensor") -> None:
            begin, row = places[name]
            first, last = int(rows[0]), int(rows[-1])
            together = [(first, values)] if last - first + 1 == len(rows) else zip(rows.tolist(), values, strict=True)
            for place, some in together:
                file.seek(8 + len(text) + begin + place * row)
                file.write(some.detach().cpu().contiguous().numpy().tobytes())

        yield write
