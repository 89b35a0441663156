"""The processes that work on a study, and its status: what is done, what runs where, what failed."""

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from longtail._claims import STALE, beats, claim_kind, is_gone, start_beats, this_process
from longtail._io import map_files, process_name, read_json, remove_leftovers, write_json
from longtail._program import count
from longtail.study.conduct import done_of
from longtail.study.planning import PlannedRun, StudyPlan
from longtail.study.record import read_search
from longtail.study.runs import SEARCH_FILE, differing
from longtail.train.folder import RunFolder
from longtail.train.recipe import HOUSEKEEPING

FOLDER = "workers"
_SHAPE = {"host": str, "pid": int, "start": str, "boot": str, "since": str, "runs": {str: str}, "joins": dict}


class Worker:
    """This process while it works on studies.

    Args:
        plans: the studies.
        joins: whether it shares them with others. Then it must have the same version and plans as they have, and they
            see it as a file in the folder ``workers`` of each study.
        began: when it began, by the clock of the file system; default: when it enters the first study.
    """

    def __init__(self, plans: Sequence[StudyPlan] = (), *, joins: bool = False, began: float | None = None) -> None:
        self.joins = joins
        self.running: list[Path] = []
        """The runs that are trained here."""
        self.trained: set[Path] = set()
        """The runs whose training began here."""
        self.done: set[Path] = set()
        """The runs that are known to be done. They are not checked again: there may be hundreds of workers."""
        self.began = time.time() if began is None else began
        self._plans = {Path(plan.out): plan for plan in plans}
        self._name = f"{process_name()}.json"
        self._is_given, self._started = began is not None, time.monotonic()
        self._since: dict[Path, str] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> "Worker":
        try:
            for number, (out, plan) in enumerate(self._plans.items()):
                out.mkdir(parents=True, exist_ok=True)
                present = _present(out)
                if not (number or self._is_given):
                    self.began, self._started = present, time.monotonic()
                for folder in (out, out / FOLDER):
                    remove_leftovers(folder, present)
                if self.joins:
                    self._write(out)
                    _check_same(plan, self._others(out))
        except BaseException:
            self.__exit__()
            raise
        if self.joins:
            beats[self] = self._beat
            start_beats()
        return self

    def __exit__(self, *_: object) -> None:
        beats.pop(self, None)
        for out in list(self._plans):
            self.leave(out)

    def leave(self, out: Path) -> None:
        """Leave the study in a folder, unless this process has left it."""
        with self._lock, suppress(OSError):
            if self._plans.pop(out, None) is not None:
                self._others(out)
                (out / FOLDER / self._name).unlink(missing_ok=True)
                (out / FOLDER).rmdir()  # fails while others work

    def done_of(self, runs: Iterable[PlannedRun]) -> list[PlannedRun]:
        """Return the runs that are done; those that are known to be done are not checked again."""
        given = list(runs)
        self.done |= {run.path for run in done_of(run for run in given if run.path not in self.done)}
        return [run for run in given if run.path in self.done]

    def see_processes(self) -> None:
        """Note the runs that other processes on this machine train: those that this one started on several devices."""
        host = this_process()["host"]
        others = [(out, one) for out in self._plans for one in live_workers(out) if one["host"] == host]
        self.running = [out / name for out, one in others for name in one["runs"]]
        self.trained.update(self.running)

    def update(self, running: Sequence[Path]) -> None:
        """Record which runs this process trains."""
        if list(running) != self.running:
            self.running = list(running)
            self._since = {path: self._since.get(path) or self._now() for path in running}
            for out in self._plans if self.joins else ():
                with suppress(OSError):  # the disk may be full
                    self._write(out)

    def _now(self) -> str:
        """The time by the clock of the file system, which all workers share."""
        moment = self.began + time.monotonic() - self._started
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")

    def _beat(self) -> None:
        for out in list(self._plans):
            with suppress(OSError):
                try:
                    os.utime(out / FOLDER / self._name)
                except FileNotFoundError:  # another process removed it, because it was old
                    self._write(out)

    def _write(self, out: Path) -> None:
        with self._lock:
            plan = self._plans.get(out)
            if plan is None:  # it left
                return
            begin = datetime.fromtimestamp(self.began, UTC).isoformat(timespec="seconds")
            runs = {path.relative_to(out).as_posix(): s for path, s in self._since.items() if path.is_relative_to(out)}
            about = {**this_process(), "since": begin, "runs": runs, "joins": _identity(plan)}
            for attempt in range(3):
                try:
                    (out / FOLDER).mkdir(parents=True, exist_ok=True)
                    write_json(out / FOLDER / self._name, about)
                    return
                except FileNotFoundError:  # another worker left, and removed the folder a moment ago
                    if attempt == 2:
                        raise

    def _others(self, out: Path) -> list[dict[str, Any]]:
        """Return the other processes that work on a study, and remove the files of those that were killed."""
        found = [(about, live) for about, live in _workers(out) if about["file"].name != self._name]
        for about, live in found:
            if not live:
                about["file"].unlink(missing_ok=True)
        return [about for about, live in found if live]


def _identity(plan: StudyPlan) -> dict[str, str]:
    """What workers of a study must share: everything but the folder, whose name may differ between machines."""
    about = {name: value for name, value in asdict(plan).items() if name != "out"}
    for table in ("recipe", "search"):
        about |= {f"{table}.{name}": value for name, value in dict(about.pop(table)).items()}
    kept = {name: str(value) for name, value in about.items() if name.removeprefix("recipe.") not in HOUSEKEEPING}
    return {"longtail": metadata.version("longtail"), "LONGTAIL_CLAIMS": claim_kind(Path(plan.out)), **kept}


def live_workers(out: Path) -> list[dict[str, Any]]:
    """Return the processes that work on a study now, as their files describe them."""
    return [about for about, live in _workers(out) if live]


def _workers(out: Path) -> list[tuple[dict[str, Any], bool]]:
    """Return the processes that have a file in a study, and whether they are alive."""
    files = sorted((out / FOLDER).glob("*.json"))
    present = _present(out) if files else 0.0

    def read(file: Path) -> tuple[dict[str, Any], bool] | None:
        with suppress(OSError, ValueError):  # it was removed, or is not ours
            about: dict[str, Any] = read_json(file, _SHAPE)
            live = not is_gone(about) and present - file.stat().st_mtime < 2 * STALE
            return {**about, "file": file}, live
        return None

    return [found for found in map_files(read, files) if found is not None]


def _present(out: Path) -> float:
    """The time by the clock of the file system, which may differ from that of this machine."""
    try:
        with TemporaryFile(dir=out) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # it can be read but not written
        return time.time()


def _check_same(plan: StudyPlan, others: Sequence[Mapping[str, Any]]) -> None:
    ours = _identity(plan)
    names = {"longtail": "version of longtail", "LONGTAIL_CLAIMS": "claims (LONGTAIL_CLAIMS)"}
    for about in others:
        for name, (own, other) in differing([ours, about["joins"]]).items():
            raise ValueError(
                f"Expected the {names.get(name, f'`{name}`')} of the worker on {about['host']} (process "
                f"{about['pid']}), {other}, but got {own}; use the same, stop that worker, or "
                "choose another folder with --out."
            )


# Status

_STATES = ("done", "running", "stopped", "waiting", "failed")


def status(plans: Sequence[StudyPlan], runs: Sequence[PlannedRun]) -> dict[str, Any]:
    """Return the state of runs as plain data: how many are done, running, stopped, waiting or failed, and where.

    Args:
        plans: the studies.
        runs: those of their runs that are known, searches included.
    """
    outs = list(dict.fromkeys(Path(plan.out) for plan in plans))
    found = [(out, about) for out in outs for about in live_workers(out)]
    running = {
        str(out / name): {"host": about["host"], "pid": about["pid"], "since": since}
        for out, about in found
        for name, since in about["runs"].items()
    }
    states = map_files(lambda run: _state(run.folder, str(run.path) in running), runs)
    of_state: dict[str, list[PlannedRun]] = {name: [] for name in _STATES}
    for run, (state, _) in zip(runs, states, strict=True):
        of_state[state].append(run)
    left = sum(len(of_state[name]) for name in ("running", "stopped", "waiting"))
    rate = None
    if found:
        start = min(datetime.fromisoformat(about["since"]).timestamp() for _, about in found)
        recent = sum(moment >= start for state, moment in states if state == "done")
        rate = recent / max(_present(outs[0]) - start, 1.0)
    return {
        **{name: len(found) for name, found in of_state.items()},
        "open_searches": sum(_is_open(plan.search_folder(key)) for plan in plans for key in plan.searches),
        "workers": [
            {"host": one["host"], "pid": one["pid"], "since": one["since"], "running": len(one["runs"])}
            for _, one in found
        ],
        "running_runs": {str(run.path): running[str(run.path)] for run in of_state["running"]},
        "failed_runs": {str(run.path): _failure(run.folder) for run in of_state["failed"]},
        "runs_per_hour": 3600 * rate if rate else None,
        "seconds_left": left / rate if rate else None,
    }


def _state(folder: RunFolder, running: bool) -> tuple[str, float]:
    """The state of a run, and when it was done, by the clock of the file system."""
    with suppress(FileNotFoundError):
        return "done", folder.result_file.stat().st_mtime
    if running:
        return "running", 0.0
    if folder.failure_file.exists():
        return "failed", 0.0
    return "stopped" if folder.has_trained else "waiting", 0.0


def _failure(folder: RunFolder) -> str:
    try:
        return folder.failure()
    except (OSError, ValueError):  # it was started again a moment ago, or the file is damaged
        return "the reason is not known"


def _is_open(folder: Path) -> bool:
    """Whether a search for beta has not found one."""
    file = folder / SEARCH_FILE
    return not file.exists() or read_search(file)["beta"] is None


def describe_status(found: Mapping[str, Any]) -> str:
    """Return a status in words."""
    total = sum(found[name] for name in _STATES)
    counts = ", ".join(f"{found[name]:,} {name}" for name in _STATES if found[name] or name == "done")
    lines = [f"{count(total, 'run')}: {counts}"]
    if found["runs_per_hour"] is not None:
        left = timedelta(seconds=round(found["seconds_left"]))
        lines[0] += f"; {found['runs_per_hour']:,.1f} runs per hour, about {left} left"
    if found["open_searches"]:
        lines.append(f"Not done: {count(found['open_searches'], 'search')} for beta, after which more runs follow")
    for one in found["workers"]:
        lines.append(f"worker   {one['host']}, process {one['pid']}, since {one['since']}: {one['running']} running")
    for path, one in found["running_runs"].items():
        lines.append(f"running  {path}  {one['host']}, process {one['pid']}, since {one['since']}")
    return "\n".join([*lines, *(f"failed   {path}: {why}" for path, why in found["failed_runs"].items())])
