"""Images/s of our loaders and of the usual one (PIL transforms, DataLoader workers).

Goals for CIFAR's size with crop and flip: resident images at least 20 times as fast as a PIL DataLoader with 8 workers
on an H200, 3 times as fast as one with 2 workers on two CPU cores. Goals for ImageNet's size (``--large``, on a GPU),
into augmented 224 x 224 bf16 batches: at least 6,000 images/s from 500 x 375 JPEG files (the PIL loader with 16 workers
reaches 3,500 to 5,300).

First, resident batches are checked to be normalised crops of the padded images. Then both loaders run whole epochs of
batches of 128 in turn, and the table shows medians. Pixels are random. With ``--large``, batches on the GPU are
compared with those of the same loader on the CPU, for training and for evaluation, on photographs with colours of full
resolution; problems are printed and recorded. Then N photographs, 256 different files, are loaded: four epochs per
loader, the median of the last three. It takes about two minutes with 12288. Parts that are left out keep their
committed results.

    python benchmarks/data.py [--only small large] [--images 50000] [--large 12288] [--out results.json]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from photographs import compare, show_levels, write_photographs
from PIL import Image
from record import device_name, save, warn
from reference_loop import MEAN, STD, Pictures
from timing import DEVICE, synchronise
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from longtail.data import ArrayImages, BatchPlan, Resident, Split, Streaming
from longtail.data.augment import CentreCrop, Compose, Normalise, RandomCrop, RandomFlip, RandomResizedCrop, Resize

BATCH = 128
GOAL = {"cuda": 20.0, "cpu": 3.0}
WORKERS = {"cuda": 8, "cpu": 2}
STREAMED = "JPEG files, decoded on the GPU"
LARGE_GOALS = {STREAMED: 6_000}
TRAINED = Compose((RandomResizedCrop(224), RandomFlip(), Normalise(MEAN, STD, torch.bfloat16)))
TESTED = Compose((Resize(256), CentreCrop(224), Normalise(MEAN, STD, torch.bfloat16)))


def check(split: Split, loader: Resident) -> None:
    """Check that every image of a batch is a crop of its padded original, flipped or not."""
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    batch = next(loader.training(seed=0, epoch=0))
    padded = torch.nn.functional.pad(split.images.pixels[batch.indices[:8]], (4, 4, 4, 4))
    for image, original in zip(batch.views[0][:8].cpu().float(), padded, strict=True):
        pixels = ((image * std + mean) * 255).round().to(torch.uint8)
        windows = [original[:, t : t + 32, x : x + 32] for t in range(9) for x in range(9)]
        if not any(torch.equal(pixels, w) or torch.equal(pixels, w.flip(2)) for w in windows):
            raise SystemExit("wrong result: an image is not a crop of its original")


def epoch_seconds(batches, device: str) -> float:
    """Seconds until all batches of an epoch are on the device."""
    start = time.perf_counter()
    for images, labels in batches:
        images.to(device, non_blocking=True)
        labels.to(device, non_blocking=True)
    synchronise()
    return time.perf_counter() - start


class PilFiles(Dataset):
    """The usual data set of files."""

    def __init__(self, split: Split) -> None:
        self.paths = [split.images.path(i) for i in range(len(split))]
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(224),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), 0


def small(arguments: argparse.Namespace, device: str) -> Iterator[dict[str, Any]]:
    """Images/s of CIFAR's size."""
    pixels = torch.randint(256, (arguments.images, 3, 32, 32), dtype=torch.uint8)
    split = Split(ArrayImages(pixels), torch.randint(10, (arguments.images,)))
    augment = Compose((RandomCrop(32, padding=4), RandomFlip(), Normalise(MEAN, STD)))
    resident = Resident(split, BatchPlan(split.labels, (augment,), BATCH), device)
    check(split, resident)
    usual = DataLoader(
        Pictures(split.images.pixels, split.labels),
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
        if number:  # the first one starts the workers
            for name, value in times.items():
                seconds[name].append(value)
    rate = {name: arguments.images / statistics.median(values) for name, values in seconds.items()}
    ratio = rate["resident"] / rate["usual"]
    print(f"{arguments.images} images of 32 x 32, batches of {BATCH}")
    print(f"PIL DataLoader, {WORKERS[device]} workers: {rate['usual']:>10,.0f} images/s")
    print(
        f"resident:                  {rate['resident']:>10,.0f} images/s, {ratio:.1f} times (goal {GOAL[device]:.0f})",
        flush=True,
    )
    yield {
        "images": arguments.images,
        "workers": WORKERS[device],
        "images_per_second": {key: round(value) for key, value in rate.items()},
        "ratio": round(ratio, 2),
        "goal": GOAL[device],
    }


def check_large(folder: Path, device: str, number: int = 32) -> dict[str, Any]:
    """Mean difference, in levels of 255, between batches on the device and on the CPU."""
    split = write_photographs(folder, number, subsampling=0)
    trained, tested = (BatchPlan(split.labels, (view,), 16) for view in (TRAINED, TESTED))

    def files(plan: BatchPlan) -> tuple[Streaming, Streaming]:
        there = Streaming(split, plan, "cpu")  # decoded and resized one by one
        return Streaming(split, plan, device, workers=2, decode_in="device"), there

    levels, wrong = {}, []
    for name, (here, there) in {
        "files": (one.training(3, 1) for one in files(trained)),
        "files, for evaluation": (one.evaluation() for one in files(tested)),
    }.items():
        levels[name], found = compare(name, here, there, torch.tensor(STD).view(3, 1, 1))
        wrong += found
    show_levels(levels)
    warn(wrong)
    return {"levels": levels, "wrong": wrong}


def large(arguments: argparse.Namespace, device: str, workers: int = 16) -> Iterator[dict[str, Any]]:
    """Images/s of ImageNet's size into 224 x 224 bf16 batches of 256, on a GPU; yield all rows so far after each."""
    number = arguments.large
    rows: dict[str, dict[str, int]] = {}

    def row(name: str, seconds: float) -> dict[str, Any]:
        goal = {"goal": LARGE_GOALS[name]} if name in LARGE_GOALS else {}
        rows[name] = {"images_per_second": round(number / seconds), **goal}
        against = f" (goal {goal['goal']:,})" if goal else ""
        print(f"224 x 224 bf16, {name}: {rows[name]['images_per_second']:,} images/s{against}", flush=True)
        return {"images": number, "rows": rows, **checked}

    with tempfile.TemporaryDirectory() as folder:
        checked = check_large(Path(folder), device)
    with tempfile.TemporaryDirectory() as folder:
        split = write_photographs(Path(folder), number)
        plan = BatchPlan(split.labels, (TRAINED,), 256)
        streaming = Streaming(split, plan, device, workers=workers, decode_in="device")
        tested = Streaming(split, BatchPlan(split.labels, (TESTED,), 256), device, workers=workers, decode_in="device")
        usual = DataLoader(
            PilFiles(split), 256, shuffle=True, num_workers=workers, pin_memory=True, persistent_workers=True
        )
        for name, epoch in (
            (STREAMED, lambda e: ((b.views[0], b.labels) for b in streaming.training(0, e))),
            (f"{STREAMED}, for evaluation", lambda _: ((b.views[0], b.labels) for b in tested.evaluation())),
            (f"JPEG files, PIL DataLoader, {workers} workers", lambda _: usual),
        ):
            seconds = [epoch_seconds(epoch(e), device) for e in range(4)]  # the first one is warm-up
            yield row(name, statistics.median(seconds[1:]))
    warn(checked["wrong"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("small", "large"), default=["small", "large"])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", type=int, metavar="N", help="also load N images of ImageNet's size, on a GPU")
    parser.add_argument("--out", type=Path, help="the JSON file for the results")
    arguments = parser.parse_args()
    device = DEVICE
    print(f"{device_name()}, torch {torch.__version__}")
    run = {"small": small, "large": large if arguments.large and device == "cuda" else lambda *_: ()}
    parts: dict[str, Any] = {}
    for name in arguments.only:
        for part in run[name](arguments, device):
            parts[name] = part
            save(arguments.out, parts)


if __name__ == "__main__":
    main()
