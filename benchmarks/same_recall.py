"""Whether a member of a fleet ends where a careful run alone would: recall of five seeds, both ways.

Balanced Softmax on C10-LT100 as the recipe has it: by the Triton kernels in bfloat16, and by cuDNN in float32. Draws
are the same, roundings are not, so single runs differ; the means must not. Goals: Welch's p above 0.05, means less than
half a point apart. Runs are kept in a folder and go on after a stop (`timeout -s TERM`), both in fleets.

    python benchmarks/same_recall.py [--data cifar10-lt] [--seeds 5] [--epochs 200] [--runs runs/same] [--out out.json]
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from record import save, verdict

from longtail.study.execute import execute
from longtail.study.plan import Planned
from longtail.study.stats import compare, summarise
from longtail.train import Recipe, defaults

P_VALUE, POINTS = 0.05, 0.5
KERNELS = "triton" if torch.cuda.is_available() else "torch"
WAYS: dict[str, dict[str, Any]] = {
    f"{KERNELS} bf16": {"precision": "bf16", "channels_last": True, "kernels": KERNELS},
    "cuDNN fp32": {"precision": "fp32", "kernels": "torch"},
}


def recipes(data: str, seeds: int, epochs: int | None) -> dict[str, list[Recipe]]:
    """Those of each way."""
    base = defaults(data, "balanced-softmax")
    base = replace(base, evaluate_every=0, checkpoint_epochs=0, epochs=epochs or base.epochs)
    return {way: [replace(base, seed=seed, **how) for seed in range(seeds)] for way, how in WAYS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10-lt")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="default: the recipe's")
    parser.add_argument("--runs", type=Path, default=Path("runs/same"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    planned = {
        way: [Planned(recipe, given.runs / f"{way.replace(' ', '-')}-seed{recipe.seed}") for recipe in some]
        for way, some in recipes(given.data, given.seeds, given.epochs).items()
    }
    outcome = execute([run for some in planned.values() for run in some])
    if outcome.failed:
        raise SystemExit(f"did not finish: {outcome.failed}")
    recalls = {
        way: [100 * run.folder.result()["splits"]["test"]["recall"]["all"] for run in some]
        for way, some in planned.items()
    }
    for way, values in recalls.items():
        print(f"{way:16} {summarise(values)}   {' '.join(f'{value:.2f}' for value in values)}")
    ours, careful = recalls.values()
    found = compare(ours, careful, paired=False)
    goals = {
        f"p > {P_VALUE}": verdict(found.p_value, P_VALUE),
        f"under {POINTS} points": verdict(abs(found.difference), POINTS, at_most=True),
    }
    interval = f"{found.low:.2f} to {found.high:.2f}"
    print(f"difference {found.difference:.2f} points, {interval}, p = {found.p_value:.2f}; {goals}")
    part = {"recalls": recalls, "difference": found.difference, "p": found.p_value, "goals": goals}
    save(given.out, {"same": {"data": given.data, **part}})


if __name__ == "__main__":
    main()
