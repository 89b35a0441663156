"""Time and memory of ProCo and BCL, forward and backward, against ProCo's loss in its published style.

Goals on one H200 at a batch of 256: with 8142 classes and 1024 dimensions, ProCo is at least 40 times faster than
its published loss (231 ms and 24.4 GB when measured) and needs 50 times less memory, BCL takes at most 3 ms; with 100
classes and 128 dimensions both take less than 1 ms.

First, results are checked against explicit float64 formulas. ``plain`` is ProCo's loss in the style of its repository,
rewritten here: it counts classes with a one-hot (N, C, p), takes the norm of an (N, C, p), and computes Bessel
functions by Miller's recurrence downwards from twice the order, with a test for overflow at each step. It is skipped if
memory is short. ``proco`` is our loss of one view, like the published figures, including the update of its statistics;
``proco 2`` and ``bcl`` are the losses of two views (512 queries). ``graph`` replays a CUDA graph; ``eager`` is launched
from Python. Times are medians; memory is the peak beyond inputs and state. Sizes are saved as they are measured; sizes
that are left out keep their committed results.

    python benchmarks/contrastive.py [--only '100 classes, 128-d'] [--out results.json]
"""

import argparse
import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from record import device_name, save
from timing import DEVICE, captured, median_ms, peak_bytes
from torch import Tensor

from longtail.losses import BalancedContrastiveLoss, ProCoLoss, proco_logits

SIZES = {"cuda": [(256, 100, 128), (256, 1000, 1024), (256, 8142, 1024)], "cpu": [(32, 100, 128)]}
PUBLISHED = {(256, 100, 128): (24.0, None), (256, 1000, 1024): (230.0, 3.0), (256, 8142, 1024): (231.0, 24.4)}
"""Milliseconds and GB of ProCo's published loss on one H200."""
GOALS = {
    ((256, 8142, 1024), "proco"): ("40 x faster, 50 x less memory than published", 231.0 / 40, 24.4e9 / 50),
    ((256, 8142, 1024), "bcl"): ("3 ms", 3.0, math.inf),
    ((256, 100, 128), "proco"): ("1 ms", 1.0, math.inf),
    ((256, 100, 128), "proco 2"): ("1 ms", 1.0, math.inf),
    ((256, 100, 128), "bcl"): ("1 ms", 1.0, math.inf),
}
TEMPERATURE = 0.07


def miller(order: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """log I_order(x) - x and log I_(order+1)(x) - x, by the recurrence from twice the order down to 0."""
    now, above = torch.ones_like(x), torch.zeros_like(x)
    scale = torch.zeros_like(x)
    kept = {}
    for n in range(2 * order, 0, -1):
        below = 2 * n / x * now + above
        if torch.isinf(below).any():  # the host waits for the GPU at every step
            scale = scale + now.log()
            below, now = 2 * n / x + above / now, torch.ones_like(now)
        above, now = now, below
        if n in (order, order + 1):
            kept[n] = above.log() + scale
    at_zero = torch.special.i0e(x).log() - now.log() - scale
    return kept[order] + at_zero, kept[order + 1] + at_zero


class PlainRatio(torch.autograd.Function):
    """log I_nu(k) - nu log k, with the ratio of Bessel functions as its derivative."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, dim: int) -> Tensor:
        order = dim // 2 - 1
        low, high = miller(order, k.double())
        ctx.save_for_backward((high - low).exp().clamp(max=1.0))
        return low + k - order * k.log()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.saved_tensors[0], None


def plain_logits(features: Tensor, mu: Tensor, kappa: Tensor) -> Tensor:
    norm = (kappa.unsqueeze(1) * mu + features.unsqueeze(1) / TEMPERATURE).norm(dim=2)
    return PlainRatio.apply(norm, mu.shape[1]) - PlainRatio.apply(kappa, mu.shape[1])


class PlainProCo:
    """ProCo's loss in its published style, with matrices of samples x classes x dimensions."""

    def __init__(self, counts: Tensor, dim: int, mean: Tensor) -> None:
        self.shift = (counts / counts.sum()).log()
        self.means = [mean.clone(), mean.clone()]  # over the last and this epoch, and over this epoch
        self.amounts = [torch.full_like(self.shift, 10.0), torch.zeros_like(self.shift)]
        self.dim = dim

    def __call__(self, features: Tensor, target: Tensor) -> Tensor:
        classes = self.shift.numel()
        with torch.no_grad():
            for i in range(2):
                onehot = F.one_hot(target, classes).to(features.dtype)
                spread = features.unsqueeze(1) * onehot.unsqueeze(2)
                number = onehot.sum(0)
                mean = spread.sum(0) / number.clamp(min=1).unsqueeze(1)
                share = (number / (number + self.amounts[i])).nan_to_num(0.0).unsqueeze(1)
                self.means[i] = (1 - share) * self.means[i] + share * mean
                self.amounts[i] = self.amounts[i] + number
            length = self.means[0].norm(dim=1)
            kappa = (self.dim * length / (1 - length**2)).clamp(max=1e5)
        logits = plain_logits(features, F.normalize(self.means[0], dim=1), kappa)
        return F.cross_entropy(logits + self.shift, target)


class Problem:
    """The inputs of one size, and a step (forward and backward) of each variant."""

    def __init__(self, rows: int, classes: int, dim: int, device: str) -> None:
        generator = torch.Generator().manual_seed(0)

        def unit(*shape: int) -> Tensor:
            return F.normalize(torch.randn(*shape, generator=generator), dim=-1).to(device)

        self.target = torch.randint(classes, (rows,), generator=generator).to(device)
        self.prototypes = unit(classes, dim).requires_grad_()
        self.views = F.normalize(self.prototypes.detach()[self.target] + unit(2, rows, dim), dim=-1).requires_grad_()
        counts = (1e4 * torch.arange(1, classes + 1) ** -1.0).long().clamp(min=1)
        self.loss = ProCoLoss(counts, dim, beta=1.0, temperature=TEMPERATURE).to(device)
        self.contrast = BalancedContrastiveLoss(TEMPERATURE)
        self.published = PlainProCo(counts.to(device), dim, self.loss.statistics.mean)
        self.device, self.size = device, (rows, classes, dim)

    def run(self, variant: str) -> Tensor:
        if variant == "bcl":
            value = self.contrast(self.views, self.target, self.prototypes)
        elif variant == "plain":
            value = self.published(self.views[0], self.target)
        else:
            value = self.loss(self.views if variant == "proco 2" else self.views[:1], self.target)
        result: Tensor = value
        return result

    def clear(self) -> None:
        self.views.grad = self.prototypes.grad = None

    def step(self, variant: str) -> Tensor:
        self.clear()
        value = self.run(variant)
        value.backward()
        return value.detach()

    def plain_bytes(self) -> float:
        """The memory of about three matrices of samples x classes x dimensions."""
        rows, classes, dim = self.size
        return 3.2 * 4 * rows * classes * dim


def check(problem: Problem) -> dict[str, float]:
    """Largest errors for a few rows against float64: ProCo's logits and gradients, BCL's loss and gradients."""
    rows, classes, dim = 8, min(problem.size[1], 64), problem.size[2]
    features = problem.views.detach()[0, :rows]
    mu = F.normalize(problem.prototypes.detach()[:classes] + features[:1], dim=1)
    kappa = torch.linspace(0.05, 0.9, classes, device=problem.device, dtype=torch.float64)
    kappa = dim * kappa / (1 - kappa**2)
    errors = {}

    found, exact = features.clone().requires_grad_(), features.double().requires_grad_()
    logits = proco_logits(F.normalize(found, dim=1), mu, kappa, TEMPERATURE)
    wanted = plain_logits(F.normalize(exact, dim=1), F.normalize(mu.double(), dim=1), kappa)
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)).to(problem.device)
    (grad,), (wanted_grad,) = (
        torch.autograd.grad((z * weight).sum(), f) for z, f in ((logits, found), (wanted, exact))
    )
    errors["proco logits, absolute"] = float((logits - wanted).detach().abs().max())
    errors["proco gradient, relative"] = float((grad - wanted_grad).norm() / wanted_grad.norm())

    view, target, prototypes = problem.views.detach()[:, :rows], problem.target[:rows], problem.prototypes.detach()
    leaf, centre = view.clone().requires_grad_(), prototypes.clone().requires_grad_()
    value = problem.contrast(leaf, target, centre)
    exact, exact_centre = view.double().requires_grad_(), prototypes.double().requires_grad_()
    flat, labels = exact.flatten(0, 1), target.repeat(2)
    total = torch.zeros((), dtype=torch.float64, device=problem.device)
    for i in range(2 * rows):  # the definition: averages per class, without the query itself
        apart = torch.arange(2 * rows, device=problem.device) != i
        similarity = torch.cat([flat[apart], exact_centre]) @ flat[i] / TEMPERATURE
        of = torch.cat([labels[apart], torch.arange(problem.size[1], device=problem.device)])
        sums = torch.zeros(problem.size[1], dtype=torch.float64, device=problem.device)
        means = sums.index_add(0, of, similarity.exp()) / of.bincount(minlength=problem.size[1])
        total = total + means.sum().log() - similarity[of == labels[i]].mean()
    total = total / (2 * rows)
    grads = torch.autograd.grad(value, (leaf, centre)), torch.autograd.grad(total, (exact, exact_centre))
    errors["bcl loss, relative"] = float(((value - total) / total).detach().abs())
    errors["bcl gradient, relative"] = max(float((a - b).norm() / b.norm()) for a, b in zip(*grads, strict=True))
    if errors["proco logits, absolute"] > 1e-5 or max(list(errors.values())[1:]) > 1e-4:
        raise SystemExit(f"wrong result: {errors}")
    return errors


def measure(size: tuple[int, int, int], device: str, budget: float) -> dict[str, object]:
    """The results of one size."""
    problem = Problem(*size, device)
    errors = check(problem)
    variants = ["proco", "proco 2", "bcl"]
    room = torch.cuda.mem_get_info()[0] if device == "cuda" else 2e9
    if problem.plain_bytes() < room:
        variants.insert(0, "plain")
    result: dict[str, object] = {"rows": size[0], "classes": size[1], "dim": size[2], "errors": errors}
    times: dict[tuple[str, str], float] = {}
    for variant in variants:
        step = partial(problem.step, variant)
        peak = peak_bytes(step, problem.clear) or 0
        entry: dict[str, object] = {"peak_bytes": peak} if peak else {}
        for mode in ("eager", "graph") if device == "cuda" and variant != "plain" else ("eager",):
            times[variant, mode] = ms = median_ms(captured(step) if mode == "graph" else step, budget, device)
            entry[f"{mode}_ms"] = round(ms, 4)
            against = ""
            if variant == "proco" and ("plain", "eager") in times:
                ratio = times["plain", "eager"] / ms
                entry[f"{mode}_times_plain"] = round(ratio, 2)
                against = f"{ratio:>7.1f} x plain"
            goal = GOALS.get((size, variant))
            verdict = f"  goal {goal[0]}: {'yes' if ms <= goal[1] and peak <= goal[2] else 'NO'}" if goal else ""
            memory = f"{peak / 1e6:>9.1f} MB" if device == "cuda" else f"{'':12}"
            print(
                f"{size[0]:>6} {size[1]:>6} {size[2]:>5} {variant:>8} {mode:>6} {ms:>9.3f} ms "
                f"{memory} {against:>15}{verdict}",
                flush=True,
            )
        result[variant] = entry
    if size in PUBLISHED:
        ms, gigabytes = PUBLISHED[size]
        result["published"] = {"ms": ms, "gigabytes": gigabytes}
        print(f"{'':>20} published, measured earlier: {ms:g} ms" + (f", {gigabytes:g} GB" if gigabytes else ""))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the JSON file for the results")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds per row of the table")
    device = DEVICE
    sizes = {f"{classes} classes, {dim}-d": (rows, classes, dim) for rows, classes, dim in SIZES[device]}
    parser.add_argument("--only", nargs="+", choices=list(sizes), default=list(sizes), metavar="'N classes, N-d'")
    arguments = parser.parse_args()
    print(f"{device_name()}, torch {torch.__version__}, temperature {TEMPERATURE}")
    print(f"{'rows':>6} {'classes':>6} {'dim':>4} {'loss':>8} {'mode':>6} {'time':>12} {'peak memory':>12}")
    parts: dict[str, dict[str, object]] = {}
    for name in arguments.only:
        parts[name] = {"temperature": TEMPERATURE, **measure(sizes[name], device, arguments.budget)}
        save(arguments.out, parts)


if __name__ == "__main__":
    main()
