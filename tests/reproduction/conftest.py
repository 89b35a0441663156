"""Fixtures for tests of the reproduction: run records without training, and a folder of committed runs."""

import json
import shutil
from pathlib import Path

import pytest
from tests.study.conftest import record

from longtail.data import CATALOG
from longtail.train import defaults

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _without_lvis():
    """Unregister what the reproduction's commands register."""
    yield
    if "lvis-crops" in CATALOG:
        CATALOG.unregister("lvis-crops")


@pytest.fixture(scope="session")
def a_result():
    """A committed result on CIFAR-10-LT."""
    file = ROOT / "results" / "cifar10-lt" / "cifar10-lt-100-cbs-beta1.8-seed0" / "result.json"
    return json.loads(file.read_text("utf-8"))


@pytest.fixture
def made(a_result, tmp_path):
    """A function that makes records of runs without training."""

    def make(method="cbs", seed=0, recalls=(90.0, 80.0, 70.0, 79.0), *, level=10.0, data="cifar10-lt", imbalance=100):
        recipe = defaults("cifar10-lt", method, imbalance or 100).changed(seed=seed, data=data, imbalance=imbalance)
        return record(tmp_path, recipe, a_result, recalls, level)

    return make


@pytest.fixture
def runs(tmp_path):
    """A folder of six committed runs on digits."""
    for method in ("softmax", "balanced-softmax", "cbs-beta1.5"):
        for seed in (0, 1):
            name = f"digits-lt-50-{method}-seed{seed}"
            shutil.copytree(ROOT / "results" / "digits-lt" / name, tmp_path / "runs" / "digits-lt" / name)
    return tmp_path / "runs" / "digits-lt"
