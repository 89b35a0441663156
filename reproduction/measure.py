"""Measurements of models that the paper reports besides recall; ``python -m reproduction measure RUNS`` takes them.

Each is taken once and kept next to the run, so that the weights are not needed again:

- ``balanced.json``: a model trained on balanced data, evaluated on long-tailed training data (Δp).
- ``redrawn.json``: a softmax model, evaluated on another draw of its long-tailed subset (Δp̂). On the images that a
  network was trained on, Δp̂ is nearly zero: the gradient of the classifier's bias is ``N (p(y=c) - N_c / N)``, which
  training drives to zero. The paper's values are not zero; its authors draw the subset again in every pass.
- ``untrained.json``: the gradient balance of the network that a softmax run started from, which the paper's theorem on
  imbalanced gradients is about. The network follows from the seed, so no weights are needed.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail._io import read_tensors, write_json
from longtail.classes import Groups, GroupValues
from longtail.data import CATALOG
from longtail.losses import class_shift
from longtail.metrics import ClassStatistics, gradient_balance, probability_shift, recall
from longtail.models import Model
from longtail.study.runs import Cell, Run
from longtail.study.stats import Summary, summarise
from longtail.train.folder import RunFolder
from longtail.train.recipe import Recipe
from longtail.train.trainer import Trainer
from reproduction import paper

__all__ = [
    "BALANCED_FILE",
    "REDRAWN_FILE",
    "UNTRAINED_FILE",
    "balance_at_chance",
    "balanced_of",
    "balanced_probability",
    "balanced_shift",
    "is_balanced",
    "is_measured",
    "measure",
    "redrawn_shift",
    "untrained_gradients",
]

BALANCED_FILE, REDRAWN_FILE, UNTRAINED_FILE = "balanced.json", "redrawn.json", "untrained.json"


def measure(runs: Sequence[Run]) -> list[str]:
    """Take all measurements that are missing and possible, and return the files that were written.

    Trained models need their weights, and all models need their data on this machine.
    """
    written = []
    for run in runs:
        data = run.recipe.data
        if not (CATALOG[data].is_here(Path(run.recipe.root)) if data in CATALOG else Path(data).exists()):
            continue
        has_weights, is_softmax = RunFolder(run.path).model_file.exists(), run.recipe.method == "softmax"
        if is_balanced(run.recipe) and has_weights:
            long_tailed = {one.data: one.recipe for one in runs if one.recipe.data == f"{run.recipe.data}-lt"}
            written += _balanced(run, long_tailed)
        in_table = run.data in paper.tables()["probability_shift_softmax"]
        if in_table and is_softmax and run.recipe.subset_seed == "run" and has_weights:
            written += _redrawn(run)
        if paper.gradient_balance(run.data) and is_softmax and run.recipe.imbalance is not None:
            written += _untrained(run)
    return written


def is_balanced(recipe: Recipe) -> bool:
    """Whether a run uses all images of a data set that also has a long-tailed version."""
    return recipe.imbalance is None and f"{recipe.data}-lt" in CATALOG


def balanced_of(recipe: Recipe, cells: Iterable[Cell]) -> Cell | None:
    """The first cell that was trained on the balanced version of a long-tailed data set."""
    return next((one for one in cells if is_balanced(one.recipe) and f"{one.recipe.data}-lt" == recipe.data), None)


def balance_at_chance(counts: Tensor, beta: float, groups: Groups) -> GroupValues:
    """Gradient balance, in per cent, of a network whose logits are all equal.

    Example:
        >>> groups = Groups.from_indices(head=[0], tail=[1])
        >>> for beta in (0.0, 1.0):
        ...     found = balance_at_chance(torch.tensor([3, 1]), beta, groups)
        ...     print({name: round(value) for name, value in found.items()})
        {'head': 67, 'tail': -200}
        {'head': 0, 'tail': 0}
    """
    counts = counts.double()
    p = torch.softmax(beta * counts.log(), 0)
    return gradient_balance(counts * (1 - p), (counts.sum() - counts) * p, groups).groups


# --- Taking them


@contextmanager
def model_of(run: Run, *, trained: bool = True, **data: Any) -> Iterator[tuple[Trainer, Model]]:
    """A run's model, trained or as initialised, and a trainer whose data has the given settings. Trains nothing."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(replace(run.recipe, **data, validation=0.0, folds=0), RunFolder(folder))
        model = trainer.stages.build()
        if trained:
            model.load_state_dict(read_tensors(RunFolder(run.path).model_file)[0])
        yield trainer, model


def evaluate_training(trainer: Trainer, model: Model, shift: Tensor | None = None) -> ClassStatistics:
    """Class statistics on the trainer's training split, measured as the recipe's ``train_stats`` requires."""
    shift = None if shift is None else shift.to(trainer.device)
    split = "train_paper" if trainer.recipe.train_stats == "paper" else "train"
    return trainer.evaluator.statistics(model, split, shift=shift)


def _balanced(run: Run, long_tailed: Mapping[str, Recipe]) -> list[str]:
    known = _kept(run, BALANCED_FILE)
    new = {name: recipe for name, recipe in long_tailed.items() if name not in known}
    for name, other in new.items():
        data = {setting: getattr(other, setting) for setting in ("data", "imbalance", "profile", "subset_seed")}
        with model_of(run, **data) as (trainer, model):
            recipe, found = trainer.recipe, evaluate_training(trainer, model)
        shift = probability_shift(found.probability_sum, found.samples, trainer.dataset.groups)
        known[name] = {
            "subset_seed": recipe.seed if recipe.subset_seed == "run" else recipe.subset_seed,
            "train_stats": recipe.train_stats,
            "counts": found.samples,
            "probability": shift.probability,
            "probability_shift": dict(shift.groups),
        }
    return _keep(run, BALANCED_FILE, known) if new else []


def _redrawn(run: Run) -> list[str]:
    if is_measured(run, REDRAWN_FILE):
        return []
    seed = run.recipe.seed + 1
    with model_of(run, subset_seed=seed) as (trainer, model):
        found, groups = evaluate_training(trainer, model), trainer.dataset.groups
    recalls = recall(found.correct, found.samples, groups)
    content = {
        "subset_seed": seed,
        "train_stats": run.recipe.train_stats,
        "probability_shift": dict(probability_shift(found.probability_sum, found.samples, groups).groups),
        "recall": {"all": recalls.all, **recalls.groups},
    }
    return _keep(run, REDRAWN_FILE, content)


def _untrained(run: Run) -> list[str]:
    if is_measured(run, UNTRAINED_FILE):
        return []
    cbs = paper.beta(run.data)
    assert cbs is not None  # the paper has the data set
    betas = {"softmax": 0.0, "balanced-softmax": 1.0, "cbs": cbs}
    with model_of(run, trained=False) as (trainer, model):
        counts, groups = trainer.dataset.counts, trainer.dataset.groups
        found = {name: evaluate_training(trainer, model, class_shift(counts, beta)) for name, beta in betas.items()}
    balances = {}
    for name, one in found.items():
        assert one.weight_reward is not None
        assert one.weight_penalty is not None
        balances[name] = dict(gradient_balance(one.weight_reward, one.weight_penalty, groups).groups)
    content = {
        "train_stats": run.recipe.train_stats,
        "betas": betas,
        "probability": found["softmax"].probability_sum / found["softmax"].samples.sum(),
        "gradient_balance": balances,
        "at_chance": {name: dict(balance_at_chance(counts, beta, groups)) for name, beta in betas.items()},
    }
    return _keep(run, UNTRAINED_FILE, content)


def _keep(run: Run, name: str, content: Mapping[str, Any]) -> list[str]:
    write_json(run.path / name, content)
    return [str(run.path / name)]


# --- Reading them


def _kept(run: Run, name: str) -> dict[str, Any]:
    file = Path(run.path) / name
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


def is_measured(run: Run, name: str) -> bool:
    """Whether a run has the file of a measurement."""
    return (Path(run.path) / name).exists()


def _over_runs(found: Sequence[Mapping[str, float]]) -> dict[str, Summary]:
    return {group: summarise([one[group] for one in found]) for group in found[0]} if found else {}


def balanced_shift(cell: Cell, data: str) -> dict[str, Summary]:
    """Δp per group, in per cent, over the runs of a balanced cell; empty if no run was measured."""
    answers = [_kept(run, BALANCED_FILE).get(data) for run in cell.runs]
    return _over_runs([answer["probability_shift"] for answer in answers if answer])


def balanced_probability(cell: Cell, data: str) -> list[float]:
    """Mean predicted probability per class over the runs of a balanced cell; empty if no run was measured."""
    answers = [_kept(run, BALANCED_FILE).get(data) for run in cell.runs]
    found = [answer["probability"] for answer in answers if answer]
    return [sum(column) / len(found) for column in zip(*found, strict=True)]


def redrawn_shift(cell: Cell) -> dict[str, Summary]:
    """Δp̂ per group, in per cent, on another draw of the subset; empty if no run was measured."""
    return _over_runs([answer["probability_shift"] for run in cell.runs if (answer := _kept(run, REDRAWN_FILE))])


def untrained_gradients(cell: Cell, key: str = "gradient_balance") -> dict[str, dict[str, Summary]]:
    """Gradient balance per loss and group before training; ``key="at_chance"`` is that of equal logits."""
    found = [answer[key] for run in cell.runs if (answer := _kept(run, UNTRAINED_FILE))]
    return {method: _over_runs([one[method] for one in found]) for method in (found[0] if found else {})}
