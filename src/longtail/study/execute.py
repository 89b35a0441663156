"""Training of a plan's runs on the devices of this machine: finished runs are skipped, stopped ones continue."""

import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.multiprocessing

from longtail._checks import check_integer
from longtail._claims import LostClaimError
from longtail._io import read_json, stop_signals, write_json
from longtail._program import sentence_of
from longtail.study.conduct import More, Outcome
from longtail.study.planning import PlannedRun
from longtail.study.workers import Worker
from longtail.train.fleet import Fleet, stoppable
from longtail.train.recipe import pick_device, settings_of
from longtail.train.trainer import StoppedError, Trainer

_WATCH_SECONDS = 0.5
_LONGEST_PAUSE = 10.0  # seconds between two checks of runs that other processes hold
_PATIENCE = 16  # runs that are checked one by one before all that wait are checked together

WorkOn = Callable[[torch.device], dict[str, str]]
"""Trains on a device together with other processes that do the same, and returns why runs failed."""


def devices(runs: Sequence[PlannedRun]) -> list[torch.device]:
    """Return the devices for runs: all GPUs if their recipes say ``auto``, else the device that they name."""
    names = sorted({run.recipe.device for run in runs})
    if len(names) > 1:
        raise ValueError(f"Expected `device` to be the same for all runs, but got {' and '.join(names)}.")
    name = names[0] if names else "auto"
    if name == "auto" and torch.cuda.is_available():
        return [torch.device("cuda", place) for place in range(torch.cuda.device_count())]
    return [pick_device(name)]


def execute(
    runs: Sequence[PlannedRun],
    *,
    together: int | None = None,
    on: Sequence[torch.device] | None = None,
    watch: Callable[[], None] = lambda: None,
    more: More = lambda: (),
    worker: Worker | None = None,
    work: WorkOn | None = None,
) -> Outcome:
    """Train the runs that are not done.

    Args:
        runs: the runs.
        together: how many to train at a time on each device; default: as many as a
            :class:`Fleet <longtail.train.Fleet>` takes.
        on: the devices; default: :func:`devices`.
        watch: called every half second while runs are trained.
        more: called as often; returns runs that join them, before those that wait.
        worker: this process among others that work on the same runs; runs that others hold are waited for.
        work: what a process per device does if there are several devices; default: it trains ``runs``. It must also
            train those that join them.

    Returns:
        what is done and what failed. After SIGTERM or Ctrl-C the runs are saved, and ``StoppedError`` is raised.
    """
    if together is not None:
        check_integer("together", together, minimum=1)
    runs, here = list(runs), worker or Worker()
    done = {run.path for run in here.done_of(runs)}
    waiting = [run for run in runs if run.path not in done]

    def joining() -> list[PlannedRun]:
        new = list(more())
        runs.extend(new)
        return [run for run in new if not run.folder.done]

    def watch_all() -> None:
        joining()
        watch()

    places = devices(waiting) if on is None else list(on)
    several = len(places) > 1 and len(waiting) > 1
    error, elsewhere = "", set[Path]()
    if several:
        work = work or partial(_train_runs, waiting, together, here.began)
        failed, error = _on_each(places, work, watch_all)
    else:
        here_alone = _Work(places[0], together, here, watch, joining)
        here_alone.run(waiting)
        failed, elsewhere = here_alone.failed, here_alone.elsewhere
    found = here.done_of(runs)
    done = {run.path for run in found}  # also by other processes
    left = [run for run in runs if run.path not in done and str(run.path) not in failed] if several else []
    if left and error:
        raise ValueError(error)
    failed |= {str(run.path): "its process ended early" for run in left}
    return Outcome(
        tuple(found),
        {path: why for path, why in failed.items() if Path(path) not in done},
        tuple(run for run in runs if run.path in elsewhere - done),
    )


@dataclass(eq=False)
class _Work:
    """Runs on one device; only those that are trained right now are open and held."""

    device: torch.device
    together: int | None
    worker: Worker
    watch: Callable[[], None] = lambda: None
    more: More = lambda: ()
    failed: dict[str, str] = field(default_factory=dict)
    elsewhere: set[Path] = field(default_factory=set)
    waiting: deque[PlannedRun] = field(default_factory=deque)
    _opened: Trainer | None = None
    """The first run, so that its data is opened once."""
    _held: dict[Path, tuple[PlannedRun, ExitStack]] = field(default_factory=dict)
    """The runs that are trained, and the claims on them."""
    _fleet: Fleet = field(init=False)
    _watched: float = 0.0
    _next_check: float = 0.0

    def run(self, runs: Sequence[PlannedRun]) -> None:
        """Train all runs, and those that join them, as one fleet."""
        self._fleet = fleet = Fleet((), self.together, self._next)
        with stoppable(fleet.members):
            for run in reversed(_first_of_each(runs)):  # wrong settings are refused before anything is trained
                self._opened = self._trainer(run)
            self.waiting.extend(runs)
            try:
                for _ in fleet.steps():
                    if time.monotonic() - self._watched > _WATCH_SECONDS:
                        self._watch_runs()
            except StoppedError as stopped:
                self._settle(())
                raise StoppedError(str(stopped), self.failed) from None
            finally:
                self._settle(())
                self.watch()

    def _watch_runs(self) -> None:
        """Keep failures, report progress, and let runs join."""
        self._settle(self._fleet.members)
        self.watch()
        self.waiting.extendleft(reversed(self.more()))
        self._watched = time.monotonic()

    def _settle(self, members: Sequence[Trainer]) -> None:
        """Record the errors of failed runs, and release the claims on runs that have ended."""
        for member, error in self._fleet.failures:
            run, _ = self._held[member.folder.path]
            if isinstance(error, BlockingIOError | LostClaimError):
                self._leave(run)
            else:
                self._fail(run, error)
        self._fleet.failures.clear()
        training = [one.folder.path for one in members]
        self.worker.update(training)
        for path in self._held.keys() - set(training):
            self._held.pop(path)[1].close()

    def _next(self) -> Trainer | None:
        """Return the next run to train.

        If others work on the study, and they hold all that is left, wait for them while nothing is trained here.
        """
        self._settle(self._fleet.members)
        while True:
            began = time.monotonic()
            if not self.worker.joins or began > self._next_check:  # not after every step
                found = self._find()
                if found is not None or not self.worker.joins:
                    return found
                took = time.monotonic() - began
                self._next_check = time.monotonic() + min(max(_WATCH_SECONDS, 10 * took), _LONGEST_PAUSE)
            if self._fleet.members or not self.waiting:
                return None
            time.sleep(_WATCH_SECONDS)
            self._watch_runs()

    def _find(self) -> Trainer | None:
        """Open the next run that is neither done nor failed, nor held by another process."""
        busy: list[PlannedRun] = []
        tries = 0
        try:
            while self.waiting:
                tries += 1
                if tries == _PATIENCE:  # other processes did many: check all runs, many at a time
                    self.worker.done_of(self.waiting)
                    self.waiting = deque(run for run in self.waiting if run.path not in self.worker.done)
                    continue
                run = self.waiting.popleft()
                if self.worker.done_of([run]):
                    continue
                try:
                    why = run.folder.failure_after(self.worker.began) if self.worker.joins else None
                    if why is not None:
                        self.failed[str(run.path)] = why
                    elif self._claim(run):
                        return self._open(run)
                except BlockingIOError:
                    busy.append(run)
                except (ValueError, OSError) as error:
                    self._fail(run, error)
        finally:
            for run in busy:
                self._leave(run)
        return None

    def _claim(self, run: PlannedRun) -> bool:
        """Hold a run, unless another process holds it, or finished it a moment ago."""
        with ExitStack() as stack:
            stack.enter_context(run.folder.lock())
            if run.folder.done:
                return False
            self._held[run.path] = run, stack.pop_all()
        self.worker.trained.add(run.path)
        return True

    def _leave(self, run: PlannedRun) -> None:
        """Leave a run to the process that holds it; if this one joined others, try it again later."""
        if self.worker.joins:
            self.waiting.append(run)
        else:
            self.elsewhere.add(run.path)

    def _fail(self, run: PlannedRun, error: Exception) -> None:
        self.failed[str(run.path)] = sentence_of(error)
        if not isinstance(error, OSError):  # which may be of this machine alone, such as a full disk
            run.folder.fail(sentence_of(error))

    def _open(self, run: PlannedRun) -> Trainer:
        opened, self._opened = self._opened, None
        ready = opened is not None and opened.folder.path == run.path and not (self.worker.joins and run.folder.begun)
        return opened if ready and opened is not None else self._trainer(run)

    def _trainer(self, run: PlannedRun) -> Trainer:
        return Trainer(run.recipe, run.folder, device=self.device)


def _first_of_each(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return a run of each recipe, whatever its seed and fold."""
    found: dict[str, PlannedRun] = {}
    for run in runs:
        settings = settings_of(run.recipe) | {"seed": None, "fold": None}
        found.setdefault(repr(settings), run)
    return list(found.values())


def _on_each(places: Sequence[torch.device], work: WorkOn, watch: Callable[[], None]) -> tuple[dict[str, str], str]:
    """Call ``work`` in a process per device.

    Returns:
        why runs failed, and the first error that ended a process.
    """
    context = torch.multiprocessing.get_context("spawn")
    signals: list[int] = []
    with TemporaryDirectory() as folder, stop_signals(signals.append):
        reports = [Path(folder) / f"{number}.json" for number in range(len(places))]
        processes = [
            context.Process(target=_report, args=(work, device, report))
            for device, report in zip(places, reports, strict=True)
        ]
        for process in processes:
            process.start()
        try:
            while any(process.is_alive() for process in processes) and not signals:
                watch()
                time.sleep(_WATCH_SECONDS)
        finally:
            for process in processes:
                process.terminate()  # one that is alive saves and stops
            for process in processes:
                process.join()
        found = [read_json(report) for report in reports if report.exists()]  # not of a process that was killed
    failed = {path: why for one in found for path, why in one["failed"].items()}
    if signals:
        raise StoppedError("Stopped; unfinished runs are saved.", failed)
    return failed, next((one["error"] for one in found if one["error"]), "")


def _report(work: WorkOn, device: torch.device, report: Path) -> None:
    """Write why runs failed, or the error that ended this process, to a file."""
    failed, error = dict[str, str](), ""
    try:
        failed = work(device)
    except StoppedError as stopped:
        failed = stopped.failed
    except Exception as other:  # of a plugin too
        error = sentence_of(other)
    write_json(report, {"failed": failed, "error": error})


def _train_runs(runs: Sequence[PlannedRun], together: int | None, began: float, device: torch.device) -> dict[str, str]:
    worker = Worker(joins=True, began=began)
    return execute(runs, together=together, on=[device], watch=stop_with_parent, worker=worker).failed


def stop_with_parent() -> None:
    """Stop this process if the one that started it was killed."""
    parent = torch.multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        signal.raise_signal(signal.SIGTERM)
