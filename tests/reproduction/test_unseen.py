"""The page of unseen data: means over seeds and data sets, bold cells, and the test over data sets."""

from types import SimpleNamespace

import pandas as pd
import pytest
from scipy.stats import wilcoxon

from reproduction import unseen

SETS = {"a": (50, 60, 62), "b": (40, 45, 44), "c": (70, 70, 71)}
"""Recalls of softmax, Balanced Softmax and CBS, the mean of two seeds."""


def fake_run(data, method, seed):
    value = (SETS[data][list(unseen.METHODS).index(method)] + (seed - 0.5)) / 100
    test = {"recall": {"all": value, "head": value, "tail": None}, "accuracy": 0.9, "macro_f1": 0.5}
    result = {"splits": {"test": test}, "counts": [1000, 10]}
    more = {"auto_beta": {"beta": 1.1 + seed}} if method == "cbs" else {}
    return SimpleNamespace(method=method, recipe=SimpleNamespace(seed=seed), result=result | more)


def test_page(tmp_path, monkeypatch):
    known = [unseen.Source(name, name.upper(), "text", "somewhere", "somehow") for name in SETS]
    monkeypatch.setattr(unseen, "sources", lambda: known)
    monkeypatch.setattr(
        unseen, "read_runs", lambda path: [fake_run(path.name, m, seed) for m in unseen.METHODS for seed in (0, 1)]
    )
    unseen.write_page(tmp_path / "runs", tmp_path)
    page = (tmp_path / "unseen.md").read_text("utf-8")
    assert "| A | 2: 1,000 to 10 | 50.0 (90.0) | 60.0 (90.0) | **62.0** (90.0) | 1.10 to 2.10 |" in page
    assert "| B | 2: 1,000 to 10 | 40.0 (90.0) | **45.0** (90.0) | 44.0 (90.0) |" in page
    assert "| Balanced Softmax | 58.3 | 90.0 | 50.0 |" in page
    p = wilcoxon([2, -1, 1]).pvalue
    assert "recall is +0.7 points, higher on 2 and lower on 1 of 3 data sets (smallest -1.0, largest +2.0;" in page
    assert f"p = {p:.2g})" in page
    rows = pd.read_csv(tmp_path / "unseen.csv")
    assert len(rows) == 18
    assert rows[rows.method == "cbs"].recall_all.mean() == pytest.approx(59)


def test_sources_are_complete():
    found = unseen.sources()
    assert len({source.name for source in found}) == 20
    assert all(source.title and source.source and source.made for source in found)
