"""Gaussian mixtures whose Bayes rule is known: does ``beta = "auto"`` find the right beta?

auto: train with beta 1, measure delta with `fit_shift` on held-out data, subtract delta log N; beta_auto = 1 + delta.

Hypotheses and their criteria, written before all runs:

H1. As data grow, beta_auto tends to 1 and auto's balanced error to the Bayes error; a fixed beta other than 1 keeps an
    excess. Criterion: at the largest n the mean beta_auto is within 0.1 of 1; auto's excess over the Bayes error falls
    with every n, and at the largest n it is less than half that of beta 0, 1.5 and 2. Not claimed for `misspecified`,
    whose model cannot represent the Bayes rule.
H2. Where the best fixed beta (an oracle: chosen on the test sample) is 0.25 or more away from 1, auto tracks it.
    Criterion in each such cell: auto has less error than Balanced Softmax (beta 1), one-sided paired t test over seeds,
    p < 0.05, and at most 0.5 points more than the best fixed beta.

Second run, on fresh seeds: in the first (seeds 100-119) the trainer added pilots until the standard error was below
0.25 and often stopped too early; it now derives their number from the counts, a change made after looking at that run.
To save time, `decay` (tenfold weight decay) was dropped, and `misspecified` has only the three smallest n.

Data: 10 classes, means on a sphere of radius 3, a new mixture per seed; variances are 1, or differ by class and axis
in [1/2, 2]. Counts decrease exponentially, imbalance 100 or 10; the smallest class has 5 to 640 examples, so n grows
128-fold. Models: logistic regression (LBFGS to convergence, weak weight decay on the weights, none on the bias) and an
MLP with 64 hidden units (AdamW, cosine schedule, training loss near zero at small n).

Held-out data as in the trainer: `pilots_needed` pilots that hold out another tenth each, at least one sample per class,
pooled; the final model uses all data. The variant "auto, validation set" measures delta of the final model on 20 new
samples per class instead.

Error: the test sample has 3000 points per class; a prediction c at x is wrong with probability 1 - p(c | x), which is
known, so labels add no noise, and no excess is negative. Seeds 200-219 (200-209 from n = 20,000 on) were fixed
beforehand. Regimes were chosen on seeds 0-9.

Why logistic regression needs a beta above 1 at all: its bias absorbs any shift, so training with beta gives the weights
of beta 1 and a bias that is lower by (beta - 1) log N, and beta_auto is the same from every start. But this bias is
right for *training* samples. Each of them pulls the weights of its class towards itself, the more so the fewer there
are (about d / N_c): on new data the logits of rare classes are lower, and a further shift is needed. This vanishes as
n grows.

Result (results/auto_beta/gaussian.json). H1: beta_auto is 0.99 to 1.00 at the largest n, and auto's excess falls with
every n. The last criterion holds for `linear` (0.15 points; beta 1.5: 1.73), barely for `linear-10` (0.36; 0.74; it
failed in the first run: 0.36; 0.69), and not for `mlp` (2.61; 4.31), where Balanced Softmax has the same excess, 2.60.
H2 applies to seven cells and holds in five: the smallest n of every regime and n = 690 of `linear-10` (gains over
Balanced Softmax of 0.5 to 2.7 points). It fails, as in the first run, at n = 4215 of `linear` (gain 0.18 ± 0.13,
p = 0.08) and n = 2325 of `linear-10` (-0.07 ± 0.06): beta_auto is 1.7 there, the best fixed beta 1.4. In all seven auto
is within 0.3 points of the best fixed beta. Where the best fixed beta is within 0.25 of 1, auto costs at most 0.1
points, and gains 0.18 ± 0.05 at n = 4215 of `mlp`. No fit was refused.

Hardware: one core of a CPU, shared with other jobs; 18 minutes of CPU time.

    python benchmarks/gaussian_mixtures.py --out results/auto_beta/gaussian.json --figure docs/images/gaussian_mixtures
    python benchmarks/gaussian_mixtures.py --show results/auto_beta/gaussian.json
    python benchmarks/gaussian_mixtures.py --quick  # seconds; says nothing about the hypotheses
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from record import save
from torch import Tensor
from torch.nn.functional import cross_entropy

from longtail.beta import ShiftFit
from longtail.data import DataSet, Split, hold_out_fold, long_tail_counts
from longtail.losses import class_shift
from longtail.study.figures.style import legend_below, marks_of, panels, save_figure, style
from longtail.train.pilots import FOLDS, pilots_needed, pooled_fit

CLASSES = 10
RADIUS = 3.0
GRID = [tenth / 10 for tenth in range(41)]  # betas of the oracle
TRAINED = {"linear": [1.0], "mlp": [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]}
FIRST_SEED = 200


@dataclass(frozen=True)
class Regime:
    """A mixture and a model."""

    title: str
    model: str = "linear"
    dim: int = 40
    spread: float = 0.0
    """Variances are exp(u), u uniform in ±spread, per class and axis."""
    imbalance: float = 100.0
    decay: float = 0.1
    """The sum of losses has decay / 2 |W|²; for the MLP, the decoupled decay of AdamW."""
    smallest: tuple[int, ...] = (5, 17, 57, 190, 640)
    test: int = 3000
    seeds: tuple[int, int] = (20, 10)
    """Below n = 20,000, and from there on."""
    steps: tuple[int, int] = (1500, 4000)
    """Fewest and most steps of the MLP, about 20 epochs in between."""

    def counts(self, smallest: int) -> Tensor:
        """Training examples per class."""
        return long_tail_counts(CLASSES, round(smallest * self.imbalance), self.imbalance)


UNEQUAL = {"dim": 20, "spread": math.log(2.0)}
REGIMES = {
    "linear": Regime("logistic regression, imbalance 100"),
    "mlp": Regime("MLP, unequal covariances, imbalance 100", model="mlp", decay=1e-4, **UNEQUAL),
    "linear-10": Regime("logistic regression, imbalance 10", imbalance=10.0),
    "misspecified": Regime("logistic regression, unequal covariances, imbalance 100", smallest=(5, 17, 57), **UNEQUAL),
}
QUICK = {"smallest": (3, 6), "imbalance": 10, "decay": 10, "dim": 5, "test": 100, "seeds": (2, 2), "steps": (20, 20)}


# --- the mixture


class Mixture(NamedTuple):
    """Gaussians with diagonal covariances, one per class."""

    means: Tensor
    variances: Tensor

    def sample(self, counts: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Points and their classes, sorted by class."""
        y = torch.repeat_interleave(torch.arange(len(counts)), counts)
        noise = torch.randn(len(y), self.means.shape[1], generator=generator, dtype=torch.float64)
        return self.means[y] + self.variances[y].sqrt() * noise, y

    def posterior(self, x: Tensor) -> Tensor:
        """p(c | x) if all classes are equally frequent; its largest entry is the prediction of the Bayes rule."""
        log_densities = [
            -((x - mean).square() / variance).sum(1) / 2 - variance.log().sum() / 2
            for mean, variance in zip(self.means, self.variances, strict=True)
        ]
        return torch.softmax(torch.stack(log_densities, 1), 1)


def mixture_of(regime: Regime, generator: torch.Generator) -> Mixture:
    """A random mixture."""
    means = torch.randn(CLASSES, regime.dim, generator=generator, dtype=torch.float64)
    exponents = 2 * torch.rand(CLASSES, regime.dim, generator=generator, dtype=torch.float64) - 1
    return Mixture(RADIUS * means / means.norm(dim=1, keepdim=True), torch.exp(regime.spread * exponents))


def bayes_error(posterior: Tensor) -> float:
    """The balanced error of the Bayes rule."""
    return float((1 - posterior.amax(1)).mean())


def excess_error(logits: Tensor, posterior: Tensor) -> float:
    """The balanced error of a classifier minus that of the Bayes rule, on the same points."""
    chosen = posterior.gather(1, logits.argmax(1, keepdim=True)).squeeze(1)
    return float((posterior.amax(1) - chosen).mean())


# --- the models


class Task(NamedTuple):
    """What a model is trained on: rows of the training sample, their number per class, and beta."""

    rows: Tensor
    counts: Tensor
    beta: float = 1.0


Model = Callable[[Tensor], Tensor]
"""From points to plain logits."""


def fit_linear(x: Tensor, y: Tensor, counts: Tensor, beta: float, decay: float) -> tuple[Tensor, Tensor]:
    """Weight and bias of logistic regression, to convergence, from the Bayes rule of the class means."""
    weight = torch.zeros(CLASSES, x.shape[1], dtype=x.dtype).index_add_(0, y, x) / counts[:, None]
    bias = -weight.square().sum(1) / 2
    optimiser = torch.optim.LBFGS(
        [weight.requires_grad_(), bias.requires_grad_()],
        max_iter=1000,
        history_size=20,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-6,
        tolerance_change=1e-10,
    )
    shift = class_shift(counts, beta)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = cross_entropy(x @ weight.T + bias + shift, y) + decay / 2 / len(x) * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return weight.detach(), bias.detach()


def train_linear(x: Tensor, y: Tensor, tasks: Sequence[Task], regime: Regime, _: int) -> list[Model]:
    """Logistic regression for each task."""
    fitted = [fit_linear(x[rows], y[rows], counts, beta, regime.decay) for rows, counts, beta in tasks]
    return [lambda x, weight=weight, bias=bias: x @ weight.T + bias for weight, bias in fitted]


def train_mlp(x: Tensor, y: Tensor, tasks: Sequence[Task], regime: Regime, seed: int) -> list[Model]:
    """An MLP for each task, all trained together from the same initial weights."""
    generator = torch.Generator().manual_seed(seed)
    models, hidden, batch, rate = len(tasks), 64, 128, 3e-3
    first = torch.randn(regime.dim, hidden, generator=generator) * (2 / regime.dim) ** 0.5
    second = torch.randn(hidden, CLASSES, generator=generator) * hidden**-0.5
    weights = [each.repeat(models, 1, 1).requires_grad_() for each in (first, second)]
    biases = [torch.zeros(models, 1, width, requires_grad=True) for width in (hidden, CLASSES)]
    groups = [{"params": weights, "weight_decay": regime.decay}, {"params": biases, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=rate, fused=True)
    shifts = torch.stack([class_shift(task.counts, task.beta) for task in tasks])[:, None]

    x = x.float()
    steps = min(max(20 * len(x) // batch, regime.steps[0]), regime.steps[1])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        rows = torch.stack([task.rows[torch.randint(len(task.rows), (batch,), generator=generator)] for task in tasks])
        inner = torch.relu(torch.baddbmm(biases[0], x[rows], weights[0]))
        logits = torch.baddbmm(biases[1], inner, weights[1]) + shifts
        optimiser.zero_grad()
        (models * cross_entropy(logits.flatten(0, 1), y[rows].flatten())).backward()
        optimiser.step()
        schedule.step()

    layers = zip(weights[0].detach(), biases[0].detach(), weights[1].detach(), biases[1].detach(), strict=True)
    return [lambda x, w=w, b=b, v=v, a=a: (torch.relu(x.float() @ w + b) @ v + a).double() for w, b, v, a in layers]


TRAIN = {"linear": train_linear, "mlp": train_mlp}


# --- the experiment


@dataclass(frozen=True)
class Rows:
    """Row numbers in place of the images of a data set."""

    numbers: Tensor

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int, /) -> Tensor:
        return self.numbers[index]

    def subset(self, indices: Tensor, /) -> "Rows":
        """The rows at these indices."""
        return Rows(self.numbers[indices])


def one_seed(regime: Regime, smallest: int, seed: int) -> dict[str, Any]:
    """Errors and betas of all methods on one mixture and one training sample."""
    generator = torch.Generator().manual_seed(seed)
    mixture, counts = mixture_of(regime, generator), regime.counts(smallest)
    x, y = mixture.sample(counts, generator)
    points, _ = mixture.sample(torch.full((CLASSES,), regime.test), generator)
    new, new_labels = mixture.sample(torch.full((CLASSES,), 20), generator)
    posterior, log_counts = mixture.posterior(points), counts.double().log()

    everything = Rows(torch.arange(len(x)))
    data = DataSet("mixture", tuple(map(str, range(CLASSES))), Split(everything, y))
    folds = [hold_out_fold(data, fold, FOLDS, seed) for fold in range(pilots_needed(counts))]
    betas = TRAINED[regime.model]
    tasks = [Task(everything.numbers, counts, beta) for beta in betas]
    tasks += [Task(fold.train.images.numbers, fold.counts) for fold in folds]
    models = TRAIN[regime.model](x, y, tasks, regime, seed)
    final, pilots = dict(zip(betas, models, strict=False)), models[len(betas) :]

    held_out = [(pilot(x[fold.val.images.numbers]), fold.val.labels) for pilot, fold in zip(pilots, folds, strict=True)]
    fit = pooled_fit(held_out, folds[0].counts)
    delta = used(fit)
    delta_validation = used(pooled_fit([(final[1.0](new), new_labels)], counts))

    balanced = final[1.0](points)

    def shifted(tau: float) -> float:
        return excess_error(balanced - tau * log_counts, posterior)

    # Training logistic regression with beta equals a shift of beta 1 (see above), so one model gives the whole grid.
    shifts = [shifted(beta - 1) for beta in GRID]
    trained = {beta: excess_error(model(points), posterior) for beta, model in final.items()}
    return {
        "bayes": bayes_error(posterior),
        "fixed": trained if regime.model == "mlp" else dict(zip(GRID, shifts, strict=True)),
        "auto": shifted(delta),
        "validation": shifted(delta_validation),
        "oracle": min(shifts),
        "beta_auto": 1 + delta,
        "beta_validation": 1 + delta_validation,
        "beta_oracle": GRID[int(np.argmin(shifts))],
        "std_error": fit.std_error,
        "pilots": len(pilots),
        "problem": fit.problem is not None,
    }


def used(fit: ShiftFit) -> float:
    """Delta, or 0 if it could not be measured."""
    return 0.0 if fit.problem else fit.delta


def mean_se(values: Sequence[float]) -> list[float]:
    """Mean and standard error, rounded for the file."""
    return [round(float(np.mean(values)), 5), round(float(np.std(values, ddof=1) / len(values) ** 0.5), 5)]


def one_size(regime: Regime, smallest: int) -> dict[str, Any]:
    """A row of the table: all seeds of one n."""
    from scipy.stats import ttest_1samp  # noqa: PLC0415 - an extra

    n = int(regime.counts(smallest).sum())
    seeds = range(FIRST_SEED, FIRST_SEED + regime.seeds[n >= 20_000])
    found = [one_seed(regime, smallest, seed) for seed in seeds]
    columns = {name: np.array([one[name] for one in found]) for name in found[0] if name != "fixed"}
    fixed = {beta: np.array([one["fixed"][beta] for one in found]) for beta in found[0]["fixed"]}
    best = min(fixed, key=lambda beta: fixed[beta].mean())
    gain = fixed[1.0] - columns["auto"]
    return {
        "smallest": smallest,
        "n": n,
        "seeds": len(seeds),
        "bayes": mean_se(columns["bayes"]),
        "excess": {
            "softmax": mean_se(fixed[0.0]),
            "Balanced Softmax": mean_se(fixed[1.0]),
            "beta 1.5": mean_se(fixed[1.5]),
            "beta 2": mean_se(fixed[2.0]),
            "auto": mean_se(columns["auto"]),
            "auto, validation set": mean_se(columns["validation"]),
            "best fixed beta (oracle)": mean_se(fixed[best]),
            "best beta of each seed (oracle)": mean_se(columns["oracle"]),
        },
        "best_fixed": best,
        "beta": {name: mean_se(columns[f"beta_{name}"]) for name in ("auto", "validation", "oracle")},
        "gain_over_balanced": mean_se(gain),
        "gain_p": float(ttest_1samp(gain, 0.0, alternative="greater").pvalue) if gain.any() else None,
        "loss_to_best": mean_se(columns["auto"] - fixed[best]),
        "std_error": round(float(np.median(columns["std_error"])), 3),
        "pilots": int(columns["pilots"][0]),
        "problems": int(columns["problem"].sum()),
    }


def verdicts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether the criteria of H1 (a statement about the largest n) and H2 (per cell where it applies) hold."""
    excess = [row["excess"]["auto"][0] for row in rows]
    last = rows[-1]
    others = [last["excess"][name][0] for name in ("softmax", "beta 1.5", "beta 2")]
    first = {
        "H1": {
            "beta within 0.1 of 1": abs(last["beta"]["auto"][0] - 1) <= 0.1,
            "excess falls": all(a > b for a, b in pairwise(excess)),
            "less than half that of other betas": 2 * excess[-1] < min(others),
        }
    }
    return (first if last["smallest"] == 640 else {}) | {
        "H2": {
            str(row["n"]): {
                "better than Balanced Softmax": row["gain_over_balanced"][0] > 0 and row["gain_p"] < 0.05,
                "within 0.5 points of the best": row["loss_to_best"][0] <= 0.005,
            }
            for row in rows
            if abs(row["best_fixed"] - 1) >= 0.25 - 1e-9
        },
    }


def measure(regimes: Mapping[str, Regime], out: Path | None) -> dict[str, Any]:
    """All parts of the result; the file is written after each row."""
    parts: dict[str, Any] = {}
    for name, regime in regimes.items():
        rows: list[dict[str, Any]] = []
        for smallest in regime.smallest:
            rows.append(one_size(regime, smallest))
            parts[name] = {"settings": asdict(regime), "rows": rows, "verdicts": verdicts(rows)}
            save(out, parts)
    return parts


# --- what is shown


def show(parts: Iterable[Mapping[str, Any]]) -> None:
    """Print errors in per cent and betas, ± standard error, and the verdicts."""
    for part in parts:
        print(f"\n{part['settings']['title']}: Bayes error, excess errors in points; betas; gain over Balanced Softmax")
        names = [*part["rows"][0]["excess"], "| best fixed", "auto", "validation", "oracle", "| gain", "p", "pilots"]
        print("n, seeds, Bayes |", ", ".join(names))
        for row in part["rows"]:
            errors = [f"{100 * mean:6.2f} ±{100 * se:.2f}" for mean, se in (row["bayes"], *row["excess"].values())]
            betas = [f"{mean:5.2f} ±{se:.2f}" for mean, se in row["beta"].values()]
            gain, se = row["gain_over_balanced"]
            p = "-" if row["gain_p"] is None else f"{row['gain_p']:.2g}"
            print(f"{row['n']:>7} {row['seeds']:>3}", *errors, f"| {row['best_fixed']:.1f}", *betas, end=" ")
            print(f"| {100 * gain:5.2f} ±{100 * se:.2f} {p} {row['pilots']}")
        for name, verdict in part["verdicts"].items():
            print(f"{name}: {json.dumps(verdict)}")


@style()
def figure_of(parts: Mapping[str, Any]) -> Any:
    """Excess error and beta over n, a row of panels per regime."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415 - an extra

    names = {
        "softmax": "softmax (β = 0)",
        "Balanced Softmax": "Balanced Softmax (β = 1)",
        "beta 1.5": "β = 1.5",
        "beta 2": "β = 2",
        "auto": "auto",
        "best beta of each seed (oracle)": "best β (oracle)",
    }
    marks = marks_of(list(names))
    chosen = [parts[name] for name in ("linear", "mlp") if name in parts] or list(parts.values())[:1]
    figure, flat = panels(2 * len(chosen), columns=2)
    for part, left, right in zip(chosen, flat[::2], flat[1::2], strict=True):
        rows, title = part["rows"], part["settings"]["title"].split(",")[0]
        n = [row["n"] for row in rows]
        for name, label in names.items():
            mean, se = 100 * np.array([row["excess"][name] for row in rows]).T
            left.errorbar(n, mean, se, label=label, **marks[name].options)
        for name, of in (("auto", "auto"), ("best beta of each seed (oracle)", "oracle")):
            mean, se = np.array([row["beta"][of] for row in rows]).T
            right.errorbar(n, mean, se, **marks[name].options)
        right.axhline(1.0, color="#8a8f99", linewidth=1.0)
        left.set_yscale("log")
        left.set_ylabel("balanced error − Bayes error (points)")
        right.set_ylabel("β")
        for axes in (left, right):
            axes.set_xscale("log")
            axes.set_xlabel("training samples")
            axes.set_title(title[0].upper() + title[1:])
        for axis in (left.xaxis, left.yaxis, right.xaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.set_minor_formatter(NullFormatter())
    legend_below(figure, flat[0], columns=3)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(REGIMES), default=list(REGIMES))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--show", type=Path, metavar="JSON", help="measure nothing: show the results in this file")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path, help="path of the figure without extension")
    given = parser.parse_args()
    if given.show:
        parts = json.loads(given.show.read_text(encoding="utf-8"))["parts"]
    else:
        parts = measure(
            {name: replace(REGIMES[name], **QUICK if given.quick else {}) for name in given.only}, given.out
        )
        print(f"{time.process_time():.0f} s of CPU time")
    show(parts.values())
    if given.figure:
        print(*save_figure(figure_of(parts), given.figure, ("png",)))


if __name__ == "__main__":
    main()
