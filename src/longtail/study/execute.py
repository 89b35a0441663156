"""Training of a plan's runs on the devices of this machine: finished runs are skipped, stopped ones continue."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.queues import SimpleQueue

import torch
import torch.multiprocessing

from longtail._checks import check_integer
from longtail._program import sentence_of
from longtail.study.conduct import More, Outcome
from longtail.study.planning import PlannedRun
from longtail.train.fleet import Fleet, stoppable
from longtail.train.recipe import pick_device, settings_of
from longtail.train.trainer import StoppedError, Trainer

_WATCH_SECONDS = 0.5

_Answers = SimpleQueue[tuple[dict[str, str], set[str]]]
"""From workers: runs that failed and why, and runs that other processes train."""


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
) -> Outcome:
    """Train the runs that are not done.

    Args:
        runs: the runs.
        together: how many to train at a time on each device; default: as many as a
            :class:`Fleet <longtail.train.Fleet>` takes.
        on: the devices; default: :func:`devices`.
        watch: called every half second while runs are trained.
        more: called as often; returns runs that join them, before those that wait. Not on several devices, where the
            runs are distributed at the start.

    Returns:
        what is done and what failed. After SIGTERM or Ctrl-C the runs are saved, and ``StoppedError`` is raised.
    """
    if together is not None:
        check_integer("together", together, minimum=1)
    runs = list(runs)
    waiting = [run for run in runs if not run.folder.done]

    def joining() -> list[PlannedRun]:
        new = list(more())
        runs.extend(new)
        return [run for run in new if not run.folder.done]

    places = devices(waiting) if on is None else list(on)
    if len(places) > 1 and len(waiting) > 1:
        failed, elsewhere = _distribute(waiting, places, together, watch)
    else:
        work = _Work(places[0], together, watch, joining)
        work.run(waiting)
        failed, elsewhere = work.failed, work.elsewhere
    done = tuple(run for run in runs if run.folder.done)
    return Outcome(done, failed, tuple(run for run in runs if str(run.path) in elsewhere and not run.folder.done))


@dataclass(eq=False)
class _Work:
    """Runs on one device; only those that are trained right now are open and locked."""

    device: torch.device
    together: int | None
    watch: Callable[[], None] = lambda: None
    more: More = lambda: ()
    failed: dict[str, str] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    _waiting: deque[PlannedRun] = field(default_factory=deque)
    _opened: Trainer | None = None
    """The first run, so that its data is opened once."""

    def run(self, runs: Sequence[PlannedRun]) -> None:
        """Train all runs, and those that join them, as one fleet."""
        fleet = Fleet((), self.together, self._next)
        watched = 0.0
        with stoppable(fleet.members):
            for run in reversed(_first_of_each(runs)):  # wrong settings are refused before anything is trained
                self._opened = self._trainer(run)
            self._waiting.extend(runs)
            try:
                for _ in fleet.steps():
                    if time.monotonic() - watched > _WATCH_SECONDS:
                        self._collect(fleet)
                        self.watch()
                        self._waiting.extendleft(reversed(self.more()))
                        watched = time.monotonic()
            except StoppedError as stopped:
                self._collect(fleet)
                raise StoppedError(str(stopped), self.failed) from None
            finally:
                self._collect(fleet)
                self.watch()

    def _next(self) -> Trainer | None:
        """Return the next run that neither failed to open nor was finished by another process."""
        while self._waiting:
            run = self._waiting.popleft()
            if run.folder.done:
                continue
            opened, self._opened = self._opened, None
            try:
                return opened if opened and opened.folder.path == run.path else self._trainer(run)
            except (ValueError, OSError) as error:
                self.failed[str(run.path)] = sentence_of(error)
        return None

    def _collect(self, fleet: Fleet) -> None:
        """Keep the paths of runs that failed, or that another process trains, instead of their trainers."""
        for member, error in fleet.failures:
            path = str(member.folder.path)
            if isinstance(error, BlockingIOError):
                self.elsewhere.add(path)
            else:
                self.failed[path] = sentence_of(error)
        fleet.failures.clear()

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
    runs: Sequence[PlannedRun], places: Sequence[torch.device], together: int | None, watch: Callable[[], None]
) -> tuple[dict[str, str], set[str]]:
    """Train on several devices, with one process and an equal share of the runs for each."""
    context = torch.multiprocessing.get_context("spawn")
    answers: _Answers = context.SimpleQueue()
    shares = [list(runs[place :: len(places)]) for place in range(len(places))]
    workers = [
        context.Process(target=_worker, args=(share, device, together, answers))
        for share, device in zip(shares, places, strict=True)
        if share
    ]
    stopped = False
    failed: dict[str, str] = {}
    elsewhere: set[str] = set()
    with stoppable([]):
        for worker in workers:
            worker.start()
        try:
            while any(worker.is_alive() for worker in workers):
                time.sleep(_WATCH_SECONDS)
                _collect(answers, failed, elsewhere)  # now: a full queue would block the worker
                watch()
        except StoppedError:
            stopped = True
            for worker in workers:
                worker.terminate()  # SIGTERM: they save and stop
    while any(worker.is_alive() for worker in workers):
        time.sleep(_WATCH_SECONDS)
        _collect(answers, failed, elsewhere)
    _collect(answers, failed, elsewhere)
    if stopped:
        raise StoppedError("Stopped; unfinished runs are saved.", failed)
    lost = [run for run in runs if not run.folder.done and str(run.path) not in failed.keys() | elsewhere]
    return {**failed, **{str(run.path): "its process ended early" for run in lost}}, elsewhere


def _worker(runs: Sequence[PlannedRun], device: torch.device, together: int | None, answers: _Answers) -> None:
    work = _Work(device, together)
    try:
        work.run(runs)
    except StoppedError as stopped:
        answers.put((stopped.failed, set()))
    else:
        answers.put((work.failed, work.elsewhere))


def _collect(answers: _Answers, failed: dict[str, str], elsewhere: set[str]) -> None:
    while not answers.empty():
        one, other = answers.get()
        failed.update(one)
        elsewhere |= other
