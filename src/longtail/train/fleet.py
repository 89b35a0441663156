"""The fleet: many small models trained at once on one GPU, each a run of its own."""

import traceback
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import torch

from longtail._checks import check_integer
from longtail.data import ArrayImages, DataSet
from longtail.models import SMALL_MODELS
from longtail.train.recipe import Recipe
from longtail.train.streams import meet
from longtail.train.trainer import NotFiniteError, StoppedError, Trainer

__all__ = ["ROUNDS", "TOGETHER", "Fleet", "at_a_time", "keep_in_step"]

TOGETHER = 12
"""Small models that a GPU trains at a time."""
ROUNDS = 4
"""Steps of each after which they wait for each other."""


def keep_in_step(members: Iterable[Trainer]) -> None:
    """Have members wait for each other, on their GPU; the host waits for nothing.

    Left alone they drift apart, and then all of them take longer.
    """
    streams: defaultdict[torch.device, list[torch.cuda.Stream]] = defaultdict(list)
    for member in members:
        if member.stream is not None:
            streams[member.stream.device].append(member.stream)
    for on_one in streams.values():
        meet(on_one)


def at_a_time(recipe: Recipe, dataset: DataSet, device: torch.device) -> int:
    """How many runs like this one a device trains at a time: one, but on a GPU more where the model is small, its
    images are held there, and its step is not cut into micro-batches, which are not captured.
    """
    small = recipe.model in SMALL_MODELS and isinstance(dataset.train.images, ArrayImages) and recipe.accumulate == 1
    return TOGETHER if small and device.type == "cuda" else 1


class Fleet:
    """Drives several trainers together, a step of each in turn.

    On a GPU each member's step is a CUDA graph on a stream of its own, so that the members' small kernels fill the GPU
    together; on a CPU they are trained one after the other. A fleet is only a way to execute: on disk there are runs,
    each in its own folder with its own checkpoints, and what was begun together may be finished apart, with the same
    result.

    Args:
        members: the trainers, each with a folder of its own; those whose run is done take no step.
        together: how many train at a time; when one is done, the next begins. Default: what :func:`at_a_time` says of
            all of them.
    """

    def __init__(self, members: Sequence[Trainer], together: int | None = None) -> None:
        self._given = together is not None
        self.together = 1 if together is None else check_integer("together", together, minimum=1)
        """How many train at a time."""
        self.members: list[Trainer] = []
        self.failures: list[tuple[Trainer, Exception]] = []
        """Members that ended with an error, and the error."""
        self._waiting: deque[Trainer] = deque()
        self.add(members)

    def add(self, members: Sequence[Trainer]) -> None:
        """Have others join between two steps: they begin before those that wait."""
        places = {member.folder.path.resolve() for member in self.members}
        for member in members:
            place = member.folder.path.resolve()
            if place in places:
                raise ValueError(f"Expected a folder for each member of a fleet, but got {member.folder.path} twice.")
            places.add(place)
        self.members.extend(members)
        if not self._given:
            self.together = min((at_a_time(one.recipe, one.dataset, one.device) for one in self.members), default=1)
        self._waiting.extendleft(reversed(members))

    def steps(self) -> Iterator[Trainer]:
        """Take a step of each member in turn until all are done; gives the member that took it.

        What goes wrong with one member is no reason to give up the others: it is kept in :attr:`failures`. Of several
        processes an error may be one's alone; then it is raised at once.
        """
        waiting = self._waiting
        running: deque[tuple[Trainer, Iterator[None]]] = deque()
        stopped: StoppedError | None = None
        turns = 0
        while running or (waiting and stopped is None):
            while waiting and stopped is None and len(running) < self.together:
                member = waiting.popleft()
                running.append((member, member.steps()))
            member, steps = running.popleft()
            try:
                if next(steps, _DONE) is _DONE:
                    continue
            except StoppedError as error:  # the others must have a chance to save where they are
                stopped = error
                for other, _ in running:
                    other.stop_asked = True
                continue
            except Exception as error:
                if member.ranks.world > 1 and not isinstance(error, NotFiniteError):  # about which all ranks agree
                    raise
                _let_go(error)
                self.failures.append((member, error))
                continue
            running.append((member, steps))
            turns += 1
            if turns >= ROUNDS * len(running):
                with suppress(RuntimeError):  # a member's, whose next step will raise it
                    keep_in_step(one for one, _ in running)
                turns = 0
            yield member
        if stopped is not None:
            raise stopped

    def run(self) -> None:
        """Train all members to the end; then the first of :attr:`failures` is raised."""
        for _ in self.steps():
            pass
        if self.failures:
            raise self.failures[0][1]


def _let_go(error: BaseException) -> None:
    """Empty the frames that an error went through, and those that led to it: they hold the member's model."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__


_DONE = object()
