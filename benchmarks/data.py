"""How fast images come: resident on the device against the field's usual loader (PIL transforms, DataLoader workers).

Goals: CIFAR-10-sized images with crop and flip, at least 20 times the images/s of a PIL DataLoader with 8 workers on an
H200, 3 times that of one with 2 workers on two CPU cores.

How: correctness first (a resident batch holds crops of the padded images, normalised); then both loaders run whole
epochs of batches of 128 in turn, and the table has the median of each. Pixels are random; neither loader looks at them.

    python benchmarks/data.py [--images 50000] [--out results.json]
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from longtail.data import ArrayImages, Plan, Resident, Split
from longtail.data.augment import Compose, Normalise, RandomCrop, RandomFlip

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
BATCH = 128
GOAL = {"cuda": 20.0, "cpu": 3.0}
WORKERS = {"cuda": 8, "cpu": 2}


class PilDataset(Dataset):
    """The usual way: an array in memory, a PIL image and its transforms for each sample."""

    def __init__(self, split: Split) -> None:
        self.pixels = split.images.pixels.permute(0, 2, 3, 1).numpy()
        self.labels = split.labels.tolist()
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


def check(split: Split, loader: Resident) -> None:
    """Every image of a batch is a crop of its padded original, flipped or not."""
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    batch = next(loader.training(seed=0, epoch=0))
    padded = torch.nn.functional.pad(split.images.pixels[batch.indices[:8]], (4, 4, 4, 4))
    for image, original in zip(batch.views[0][:8].cpu().float(), padded, strict=True):
        pixels = ((image * std + mean) * 255).round().to(torch.uint8)
        windows = [original[:, t : t + 32, x : x + 32] for t in range(9) for x in range(9)]
        if not any(torch.equal(pixels, w) or torch.equal(pixels, w.flip(2)) for w in windows):
            raise SystemExit("wrong result: an image is no crop of its original")


def epoch_seconds(batches, device: str) -> float:
    """Seconds until all batches of an epoch are on the device."""
    start = time.perf_counter()
    for images, labels in batches:
        images.to(device, non_blocking=True)
        labels.to(device, non_blocking=True)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the results here, as JSON")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pixels = torch.randint(256, (arguments.images, 3, 32, 32), dtype=torch.uint8)
    split = Split(ArrayImages(pixels), torch.randint(10, (arguments.images,)))
    augment = Compose((RandomCrop(32, padding=4), RandomFlip(), Normalise(MEAN, STD)))
    resident = Resident(split, Plan(split.labels, (augment,), BATCH), device)
    check(split, resident)
    usual = DataLoader(
        PilDataset(split),
        BATCH,
        shuffle=True,
        num_workers=WORKERS[device],
        pin_memory=device == "cuda",
        persistent_workers=True,
    )
    seconds: dict[str, list[float]] = {"resident": [], "usual": []}
    for number in range(arguments.rounds + 1):
        batches = ((batch.views[0], batch.labels) for batch in resident.training(seed=0, epoch=number))
        times = {"resident": epoch_seconds(batches, device), "usual": epoch_seconds(usual, device)}
        if number:  # the first starts the workers
            for name, value in times.items():
                seconds[name].append(value)
    rate = {name: arguments.images / statistics.median(values) for name, values in seconds.items()}
    ratio = rate["resident"] / rate["usual"]
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    print(f"{name}, torch {torch.__version__}, {arguments.images} images of 32 x 32, batches of {BATCH}")
    print(f"PIL DataLoader, {WORKERS[device]} workers: {rate['usual']:>10,.0f} images/s")
    print(
        f"resident:                  {rate['resident']:>10,.0f} images/s, {ratio:.1f} times (goal {GOAL[device]:.0f})"
    )
    if arguments.out:
        result = {
            "command": "python benchmarks/data.py",
            "device": name,
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
            "images": arguments.images,
            "workers": WORKERS[device],
            "images_per_second": {key: round(value) for key, value in rate.items()},
            "ratio": round(ratio, 2),
            "goal": GOAL[device],
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
