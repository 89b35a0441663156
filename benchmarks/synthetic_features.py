"""Write synthetic.npz: 20 long-tailed classes of 30 features, for the weight decays in docs/features.md."""

import numpy as np
from sklearn.datasets import make_classification

x, y = make_classification(20_000, 30, n_informative=20, n_classes=20, n_clusters_per_class=1, random_state=0)
rows = [np.flatnonzero(y == c) for c in range(20)]
train = np.concatenate([r[: round(300 * 0.8**c)] for c, r in enumerate(rows)])
test = np.concatenate([r[-200:] for r in rows])
split = np.array(["train"] * len(train) + ["test"] * len(test))
both = np.concatenate([train, test])
np.savez("synthetic.npz", features=x[both].astype(np.float32), labels=y[both], split=split)
