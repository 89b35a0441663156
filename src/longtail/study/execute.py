"""Training of a plan's runs on the devices of this machine: finished runs are skipped, stopped ones continue."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.multiprocessing

from longtail._checks import check_integer
from longtail._claims import LostClaimError
from longtail._io import stop_signals
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

    places = devices(waiting) if on is None else list(on)
    if len(places) > 1 and len(waiting) > 1:
        failed = _distribute(waiting, places, together=together, watch=watch, more=joining, worker=here)
        elsewhere = set[Path]()
    else:
        work = _Work(places[0], together, here, watch, joining)
        work.run(waiting)
        failed, elsewhere = work.failed, work.elsewhere
    found = here.done_of(runs)
    done = {run.path for run in found}  # also by other processes
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
    expects_more: Callable[[], bool] = lambda: False
    """Whether runs may still join, for which an idle process waits."""
    failed: dict[str, str] = field(default_factory=dict)
    elsewhere: set[Path] = field(default_factory=set)
    waiting: deque[PlannedRun] = field(default_factory=deque)
    _opened: Trainer | None = None
    """The first run, so that its data is opened once."""
    _held: dict[Path, tuple[PlannedRun, ExitStack]] = field(default_factory=dict)
    """The runs that are trained, and the claims on them."""
    _fleet: Fleet = field(init=False)
    _watched: float = 0.0
    _look_again: float = 0.0

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
                        self._look_around()
            except StoppedError as stopped:
                self._settle(())
                raise StoppedError(str(stopped), self.failed) from None
            finally:
                self._settle(())
                self.watch()

    def _look_around(self) -> None:
        """Keep failures, report progress, and let runs join."""
        self._settle(self._fleet.members)
        self.watch()
        self.waiting.extendleft(reversed(self.more()))
        self._watched = time.monotonic()

    def _settle(self, members: Sequence[Trainer]) -> None:
        """Keep why runs failed instead of their trainers, and let go of runs that are no longer members."""
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
            if not self.worker.joins or began > self._look_again:  # not after every step
                found = self._find()
                if found is not None or not self.worker.joins:
                    return found
                took = time.monotonic() - began
                self._look_again = time.monotonic() + min(max(_WATCH_SECONDS, 10 * took), _LONGEST_PAUSE)
            if self._fleet.members or not (self.waiting or self.expects_more()):
                return None
            time.sleep(_WATCH_SECONDS)
            self._look_around()

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
        """Leave a run to the process that holds it; if this one joined others, look again later."""
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


def _distribute(
    runs: Sequence[PlannedRun],
    places: Sequence[torch.device],
    *,
    together: int | None,
    watch: Callable[[], None],
    more: More,
    worker: Worker,
) -> dict[str, str]:
    """Train on several devices, each with a worker process that takes the next run, and return why runs failed."""
    context = torch.multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in places]
    processes = [
        context.Process(target=_work_on, args=(device, runs, theirs, together, worker.began))
        for device, (_, theirs) in zip(places, ends, strict=True)
    ]
    given, failed = list(runs), dict[str, str]()
    running: list[list[Path]] = [[] for _ in places]

    def collect() -> bool:
        """Read what the workers report; whether one is alive."""
        alive = [process.is_alive() for process in processes]
        for number, (pipe, _) in enumerate(ends):
            with suppress(EOFError, OSError):  # it ended
                while pipe.poll():
                    new, running[number] = pipe.recv()
                    failed.update(new)
        worker.update([path for number, paths in enumerate(running) if alive[number] for path in paths])
        watch()
        return any(alive)

    def lost() -> list[PlannedRun]:
        """Return the runs that are neither done nor failed."""
        left = [run for run in given if str(run.path) not in failed]
        done = {run.path for run in worker.done_of(left)}
        return [run for run in left if run.path not in done]

    signals: list[int] = []
    told = closed = False
    with stop_signals(signals.append):
        for process, (_, theirs) in zip(processes, ends, strict=True):
            process.start()
            theirs.close()  # so that the end of the process is seen
        while collect():
            if signals and not told:
                told = True
                for process in processes:
                    process.terminate()  # SIGTERM: they save and stop
            if not (signals or closed):
                ended = not worker.running and not lost()  # before runs that follow them are asked for
                new = list(more())
                if new or ended:
                    closed = not new
                    given += new
                    for pipe, _ in ends:
                        with suppress(OSError):  # it ended
                            pipe.send(new)
            time.sleep(_WATCH_SECONDS)
    if signals:
        raise StoppedError("Stopped; unfinished runs are saved.", failed)
    return {**failed, **{str(run.path): "its process ended early" for run in lost()}}


def _work_on(
    device: torch.device, runs: Sequence[PlannedRun], pipe: Connection, together: int | None, began: float
) -> None:
    """Train runs until the other end of the pipe sends no more, or is gone."""
    closed, reported = False, 0

    def more() -> list[PlannedRun]:
        nonlocal closed
        found: list[PlannedRun] = []
        with suppress(EOFError, OSError):
            while not closed and pipe.poll():
                closed = True  # unless something comes
                new = pipe.recv()
                closed = not new
                found += new
        return found

    def report() -> None:
        nonlocal reported
        new = dict(list(work.failed.items())[reported:])
        reported += len(new)
        with suppress(OSError):  # the other end is closed
            pipe.send((new, work.worker.running))

    work = _Work(device, together, Worker(joins=True, began=began), report, more, lambda: not closed)
    with suppress(StoppedError):
        work.run(runs)
