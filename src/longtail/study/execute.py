"""Carrying out a plan's runs: what is done is skipped, what was stopped goes on, on every GPU that there is."""

import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from types import FrameType

import torch
import torch.multiprocessing

from longtail._checks import check_integer
from longtail.study.plan import Planned
from longtail.train.device import pick_device
from longtail.train.fleet import TOGETHER, Fleet
from longtail.train.folder import RunFolder
from longtail.train.recipe import Recipe
from longtail.train.trainer import NotFiniteError, StoppedError, Trainer

__all__ = ["Outcome", "devices", "epochs_done", "epochs_of", "execute"]

_QUEUE = 16  # times as many in a fleet, so that the next begins when one is done and few are left alone at its end
_WATCH_SECONDS = 0.5

_Answers = SimpleQueue[tuple[dict[str, str], set[str]]]
"""Of workers: runs that failed and why, and those that others train."""


@dataclass(frozen=True)
class Outcome:
    """How the runs went."""

    done: tuple[Planned, ...]
    failed: dict[str, str]
    """Folders of runs that ended with an error, and the error."""
    elsewhere: tuple[Planned, ...] = ()
    """Runs that another process is training."""
    unsearched: tuple[str, ...] = ()
    """Why searches for beta did not end, a sentence each."""


def devices(runs: Sequence[Planned]) -> list[torch.device]:
    """Where runs are trained: all GPUs where the recipes leave the choice, else the device that they name."""
    names = sorted({run.recipe.device for run in runs})
    if len(names) > 1:
        raise ValueError(f"Expected runs for one device to train together, but got runs for {' and '.join(names)}.")
    name = names[0] if names else "auto"
    if name == "auto" and torch.cuda.is_available():
        return [torch.device("cuda", place) for place in range(torch.cuda.device_count())]
    return [pick_device(name)]


def execute(
    runs: Sequence[Planned],
    *,
    together: int | None = None,
    on: Sequence[torch.device] | None = None,
    watch: Callable[[], None] = lambda: None,
    more: Callable[[], Sequence[Planned]] = lambda: (),
) -> Outcome:
    """Train what is not done yet.

    Args:
        runs: what is to be there in the end.
        together: runs at a time on each device; default: as many as a :class:`Fleet <longtail.train.Fleet>` takes.
        on: the devices; default: :func:`devices`.
        watch: called now and then while runs are trained.
        more: asked now and then for runs that are to join them, before those that wait. Not on several devices, among
            which the runs are shared out beforehand.

    Returns:
        what is done and what failed, of all of them. SIGTERM or Ctrl-C raises ``StoppedError`` after what is under way
        is saved.
    """
    if together is not None:
        check_integer("together", together, minimum=1)
    runs = list(runs)
    waiting = [run for run in runs if not run.folder.done]

    def joining() -> list[Planned]:
        new = list(more())
        runs.extend(new)
        return [run for run in new if not run.folder.done]

    places = devices(waiting) if on is None else list(on)
    if len(places) > 1 and len(waiting) > 1:
        failed, elsewhere = _spread(waiting, places, together, watch)
    else:
        failed, elsewhere = _work(waiting, places[0], together, watch, joining)
    done = tuple(run for run in runs if run.folder.done)
    return Outcome(done, failed, tuple(run for run in runs if str(run.path) in elsewhere))


@dataclass(eq=False)
class _Work:
    """Runs on one device, a fleet at a time."""

    device: torch.device
    together: int | None
    watch: Callable[[], None]
    more: Callable[[], Sequence[Planned]]
    members: list[Trainer] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)

    def run(self, runs: Sequence[Planned]) -> None:
        """Train them all."""
        size = _QUEUE * (self.together or TOGETHER)
        with _stoppable(self.members):
            for begin in range(0, len(runs), size):
                try:
                    with ExitStack() as locks:
                        self._fleet(self._locked(runs[begin : begin + size], locks), locks)
                except StoppedError as stopped:
                    raise StoppedError(str(stopped), self.failed) from None

    def _locked(self, runs: Sequence[Planned], locks: ExitStack) -> list[Planned]:
        """Those that nobody else is training."""
        free = [run for run in runs if _lock(run.folder, locks)]
        self.elsewhere |= {str(run.path) for run in runs if run not in free}
        return free

    def _fleet(self, runs: list[Planned], locks: ExitStack) -> None:
        """Train runs, and those that join them, together."""
        self.members[:] = [self._trainer(run) for run in runs]
        fleet = Fleet(self.members, self.together)
        watched = 0.0
        try:
            for _ in fleet.steps():
                if time.monotonic() - watched > _WATCH_SECONDS:
                    self.watch()
                    joining = [self._trainer(run) for run in self._locked(self.more(), locks)]
                    self.members += joining
                    fleet.add(joining)
                    watched = time.monotonic()
        finally:
            self.failed.update({str(member.folder.path): _told(error) for member, error in fleet.failures})
            self.members.clear()
            self.watch()

    def _trainer(self, run: Planned) -> Trainer:
        return Trainer(run.recipe, run.folder, device=self.device)


def _work(
    runs: Sequence[Planned],
    device: torch.device,
    together: int | None,
    watch: Callable[[], None],
    more: Callable[[], Sequence[Planned]],
) -> tuple[dict[str, str], set[str]]:
    work = _Work(device, together, watch, more)
    work.run(runs)
    return work.failed, work.elsewhere


def _told(error: Exception) -> str:
    """What went wrong, where our own sentences say it; else where in the code, too."""
    if isinstance(error, NotFiniteError | ValueError | OSError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}: {error}"


def _lock(folder: RunFolder, locks: ExitStack) -> bool:
    try:
        locks.enter_context(folder.lock())
    except BlockingIOError:
        return False
    return True


@contextmanager
def _stoppable(members: list[Trainer]) -> Iterator[None]:
    """SIGTERM and Ctrl-C ask the trainers to save and stop; where signals are not ours, nothing changes."""

    def stop(number: int, _: FrameType | None) -> None:
        if not members:
            raise StoppedError(f"Stopped by signal {number}.")
        for member in members:
            member.stop_asked = True

    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _spread(
    runs: Sequence[Planned], places: Sequence[torch.device], together: int | None, watch: Callable[[], None]
) -> tuple[dict[str, str], set[str]]:
    """A process a device, each with its share of the runs."""
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
    with _stoppable([]):
        for worker in workers:
            worker.start()
        try:
            while any(worker.is_alive() for worker in workers):
                time.sleep(_WATCH_SECONDS)
                _collect(answers, failed, elsewhere)  # now, or a worker with much to say would wait
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
        raise StoppedError("Stopped; what was under way is saved.", failed)
    lost = [run for run in runs if not run.folder.done and str(run.path) not in failed.keys() | elsewhere]
    return {**failed, **{str(run.path): "its process ended early" for run in lost}}, elsewhere


def _worker(runs: Sequence[Planned], device: torch.device, together: int | None, answers: _Answers) -> None:
    try:
        answers.put(_work(runs, device, together, lambda: None, tuple))
    except StoppedError as stopped:
        answers.put((stopped.failed, set()))


def _collect(answers: _Answers, failed: dict[str, str], elsewhere: set[str]) -> None:
    """Take what workers have said so far."""
    while not answers.empty():
        one, other = answers.get()
        failed.update(one)
        elsewhere |= other


def epochs_of(recipe: Recipe) -> int:
    """Epochs of all stages.

    Example:
        >>> from longtail.train import defaults
        >>> epochs_of(defaults("digits-lt", "crt"))
        50
    """
    stages = recipe.spec.stages
    return sum(recipe.epochs if one.epochs is None else int(getattr(recipe.params, one.epochs)) for one in stages)


def epochs_done(run: Planned) -> int:
    """Epochs that a run has logged."""
    file = run.folder.log_file
    return file.read_bytes().count(b"\n") if file.exists() else 0
