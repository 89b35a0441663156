"""Text with a natural long tail.

This example shows how to classify texts when some classes have many and some have few: features from any encoder,
here words (TF-IDF), then `LongTailClassifier`. The texts are docstrings of Python's standard library, and the class
is the package that a docstring comes from: some packages have hundreds of them, some a dozen. Numbers depend on the
version of Python.
"""

import argparse
import ast
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from longtail.estimators import LongTailClassifier

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
out = parser.parse_args().out

# ## Data
#
# The docstring of every function and class of some packages, without those that say little. A quarter is test data.

packages = ["asyncio", "collections", "concurrent", "email", "http", "importlib", "json", "logging", "multiprocessing"]
packages += ["unittest", "urllib", "venv", "wsgiref", "xml", "xmlrpc"]
texts, labels = [], []
for package in packages:
    for file in sorted((Path(os.__file__).parent / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8", errors="ignore"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and len(ast.get_docstring(node) or "") > 40:
                texts.append(ast.get_docstring(node))
                labels.append(package)
texts, test_texts, labels, test_labels = train_test_split(texts, labels, stratify=labels, random_state=0)
names, counts = np.unique(labels, return_counts=True)
names, counts = names[counts.argsort()[::-1]], np.sort(counts)[::-1]

# ## Two classifiers of the same features
#
# Words become 100 numbers per text. A sentence encoder would be better; `longtail embed` runs one.

encoder = make_pipeline(TfidfVectorizer(sublinear_tf=True), TruncatedSVD(100, random_state=0), Normalizer())
X, X_test = encoder.fit_transform(texts), encoder.transform(test_texts)
models = {"LogisticRegression": LogisticRegression(C=10, max_iter=1000), "LongTailClassifier": LongTailClassifier()}

# ## Recall per package
#
# Recall, averaged over packages, rises; accuracy on data with the same long tail falls, because a text that could
# belong to two packages now goes to the rare one more often. `predict_proba(X, prior=counts)` gives the other
# trade-off.

figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
for place, (name, model) in enumerate(models.items()):
    predicted = model.fit(X, labels).predict(X_test)
    recalls = 100 * recall_score(test_labels, predicted, labels=names, average=None)
    accuracy = 100 * np.mean(predicted == np.array(test_labels))
    print(f"{name}: recall {recalls.mean():.0f} %, rarest seven {recalls[-7:].mean():.0f} %, accuracy {accuracy:.0f} %")
    label = f"{name}: {recalls.mean():.0f} %"
    axes.barh(
        np.arange(len(names)) + 0.4 * place - 0.2, recalls, 0.38, label=label, color=("#b8bec6", "#1f6feb")[place]
    )
axes.set_yticks(range(len(names)), [f"{name} ({n})" for name, n in zip(names, counts, strict=True)])
axes.invert_yaxis()
axes.set(xlabel="recall on test texts (%)", ylabel="package (training texts)", xlim=(0, 100))
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside upper center", ncols=2, frameon=False)
figure.savefig(out / "text.png", dpi=150)
