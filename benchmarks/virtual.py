"""Many workers of a study in one process and in virtual time, for ``scale.py``.

Every worker is a thread that runs the code of the package. One thread runs at a time: when it waits, for a file or for
a pause, the clock goes on to the next one that is due. So a worker takes the processor time that it needs itself, as on
a machine of its own, and hours pass as fast as the code in between can run. A worker has its own host name, process
number, leases and signs of life.
"""

import builtins
import heapq
import io
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from longtail import _claims, _io
from longtail.study import workers

FILES = (
    "stat",
    "lstat",
    "open",
    "scandir",
    "listdir",
    "rename",
    "replace",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "utime",
)
"""Functions of ``os`` that are an operation on a file."""
_here = threading.local()
AT_ONCE = 256  # files that are looked at between two turns of other workers


class Machine:
    """A worker's machine: what a process has for itself."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.own: dict[int, dict[Any, Any]] = {}
        self.beats = False


class Actor:
    """A thread of a machine."""

    def __init__(self, machine: Machine, call: Callable[[], None], wakes: float) -> None:
        self.machine, self.call, self.wakes = machine, call, wakes
        self.go = threading.Semaphore(0)
        self.used = 0.0
        """Processor time at the last turn."""
        self.at_a_time, self.debt = 1, 0.0
        """Files that are looked at together, and the seconds for which that has not been waited yet."""


class Simulation:
    """Threads that run one after the other, each when it is due.

    Args:
        folder: of the study: operations on its files are counted, and take time.
        latency: seconds of each operation.
    """

    def __init__(self, folder: Path, latency: float) -> None:
        self.folder, self.latency = str(folder), latency
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.now = 0.0
        self._due: list[tuple[float, int, Actor]] = []
        self._number = 0
        self._over = threading.Semaphore(0)
        self._epoch = time.time()

    def add(self, machine: Machine, call: Callable[[], None], after: float = 0.0) -> None:
        """Start a thread of a machine some seconds from now."""
        actor = Actor(machine, call, self.now + after)
        threading.Thread(target=self._live, args=(actor,), daemon=True).start()
        self._push(actor)

    def run(self) -> None:
        """Run until all threads have ended."""
        with self._instead():
            self._next().go.release()
            self._over.acquire()

    def clock(self) -> float:
        """The time of this thread, in which it moves on by the processor time that it takes."""
        return self.now + time.thread_time() - _here.actor.used

    def sleep(self, seconds: float) -> None:
        """Let the others go on until this thread is due."""
        actor = _here.actor
        actor.wakes = self.clock() + seconds + actor.debt
        actor.debt = 0.0
        self._push(actor)
        following = self._next()
        if following is not actor:
            following.go.release()
            actor.go.acquire()
        self._begin(actor)

    def _live(self, actor: Actor) -> None:
        _here.actor = actor
        actor.go.acquire()
        self._begin(actor)
        try:
            actor.call()
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
        if self._due:
            self._next().go.release()
        else:
            self._over.release()

    def _push(self, actor: Actor) -> None:
        self._number += 1
        heapq.heappush(self._due, (actor.wakes, self._number, actor))

    def _next(self) -> Actor:
        return heapq.heappop(self._due)[2]

    def _begin(self, actor: Actor) -> None:
        self.now, actor.used = max(self.now, actor.wakes), time.thread_time()

    # What the package sees instead of the system

    @contextmanager
    def _instead(self) -> Iterator[None]:
        """Put virtual time, machines and files in the place of the real ones."""
        own = Own()
        places: list[tuple[Any, str, Any]] = [
            (time, "sleep", _of_actor(time.sleep, self.sleep)),
            (time, "monotonic", _of_actor(time.monotonic, self.clock)),
            (time, "time", _of_actor(time.time, lambda: self._epoch + self.clock())),
            (os, "getpid", _of_actor(os.getpid, lambda: 1_000_000 + _here.actor.machine.number)),
            (socket, "gethostname", _of_actor(socket.gethostname, lambda: f"node{_here.actor.machine.number}")),
            (_io, "ThreadPoolExecutor", Pool),
            (_io, "claimed", own),
            (_claims, "claimed", own),
            (_claims, "_guard", nullcontext()),
            (_claims, "_held", Own()),
            (_claims, "_seen", Own()),
            (_claims, "beats", beats := Own()),
            (workers, "beats", beats),
            (_claims, "start_beats", self._start_beats),
            (workers, "start_beats", self._start_beats),
            (workers, "threading", SimpleNamespace(Lock=nullcontext)),
            (workers, "_present", self._present),
            (workers, "write_json", self._write_json),
        ]
        places += [(os, name, self._slow(name, getattr(os, name))) for name in FILES]
        places += [(module, "open", self._slow("open", module.open)) for module in (builtins, io)]
        before = [(module, name, getattr(module, name)) for module, name, _ in places]
        for module, name, value in places:
            setattr(module, name, value)
        Pool.settle = self.sleep
        try:
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)

    def _slow(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(path: Any, *args: Any, **options: Any) -> Any:
            if hasattr(_here, "actor") and not isinstance(path, int) and os.fspath(path).startswith(self.folder):
                self.counts[name] += 1
                actor = _here.actor
                if actor.at_a_time > 1:
                    actor.debt += self.latency / actor.at_a_time
                else:
                    self.sleep(self.latency)
                if name == "utime" and not args and not options:
                    args = ((time.time(), time.time()),)
            return call(path, *args, **options)

        return slow

    def _start_beats(self) -> None:
        machine = _here.actor.machine
        if not machine.beats:
            machine.beats = True
            self.add(machine, self._keep_alive)

    def _keep_alive(self) -> None:
        _claims._keep_alive()
        _here.actor.machine.beats = False

    def _present(self, _: Path) -> float:
        self.counts["open"] += 1  # a temporary file, which has the time of the file system
        self.sleep(self.latency)
        return time.time()

    def _write_json(self, path: Path, content: Any) -> None:
        _io.write_json(path, content)
        os.utime(path, (time.time(), time.time()))
        self.counts["utime"] -= 1  # it only puts the file into this time


class Own(MutableMapping[Any, Any]):
    """A dictionary that every machine has for itself."""

    def _of_machine(self) -> dict[Any, Any]:
        return _here.actor.machine.own.setdefault(id(self), {}) if hasattr(_here, "actor") else {}

    def __getitem__(self, key: Any) -> Any:
        return self._of_machine()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._of_machine()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._of_machine()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._of_machine())

    def __len__(self) -> int:
        return len(self._of_machine())


class Pool:
    """In place of a ``ThreadPoolExecutor``: its operations share the latency."""

    settle: Callable[[float], None] = staticmethod(time.sleep)

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, call: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Apply a function to all items."""
        if not hasattr(_here, "actor"):
            return [call(item) for item in items]
        found, _here.actor.at_a_time = [], self.threads
        try:
            for number, item in enumerate(items, 1):
                found.append(call(item))
                if number % AT_ONCE == 0:
                    Pool.settle(0.0)
        finally:
            _here.actor.at_a_time = 1
        Pool.settle(0.0)
        return found


def _of_actor(real: Callable[..., Any], virtual: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: virtual(*args) if hasattr(_here, "actor") else real(*args)
