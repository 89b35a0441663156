"""The usual training loop for ResNet-32 on CIFAR-10-LT, written by us in the style of published code.

PIL images, torchvision's transforms image by image, a DataLoader whose 8 workers start again in every epoch, float32,
eager, SGD; loss and accuracy are read after every step for display. ``fleet.py`` compares with it.

    python benchmarks/reference_loop.py [--root data] [--epochs 2] [--workers 8]

``--root`` is a folder with CIFAR-10's pickles; without it, pixels are random.
"""

import argparse
import pickle
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from timing import DEVICE
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from longtail.data import load
from longtail.data.datasets.cifar import CIFAR10_BATCHES
from longtail.models import build_model

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


class Pictures(Dataset[tuple[Tensor, int]]):
    """Images in memory; each becomes a PIL image and is transformed on access."""

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.data = pixels.permute(0, 2, 3, 1).contiguous().numpy()
        self.targets = labels.tolist()
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


def random_cifar(folder: Path, images: int = 10_000) -> Path:
    """Write CIFAR-10's files with random pixels, ``images`` per file, and return the folder."""
    generator = np.random.default_rng(0)
    labels = [index % 10 for index in range(images)]
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    (batches / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(c) for c in range(10)]}))
    for name in CIFAR10_BATCHES:
        pixels = generator.integers(256, size=(images, 3 * 32 * 32), dtype=np.uint8)
        (batches / name).write_bytes(pickle.dumps({"labels": labels, "data": pixels}, protocol=3))
    return folder


def epochs_of(root: Path, epochs: int, workers: int = 8, device: str = "cuda") -> list[float]:
    """Train, and return the seconds of each epoch."""
    train = load("cifar10-lt", root, imbalance=100).train
    loader = DataLoader(
        Pictures(train.images.pixels, train.labels),  # type: ignore[attr-defined]
        batch_size=128, shuffle=True, num_workers=workers, pin_memory=device == "cuda",
    )  # fmt: skip
    torch.backends.cudnn.benchmark = True
    model = build_model("resnet32", 10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    seconds = []
    for _ in range(epochs):
        begin = time.perf_counter()
        model.train()
        losses, right = 0.0, 0.0
        for images, labels in loader:
            inputs, target = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            logits = model(inputs).logits
            loss = F.cross_entropy(logits, target)
            losses += loss.item() * len(target)
            right += (logits.argmax(1) == target).float().sum().item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = given.root or random_cifar(Path(temporary))
        found = epochs_of(root, given.epochs, given.workers, DEVICE)
    print("seconds per epoch:", ", ".join(f"{one:.2f}" for one in found))


if __name__ == "__main__":
    main()
