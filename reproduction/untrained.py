"""Networks before their first step, asked about the data that they are to learn: whom the gradient works for.

The paper's theorem on imbalanced gradients is about this state, and so, as far as its numbers tell, is its table of
them on the long-tailed sets. An untrained network follows from its seed, so no weights are needed; what it says of the
data is kept in ``untrained.json`` beside the softmax run that began with it.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from longtail._io import write_json
from longtail.classes import Groups, GroupValues
from longtail.losses import class_shift
from longtail.metrics import gradient_balance
from longtail.study.runs import Cell, Run
from longtail.study.stats import Summary, summarise
from longtail.train.recipe import Recipe, defaults
from reproduction import paper
from reproduction.asking import answers_in, asked_about, data_is_here, training_pass

__all__ = ["UNTRAINED_FILE", "balance_at_chance", "losses_of", "measure_untrained", "untrained_gradients"]

UNTRAINED_FILE = "untrained.json"
"""What an untrained network said of its training data, beside the run that began with it."""


def losses_of(recipe: Recipe) -> dict[str, float]:
    """The losses under which a network is asked, by their beta: CBS with that of the data set's recipe."""
    cbs = defaults(recipe.data, "cbs", recipe.imbalance).beta or 0.0
    return {"softmax": 0.0, "balanced-softmax": 1.0, "cbs": cbs}


def balance_at_chance(counts: Tensor, beta: float, groups: Groups) -> GroupValues:
    """The balance of a network that knows nothing, its logits all the same, in per cent.

    Args:
        counts: samples of each class.
        beta: of the loss; 0 is softmax.
        groups: to average over.

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


def measure_untrained(runs: Sequence[Run]) -> None:
    """Ask the networks with which softmax began, among runs, on data sets for which the paper has a gradient's balance.

    What was asked before is not asked again; one whose data is not here cannot be.
    """
    for run in runs:
        known = bool(paper.gradient_balance(run.data)) and run.recipe.imbalance is not None
        if known and run.recipe.method == "softmax" and not answers_in(run, UNTRAINED_FILE) and data_is_here(run):
            _ask(run)


def _ask(run: Run) -> None:
    betas = losses_of(run.recipe)
    with asked_about(run, trained=False) as (trainer, model):
        counts, groups = trainer.dataset.counts, trainer.dataset.groups
        found = {name: training_pass(trainer, model, class_shift(counts, beta)) for name, beta in betas.items()}
    balances = {}
    for name, one in found.items():
        assert one.weight_reward is not None
        assert one.weight_penalty is not None
        balances[name] = dict(gradient_balance(one.weight_reward, one.weight_penalty, groups).groups)
    plain = found["softmax"]
    write_json(
        run.path / UNTRAINED_FILE,
        {
            "train_stats": run.recipe.train_stats,
            "betas": betas,
            "probability": plain.probability_sum / plain.samples.sum(),
            "gradient_balance": balances,
            "at_chance": {name: dict(balance_at_chance(counts, beta, groups)) for name, beta in betas.items()},
        },
    )


def untrained_gradients(cell: Cell, key: str = "gradient_balance") -> Mapping[str, Mapping[str, Summary]]:
    """Balance of the gradient of each group under each loss, over a cell's runs that were asked; empty where none was.

    Args:
        cell: softmax's.
        key: ``"at_chance"``: that of :func:`balance_at_chance`.
    """
    found = [answer[key] for run in cell.runs if (answer := answers_in(run, UNTRAINED_FILE))]
    return {
        method: {group: summarise([one[method][group] for one in found]) for group in groups}
        for method, groups in (found[0] if found else {}).items()
    }
