"""The fleet: many small models trained at once on one GPU, each with its own run folder."""

import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

from longtail._checks import check_integer
from longtail._io import stop_signals
from longtail.data import ArrayImages, DataSet
from longtail.models import is_small
from longtail.train.graphs import join_streams
from longtail.train.recipe import Recipe
from longtail.train.trainer import NotFiniteError, StoppedError, Trainer

TOGETHER = 12
"""Small models that a GPU trains at a time."""
ROUNDS = 4
"""Steps of each member after which they wait for each other."""


def keep_in_step(members: Iterable[Trainer]) -> None:
    """Make members wait for each other on their GPU; the host does not wait.

    Without it they drift apart, and then all of them take longer.
    """
    streams: defaultdict[torch.device, list[torch.cuda.Stream]] = defaultdict(list)
    for member in members:
        if member.stream is not None:
            streams[member.stream.device].append(member.stream)
    for on_one in streams.values():
        join_streams(on_one)


def at_a_time(recipe: Recipe, dataset: DataSet, device: torch.device) -> int:
    """How many runs like this one a device trains at a time: several small models with images in memory on a GPU."""
    # Micro-batches are not captured.
    small = is_small(recipe.model) and isinstance(dataset.train.images, ArrayImages) and recipe.accumulate == 1
    return TOGETHER if small and device.type == "cuda" else 1


class Fleet:
    """Drives several trainers together, one step of each in turn.

    On a GPU the step of each member is a CUDA graph on its own stream, so that the small kernels of all members fill
    the GPU; on a CPU they are trained one after the other. A fleet is only a way to execute: on disk there are separate
    runs, which can be finished in another way with the same result.

    Args:
        members: the trainers, each with its own folder; finished runs take no step.
        together: how many train at a time; default: the minimum of :func:`at_a_time` over all members.
        supply: returns the next member when there is room for one, or ``None``. Then members that are done are
            forgotten, so that memory does not grow with their number.
    """

    def __init__(
        self,
        members: Sequence[Trainer],
        together: int | None = None,
        supply: Callable[[], Trainer | None] | None = None,
    ) -> None:
        self._given = together is not None
        self.together = 1 if together is None else check_integer("together", together, minimum=1)
        """How many train at a time."""
        self.members: list[Trainer] = []
        self.failures: list[tuple[Trainer, Exception]] = []
        """Members that ended with an error, and the error."""
        self._waiting: deque[Trainer] = deque()
        self._supply = supply
        self.add(members)

    def add(self, members: Sequence[Trainer]) -> None:
        """Add members between two steps; they start before those that wait."""
        places = {member.folder.path.resolve() for member in self.members}
        for member in members:
            place = member.folder.path.resolve()
            if place in places:
                raise ValueError(f"Expected a folder for each run, but got {member.folder.path} twice.")
            places.add(place)
        self.members.extend(members)
        if not self._given:
            self.together = min((at_a_time(one.recipe, one.dataset, one.device) for one in self.members), default=1)
        self._waiting.extendleft(reversed(members))

    def steps(self) -> Iterator[Trainer]:
        """Take a step of each member in turn until all are done; yields the member that took it.

        An error of one member does not stop the others: it is kept in :attr:`failures`. With several processes an error
        may concern one of them only; then it is raised at once.
        """
        waiting = self._waiting
        running: deque[tuple[Trainer, Iterator[None]]] = deque()
        stopped: StoppedError | None = None
        turns = 0
        while True:
            while stopped is None and self._find_next(len(running)):
                member = waiting.popleft()
                running.append((member, member.steps()))
            if not running:
                break
            member, steps = running.popleft()
            try:
                if next(steps, _DONE) is _DONE:
                    self._forget(member)
                    continue
            except StoppedError as error:  # the others must be able to save
                stopped = error
                for other, _ in running:
                    other.stop_requested = True
                continue
            except Exception as error:
                if member.ranks.world > 1 and not isinstance(error, NotFiniteError):  # on which all ranks agree
                    raise
                _clear_frames(error)
                self.failures.append((member, error))
                self._forget(member)
                continue
            running.append((member, steps))
            turns += 1
            if turns >= ROUNDS * len(running):
                with suppress(RuntimeError):  # of a member, whose next step raises it
                    keep_in_step(one for one, _ in running)
                turns = 0
            yield member
        if stopped is not None:
            raise stopped

    def _find_next(self, running: int) -> bool:
        """Whether there is a member that waits, and room for it."""
        if not self._waiting and self._supply is not None and running < self.together:
            supplied = self._supply()
            self.add([] if supplied is None else [supplied])
        return bool(self._waiting) and running < self.together

    def _forget(self, member: Trainer) -> None:
        if self._supply is not None:
            self.members.remove(member)

    def run(self) -> None:
        """Train all members to the end, then raise the first of :attr:`failures`."""
        for _ in self.steps():
            pass
        if self.failures:
            raise self.failures[0][1]


@contextmanager
def stoppable(members: Sequence[Trainer]) -> Iterator[list[int]]:
    """Make ``members`` save and stop on SIGINT, SIGTERM, SIGHUP or SIGUSR1, and yield the received signals.

    While there is no member yet, a signal raises :class:`StoppedError` at once.
    """
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        for member in members:
            member.stop_requested = True
        if not members:
            raise StoppedError(f"Stopped by signal {number}.")

    with stop_signals(stop):
        try:
            yield received
        except StoppedError as error:
            error.signal = received[0] if received else None
            raise


def _clear_frames(error: BaseException) -> None:
    """Clear the frames of an error and of its causes: they keep the member's model alive."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__


_DONE = object()
