"""Is beta = "auto" as good as a searched beta, and better than Balanced Softmax? C10-LT10, 50 and 100, 20 fresh seeds.

Written down on 2026-11-16, before the first of these runs. Recall over all classes on the test data of CIFAR-10, last
epoch, 200 epochs, the settings of the recipe; runs are paired by seed. Nothing is chosen on the test data, and no seed
is added later: the seeds are 1000 to 1019.

Changed on 2026-11-18, after nine seeds: runs about which there is a hypothesis come first, and the authors' row is
printed for the seeds that it has. Hypotheses, seeds and settings are the same.

H1  auto is not worse than the searched beta by more than 0.5 points on each of the three data sets: the lower end of
    the one-sided 95 % interval of the mean difference is above -0.5.
H2  auto is better than Balanced Softmax: p < 0.05 in two-sided paired t-tests, after Holm over the three data sets.
H3  auto costs at most 2.2 runs.

Written down on 2026-11-19, before the first of its runs, C10-LT100, seeds 1000 to 1004:

H4  BCL and ProCo with auto are better than with Balanced Softmax as their balanced part, which is the same run without
    the correction: p < 0.05 in two-sided paired t-tests, after Holm over the two methods.

- auto: trained with beta 1 on all images; a pilot on nine tenths of them measures beta; the rest of the shift is
  subtracted after training.
- Balanced Softmax: the logits of the same run without that correction, which are those of a Balanced Softmax run with
  the same seed (a test trains both and compares the weights).
- authors: beta 1.6, 1.5 and 1.8, from the authors' repository, chosen by them on the test data of other runs.
- searched: beta 1.5, 2 and 2, found by our search with cross-validation on training data (results/cifar10-lt).

    python benchmarks/auto_beta.py train [RESULTS] --runs runs/auto --root data [--seeds 1000 1010]   # one GPU; resumes
    python benchmarks/auto_beta.py contrast [RESULTS] --runs runs/auto --root data --seeds 1000 1005       # for H4
    python benchmarks/auto_beta.py collect runs/auto results/auto_beta/cifar10.json         # adds to the file
    python benchmarks/auto_beta.py test results/auto_beta/cifar10.json
    python benchmarks/auto_beta.py overhead --root data                                     # the cost of measuring
    python benchmarks/auto_beta.py curve results/auto_beta/curves.json --data digits-lt --imbalance 10
    python benchmarks/auto_beta.py draw results/auto_beta/curves.json docs/images/auto_beta.png

`train` and `contrast` leave out what the file RESULTS has. `curve` trains with fixed betas, measures the shift that the
held-out images of pilots with the same beta still need, and recall on test data before and after it is subtracted;
`draw` makes the figure of docs/auto_beta.md.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from record import about
from scipy import stats
from torch import Tensor

from longtail import adjust_logits
from longtail._io import write_json
from longtail.study.figures.style import style
from longtail.train import Recipe, RunFolder, defaults, train
from longtail.train.dataset import open_data
from longtail.train.pilots import FOLDS, pilots_needed, pooled_fit
from longtail.train.stored import stored_batches

BETAS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
SEARCHED = {10: 1.5, 50: 2.0, 100: 2.0}
MARGIN = 0.5


def recipes(seeds: range, root: str) -> list[Recipe]:
    """All runs, ordered by seed; those with the authors' beta, about which there is no hypothesis, come last."""
    tested, others = [], []
    for seed in seeds:
        for imbalance, searched in SEARCHED.items():
            usual = defaults("cifar10-lt", "cbs", imbalance).changed(seed=seed, root=root)
            tested += [usual.changed(beta="auto"), usual.changed(beta=searched)]
            others.append(usual)
    return tested + others


def contrastive_recipes(seeds: range, root: str) -> list[Recipe]:
    """BCL and ProCo with a measured beta, ordered by seed."""
    usual = [defaults("cifar10-lt", method, 100).changed(beta="auto", root=root) for method in ("bcl", "proco")]
    return [one.changed(seed=seed) for seed in seeds for one in usual]


def collect(runs: Path, out: Path) -> None:
    """Add the finished runs in a folder to a file: one row per run."""
    content = json.loads(out.read_text()) if out.exists() else {"about": [], "rows": []}
    rows = {_cell(row): row for row in content["rows"]}
    for file in sorted(runs.glob("*/result.json")):
        folder = RunFolder(file.parent)
        recipe, result = folder.recipe(), folder.result()
        beta = "auto" if recipe.beta is None else recipe.beta
        row: dict[str, Any] = {
            "method": recipe.method,
            "imbalance": recipe.imbalance,
            "beta": beta,
            "seed": recipe.seed,
        }
        row["recall"] = {group: 100 * value for group, value in result["splits"]["test"]["recall"].items()}
        if beta == "auto":
            row["auto_beta"] = result["auto_beta"]
            row["recall_without_correction"] = 100 * mean_recall(*_rows(folder, "test"))
        rows[_cell(row)] = row
    write_json(out, {"about": [*content["about"], about()], "rows": [rows[key] for key in sorted(rows, key=str)]})


def _cell(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["method"], row["imbalance"], row["beta"], row["seed"]


def test(file: Path) -> None:
    """Print the table and the verdict on each hypothesis."""
    rows = json.loads(file.read_text())["rows"]
    verdicts, p_values = [], []
    for imbalance, searched in SEARCHED.items():
        authors = defaults("cifar10-lt", "cbs", imbalance).beta
        of = {
            name: {row["seed"]: row for row in rows if _cell(row)[:3] == ("cbs", imbalance, beta)}
            for name, beta in (("auto", "auto"), ("authors", authors), ("searched", searched))
        }
        seeds = sorted(of["auto"].keys() & of["searched"].keys())
        recalls = {name: [one[seed]["recall"]["all"] for seed in seeds if seed in one] for name, one in of.items()}
        recalls["Balanced Softmax"] = [of["auto"][seed]["recall_without_correction"] for seed in seeds]
        betas = [of["auto"][seed]["auto_beta"]["beta"] for seed in seeds]
        pilots = sum(of["auto"][seed]["auto_beta"]["pilots"] for seed in seeds) / len(seeds)
        print(f"C10-LT{imbalance}, {len(seeds)} seeds; beta auto {_mean(betas)}; {pilots:g} pilots per run")
        for name, values in recalls.items():
            print(f"  {name:<17}{_mean(values)}, {len(values)} seeds")
        worse = stats.ttest_rel(recalls["auto"], recalls["searched"]).confidence_interval(0.90).low
        better = stats.ttest_rel(recalls["auto"], recalls["Balanced Softmax"])
        p_values.append(better.pvalue)
        verdicts.append((imbalance, worse, better))
    corrected = holm(p_values)
    for (imbalance, worse, better), p in zip(verdicts, corrected, strict=True):
        low, high = better.confidence_interval(0.95)
        print(f"C10-LT{imbalance}: H1 {'holds' if worse > -MARGIN else 'fails'}: auto - searched > {worse:+.2f}")
        right = better.statistic > 0 and p < 0.05
        print(f"  H2 {'holds' if right else 'fails'}: auto - Balanced Softmax {low:+.2f} to {high:+.2f}, p = {p:.2g}")
    if any(row["method"] != "cbs" for row in rows):
        _test_contrastive(rows)


def _test_contrastive(rows: list[dict[str, Any]]) -> None:
    found = {}
    for method in ("bcl", "proco"):
        of = [row for row in rows if row["method"] == method]
        auto, plain = ([row[name] for row in of] for name in ("recall", "recall_without_correction"))
        found[method] = stats.ttest_rel([recall["all"] for recall in auto], plain)
        groups = ", ".join(f"{group} {_mean([recall[group] for recall in auto])}" for group in auto[0])
        betas = _mean([row["auto_beta"]["beta"] for row in of])
        print(f"{method} on C10-LT100, {len(of)} seeds; beta auto {betas}: auto {groups}; without {_mean(plain)}")
    corrected = holm([one.pvalue for one in found.values()])
    for (method, one), p in zip(found.items(), corrected, strict=True):
        low, high = one.confidence_interval(0.95)
        right = one.statistic > 0 and p < 0.05
        print(f"{method}: H4 {'holds' if right else 'fails'}: auto - without {low:+.2f} to {high:+.2f}, p = {p:.2g}")


def holm(p_values: list[float]) -> list[float]:
    """P-values after Holm's correction."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    found, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        found[place] = largest
    return found


def _mean(values: list[float]) -> str:
    tensor = torch.tensor(values, dtype=torch.float64)
    return f"{float(tensor.mean()):.2f} ± {float(tensor.std()):.2f}"


def curve(out: Path, data: str, imbalance: float, *, seeds: int, root: str, runs: Path) -> None:
    """Train with each beta, and add one row per beta and seed to a file: the shift still needed, and test recall."""
    usual = defaults(data, "cbs", imbalance).changed(root=root, evaluate_every=0)
    counts = open_data(usual).counts
    places = [(beta, seed) for beta in BETAS for seed in range(2000, 2000 + seeds)]
    folds = range(pilots_needed(counts))
    several = [
        usual.changed(beta=beta, seed=seed, **held_out)
        for beta, seed in places
        for held_out in ({}, *({"folds": FOLDS, "fold": fold} for fold in folds))
    ]
    folders = iter(train(several, runs / f"{data}-{imbalance:g}"))
    rows = []
    for beta, seed in places:
        logits, labels = _rows(next(folders), "test")
        fit = pooled_fit([_rows(next(folders), "val") for _ in folds], counts)
        row: dict[str, Any] = {"beta": beta, "seed": seed, "fit": fit._asdict()}
        for name, tau in (("recall", 0.0), ("recall_after", 0.0 if fit.problem else fit.delta)):
            row[name] = 100 * mean_recall(adjust_logits(logits, counts, tau), labels)
        rows.append(row)
    content = json.loads(out.read_text()) if out.exists() else {}
    write_json(out, content | {f"{data} {imbalance:g}": {"about": about(), "rows": rows}})


def _rows(folder: RunFolder, split: str) -> tuple[Tensor, Tensor]:
    logits, labels = zip(*stored_batches(folder.predictions_file, split), strict=True)
    return torch.cat(logits), torch.cat(labels)


def mean_recall(logits: Tensor, labels: Tensor) -> float:
    """Mean recall over the classes."""
    classes = labels.unique()
    return sum(float((logits[labels == c].argmax(1) == c).double().mean()) for c in classes) / len(classes)


def draw(file: Path, out: Path) -> None:
    """Draw recall over beta, before and after the correction, above the shift that held-out data still needs."""
    content = json.loads(file.read_text())
    with style():
        figure, axes = plt.subplots(2, len(content), figsize=(3.1 * len(content), 4.6), sharex=True, squeeze=False)
        for (title, one), (top, bottom) in zip(content.items(), axes.T, strict=True):
            rows = one["rows"]
            seeds = len({row["seed"] for row in rows})
            for name, label, colour in (("recall", "fixed β", "C0"), ("recall_after", "fixed β, corrected", "C1")):
                values = torch.tensor([[row[name] for row in rows if row["beta"] == beta] for beta in BETAS])
                top.errorbar(BETAS, values.mean(1), values.std(1) / seeds**0.5, label=label, color=colour, capsize=2)
            top.set_title(f"{title}, {seeds} seeds")
            usable = [row for row in rows if row["fit"]["problem"] is None]
            total = sum(row["beta"] + row["fit"]["delta"] for row in usable) / len(usable)
            for row in usable:
                bottom.plot(row["beta"], row["fit"]["delta"], ".", color="C2", alpha=0.6)
            bottom.plot(BETAS, [total - beta for beta in BETAS], color="C2", label=f"{total:.2f} − β")
            bottom.axhline(0, color="0.6", linewidth=0.8)
            for axis in (top, bottom):
                axis.axvline(total, color="0.6", linestyle="dotted")
            bottom.set_xlabel("β of the loss")
            bottom.legend()
        axes[0, 0].set_ylabel("test recall, %")
        axes[1, 0].set_ylabel("δ on held-out data")
        axes[0, 0].legend()
        figure.tight_layout()
        figure.savefig(out, dpi=150)


def overhead(root: str, out: Path, epochs: int) -> None:
    """Time twelve runs with beta 1, and with beta measured on validation data in every second epoch, twice each."""
    usual = defaults("cifar10-lt", "cbs", 100).changed(root=root, epochs=epochs, validation=0.1, evaluate_every=2)
    seconds: dict[str, list[float]] = {"warm-up": [], "1": [], "auto": []}
    for number, name in enumerate(["warm-up", "1", "auto", "1", "auto"]):
        beta = 1.0 if name != "auto" else "auto"
        several = [usual.changed(beta=beta, seed=seed) for seed in range(12)]
        began = time.monotonic()
        train(several, out / str(number))
        seconds[name].append(time.monotonic() - began)
    print(json.dumps({**seconds, "ratio": sum(seconds["auto"]) / sum(seconds["1"])}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["train", "contrast", "collect", "test", "overhead", "curve", "draw"])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/auto"))
    parser.add_argument("--root", default="data")
    parser.add_argument("--seeds", type=int, nargs=2, default=(1000, 1020), help="first, and one after the last")
    parser.add_argument("--epochs", type=int, default=20, help="of the runs that are timed")
    parser.add_argument("--data", default="cifar10-lt")
    parser.add_argument("--imbalance", type=float, default=100)
    parser.add_argument("--curve-seeds", type=int, default=5)
    given = parser.parse_args()
    if given.do in {"train", "contrast"}:
        done = {_cell(row) for file in given.paths for row in json.loads(file.read_text())["rows"]}
        several = (recipes if given.do == "train" else contrastive_recipes)(range(*given.seeds), given.root)
        cells = [(one.method, one.imbalance, "auto" if one.beta is None else one.beta, one.seed) for one in several]
        train([one for one, cell in zip(several, cells, strict=True) if cell not in done], given.runs)
    elif given.do == "collect":
        collect(*given.paths)
    elif given.do == "test":
        test(*given.paths)
    elif given.do == "curve":
        curve(*given.paths, given.data, given.imbalance, seeds=given.curve_seeds, root=given.root, runs=given.runs)
    elif given.do == "draw":
        draw(*given.paths)
    else:
        overhead(given.root, given.runs, given.epochs)
