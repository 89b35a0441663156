"""Training of ImageNet's size: ResNet-50, batches of 256 at 224 pixels, bf16, channels_last, compiled.

Goals on one H200: from JPEG files at least 90 % of the images/s of the same step on a batch that is already in GPU
memory, so that an ImageNet-LT epoch of 115,846 images takes under 20 s.

First, batches on the GPU are compared with those of the same loader on the CPU, on photographs with colours of full
resolution (decoders spread colours of half the resolution differently). Then one model and one step, with the recipe of
ImageNet-LT, are driven from each source in turn: a batch in memory (with learning rate 0), and 500 x 375 JPEGs decoded
on the GPU. Each turn is an epoch of N photographs, 256 different files; its first steps fill the pipeline and are timed
separately. The loss must fall. Problems are printed and recorded, and the
timing goes on. ``imagenet`` augments like the recipe (resized crop, flip, colours), ``imagenet-plain`` without colours.
It takes about 100 s, most of it for compilation; results are saved after each round.

    python benchmarks/imagenet.py [--only check files] [--augment imagenet imagenet-plain] [--out out.json]
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from photographs import compare, show_levels, write_photographs
from record import device_name, save, verdict, warn
from timing import DEVICE as KIND
from timing import synchronise
from torch import Tensor

from longtail._ranks import Ranks
from longtail.classes import Groups
from longtail.data import BatchPlan, DataSet, Split, Streaming
from longtail.data.sampling.batch_plan import Batch
from longtail.data.sampling.samplers import Instance
from longtail.train import Recipe, defaults
from longtail.train.loaders import Loader, Loaders
from longtail.train.stages import Running, Stages

DEVICE = torch.device(KIND)
PARTS = ("check", "files")
SHARE, SECONDS, EPOCH = 0.9, 20.0, 115_846
FIXED = "a batch in GPU memory"
FILES = "JPEG files, decoded on the GPU"
FILL = 8  # steps until the pipeline is full


@dataclass
class Steps:
    """The attributes of a plan that a driver uses."""

    steps: int
    batch_size: int
    labels: Tensor


@dataclass
class Fixed:
    """A loader that always gives the same batch."""

    batch: Batch
    plan: Steps

    def training(self, seed: int, epoch: int, start: int = 0) -> Iterator[Batch]:  # noqa: ARG002 - like other loaders
        yield from (self.batch for _ in range(start, self.plan.steps))


def data_of(split: Split) -> DataSet:
    """A data set with one class per photograph, of a thousand classes."""
    labels = torch.arange(len(split)) % 256
    names = tuple(str(c) for c in range(1000))
    groups = Groups.from_indices(head=range(256), tail=range(256, 1000))
    return DataSet("photographs", names, Split(split.images, labels), cut=groups)


def recipe_of(given: argparse.Namespace, augment: str) -> Recipe:
    return replace(
        defaults("imagenet-lt", "softmax"),
        model=given.model, batch_size=given.batch_size, image_size=given.size, augment=augment, drop_last=True,
        workers=given.workers, device=DEVICE.type, compile=given.compile, warmup=0,
    )  # fmt: skip


def check(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Mean difference, in levels of 255, between batches on the device and on the CPU."""
    small = write_photographs(folder, min(32, given.images), subsampling=0)
    loaders = Loaders(recipe_of(given, "imagenet-plain"), data_of(small), DEVICE, Ranks())
    view = loaders.training(("weak",), Instance(), drop_last=False).plan.views[0]
    plan = BatchPlan(small.labels, (view,), 16)
    here, there = (
        Streaming(small, plan, device, workers=2, decode_in="device").training(3, 1)
        for device in (DEVICE, torch.device("cpu"))
    )
    level, wrong = compare("files", here, there, 0.225)
    levels = {"files": level}
    show_levels(levels)
    warn(wrong)
    return {"levels": levels, "wrong": wrong}


class Bench:
    """One model and one step, driven from any loader."""

    def __init__(self, given: argparse.Namespace, dataset: DataSet) -> None:
        self.given, self.dataset = given, dataset
        self.epoch = 0
        torch.backends.cudnn.benchmark = True
        stages = Stages(self.loaders("imagenet-plain"))
        model = stages.build()
        self.running: Running = stages.start(model, 0)
        model.train()
        self.step = self.running.step

    def recipe_of(self, augment: str) -> Recipe:
        return recipe_of(self.given, augment)

    def loaders(self, augment: str) -> Loaders:
        return Loaders(self.recipe_of(augment), self.dataset, DEVICE, Ranks())

    def turn(self, loader: Loader | Fixed) -> dict[str, float]:
        """Run an epoch: seconds until the pipeline is full, and images/s from then on.

        The momentum is reset: it grows even at learning rate 0, and the next turn would apply it.
        """
        steps, batch = loader.plan.steps, loader.plan.batch_size
        fill = min(FILL, steps // 2)
        self.step.loss_sum.zero_()
        self.step.taken.zero_()
        self.step.first_bad.fill_(-1)
        for state in self.step.optimizer.state.values():
            state.get("momentum_buffer", state.get("exp_avg")).zero_()
        self.step.set_rate(0.0 if isinstance(loader, Fixed) else self.given.lr)
        begin = time.perf_counter()
        driver = self.running.driver
        driver.loader = loader  # type: ignore[attr-defined]
        for number, _ in enumerate(driver.epoch(0, self.epoch, 0), 1):
            if number == fill:
                synchronise()
                full = time.perf_counter()
        synchronise()
        end = time.perf_counter()
        self.epoch += 1
        return {
            "fill": full - begin,
            "rate": (steps - fill) * batch / (end - full),
            "filled": fill * batch,
            "loss": float(self.step.loss_sum) / steps,
            "missing": steps - int(self.step.taken),
        }


def loaders_of(bench: Bench, given: argparse.Namespace) -> dict[str, Any]:
    """The sources by name, the batch in memory first."""
    loaders: dict[str, Any] = {
        f"{FILES}, {augment}": bench.loaders(augment).training(("weak",), Instance(), drop_last=True)
        for augment in given.augment
    }
    first = next(iter(loaders.values()))
    batch = next(iter(first.training(0, 0)))
    fixed = Fixed(batch, Steps(first.plan.steps, first.plan.batch_size, first.plan.labels))
    return {FIXED: fixed, **loaders}


def measure(bench: Bench, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run all sources in turn, and yield the results after each round."""
    loaders = loaders_of(bench, given)
    batch = loaders[FIXED].batch
    begin = time.perf_counter()
    bench.turn(Fixed(batch, replace(loaders[FIXED].plan, steps=3)))
    ready = time.perf_counter() - begin
    print(f"compiled after {ready:.0f} s", flush=True)
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in loaders}
    for number in range(given.rounds + 1):
        for name, loader in loaders.items():
            found = bench.turn(loader)
            turns[name].append(found)
            print(f"round {number}, {name}: {found['rate']:,.0f} images/s, loss {found['loss']:.3f}", flush=True)
        if number:  # the first one is warm-up
            yield {
                "rows": rows_of(turns), "rounds": number, "ready_seconds": ready, "wrong": wrong_turns(turns),
            }  # fmt: skip


def rows_of(turns: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, Any]]:
    """Medians of all turns except the first, the warm-up."""
    rows: dict[str, dict[str, Any]] = {}
    for name, (_, *of) in turns.items():
        rate = statistics.median(one["rate"] for one in of)
        fill = statistics.median(one["fill"] for one in of)
        seconds = fill + (EPOCH - of[0]["filled"]) / rate
        losses = [one["loss"] for one in turns[name]]
        rows[name] = {"images_per_second": rate, "fill_seconds": fill, "epoch_seconds": seconds, "losses": losses}
    for row in rows.values():
        row["share"] = row["images_per_second"] / rows[FIXED]["images_per_second"]
    return rows


def wrong_turns(turns: dict[str, list[dict[str, float]]]) -> list[str]:
    """Problems: missing steps, losses that are not finite or do not fall."""
    wrong = []
    for name, of in turns.items():
        losses = [one["loss"] for one in of]
        if any(one["missing"] for one in of):
            wrong.append(f"{name}: steps are missing")
        if not all(map(math.isfinite, losses)):
            wrong.append(f"{name}: a loss is not finite")
        elif name != FIXED and not losses[-1] < losses[0]:
            wrong.append(f"{name}: the loss did not fall, {', '.join(f'{loss:.3f}' for loss in losses)}")
    return wrong


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print the table with the goals."""
    print(f"\n{'':58}{'images/s':>10}{'share':>8}{'goal 0.90':>11}{'ImageNet-LT epoch':>19}{'goal 20 s':>11}")
    for name, row in rows.items():
        share, seconds = row["share"], row["epoch_seconds"]
        goals = ("", "") if name == FIXED else (verdict(share, SHARE), verdict(seconds, SECONDS, at_most=True))
        print(f"{name:58}{row['images_per_second']:10,.0f}{share:8.3f}{goals[0]:>11}{seconds:17.1f} s{goals[1]:>11}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--augment", nargs="+", choices=("imagenet", "imagenet-plain"), default=["imagenet-plain"])
    parser.add_argument("--images", type=int, default=12_288)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--out", type=Path)
    smaller = parser.add_argument_group("smaller sizes to try the script")
    smaller.add_argument("--model", default="resnet50")
    smaller.add_argument("--batch-size", type=int, default=256)
    smaller.add_argument("--size", type=int, default=224)
    smaller.add_argument("--no-compile", dest="compile", action="store_false")
    given = parser.parse_args()
    print(f"{device_name()}, torch {torch.__version__}, {given.model}, {given.images} photographs")
    began = time.perf_counter()
    parts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as checked:
        if "check" in given.only:
            parts["check"] = check(Path(checked), given)
            save(given.out, parts)
        if "files" in given.only:
            split = write_photographs(Path(folder), given.images)
            print(f"written after {time.perf_counter() - began:.0f} s", flush=True)
            for part in measure(Bench(given, data_of(split)), given):
                parts["training"] = part
                save(given.out, parts)
            show(parts["training"]["rows"])
        warn([sentence for part in parts.values() for sentence in part["wrong"]])
    print(f"{time.perf_counter() - began:.0f} s in total")


if __name__ == "__main__":
    main()
