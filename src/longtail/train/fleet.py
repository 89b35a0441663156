"""The fleet: many small models trained at once on one GPU, each a run of its own."""

from collections.abc import Iterator, Sequence

from longtail.train.trainer import Trainer

__all__ = ["Fleet"]


class Fleet:
    """Drives several trainers together, a step of each in turn.

    On a GPU each member's step is a CUDA graph on a stream of its own, so that the members' small kernels fill the GPU
    together; on a CPU it is a plain loop. A fleet is only a way to execute: on disk there are runs, each in its own
    folder with its own checkpoints, and what was begun together may be finished apart, with the same result.

    Args:
        members: the trainers; those whose run is done take no step.
    """

    def __init__(self, members: Sequence[Trainer]) -> None:
        self.members = list(members)

    def steps(self) -> Iterator[Trainer]:
        """Take a step of each member in turn until all are done; gives the member that took it."""
        running = [(member, member.steps()) for member in self.members]
        while running:
            left = []
            for member, steps in running:
                try:
                    next(steps)
                except StopIteration:
                    continue
                left.append((member, steps))
                yield member
            running = left

    def run(self) -> None:
        """Train all members to the end."""
        for _ in self.steps():
            pass
