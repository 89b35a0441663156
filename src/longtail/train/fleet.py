"""The fleet: many small models trained at once on one GPU, each a run of its own."""

from collections import deque
from collections.abc import Iterator, Sequence

from longtail._arguments import check_integer
from longtail.train.trainer import NotFiniteError, StoppedError, Trainer

__all__ = ["Fleet"]


class Fleet:
    """Drives several trainers together, a step of each in turn.

    On a GPU each member's step is a CUDA graph on a stream of its own, so that the members' small kernels fill the GPU
    together; on a CPU they are trained one after the other. A fleet is only a way to execute: on disk there are runs,
    each in its own folder with its own checkpoints, and what was begun together may be finished apart, with the same
    result.

    Args:
        members: the trainers; those whose run is done take no step.
        together: how many train at a time; when one is done, the next begins. Default: 12 on a GPU, 1 elsewhere.
    """

    def __init__(self, members: Sequence[Trainer], together: int | None = None) -> None:
        self.members = list(members)
        if together is None:
            together = 12 if any(member.device.type == "cuda" for member in self.members) else 1
        self.together = check_integer("together", together, minimum=1)
        self._waiting = deque(self.members)

    def add(self, members: Sequence[Trainer]) -> None:
        """Have others join between two steps: they begin before those that wait."""
        self.members.extend(members)
        self._waiting.extendleft(reversed(members))

    def steps(self) -> Iterator[Trainer]:
        """Take a step of each member in turn until all are done; gives the member that took it."""
        waiting = self._waiting
        running: deque[tuple[Trainer, Iterator[None]]] = deque()
        stopped: StoppedError | None = None
        failed: NotFiniteError | None = None
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
            except NotFiniteError as error:  # which is no reason to give up the others
                failed = failed or error
                continue
            running.append((member, steps))
            yield member
        ended = stopped or failed
        if ended is not None:
            raise ended

    def run(self) -> None:
        """Train all members to the end."""
        for _ in self.steps():
            pass


_DONE = object()
