"""Lightning: beta found during training, and recall by group in the log.

This example shows how two callbacks work with any `LightningModule` whose `validation_step` returns logits and
labels: `GroupRecallCallback` logs recall by group, and `AutoBetaCallback` moves the beta of the loss until the
validation data show no need of another. Both work on several devices, and beta is part of checkpoints.
"""

import argparse
import logging
import warnings
from pathlib import Path

import lightning.pytorch as pl
import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from longtail import ClassBalancedSoftmaxLoss, Groups, class_counts
from longtail.integrations.lightning import AutoBetaCallback, GroupRecallCallback

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out
warnings.filterwarnings("ignore", module="lightning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

# ## Data
#
# Ten overlapping clouds of points in twenty dimensions, generated; 800 training points of the first class, 8 of the
# last.


def draw(sizes: list[int], seed: int) -> TensorDataset:
    """Return points and labels."""
    centres = 0.6 * torch.randn(10, 20, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(10).repeat_interleave(torch.tensor(sizes))
    return TensorDataset(
        centres[labels] + torch.randn(len(labels), 20, generator=torch.Generator().manual_seed(seed)), labels
    )


train = draw([int(800 * 0.6**c) for c in range(10)], seed=1)
val, test = draw([50] * 10, seed=2), draw([200] * 10, seed=3)
counts = class_counts(train.tensors[1], num_classes=10)

# ## The module
#
# The loss starts with beta 0, plain cross entropy, to show how the callback finds its way. Start with 1 in practice.


class Module(pl.LightningModule):
    """A network with one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
        self.loss = ClassBalancedSoftmaxLoss(counts, beta=0.0)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return self.loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], _: int) -> dict[str, Tensor]:
        return {"logits": self.net(batch[0]), "labels": batch[1]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


class Curves(pl.Callback):
    """Keeps what was logged, for the figure."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, _: pl.LightningModule) -> None:
        self.rows.append({name: value.item() for name, value in trainer.callback_metrics.items()})


# ## Training

torch.manual_seed(0)
model, curves, groups = Module(), Curves(), Groups.from_quantiles(counts)
auto = AutoBetaCallback(model.loss)
trainer = pl.Trainer(
    accelerator="cpu", max_epochs=20, callbacks=[GroupRecallCallback(groups), auto, curves], logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
)  # fmt: skip
trainer.fit(model, DataLoader(train, 64, shuffle=True), DataLoader(val, 500))

# ## Beta and recall over the epochs
#
# Test data is used once, at the end.

points, labels = test.tensors
right = (model.net(points).argmax(1) == labels).float()
print(f"beta {model.loss.beta:.2f}, recall on test data {100 * right.mean():.1f} %")
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
axes[0].plot([row["beta"] for row in curves.rows], color="#1f6feb")
axes[0].set(ylabel="beta", xlabel="epoch", ylim=0)
for name, colour in zip(groups.names, ("#b8bec6", "#8250df", "#1f6feb"), strict=True):
    axes[1].plot([100 * row[f"val_recall_{name}"] for row in curves.rows], label=name, color=colour)
axes[1].set(ylabel="recall on validation data (%)", xlabel="epoch", ylim=(0, 100))
axes[1].legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
for place in axes:
    place.spines[["top", "right"]].set_visible(False)
figure.savefig(out / "lightning_trainer.png", dpi=150)
