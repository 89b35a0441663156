"""Cost of evaluation: class statistics of many samples, the balance of gradients, and evaluation inside a fleet.

Goals on one H200: 1.27 M samples of 1203 classes (LVIS) streamed to class statistics and all measures in constant
memory; the balance of gradients costs no more than one more evaluation pass; evaluation inside a fleet costs under 10 %
of training.

``stream``: the statistics of some batches are checked against those of one large batch. Then features go through a
linear classifier (made on the device, batch by batch) to class statistics, for a tenth of the samples and for all: peak
memory must be the same. On a CPU it is the growth of the largest resident set, which only shows whether something of
the size of all logits is kept.
``balance``: rewards and penalties of a batch are checked against autograd, class by class. Then a ResNet-32 evaluates
12,406 images: hits alone, which is all that recall needs, and all statistics, which may take two passes.
``fleet``: twelve ResNet-32 on random pixels of CIFAR-10-LT's size. Windows of epochs without evaluation and with one
every other epoch alternate; then the runs end, with everything that they write. An evaluation costs the difference
between the two windows of a pair divided by its evaluations: the median of three pairs with our kernels, one pair
otherwise. The share is of a run of 200 epochs with ``evaluate_every`` = 10. Recall on the training split is measured as
in the recipe (``train_stats``, as the paper's authors did), and with our kernels also in evaluation mode.

It takes about 150 s on an H200, most of it for ``fleet``. Parts, and rows of ``fleet``, are saved as they are measured.

    python benchmarks/evaluation.py [--only stream balance fleet] [--kernels triton torch] [--out out.json]
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from record import device_name, save, verdict, warn
from reference_loop import random_cifar
from team import FAST, Team
from timing import DEVICE, wall_seconds
from torch import Tensor

from longtail._ranks import Ranks
from longtail.classes import Groups
from longtail.data.sampling.batch_plan import Batch
from longtail.metrics import ClassStatistics, class_statistics
from longtail.models import build_model
from longtail.train import defaults
from longtail.train.evaluation import add_statistics, count_correct
from longtail.train.graphs import ReplayedForward, forward_eval
from longtail.train.measures import measures

PARTS = ("stream", "balance", "fleet")
SAMPLES, CLASSES = 1_270_141, 1203
SHARE, EPOCHS, EVERY = 0.1, 200, 10
ROOM = 0.1  # share of the memory of all logits by which the peak may grow on a CPU, which keeps some freed memory
OFTEN = 2  # epochs between evaluations while they are timed

Part = dict[str, Any]


# --- many samples and classes


class Classifier:
    """A linear classifier, and batches of random features with labels by Zipf's law."""

    def __init__(self, classes: int, features: int) -> None:
        self.generator = torch.Generator(DEVICE).manual_seed(0)
        self.weight = torch.randn(classes, features, generator=self.generator, device=DEVICE) / features**0.5
        self.shares = (1 / torch.arange(1, classes + 1, device=DEVICE)).float()

    def batches(self, samples: int, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield logits, labels and features in float32."""
        for begin in range(0, samples, size):
            rows = min(size, samples - begin)
            features = torch.rand(rows, self.weight.shape[1], generator=self.generator, device=DEVICE)
            labels = torch.multinomial(self.shares, rows, replacement=True, generator=self.generator)
            yield features @ self.weight.T, labels, features


def total_statistics(batches: Iterator[tuple[Tensor, Tensor, Tensor]]) -> ClassStatistics:
    total: ClassStatistics | None = None
    for logits, labels, features in batches:
        found = class_statistics(logits, labels, features)
        total = found if total is None else total + found
    assert total is not None
    return total


def largest_resident() -> int | None:
    """Largest resident set of this process so far in bytes, on Linux; ``getrusage`` would start with the parent's."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    return 1024 * int(found[1]) if found else None


def streamed(source: Classifier, samples: int, before: int | None, given: argparse.Namespace) -> Part:
    """Seconds and memory of a pass over the samples, and seconds of all measures.

    Args:
        source: the source of the samples.
        samples: their number.
        before: on a CPU, the largest resident set before the first pass. The peak cannot be reset there, so passes over
            fewer samples must come first.
        given: the sizes.
    """
    total_statistics(source.batches(2 * given.batch, given.batch))  # warm-up
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    found: list[ClassStatistics] = []
    spent = wall_seconds(lambda: found.append(total_statistics(source.batches(samples, given.batch))))
    peak = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else largest_resident()
    alone = wall_seconds(lambda: [None for _ in source.batches(samples, given.batch)])
    begin = time.perf_counter()
    one = ClassStatistics(**{name: value.cpu() for name, value in found[0].tensors().items()})
    groups = Groups.from_indices(head=range(given.classes // 3), tail=range(given.classes // 3, given.classes))
    measures({"test": one}, groups, tuple(map(str, range(given.classes))), "eval")
    if int(one.samples.sum()) != samples:
        raise SystemExit(f"wrong result: {int(one.samples.sum())} samples of {samples}")
    return {
        "seconds": spent,
        "seconds_of_logits": alone,
        "samples_per_second": samples / spent,
        "peak_bytes": None if peak is None or before is None else peak - before,
        "measures_seconds": time.perf_counter() - begin,
    }


def stream(given: argparse.Namespace) -> Iterator[Part]:
    source = Classifier(given.classes, given.features)
    few = list(source.batches(4 * 64, 64))
    whole = class_statistics(*(torch.cat(parts) for parts in zip(*few, strict=True)))
    for name, value in total_statistics(iter(few)).tensors().items():
        torch.testing.assert_close(value, whole.tensors()[name], rtol=1e-6, atol=1e-6)
    before = largest_resident()
    rows = {str(samples): streamed(source, samples, before, given) for samples in (given.samples // 10, given.samples)}
    (_, tenth), (name, full) = rows.items()
    print(f"\n{int(name):,} samples x {given.classes} classes, {given.features} features, batches of {given.batch}:")
    print(
        f"  {full['seconds']:.2f} s ({full['seconds_of_logits']:.2f} s to make the logits), "
        f"{full['samples_per_second']:,.0f} samples/s, all measures {full['measures_seconds']:.2f} s"
    )
    if full["peak_bytes"] is not None:
        held = int(name) * given.classes * 4
        goal = 0.01 * tenth["peak_bytes"] if DEVICE == "cuda" else ROOM * held
        print(
            f"  peak memory {full['peak_bytes'] / 1e6:.0f} MB (all logits would be {held / 1e6:,.0f} MB), of a tenth "
            f"of the samples {tenth['peak_bytes'] / 1e6:.0f} MB; constant within {goal / 1e6:.0f} MB: "
            f"{verdict(full['peak_bytes'] - tenth['peak_bytes'], goal, at_most=True)}"
        )
    yield {"classes": given.classes, "features": given.features, "batch": given.batch, "rows": rows}


# --- balance of gradients


def by_autograd(model: torch.nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Reward and penalty of the weight of the classifier: one backward pass for the samples of each class."""
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


def balance(given: argparse.Namespace) -> Iterator[Part]:
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
            raise SystemExit(f"wrong result: the relative error of {name} is {error}")
    runs: dict[str, Callable[[Any], object]] = {
        "hits alone": lambda forward: count_correct(forward, batches(), 10, alone),
        "all class statistics": lambda forward: add_statistics(forward, batches(), ranks=alone),
    }
    rows: dict[str, Any] = {}
    for way in ("eager", "replayed") if DEVICE == "cuda" else ("eager",):
        replayed = ReplayedForward(model, precision) if way == "replayed" else None
        forward = replayed or partial(forward_eval, model, precision)
        context = torch.cuda.stream(replayed.stream) if replayed else torch.no_grad()
        with context:
            for run in (*runs.values(), *runs.values()):  # twice: the second pass is captured
                run(forward)
            for name, run in runs.items():
                spent = statistics.median(wall_seconds(partial(run, forward)) for _ in range(given.rounds))
                rows[f"{name}, {way}"] = {"seconds": spent}
        plainly = rows[f"hits alone, {way}"]["seconds"]
        ratio = rows[f"all class statistics, {way}"]["seconds"] / plainly
        rows[f"all class statistics, {way}"]["times_hits"] = ratio
        print(f"\nResNet-32, {given.images} images, {way}: hits alone {plainly:.3f} s", end="")
        print(
            f", all statistics {ratio:.2f} times that (goal 2, one more pass): {verdict(ratio, 2.0, at_most=True)}",
            flush=True,
        )
    yield {"images": given.images, "rows": rows}


def plain(model: torch.nn.Module, images: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad():
        outputs = model(images)
    return outputs.logits, target, outputs.features


# --- inside a fleet


class Case(NamedTuple):
    """A fleet to time."""

    kernels: str
    train_stats: str
    """How recall on the training split is measured."""
    pairs: int
    """Number of pairs of windows, without and with evaluations."""

    def name(self, members: int) -> str:
        kind = {"triton": "Triton bf16", "torch": "cuDNN bf16" if DEVICE == "cuda" else "CPU"}[self.kernels]
        return f"{members}, {kind}, train_stats {self.train_stats}"


def cases(given: argparse.Namespace) -> list[Case]:
    """The fleets to time. The first, the most important one, has all pairs; the others have one."""
    kernels = given.kernels if DEVICE == "cuda" else ["torch"]
    some = given.train_stats or [defaults("cifar10-lt", "cbs", 100).train_stats]
    chosen = [(one, stats) for stats in some for one in kernels]
    if given.train_stats is None and "triton" in kernels:
        chosen.append(("triton", "eval"))
    return [Case(*one, given.pairs if number == 0 else 1) for number, one in enumerate(chosen)]


def fleet(given: argparse.Namespace) -> Iterator[Part]:
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = random_cifar(Path(temporary), given.files)
        for case in cases(given):
            rows[case.name(given.members)] = cost_in_a_fleet(root, case, given)
            yield {"rows": rows}


def cost_in_a_fleet(root: Path, case: Case, given: argparse.Namespace) -> dict[str, Any]:
    """Cost of an evaluation and of the end of the runs, relative to training."""
    name = case.name(given.members)
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    settings = FAST if DEVICE == "cuda" else {}
    team = Team(
        root, given.members, case.kernels, model=given.model, epochs=1 + 2 + 2 * case.pairs * given.window + 1,
        train_stats=case.train_stats, **settings,
    )  # fmt: skip
    team.take(2, every=1)  # the second pass captures the graphs
    logged = [2, 3]
    without, evaluating, each = [], [], []
    for _ in range(case.pairs):
        without.append(team.take(given.window))
        done = team.members[0].epochs_done
        evaluating.append(team.take(given.window, every=OFTEN))
        evaluated = [epoch for epoch in range(done + 1, done + given.window + 1) if epoch % OFTEN == 0]
        logged += evaluated
        each.append((evaluating[-1] - without[-1]) / len(evaluated))
        times = f"{without[-1]:.2f} s, with {len(evaluated)} evaluations {evaluating[-1]:.2f} s"
        print(f"  {name}: {given.window} epochs {times}", flush=True)
    last = team.take()  # the last epoch and the end of the runs
    wrong = wrong_logs(team, logged)
    epoch, once = statistics.median(without) / given.window, statistics.median(each)
    end = last - epoch
    share = (EPOCHS // EVERY * once + end) / (EPOCHS * epoch)
    print(
        f"{name}: an epoch of all {1e3 * epoch:.0f} ms, an evaluation {1e3 * once:.0f} ms, the end {1e3 * end:.0f} ms; "
        f"every {EVERY} epochs and at the end of {EPOCHS}: {100 * share:.1f} % of training "
        f"(goal {100 * SHARE:.0f}): {verdict(share, SHARE, at_most=True)}\n",
        flush=True,
    )
    warn(wrong)
    found = {
        "members": given.members, "kernels": case.kernels, "train_stats": case.train_stats, "window": given.window,
        "evaluations_a_window": len(evaluated), "seconds_without": without, "seconds_with": evaluating,
        "ready_seconds": team.ready, "epoch_seconds": epoch, "evaluation_seconds": once, "end_seconds": end,
        "share_of_an_evaluation": once / (EVERY * epoch), "share_of_the_end": end / (EPOCHS * epoch), "share": share,
        "peak_bytes": torch.cuda.max_memory_reserved() if DEVICE == "cuda" else None, "wrong": wrong,
    }  # fmt: skip
    team.close()
    return found


def wrong_logs(team: Team, expected: list[int]) -> list[str]:
    """Problems with the runs: evaluations at other epochs than expected, or unfinished runs."""
    found = []
    for member in team.members:
        lines = [json.loads(line) for line in member.folder.log_file.read_text().splitlines()]
        epochs = [line["epoch"] + 1 for line in lines if "recall" in line]
        if epochs != expected or not member.folder.done:
            found.append(f"seed {member.recipe.seed} was evaluated in {epochs}, not in {expected}, or is not done")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--kernels", nargs="+", choices=("triton", "torch"), default=["triton", "torch"])
    parser.add_argument("--members", type=int, default=12)
    parser.add_argument("--train-stats", nargs="+", choices=("eval", "paper"), help="default: the recipe's, then eval")
    parser.add_argument("--window", type=int, default=10, help="epochs per timed window")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of windows, with our kernels")
    parser.add_argument("--out", type=Path)
    sizes = parser.add_argument_group("sizes; use smaller ones to try the script")
    gpu = DEVICE == "cuda"
    sizes.add_argument("--samples", type=int, default=SAMPLES if gpu else SAMPLES // 20)
    sizes.add_argument("--classes", type=int, default=CLASSES)
    sizes.add_argument("--features", type=int, default=2048 if gpu else 64)
    sizes.add_argument("--batch", type=int, default=4096 if gpu else 1024)
    sizes.add_argument("--images", type=int, default=12_406 if gpu else 1024)
    sizes.add_argument("--rounds", type=int, default=5 if gpu else 3)
    sizes.add_argument("--files", type=int, default=10_000, help="images per CIFAR-10 file")
    sizes.add_argument("--model", default="resnet32")
    given = parser.parse_args()
    if given.window < OFTEN:
        parser.error(f"--window must be {OFTEN} or more, so that there is an evaluation in it")
    print(f"{device_name()}, torch {torch.__version__}", flush=True)
    began = time.perf_counter()
    run = {"stream": stream, "balance": balance, "fleet": fleet}
    parts: dict[str, Part] = {}
    for name in given.only:
        for part in run[name](given):
            parts[name] = part
            save(given.out, parts)
    print(f"\n{time.perf_counter() - began:.0f} s in total")


if __name__ == "__main__":
    main()
