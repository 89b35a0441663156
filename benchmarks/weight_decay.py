"""Should the weight decay of a head on features be chosen on validation data? Recall on test data with each.

For each file of features, method and seed, a run is trained with every weight decay that ``weight_decay = "auto"``
tries, with all other settings by default. ``chosen`` is the run that auto keeps: that with the highest recall over all
classes on validation data. Data without a test split holds out a fifth of each class, different for each seed.
``synthetic`` makes a data set of 20 classes and 30 features.

    python benchmarks/weight_decay.py trec.npz atis.npz synthetic [--seeds 5] [--out results.json]
"""

import argparse
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from record import about
from sklearn.datasets import make_classification

from longtail._io import write_json
from longtail.data import open_path
from longtail.train import defaults, train
from longtail.train.pilots import DECAYS, choose_decay

METHODS = ("softmax", "balanced-softmax")


def write_synthetic(path: Path) -> None:
    x, y = make_classification(20_000, 30, n_informative=20, n_classes=20, n_clusters_per_class=1, random_state=0)
    rows = [np.flatnonzero(y == c) for c in range(20)]
    kept = np.concatenate([r[: round(300 * 0.8**c)] for c, r in enumerate(rows)])
    test = np.concatenate([r[-200:] for r in rows])
    both, split = np.concatenate([kept, test]), ["train"] * len(kept) + ["test"] * len(test)
    np.savez(path, features=x[both].astype(np.float32), labels=y[both], split=np.array(split))


def measure(file: Path, method: str, seed: int, folder: Path) -> dict[str, Any]:
    """Recall over all classes on validation and test data with each weight decay, and what would be chosen."""
    recipe = defaults(str(file), method).changed(seed=seed, evaluate_every=0)
    if open_path(file).test is None:
        recipe = recipe.changed(test=0.2, test_seed="run")
    runs = train([recipe.changed(weight_decay=decay) for decay in DECAYS], folder)
    val, test = ([run.result()["splits"][part]["recall"]["all"] for run in runs] for part in ("val", "test"))
    chosen = choose_decay(val)["chosen"]
    each = {f"{decay:g}": {"val": v, "test": t} for decay, v, t in zip(DECAYS, val, test, strict=True)}
    return {"data": file.stem, "method": method, "seed": seed, "chosen": chosen, "decays": each}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the means over the seeds, in per cent."""
    decays = sorted(DECAYS)
    print(f"{'':32}" + "".join(f"{decay:>8g}" for decay in decays) + f"{'chosen':>8}")
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        some = [row for row in rows if (row["data"], row["method"]) == (data, method)]
        means = [fmean(row["decays"][f"{decay:g}"]["test"] for row in some) for decay in decays]
        means.append(fmean(row["decays"][f"{row['chosen']:g}"]["test"] for row in some))
        print(f"{data:14}{method:18}" + "".join(f"{100 * mean:8.1f}" for mean in means))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="files of features, or synthetic")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    with TemporaryDirectory() as folder:
        for name in given.data:
            file = Path(name)
            if name == "synthetic":
                write_synthetic(file := Path(folder) / "synthetic.npz")
            for method in METHODS:
                for seed in range(given.seeds):
                    rows.append(measure(file, method, seed, Path(folder) / f"{file.stem}-{method}-{seed}"))
    show(rows)
    if given.out is not None:
        write_json(given.out, {"about": about(), "rows": rows})


if __name__ == "__main__":
    main()
