"""The processes that work on a study, and its status: what is done, what runs where, what failed."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from longtail._claims import STALE, is_gone, this_process
from longtail._io import map_files, process_name, read_json, write_json
from longtail.study.planning import PlannedRun, StudyPlan
from longtail.study.record import now
from longtail.train.folder import RunFolder
from longtail.train.recipe import HOUSEKEEPING

__all__ = ["Worker", "describe_status", "live_workers", "status"]

FOLDER = "workers"
_BEAT_SECONDS = 5.0
_SHAPE = {"host": str, "pid": int, "start": str, "boot": str, "since": str, "runs": {str: str}, "joins?": dict}


class Worker:
    """This process, as other processes see it: a file in the folder ``workers`` of each study while it works there.

    Args:
        plans: the studies.
        joins: whether it may share them with others. Then it must have the same version and plans as they have.
    """

    def __init__(self, plans: Sequence[StudyPlan], *, joins: bool = False) -> None:
        self.joins = joins
        self.plans = list(plans)
        self._about: dict[str, Any] = {**this_process(), "since": now(), "runs": {}}
        self._name = f"{process_name()}.json"
        self._beat = time.monotonic()

    def __enter__(self) -> "Worker":
        for plan in self.plans:
            self._file(plan).parent.mkdir(parents=True, exist_ok=True)
            self._write(plan)
        try:
            for plan in self.plans:
                others = _others(self._file(plan))
                if self.joins:
                    _check_same(plan, others)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for plan in self.plans:
            with suppress(OSError):
                self._file(plan).unlink(missing_ok=True)
                self._file(plan).parent.rmdir()  # fails while others work

    def update(self, running: Sequence[Path]) -> None:
        """Say which runs this process trains, and that it is alive."""
        runs = {str(path): self._about["runs"].get(str(path), now()) for path in running}
        changed, self._about["runs"] = runs != self._about["runs"], runs
        if not changed and time.monotonic() - self._beat < _BEAT_SECONDS:
            return
        self._beat = time.monotonic()
        for plan in self.plans:
            try:
                if changed:
                    self._write(plan)
                else:
                    os.utime(self._file(plan))
            except OSError:  # another process took this one for dead, or the disk is full
                with suppress(OSError):
                    self._write(plan)

    def _file(self, plan: StudyPlan) -> Path:
        return Path(plan.out) / FOLDER / self._name

    def _write(self, plan: StudyPlan) -> None:
        out, joins = Path(plan.out), {"joins": _identity(plan)} if self.joins else {}
        runs = {
            Path(path).relative_to(out).as_posix(): since
            for path, since in self._about["runs"].items()
            if Path(path).is_relative_to(out)
        }
        self._file(plan).parent.mkdir(parents=True, exist_ok=True)
        write_json(self._file(plan), {**self._about, "runs": runs, **joins})


def _identity(plan: StudyPlan) -> dict[str, Any]:
    """What workers of a study must share: everything but the folder, whose name may differ between machines."""
    shared = asdict(plan) | {"recipe": {k: v for k, v in plan.recipe.items() if k not in HOUSEKEEPING}}
    return {"longtail": metadata.version("longtail"), **{k: str(v) for k, v in shared.items() if k != "out"}}


def live_workers(out: Path) -> list[dict[str, Any]]:
    """Return the processes that work on a study now, as their files describe them."""
    found = []
    present = _present(out) if (out / FOLDER).is_dir() else 0.0
    for file in sorted((out / FOLDER).glob("*.json")):
        with suppress(OSError, ValueError):  # it was removed, or is not ours
            about = read_json(file, _SHAPE)
            if not is_gone(about) and present - file.stat().st_mtime < 2 * STALE:
                found.append({**about, "file": file})
    return found


def _present(out: Path) -> float:
    """The time by the clock of the file system, which may differ from that of this machine."""
    try:
        with TemporaryFile(dir=out) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # it can be read but not written
        return time.time()


def _others(own: Path) -> list[dict[str, Any]]:
    """Return the other processes that work on the study, and remove the files of those that were killed."""
    live = [one for one in live_workers(own.parent.parent) if one["file"] != own]
    for file in set(own.parent.glob("*.json")) - {one["file"] for one in live} - {own}:
        file.unlink(missing_ok=True)
    return live


def _check_same(plan: StudyPlan, others: Sequence[Mapping[str, Any]]) -> None:
    ours = _identity(plan)
    for about in others:
        theirs: dict[str, Any] = about.get("joins") or ours
        for name in sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name)):
            what = "version of longtail" if name == "longtail" else f"`{name}`"
            raise ValueError(
                f"Expected the {what} of the worker on {about['host']} (process {about['pid']}), which is "
                f"{theirs.get(name)}, but got {ours.get(name)}; stop that worker, or choose another folder with --out."
            )


# Status


def status(plans: Sequence[StudyPlan], runs: Sequence[PlannedRun]) -> dict[str, Any]:
    """Return the state of runs as plain data: how many are done, running, stopped, waiting or failed, and where.

    Args:
        plans: the studies.
        runs: those of their runs that are known, searches included.
    """
    outs = list(dict.fromkeys(Path(plan.out) for plan in plans))
    found = [(out, about) for out in outs for about in live_workers(out)]
    workers = [about for _, about in found]
    running = {str(out / name): (about, since) for out, about in found for name, since in about["runs"].items()}
    found_states = map_files(lambda run: _state(run.folder, str(run.path) in running), runs)
    states = {str(run.path): state for run, state in zip(runs, found_states, strict=True)}
    counts = {name: list(states.values()).count(name) for name in _STATES}
    finished = [run.folder.result_file for run in runs if states[str(run.path)] == "done"]
    done = sorted(map_files(lambda file: file.stat().st_mtime, finished))
    start = min((datetime.fromisoformat(about["since"]).timestamp() for about in workers), default=None)
    recent = [moment for moment in done if start is not None and moment >= start]
    left = counts["running"] + counts["stopped"] + counts["waiting"]
    rate = len(recent) / max(recent[-1] - start, 1.0) if recent and start is not None else None
    return {
        **counts,
        "workers": [{"host": one["host"], "pid": one["pid"], "since": one["since"]} for one in workers],
        "running_runs": {
            path: {"host": about["host"], "pid": about["pid"], "since": since}
            for path, (about, since) in running.items()
            if states.get(path) == "running"
        },
        "failed_runs": {str(run.path): run.folder.failure() for run in runs if states[str(run.path)] == "failed"},
        "runs_per_hour": None if rate is None else 3600 * rate,
        "seconds_left": None if rate is None else left / rate,
    }


_STATES = ("done", "running", "stopped", "waiting", "failed")


def _state(folder: RunFolder, running: bool) -> str:
    tests: dict[str, Callable[[], bool]] = {
        "done": lambda: folder.done,
        "running": lambda: running,
        "failed": folder.failure_file.exists,
        "stopped": lambda: folder.has_trained,
    }
    return next((name for name, test in tests.items() if test()), "waiting")


def describe_status(found: Mapping[str, Any]) -> str:
    """Return a status in words."""
    lines = [", ".join(f"{found[name]:,} {name}" for name in _STATES if found[name] or name == "done")]
    if found["runs_per_hour"] is not None:
        left = timedelta(seconds=round(found["seconds_left"]))
        lines[0] += f"; {found['runs_per_hour']:.1f} runs per hour, about {left} left"
    lines += [
        f"  running  {path}  on {one['host']} (process {one['pid']}) since {one['since']}"
        for path, one in found["running_runs"].items()
    ]
    lines += [f"  failed   {path}: {why}" for path, why in found["failed_runs"].items()]
    return "\n".join(lines)
