"""Our losses as the criterion of skorch, which treats subclasses of ``nn.CrossEntropyLoss`` as cross entropy."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from skorch.helper import predefined_split
from torch import nn
from torch.utils.data import TensorDataset

from longtail import ClassBalancedSoftmaxLoss, class_counts, shift_in_training

BETA = 1.5


def draw(sizes, seed):
    labels = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    x = torch.eye(3)[labels] + torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(seed))
    return x, labels


TRAIN, HELD_OUT = draw([60, 12, 3], 0), draw([20, 20, 20], 1)
COUNTS = class_counts(TRAIN[1], 3)


@pytest.mark.parametrize("hook", [False, True], ids=["loss", "hook"])
def test_losses_and_probabilities(hook):
    """Training has the shifted loss; the hook leaves the validation loss plain. Probabilities are of plain logits."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        before = layer(TRAIN[0])
    shift = BETA * COUNTS.log()
    if hook:
        shift_in_training(layer, COUNTS, beta=BETA)
        criterion = {"criterion": nn.CrossEntropyLoss}
    else:
        criterion = {"criterion": ClassBalancedSoftmaxLoss, "criterion__counts": COUNTS, "criterion__beta": BETA}
    net = NeuralNetClassifier(
        layer, **criterion, lr=0.5, max_epochs=2, batch_size=-1, train_split=predefined_split(TensorDataset(*HELD_OUT)),
        classes=[0, 1, 2], verbose=0,
    )  # fmt: skip
    net.fit(*TRAIN)
    wanted = nn.functional.cross_entropy(before + shift, TRAIN[1]).item()
    assert net.history[0, "train_loss"] == pytest.approx(wanted, rel=1e-5)
    with torch.no_grad():
        logits = layer.eval()(HELD_OUT[0])
    wanted = nn.functional.cross_entropy(logits if hook else logits + shift, HELD_OUT[1]).item()
    assert net.history[-1, "valid_loss"] == pytest.approx(wanted, rel=1e-5)
    np.testing.assert_allclose(net.predict_proba(HELD_OUT[0]), logits.softmax(1), rtol=1e-5)
    assert (net.predict(HELD_OUT[0]) == logits.argmax(1).numpy()).all()
