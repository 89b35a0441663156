"""Claims on folders: one process at a time works in a folder, also if several machines share it.

On a local disk a claim is a lock of the operating system, which ends with the process. Network file systems do not keep
such locks reliably, so there a claim is a lease: a file with the owner's name, whose time the owner updates every few
seconds.
"""

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from longtail._io import claimed, file_lock, process_name, process_namespace, process_start

LOCK_FILE, LEASE_FILE = ".lock", ".lease"
HEARTBEAT = 5.0
"""Seconds between two signs of life of a lease."""
STALE = 45.0
"""A lease without a sign of life for so many seconds is free."""
_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "beegfs",
    "gpfs",
    "ceph",
    "9p",
    "afs",
    "gluster",
    "fuse",
    "panfs",
    "orangefs",
)

Kind = Literal["lock", "lease"]


class LostClaimError(OSError):
    """Another process has taken the folder: this one was silent for too long, and must not write there."""


@contextmanager
def claim(folder: Path, busy: str) -> Iterator[None]:
    """Hold a folder, which must exist; the process that holds it can claim it again.

    Args:
        folder: the folder.
        busy: message of the ``BlockingIOError`` when another process holds it.
    """
    if claim_kind(folder) == "lock":
        with file_lock(folder / LOCK_FILE, busy):
            yield
        return
    place = folder.resolve()
    with _guard:
        held = _held.get(place)
        if held is None:
            held = _held[place] = _Lease.take(place, busy)
            claimed[place], beats[place] = held.check, held.beat
        held.holders += 1
    start_beats()
    try:
        yield
    finally:
        with _guard:
            held.holders -= 1
            if not held.holders:
                del _held[place], claimed[place], beats[place]
                held.release()


def claim_kind(folder: Path) -> Kind:
    """How a folder is claimed: ``lease`` on network file systems, else ``lock``; LONGTAIL_CLAIMS overrides it."""
    given = os.environ.get("LONGTAIL_CLAIMS", "auto")
    if given not in {"auto", "lock", "lease"}:
        raise ValueError(f"Expected LONGTAIL_CLAIMS to be auto, lock or lease, but got {given!r}.")
    if given != "auto":
        return "lock" if given == "lock" else "lease"
    return "lease" if _file_system(str(folder.resolve())).startswith(_NETWORK) else "lock"


@cache
def _file_system(path: str) -> str:
    """The type of the file system that holds a path, as Linux names it; empty if it is not known."""
    found = ("", "")
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split(" ")[4])  # a space is \040
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(found[0]):
                found = (point, after.split(" ")[0])
    return found[1]


def forget_claim(folder: Path) -> None:
    """Remove the lease of a finished run whose owner was killed."""
    (folder / LEASE_FILE).unlink(missing_ok=True)


# Processes


def this_process() -> dict[str, Any]:
    """Host, process number and its start, which name a process as long as the host is not restarted."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "start": process_start(os.getpid()), "boot": _boot()}


@cache
def _boot() -> str:
    """What process numbers refer to: this start of the host, and the container."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {process_namespace()}"
    return ""


def is_gone(owner: dict[str, Any]) -> bool:
    """Whether the owner certainly ended: it ran on this host, under the same kernel, and its process is not there."""
    same = owner.get("host") == socket.gethostname() and owner.get("boot") == _boot() != ""
    return same and isinstance(owner.get("pid"), int) and owner.get("start") != process_start(owner["pid"])


# Leases


def owner_of(folder: Path) -> dict[str, Any]:
    """The owner in the lease of a folder, which may be gone; empty if there is no lease."""
    return _owner_in(folder / LEASE_FILE)


def _owner_in(lease: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(lease.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


@dataclass(eq=False)
class _Lease:
    file: Path
    token: str
    holders: int = 0

    @classmethod
    def take(cls, folder: Path, busy: str) -> "_Lease":
        """Take a free folder, or one whose lease is stale, or raise ``BlockingIOError``."""
        found = cls(folder / LEASE_FILE, uuid4().hex)
        for _ in range(2):
            if not _is_free(found.file):
                break
            if found.create():
                return found
        raise BlockingIOError(busy)

    def create(self) -> bool:
        """Create the file with its content unless it exists."""
        own = _temporary(self.file)
        try:
            own.write_text(json.dumps({**this_process(), "token": self.token}), encoding="utf-8")
            _copy_to_new(own, self.file)
        finally:
            own.unlink(missing_ok=True)
        return self.is_ours()

    def is_ours(self) -> bool:
        """Whether the lease is still that of this process."""
        return owner_of(self.file.parent).get("token") == self.token

    def check(self) -> None:
        """Raise an error if another process has taken the folder."""
        if not self.is_ours():
            raise LostClaimError(
                f"Expected {self.file.parent} to be held by this process, but another one took it over because this "
                f"one gave no sign of life for {STALE:g} s."
            )

    def beat(self) -> None:
        """Give a sign of life."""
        with suppress(OSError):
            if self.is_ours():
                os.utime(self.file)

    def release(self) -> None:
        with suppress(OSError):
            if self.is_ours():
                self.file.unlink(missing_ok=True)


def _temporary(file: Path) -> Path:
    return file.with_name(f".{file.name}.{process_name()}.part")


def _copy_to_new(file: Path, new: Path) -> None:
    """Give a file a second name, unless the name is taken."""
    with suppress(FileExistsError):
        try:
            os.link(file, new)  # atomic, also on NFS
        except FileExistsError:
            raise
        except OSError:  # no links on this file system
            content = file.read_bytes()
            with new.open("xb") as copy:
                copy.write(content)


_seen: dict[Path, tuple[tuple[int, str], float]] = {}
"""Last modification time and token of each lease of another process, and when this process first saw them."""


def _is_free(file: Path) -> bool:
    """Whether there is no lease; one whose owner is gone or silent is removed.

    Clocks of different hosts are never compared: a lease is stale if it did not change while this process waited.
    """
    try:
        sign = file.stat().st_mtime_ns
    except FileNotFoundError:
        _seen.pop(file, None)
        return True
    owner = owner_of(file.parent)
    now, state = time.monotonic(), (sign, str(owner.get("token", "")))
    before, since = _seen.setdefault(file, (state, now))
    if before != state:
        _seen[file], since = (state, now), now
    if not is_gone(owner) and now - since < STALE:
        return False
    aside = _temporary(file)
    try:
        file.rename(aside)  # of several processes one succeeds
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        if str(_owner_in(aside).get("token", "")) != state[1]:  # another process created a new lease meanwhile
            _copy_to_new(aside, file)
            return False
        _remove_below(file.parent, owner)
        return True
    finally:
        aside.unlink(missing_ok=True)


def _remove_below(folder: Path, owner: dict[str, Any]) -> None:
    """Remove what an owner that is gone holds inside a folder: its pilots."""
    for file in folder.glob(f"*/{LEASE_FILE}"):
        if {**owner_of(file.parent), "token": ""} == {**owner, "token": ""}:
            file.unlink(missing_ok=True)


# Signs of life

beats: dict[object, Callable[[], None]] = {}
"""Functions that a thread of this process calls every few seconds; see :func:`start_beats`."""
_held: dict[Path, _Lease] = {}
_guard = threading.Lock()
_thread: list[tuple[int, threading.Thread]] = []


def start_beats() -> None:
    """Start the thread that calls :data:`beats`; it ends when there is none."""
    with _guard:
        if not _thread or _thread[0][0] != os.getpid():  # a forked process has no thread
            thread = threading.Thread(target=_keep_alive, name="longtail signs of life", daemon=True)
            _thread[:] = [(os.getpid(), thread)]
            thread.start()


def _keep_alive() -> None:
    while True:
        time.sleep(HEARTBEAT)
        with _guard:
            if not beats:
                _thread.clear()
                return
            now = list(beats.values())
        for beat in now:
            beat()
