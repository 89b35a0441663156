"""Balanced models, trained on all the data, asked about long-tailed training data: Δp.

A model is asked once; its answers stay beside it in ``balanced.json``, so that its weights are not needed again.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from longtail._io import write_json
from longtail.data import CATALOG
from longtail.metrics import probability_shift
from longtail.study.runs import Cell, Run
from longtail.study.stats import Summary, summarise
from longtail.train.recipe import Recipe
from reproduction.asking import answers_in, asked_about, can_be_asked, training_pass

__all__ = [
    "BALANCED_FILE",
    "balanced_of",
    "balanced_probability",
    "balanced_shift",
    "is_balanced",
    "measure_balanced",
]

BALANCED_FILE = "balanced.json"
"""What a balanced model said of long-tailed data, beside the model."""


def is_balanced(recipe: Recipe) -> bool:
    """Whether a run is on all of a data set that is made long-tailed here too."""
    return recipe.imbalance is None and f"{recipe.data}-lt" in CATALOG


def balanced_of(recipe: Recipe, cells: Iterable[Cell]) -> Cell | None:
    """The first cell with the balanced version of a long-tailed data set; ``None`` where there is none."""
    return next((one for one in cells if is_balanced(one.recipe) and f"{one.recipe.data}-lt" == recipe.data), None)


def measure_balanced(runs: Sequence[Run]) -> None:
    """Ask the balanced models among runs about the long-tailed data sets among them.

    What a model was asked before it is not asked again; one without its weights, or whose data is not here, cannot be.
    """
    for run in runs:
        if not is_balanced(run.recipe):
            continue
        known = answers_in(run, BALANCED_FILE)
        places = {one.data: one.recipe for one in runs if one.recipe.data == f"{run.recipe.data}-lt"}
        new = {name: recipe for name, recipe in places.items() if name not in known}
        if new and can_be_asked(run):
            known |= {name: _ask(run, recipe) for name, recipe in new.items()}
            write_json(run.path / BALANCED_FILE, known)


def _ask(run: Run, long_tailed: Recipe) -> dict[str, Any]:
    """What a balanced model says of a long-tailed training split, measured as the run's ``train_stats`` says."""
    names = ("data", "imbalance", "profile", "subset_seed")
    with asked_about(run, **{name: getattr(long_tailed, name) for name in names}) as (trainer, model):
        recipe, found = trainer.recipe, training_pass(trainer, model)
    shift = probability_shift(found.probability_sum, found.samples, trainer.dataset.groups)
    return {
        "subset_seed": recipe.seed if recipe.subset_seed == "run" else recipe.subset_seed,
        "train_stats": recipe.train_stats,
        "counts": found.samples,
        "probability": shift.probability,
        "probability_shift": dict(shift.groups),
    }


def balanced_shift(cell: Cell, data: str) -> dict[str, Summary]:
    """Δp of each group in per cent over a balanced cell's runs, on a data set as tables name it; empty if unknown."""
    found = [answer["probability_shift"] for run in cell.runs if (answer := answers_in(run, BALANCED_FILE).get(data))]
    return {group: summarise([one[group] for one in found]) for group in found[0]} if found else {}


def balanced_probability(cell: Cell, data: str) -> list[float]:
    """Class probability of each class, as its mean over a balanced cell's runs; empty where it is unknown."""
    found = [answer["probability"] for run in cell.runs if (answer := answers_in(run, BALANCED_FILE).get(data))]
    return [sum(column) / len(found) for column in zip(*found, strict=True)]
