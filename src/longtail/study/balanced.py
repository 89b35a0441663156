"""Δp of a balanced model: one that was trained on all the data, asked about long-tailed training data."""

import tempfile
from dataclasses import replace

from longtail.metrics import probability_shift
from longtail.study.runs import Cell, Run
from longtail.study.stats import Summary, summarise
from longtail.train.files import read_tensors
from longtail.train.folder import RunFolder
from longtail.train.trainer import Trainer

__all__ = ["balanced_shift", "balanced_shift_of_run"]


def balanced_shift_of_run(run: Run, data: str, imbalance: float) -> dict[str, float]:
    """Relative difference of class probability and class frequency, in per cent, in each group.

    Args:
        run: of a model trained on balanced data; its model.safetensors is needed.
        data: the long-tailed data set, such as ``cifar10-lt``.
        imbalance: its imbalance factor.

    Returns:
        Δp of the groups on the long-tailed training split, taken as the run's ``train_stats`` says.
    """
    recipe = replace(run.recipe, data=data, imbalance=float(imbalance), validation=0.0, folds=0, fold=0)
    with tempfile.TemporaryDirectory() as nowhere:
        trainer = Trainer(recipe, RunFolder(nowhere))
        model = trainer.stages.build()
        state, _ = read_tensors(RunFolder(run.path).model_file)
        model.load_state_dict(state)
        if run.trained == "train_paper":
            found = trainer.measuring.as_trained(model, 0)
        else:
            found = trainer.measuring.of(model, trainer.dataset.train)
        return dict(probability_shift(found.probability_sum, found.samples, trainer.dataset.groups).groups)


def balanced_shift(cell: Cell, data: str, imbalance: float) -> dict[str, Summary]:
    """The same over the runs of a cell."""
    found = [balanced_shift_of_run(run, data, imbalance) for run in cell.runs]
    return {group: summarise([one[group] for one in found]) for group in found[0]}
