"""Time of Class-Balanced Softmax: linear layer + CBS against linear layer + ``F.cross_entropy``.

Goal: forward and backward within 2 % of plain cross entropy, with the same peak memory, at 256 x 1000, 256 x 8142 and
4096 x 100,000 logits from 2048 features, on one H200: either with the shift inside the matrix product
(``shifted_linear``) or added to the logits (the module), whichever suits the size. Rows over the goal are marked; the
goal is about CUDA graphs if there is a GPU, else about eager steps.

First, loss and gradients are checked against float64. Then the variants run in turn, and the table shows ratios of
medians. "again" is the plain loss a second time, which shows the noise. ``graph`` replays CUDA graphs: the work of the
GPU alone. ``eager`` launches the same step from Python: at 256 rows it waits for the launches, so it shows the
cost of one more launch. Sizes are saved as they are measured; sizes that are left out keep their committed results.

    python benchmarks/loss.py [--only '256 x 1000'] [--out results.json]
"""

import argparse
import functools
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from record import device_name, save
from timing import DEVICE, captured, peak_bytes, seconds

from longtail import ClassBalancedSoftmaxLoss, shifted_linear

GOAL = 1.02
SIZES = {"cuda": [(256, 1000), (256, 8142), (4096, 100_000)], "cpu": [(256, 1000), (256, 8142)]}
FEATURES = {"cuda": 2048, "cpu": 64}
BETA = 1.5
CAPTURES = 8
VARIANTS = {"plain": "plain", "again": "plain", "shifted_linear": "shifted_linear", "module": "module"}


class Problem:
    """The inputs of one size in one precision, and a step (forward and backward) of each variant."""

    def __init__(self, rows: int, classes: int, features: int, device: str, autocast: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        counts = (1e6 * torch.arange(1, classes + 1) ** -1.0).long().clamp(min=1)  # Zipf's law

        def randn(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(device)

        self.h = randn(rows, features).requires_grad_()
        self.w = (randn(classes, features) / features**0.5).requires_grad_()
        self.b = (0.1 * randn(classes)).requires_grad_()
        self.y = torch.randint(classes, (rows,), generator=generator).to(device)
        self.loss = ClassBalancedSoftmaxLoss(counts, beta=BETA).to(device)
        self.device, self.autocast = device, autocast

    def parameters(self) -> list[torch.Tensor]:
        return [self.h, self.w, self.b]

    def plain(self) -> torch.Tensor:
        return F.cross_entropy(F.linear(self.h, self.w, self.b), self.y)

    def shifted_linear(self) -> torch.Tensor:
        return F.cross_entropy(shifted_linear(self.h, self.w, self.b, self.loss.logit_shift), self.y)

    def module(self) -> torch.Tensor:
        return self.loss(F.linear(self.h, self.w, self.b), self.y)

    def clear(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    def step(self, variant: str) -> torch.Tensor:
        self.clear()
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.autocast):
            loss: torch.Tensor = getattr(self, variant)()
        loss.backward()
        return loss.detach()


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def check(problem: Problem, rows: int = 64) -> dict[str, float]:
    """Largest relative error of loss and gradients against float64, for a few rows since float64 is slow."""
    h, w, b = (p.detach()[:rows] if p is problem.h else p.detach() for p in problem.parameters())
    h64, w64, b64 = (p.double().requires_grad_() for p in (h, w, b))
    y = problem.y[:rows]
    shift = BETA * problem.loss.counts.double().log()
    expected = F.cross_entropy(F.linear(h64, w64, b64) + shift, y)
    expected.backward()
    errors = {}
    for variant in ("shifted_linear", "module"):
        small = Problem.__new__(Problem)
        small.__dict__.update(problem.__dict__)
        small.h, small.w, small.b = (p.clone().requires_grad_() for p in (h, w, b))
        small.y = y
        loss = small.step(variant)
        pairs = [(loss, expected.detach())]
        pairs += [(p.grad, q.grad) for p, q in zip(small.parameters(), (h64, w64, b64), strict=True)]
        errors[variant] = max(relative_error(found, wanted) for found, wanted in pairs)
    return errors


def compare(problem: Problem, mode: str, rounds: int, budget: float) -> tuple[float, dict[str, float]]:
    """Milliseconds of the plain loss, and the ratio of each variant to it.

    The time of a graph depends by some per cent on the addresses of its memory, so each variant is captured several
    times, in turn, and the median of the best capture counts.
    """
    labels = list(VARIANTS)
    captures = CAPTURES if mode == "graph" else 1
    medians: dict[str, list[float]] = {label: [] for label in labels}
    for capture in range(captures):
        turned = labels[capture % len(labels) :] + labels[: capture % len(labels)]
        runs: dict[str, Callable[[], object]] = {
            label: captured(functools.partial(problem.step, VARIANTS[label]))
            if mode == "graph"
            else functools.partial(problem.step, VARIANTS[label])
            for label in turned
        }
        for run in runs.values():
            seconds(run, 3, problem.device)
        share = budget / captures / len(labels) / seconds(runs["plain"], 3, problem.device)  # runs that fit the budget
        turns = max(3, min(rounds, int(share)))
        times: dict[str, list[float]] = {label: [] for label in labels}
        for turn in range(turns):
            for label in labels[turn % len(labels) :] + labels[: turn % len(labels)]:
                times[label].append(seconds(runs[label], max(1, int(share / turns)), problem.device))
        for label in labels:
            medians[label].append(statistics.median(times[label]))
    best = {label: min(medians[label]) for label in labels}
    return 1000 * best["plain"], {label: best[label] / best["plain"] for label in labels}


def measure(size: tuple[int, int], device: str, autocast: bool, rounds: int, budget: float) -> list[dict[str, object]]:
    """The rows of the table for one size and precision."""
    problem = Problem(*size, FEATURES[device], device, autocast)
    errors = check(problem)
    if max(errors.values()) > (2e-2 if autocast else 1e-4):
        raise SystemExit(f"wrong result, relative errors {errors}")
    memory = {}
    for variant in ("plain", "shifted_linear", "module") if device == "cuda" else ():
        memory[variant] = peak_bytes(functools.partial(problem.step, variant), problem.clear)
    rows: list[dict[str, object]] = []
    modes = ("eager", "graph") if device == "cuda" else ("eager",)
    for mode in modes:
        plain_ms, ratios = compare(problem, mode, rounds, budget)
        more = {variant: peak / memory["plain"] for variant, peak in memory.items() if variant != "plain"}
        kind = "bf16" if autocast else "fp32"
        print(
            f"{size[0]:>6} x {size[1]:>6} {kind:>5} {mode:>6} {plain_ms:>7.3f} ms {ratios['again']:>6.3f} "
            f"{ratios['shifted_linear']:>14.3f} {ratios['module']:>7.3f}   "
            + " ".join(f"{variant} {ratio:.3f}" for variant, ratio in more.items())
            + "".join(
                f"  {v} over the goal" for v in ("shifted_linear", "module") if mode == modes[-1] and ratios[v] > GOAL
            ),
            flush=True,
        )
        rows.append(
            {
                "rows": size[0],
                "classes": size[1],
                "type": kind,
                "mode": mode,
                "plain_ms": round(plain_ms, 4),
                "ratio": {label: round(ratio, 4) for label, ratio in ratios.items()},
                "peak_memory_ratio": {variant: round(ratio, 4) for variant, ratio in more.items()},
                "relative_error": errors,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the JSON file for the results")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--budget", type=float, default=4.0, help="seconds per row of the table")
    device = DEVICE
    sizes = {f"{rows} x {classes}": (rows, classes) for rows, classes in SIZES[device]}
    parser.add_argument("--only", nargs="+", choices=list(sizes), default=list(sizes), metavar="'ROWS x CLASSES'")
    arguments = parser.parse_args()
    print(f"{device_name()}, torch {torch.__version__}, {FEATURES[device]} features, beta {BETA}, goal {GOAL:.2f}")
    print(
        f"{'logits':>15} {'type':>5} {'mode':>6} {'plain':>10} {'again':>6} "
        f"{'shifted_linear':>14} {'module':>7}   peak memory"
    )
    parts: dict[str, dict[str, object]] = {}
    for name in arguments.only:
        rows: list[dict[str, object]] = []
        for autocast in (False, True) if device == "cuda" else (False,):
            rows += measure(sizes[name], device, autocast, arguments.rounds, arguments.budget)
            parts[name] = {"features": FEATURES[device], "beta": BETA, "goal": GOAL, "rows": rows}
            save(arguments.out, parts)


if __name__ == "__main__":
    main()
