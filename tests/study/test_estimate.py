"""The estimate of ``--dry-run``."""

import time

import pytest

from longtail.study.estimate import estimate
from longtail.study.execute import execute
from longtail.study.planning import make_plan


def plan(tmp_path, **more):
    content = {"data": "digits-lt", "methods": ["softmax", "cbs"], "seeds": 1, "out": str(tmp_path), **more}
    return make_plan({**content, "recipe": {"epochs": 15, "device": "cpu"}})


def test_the_estimate_is_near_the_truth(tmp_path):
    """Loose, because other processes may run: half to three times, pilots of beta = auto included."""
    runs = plan(tmp_path).runs()
    each, total = estimate(runs, seconds=2.0)
    softmax, auto = (each[run.path] for run in runs)
    assert auto > 2 * softmax  # five pilots
    assert total == pytest.approx(softmax + auto)
    assert list(tmp_path.iterdir()) == []
    begin = time.perf_counter()
    execute(runs)
    assert 1 / 3 < total / (time.perf_counter() - begin) < 3
    assert estimate(runs[:0]) == ({}, 0.0)


def test_measuring_is_short_and_shared_by_runs_of_one_kind(tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr("longtail.study.estimate._measure", _counted("_measure", built))
    runs = plan(tmp_path, seeds=4, betas=[1, 2, "auto"]).runs()
    each, _ = estimate(runs, seconds=0.2)
    assert len(each) == len(runs) == 16
    assert len(built) == 2  # softmax and CBS


def _counted(name, calls):
    import longtail.study.estimate as module

    real = getattr(module, name)
    return lambda *given: calls.append(1) or real(*given)
