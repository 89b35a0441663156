"""A run's model, finished or untrained, asked about training data: its own, long-tailed data, another draw of it."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from longtail._io import read_tensors
from longtail.metrics import ClassStatistics
from longtail.models import Model
from longtail.study.plan import is_here
from longtail.study.runs import Run
from longtail.train.folder import RunFolder
from longtail.train.trainer import Trainer

__all__ = ["answers_in", "asked_about", "can_be_asked", "data_is_here", "training_pass"]


def can_be_asked(run: Run) -> bool:
    """Whether a run has its weights yet, and its data is on this machine."""
    return RunFolder(run.path).model_file.exists() and data_is_here(run)


def data_is_here(run: Run) -> bool:
    """Whether a run's data is on this machine."""
    return is_here(run.recipe.data, {"root": run.recipe.root})


def answers_in(run: Run, name: str) -> dict[str, Any]:
    """What a model was asked before, by the file of that name beside it; empty where it was not."""
    file = Path(run.path) / name
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


@contextmanager
def asked_about(run: Run, *, trained: bool = True, **data: Any) -> Iterator[tuple[Trainer, Model]]:
    """A run's model, and a trainer over some data, whose passes it can be sent through; nothing is trained.

    Args:
        run: whose model.
        trained: as it was at the end, rather than at the start.
        data: settings of the recipe that make other data than the run's.
    """
    with tempfile.TemporaryDirectory() as nowhere:
        trainer = Trainer(replace(run.recipe, **data, validation=0.0, folds=0), RunFolder(nowhere))
        model = trainer.stages.build()
        if trained:
            state, _ = read_tensors(RunFolder(run.path).model_file)
            model.load_state_dict(state)
        yield trainer, model


def training_pass(trainer: Trainer, model: Model, shift: Tensor | None = None) -> ClassStatistics:
    """A model's class statistics on the trainer's training split, measured as the recipe's ``train_stats`` says."""
    if shift is not None:
        shift = shift.to(trainer.device)
    if trainer.recipe.train_stats == "paper":
        return trainer.measuring.as_trained(model, 0, shift=shift)
    return trainer.measuring.of(model, trainer.dataset.train, shift=shift)
