"""Training of a plan's runs on the devices of this machine: finished runs are skipped, stopped ones continue."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import torch
import torch.multiprocessing

from longtail._checks import check_integer
from longtail._claims import LostClaimError
from longtail._program import sentence_of
from longtail.study.conduct import More, Outcome, done_of
from longtail.study.planning import PlannedRun, StudyPlan
from longtail.study.workers import Worker
from longtail.train.fleet import Fleet, stoppable
from longtail.train.folder import RunFolder
from longtail.train.recipe import pick_device, settings_of
from longtail.train.trainer import StoppedError, Trainer

_WATCH_SECONDS = 0.5

_Answers = SimpleQueue[tuple[dict[str, str], set[str]]]
"""From workers: runs that failed and why, and runs that other processes train."""
_Runs = SimpleQueue[list[PlannedRun] | None]
"""To a worker: runs that join; ``None``: no more."""


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
    runs = list(runs)
    done = {run.path for run in done_of(runs)}
    waiting = [run for run in runs if run.path not in done]

    def joining() -> list[PlannedRun]:
        new = list(more())
        runs.extend(new)
        return [run for run in new if not run.folder.done]

    places = devices(waiting) if on is None else list(on)
    if len(places) > 1 and len(waiting) > 1:
        failed, elsewhere = _distribute(
            waiting,
            places,
            together=together,
            watch=watch,
            more=joining,
            plans=worker.plans if worker else (),
        )
    else:
        work = _Work(places[0], together, watch, joining, worker)
        work.run(waiting)
        failed, elsewhere = work.failed, work.elsewhere
    failed = {path: why for path, why in failed.items() if not RunFolder(path).done}  # unless another process did it
    return Outcome(
        tuple(done_of(runs)), failed, tuple(run for run in runs if str(run.path) in elsewhere and not run.folder.done)
    )


@dataclass(eq=False)
class _Work:
    """Runs on one device; only those that are trained right now are open and held."""

    device: torch.device
    together: int | None
    watch: Callable[[], None] = lambda: None
    more: More = lambda: ()
    worker: Worker | None = None
    expects_more: Callable[[], bool] = lambda: False
    """Whether runs may still join, for which an idle process waits."""
    failed: dict[str, str] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    _waiting: deque[PlannedRun] = field(default_factory=deque)
    _opened: Trainer | None = None
    """The first run, so that its data is opened once."""
    _held: dict[Path, tuple[PlannedRun, ExitStack]] = field(default_factory=dict)
    """The claims on the runs that are trained, if others work on the study."""
    _fleet: Fleet = field(init=False)
    _old_failures: dict[Path, int] = field(default_factory=dict)
    """When runs failed before this process was given them: it tries them again."""
    _watched: float = 0.0
    _looked: float = 0.0

    @property
    def _joins(self) -> bool:
        return self.worker is not None and self.worker.joins

    def run(self, runs: Sequence[PlannedRun]) -> None:
        """Train all runs, and those that join them, as one fleet."""
        self._fleet = fleet = Fleet((), self.together, self._next)
        with stoppable(fleet.members):
            for run in reversed(_first_of_each(runs)):  # wrong settings are refused before anything is trained
                self._opened = self._trainer(run)
            self._waiting.extend(self._given(runs))
            try:
                for _ in fleet.steps():
                    if time.monotonic() - self._watched > _WATCH_SECONDS:
                        self._look_around()
            except StoppedError as stopped:
                self._collect()
                raise StoppedError(str(stopped), self.failed) from None
            finally:
                self._collect()
                self._release(all_of_them=True)
                self.watch()

    def _look_around(self) -> None:
        """Collect failures, report progress, and let runs join."""
        self._collect()
        if self.worker is not None:
            self.worker.update([one.folder.path for one in self._fleet.members])
        self.watch()
        self._waiting.extendleft(reversed(self._given(self.more())))
        self._watched = time.monotonic()

    def _next(self) -> Trainer | None:
        """Return the next run that is neither done nor failed, nor held by another process.

        If others work on the study, and they hold all that is left, wait for them while nothing is trained here.
        """
        self._release()
        while True:
            if not self._joins or time.monotonic() - self._looked > _WATCH_SECONDS:  # not after every step
                found = self._find()
                if found is not None or not self._joins:
                    return found
                self._looked = time.monotonic()
            if self._fleet.members or not (self._waiting or self.expects_more()):
                return None
            time.sleep(_WATCH_SECONDS)
            self._look_around()

    def _find(self) -> Trainer | None:
        for _ in range(len(self._waiting)):
            run = self._waiting.popleft()
            if run.folder.done:
                continue
            try:
                if self._joins and not self._claim(run):
                    self._waiting.append(run)
                    continue
                if run.folder.done or str(run.path) in self.failed:  # by another process, a moment ago
                    continue
                opened, self._opened = self._opened, None
                return opened if opened and opened.folder.path == run.path else self._trainer(run)
            except (ValueError, OSError) as error:
                self._fail(run.folder, error)
        return None

    def _claim(self, run: PlannedRun) -> bool:
        """Whether the run is held by this process from now on, or failed in another one."""
        when = _modified(run.folder.failure_file)
        if when not in (None, self._old_failures.get(run.path)):
            self.failed[str(run.path)] = run.folder.failure()
            return True
        with ExitStack() as stack:
            try:
                stack.enter_context(run.folder.lock())
            except BlockingIOError:
                return False
            self._held[run.path] = run, stack.pop_all()
        return True

    def _given(self, runs: Sequence[PlannedRun]) -> Sequence[PlannedRun]:
        for run in runs if self._joins else ():
            when = _modified(run.folder.failure_file)
            self._old_failures |= {} if when is None else {run.path: when}
        return runs

    def _release(self, *, all_of_them: bool = False) -> None:
        """Let go of runs that are no longer trained here."""
        kept = set() if all_of_them else {one.folder.path for one in self._fleet.members}
        for path in self._held.keys() - kept:
            self._held.pop(path)[1].close()

    def _collect(self) -> None:
        """Keep the paths of runs that failed, or that another process trains, instead of their trainers."""
        for member, error in self._fleet.failures:
            if isinstance(error, LostClaimError) and self._joins:
                self._waiting.append(self._held[member.folder.path][0])
            elif isinstance(error, BlockingIOError | LostClaimError):
                self.elsewhere.add(str(member.folder.path))
            else:
                self._fail(member.folder, error)
        self._fleet.failures.clear()

    def _fail(self, folder: RunFolder, error: Exception) -> None:
        self.failed[str(folder.path)] = sentence_of(error)
        if not isinstance(error, OSError):  # which may be of this machine alone, such as a full disk
            folder.fail(sentence_of(error))

    def _trainer(self, run: PlannedRun) -> Trainer:
        return Trainer(run.recipe, run.folder, device=self.device)


def _modified(file: Path) -> int | None:
    with suppress(FileNotFoundError):
        return file.stat().st_mtime_ns
    return None


def _first_of_each(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return a run of each recipe, whatever its seed and fold."""
    found: dict[str, PlannedRun] = {}
    for run in runs:
        settings = settings_of(run.recipe) | {"seed": None, "fold": None}
        found.setdefault(repr(settings), run)
    return list(found.values())


def _distribute(
    runs: list[PlannedRun],
    places: Sequence[torch.device],
    *,
    together: int | None,
    watch: Callable[[], None],
    more: More,
    plans: Sequence[StudyPlan] = (),
) -> tuple[dict[str, str], set[str]]:
    """Train on several devices: a process for each, which claims the next run when it has room for one."""
    context = torch.multiprocessing.get_context("spawn")
    answers: _Answers = context.SimpleQueue()
    queues: list[_Runs] = [context.SimpleQueue() for _ in places]
    workers = [
        context.Process(
            target=_worker, args=(runs, device, queue, answers), kwargs={"together": together, "plans": plans}
        )
        for device, queue in zip(places, queues, strict=True)
    ]
    failed: dict[str, str] = {}
    elsewhere: set[str] = set()
    left, open_queues = list(runs), True

    def collect() -> None:
        nonlocal left
        while not answers.empty():
            one, other = answers.get()
            failed.update(one)
            elsewhere.update(other)
        left = [run for run in left if not run.folder.done and str(run.path) not in failed.keys() | elsewhere]

    def look_around() -> None:
        nonlocal open_queues
        collect()
        watch()
        new = list(more()) if open_queues else []
        left.extend(new)
        runs.extend(new)
        for queue in queues if new or (open_queues and not left) else ():
            queue.put(new or None)
        open_queues = open_queues and bool(left)

    stopped = False
    with stoppable([]):
        for worker in workers:
            worker.start()
        try:
            while any(worker.is_alive() for worker in workers):
                time.sleep(_WATCH_SECONDS)
                look_around()
        except StoppedError:
            stopped = True
            for worker in workers:
                worker.terminate()  # SIGTERM: they save and stop
    while any(worker.is_alive() for worker in workers):
        time.sleep(_WATCH_SECONDS)
        collect()
    collect()
    if stopped:
        raise StoppedError("Stopped; unfinished runs are saved.", failed)
    return {**failed, **{str(run.path): "its process ended early" for run in left}}, elsewhere


def _worker(
    runs: Sequence[PlannedRun],
    device: torch.device,
    queue: _Runs,
    answers: _Answers,
    *,
    together: int | None,
    plans: Sequence[StudyPlan],
) -> None:
    """One of several processes: trains until the queue says that nothing will join."""
    closed = False
    reported: set[str] = set()

    def more() -> list[PlannedRun]:
        nonlocal closed
        found: list[PlannedRun] = []
        while not queue.empty():
            new = queue.get()
            closed = closed or new is None
            found += new or []
        return found

    def report(failed: Mapping[str, str] | None = None) -> None:
        new = {path: why for path, why in (failed or work.failed).items() if path not in reported}
        if new or work.elsewhere:
            reported.update(new)
            answers.put((new, set(work.elsewhere)))

    with Worker(plans, joins=True) as worker:
        work = _Work(device, together, report, more, worker, lambda: not closed)
        try:
            work.run(runs)
        except StoppedError as stopped:
            report(stopped.failed)
