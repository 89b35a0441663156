"""Diagnose a model from its predictions.

This example shows what is wrong with a classifier of which you have only predictions: which classes it neglects,
whether that is a matter of its class prior or of too little data, and what correction would help. Nothing is
retrained.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import longtail

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out

# ## The model of somebody else
#
# A logistic regression on generated features of eight classes. All that we keep are log-probabilities and labels of
# three splits. They may come from any framework, or from files: `longtail diagnose --test test.npz --train train.npz
# --val val.npz`.

shares = 0.5 ** torch.arange(8)
features, labels = make_classification(
    12_000, 20, n_informative=12, n_classes=8, n_clusters_per_class=1, weights=(shares / shares.sum()).tolist(),
    class_sep=1.2, random_state=0,
)  # fmt: skip
train, rest, train_labels, rest_labels = train_test_split(
    features, labels, test_size=0.6, stratify=labels, random_state=0
)
val, test, val_labels, test_labels = train_test_split(
    rest, rest_labels, test_size=0.6, stratify=rest_labels, random_state=0
)
model = LogisticRegression(max_iter=1000).fit(train, train_labels)
splits = {"train": (train, train_labels), "val": (val, val_labels), "test": (test, test_labels)}
given = {name: {"labels": y, "logits": model.predict_log_proba(x)} for name, (x, y) in splits.items()}

# ## The diagnosis
#
# The shift is fitted on validation data and then tried on test data.

found = longtail.diagnose(given["test"], given["train"], given["val"])
print(found)

# ## The correction
#
# One line, for a model that cannot be retrained: subtract `tau * log N` from its logits. The diagnosis found tau.

tau = found.shift.tau
logits, labels = torch.tensor(given["test"]["logits"]), torch.tensor(test_labels)
corrected = longtail.adjust_logits(logits, found.counts, tau=tau)

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
for place, (name, z) in enumerate({"as it is": logits, f"logits - {tau:.2f} log N": corrected}.items()):
    right = z.argmax(1) == labels
    recalls = torch.stack([100 * right[labels == c].float().mean() for c in range(8)])
    label = f"{name}: recall {recalls.mean():.0f} %, accuracy {100 * right.float().mean():.0f} %"
    axes.bar(torch.arange(8) + 0.4 * place - 0.2, recalls, 0.38, label=label, color=("#b8bec6", "#1f6feb")[place])
axes.set_xticks(range(8), [f"{c}\n{n}" for c, n in enumerate(found.counts.tolist())])
axes.set(xlabel="class, and its training rows", ylabel="recall on test rows (%)", ylim=(0, 105))
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside upper center", ncols=2, frameon=False)
figure.savefig(out / "diagnose_predictions.png", dpi=150)
