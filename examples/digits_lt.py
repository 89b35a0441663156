"""Softmax, Balanced Softmax and Class-Balanced Softmax on long-tailed handwritten digits, on a CPU, in a minute.

Trains a small CNN on digits-lt (124 images of the 0 down to 2 of the 9) with each loss and five seeds, and reports
recall on 50 test images of each digit. Runs of one seed share initial weights, order and augmentation, so differences
are tested in pairs. The last epoch is reported, and beta 1.5 was fixed before anything was run. (How the test images
were chosen, and when, is in docs/design.md.)

    python examples/digits_lt.py [--seeds 5] [--epochs 60] [--beta 1.5] [--out runs/demo]
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import matplotlib as mpl
import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

from longtail import BalancedSoftmaxLoss, ClassBalancedSoftmaxLoss
from longtail.data import DataSet, Split, load
from longtail.metrics import class_statistics, preference_scores, recall
from longtail.study import compare, holm

mpl.use("Agg")
import matplotlib.pyplot as plt

IMBALANCE = 50
COLUMNS = ("head", "medium", "tail", "all")
COLOURS = ("#8c8c8c", "#e69f00", "#0072b2")  # told apart in grey and by the colour-blind


def small_cnn() -> nn.Sequential:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(1, 32),
        *block(32, 64),
        nn.MaxPool2d(2),
        *block(64, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def images_of(split: Split) -> Tensor:
    """All images of a split in [0, 1], shape (N, 1, 8, 8)."""
    return torch.stack([split.images[i] for i in range(len(split))]) / 255


def shifted_by_a_pixel(images: Tensor) -> Tensor:
    """All nine shifts by -1, 0 or 1 pixel in both directions, shape (9, N, 1, 8, 8)."""
    padded = F.pad(images, (1, 1, 1, 1))
    return torch.stack([padded[..., i : i + 8, j : j + 8] for i in range(3) for j in range(3)])


def train(loss: nn.Module, digits: DataSet, seed: int, epochs: int) -> nn.Module:
    """A plain training loop. The loss is all that differs between the methods."""
    torch.manual_seed(seed)
    model = small_cnn()
    views, labels = shifted_by_a_pixel(images_of(digits.train)), digits.train.labels
    batches = torch.arange(len(labels)).split(32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=epochs * len(batches))
    for _ in range(epochs):
        order, view = torch.randperm(len(labels)), torch.randint(9, (len(labels),))
        for batch in batches:
            chosen = order[batch]
            logits = model(views[view[batch], chosen])
            optimizer.zero_grad()
            loss(logits, labels[chosen]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def measure(model: nn.Module, digits: DataSet) -> dict[str, object]:
    """Recall on test data, in fractions, and the model imbalance level, in the paper's per cent."""
    of_train = class_statistics(model(images_of(digits.train)), digits.train.labels)
    of_test = class_statistics(model(images_of(digits.test)), digits.test.labels)
    on_train = recall(of_train.correct, of_train.samples, digits.groups)
    on_test = recall(of_test.correct, of_test.samples, digits.groups)
    preference = preference_scores(on_train.per_class, on_test.per_class, digits.groups)
    return {**on_test.groups, "all": on_test.all, "level": preference.level, "per_class": on_test.per_class.tolist()}


def mean_and_sd(values: list[float], scale: float = 1.0) -> str:
    if any(math.isnan(value) for value in values):
        return "undefined"  # a group with zero training recall has no preference score, and then there is no I
    return f"{scale * statistics.mean(values):.1f}±{scale * statistics.stdev(values):.1f}"


def show_table(results: dict[str, list[dict]], digits: DataSet, console: Console) -> None:
    seeds = len(next(iter(results.values())))
    table = Table(
        title="Recall on test data, per cent",
        box=box.SIMPLE_HEAD,
        caption=f"mean ± SD over {seeds} seeds; I: model imbalance level, lower is fairer\n"
        "last epoch; training recall, for I, in evaluation mode",
    )
    table.add_column("Loss", no_wrap=True)
    for name in COLUMNS:
        size = digits.groups.sizes.get(name, digits.groups.num_classes)
        table.add_column(f"{name.capitalize()} ({size})", justify="right")
    table.add_column("I", justify="right")
    best = {name: max(results, key=lambda m: statistics.mean(r[name] for r in results[m])) for name in COLUMNS}
    best["level"] = min(results, key=lambda m: statistics.mean(r["level"] for r in results[m]))
    for method, runs in results.items():
        cells = [mean_and_sd([run[name] for run in runs], 100) for name in COLUMNS]
        cells.append(mean_and_sd([run["level"] for run in runs]))
        table.add_row(
            method,
            *(f"[bold]{c}[/]" if best[n] == method else c for n, c in zip((*COLUMNS, "level"), cells, strict=True)),
        )
    console.print(table)


def show_differences(results: dict[str, list[dict]], console: Console) -> None:
    methods = list(results)
    pairs = [(a, b) for i, b in enumerate(methods) for a in methods[i + 1 :]]
    comparisons = [
        compare([100 * run["all"] for run in results[a]], [100 * run["all"] for run in results[b]], paired=True)
        for a, b in pairs
    ]
    corrected = holm([comparison.p_value for comparison in comparisons])
    table = Table(
        title="Differences in recall over all classes, points",
        box=box.SIMPLE_HEAD,
        caption=f"paired t-test over {comparisons[0].runs[0]} seeds, two-sided, p corrected after Holm",
    )
    for heading in ("", "Difference", "95 % interval", "p"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for (a, b), c, p in zip(pairs, comparisons, corrected, strict=True):
        table.add_row(f"{a} - {b}", f"{c.difference:+.1f}", f"{c.low:+.1f} to {c.high:+.1f}", f"{p:.2g}")
    console.print(table)


def draw(results: dict[str, list[dict]], digits: DataSet, path: Path) -> None:
    plt.rcParams.update(
        {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "longtail"}
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), width_ratios=(3, 2), layout="constrained")
    classes = range(len(digits.counts))
    for (method, runs), colour, marker in zip(results.items(), COLOURS, "so^", strict=True):
        per_class = 100 * torch.tensor([run["per_class"] for run in runs])
        style = {"color": colour, "marker": marker, "markersize": 5}
        left.plot(classes, per_class.mean(0), label=method, linewidth=1.6, **style)
        left.fill_between(classes, per_class.amin(0), per_class.amax(0), color=colour, alpha=0.15, linewidth=0)
        offset = (list(results).index(method) - 1) * 0.22
        for x, name in enumerate(COLUMNS):
            values = [100 * run[name] for run in runs]
            right.plot([x + offset] * len(values), values, ".", color=colour, markersize=4, alpha=0.5)
            right.plot([x + offset], [statistics.mean(values)], linestyle="", **style)
    left.set_xticks(classes, [f"{c}\n{count}" for c, count in enumerate(digits.counts.tolist())])
    left.set(
        xlabel="digit, and how many images of it there were to learn from",
        ylabel="recall on test data, %",
        ylim=(0, 103),
    )
    left.set_title("Each class: mean and range over seeds", fontsize=9, loc="left")
    left.legend(frameon=False, loc="lower left")
    right.set_xticks(range(len(COLUMNS)), COLUMNS)
    right.set(ylim=(0, 103))
    right.set_title("Groups: each seed, and the mean", fontsize=9, loc="left")
    for axes in (left, right):
        axes.grid(axis="y", color="#e0e0e0", linewidth=0.6)
        axes.set_axisbelow(True)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=160, metadata={"Date": None} if suffix == ".svg" else None)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=int, default=5, help="runs of each loss (2 or more, so that there is something to test)"
    )
    parser.add_argument("--epochs", type=int, default=60, help="of each run")
    parser.add_argument("--beta", type=float, default=1.5, help="of Class-Balanced Softmax")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="where numbers and figure go")
    arguments = parser.parse_args()
    if arguments.seeds < 2 or arguments.epochs < 1:
        parser.error("--seeds must be 2 or more and --epochs 1 or more")

    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out must be a folder: {error}")

    console = Console()
    digits = load("digits-lt", imbalance=IMBALANCE)
    try:
        losses = {
            "Softmax": nn.CrossEntropyLoss(),
            "Balanced Softmax": BalancedSoftmaxLoss(digits.counts),
            "CBS": ClassBalancedSoftmaxLoss(digits.counts, beta=arguments.beta),
        }
    except ValueError as error:
        parser.error(str(error))
    counts = digits.counts.tolist()
    console.print(
        f"digits-lt, imbalance factor {IMBALANCE}: {sum(counts)} training images, {counts[0]} of the 0 down to "
        f"{counts[-1]} of the 9; {len(digits.test)} test images. "
        f"Three losses, {arguments.seeds} seeds, {arguments.epochs} epochs; CBS with beta = {arguments.beta:g}."
    )
    start = time.perf_counter()
    results: dict[str, list[dict]] = {method: [] for method in losses}
    bar = Progress(
        TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )
    with bar:
        task = bar.add_task("", total=len(losses) * arguments.seeds)
        for seed in range(arguments.seeds):
            for method, loss in losses.items():
                bar.update(task, description=method)
                results[method].append(measure(train(loss, digits, seed, arguments.epochs), digits))
                bar.advance(task)
    console.print(f"Trained in {time.perf_counter() - start:.0f} s.\n")
    show_table(results, digits, console)
    console.print()
    show_differences(results, console)
    (arguments.out / "results.json").write_text(json.dumps({"beta": arguments.beta, "runs": results}, indent=1) + "\n")
    draw(results, digits, arguments.out / "digits_lt")
    console.print(f"\nFigure: {arguments.out / 'digits_lt.png'} (and .svg), numbers: {arguments.out / 'results.json'}")


if __name__ == "__main__":
    main()
