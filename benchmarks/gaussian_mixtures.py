"""Gaussian mixtures whose Bayes rule is known: does ``beta = "auto"`` find the right beta?

auto: train with beta 1, measure delta with `fit_shift` on held-out data, subtract delta log N; beta_auto = 1 + delta.

Hypotheses and their criteria, written before the runs reported here:

H1. As data grow, beta_auto tends to 1 and auto's balanced error to the Bayes error; a fixed beta other than 1 keeps an
    excess. Criterion: at the largest n the mean beta_auto is within 0.1 of 1; auto's excess over the Bayes error falls
    with every n, and at the largest n it is less than half that of beta 0, 1.5 and 2. Not claimed for `misspecified`,
    whose model cannot represent the Bayes rule.
H2. Where the best fixed beta (an oracle: chosen on the test sample) is 0.25 or more away from 1, auto tracks it.
    Criterion in each such cell: auto has less error than Balanced Softmax (beta 1), one-sided paired t test over seeds,
    p < 0.05, and at most 0.5 points more than the best fixed beta.

Data: 10 classes, means on a sphere of radius 3, a new mixture per seed; variances are 1, or differ by class and axis
in [1/2, 2]. Counts decrease exponentially, imbalance 100 or 10; the smallest class has 5 to 640 examples, so n grows
128-fold. Models: logistic regression (LBFGS to convergence, weak weight decay on the weights, none on the bias) and an
MLP with 64 hidden units (AdamW, cosine schedule, training loss near zero at small n).

Held-out data as in the trainer: pilots that hold out another tenth each, at least one sample per class, pooled until
the standard error of delta is below 0.25, at most five; the final model uses all data. The variant "validation set"
measures delta of the final model on 20 new samples per class instead.

Error: the test sample has 3000 points per class; a prediction c at x is wrong with probability 1 - p(c | x), which is
known, so labels add no noise, and no excess is negative. Seeds 100-119 (100-109 from n = 20,000 on) were fixed
beforehand. Regimes were chosen after five trials of linear models and two of the MLP on seeds 0-9.

Why logistic regression needs a beta above 1 at all: its bias absorbs any shift, so training with beta gives the weights
of beta 1 and a bias that is lower by (beta - 1) log N, and beta_auto is the same from every start. But this bias is
right for *training* samples. Each of them pulls the weights of its class towards itself, the more so the fewer there
are (about d / N_c): on new data the logits of rare classes are lower, and a further shift is needed. This vanishes as
n grows.

Result (results/auto_beta/gaussian.json). H1: beta_auto tends to 1 (0.98 to 1.01 at the largest n) and auto's excess
falls with n everywhere. The last criterion holds for `linear` (0.14 points; beta 1.5: 1.86), but not for `linear-10`
(0.36; 0.69) and `mlp` (2.54; 4.43), whose own excess at the largest n is still too large. H2 holds at the smallest n of
every regime (gains over Balanced Softmax of 0.4 to 2.9 points) and in `linear-10` also at n = 690; it fails at n = 4215
of `linear` and n = 2325 of `linear-10`, where auto is as good as Balanced Softmax, not better. Where the best beta is
within 0.25 of 1, auto costs 0.0 to 0.35 points. One reason is noise: with one or two held-out samples of rare classes
the standard error is too low, and pilots end too early (`linear`, n = 4215: median 0.21, but beta_auto has SD 0.45).
Tried afterwards on that cell: five pilots gave SD 0.12 and a gain of 0.28 ± 0.07 over Balanced Softmax, at a mean
beta of 1.71: cross entropy is lowest above the best beta, 1.44.
`decay` was cut to the three smallest n, before it was run, for lack of time.

Hardware: one core of a CPU, shared with other jobs; about 25 minutes of CPU time.

    python benchmarks/gaussian_mixtures.py --out results/auto_beta/gaussian.json --figure docs/images/gaussian_mixtures
    python benchmarks/gaussian_mixtures.py --quick  # seconds; says nothing about the hypotheses
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from record import save
from timing import wall_seconds
from torch import Tensor

from longtail.beta import ShiftFit, fit_shift
from longtail.data.datasets.long_tail import long_tail_counts
from longtail.losses import ClassBalancedSoftmaxLoss
from longtail.study.figures.style import legend_below, marks_of, panels, save_figure, style

CLASSES = 10
RADIUS = 3.0
GRID = [tenth / 10 for tenth in range(41)]  # betas of the oracle
FOLDS, MOST_PILOTS, ENOUGH = 10, 5, 0.25  # as in the trainer
TRAINED = {"linear": [1.0], "mlp": [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]}
FIRST_SEED = 100


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


UNEQUAL = {"dim": 20, "spread": math.log(2.0)}
REGIMES = {
    "linear": Regime("logistic regression, imbalance 100"),
    "mlp": Regime("MLP, unequal covariances, imbalance 100", model="mlp", decay=1e-4, **UNEQUAL),
    "linear-10": Regime("logistic regression, imbalance 10", imbalance=10.0),
    "decay": Regime("logistic regression, tenfold weight decay, imbalance 100", decay=1.0, smallest=(5, 17, 57)),
    "misspecified": Regime("logistic regression, unequal covariances, imbalance 100", **UNEQUAL),
}


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


class Member(NamedTuple):
    """A model to train: on which rows, with which counts and beta."""

    rows: Tensor
    counts: Tensor
    beta: float


Predict = Callable[[Tensor], list[Tensor]]
"""Plain logits of each member."""


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
    loss_of = ClassBalancedSoftmaxLoss(counts, beta=beta)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = loss_of(x @ weight.T + bias, y) + decay / 2 / len(x) * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return weight.detach(), bias.detach()


def train_linear(x: Tensor, y: Tensor, members: Sequence[Member], regime: Regime, _: int) -> Predict:
    """Logistic regression for each member."""
    fitted = [fit_linear(x[rows], y[rows], counts, beta, regime.decay) for rows, counts, beta in members]
    return lambda x: [x @ weight.T + bias for weight, bias in fitted]


def train_mlp(x: Tensor, y: Tensor, members: Sequence[Member], regime: Regime, seed: int) -> Predict:
    """An MLP per member, all trained together from the same initial weights."""
    generator = torch.Generator().manual_seed(seed)
    models, hidden, batch, rate = len(members), 64, 128, 3e-3
    first = torch.randn(regime.dim, hidden, generator=generator) * (2 / regime.dim) ** 0.5
    second = torch.randn(hidden, CLASSES, generator=generator) * hidden**-0.5
    weights = [each.repeat(models, 1, 1).requires_grad_() for each in (first, second)]
    biases = [torch.zeros(models, 1, width, requires_grad=True) for width in (hidden, CLASSES)]
    groups = [{"params": weights, "weight_decay": regime.decay}, {"params": biases, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=rate)
    losses = [ClassBalancedSoftmaxLoss(member.counts, beta=member.beta) for member in members]

    def forward(x: Tensor) -> Tensor:
        inner = torch.relu(torch.baddbmm(biases[0], x, weights[0]))
        return torch.baddbmm(biases[1], inner, weights[1])

    x = x.float()
    steps = min(max(20 * len(x) // batch, regime.steps[0]), regime.steps[1])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        drawn = [torch.randint(len(member.rows), (batch,), generator=generator) for member in members]
        rows = torch.stack([member.rows[some] for member, some in zip(members, drawn, strict=True)])
        logits, labels = forward(x[rows]), y[rows]
        optimiser.zero_grad()
        sum(loss(z, c) for loss, z, c in zip(losses, logits, labels, strict=True)).backward()
        optimiser.step()
        schedule.step()

    @torch.no_grad()
    def predict(x: Tensor) -> list[Tensor]:
        return list(forward(x.float().expand(models, -1, -1)).double())

    return predict


TRAIN = {"linear": train_linear, "mlp": train_mlp}


# --- auto


def held_out(counts: Tensor, fold: int, seed: int) -> Tensor:
    """Whether each sample, sorted by class, is in this fold: a tenth of each class, but at least one sample of two."""
    generator = torch.Generator().manual_seed(seed)
    chosen, begin = torch.zeros(int(counts.sum()), dtype=torch.bool), 0
    for c, number in enumerate(counts.tolist()):
        order, place = begin + torch.randperm(number, generator=generator), fold + c
        if number >= 2:
            chosen[order[place % FOLDS :: FOLDS] if number >= FOLDS else order[place % number]] = True
        begin += number
    return chosen


def pooled_fit(x: Tensor, y: Tensor, counts: Tensor, regime: Regime, seed: int) -> tuple[ShiftFit, int]:
    """The shift measured on the held-out samples of pilots trained with beta 1, and how many were needed."""
    logits, labels = [], []
    waves = [[0], [1, 2, 3, 4]] if regime.model == "mlp" else [[fold] for fold in range(MOST_PILOTS)]
    for wave in waves:  # MLPs train together in the time of two
        outside = [held_out(counts, fold, seed) for fold in wave]
        members = [Member((~o).nonzero().flatten(), torch.bincount(y[~o], minlength=CLASSES), 1.0) for o in outside]
        predict = TRAIN[regime.model](x, y, members, regime, seed + 1)
        for place, some in enumerate(outside):
            logits.append(predict(x[some])[place])
            labels.append(y[some])
            fit = fit_shift(torch.cat(logits), torch.cat(labels), counts)
            if fit.problem is None and fit.std_error < ENOUGH:
                return fit, len(logits)
    return fit, len(logits)


def usable(fit: ShiftFit) -> float:
    """Delta; 0, i.e. Balanced Softmax, if it must not be used."""
    return fit.delta if fit.problem is None else 0.0


# --- the experiment


def one_seed(regime: Regime, smallest: int, seed: int) -> dict[str, Any]:
    """Errors and betas of all methods on one mixture and one training sample."""
    generator = torch.Generator().manual_seed(seed)
    mixture = mixture_of(regime, generator)
    counts = long_tail_counts(CLASSES, round(smallest * regime.imbalance), regime.imbalance)
    x, y = mixture.sample(counts, generator)
    points, _ = mixture.sample(torch.full((CLASSES,), regime.test), generator)
    posterior, log_counts = mixture.posterior(points), counts.double().log()

    # Training logistic regression with beta equals a shift of beta 1 (see above), so one model gives the whole grid.
    trained = TRAINED[regime.model]
    everything = torch.arange(len(x))
    predict = TRAIN[regime.model](x, y, [Member(everything, counts, beta) for beta in trained], regime, seed)
    logits = dict(zip(trained, predict(points), strict=True))

    def shifted(beta: float) -> float:
        return excess_error(logits[1.0] - (beta - 1) * log_counts, posterior)

    shifts = [shifted(beta) for beta in GRID]
    errors = [excess_error(z, posterior) for z in logits.values()] if regime.model == "mlp" else shifts
    fit, pilots = pooled_fit(x, y, counts, regime, seed)
    new, labels = mixture.sample(torch.full((CLASSES,), 20), generator)
    checked = fit_shift(predict(new)[trained.index(1.0)], labels, counts)
    return {
        "bayes": bayes_error(posterior),
        "fixed": errors,
        "auto": shifted(1 + usable(fit)),
        "validation": shifted(1 + usable(checked)),
        "oracle": min(shifts),
        "beta_auto": 1 + usable(fit),
        "beta_validation": 1 + usable(checked),
        "beta_oracle": GRID[int(np.argmin(shifts))],
        "std_error": fit.std_error,
        "pilots": pilots,
        "problems": fit.problem is not None,
    }


def mean_se(values: Sequence[float]) -> list[float]:
    """Mean and standard error, rounded for the file."""
    return [round(float(np.mean(values)), 5), round(float(np.std(values, ddof=1) / len(values) ** 0.5), 5)]


def one_size(regime: Regime, smallest: int) -> dict[str, Any]:
    """A row of the table: all seeds of one n."""
    from scipy.stats import ttest_1samp  # noqa: PLC0415 - an extra

    n = int(long_tail_counts(CLASSES, round(smallest * regime.imbalance), regime.imbalance).sum())
    seeds = regime.seeds[n >= 20_000]
    found = [one_seed(regime, smallest, FIRST_SEED + seed) for seed in range(seeds)]
    columns = {name: np.array([one[name] for one in found], dtype=float) for name in found[0]}
    betas = TRAINED["mlp"] if regime.model == "mlp" else GRID
    of_beta = {beta: columns["fixed"][:, place] for place, beta in enumerate(betas)}
    best = min(betas, key=lambda beta: of_beta[beta].mean())
    gain = of_beta[1.0] - columns["auto"]
    return {
        "smallest": smallest,
        "n": n,
        "seeds": seeds,
        "bayes": mean_se(columns["bayes"]),
        "excess": {
            "softmax": mean_se(of_beta[0.0]),
            "Balanced Softmax": mean_se(of_beta[1.0]),
            "beta 1.5": mean_se(of_beta[1.5]),
            "beta 2": mean_se(of_beta[2.0]),
            "auto": mean_se(columns["auto"]),
            "auto, validation set": mean_se(columns["validation"]),
            "best fixed beta (oracle)": mean_se(of_beta[best]),
            "best beta of each seed (oracle)": mean_se(columns["oracle"]),
        },
        "best_fixed": best,
        "beta": {name: mean_se(columns[f"beta_{name}"]) for name in ("auto", "validation", "oracle")},
        "gain_over_balanced": mean_se(gain),
        "gain_p": float(ttest_1samp(gain, 0.0, alternative="greater").pvalue),
        "loss_to_best": mean_se(columns["auto"] - of_beta[best]),
        "fixed": {str(beta): round(float(errors.mean()), 5) for beta, errors in of_beta.items() if not beta % 0.5},
        "std_error": round(float(np.median(columns["std_error"])), 3),
        "pilots": float(columns["pilots"].mean()),
        "problems": int(columns["problems"].sum()),
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


def print_row(row: dict[str, Any]) -> None:
    """Per cent, ± standard error."""
    cells = [f"{100 * mean:6.2f} ±{100 * se:.2f}" for mean, se in (row["bayes"], *row["excess"].values())]
    betas = [f"{mean:5.2f} ±{se:.2f}" for mean, se in row["beta"].values()]
    print(f"{row['n']:>7} {row['seeds']:>3} ", *cells, f"| {row['best_fixed']:.1f}", *betas, flush=True)


def measure(regime: Regime) -> Iterator[dict[str, Any]]:
    """Yield all rows so far after each new one."""
    rows: list[dict[str, Any]] = []
    settings = {name: value for name, value in asdict(regime).items() if name not in ("smallest", "seeds")}
    print(f"\n{regime.title}: Bayes error in %, excess errors in points, betas (best fixed; auto, validation, oracle)")
    for smallest in regime.smallest:
        rows.append(one_size(regime, smallest))
        if len(rows) == 1:
            print("      n seeds bayes |", " | ".join(rows[0]["excess"]))
        print_row(rows[-1])
        yield {"settings": settings, "rows": rows, "verdicts": verdicts(rows)}


@style()
def figure_of(parts: dict[str, Any]) -> Any:
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
    parser.add_argument("--draw", type=Path, metavar="JSON", help="measure nothing: draw the figure from this file")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path, help="path of the figure without extension")
    given = parser.parse_args()
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Any] = {}
    tiny = {"smallest": (3, 6), "dim": 5, "test": 100, "seeds": (2, 2), "steps": (20, 20)}

    def run() -> None:
        for name in given.only:
            for part in measure(replace(REGIMES[name], **tiny) if given.quick else REGIMES[name]):
                parts[name] = part
                save(given.out, parts)
            print(json.dumps(parts[name]["verdicts"]), flush=True)

    if given.draw:
        parts = json.loads(given.draw.read_text(encoding="utf-8"))["parts"]
    else:
        print(f"\n{wall_seconds(run):.0f} s")
    if given.figure:
        print(*save_figure(figure_of(parts), given.figure, ("png",)))


if __name__ == "__main__":
    main()
