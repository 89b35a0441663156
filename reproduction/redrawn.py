"""Softmax models asked about another draw of their long-tailed subset: Δp̂ on images that they have mostly not seen.

On the very images that a network was trained on Δp̂ is nearly zero: the gradient of the classifier's bias is
``N (p(y=c) - N_c / N)``, which training drives to zero. The paper's values are not; its authors draw the subset anew
from a seed, so a pass that draws once more sees other images. What a model says of those is kept in ``redrawn.json``.
"""

from collections.abc import Sequence

from longtail._io import write_json
from longtail.metrics import probability_shift, recall
from longtail.study.runs import Cell, Run
from longtail.study.stats import Summary, summarise
from reproduction import paper
from reproduction.asking import answers_in, asked_about, can_be_asked, training_pass

__all__ = ["REDRAWN_FILE", "measure_redrawn", "redrawn_shift"]

REDRAWN_FILE = "redrawn.json"
"""What a model said of another draw of its subset, beside the model."""


def measure_redrawn(runs: Sequence[Run]) -> None:
    """Ask the softmax models among runs, on data sets for which the paper has Δp̂, about the next seed's subset.

    What a model was asked before it is not asked again; one without its weights, or whose data is not here, cannot be.
    """
    for run in runs:
        known = run.data in paper.tables()["probability_shift_softmax"]
        drawn = run.recipe.method == "softmax" and run.recipe.subset_seed == "run"
        if known and drawn and not answers_in(run, REDRAWN_FILE) and can_be_asked(run):
            _ask(run)


def _ask(run: Run) -> None:
    seed = run.recipe.seed + 1
    with asked_about(run, subset_seed=seed) as (trainer, model):
        found, groups = training_pass(trainer, model), trainer.dataset.groups
    recalls = recall(found.correct, found.samples, groups)
    write_json(
        run.path / REDRAWN_FILE,
        {
            "subset_seed": seed,
            "train_stats": run.recipe.train_stats,
            "probability_shift": dict(probability_shift(found.probability_sum, found.samples, groups).groups),
            "recall": {"all": recalls.all, **recalls.groups},
        },
    )


def redrawn_shift(cell: Cell) -> dict[str, Summary]:
    """Δp̂ of each group in per cent on another draw, over a cell's runs that were asked; empty where none was."""
    found = [answer["probability_shift"] for run in cell.runs if (answer := answers_in(run, REDRAWN_FILE))]
    return {group: summarise([one[group] for one in found]) for group in found[0]} if found else {}
