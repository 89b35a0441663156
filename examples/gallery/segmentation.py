"""Segmentation: dense targets and pixel counts.

This example shows how to use Class-Balanced Softmax for a label per pixel: the counts are pixels per class, and the
loss takes logits of shape `(N, C, H, W)`. The images are generated: noisy discs, squares and crosses, of which the
small ones are rare.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import ListedColormap
from torch import Tensor, nn

from longtail import ClassBalancedSoftmaxLoss, class_counts

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out
NAMES = ("background", "disc", "square", "cross")

# ## Data
#
# A disc in every image, a small square in every third and a thin cross in every sixth. Classes differ a little in
# brightness, and the noise is strong, so that a pixel alone says little.


def draw(images: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images `(N, 1, 32, 32)` and labels `(N, 32, 32)`."""
    random = torch.Generator().manual_seed(seed)
    row, column = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    labels = torch.zeros(images, 32, 32, dtype=torch.int64)
    for number, label in enumerate(labels):
        for c, every in ((1, 1), (2, 3), (3, 6)):
            y, x = torch.randint(6, 26, (2,), generator=random).tolist()
            down, right = (row - y).abs(), (column - x).abs()
            shape = (
                down**2 + right**2 < 45,
                (down < 3) & (right < 3),
                ((down < 1) | (right < 1)) & (down + right < 4),
            )[c - 1]
            if number % every == 0:
                label[shape] = c
    pixels = torch.tensor([0.0, 0.9, 1.5, 2.1])[labels] + 0.4 * torch.randn(labels.shape, generator=random)
    return pixels[:, None], labels


x, y = draw(120, seed=0)
test_x, test_y = draw(120, seed=1)
counts = class_counts(y.flatten(), num_classes=4)  # pixels per class

# ## Training
#
# The loss is the only difference. `beta=0` is cross entropy.


def train(beta: float) -> Tensor:
    """Train a small convolutional network and return its predictions of the test images."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(16, 4, 3, padding=1))
    loss = ClassBalancedSoftmaxLoss(counts, beta=beta)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(25):
        for batch in torch.randperm(len(x)).split(20):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        return model(test_x).argmax(1)


# ## Intersection over union
#
# Cross entropy ignores the crosses. The whole shift, `beta=1`, finds nearly all of their pixels, and as many that are
# not theirs. Half of it is a compromise. Which beta is right depends on the price of the two errors; choose it on
# validation images.

found = {f"beta = {beta:g}": train(beta) for beta in (0.0, 0.5, 1.0)}
example = int((test_y == 3).flatten(1).sum(1).argmax())
figure, grid = plt.subplot_mosaic("01234;ccccc", figsize=(7, 4.2), height_ratios=[1, 1.6], layout="constrained")
chart, pictures = grid.pop("c"), list(grid.values())
pictures[0].imshow(test_x[example, 0], cmap="gray")
pictures[0].set_title("image")
colours = ListedColormap(["#f0f2f4", "#9ecbff", "#1f6feb", "#d1242f"])
for place, (title, labels) in zip(pictures[1:], {"truth": test_y, **found}.items(), strict=True):
    place.imshow(labels[example], cmap=colours, vmin=0, vmax=3)
    place.set_title(title)
for place in pictures:
    place.set_axis_off()
for (name, labels), colour in zip(found.items(), ("#b8bec6", "#8250df", "#1f6feb"), strict=True):
    both = [[(labels == c) & (test_y == c), test_y == c] for c in range(4)]
    recall = [100 * (a.sum() / b.sum()).item() for a, b in both]
    union = [100 * (a.sum() / (b | (labels == c)).sum()).item() for c, (a, b) in enumerate(both)]
    print(f"{name}: recall", *(f"{n} {r:.0f} %," for n, r in zip(NAMES, recall, strict=True)), end=" ")
    print("intersection over union", *(f"{n} {u:.0f} %" for n, u in zip(NAMES, union, strict=True)))
    chart.plot(range(4), union, "o-", label=name, color=colour)
chart.set_xticks(range(4), [f"{name}\n{n:,}" for name, n in zip(NAMES, counts.tolist(), strict=True)])
chart.set(xlabel="class, and its training pixels", ylabel="IoU on test images (%)", ylim=(0, 105))
chart.legend(frameon=False, loc="lower left")
chart.spines[["top", "right"]].set_visible(False)
figure.savefig(out / "segmentation.png", dpi=150)
