"""What a model costs in a fleet: ResNet-32 on CIFAR-10-LT (12,406 images, batch 128), against the field's usual loop.

Goals, per model, on one H200: a fleet of twelve at least 25 times cheaper than ``reference_loop.py`` and 4.5 times
cheaper than one captured, compiled model alone; 40 times is the next mark.

How: correctness first: loss and gradients of one step with the Triton kernels and with cuDNN in bfloat16, against
float32. Then everything in one run, on random pixels: the usual loop; one member alone; fleets. Members are Trainers,
with all that a run does but evaluations, which are measured elsewhere; a step of each in turn, as Fleet takes them;
whole epochs are timed, after a first one that captures the graphs.

    python benchmarks/fleet.py [--only check reference alone fleet growth compiled] [--tiles t.json] [--out out.json]
"""

import argparse
import gc
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from reference_loop import epochs_of, random_cifar
from torch import Tensor

from longtail.data import Resident
from longtail.models import Model, build_model
from longtail.models.kernels import chain
from longtail.models.kernels.configs import use_tiles
from longtail.train import Recipe, RunFolder, Trainer, defaults, stages
from longtail.train.drivers import Captured, Eager
from longtail.train.step import Step

PARTS = ("check", "reference", "alone", "fleet", "growth", "compiled")
TWELVE = 12
GROWTH = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
MEASURED = {"reference": 1.31, "compiled": 2.5e-3}
"""Seconds, of the usual loop's epoch and of a compiled graph's step, on an H200: used where a part is left out."""
FAST = {"precision": "bf16", "channels_last": True}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def choose(kernels: str) -> dict[str, str]:
    """Have the networks that are built from now on use these kernels; settings of a recipe that says so itself."""
    if any(field.name == "kernels" for field in fields(Recipe)):
        return {"kernels": kernels}

    def build(*arguments: Any, **options: Any) -> Model:
        model = build_model(*arguments, **options)
        model.backbone.kernels = kernels  # type: ignore[attr-defined]
        return model

    stages.build_model = build
    return {}


def eager(step: Step, loader: Resident, mixup: float) -> Eager:
    """In place of a driver that captures its steps."""
    return Eager(step, loader, mixup=mixup)


class Team:
    """Members that were each driven through a first epoch."""

    def __init__(self, root: Path, number: int, kernels: str, **settings: Any) -> None:
        base = replace(
            defaults("cifar10-lt", "cbs", 100),
            root=str(root), epochs=200, evaluate_every=0, checkpoint_epochs=0, checkpoint_minutes=1e6,
            device=DEVICE, **settings, **choose(kernels),
        )  # fmt: skip
        gc.collect()
        before = len(chain._plans)
        self.folder = tempfile.TemporaryDirectory()
        self.members = [
            Trainer(replace(base, seed=seed), RunFolder(Path(self.folder.name) / str(seed))) for seed in range(number)
        ]
        self.epoch = -(-len(self.members[0].dataset.train) // base.batch_size)
        self.turns: list[Iterator[None]] = [member.steps() for member in self.members]
        begin = time.perf_counter()
        self._take(number, 1)
        self.ready = time.perf_counter() - begin
        planned = len(chain._plans) - before  # networks that the Triton kernels have run
        if DEVICE == "cuda" and planned != (number if kernels == "triton" else 0):
            print(
                f"WRONG: {planned} of {number} networks ran on Triton's kernels, but {kernels} was asked for",
                flush=True,
            )

    def _take(self, number: int, epochs: int) -> None:
        for _ in range(epochs * self.epoch):
            for turn in self.turns[:number]:
                next(turn)
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    def seconds(self, number: int | None = None, epochs: int = 1) -> float:
        """Seconds of a step and model, of the first ``number`` members together."""
        number = number or len(self.members)
        begin = time.perf_counter()
        self._take(number, epochs)
        return (time.perf_counter() - begin) / (number * epochs * self.epoch)

    def close(self) -> None:
        for turn in self.turns:
            turn.close()
        self.turns, self.members = [], []
        gc.collect()
        self.folder.cleanup()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


def check() -> dict[str, Any]:
    """One step of a fresh network: errors against float32, of loss and gradient."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {}
    for batch in (128, 118):
        images = torch.randn(batch, 3, 32, 32, generator=generator).to(DEVICE)
        labels = torch.randint(10, (batch,), generator=generator).to(DEVICE)
        results: dict[str, tuple[float, Tensor]] = {}
        for name, kernels, bf16 in (("fp32", "torch", False), ("cudnn", "torch", True), ("triton", "triton", True)):
            model = build_model("resnet32", 10).to(DEVICE).to(memory_format=torch.channels_last)
            model.backbone.kernels = kernels  # type: ignore[attr-defined]
            with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
                logits = model(images).logits
            loss = F.cross_entropy(logits.float(), labels)
            loss.backward()
            gradient = torch.cat([one.grad.flatten().double() for one in model.parameters()])
            results[name] = (float(loss.detach()), gradient)
        exact = results.pop("fp32")
        for name, (value, gradient) in results.items():
            found[f"{name}, batch {batch}"] = {
                "loss": value,
                "loss, fp32": exact[0],
                "relative error of the gradient": float((gradient - exact[1]).norm() / exact[1].norm()),
                "cosine": float(F.cosine_similarity(gradient, exact[1], 0)),
            }
        errors = [found[f"{name}, batch {batch}"]["relative error of the gradient"] for name in ("triton", "cudnn")]
        if not errors[0] < 1.3 * errors[1] + 1e-4:
            raise SystemExit(f"The Triton kernels' gradient errs by {errors[0]:.3f}, cuDNN's by {errors[1]:.3f}.")
    return found


def measure(root: Path, parts: list[str], rows: dict[str, dict[str, Any]]) -> None:
    """Add to ``rows`` what was found: seconds of a step and model by name."""

    def row(name: str, seconds: float, **more: Any) -> None:
        rows[name] = {"ms": 1e3 * seconds, **more}
        print(f"  {name}: {1e3 * seconds:.3f} ms", flush=True)

    if "reference" in parts:
        found = epochs_of(root, 2, device=DEVICE)
        row("the usual loop", min(found) / 97, epochs=found)
    if "alone" in parts:
        for name, driver, kernels, settings in (
            ("one, cuDNN fp32, eager", eager, "torch", {}),
            ("one, cuDNN fp32", Captured, "torch", {}),
            ("one, cuDNN bf16 channels_last", Captured, "torch", FAST),
            ("one, Triton bf16", Captured, "triton", FAST),
        ):
            stages.Captured = driver  # type: ignore[attr-defined]
            team = Team(root, 1, kernels, **settings)
            row(name, team.seconds(), ready=team.ready)
            team.close()
    if "fleet" in parts:
        for name, kernels in (("cuDNN bf16 channels_last", "torch"), ("Triton bf16", "triton")):
            team = Team(root, TWELVE, kernels, **FAST)
            row(f"{TWELVE}, {name}", min(team.seconds() for _ in range(3)), ready=team.ready)
            team.close()
    if "growth" in parts:
        before = torch.cuda.memory_reserved() if DEVICE == "cuda" else 0
        team = Team(root, GROWTH[-1], "triton", **FAST)
        held = torch.cuda.memory_reserved() - before if DEVICE == "cuda" else 0
        for number in GROWTH:
            row(
                f"{number} of {GROWTH[-1]}, Triton bf16",
                team.seconds(number),
                gigabytes=held / GROWTH[-1] * number / 1e9,
            )
        team.close()
    if "compiled" in parts:
        team = Team(root, 1, "torch", **FAST, compile=True)
        row("one, cuDNN bf16 channels_last, compiled", team.seconds(), ready=team.ready)
        team.close()


def show(rows: dict[str, dict[str, Any]]) -> None:
    """The table, with the goals beside it."""
    usual = rows.get("the usual loop", {"ms": 1e3 * MEASURED["reference"] / 97})["ms"]
    compiled = rows.get("one, cuDNN bf16 channels_last, compiled", {"ms": 1e3 * MEASURED["compiled"]})["ms"]
    print(f"\n{'':44}{'ms a step':>10}{'s an epoch':>12}{'x usual':>9}{'x compiled':>12}  goal")
    for name, found in rows.items():
        ms = found["ms"]
        goal = ""
        if name.startswith(f"{TWELVE}, Triton"):
            reached = [usual / ms >= 25, compiled / ms >= 4.5, usual / ms >= 40]
            goals = zip(("25 x usual", "4.5 x compiled", "40 x usual"), reached, strict=True)
            goal = ", ".join(f"{one}: {'yes' if yes else 'no'}" for one, yes in goals)
        print(f"{name:44}{ms:10.3f}{ms * 97 / 1e3:12.3f}{usual / ms:9.1f}{compiled / ms:12.1f}  {goal}")
    for part, name in (("reference", "the usual loop"), ("compiled", "one, cuDNN bf16 channels_last, compiled")):
        if name not in rows:
            print(f"({name}: not run; an earlier measurement stands in, {MEASURED[part]} s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--tiles", type=Path, help="what tune_kernels.py found")
    parser.add_argument(
        "--images", type=int, default=10_000, help="of each of CIFAR-10's files; fewer to try the script"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.tiles:
        use_tiles(given.tiles)
    began = time.perf_counter()
    checked = check() if "check" in given.only else {}
    for name, values in checked.items():
        print(name, {key: round(value, 5) for key, value in values.items()}, flush=True)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        measure(random_cifar(Path(temporary), given.images), given.only, rows)
    show(rows)
    print(f"{time.perf_counter() - began:.0f} s in all")
    if given.out:
        about = {
            "gpu": torch.cuda.get_device_name() if DEVICE == "cuda" else None,
            "torch": torch.__version__, "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"), "command": " ".join(sys.argv),
        }  # fmt: skip
        given.out.write_text(json.dumps({**about, "check": checked, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
