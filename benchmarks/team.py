"""A fleet stepped by hand, so that its epochs can be timed: ``fleet.py`` and ``evaluation.py`` do."""

import gc
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from timing import synchronise

from longtail.kernels import chain
from longtail.train import RunFolder, Trainer, defaults
from longtail.train.fleet import ROUNDS, keep_in_step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FAST = {"precision": "bf16", "channels_last": True}
_DONE = object()


class Team:
    """Trainers on CIFAR-10-LT, a step of each in turn, as ``Fleet`` takes them.

    Members are driven through a first epoch when they join, which captures their graphs. They are kept in step,
    unless ``rounds`` is set to 0.
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
        """Have so many more join; seconds of their first epoch."""
        gc.collect()
        before, there = len(chain._plans), len(self.members)
        new = [
            Trainer(replace(self.recipe, seed=seed), RunFolder(Path(self.folder.name) / str(seed)))
            for seed in range(there, there + number)
        ]
        self.members += new
        self.turns |= {member: member.steps() for member in new}
        spent = self._drive(new, 1)
        planned = len(chain._plans) - before  # networks that the Triton kernels have run
        if DEVICE == "cuda" and planned != (number if self.recipe.kernels == "triton" else 0):
            asked = self.recipe.kernels
            print(
                f"WRONG: {planned} of {number} networks ran on Triton's kernels, but {asked} was asked for", flush=True
            )
        return spent

    def take(self, epochs: int | None = None, every: int = 0) -> float:
        """Seconds until all have taken so many more epochs, or are done, with an evaluation every so many."""
        for member in self.members:
            member.recipe = replace(member.recipe, evaluate_every=every)
        return self._drive(self.members, epochs)

    def step_seconds(self) -> float:
        """Seconds of a step and model, over an epoch of all."""
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
        """Give the memory back."""
        for turn in self.turns.values():
            turn.close()
        self.turns, self.members = {}, []
        gc.collect()
        self.folder.cleanup()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
