"""Fixtures of the tests of diagnoses: files of predictions."""

import json

import numpy as np
import pytest
from tests.diagnose.predictions import COUNTS, NAMES, make


@pytest.fixture(autouse=True)
def quick_svg(monkeypatch):
    """Figures are drawn, but not rendered for the page, which takes most of the time."""
    monkeypatch.setattr("longtail.report.page.inline_svg", lambda *_: "<svg></svg>")


@pytest.fixture
def files(tmp_path):
    """train, val and test as npz, and counts."""
    found = {}
    for place, (name, samples) in enumerate({"train": 60, "val": 400, "test": 400}.items()):
        labels, logits = make(place, samples, separation=9.0 if name == "train" else 2.2)
        found[name] = tmp_path / f"{name}.npz"
        np.savez(found[name], labels=labels, logits=logits)
    found["counts"] = tmp_path / "counts.json"
    found["counts"].write_text(json.dumps(dict(zip(NAMES, COUNTS, strict=True))))
    return found
