"""How fast the user's own small images are read, started on and trained on.

``read``: images/s of the first read of 32 x 32 JPEG and PNG files, by the clock and per second of processor time (which
other processes do not change), and of the second start from the cache. ``start``: seconds from the start of a process
until the first training step, cold and with the cache; the goal is 10 s for 20,000 images on two CPU cores. ``steps``:
training steps of ResNet-32 on files of several kinds against CIFAR's size in memory; a fleet of twelve on a GPU, one
model on a CPU. ``study``: a whole ``longtail study`` of twelve runs of ``--epochs`` epochs, cold and again.

Images are random colours at a quarter of their size, enlarged, in ten classes with an imbalance of 100. Pixels are
compared with Pillow's.

    python benchmarks/own_data.py [--only read start steps study] [--images 20000] [--epochs 10] [--out results.json]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from record import device_name, save, verdict
from timing import DEVICE, synchronise

from longtail.data import ArrayImages, DataSet, Split
from longtail.train import Fleet, Trainer, defaults
from longtail.train.fleet import TOGETHER
from longtail.train.own import in_memory, measure_images, open_own
from longtail.train.recipe import Recipe

START_GOAL = 10.0
KINDS = {
    "32 x 32 JPEG": (32, "jpg", "RGB"),
    "32 x 32 PNG": (32, "png", "RGB"),
    "32 x 32 grey PNG": (32, "png", "L"),
    "64 x 64 JPEG": (64, "jpg", "RGB"),
    "96 x 96 JPEG": (96, "jpg", "RGB"),
}
CIFAR = "CIFAR's size in memory"
FIRST_STEP = """
import sys, time
from longtail.train import Trainer
from longtail.train.launch import make_recipe
recipe = make_recipe({"data": sys.argv[1], "method": "softmax"}, sys.argv[2])
next(Trainer(recipe, sys.argv[2] + "/run").steps())
"""


def labels_of(number: int) -> "np.ndarray[Any, Any]":
    """Ten classes with an imbalance of 100."""
    weights = 100.0 ** (-np.arange(10) / 9)
    return np.sort(np.random.default_rng(0).choice(10, number, p=weights / weights.sum()))


def write_images(folder: Path, number: int, side: int, suffix: str, mode: str) -> Path:
    """A folder of class folders."""
    pixels = np.random.default_rng(1).integers(0, 256, (number, side // 4, side // 4, 3), dtype=np.uint8)
    for place, label in enumerate(labels_of(number)):
        target = folder / f"class{label}"
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[place]).resize((side, side)).convert(mode).save(target / f"{place:06}.{suffix}")
    return folder


def clocks() -> tuple[float, float]:
    """Seconds on the clock, and of processor time of this process and its ended children."""
    times = os.times()
    return time.perf_counter(), times.user + times.system + times.children_user + times.children_system


def check(dataset: DataSet, loaded: DataSet) -> None:
    """Compare pixels with Pillow's."""
    for place in range(0, len(dataset.train), max(1, len(dataset.train) // 50)):
        with Image.open(dataset.train.images.path(place)) as image:
            wanted = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
        if not torch.equal(loaded.train.images[place], wanted):
            raise SystemExit("wrong result: pixels differ from Pillow's")


def read(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """The first read, and the second start."""
    rows: dict[str, dict[str, float]] = {}
    for name in ("32 x 32 JPEG", "32 x 32 PNG"):
        path = write_images(folder / name.replace(" ", ""), given.images, *KINDS[name])
        for again, label in ((False, name), (True, f"{name}, second start")):
            forget()
            clock, processor = clocks()
            dataset = open_own(path)
            loaded = in_memory(dataset, folder / "cache")
            ended, used = (now - then for now, then in zip(clocks(), (clock, processor), strict=True))
            check(dataset, loaded)
            rows[label] = {"seconds": round(ended, 2), "images_per_second": round(given.images / ended)}
            rows[label]["images_per_processor_second"] = round(given.images / max(used, 0.01))
            what = "from the cache" if again else "from files"
            print(f"{label}, {what}: {ended:.2f} s, {rows[label]['images_per_second']:,} images/s, ", end="")
            print(f"{rows[label]['images_per_processor_second']:,} per second of processor time", flush=True)
            yield {"images": given.images, "rows": rows}


def forget() -> None:
    """Forget what this process has read."""
    from longtail.train import own  # noqa: PLC0415

    own._read.clear()
    own._described.clear()


def start(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Seconds until the first step of a new process."""
    path = write_images(folder / "start", given.images, *KINDS["32 x 32 JPEG"])
    rows = {}
    for name in ("first step, cold", "first step, with the cache"):
        clock, processor = clocks()
        subprocess.run([sys.executable, "-c", FIRST_STEP, str(path), str(folder / "runs")], check=True)
        ended, used = (now - then for now, then in zip(clocks(), (clock, processor), strict=True))
        rows[name] = {"seconds": round(ended, 1), "processor_seconds": round(used, 1)}
        reached = verdict(ended, START_GOAL, at_most=True)
        print(f"{name}: {ended:.1f} s (goal {START_GOAL:g} s: {reached}), {used:.1f} s of processor time")
        yield {"images": given.images, "goal": START_GOAL, "rows": rows}


def step_ms(make: Callable[[Path], Trainer], folder: Path, rounds: int) -> float:
    """Milliseconds per step and model; the median of five parts of the rounds."""
    number = TOGETHER if DEVICE == "cuda" else 1
    fleet = Fleet([make(folder / str(place)) for place in range(number)], number)
    steps = fleet.steps()
    for _ in islice(steps, 4 * number):
        pass
    times = []
    for _ in range(5):
        synchronise()
        begin = time.perf_counter()
        for _ in islice(steps, max(1, rounds // 5) * number):
            pass
        synchronise()
        times.append((time.perf_counter() - begin) / (max(1, rounds // 5) * number))
    steps.close()
    return 1000 * statistics.median(times)


def steps(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Steps of ResNet-32 with batches of 128, against CIFAR's size in memory."""
    number, rows = min(given.images, 2_000), {}
    settings = {"model": "resnet32", "batch_size": 128, "epochs": 100, "evaluate_every": 0, "checkpoint_minutes": 1e6}

    def trainer(recipe: Recipe, dataset: DataSet | None) -> Callable[[Path], Trainer]:
        return lambda out: Trainer(recipe.changed(**settings, checkpoint_epochs=0), out, dataset=dataset)

    pixels = torch.randint(256, (number, 3, 32, 32), dtype=torch.uint8)
    arrays = DataSet(
        "arrays", tuple(map(str, range(10))), Split(ArrayImages(pixels), torch.from_numpy(labels_of(number)))
    )
    makers = {CIFAR: trainer(defaults("arrays", "softmax", images=measure_images(arrays)), arrays)}
    for name, kind in KINDS.items():
        path = write_images(folder / f"steps {name}", number, *kind)
        recipe = defaults(str(path), "softmax").changed(augment="cifar", image_size=kind[0])
        makers[name] = trainer(recipe, None)
    for place, (name, make) in enumerate(makers.items()):
        milliseconds = step_ms(make, folder / f"fleet{place}", given.rounds)
        side = 32 if name == CIFAR else KINDS[name][0]
        ratio = milliseconds / rows[CIFAR]["ms"] if rows else 1.0
        rows[name] = {"ms": round(milliseconds, 3), "times": round(ratio, 2), "pixels": round((side / 32) ** 2, 2)}
        print(f"{name}: {milliseconds:.3f} ms per step, {ratio:.2f} times CIFAR's", flush=True)
        yield {"images": number, "models": TOGETHER if DEVICE == "cuda" else 1, "rows": rows}


def study(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """A study of twelve runs, cold and again."""
    path = write_images(folder / "study", given.images, *KINDS["32 x 32 JPEG"])
    words = ["study", "--data", path, "--methods", "softmax", "balanced-softmax", "ldam", "--seeds", 4]
    words += ["--epochs", given.epochs, "--batch-size", 128, "--model", given.model, "--out", folder / "twelve"]
    rows = {}
    for name in ("twelve runs, cold", "the same command again"):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "longtail", *map(str, words)], check=True, capture_output=True)
        rows[name] = {"seconds": round(time.perf_counter() - begin, 1)}
        print(f"{name}: {rows[name]['seconds']} s", flush=True)
        yield {"images": given.images, "epochs": given.epochs, "model": given.model, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"read": read, "start": start, "steps": steps, "study": study}
    parser.add_argument("--only", nargs="+", choices=tuple(parts), default=list(parts))
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=10, help="of the runs of the study")
    parser.add_argument("--model", default="resnet32", help="of the study")
    parser.add_argument("--rounds", type=int, default=200 if DEVICE == "cuda" else 10, help="steps that are measured")
    parser.add_argument("--out", type=Path, help="the JSON file for the results")
    given = parser.parse_args()
    print(f"{device_name()}, torch {torch.__version__}")
    measured: dict[str, Any] = {}
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder:
            for part in parts[name](given, Path(folder)):
                measured[name] = part
                save(given.out, measured)


if __name__ == "__main__":
    main()
