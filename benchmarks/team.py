"""A fleet that is driven epoch by epoch, so that its epochs can be timed (``fleet.py``, ``evaluation.py``)."""

import gc
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from record import warn
from timing import DEVICE, synchronise

from longtail.kernels import chain
from longtail.train import RunFolder, Trainer, defaults
from longtail.train.fleet import ROUNDS, keep_in_step

FAST = {"precision": "bf16", "channels_last": True}
_DONE = object()


class Team:
    """Trainers on CIFAR-10-LT that take one step each in turn, like ``Fleet``.

    New members first train an epoch, which captures their graphs. Members are kept in step, unless ``rounds`` is 0.
    """

    rounds = ROUNDS

    def __init__(self, root: Path, number: int, kernels: str, **settings: Any) -> None:
        self.recipe = replace(
            defaults("cifar10-lt", "cbs", 100),
            root=str(root), evaluate_every=0, checkpoint_epochs=0, checkpoint_minutes=1e6, device=DEVICE,
            kernels=kernels, **settings,
        )  # fmt: skip
        self.folder = tempfile.TemporaryDirectory()
        self.members: list[Trainer] = []
        self.turns: dict[Trainer, Iterator[None]] = {}
        self.ready = self.add(number)

    def add(self, number: int) -> float:
        """Add members, and return the seconds of their first epoch."""
        gc.collect()
        before, first = len(chain._plans), len(self.members)
        new = [
            Trainer(replace(self.recipe, seed=seed), RunFolder(Path(self.folder.name) / str(seed)))
            for seed in range(first, first + number)
        ]
        self.members += new
        self.turns |= {member: member.steps() for member in new}
        spent = self._drive(new, 1)
        planned = len(chain._plans) - before  # networks that ran with the Triton kernels
        kernels = self.recipe.kernels
        if DEVICE == "cuda" and planned != (number if kernels == "triton" else 0):
            warn([f"{planned} of {number} networks ran with the Triton kernels, but `kernels` is {kernels}"])
        return spent

    def take(self, epochs: int | None = None, every: int = 0) -> float:
        """Train all members and return the seconds.

        Args:
            epochs: how many; default: until the end of the runs.
            every: epochs between evaluations; 0: none.
        """
        for member in self.members:
            member.recipe = replace(member.recipe, evaluate_every=every)
        return self._drive(self.members, epochs)

    def step_seconds(self) -> float:
        """Seconds per step and model, over one epoch of all members."""
        return self.take(1) / (len(self.members) * self.members[0].loaders.steps_per_epoch)

    def _drive(self, members: list[Trainer], epochs: int | None) -> float:
        goals = {member: None if epochs is None else member.epochs_done + epochs for member in members}
        begin = time.perf_counter()
        rounds = 0
        while left := [m for m, goal in goals.items() if m in self.turns and (goal is None or m.epochs_done < goal)]:
            for member in left:
                if next(self.turns[member], _DONE) is _DONE:
                    del self.turns[member]
            rounds += 1
            if self.rounds and rounds % self.rounds == 0:
                keep_in_step(left)
        synchronise()
        return time.perf_counter() - begin

    def close(self) -> None:
        """Free the memory."""
        for turn in self.turns.values():
            turn.close()
        self.turns, self.members = {}, []
        gc.collect()
        self.folder.cleanup()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
