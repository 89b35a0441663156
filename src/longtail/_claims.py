"""Claims on folders: one process at a time works in a folder, also if several machines share it.

On a local disk a claim is a lock of the operating system, which ends with the process. Network file systems do not keep
such locks reliably, so there a claim is a lease: a file that names its owner, who touches it every few seconds.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from longtail._io import claimed, file_lock

__all__ = ["HEARTBEAT", "STALE", "LostClaimError", "claim", "claim_kind", "is_gone", "owner_of", "this_process"]

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
            claimed[place] = held.check
        held.holders += 1
    _start_heartbeat()
    try:
        yield
    finally:
        with _guard:
            held.holders -= 1
            if not held.holders:
                del _held[place], claimed[place]
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
            point = before.split(" ")[4].encode().decode("unicode_escape")  # a space is \040
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(found[0]):
                found = (point, after.split(" ")[0])
    return found[1]


def this_process() -> dict[str, Any]:
    """Host, process number and its start, which name a process as long as the host is not restarted."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "start": _start_of(os.getpid()), "boot": _boot()}


def owner_of(folder: Path) -> dict[str, Any] | None:
    """The owner in the lease of a folder, which may be gone; ``None`` if there is no lease."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / LEASE_FILE).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    return None


def _start_of(pid: int) -> str:
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


@cache
def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def is_gone(owner: dict[str, Any]) -> bool:
    """Whether the owner certainly ended: it ran on this host, under the same kernel, and its process is not there."""
    own = this_process()
    same = owner.get("host") == own["host"] and owner.get("boot") == own["boot"] and bool(own["boot"])
    return same and isinstance(owner.get("pid"), int) and owner.get("start") != _start_of(owner["pid"])


# Leases


@dataclass(eq=False)
class _Lease:
    file: Path
    token: str
    holders: int = 0
    silent_since: float = field(default_factory=time.monotonic)

    @classmethod
    def take(cls, folder: Path, busy: str) -> "_Lease":
        """Take a free folder, or one whose lease is stale, or raise ``BlockingIOError``."""
        file, token = folder / LEASE_FILE, uuid4().hex
        content = json.dumps({**this_process(), "token": token})
        for _ in range(2):
            if _create(file, content, token):
                return cls(file, token)
            if not _remove_stale(file):
                break
        raise BlockingIOError(busy)

    def check(self) -> None:
        """Raise an error if another process has taken the folder."""
        if (owner_of(self.file.parent) or {}).get("token") != self.token:
            raise LostClaimError(
                f"Expected {self.file.parent} to be held by this process, but another one took it over because this "
                f"one gave no sign of life for {STALE:g} s."
            )
        self.beat()

    def beat(self) -> None:
        """Give a sign of life; a process that was silent for too long looks first whether the lease is still its."""
        now = time.monotonic()
        if now - self.silent_since > STALE / 2 and (owner_of(self.file.parent) or {}).get("token") != self.token:
            return
        with suppress(OSError):
            os.utime(self.file)
            self.silent_since = now

    def release(self) -> None:
        if (owner_of(self.file.parent) or {}).get("token") == self.token:
            self.file.unlink(missing_ok=True)


def _create(file: Path, content: str, token: str) -> bool:
    """Create a file with its content unless it exists; a link is atomic on NFS too."""
    own = file.with_name(f"{file.name}.{token}")
    try:
        own.write_text(content, encoding="utf-8")
        try:
            os.link(own, file)
        except FileExistsError:
            return False
        except OSError:  # no links on this file system
            try:
                with file.open("x", encoding="utf-8") as new:
                    new.write(content)
            except FileExistsError:
                return False
        return True
    finally:
        own.unlink(missing_ok=True)


_seen: dict[Path, tuple[tuple[int, str], float]] = {}
"""The last sign of life of leases of others, and when this process first saw it, by its own clock."""


def _remove_stale(file: Path) -> bool:
    """Remove a lease whose owner is gone or silent; clocks of different hosts are never compared."""
    try:
        sign = file.stat().st_mtime_ns
    except FileNotFoundError:
        return True
    owner = owner_of(file.parent) or {}
    token = str(owner.get("token", ""))
    with _guard_seen:
        before, since = _seen.get(file, (None, 0.0))
        if before != (sign, token):
            before, since = _seen[file] = (sign, token), time.monotonic()
    if not is_gone(owner) and time.monotonic() - since < STALE:
        return False
    aside = file.with_name(f"{file.name}.{uuid4().hex}")
    try:
        file.rename(aside)  # of several processes one succeeds
    except FileNotFoundError:
        return True
    with suppress(OSError, ValueError):
        moved = json.loads(aside.read_text(encoding="utf-8"))
        if moved.get("token", "") != token:  # a new lease, which was made since we looked
            with suppress(OSError):
                os.link(aside, file)
            aside.unlink(missing_ok=True)
            return False
    aside.unlink(missing_ok=True)
    return True


_held: dict[Path, _Lease] = {}
_guard, _guard_seen = threading.Lock(), threading.Lock()
_heartbeats: list[tuple[int, threading.Thread]] = []


def _start_heartbeat() -> None:
    """Start the thread that gives signs of life for all leases of this process."""
    with _guard:
        if _heartbeats and _heartbeats[-1][0] == os.getpid() and _heartbeats[-1][1].is_alive():
            return
        thread = threading.Thread(target=_keep_alive, name="longtail leases", daemon=True)
        _heartbeats[:] = [(os.getpid(), thread)]
        thread.start()


def _keep_alive() -> None:
    while True:
        time.sleep(HEARTBEAT)
        with _guard:
            leases = list(_held.values())
            if not leases:
                _heartbeats.clear()
                return
        for lease in leases:
            lease.beat()
