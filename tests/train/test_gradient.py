"""The gradient balance of a run is that of its loss, by autograd; where it would not be, it is left out."""

import pytest
import torch
from tests.train.conftest import mostly_slow, recipe_for, trained

from longtail.methods import METHODS, SupervisedLoss, Task
from longtail.metrics import gradient_balance
from longtail.models import Outputs
from longtail.train import RunFolder, evaluate_run
from longtail.train.dataset import open_data
from longtail.train.stored import stored_batches

KNOWN = {"softmax", "balanced-softmax", "cbs", "logit-adjust", "proco"}


def by_autograd(objective, logits, labels, classes):
    """Reward and penalty of the classifier's bias: the gradient of the samples of a class, and that of all others."""
    logits = logits.double().requires_grad_()
    outputs = Outputs(logits, torch.zeros(len(logits), 1), {})
    (gradient,) = torch.autograd.grad(objective(outputs, labels)["loss"], logits)
    own = torch.nn.functional.one_hot(labels, classes).bool()
    return -torch.where(own, gradient, 0.0).sum(0), torch.where(own, 0.0, gradient).sum(0)


@pytest.mark.parametrize("method", mostly_slow(METHODS, {"cbs", "class-balanced-weights", "bcl", "tau-norm"}))
def test_it_is_that_of_the_loss_or_left_out(tmp_path, method):
    given = {"classifier_epochs": 1, "tau": 1.0}
    given = {name: value for name, value in given.items() if name in METHODS[method].parameters}
    folder, result = trained(tmp_path / "run", method, epochs=2, **given)
    found = ["gradient_balance" in split for split in result["splits"].values()]
    assert set(found) == {method in KNOWN}
    again = evaluate_run(folder.path)
    assert ["gradient_balance" in split for split in again["splits"].values()] == found
    if method not in KNOWN:
        return
    recipe = recipe_for(method, epochs=2, **given)
    dataset = open_data(recipe)
    task = Task(dataset.counts, dataset.groups, 2, recipe.params, recipe.seed)
    objective = METHODS[method].stages[-1].objective(task)
    objective = objective if isinstance(objective, SupervisedLoss) else objective.classifier
    parts = list(stored_batches(folder.predictions_file, "train"))
    logits, labels = (torch.cat([part[place] for part in parts]) for place in range(2))
    expected = gradient_balance(*by_autograd(objective, logits, labels, dataset.num_classes), dataset.groups)
    assert result["splits"]["train"]["gradient_balance"]["bias"] == pytest.approx(dict(expected.groups), rel=1e-3)


@pytest.mark.parametrize(
    "settings", [{"sampler": "square-root"}, {"mixup": 0.3}, {"label_smoothing": 0.1}, {"drop_last": True}]
)
def test_it_is_left_out_if_training_changes_samples(tmp_path, settings):
    method = "softmax" if "sampler" in settings else "cbs"
    _, result = trained(tmp_path / "run", method, epochs=1, **settings)
    assert not any("gradient_balance" in split for split in result["splits"].values())
    assert RunFolder(tmp_path / "run").done
