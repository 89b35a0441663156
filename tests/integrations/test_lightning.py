"""The Lightning callbacks in the real Trainer: one process, two processes, and from a checkpoint."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from longtail import ClassBalancedSoftmaxLoss, Groups, class_counts, fit_shift
from longtail.integrations.lightning import AutoBetaCallback, GroupRecallCallback

GROUPS = Groups.from_indices(head=[0], tail=[1, 2])

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),  # advice
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning uses it
]


def draw(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    centres = torch.tensor([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])
    return centres[labels] + torch.randn(len(labels), 2, generator=generator), labels


TRAIN, HELD_OUT = draw([120, 20, 8], 0), draw([60, 60, 60], 1)
COUNTS = class_counts(TRAIN[1], 3)


class Module(pl.LightningModule):
    def __init__(self, beta=1.0):
        super().__init__()
        self.net = nn.Linear(2, 3)
        self.loss = ClassBalancedSoftmaxLoss(COUNTS, beta=beta)
        self.seen = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = self.loss(logits, y)
        shifted = logits + self.loss.beta * COUNTS.log()
        self.seen.append((loss.item(), nn.functional.cross_entropy(shifted, y).item()))
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        return {"logits": self(x), "labels": y}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.5)


def trainer(folder, callbacks, **options):
    settings = {"accelerator": "cpu", "devices": 1, "max_epochs": 3, "logger": False, "enable_progress_bar": False}
    settings |= {"enable_model_summary": False, "enable_checkpointing": False, "default_root_dir": folder}
    return pl.Trainer(**settings | options, callbacks=callbacks)


def loaders(batch_size=37):
    return DataLoader(TensorDataset(*TRAIN), batch_size), DataLoader(TensorDataset(*HELD_OUT), batch_size)


def test_recalls_and_beta(tmp_path):
    torch.manual_seed(0)
    module = Module(beta=0.0)
    callback = AutoBetaCallback(module.loss)
    run = trainer(tmp_path, [GroupRecallCallback(GROUPS), callback], max_epochs=2)
    run.fit(module, *loaders())
    for ours, formula in module.seen:
        assert ours == pytest.approx(formula, rel=1e-4)
    with torch.no_grad():
        logits = module.eval()(HELD_OUT[0])
    recalls = [(logits[HELD_OUT[1] == c].argmax(1) == c).float().mean().item() for c in range(3)]
    assert run.callback_metrics["val_recall_head"].item() == pytest.approx(recalls[0])
    assert run.callback_metrics["val_recall_tail"].item() == pytest.approx(sum(recalls[1:]) / 2)
    assert run.callback_metrics["val_recall"].item() == pytest.approx(sum(recalls) / 3)
    assert len(callback.auto.trace) == 2
    assert callback.auto.trace[-1].delta == pytest.approx(fit_shift(logits, HELD_OUT[1], COUNTS).delta, rel=1e-4)
    assert run.callback_metrics["beta"].item() == pytest.approx(module.loss.beta)
    assert module.loss.beta > 0
    run.validate(module, loaders()[1], verbose=False)
    assert len(callback.auto.trace) == 2


def test_resumed_run_equals_a_whole_one(tmp_path):
    ends = []
    for epochs, start in ((4, None), (2, None), (4, "half.ckpt")):
        torch.manual_seed(0)
        module = Module(beta=0.5)
        callback = AutoBetaCallback(module.loss)
        run = trainer(tmp_path, [callback], max_epochs=epochs)
        run.fit(module, *loaders(), ckpt_path=start and tmp_path / start, weights_only=True if start else None)
        if epochs == 2:
            run.save_checkpoint(tmp_path / "half.ckpt")
        ends.append((callback.auto.trace, module.loss.beta, module.net.weight.detach().clone()))
    (trace, beta, weight), _, (again, other, same) = ends
    assert len(trace) == 4
    assert again == trace
    assert other == beta
    assert torch.equal(same, weight)


def test_other_outputs_are_refused(tmp_path):
    class Wrong(Module):
        def validation_step(self, batch, batch_idx):
            return self(batch[0])

    with pytest.raises(TypeError, match="`validation_step`"):
        trainer(tmp_path, [GroupRecallCallback(GROUPS)]).fit(Wrong(), *loaders())


def run_rank():
    """Train as one of two processes, and print what the rank has found."""
    torch.manual_seed(0)
    module = Module(beta=0.5)
    callback = AutoBetaCallback(module.loss)
    run = trainer(os.environ["OUT"], [GroupRecallCallback(GROUPS), callback], devices=2, strategy="ddp", max_epochs=2)
    run.fit(module, *loaders(10))
    values = {name: value.item() for name, value in run.callback_metrics.items()}
    weights = [module.net.weight.tolist(), module.net.bias.tolist()]
    name = f"{run.global_rank}.json"
    Path(os.environ["OUT"], name).write_text(json.dumps([values, callback.auto.trace, module.loss.beta, weights]))


def test_two_processes_agree(tmp_path):
    """Both ranks have the recalls and the beta of all held-out data."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = os.environ | {"OUT": str(tmp_path), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_lightning as t; t.run_rank()"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=base | {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    (values, trace, beta, weights), other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert other == [values, trace, beta, weights]
    weight, bias = map(torch.tensor, weights)
    logits = HELD_OUT[0] @ weight.T + bias
    recalls = [(logits[HELD_OUT[1] == c].argmax(1) == c).float().mean().item() for c in range(3)]
    assert values["val_recall_head"] == pytest.approx(recalls[0])
    assert values["val_recall_tail"] == pytest.approx(sum(recalls[1:]) / 2)
    assert trace[-1][1] == pytest.approx(fit_shift(logits, HELD_OUT[1], COUNTS).delta, rel=1e-3)
    assert values["beta"] == pytest.approx(beta)
    assert beta != 0.5
