"""Class-balanced samplers for the DataLoader of PyTorch.

This example shows how to draw rare classes more often with `EpochSampler`, in any training loop that has a
`DataLoader`, and how to stop in the middle of an epoch and continue with the same order. The labels are those of
long-tailed digits: 124 training images of 0, two of 9.
"""

import argparse
import json
from itertools import islice
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch.utils.data import DataLoader, TensorDataset

from longtail.data import ClassAware, EpochSampler, Progressive, SquareRoot, load

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out

# ## Data
#
# The data set is a usual one; its labels are all that a sampler needs.

train = load("digits-lt").train
images, labels = train.images.pixels, train.labels
data = TensorDataset(images, labels, torch.arange(len(labels)))
counts, epochs = labels.bincount(), 8

# ## One argument of the DataLoader
#
# Call `set_epoch` before each epoch. `ClassAware` draws all classes equally often, `SquareRoot` draws them in
# proportion to the square root of their counts, and `Progressive` goes from the shares of the data to equal shares.

samplers = {"ClassAware": ClassAware(), "SquareRoot": SquareRoot(), "Progressive": Progressive(epochs)}
figure, axes = plt.subplots(1, 3, figsize=(8.4, 3.4), sharey=True, layout="constrained")
colours = plt.get_cmap("Blues")(torch.linspace(0.3, 1, epochs).tolist())
for ax, (name, kind) in zip(axes, samplers.items(), strict=True):
    sampler = EpochSampler(labels, kind, seed=0)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        drawn = torch.cat([y for _, y, _ in loader]).bincount(minlength=10)
        shares = 100 * drawn / drawn.sum()
        ax.plot(shares, color=colours[epoch], label=f"epoch {epoch}" if epoch in (0, epochs - 1) else None)
        if epoch in (0, epochs - 1):
            print(f"{name}, epoch {epoch}: {shares[6:].sum():.0f} % of the images are of the four rarest classes")
    ax.plot(100 * counts / counts.sum(), "--", color="#555555", label="training data")
    ax.set(title=name, xlabel="digit", xticks=range(10))
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set(ylabel="share of the images drawn (%)", ylim=(0, None))
axes[-1].legend(frameon=False)
figure.savefig(out / "samplers.png", dpi=150)

# ## Stop and continue
#
# The state is a few numbers. A new sampler that loads it draws the rest of the epoch. With workers, the `DataLoader`
# is ahead of training: use `state_dict(position=...)` with the number of images that training has used.

whole = torch.cat([index for _, _, index in loader])  # the last epoch of Progressive
before = [index for _, _, index in islice(loader, 3)]
state = json.dumps(sampler.state_dict())
resumed = EpochSampler(labels, Progressive(epochs), seed=0)
resumed.load_state_dict(json.loads(state))
after = [index for _, _, index in DataLoader(data, batch_size=32, sampler=resumed)]
print(f"stopped after {len(before)} batches, same order: {torch.equal(torch.cat(before + after), whole)}")
