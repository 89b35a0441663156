"""CIFAR-10-LT in a plain PyTorch training loop, with longtail's losses and metrics.

Claim: this script reaches the same recall as `longtail train --data cifar10-lt` without its trainer. Network
(ResNet-32, 464,154 parameters), data, augmentation and schedule are the same. The seed also draws the long-tailed
subset, as in `longtail train`; other random numbers differ, so the two should differ only as two seeds do.
n: 10,000 test images, 1,000 per class; one call is one run, and its last epoch is reported.
Result: `--method cbs --beta 1.8 --bf16`, seed 0, on an H200: recall 81.22 % over all classes (head 88.30, medium 75.30,
tail 80.35), I = 12.87 (training recalls in evaluation mode). Five runs of `longtail train` have 81.60 ± 0.24
(results/cifar10-lt); the 95 % prediction interval for a sixth is 80.9 to 82.3.

    longtail data get cifar10
    python examples/cifar_lt.py --method cbs --beta 1.8 [--imbalance 100] [--epochs 200] [--seed 0] [--bf16]
"""

import argparse
import time
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail import BalancedSoftmaxLoss, ClassBalancedSoftmaxLoss, Groups, class_counts
from longtail.data import load
from longtail.metrics import ClassStatistics, class_statistics, preference_scores, recall

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # the usual values
BATCH = 128


class Block(nn.Module):
    """Two convolutions with a skip connection, which adds channels of zeros if the width grows."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride, self.missing = outputs // inputs, outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, self.stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        side = self.missing // 2
        return F.relu(y + F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, side, side)))


class ResNet32(nn.Module):
    """The network of the CIFAR experiments (He et al., 2016): three stages of five blocks."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        widths = [16] * 6 + [32] * 5 + [64] * 5
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(*(Block(a, b) for a, b in pairwise(widths)))
        self.linear = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.blocks(F.relu(self.norm(self.conv(x)))).mean((2, 3)))


def read(root: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Pixels and labels of both splits. The files are pickles; longtail reads them without running code."""
    data = load("cifar10", root)
    return {name: (split.images.pixels, split.labels) for name, split in data.splits.items()}


def long_tailed(labels: Tensor, imbalance: float, seed: int) -> Tensor:
    """Indices of N_c = N_max IF^(-c / 9) images of each class c, drawn with one generator as in the literature."""
    random, kept = np.random.RandomState(seed), []
    for c in range(10):
        places = np.flatnonzero(labels.numpy() == c)
        random.shuffle(places)
        kept.append(places[: int(len(places) * imbalance ** (-c / 9) + 1e-9)])
    return torch.from_numpy(np.concatenate(kept))


def crop_and_flip(images: Tensor) -> Tensor:
    """Random crops of the images padded by 4 black pixels, half of them flipped; on the device, all at once."""
    number, _, side, _ = images.shape
    padded = F.pad(images, (4, 4, 4, 4))
    top, left = torch.randint(9, (2, number, 1), device=images.device)
    place = torch.arange(side, device=images.device)
    columns = torch.where(torch.rand(number, 1, device=images.device) < 0.5, place, side - 1 - place)
    each = torch.arange(number, device=images.device)[:, None, None]
    windows = padded.permute(0, 2, 3, 1)[each, (top + place)[:, :, None], (left + columns)[:, None, :]]
    return windows.permute(0, 3, 1, 2)


def normalised(images: Tensor) -> Tensor:
    """Normalise uint8 pixels."""
    mean, std = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (images / 255 - mean) / std


def learning_rate(epoch: int, epochs: int) -> float:
    """Warm-up over five epochs to 0.1; divided by 10 after 80 % of the epochs (160 of 200) and again after 90 %."""
    if epoch < 5:
        return 0.1 * (epoch + 1) / 5
    return 0.1 * 0.1 ** ((epoch >= round(0.8 * epochs)) + (epoch >= round(0.9 * epochs)))


def train(images: Tensor, labels: Tensor, loss: nn.Module, epochs: int, bf16: bool) -> nn.Module:
    """A plain training loop. The methods differ only in the loss."""
    model = ResNet32(num_classes=10).to(images.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for epoch in range(epochs):
        began, total = time.perf_counter(), torch.zeros((), device=images.device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(epoch, epochs)
        for batch in torch.randperm(len(labels), device=images.device).split(BATCH):
            with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
                logits = model(normalised(crop_and_flip(images[batch])))
            value = loss(logits.float(), labels[batch])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            total += value.detach() * len(batch)
        if epoch % 10 == 9 or epoch == epochs - 1:
            mean = float(total) / len(labels)  # the only wait for the device
            print(f"epoch {epoch + 1}: loss {mean:.4f}, {time.perf_counter() - began:.1f} s", flush=True)
    return model.eval()


@torch.no_grad()
def measure(model: nn.Module, images: Tensor, labels: Tensor, bf16: bool) -> ClassStatistics:
    """Class statistics of a split, which are all that the metrics need, added up over batches."""
    parts = []
    for some, target in zip(images.split(1000), labels.split(1000), strict=True):
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
            logits = model(normalised(some))
        parts.append(class_statistics(logits.float(), target))
    return sum(parts[1:], parts[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=("softmax", "balanced-softmax", "cbs"), default="cbs")
    parser.add_argument("--beta", type=float, default=1.8, help="for cbs; the paper uses 1.8 for imbalance 100")
    parser.add_argument(
        "--imbalance", type=float, default=100, help="images of the largest class divided by those of the smallest"
    )
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bf16", action="store_true", help="forward and backward in bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--root", default="data", help="the folder that contains cifar-10-batches-py")
    arguments = parser.parse_args()

    try:
        splits = read(arguments.root)
        kept = long_tailed(splits["train"][1], arguments.imbalance, arguments.seed)
        splits["train"] = (splits["train"][0][kept], splits["train"][1][kept])
        counts = class_counts(splits["train"][1], 10)
        losses = {
            "softmax": nn.CrossEntropyLoss(),
            "balanced-softmax": BalancedSoftmaxLoss(counts),
            "cbs": ClassBalancedSoftmaxLoss(counts, beta=arguments.beta),
        }
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    groups = Groups.from_indices(head=range(3), medium=range(3, 6), tail=range(6, 10))  # the groups of the paper
    splits = {name: tuple(each.to(arguments.device) for each in split) for name, split in splits.items()}
    print(f"{len(kept)} training images, {counts[0]} of the first class down to {counts[-1]}")

    torch.backends.cudnn.benchmark = True
    torch.manual_seed(arguments.seed)
    loss = losses[arguments.method].to(arguments.device)
    model = train(*splits["train"], loss, arguments.epochs, arguments.bf16)

    found = {name: measure(model, *split, arguments.bf16) for name, split in splits.items()}
    recalls = {name: recall(one.correct, one.samples, groups) for name, one in found.items()}
    for name, one in recalls.items():
        shown = {**one.groups, "all": one.all}
        print(f"{name:<5} recall %  " + "  ".join(f"{group} {100 * value:.2f}" for group, value in shown.items()))
    preference = preference_scores(recalls["train"].per_class, recalls["test"].per_class, groups)
    print(f"model imbalance level I {preference.level:.2f}")


if __name__ == "__main__":
    main()
