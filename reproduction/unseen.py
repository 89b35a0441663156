"""Results on public data sets that were used for nothing before: studies with default settings.

    python -m reproduction.unseen runs/unseen results  # write the page, which has the other commands

`data/unseen.csv` has the sources of the data.
"""

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import fmean

from scipy.stats import wilcoxon

from longtail.study.runs import Run, read_runs

METRICS = ("recall_all", "accuracy", "macro_f1")
METHODS = {"softmax": "Softmax", "balanced-softmax": "Balanced Softmax", "cbs": "CBS"}

_PAGE = """# Results on unseen data

This page shows what the defaults do on data from outside this project: recall over all classes, and what it costs in
accuracy.

{summary}

These twenty public data sets were chosen by size and class frequencies, before any result, and had been used for
nothing in this project. Each was studied once, with default settings: a linear model on frozen features or on the
columns of a table, weight decay and beta chosen on held-out training data, three seeds with different test data (a
quarter of each class; rows of a group stay together). One rule was not fixed before: how much of the measured shift CBS
subtracts was tested on other splits of the same data sets a few hours earlier, and changed once after the first nine
([beta](../docs/auto_beta.md#measurements)). All other defaults are older.

Each cell has recall over all classes and, in brackets, accuracy on test data, in per cent, means of three seeds; the
highest recall is bold.

{table}

## Where the data comes from

{sources}

Texts are embedded with all-MiniLM-L6-v2 and images with EfficientNet-Lite0 (`longtail embed`). The study of a data set
is `longtail study --data NAME.npz --methods softmax balanced-softmax cbs --seeds 3 --test 0.25 --test-seed run --out
runs/unseen/NAME`, and `python -m reproduction.unseen runs/unseen results` writes this page. `unseen.csv` has a row per
run.
"""


@dataclass(frozen=True)
class Source:
    """A data set."""

    name: str
    title: str
    kind: str
    source: str
    made: str


def sources() -> list[Source]:
    """Return the data sets in the order of the page."""
    with resources.files("reproduction").joinpath("data/unseen.csv").open(encoding="utf-8") as file:
        return [Source(**row) for row in csv.DictReader(file)]


def values(run: Run) -> dict[str, float]:
    """Return the measures of a run on test data, in per cent, and its beta."""
    test = run.result["splits"]["test"]
    found = {f"recall_{name}": 100 * value for name, value in test["recall"].items() if value is not None}
    found |= {"accuracy": 100 * test["accuracy"], "macro_f1": 100 * test["macro_f1"]}
    return found | ({"beta": run.result["auto_beta"]["beta"]} if "auto_beta" in run.result else {})


def summarise(means: Sequence[Mapping[str, Mapping[str, float]]]) -> str:
    """Return means over data sets and the differences between methods, in words."""
    lines = ["| mean over data sets | recall | accuracy | macro F1 |", "| --- | ---: | ---: | ---: |"]
    for method, title in METHODS.items():
        row = (fmean(one[method][name] for one in means) for name in METRICS)
        lines.append(f"| {title} | " + " | ".join(f"{value:.1f}" for value in row) + " |")
    sentences = []
    for better, worse in (("balanced-softmax", "softmax"), ("cbs", "softmax"), ("cbs", "balanced-softmax")):
        gains = [one[better]["recall_all"] - one[worse]["recall_all"] for one in means]
        p = wilcoxon(gains).pvalue
        sentences.append(
            f"- {METHODS[better]} against {METHODS[worse]}: recall is {fmean(gains):+.1f} points, higher on "
            f"{sum(gain > 0 for gain in gains)} and lower on {sum(gain < 0 for gain in gains)} of {len(gains)} data "
            f"sets (smallest {min(gains):+.1f}, largest {max(gains):+.1f}; Wilcoxon's signed-rank test: p = {p:.2g})."
        )
    return "\n".join(lines) + "\n\n" + "\n".join(sentences)


def write_page(runs: Path, out: Path) -> None:
    """Write the page and the table of runs."""
    table = ["| data | classes, rows of each | " + " | ".join(METHODS.values()) + " | beta |"]
    table.append("| --- | --- |" + " ---: |" * (len(METHODS) + 1))
    listed = ["| data | kind | from | how |", "| --- | --- | --- | --- |"]
    means, rows = [], []
    for source in sources():
        found: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
        finished = read_runs(runs / source.name)
        for run in finished:
            measured = values(run)
            found[run.method].append(measured)
            rows.append({"data": source.name, "method": run.method, "seed": run.recipe.seed} | measured)
        mean = {m: {name: fmean(one[name] for one in of) for name in METRICS} for m, of in found.items()}
        means.append(mean)
        recalls = {method: round(mean[method]["recall_all"], 1) for method in METHODS}
        betas = [one["beta"] for one in found["cbs"]]
        cells = []
        for method in METHODS:
            mark = "**" if recalls[method] == max(recalls.values()) else ""
            cells.append(f"{mark}{recalls[method]:.1f}{mark} ({mean[method]['accuracy']:.1f})")
        counts = finished[0].result["counts"]
        size = f"{len(counts)}: {max(counts):,} to {min(counts):,}"
        table.append(f"| {source.title} | {size} | " + " | ".join(cells) + f" | {min(betas):.2f} to {max(betas):.2f} |")
        listed.append(f"| {source.title} | {source.kind} | {source.source} | {source.made} |")
    page = _PAGE.format(summary=summarise(means), table="\n".join(table), sources="\n".join(listed))
    (out / "unseen.md").write_text(page, encoding="utf-8")
    with (out / "unseen.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()} for row in rows)


if __name__ == "__main__":
    write_page(Path(sys.argv[1]), Path(sys.argv[2]))
