"""What Class-Balanced Softmax costs: linear layer + CBS against linear layer + ``F.cross_entropy``.

Claim: forward and backward, with the shift inside the product (``shifted_linear``), within 2 % of plain cross entropy
at 256 x 1000, 256 x 8142 and 4096 x 100,000 logits from 2048 features, with the same peak memory, on one H200.

How: correctness first (loss and gradients against float64); then in every round each variant runs once, in turn, and a
round's ratio is to the plain loss of the same round; the table shows the median ratio over rounds. "again" is the plain
loss a second time: what the ratio does when nothing differs. ``eager`` is timed as a training loop runs it (with the
launches), ``graph`` replays a captured CUDA graph (the device's work alone).

    python benchmarks/loss.py [--out results.json]
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from longtail import ClassBalancedSoftmaxLoss, shifted_linear

GOAL = 1.02
SIZES = {"cuda": [(256, 1000), (256, 8142), (4096, 100_000)], "cpu": [(256, 1000), (256, 8142)]}
FEATURES = {"cuda": 2048, "cpu": 64}
BETA = 1.5


class Problem:
    """One size in one precision: inputs, and a forward and backward pass by each variant."""

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
        return F.cross_entropy(shifted_linear(self.h, self.w, self.b, self.loss.shift), self.y)

    def module(self) -> torch.Tensor:
        return self.loss(F.linear(self.h, self.w, self.b), self.y)

    def step(self, variant: str) -> torch.Tensor:
        for parameter in self.parameters():
            parameter.grad = None
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.autocast):
            loss: torch.Tensor = getattr(self, variant)()
        loss.backward()
        return loss.detach()


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def check(problem: Problem, rows: int = 64) -> dict[str, float]:
    """Largest relative error of loss and gradients against float64, over a few rows (float64 is slow)."""
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


def captured(problem: Problem, variant: str) -> Callable[[], object]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            problem.step(variant)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        problem.step(variant)
    return graph.replay


def seconds(run: Callable[[], object], repeats: int, device: str) -> float:
    if device != "cuda":
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - start) / repeats
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000 / repeats


def compare(runs: dict[str, Callable[[], object]], device: str, rounds: int, budget: float) -> dict[str, list[float]]:
    """Seconds of each run in each round; the order turns from round to round."""
    for run in runs.values():
        seconds(run, 3, device)
    repeats = max(3, int(budget / rounds / len(runs) / seconds(runs["plain"], 5, device)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(seconds(runs[name], repeats, device))
    return times


def peak_memory(problem: Problem, variant: str) -> int:
    problem.step(variant)
    for parameter in problem.parameters():
        parameter.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    problem.step(variant)
    return torch.cuda.max_memory_allocated() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results here, as JSON")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--budget", type=float, default=4.0, help="seconds for each row of the table")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    print(f"{name}, torch {torch.__version__}, {FEATURES[device]} features, beta {BETA}, goal {GOAL:.2f}")
    print(
        f"{'logits':>15} {'type':>5} {'mode':>6} {'plain':>9} {'again':>6} {'shifted_linear':>14} {'module':>7}  memory"
    )
    rows = []
    for size in SIZES[device]:
        for autocast in (False, True) if device == "cuda" else (False,):
            problem = Problem(*size, FEATURES[device], device, autocast)
            errors = check(problem)
            limit = 2e-2 if autocast else 1e-4
            assert max(errors.values()) < limit, f"wrong: {errors}"
            memory = {}
            if device == "cuda":
                memory = {v: peak_memory(problem, v) for v in ("plain", "shifted_linear", "module")}
            for mode in ("eager", "graph") if device == "cuda" else ("eager",):
                variants = {"plain": "plain", "again": "plain", "shifted_linear": "shifted_linear", "module": "module"}
                runs = {
                    label: captured(problem, v) if mode == "graph" else (lambda v=v: problem.step(v))
                    for label, v in variants.items()
                }
                times = compare(runs, device, arguments.rounds, arguments.budget)
                ratios = {
                    label: statistics.median(t / p for t, p in zip(times[label], times["plain"], strict=True))
                    for label in runs
                }
                more = {v: memory[v] / memory["plain"] for v in memory}
                rows.append(
                    {
                        "rows": size[0],
                        "classes": size[1],
                        "type": "bf16" if autocast else "fp32",
                        "mode": mode,
                        "plain_ms": 1000 * statistics.median(times["plain"]),
                        "ratio": ratios,
                        "peak_memory_ratio": more,
                        "relative_error": errors,
                    }
                )
                print(
                    f"{size[0]:>6} x {size[1]:>6} {rows[-1]['type']:>5} {mode:>6} {rows[-1]['plain_ms']:>6.3f} ms "
                    f"{ratios['again']:>6.3f} {ratios['shifted_linear']:>14.3f} {ratios['module']:>7.3f}  "
                    + " ".join(f"{v} {r:.3f}" for v, r in more.items()),
                    flush=True,
                )
                del runs
            del problem
    if arguments.out:
        result = {
            "device": name,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
            "features": FEATURES[device],
            "beta": BETA,
            "goal": GOAL,
            "rounds": arguments.rounds,
            "rows": rows,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
