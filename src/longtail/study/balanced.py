"""Balanced models, trained on all the data, asked about long-tailed training data: Δp, and whom gradients work for.

A model is asked once; its answers stay beside it in ``balanced.json``, so that its weights are not needed again.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from longtail.classes import Groups
from longtail.data import CATALOG
from longtail.losses import class_shift
from longtail.metrics import ClassStatistics, gradient_balance, probability_shift
from longtail.study.asking import answers_in, asked_about, can_be_asked, training_pass
from longtail.study.runs import Cell, Run
from longtail.study.stats import Summary, summarise
from longtail.train.files import write_json
from longtail.train.recipe import Recipe, defaults

__all__ = [
    "BALANCED_FILE",
    "balanced_gradients",
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
    """What a balanced model says of a long-tailed training split, measured as the run's ``train_stats`` says.

    The gradient's balance is that under each loss, as if the model were to be trained on with it.
    """
    names = ("data", "imbalance", "profile", "subset_seed")
    cbs = defaults(long_tailed.data, "cbs", long_tailed.imbalance).knobs["beta"]
    betas = {"softmax": 0.0, "balanced-softmax": 1.0, "cbs": cbs}
    with asked_about(run, **{name: getattr(long_tailed, name) for name in names}) as (trainer, model):
        recipe, counts = trainer.recipe, trainer.dataset.counts
        found = {name: training_pass(trainer, model, class_shift(counts, beta)) for name, beta in betas.items()}
    plain = found["softmax"]  # a shift is of the loss: probabilities are the same in all passes
    shift = probability_shift(plain.probability_sum, plain.samples, trainer.dataset.groups)
    return {
        "subset_seed": recipe.seed if recipe.subset_seed == "run" else recipe.subset_seed,
        "train_stats": recipe.train_stats,
        "counts": plain.samples,
        "probability": shift.probability,
        "probability_shift": dict(shift.groups),
        "betas": betas,
        "gradient_balance": {name: _balance(one, trainer.dataset.groups) for name, one in found.items()},
    }


def _balance(found: ClassStatistics, groups: Groups) -> dict[str, float]:
    if found.weight_reward is None or found.weight_penalty is None:
        return {}
    return dict(gradient_balance(found.weight_reward, found.weight_penalty, groups).groups)


def balanced_shift(cell: Cell, data: str) -> dict[str, Summary]:
    """Δp of each group in per cent over a balanced cell's runs, on a data set as tables name it; empty if unknown."""
    found = [answer["probability_shift"] for run in cell.runs if (answer := answers_in(run, BALANCED_FILE).get(data))]
    return {group: summarise([one[group] for one in found]) for group in found[0]} if found else {}


def balanced_probability(cell: Cell, data: str) -> list[float]:
    """Class probability of each class, as its mean over a balanced cell's runs; empty where it is unknown."""
    found = [answer["probability"] for run in cell.runs if (answer := answers_in(run, BALANCED_FILE).get(data))]
    return [sum(column) / len(found) for column in zip(*found, strict=True)]


def balanced_gradients(cell: Cell, data: str) -> dict[str, dict[str, Summary]]:
    """Balance of the gradient of each group under each loss, over a balanced cell's runs; empty where it is unknown."""
    found = [answer["gradient_balance"] for run in cell.runs if (answer := answers_in(run, BALANCED_FILE).get(data))]
    return {
        method: {group: summarise([one[method][group] for one in found]) for group in groups}
        for method, groups in (found[0] if found else {}).items()
    }
