"""Processes that run `longtail` at once: forked from one that has imported torch already, and otherwise real ones.

As a program it reads requests, a JSON object a line, and forks: a child may be killed, stopped, or given little room,
as any process may. `Warm` is the other end, for tests. Starting Python and torch anew takes four seconds a run.
"""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass
class Run:
    """A process that runs `longtail`."""

    pid: int
    out: Path
    err: Path
    warm: "Warm" = field(repr=False)
    code: int | None = None

    def wait(self) -> "Run":
        """Until it ends; a signal that ended it is a negative code, as in `subprocess`."""
        if self.code is None:
            self.code = self.warm.ask({"wait": self.pid})["code"]
        return self

    @property
    def over(self) -> bool:
        if self.code is None:
            self.code = self.warm.ask({"poll": self.pid})["code"]
        return self.code is not None

    def send(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the process, or to its whole group, as Ctrl-C does."""
        if not self.over:
            (os.killpg if group else os.kill)(self.pid, number)

    @property
    def printed(self) -> str:
        return self.out.read_text()

    @property
    def said(self) -> str:
        """On standard error."""
        return self.err.read_text()


class Warm:
    """Starts runs of `longtail` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.train.warm"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"},
        )
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, request: dict) -> dict:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(
        self,
        *arguments: object,
        largest_file: int | None = None,
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
        hook: str = "",
    ) -> Run:
        """Begin a run; `largest_file` limits what it may write to one file, as a full disk would.

        `hook` is Python that runs before the command, such as one that gives the process another clock.
        """
        self.number += 1
        out, err = (self.folder / f"{self.number}.{stream}" for stream in ("out", "err"))
        request = {
            "arguments": [str(argument) for argument in arguments],
            "out": str(out),
            "err": str(err),
            "cwd": str(cwd or self.folder),
            "environment": environment or {},
            "largest_file": largest_file,
            "hook": hook,
        }
        return Run(self.ask(request)["pid"], out, err, self)

    def run(self, *arguments: object, **options: object) -> Run:
        return self.start(*arguments, **options).wait()

    def start_two(self, *arguments: object, cwds: tuple[Path | None, Path | None] = (None, None)) -> list[Run]:
        """Begin a run of two ranks, as torchrun would; `cwds` are their working directories, as two disks would be."""
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        ranks = [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
        return [self.start(*arguments, environment=one, cwd=cwd) for one, cwd in zip(ranks, cwds, strict=True)]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def until(condition, seconds: float = 60.0, pause: float = 0.0):
    """Wait for a condition; what it gave."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        if pause:
            time.sleep(pause)
    raise AssertionError("waited in vain")


def _child(request: dict) -> None:
    """`python -m longtail` in a separate process."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.update(request["environment"])
    with open(request["out"], "w") as out, open(request["err"], "w") as err, open(os.devnull) as nothing:  # noqa: PTH123
        for source, descriptor in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(source.fileno(), descriptor)
    if request["largest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
    code = 70
    try:
        from longtail.cli import main

        exec(request["hook"], {})
        code = main(request["arguments"])
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve() -> None:
    import sklearn.datasets
    import tomli_w  # noqa: F401
    import torch

    import longtail.cli.study
    import longtail.cli.train

    sklearn.datasets.load_digits()
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()  # imports much on its first use
    longtail.cli.train.read_recipes(["--data", "digits-lt"])[0][0]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    codes: dict[int, int | None] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "arguments" in request:
            pid = os.fork()
            if pid == 0:
                _child(request)
            answer = {"pid": pid}
        else:
            pid, options = request.get("wait"), 0
            if pid is None:
                pid, options = request["poll"], os.WNOHANG
            if codes.get(pid) is None:
                done, status = os.waitpid(pid, options)
                codes[pid] = os.waitstatus_to_exitcode(status) if done else None
            answer = {"code": codes[pid]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
