"""Helpers for tests of diagnoses: predictions of a synthetic classifier, and files of them."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longtail.diagnosis.formats import read_file
from longtail.diagnosis.inputs import to_predictions

NAMES = ["cat", "dog", "emu", "fox"]
COUNTS = [400, 150, 30, 5]


def make(seed, samples, bias=0.9, separation=2.2):
    """Logits of a classifier that prefers frequent classes, as plain softmax does."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), samples)
    logits = generator.normal(size=(len(labels), 4)) + bias * np.log(COUNTS)
    logits[np.arange(len(labels)), labels] += separation
    return labels, logits.astype(np.float32)


def write_columns(path, labels, scores=None, *, kind="logit", names=NAMES, predicted=None):
    header = ["label", *([f"{kind}_{name}" for name in names] if scores is not None else ["predicted"])]
    rows = [[label, *(scores[n].tolist() if scores is not None else [predicted[n]])] for n, label in enumerate(labels)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: [row[k] for row in rows] for k, name in enumerate(header)}), path)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    return path


def read_predictions(path, split, names=None):
    return to_predictions(read_file(path, split), names)
