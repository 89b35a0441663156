"""Add your own loss and compare it.

This example shows how to add a loss in one file and to test it against built-in methods with several seeds. The idea
here: shift the logits by the effective number of samples of Cui et al. (2019), `(1 - b^N) / (1 - b)`, which grows
more slowly than the count N. The file is also a plugin, so that every command knows the method:

    longtail train --plugin examples/gallery/own_method.py --data digits-lt --method effective-shift --effective-b 0.95
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from longtail import ClassBalancedSoftmaxLoss, Study
from longtail.methods import Task, param, register_loss

# ## The loss and its parameters
#
# The fields become settings of a recipe and flags of the command line. A loss is a subclass of `longtail.losses.Loss`
# that returns one value per sample; this one is Class-Balanced Softmax with other counts.


@dataclass(frozen=True)
class Params:
    """Parameters of the method."""

    effective_beta: float = param(1.0, "how strongly to shift", at_least=0)
    effective_b: float = param(0.98, "b of the effective number of samples", at_least=0, below=1)


def make_loss(task: Task) -> ClassBalancedSoftmaxLoss:
    """Return the loss of a run; `task` has the class counts, the parameters and the options of the recipe."""
    effective = (1 - task.params.effective_b ** task.counts.double()) / (1 - task.params.effective_b)
    return ClassBalancedSoftmaxLoss(effective, beta=task.params.effective_beta, **task.options)


register_loss(
    "effective-shift",
    make_loss,
    title="Effective shift",
    summary="logits shifted by the effective number of samples",
    reference="an example",
    params=Params,
    beta="effective_beta",
)

# ## The comparison
#
# A study trains every method with every seed and tests the differences. Three seeds and a few epochs take seconds and
# show how it works; a claim needs more of both.

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
    out = parser.parse_args().out
    methods = ["softmax", "balanced-softmax", "effective-shift"]
    with tempfile.TemporaryDirectory() as folder:
        plan = {"data": "digits-lt", "methods": methods, "seeds": 3, "recipe": {"epochs": 15}, "out": folder}
        results = Study(plan).run()
        table = results.to_pandas()
    print(results.table())
    for sentence in results.sentences():
        print(sentence)

    groups = ["all", "head", "medium", "tail"]
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    for place, (name, colour) in enumerate(zip(methods, ("#b8bec6", "#8250df", "#1f6feb"), strict=True)):
        recalls = table.loc[table["method"] == name, [f"recall_{group}" for group in groups]].to_numpy()
        bars = np.arange(4) + 0.27 * (place - 1)
        axes.bar(bars, recalls.mean(0), 0.25, yerr=recalls.std(0, ddof=1), label=name, color=colour, ecolor="#555555")
    axes.set_xticks(range(4), ["all classes", *groups[1:]])
    axes.set(ylabel="recall on test images (%)", ylim=(0, 105))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(out / "own_method.png", dpi=150)
