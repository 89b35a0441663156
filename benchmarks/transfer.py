"""How fast are a linear probe and fine-tuning? Beside scikit-learn, a plain PyTorch loop and timm's training step.

``probe``: ``longtail train features.npz --method balanced-softmax`` as a user runs it, from the start of the process to
the evaluated run, on N x 768 features of 1,000 classes (Gaussian, imbalance 100). Beside it, in this process: a plain
PyTorch loop with the same epochs, batches, optimiser and loss, and its features on the GPU; and scikit-learn's logistic
regression on ``--sklearn-rows`` of the rows. The recall over all classes shows that they learn the same.

``finetune``: images/s of ``--recipe finetune`` (AdamW, rates per layer, gradient clipping, bf16, channels_last) from
500 x 375 JPEG files, loading included, as a share of timm's own step (its model, its optimiser with the same rates per
layer, its gradient clipping, autocast, channels_last) on a batch that is in GPU memory. The goal is 0.95. Weights are
random; the photographs are those of imagenet.py, and each turn is an epoch of them.

    python benchmarks/transfer.py [--only probe finetune] [--rows 1000000] [--out results.json]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from imagenet import FILES, FILL, FIXED, Bench, Fixed, Steps, data_of, wrong_turns
from photographs import write_photographs
from record import device_name, save, verdict, warn
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from timing import DEVICE, synchronise
from timm.optim import create_optimizer_v2
from timm.utils import dispatch_clip_grad
from torch import Tensor, nn

from longtail import BalancedSoftmaxLoss, class_counts
from longtail.data.sampling.batch_plan import Batch
from longtail.data.sampling.samplers import Instance
from longtail.train import Recipe, RunFolder, defaults, measure_images

CLASSES, FEATURES, IMBALANCE = 1000, 768, 100
TEST = 20  # samples per class
GOAL = 0.95
OURS = "longtail, " + FILES
TIMM = "timm's step, " + FIXED


def make_features(rows: int) -> dict[str, Tensor]:
    """Features and labels of the training and the test data."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, FEATURES, generator=generator) / 6
    weights = IMBALANCE ** (-torch.arange(CLASSES) / (CLASSES - 1))
    drawn = torch.multinomial(weights, rows - CLASSES, replacement=True, generator=generator)
    of = {"train": torch.cat([torch.arange(CLASSES), drawn]), "test": torch.arange(CLASSES).repeat(TEST)}
    made = {f"{part}.labels": labels for part, labels in of.items()}
    for part, labels in of.items():
        made[f"{part}.features"] = torch.randn(len(labels), FEATURES, generator=generator).add_(centres[labels])
    return made


def probe(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Seconds of the command, of the plain loop and of scikit-learn."""
    data = make_features(given.rows)
    np.savez(folder / "features.npz", **{name: tensor.numpy() for name, tensor in data.items()})
    rows: dict[str, dict[str, float]] = {}

    def add(name: str, begin: float, recall: float, used: int) -> dict[str, Any]:
        rows[name] = {"seconds": round(time.perf_counter() - begin, 1), "recall": round(recall, 2), "rows": used}
        print(f"{name}: {rows[name]['seconds']:.1f} s, recall {recall:.1f}", flush=True)
        return {"features": FEATURES, "classes": CLASSES, "rows": rows}

    begin = time.perf_counter()
    words = ["train", folder / "features.npz", "--method", "balanced-softmax", "--validation", 0]
    words += ["--epochs", given.epochs, "--weight-decay", 0.1, "--out", folder / "run"]
    subprocess.run([sys.executable, "-m", "longtail", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    run = RunFolder(folder / "run")
    yield add("`longtail train`", begin, 100 * run.result()["splits"]["test"]["recall"]["all"], given.rows)

    begin = time.perf_counter()
    predicted = plain_loop(data, run.recipe())
    yield add("a plain PyTorch loop", begin, recall_of(predicted, data), given.rows)

    chosen = torch.randperm(given.rows, generator=torch.Generator().manual_seed(1))[: given.sklearn_rows]
    inputs, labels = data["train.features"][chosen].numpy(), data["train.labels"][chosen].numpy()
    begin = time.perf_counter()
    model = LogisticRegression(class_weight="balanced").fit(inputs, labels)
    predicted = torch.from_numpy(model.predict(data["test.features"].numpy()))
    yield add("scikit-learn's `LogisticRegression`", begin, recall_of(predicted, data), len(chosen))


def recall_of(predicted: Tensor, data: dict[str, Tensor]) -> float:
    """Over all classes, per cent: every class has as many test samples."""
    return 100 * (predicted.cpu() == data["test.labels"]).double().mean().item()


def plain_loop(data: dict[str, Tensor], recipe: Recipe) -> Tensor:
    """The predicted classes of the test data after the usual loop, as one writes it for data on the GPU."""
    inputs, labels = data["train.features"].to(DEVICE), data["train.labels"].to(DEVICE)
    mean, std = inputs.mean(0), inputs.std(0)
    model = nn.Linear(FEATURES, CLASSES).to(DEVICE)
    loss = BalancedSoftmaxLoss(class_counts(data["train.labels"], CLASSES)).to(DEVICE)
    optimizer = torch.optim.AdamW(
        [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}],
        lr=recipe.lr,
        weight_decay=recipe.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.epochs)
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(labels), device=DEVICE).split(recipe.batch_size):
            optimizer.zero_grad()
            loss(model((inputs[rows] - mean) / std), labels[rows]).backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        return model((data["test.features"].to(DEVICE) - mean) / std).argmax(1)


class FineTuning(Bench):
    """The step of ``--recipe finetune`` for one network."""

    def __init__(self, given: argparse.Namespace, model: str, folder: Path) -> None:
        dataset = data_of(write_photographs(folder, given.images))
        weights = folder / f"{model}.safetensors"
        save_file(timm.create_model(model).state_dict(), weights)
        settings = {"recipe": "finetune", "model": f"timm:{model}", "weights": str(weights)}
        usual = defaults("photographs", "softmax", images=measure_images(dataset), given=settings)
        self.recipe = usual.changed(
            **settings, batch_size=given.batch_size, image_size=given.size, workers=given.workers, drop_last=True,
            device=DEVICE, precision="bf16", channels_last=True,
        )  # fmt: skip
        super().__init__(given, dataset)

    def recipe_of(self, augment: str) -> Recipe:
        return replace(self.recipe, augment=augment)


class Reference:
    """timm's training step on one batch."""

    def __init__(self, name: str, recipe: Recipe, batch: Batch) -> None:
        self.recipe = recipe
        self.images = batch.views[0].to(memory_format=torch.channels_last)
        self.labels = batch.labels
        self.model = timm.create_model(name).to(DEVICE, memory_format=torch.channels_last).train()
        self.optimizer = create_optimizer_v2(
            self.model, "adamw", lr=1e-5, weight_decay=recipe.weight_decay, layer_decay=recipe.layer_decay
        )

    def __call__(self) -> None:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = nn.functional.cross_entropy(self.model(self.images), self.labels)
        self.optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(self.model.parameters(), self.recipe.clip_grad)
        self.optimizer.step()


def rate_of(step: Callable[[], object], steps: int, batch_size: int) -> float:
    """Images/s of a step."""
    for _ in range(FILL // 2):
        step()
    synchronise()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    synchronise()
    return steps * batch_size / (time.perf_counter() - begin)


def finetune(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Images/s of both, turn by turn."""
    rows: dict[str, dict[str, float]] = {}
    wrong: list[str] = []
    for model in given.models:
        (folder / model).mkdir()
        bench = FineTuning(given, model, folder / model)
        loader = bench.loaders("imagenet").training(("weak",), Instance(), drop_last=True)
        plan = Steps(loader.plan.steps, loader.plan.batch_size, loader.plan.labels)
        batch = next(iter(loader.training(0, 0)))
        reference = Reference(model, bench.recipe, batch)
        turns: dict[str, list[dict[str, float]]] = {FIXED: [], OURS: []}
        theirs = []
        for _ in range(given.rounds + 1):  # the first one is warm-up
            theirs.append(rate_of(reference, plan.steps, plan.batch_size))
            turns[FIXED].append(bench.turn(Fixed(batch, plan)))
            turns[OURS].append(bench.turn(loader))
        wrong += [f"{model}: {problem}" for problem in wrong_turns(turns)]
        timms = statistics.median(theirs[1:])
        rates = {name: statistics.median(one["rate"] for one in of[1:]) for name, of in turns.items()}
        for name, rate in ((TIMM, timms), (f"longtail's step, {FIXED}", rates[FIXED]), (OURS, rates[OURS])):
            rows[f"{model}, {name}"] = {"images_per_second": rate, "share": rate / timms}
            goal = f" (goal {GOAL}: {verdict(rate / timms, GOAL)})" if name == OURS else ""
            print(f"{model}, {name}: {rate:,.0f} images/s, share {rate / timms:.3f}{goal}", flush=True)
        warn(wrong)
        yield {"rows": rows, "batch_size": given.batch_size, "rounds": given.rounds, "wrong": wrong}
        del bench, reference, loader, batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"probe": probe, "finetune": finetune}
    parser.add_argument("--only", nargs="+", choices=tuple(parts), default=list(parts))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--sklearn-rows", type=int, default=20_000)
    parser.add_argument("--models", nargs="+", default=["vit_base_patch16_224", "resnet50"])
    parser.add_argument("--images", type=int, default=8_192)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=1e-4, help="of the turns from files")
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
