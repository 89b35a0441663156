"""A table of features with scikit-learn.

This example shows how to correct a classifier that you have (`PriorAdjustedClassifier`), and how to train one on
features (`LongTailClassifier`); neither needs a beta, a weight or a sampler. The features are the 64 pixels of
long-tailed digits.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import recall_score

from longtail.data import load
from longtail.estimators import LongTailClassifier, PriorAdjustedClassifier

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out

# ## Data
#
# 124 training images of the digit 0, fewer of each next digit, 10 of the digit 9; the test images are balanced.

data = load("digits-lt", imbalance=12)
X, y = data.train.images.pixels.flatten(1).numpy(), data.train.labels.numpy()
X_test, y_test = data.test.images.pixels.flatten(1).numpy(), data.test.labels.numpy()

# ## Three classifiers
#
# `PriorAdjustedClassifier` predicts each training row with a forest that has not seen it, measures how much these
# predictions favour frequent classes, and subtracts that. `LongTailClassifier` is a logistic regression trained with
# Class-Balanced Softmax, whose beta is measured in the same way.

forest = RandomForestClassifier(100, random_state=0)
models = {
    "random forest": forest.fit(X, y),
    "PriorAdjustedClassifier(forest)": PriorAdjustedClassifier(RandomForestClassifier(100, random_state=0)).fit(X, y),
    "LongTailClassifier": LongTailClassifier().fit(X, y),
}

# ## Recall
#
# Test labels are used here for the first time.

tail = np.bincount(y) < 25
figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
for (name, model), colour in zip(models.items(), ("#b8bec6", "#8250df", "#1f6feb"), strict=True):
    recalls = 100 * recall_score(y_test, model.predict(X_test), average=None)
    beta = f", beta {model.beta_:.2f}" if hasattr(model, "beta_") else ""
    print(
        f"{name}: recall {recalls.mean():.1f} %, of classes with fewer than 25 rows {recalls[tail].mean():.1f} %{beta}"
    )
    axes.plot(np.bincount(y), recalls, "o-", color=colour, label=f"{name} ({recalls.mean():.0f} %)")
axes.invert_xaxis()
axes.set(xlabel="training rows of the class", ylabel="recall on test rows (%)", ylim=(0, 103), xscale="log")
axes.set_xticks(np.bincount(y)[::3], [str(n) for n in np.bincount(y)[::3]], minor=False)
axes.minorticks_off()
axes.spines[["top", "right"]].set_visible(False)
axes.legend(loc="lower left", frameon=False)
figure.savefig(out / "sklearn_features.png", dpi=150)
