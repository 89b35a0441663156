"""Time and memory against the number of classes (10 to 100,000) and of samples.

``classes``: forward and backward of a batch of 256 with 128 features: a linear classifier with plain cross entropy and
with Class-Balanced Softmax, ProCo of one view, BCL of two; and the class statistics of such a batch, with the rewards
and penalties of the weight of the classifier. On a GPU, replayed CUDA graphs are timed; memory is the peak beyond the
inputs. ``samples``: class statistics of more and more samples of 1203 classes, streamed.

``fleet.py`` measures growth with the models of a fleet, and ``draw_growth.py`` draws all of it. ``loss.py``,
``contrastive.py`` and ``evaluation.py`` check the results. Rows are saved as they are measured.

    python benchmarks/growth.py [--only classes samples] [--out out.json]
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import contrastive
import loss
import torch
from evaluation import Classifier, total_statistics
from record import device_name, save
from timing import DEVICE, captured, median_ms, peak_bytes, wall_seconds

from longtail.metrics import class_statistics

PARTS = ("classes", "samples")
CLASSES = {"cuda": (10, 100, 1000, 10_000, 100_000), "cpu": (10, 100, 1000)}
SAMPLES = {"cuda": (1000, 10_000, 100_000, 1_270_141), "cpu": (1000, 10_000)}
ROWS = {"cuda": 256, "cpu": 32}
DIM = 128


def runs_of(classes: int) -> dict[str, Callable[[], object]]:
    """What is timed for one batch."""
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


def megabytes(used: int | None) -> str:
    """A cell of the table; empty on a CPU, where memory is not measured."""
    return "" if used is None else f"{used / 1e6:12.1f} MB"


def against_classes(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield all rows so far after each new one."""
    rows: list[dict[str, Any]] = []
    for classes in CLASSES[DEVICE]:
        for name, run in runs_of(classes).items():
            used = peak_bytes(run)
            timed = captured(run) if DEVICE == "cuda" else run
            ms = median_ms(timed, given.budget)
            rows.append({"classes": classes, "name": name, "ms": ms, "peak_bytes": used})
            print(f"{classes:>8} classes  {name:24}{ms:10.3f} ms{megabytes(used)}", flush=True)
            yield {"batch": ROWS[DEVICE], "dim": DIM, "rows": rows}


def against_samples(_: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield all rows so far after each new one."""
    features, batch = (2048, 4096) if DEVICE == "cuda" else (DIM, 1000)
    source = Classifier(1203, features)
    rows = []
    for samples in SAMPLES[DEVICE]:
        run = lambda samples=samples: total_statistics(source.batches(samples, batch))  # noqa: E731
        used = peak_bytes(run)
        rows.append({"samples": samples, "seconds": wall_seconds(run), "peak_bytes": used})
        print(f"{samples:>9} samples {rows[-1]['seconds']:10.3f} s{megabytes(used)}", flush=True)
        yield {"classes": 1203, "features": features, "batch": batch, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--budget", type=float, default=0.3, help="seconds per row")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    print(f"{device_name()}, torch {torch.__version__}", flush=True)
    began = time.perf_counter()
    run = {"classes": against_classes, "samples": against_samples}
    parts: dict[str, Any] = {}
    for name in given.only:
        for part in run[name](given):
            parts[name] = part
            save(given.out, parts)
    print(f"{time.perf_counter() - began:.0f} s in total")


if __name__ == "__main__":
    main()
