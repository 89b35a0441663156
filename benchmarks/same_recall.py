"""Compare the recall of a fleet that uses our kernels with careful float32 runs, over twelve seeds.

Both ways train Balanced Softmax on C10-LT100 with the settings of the recipe: ``ours`` with the Triton kernels in
bfloat16, ``careful`` with cuDNN in float32 without TF32, cuDNN's default; the error of a convolution shows that it is
off. The random draws are the same and the rounding is not, so single runs differ, but the means must not. Goals:
Welch's p above 0.05, and means less than half a point apart.

Each way trains its seeds as one fleet, which also gives the time of a whole run per model: from the start to the last
result, with checkpoints and the last evaluations. Runs and their times are kept in a folder and resume after a stop
(`timeout -s TERM`). Finished runs are not trained again; the results say where, when and by which commit each way was
last trained. They are saved after each way.

    python benchmarks/same_recall.py [--only ours] [--data cifar10-lt] [--seeds 12] [--epochs 200] [--runs runs/same]
        [--out out.json]
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from record import about, save, verdict
from timing import DEVICE
from torch import nn

from longtail._io import write_json
from longtail.study.execute import devices, execute
from longtail.study.planning import PlannedRun
from longtail.study.stats import compare, summarise
from longtail.train import Recipe, defaults
from longtail.train.trainer import StoppedError

P_VALUE, POINTS = 0.05, 0.5
KERNELS = "triton" if DEVICE == "cuda" else "torch"
OURS, CAREFUL = f"{KERNELS} bf16", "cuDNN fp32 without TF32"
NAMES = {"ours": OURS, "careful": CAREFUL}
WAYS: dict[str, dict[str, Any]] = {
    OURS: {"precision": "bf16", "channels_last": True, "kernels": KERNELS},
    CAREFUL: {"precision": "fp32", "kernels": "torch"},
}
FLOAT32 = 1e-5  # the error of a convolution is about 1e-7 in float32 and 3e-4 in TF32


@contextmanager
def without_tf32() -> Iterator[None]:
    """Turn TF32 off in convolutions and matrix products."""
    switches = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = False
    try:
        yield
    finally:
        for switch, allowed in zip(switches, before, strict=True):
            switch.allow_tf32 = allowed


def convolution_error() -> float:
    """Relative error of a float32 convolution with the current settings, against float64."""
    torch.manual_seed(0)
    layer = nn.Conv2d(64, 64, 3, padding=1, bias=False, device=DEVICE)
    images = torch.randn(16, 64, 8, 8, device=DEVICE)
    with torch.no_grad():
        found = layer(images).double()
        expected = layer.double()(images.double())
    return float((found - expected).norm() / expected.norm())


def recipes(data: str, seeds: int, epochs: int | None) -> dict[str, list[Recipe]]:
    """The recipes of each way, one per seed."""
    base = defaults(data, "balanced-softmax")
    base = replace(base, evaluate_every=0, checkpoint_epochs=0, epochs=epochs or base.epochs)
    return {way: [replace(base, seed=seed, **how) for seed in range(seeds)] for way, how in WAYS.items()}


class Clock:
    """Total seconds of the runs of a way, over all starts, kept in a file."""

    _NAMES = ("seconds", "starts", "ends", "trained")

    def __init__(self, file: Path) -> None:
        self.file = file
        self.seconds, self.starts, self.ends = 0.0, 0, 0
        self.trained: dict[str, Any] = {}
        """Where, when and by which commit the runs were last started."""
        if file.exists():
            kept = json.loads(file.read_text(encoding="utf-8"))
            self.seconds, self.starts, self.ends, self.trained = (kept[name] for name in self._NAMES)

    @contextmanager
    def running(self) -> Iterator[None]:
        self.starts += 1
        self.trained = about()
        self._write()
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begin
            self.ends += 1
            self._write()

    @property
    def known(self) -> bool:
        """Whether the time is complete; it is not if a run was killed or trained by another program."""
        return self.starts == self.ends > 0

    def _write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.file, {name: getattr(self, name) for name in self._NAMES})


def train(way: str, runs: Sequence[PlannedRun], clock: Clock) -> dict[str, Any]:
    """Train the runs that are not finished, and return the results of all."""
    with without_tf32() if way == CAREFUL else nullcontext():
        switches = {
            "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
            "cuda.matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "error of a float32 convolution": convolution_error(),
        }
        if not all(run.folder.done for run in runs):
            with clock.running():
                outcome = execute(runs, on=devices(runs)[:1])  # in this process, with these switches
            if outcome.failed or len(outcome.done) < len(runs):
                raise SystemExit(f"did not finish: {outcome.failed or outcome.elsewhere}")
    return {
        "recalls": [100 * run.folder.result()["splits"]["test"]["recall"]["all"] for run in runs],
        "float32": switches,
        "whole_runs": {
            "members": len(runs),
            "epochs": runs[0].recipe.epochs,
            "starts": clock.starts,
            "seconds": clock.seconds if clock.known else None,
            "seconds_a_model": clock.seconds / len(runs) if clock.known else None,
        },
        "trained": clock.trained,
    }


def measure(given: argparse.Namespace) -> None:
    """Train the chosen ways and compare them if there are two; save after each."""
    part: dict[str, Any] = {"data": given.data, "seeds": given.seeds}
    part |= {key: {} for key in ("recalls", "float32", "whole_runs", "trained")}
    planned = recipes(given.data, given.seeds, given.epochs)
    for way in (NAMES[name] for name in given.only):
        name = way.replace(" ", "-")
        runs = [PlannedRun(recipe, given.runs / f"{name}-seed{recipe.seed}") for recipe in planned[way]]
        for key, value in train(way, runs, Clock(given.runs / f"{name}.json")).items():
            part[key][way] = value
        ended = max(run.folder.result_file.stat().st_mtime for run in runs)
        unknown = {"commit": None, "date": time.strftime("%Y-%m-%d", time.localtime(ended))}
        part |= part["trained"][way] or unknown  # where they were trained, not where they are read now
        save(given.out, {"same": part})
        values, whole = part["recalls"][way], part["whole_runs"][way]
        print(f"{way:24} {summarise(values)}   {' '.join(f'{value:.2f}' for value in values)}", flush=True)
        if whole["seconds"] is not None:
            print(f"{'':24} {whole['epochs']} epochs of {whole['members']} models in {whole['seconds']:.1f} s", end="")
            print(f", {whole['seconds_a_model']:.2f} s per model with checkpoints and last evaluations", flush=True)
    if CAREFUL in part["recalls"] and not part["float32"][CAREFUL]["error of a float32 convolution"] < FLOAT32:
        print(f"WRONG: {CAREFUL} does not compute in float32: {part['float32'][CAREFUL]}", flush=True)
    if len(part["recalls"]) < len(WAYS):
        return
    found = compare(part["recalls"][OURS], part["recalls"][CAREFUL], paired=False)
    goals = {
        f"p > {P_VALUE}": verdict(found.p_value, P_VALUE),
        f"under {POINTS} points": verdict(abs(found.difference), POINTS, at_most=True),
    }
    save(given.out, {"same": {**part, "difference": found.difference, "p": found.p_value, "goals": goals}})
    interval = f"{found.low:.2f} to {found.high:.2f}"
    print(f"difference {found.difference:.2f} points, {interval}, p = {found.p_value:.2f}; {goals}")


def stop(number: int, _: FrameType | None) -> None:
    raise StoppedError(f"Stopped by signal {number}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(NAMES), default=list(NAMES), help="the ways to train")
    parser.add_argument("--data", default="cifar10-lt")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--epochs", type=int, help="default: the recipe's")
    parser.add_argument("--runs", type=Path, default=Path("runs/same"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    try:
        measure(given)
    except StoppedError:
        print(f"Stopped; the same command resumes the runs in {given.runs}.", flush=True)
        sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
