"""Results in pandas and in a notebook.

How to get a study as a data frame, and what a notebook shows: in Jupyter, a cell that ends with a study's results, a
description of data or a diagnosis shows a table.
"""

import argparse
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from IPython.core.formatters import HTMLFormatter

import longtail
from longtail import Study
from longtail.data import describe_dataset, load

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out
show = HTMLFormatter()  # what Jupyter calls with the last value of a cell

# ## The data
#
# In a notebook, `describe_dataset(data)` alone is enough.

data = load("digits-lt", imbalance=50)
print(show(describe_dataset(data))[:60])

# ## A study as a data frame
#
# One row per run, with settings, recalls and the imbalance level.

with tempfile.TemporaryDirectory() as folder:
    plan = {"data": "digits-lt", "imbalance": [50], "methods": ["softmax", "cbs"], "betas": [0.5, 1.0, 1.5]}
    results = Study({**plan, "seeds": 2, "recipe": {"epochs": 15, "validation": 0.2}, "out": folder}).run()
    frame = results.to_pandas()
    diagnosis = longtail.diagnose(next(iter(results)).path)
print(frame[["method", "beta", "seed", "recall_tail", "recall_all"]])
print(show(results)[:60])

# ## A diagnosis
#
# Its findings and recalls, for the first run of the study.

print(show(diagnosis)[:60])

# ## A figure from the frame

frame["beta"] = frame["beta"].fillna(0.0)  # softmax
means = frame.groupby("beta")[["recall_head", "recall_medium", "recall_tail", "recall_all"]].mean()
figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
for name, colour in zip(means, ("#b8bec6", "#8250df", "#1f6feb", "#24292f"), strict=True):
    axes.plot(means.index, means[name], "o-", color=colour, label=name.removeprefix("recall_"))
axes.set(xlabel="beta", ylabel="recall on test images (%)", ylim=(0, 105))
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside upper center", ncols=4, frameon=False)
figure.savefig(out / "notebook.png", dpi=150)
