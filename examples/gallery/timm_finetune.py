"""A timm model with mixup and an average of its weights.

This example shows how Class-Balanced Softmax fits into the usual parts of a timm recipe: soft targets of mixup,
timm's optimiser and schedule, and `ModelEmaV3`. With `pretrained=True` this is fine-tuning; here nothing is
downloaded, so a tiny network starts from random weights. The data are long-tailed digits, enlarged to 32 x 32 pixels.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import timm
import torch
import torch.nn.functional as F
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import nn

from longtail import ClassBalancedSoftmaxLoss, class_counts
from longtail.data import load
from longtail.metrics import class_statistics, summary

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out

# ## Data

data = load("digits-lt")
x, test_x = (F.interpolate(split.images.pixels / 255, (32, 32)) for split in (data.train, data.test))
y, test_y = data.train.labels, data.test.labels
counts = class_counts(y, num_classes=10)

# ## Training
#
# `SoftTargetCrossEntropy` is what timm uses with mixup. `ClassBalancedSoftmaxLoss` takes its place and accepts class
# probabilities as targets.


def recalls(loss: nn.Module, epochs: int = 12) -> dict[str, float]:
    """Train a model and return the recall of its averaged weights by group."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - mixup draws from it
    model = timm.create_model("test_resnet", in_chans=1, num_classes=10, pretrained=False)
    optimizer = create_optimizer_v2(model, "adamw", lr=5e-3, weight_decay=0.05)
    schedule = CosineLRScheduler(optimizer, t_initial=epochs)
    average = ModelEmaV3(model, decay=0.9)
    mixup = Mixup(mixup_alpha=0.2, label_smoothing=0.0, num_classes=10)
    for epoch in range(epochs):
        for batch in torch.randperm(len(y))[: len(y) // 2 * 2].split(32):
            images, targets = mixup(x[batch].clone(), y[batch])
            optimizer.zero_grad()
            loss(model(images), targets).backward()
            optimizer.step()
            average.update(model)
        schedule.step(epoch + 1)
    with torch.no_grad():
        measures = summary(class_statistics(average.module.eval()(test_x), test_y), data.groups)
    return {name: 100 * value for name, value in measures.items() if name.startswith("recall")}


# ## Recall by group
#
# One seed, so differences of a few points say nothing.

losses = {
    "SoftTargetCrossEntropy": SoftTargetCrossEntropy(),
    "CBS, beta = 1": ClassBalancedSoftmaxLoss(counts, beta=1.0),
}
figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
for place, (name, loss) in enumerate(losses.items()):
    found = recalls(loss)
    print(f"{name}:", ", ".join(f"{key} {value:.1f} %" for key, value in found.items()))
    bars = axes.bar(
        np.arange(4) + 0.4 * place - 0.2, found.values(), 0.38, label=name, color=("#b8bec6", "#1f6feb")[place]
    )
    axes.bar_label(bars, fmt="%.0f", fontsize=8)
axes.set_xticks(range(4), ["all classes", *data.groups.names])
axes.set(ylabel="recall on test images (%)", ylim=(0, 108))
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside upper center", ncols=2, frameon=False)
figure.savefig(out / "timm_finetune.png", dpi=150)
