"""Where it bends: time and memory against classes (10 to 100,000), members of a fleet (1 to 64) and samples.

``classes``: forward and backward of a batch of 256 with 128 features (dimensions): a linear classifier with plain cross
entropy and with Class-Balanced Softmax, ProCo of one view, BCL of two; and the class statistics of such a batch, with
the rewards and penalties of the classifier's weight. On a GPU captured CUDA graphs are timed, the device's work alone;
memory is the peak beyond inputs. ``samples``: class statistics of more and more samples of 1203 classes, streamed.
What members cost is measured by ``fleet.py`` (its part ``growth``); ``draw_growth.py`` draws all of it. That results
are right is checked by ``loss.py``, ``contrastive.py`` and ``evaluation.py``. Rows are saved as they are measured.

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
from evaluation import Classifier, gathered, seconds_of
from record import device_name, save
from timing import captured, synchronise

from longtail.metrics import class_statistics

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
    synchronise()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    synchronise()
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


def megabytes(used: int | None) -> str:
    """For a table; nothing where memory is not measured, on a CPU."""
    return "" if used is None else f"{used / 1e6:12.1f} MB"


def against_classes(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All rows so far, whenever there is one more."""
    rows: list[dict[str, Any]] = []
    for classes in CLASSES[DEVICE]:
        for name, run in runs_of(classes).items():
            used = peak(run)
            timed = captured(run) if DEVICE == "cuda" else run
            ms = contrastive.median_ms(timed, DEVICE, given.budget)
            rows.append({"classes": classes, "name": name, "ms": ms, "peak_bytes": used})
            print(f"{classes:>8} classes  {name:24}{ms:10.3f} ms{megabytes(used)}", flush=True)
            yield {"batch": ROWS[DEVICE], "dim": DIM, "rows": rows}


def against_samples(_: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All rows so far, whenever there is one more."""
    features, batch = (2048, 4096) if DEVICE == "cuda" else (DIM, 1000)
    source = Classifier(1203, features)
    rows = []
    for samples in SAMPLES[DEVICE]:
        run = lambda samples=samples: gathered(source.batches(samples, batch))  # noqa: E731
        used = peak(run)
        rows.append({"samples": samples, "seconds": seconds_of(run), "peak_bytes": used})
        print(f"{samples:>9} samples {rows[-1]['seconds']:10.3f} s{megabytes(used)}", flush=True)
        yield {"classes": 1203, "features": features, "batch": batch, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each row")
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
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
