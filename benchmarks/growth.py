"""Where it bends: time and memory against classes (10 to 100,000), members of a fleet (1 to 64) and samples.

``classes``: forward and backward of a batch of 256 with 128 features (dimensions): a linear classifier with plain cross
entropy and with Class-Balanced Softmax, ProCo of one view, BCL of two; and the class statistics of such a batch, with
the rewards and penalties of the classifier's weight. On a GPU captured CUDA graphs are timed, the device's work alone;
memory is the peak beyond inputs. ``samples``: class statistics of more and more samples of 1203 classes, streamed.
What members cost is measured by ``fleet.py`` (its part ``growth``). That results are right is checked by ``loss.py``,
``contrastive.py`` and ``evaluation.py``.

    python benchmarks/growth.py [--only classes samples] [--out out.json]
    python benchmarks/growth.py --draw docs/images/growth  # a figure of the results that are committed
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import contrastive
import loss
import torch
from evaluation import Classifier, gathered, seconds_of
from record import RESULTS, device_name, save
from timing import captured

from longtail.metrics import class_statistics
from longtail.study.figures.style import legend_below, marks_of, panels, styled
from longtail.study.figures.writing import save_figure

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PARTS = ("classes", "samples")
CLASSES = {"cuda": (10, 100, 1000, 10_000, 100_000), "cpu": (10, 100, 1000)}
SAMPLES = {"cuda": (1000, 10_000, 100_000, 1_270_141), "cpu": (1000, 10_000)}
ROWS = {"cuda": 256, "cpu": 32}
DIM = 128


def peak(run: Callable[[], object]) -> int | None:
    """Bytes that a run needs beyond what is there before it."""
    if DEVICE != "cuda":
        return None
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def runs_of(classes: int) -> dict[str, Callable[[], object]]:
    """What is done to one batch."""
    linear = loss.Problem(ROWS[DEVICE], classes, DIM, DEVICE, autocast=False)
    contrast = contrastive.Problem(ROWS[DEVICE], classes, DIM, DEVICE)
    with torch.no_grad():
        logits = torch.nn.functional.linear(linear.h, linear.w, linear.b)
    features = linear.h.detach()

    def clean(step: Callable[[], object], *inputs: torch.Tensor) -> None:
        step()
        for one in inputs:
            one.grad = None

    return {
        "linear + cross entropy": partial(clean, partial(linear.step, "plain"), *linear.parameters()),
        "linear + CBS": partial(clean, partial(linear.step, "module"), *linear.parameters()),
        "ProCo": partial(clean, partial(contrast.step, "proco"), contrast.views, contrast.prototypes),
        "BCL": partial(clean, partial(contrast.step, "bcl"), contrast.views, contrast.prototypes),
        "class statistics": lambda: class_statistics(logits, linear.y, features, check_labels=False),
    }


def against_classes(given: argparse.Namespace) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for classes in CLASSES[DEVICE]:
        for name, run in runs_of(classes).items():
            used = peak(run)
            timed = captured(run) if DEVICE == "cuda" else run
            ms = contrastive.median_ms(timed, DEVICE, given.budget)
            rows.append({"classes": classes, "name": name, "ms": ms, "peak_bytes": used})
            print(f"{classes:>8} classes  {name:24}{ms:10.3f} ms{(used or 0) / 1e6:12.1f} MB", flush=True)
    return {"batch": ROWS[DEVICE], "dim": DIM, "rows": rows}


def against_samples(_: argparse.Namespace) -> dict[str, Any]:
    features, batch = (2048, 4096) if DEVICE == "cuda" else (DIM, 1000)
    source = Classifier(1203, features)
    rows = []
    for samples in SAMPLES[DEVICE]:
        run = lambda samples=samples: gathered(source.batches(samples, batch))  # noqa: E731
        used = peak(run)
        rows.append({"samples": samples, "seconds": seconds_of(run), "peak_bytes": used})
        print(f"{samples:>9} samples {rows[-1]['seconds']:10.3f} s{(used or 0) / 1e6:12.1f} MB", flush=True)
    return {"classes": 1203, "features": features, "batch": batch, "rows": rows}


# --- the figure


def members_of(content: dict[str, Any]) -> list[tuple[int, float, float]]:
    """Members, milliseconds of a step and model, and GB of all, from what ``fleet.py`` left."""
    found = []
    for name, row in content.get("rows", {}).items():
        number, of, *_ = [*name.split(" ", 2), ""]
        if of == "of" and "gigabytes" in row:
            found.append((int(number), float(row["ms"]), float(row["gigabytes"])))
    return sorted(found)


Series = dict[str, tuple[list[float], list[float]]]


def series_of(growth: dict[str, Any], fleet: dict[str, Any]) -> list[tuple[str, str, Series]]:
    """Panels that there is something for: labels of both axes, and what is drawn."""
    found: list[tuple[str, str, Series]] = []
    classes = growth.get("classes", {}).get("rows", [])
    members = members_of(fleet)
    samples = growth.get("samples", {}).get("rows", [])

    def of_classes(key: str, scale: float) -> Series:
        names = dict.fromkeys(row["name"] for row in classes)
        chosen = {name: [row for row in classes if row["name"] == name and row[key]] for name in names}
        return {n: ([r["classes"] for r in some], [scale * r[key] for r in some]) for n, some in chosen.items() if some}

    def of_samples(key: str, scale: float) -> Series:
        some = [row for row in samples if row[key]]
        line = ([row["samples"] for row in some], [scale * row[key] for row in some])
        return {"class statistics": line} if some else {}

    numbers = [float(number) for number, _, _ in members]
    for label, unit, drawn in (
        ("classes", "ms a batch", of_classes("ms", 1.0)),
        ("members", "ms a step and model", {"fleet": (numbers, [ms for _, ms, _ in members])} if members else {}),
        ("samples", "s in all", of_samples("seconds", 1.0)),
        ("classes", "MB beyond the inputs", of_classes("peak_bytes", 1e-6)),
        ("members", "GB in all", {"fleet": (numbers, [held for _, _, held in members])} if members else {}),
        ("samples", "MB beyond the inputs", of_samples("peak_bytes", 1e-6)),
    ):
        if drawn:
            found.append((label, unit, drawn))
    return found


@styled
def figure_of(growth: dict[str, Any], fleet: dict[str, Any]) -> Any:
    """Time above, memory below; all axes logarithmic."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415 - an extra

    drawn = series_of(growth, fleet)
    if not drawn:
        raise SystemExit("There is nothing to draw: no results of growth.py nor of fleet.py's growth.")
    names = list(dict.fromkeys(name for _, _, some in drawn for name in some))
    marks = marks_of(names)
    figure, all_axes = panels(len(drawn), columns=len({label for label, _, _ in drawn}))
    for axes, (label, unit, some) in zip(all_axes, drawn, strict=True):
        for name, (x, y) in some.items():
            axes.plot(x, y, color=marks[name].colour, marker=marks[name].marker, linestyle=marks[name].line, label=name)
        axes.set_xscale("log", base=2 if label == "members" else 10)
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            if axis is axes.yaxis:
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(label)
        axes.set_ylabel(unit)
    first = drawn[0][2]
    for name in (name for name in names if name not in first):  # the legend is that of the first panel
        all_axes[0].plot(
            [], [], color=marks[name].colour, marker=marks[name].marker, linestyle=marks[name].line, label=name
        )
    legend_below(figure, all_axes[0], columns=6)
    return figure


def draw(stem: Path) -> None:
    def read(name: str) -> dict[str, Any]:
        path = RESULTS / name
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return found

    figure = figure_of(read("growth-h200.json").get("parts", {}), read("fleet-h200.json"))
    for path in save_figure(figure, stem, ("png", "svg")):
        print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each row")
    parser.add_argument("--draw", type=Path, metavar="STEM", help="measure nothing; draw what is in results/")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.draw:
        draw(given.draw)
        return
    print(f"{device_name()}, torch {torch.__version__}", flush=True)
    began = time.perf_counter()
    run = {"classes": against_classes, "samples": against_samples}
    parts = {name: run[name](given) for name in given.only}
    print(f"{time.perf_counter() - began:.0f} s in all")
    save(given.out, parts)


if __name__ == "__main__":
    main()
