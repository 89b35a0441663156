"""Time of a training step per model, alone and in a fleet: ResNet-32 on CIFAR-10-LT (12,406 images, batch 128).

Goals per model on one H200: a fleet of twelve is at least 25 times faster than the usual loop (``reference_loop.py``)
and 4.5 times faster than one captured, compiled model; the next goal is 40 times.

First, loss and gradients of one step with the Triton kernels and with cuDNN in bfloat16 are checked against float32.
Then everything is timed in one run, on random pixels: the usual loop, one model alone, fleets. Models are Trainers that
do all that a run does except evaluations, which ``evaluation.py`` measures. They take one step each in turn, kept in
step as Fleet does, or not. Times are of whole epochs, the best of three after a first one that captures the graphs.
``growth`` adds models step by step and records the memory reserved for all. Rows are saved as they are measured; parts
that are left out keep their committed results.

    python benchmarks/fleet.py [--only check reference alone fleet growth compiled] [--tiles t.json] [--out out.json]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from record import save
from reference_loop import epochs_of, random_cifar
from team import FAST, Team
from timing import DEVICE
from torch import Tensor

from longtail.data import Resident
from longtail.kernels import use_kernels
from longtail.kernels.configs import Tile, use_tiles
from longtail.models import build_model
from longtail.train import stages
from longtail.train.drivers import Captured, Eager
from longtail.train.fleet import ROUNDS
from longtail.train.step import Step

PARTS = ("check", "reference", "alone", "fleet", "growth", "compiled")
TABLE = ("reference", "alone", "fleet", "compiled")  # parts with named rows
TWELVE = 12
GROWTH = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
EARLIER = {"the usual loop": 1.31e3 / 97, "one, cuDNN bf16 channels_last, compiled": 2.5}
"""Milliseconds per step on an H200, used in the printed table if a part is left out."""

Part = dict[str, Any]


def eager(step: Step, loader: Resident, mixup: float, last: int, cutmix: float) -> Eager:  # noqa: ARG001 - as Captured
    return Eager(step, loader, mixup=mixup, cutmix=cutmix)


def check() -> dict[str, Any]:
    """Errors of loss and gradient of one step of a new network, against float32."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {}
    for batch in (128, 118):
        images = torch.randn(batch, 3, 32, 32, generator=generator).to(DEVICE)
        labels = torch.randint(10, (batch,), generator=generator).to(DEVICE)
        results: dict[str, tuple[float, Tensor]] = {}
        for name, kernels, bf16 in (("fp32", "torch", False), ("cudnn", "torch", True), ("triton", "triton", True)):
            model = build_model("resnet32", 10).to(DEVICE).to(memory_format=torch.channels_last)
            use_kernels(model, DEVICE, kernels=kernels)
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
            raise SystemExit(f"wrong result: gradient errors are {errors[0]:.3f} (Triton) and {errors[1]:.3f} (cuDNN)")
    return found


def row(name: str, seconds: float, **more: Any) -> Part:
    print(f"  {name}: {1e3 * seconds:.3f} ms", flush=True)
    return {"ms": 1e3 * seconds, **more}


def best(team: Team) -> float:
    """Seconds per step and model in the best of three epochs, as for the usual loop."""
    return min(team.step_seconds() for _ in range(3))


# --- one generator per part: it yields all rows so far after each new one


def reference(root: Path) -> Iterator[Part]:
    found = epochs_of(root, 4, device=DEVICE)
    yield {"rows": {"the usual loop": row("the usual loop", min(found) / 97, epochs=found)}}


def alone(root: Path) -> Iterator[Part]:
    rows: Part = {}
    for name, driver, kernels, settings in (
        ("one, cuDNN fp32, eager", eager, "torch", {}),
        ("one, cuDNN fp32", Captured, "torch", {}),
        ("one, cuDNN bf16 channels_last", Captured, "torch", FAST),
        ("one, Triton bf16", Captured, "triton", FAST),
    ):
        stages.Captured = driver  # type: ignore[attr-defined]
        team = Team(root, 1, kernels, **settings)
        rows[name] = row(name, best(team), ready=team.ready)
        team.close()
        yield {"rows": rows}


def fleet(root: Path) -> Iterator[Part]:
    rows: Part = {}
    for kind, kernels in (("cuDNN bf16 channels_last", "torch"), ("Triton bf16", "triton")):
        team = Team(root, TWELVE, kernels, **FAST)
        for pace, rounds in (("", ROUNDS), (", not kept in step", 0)):
            team.rounds = rounds
            rows[f"{TWELVE}, {kind}{pace}"] = row(f"{TWELVE}, {kind}{pace}", best(team), ready=team.ready)
            yield {"rows": rows}
        team.close()


def growth(root: Path, numbers: list[int]) -> Iterator[Part]:
    rows: list[Part] = []
    before = torch.cuda.memory_reserved() if DEVICE == "cuda" else 0
    team = Team(root, 0, "triton", **FAST)
    for number in numbers:
        team.add(number - len(team.members))
        found = row(f"{number} at a time, Triton bf16", best(team))
        memory = (torch.cuda.memory_reserved() - before) / 1e9 if DEVICE == "cuda" else None
        rows.append({"members": number, **found, "gigabytes": memory})
        yield {"memory": "reserved", "rows": rows}
    team.close()


def compiled(root: Path) -> Iterator[Part]:
    team = Team(root, 1, "torch", **FAST, compile=True)
    name = "one, cuDNN bf16 channels_last, compiled"
    yield {"rows": {name: row(name, best(team), ready=team.ready)}}
    team.close()


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print the table with the goals."""
    usual, compiled = (rows.get(name, {"ms": ms})["ms"] for name, ms in EARLIER.items())
    print(f"\n{'':48}{'ms per step':>12}{'s per epoch':>12}{'x usual':>9}{'x compiled':>12}  goal")
    for name, found in rows.items():
        ms = found["ms"]
        goal = ""
        if name == f"{TWELVE}, Triton bf16":
            reached = [usual / ms >= 25, compiled / ms >= 4.5, usual / ms >= 40]
            goals = zip(("25 x usual", "4.5 x compiled", "40 x usual"), reached, strict=True)
            goal = ", ".join(f"{one}: {'yes' if yes else 'no'}" for one, yes in goals)
        print(f"{name:48}{ms:12.3f}{ms * 97 / 1e3:12.3f}{usual / ms:9.1f}{compiled / ms:12.1f}  {goal}")
    for name, ms in EARLIER.items():
        if name not in rows:
            print(f"({name}: not run; compared with an earlier measurement, {ms:.1f} ms)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--tiles", type=Path, help="a result file of tune_kernels.py")
    parser.add_argument("--images", type=int, default=10_000, help="images per CIFAR-10 file; fewer to try the script")
    parser.add_argument("--growth", type=int, nargs="+", default=list(GROWTH), help="numbers of models, increasing")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.tiles:
        rows = json.loads(given.tiles.read_text(encoding="utf-8"))["best"]
        use_tiles({(r["operation"], r["read"], r["written"]): Tile(**r["tile"]) for r in rows})
    began = time.perf_counter()
    parts: dict[str, Part] = {}
    if "check" in given.only:
        parts["check"] = {"steps": check()}
        for name, values in parts["check"]["steps"].items():
            print(name, {key: round(value, 5) for key, value in values.items()}, flush=True)
        save(given.out, parts)
    with tempfile.TemporaryDirectory() as temporary:
        root = random_cifar(Path(temporary), given.images)
        run = {
            "reference": reference, "alone": alone, "fleet": fleet, "compiled": compiled,
            "growth": partial(growth, numbers=given.growth),
        }  # fmt: skip
        for name in PARTS[1:]:
            for part in run[name](root) if name in given.only else ():
                parts[name] = part
                save(given.out, parts)
    show({name: one for part in TABLE for name, one in parts.get(part, {"rows": {}})["rows"].items()})
    print(f"{time.perf_counter() - began:.0f} s in total")


if __name__ == "__main__":
    main()
