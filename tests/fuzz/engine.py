"""Cases in forked processes with limits: a crash, a hang, or too much memory is the failure of one case."""

import json
import os
import resource
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.judge import Failure, Refused

SECONDS = 30.0
MEMORY = 2 * 2**30
_BATCH = 25  # cases per fork, which takes longer than most cases

Kind = Callable[[Random, Path], None]


@dataclass(frozen=True)
class Result:
    """What became of a case."""

    kind: str
    case: int
    outcome: str
    """``accepted``, ``refused`` or ``failed``."""
    why: str = ""
    seconds: float = 0.0


def run_cases(
    cases: Sequence[tuple[str, int]], kinds: dict[str, Kind], seed: int, scratch: Path, slots: int = 2
) -> Iterator[Result]:
    """Run cases in ``slots`` processes at a time, and yield their results as they come."""
    queue = [list(cases[begin : begin + _BATCH]) for begin in range(0, len(cases), _BATCH)]
    running: dict[int, _Child] = {}
    while queue or running:
        while queue and len(running) < slots:
            child = _Child(queue.pop(0), kinds, seed, scratch)
            running[child.pipe] = child
        ready, _, _ = select.select(list(running), [], [], 0.5)
        for child in [running[pipe] for pipe in ready]:
            yield from child.results()
        for child in list(running.values()):
            found = child.ended()
            if found is None:
                continue
            del running[child.pipe]
            os.close(child.pipe)
            yield from found
            if child.left:
                queue.insert(0, child.left)


class _Child:
    """A forked process that runs some cases one after the other."""

    def __init__(self, cases: list[tuple[str, int]], kinds: dict[str, Kind], seed: int, scratch: Path) -> None:
        self.left, self.began, self._text = list(cases), time.monotonic(), b""
        self.pipe, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            try:
                _work(cases, kinds, seed, scratch, writing)
            finally:
                os._exit(0)
        os.close(writing)
        self._closed = False

    def results(self) -> list[Result]:
        """Read what the process has written."""
        content = os.read(self.pipe, 1 << 20)
        self._closed = not content
        *lines, self._text = (self._text + content).split(b"\n")
        found = [Result(**json.loads(line)) for line in lines]
        self.left = self.left[len(found) :]
        self.began = time.monotonic() if found else self.began
        return found

    def ended(self) -> list[Result] | None:
        """Return the failure of a case that ended its process, nothing if all are done, ``None`` if it still runs."""
        late = time.monotonic() - self.began > SECONDS
        if late and not self._closed:
            os.kill(self.pid, signal.SIGKILL)
        elif not self._closed:
            return None
        _, status = os.waitpid(self.pid, 0)
        while not self._closed:
            self.results()
        if not self.left:
            return []
        kind, case = self.left.pop(0)
        why = f"took more than {SECONDS:.0f} s" if late else f"ended with {os.waitstatus_to_exitcode(status)}"
        return [Result(kind, case, "failed", why, time.monotonic() - self.began)]


def _work(cases: list[tuple[str, int]], kinds: dict[str, Kind], seed: int, scratch: Path, writing: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (3 * 2**30, 3 * 2**30))  # a little more than is allowed
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff writes about images that it cannot make
    for kind, case in cases:
        folder = scratch / f"{kind}-{case}"
        folder.mkdir(parents=True)
        os.chdir(folder)
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest memory of the case before
        began = time.monotonic()
        try:
            kinds[kind](Random(f"{seed} {kind} {case}"), folder)
            outcome, why = "accepted", ""
        except Refused as refused:
            outcome, why = "refused", str(refused)
        except Failure as failure:
            outcome, why = "failed", str(failure)
        except BaseException as error:  # of the fuzzer itself
            outcome, why = "failed", f"the fuzzer: {type(error).__name__}: {error}"
        highest = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
        if highest > MEMORY:
            outcome, why = "failed", f"took {highest / 2**30:.1f} GB of memory; {why}"
        os.chdir(scratch)
        shutil.rmtree(folder, ignore_errors=True)
        result = Result(kind, case, outcome, why, time.monotonic() - began)
        os.write(writing, json.dumps(vars(result)).encode() + b"\n")
