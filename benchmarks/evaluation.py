"""What evaluation costs: class statistics of many samples and classes, the gradients' balance, and inside a fleet.

Goals, on one H200: 1.27 M samples of 1203 classes (LVIS) streamed to class statistics and all measures in constant
memory; the balance of gradients over an epoch costs no more than an evaluation pass; evaluation inside a fleet costs
under 10 % of training.

``stream``: correctness first (statistics of a few batches against one batch of all of them); then batches of features
go through a linear classifier (made on the device as they come) to the statistics, all sums included, once over a tenth
of the samples and once over all of them: peak memory beyond the inputs must be the same.
``balance``: correctness first (rewards and penalties of a batch against autograd, class by class); then passes of a
ResNet-32 over 12,406 images of CIFAR's size in evaluation mode: hits alone, which is what recall needs, and all
statistics, with the rewards and penalties of the classifier's weight: they may take one more pass, two in all.
``fleet``: twelve ResNet-32 on CIFAR-10-LT's size, random pixels, in one run: some epochs without evaluation, as many
with one, then the end of the runs, with all that they leave. The share is that of a run of 200 epochs with
``evaluate_every`` = 10. On a GPU with Triton's kernels and with cuDNN's.

    python benchmarks/evaluation.py [--only stream balance fleet] [--kernels triton torch] [--out out.json]
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from record import device_name, save, verdict
from reference_loop import random_cifar
from torch import Tensor

from longtail.classes import Groups
from longtail.data.plan import Batch
from longtail.metrics import ClassStatistics, class_statistics
from longtail.models import build_model
from longtail.ranks import Ranks
from longtail.train import RunFolder, Trainer, defaults
from longtail.train.evaluation import count_hits, pass_over
from longtail.train.replay import Replayed, look
from longtail.train.results import measures

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PARTS = ("stream", "balance", "fleet")
SAMPLES, CLASSES = 1_270_141, 1203
SHARE, EPOCHS, EVERY = 0.1, 200, 10


def synchronise() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds_of(run: Callable[[], object]) -> float:
    synchronise()
    begin = time.perf_counter()
    run()
    synchronise()
    return time.perf_counter() - begin


# --- many samples and classes


class Classifier:
    """A linear classifier of features that are made as they are asked for, labels by Zipf's law."""

    def __init__(self, classes: int, features: int) -> None:
        self.generator = torch.Generator(DEVICE).manual_seed(0)
        self.weight = torch.randn(classes, features, generator=self.generator, device=DEVICE) / features**0.5
        self.shares = (1 / torch.arange(1, classes + 1, device=DEVICE)).float()

    def batches(self, samples: int, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Logits, labels and features, float32."""
        for begin in range(0, samples, size):
            rows = min(size, samples - begin)
            features = torch.rand(rows, self.weight.shape[1], generator=self.generator, device=DEVICE)
            labels = torch.multinomial(self.shares, rows, replacement=True, generator=self.generator)
            yield features @ self.weight.T, labels, features


def gathered(batches: Iterator[tuple[Tensor, Tensor, Tensor]]) -> ClassStatistics:
    total: ClassStatistics | None = None
    for logits, labels, features in batches:
        found = class_statistics(logits, labels, features)
        total = found if total is None else total + found
    assert total is not None
    return total


def stream(given: argparse.Namespace) -> dict[str, Any]:
    source = Classifier(given.classes, given.features)
    few = list(source.batches(4 * 64, 64))
    whole = class_statistics(*(torch.cat(parts) for parts in zip(*few, strict=True)))
    for name, value in gathered(iter(few)).tensors().items():
        torch.testing.assert_close(value, whole.tensors()[name], rtol=1e-6, atol=1e-6)
    groups = Groups.from_indices(head=range(given.classes // 3), tail=range(given.classes // 3, given.classes))
    rows: dict[str, Any] = {}
    for samples in (given.samples // 10, given.samples):
        gathered(source.batches(2 * given.batch, given.batch))  # warms up
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if DEVICE == "cuda" else 0
        found: list[ClassStatistics] = []
        spent = seconds_of(
            lambda samples=samples, found=found: found.append(gathered(source.batches(samples, given.batch)))
        )
        alone = seconds_of(lambda samples=samples: [None for _ in source.batches(samples, given.batch)])
        begin = time.perf_counter()
        one = ClassStatistics(**{name: value.cpu() for name, value in found[0].tensors().items()})
        measures({"test": one}, groups, tuple(map(str, range(given.classes))), "eval")
        rows[str(samples)] = {
            "seconds": spent,
            "seconds_of_logits": alone,
            "samples_per_second": samples / spent,
            "peak_bytes": torch.cuda.max_memory_allocated() - before if DEVICE == "cuda" else None,
            "measures_seconds": time.perf_counter() - begin,
        }
        if int(one.samples.sum()) != samples:
            raise SystemExit(f"wrong result: {int(one.samples.sum())} samples of {samples}")
    (_, tenth), (name, full) = rows.items()
    print(f"\n{int(name):,} samples x {given.classes} classes, {given.features} features, batches of {given.batch}:")
    print(
        f"  {full['seconds']:.2f} s ({full['seconds_of_logits']:.2f} s to make the logits), "
        f"{full['samples_per_second']:,.0f} samples/s, all measures {full['measures_seconds']:.2f} s"
    )
    if full["peak_bytes"] is not None:
        growth = full["peak_bytes"] / tenth["peak_bytes"]
        held = int(name) * given.classes * 4
        print(
            f"  peak memory {full['peak_bytes'] / 1e6:.0f} MB (all logits would be {held / 1e6:,.0f} MB), of a tenth "
            f"of the samples {tenth['peak_bytes'] / 1e6:.0f} MB; constant: {verdict(growth, 1.01, at_most=True)}"
        )
    return {"classes": given.classes, "features": given.features, "batch": given.batch, "rows": rows}


# --- reward and penalty


def by_autograd(model: torch.nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Reward and penalty of the classifier's weight as gradients: one backward pass for each class's samples."""
    outputs = model(images)
    weight = model.head.weight
    reward, penalty = torch.zeros_like(weight), torch.zeros_like(weight)
    losses = F.cross_entropy(outputs.logits.float(), labels, reduction="none")
    for c in labels.unique().tolist():
        (gradient,) = torch.autograd.grad(losses[labels == c].sum(), weight, retain_graph=True)
        reward[c] -= gradient[c]
        gradient[c] = 0
        penalty += gradient
    return reward, penalty


def balance(given: argparse.Namespace) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (given.images, 3, 32, 32), dtype=torch.uint8, generator=generator).to(DEVICE)
    labels = torch.randint(10, (given.images,), generator=generator).to(DEVICE)
    model = build_model("resnet32", 10).to(DEVICE).eval()
    precision = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    alone = Ranks()

    def batches() -> Iterator[Batch]:
        for begin in range(0, given.images, 1000):
            here = slice(begin, begin + 1000)
            yield Batch((pixels[here] / 255 - 0.5,), labels[here], torch.arange(begin, begin + len(labels[here])))

    images, target = pixels[:128] / 255 - 0.5, labels[:128]
    exact = class_statistics(*plain(model, images, target))
    for name, value in zip(("weight_reward", "weight_penalty"), by_autograd(model, images, target), strict=True):
        error = float((value - exact.tensors()[name]).norm() / value.norm())
        if not error < 1e-3:
            raise SystemExit(f"wrong result: {name} errs by {error}")
    runs: dict[str, Callable[[Any], object]] = {
        "hits alone": lambda looking: count_hits(looking, batches(), 10, alone),
        "all class statistics": lambda looking: pass_over(looking, batches(), ranks=alone),
    }
    rows: dict[str, Any] = {}
    for way in ("eager", "replayed") if DEVICE == "cuda" else ("eager",):
        replayed = Replayed(model, precision) if way == "replayed" else None
        looking = replayed or partial(look, model, precision)
        context = torch.cuda.stream(replayed.stream) if replayed else torch.no_grad()
        with context:
            for run in (*runs.values(), *runs.values()):  # twice: a replayed pass is captured when it comes again
                run(looking)
            for name, run in runs.items():
                spent = statistics.median(seconds_of(partial(run, looking)) for _ in range(given.rounds))
                rows[f"{name}, {way}"] = {"seconds": spent}
        plainly = rows[f"hits alone, {way}"]["seconds"]
        ratio = rows[f"all class statistics, {way}"]["seconds"] / plainly
        rows[f"all class statistics, {way}"]["times_hits"] = ratio
        print(f"\nResNet-32, {given.images} images, {way}: hits alone {plainly:.3f} s", end="")
        print(f", all statistics {ratio:.2f} times that (goal 2, one more pass): {verdict(ratio, 2.0, at_most=True)}")
    return {"images": given.images, "rows": rows}


def plain(model: torch.nn.Module, images: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad():
        outputs = model(images)
    return outputs.logits, target, outputs.features


# --- inside a fleet


class Members:
    """A fleet's trainers, a step of each in turn, epoch by epoch."""

    def __init__(self, root: Path, folder: Path, number: int, kernels: str, **settings: Any) -> None:
        self.recipe = replace(
            defaults("cifar10-lt", "cbs", 100), root=str(root), evaluate_every=0, checkpoint_epochs=0,
            checkpoint_minutes=1e6, device=DEVICE, kernels=kernels, **settings,
        )  # fmt: skip
        self.members = [Trainer(replace(self.recipe, seed=s), RunFolder(folder / str(s))) for s in range(number)]
        self.turns = {member: member.steps() for member in self.members}
        self.done = 0

    def take(self, epochs: int | None = None, every: int = 0) -> float:
        """Seconds until all members have taken so many more epochs, or are done, with an evaluation every so many."""
        for member in self.members:
            member.recipe = replace(member.recipe, evaluate_every=every)
        self.done += epochs or 0
        begin = time.perf_counter()
        while self.turns and (epochs is None or min(member.epochs_done for member in self.members) < self.done):
            for member, turn in list(self.turns.items()):
                if next(turn, DONE) is DONE:
                    del self.turns[member]
        synchronise()
        return time.perf_counter() - begin


DONE = object()


def fleet(given: argparse.Namespace) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    fast = {"precision": "bf16", "channels_last": True}
    with tempfile.TemporaryDirectory() as temporary:
        root = random_cifar(Path(temporary) / "data", given.files)
        for kernels in given.kernels if DEVICE == "cuda" else ["torch"]:
            name = (
                f"{given.members}, {'Triton' if kernels == 'triton' else 'torch'}{' bf16' if DEVICE == 'cuda' else ''}"
            )
            name += ", as the paper's" if given.train_stats == "paper" else ""
            folder = Path(temporary) / kernels
            team = Members(
                root, folder, given.members, kernels, model=given.model, epochs=4 + 2 * given.window,
                train_stats=given.train_stats,
                **(fast if DEVICE == "cuda" else {}),
            )  # fmt: skip
            ready = team.take(1)
            team.take(2, every=1)  # a first look, and graphs at the second
            without = team.take(given.window)
            with_one = team.take(given.window, every=given.window)
            last = team.take()  # an epoch, and what a run leaves
            check_logs(team, given.window)
            epoch = without / given.window
            once, end = with_one - without, last - epoch
            run = EPOCHS // EVERY * once + end
            rows[name] = {
                "members": given.members, "kernels": kernels, "window": given.window,
                "ready_seconds": ready, "epoch_seconds": epoch, "evaluation_seconds": once, "end_seconds": end,
                "share_of_an_evaluation": once / (EVERY * epoch), "share_of_the_end": end / (EPOCHS * epoch),
                "share": run / (EPOCHS * epoch),
                "peak_bytes": torch.cuda.max_memory_reserved() if DEVICE == "cuda" else None,
            }  # fmt: skip
            print(
                f"\n{name}: {1e3 * epoch:.0f} ms an epoch of all, an evaluation {1e3 * once:.0f} ms, the end "
                f"{1e3 * end:.0f} ms; every {EVERY} epochs and at the end, of a run of {EPOCHS}: "
                f"{100 * rows[name]['share']:.1f} % of training (goal {100 * SHARE:.0f}): "
                f"{verdict(rows[name]['share'], SHARE, at_most=True)}",
                flush=True,
            )
            del team
            gc.collect()
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
    return {"rows": rows}


def check_logs(team: Members, every: int) -> None:
    """Every member was looked at when it should have been, and is done."""
    for member in team.members:
        lines = [json.loads(line) for line in member.folder.log_file.read_text().splitlines()]
        looked = [line["epoch"] + 1 for line in lines if "recall" in line]
        expected = [2, 3] + [e for e in range(4 + every, 4 + 2 * every) if e % every == 0]
        if looked != expected or not member.folder.done:
            raise SystemExit(f"wrong result: looked at {looked}, not at {expected}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--kernels", nargs="+", choices=("triton", "torch"), default=["triton", "torch"])
    parser.add_argument("--members", type=int, default=12)
    parser.add_argument("--train-stats", choices=("eval", "paper"), default="eval", help="of the members of a fleet")
    parser.add_argument("--window", type=int, default=10, help="epochs of a fleet that are timed, with one evaluation")
    parser.add_argument("--out", type=Path)
    sizes = parser.add_argument_group("sizes; smaller ones to try the script")
    gpu = DEVICE == "cuda"
    sizes.add_argument("--samples", type=int, default=SAMPLES if gpu else SAMPLES // 20)
    sizes.add_argument("--classes", type=int, default=CLASSES)
    sizes.add_argument("--features", type=int, default=2048 if gpu else 64)
    sizes.add_argument("--batch", type=int, default=4096 if gpu else 1024)
    sizes.add_argument("--images", type=int, default=12_406 if gpu else 1024)
    sizes.add_argument("--rounds", type=int, default=5 if gpu else 3)
    sizes.add_argument("--files", type=int, default=10_000, help="images of each of CIFAR-10's files")
    sizes.add_argument("--model", default="resnet32")
    given = parser.parse_args()
    print(f"{device_name()}, torch {torch.__version__}", flush=True)
    began = time.perf_counter()
    run = {"stream": stream, "balance": balance, "fleet": fleet}
    parts = {name: run[name](given) for name in given.only}
    print(f"\n{time.perf_counter() - began:.0f} s in all")
    save(given.out, parts)


if __name__ == "__main__":
    main()
