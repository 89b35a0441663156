"""Logistic regression of scikit-learn on the splits of the study on natural data, as run folders.

    python -m reproduction.natural_baselines runs/natural

Features are standardised on the training data. There is a run without and with `class_weight="balanced"`, and with each
C; the page of `reproduction/natural.py` chooses C on validation data, like the weight decay of the other methods. Data,
splits and groups are those of the softmax run with the same seed. Fits take at most 500 iterations for each C, and have
no chance in them: data with official splits have one run.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from longtail._io import write_json, write_text
from longtail.data import FeatureVectors, Split
from longtail.metrics import class_statistics
from longtail.study.runs import Run, read_runs
from longtail.train.dataset import open_data
from longtail.train.folder import RunFolder
from longtail.train.measures import measures
from longtail.train.recipe import Recipe, write_recipe

STRENGTHS = (0.0001, 0.001, 0.01, 0.1, 1.0)
"""Values of C."""
BASELINES = {
    "logistic-regression": "LogisticRegression",
    "logistic-regression-balanced": "LogisticRegression, balanced",
}


def write_baselines(runs: Path) -> None:
    """Write the runs that are missing beside the studies in a folder."""
    first = min(path for path in runs.iterdir() if path.is_dir())
    for folder in sorted(first.iterdir()):
        for run in read_runs(folder):
            if run.method == "softmax" and (run.recipe.test or run.recipe.seed == 0):
                for method, title in BASELINES.items():
                    _write(run, method, title, [runs / f"C{c:g}" / folder.name for c in STRENGTHS])


def _write(run: Run, method: str, title: str, folders: list[Path]) -> None:
    """Write the runs of one method and seed, with each C."""
    paths = [folder / f"{method}-seed{run.recipe.seed}" for folder in folders]
    if all(RunFolder(path).done for path in paths):
        return
    settings = run.recipe.settings() | {"method": method}
    recipe = Recipe.from_settings(settings, unknown_methods=True)
    for path, c, splits in zip(paths, STRENGTHS, _fitted(run, method), strict=True):
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / "recipe.toml", write_recipe(recipe))
        about = {name: value for name, value in run.result.items() if name not in splits}
        write_json(path / "result.json", about | splits | {"method": method, "label": title, "C": c, "epochs": [0]})
        print(path)


def _fitted(run: Run, method: str) -> Iterator[dict[str, Any]]:
    """Yield the measures with each C; the fit with one C begins with the weights of the one before."""
    dataset = open_data(run.recipe)
    scaler = StandardScaler().fit(_rows(dataset.train))
    rows = {name: scaler.transform(_rows(split)) for name, split in dataset.splits.items()}
    labels = {name: split.labels for name, split in dataset.splits.items()}
    weights = "balanced" if method.endswith("balanced") else None
    model = LogisticRegression(class_weight=weights, max_iter=500, warm_start=True)
    for c in STRENGTHS:
        model.set_params(C=c).fit(rows["train"], labels["train"].numpy())
        logits = {name: torch.from_numpy(model.decision_function(own)) for name, own in rows.items()}
        statistics = {name: class_statistics(logits[name], labels[name]) for name in rows}
        yield measures(statistics, dataset.groups, dataset.class_names, "eval", gradients=False)


def _rows(split: Split) -> Any:
    assert isinstance(split.images, FeatureVectors)
    return split.images.pixels.numpy()


if __name__ == "__main__":
    write_baselines(Path(sys.argv[1]))
