"""One changed line in a plain PyTorch loop.

This example shows how to use Class-Balanced Softmax in your own training loop: count the classes, replace the loss,
and predict as before. The data are the digits of scikit-learn with a long tail: 124 training images of 0, two of 9.
Test images are balanced.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

from longtail import ClassBalancedSoftmaxLoss, class_counts
from longtail.data import load

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out

# ## Data
#
# Any tensors of inputs and class indices will do. The counts are all that the loss needs to know about them.

data = load("digits-lt")
x, y = data.train.images.pixels.flatten(1) / 255, data.train.labels
test_x, test_y = data.test.images.pixels.flatten(1) / 255, data.test.labels
counts = class_counts(y, num_classes=10)

# ## The loop
#
# It is the usual one. Only the loss is an argument; prediction is `logits.argmax(1)` for both losses, because the
# shift is part of the loss and not of the model.


def recall_per_class(loss: nn.Module, seed: int) -> torch.Tensor:
    """Train a small network and return its recall on test images."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        for batch in torch.randperm(len(y)).split(32):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        right = model(test_x).argmax(1) == test_y
    return torch.stack([right[test_y == c].float().mean() for c in range(10)])


# ## Before and after
#
# Five seeds each. With `beta=1` the loss is Balanced Softmax, which is a good start; `AutoBeta` and `fit_shift` find
# a better beta on held-out data.

losses = {"nn.CrossEntropyLoss()": nn.CrossEntropyLoss()}
losses["ClassBalancedSoftmaxLoss(counts, beta=1)"] = ClassBalancedSoftmaxLoss(counts, beta=1.0)

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
for place, (name, loss) in enumerate(losses.items()):
    recalls = 100 * torch.stack([recall_per_class(loss, seed) for seed in range(5)])
    print(f"{name}: recall {recalls.mean():.1f} %, of the four rarest classes {recalls[:, 6:].mean():.1f} %")
    bars = torch.arange(10) + 0.4 * place - 0.2
    colour = ("#b8bec6", "#1f6feb")[place]
    axes.bar(bars, recalls.mean(0), 0.38, yerr=recalls.std(0), label=name, color=colour, ecolor="#555555")
axes.set_xticks(range(10), [f"{c}\n{n}" for c, n in enumerate(counts.tolist())])
axes.set(xlabel="digit, and its training images", ylabel="recall on test images (%)", ylim=(0, 105))
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside upper center", ncols=2, frameon=False)
figure.savefig(out / "plain_loop.png", dpi=150)
