"""Fixtures for tests of studies: a small study on the digits, and records of runs without training."""

import copy

import pytest
import torch

from longtail.study.comparisons import contrasts_of
from longtail.study.execute import execute
from longtail.study.planning import make_plan
from longtail.study.runs import Run
from longtail.train import defaults

SHORT = {"epochs": 2, "evaluate_every": 0, "checkpoint_epochs": 0, "device": "cpu"}


def plan_in(out, **content):
    """Return a plan of short runs on the digits."""
    base = {
        "data": "digits-lt",
        "methods": ["softmax", "balanced-softmax", "cbs:beta=1.5"],
        "seeds": 2,
        "out": str(out),
    }
    return make_plan({**base, **content, "recipe": {**SHORT, **content.get("recipe", {})}})


def compare_cells(cells, reference, measure=Run.recall):
    """The contrasts of cells with a reference."""
    others = [cell for cell in cells if cell is not reference]
    return list(contrasts_of([reference, *others], reference.method, measure))


def record(folder, recipe, result, recalls, level):
    """Return a run with these recalls and this imbalance level, without training."""
    result = copy.deepcopy(result)
    values = dict(zip(("head", "medium", "tail", "all"), (value / 100 for value in recalls), strict=True))
    for split in result["splits"].values():
        split["recall"] = dict(values)
    result["preference_test"]["model_imbalance_level"] = level
    return Run(folder / recipe.label, recipe, result)


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    """The folder of a finished study: softmax, Balanced Softmax and CBS with two seeds."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("study")
    execute(plan_in(out).runs())
    return out


@pytest.fixture(scope="session")
def a_result(study):
    from longtail.study.runs import read_runs

    return read_runs(study)[0].result


@pytest.fixture
def made(a_result, tmp_path):
    """Return a function that makes the record of a run."""

    def make(method="cbs", seed=0, recalls=(90.0, 80.0, 70.0, 79.0), *, level=10.0, data="cifar10-lt", **more):
        imbalance = more.pop("imbalance", 100)
        recipe = defaults(data, method, imbalance).changed(seed=seed, **more)
        result = a_result | {"train_stats": recipe.train_stats, "epochs": [recipe.epochs]}
        result["held_out"] = {"val": recipe.validation} if recipe.validation else {}
        return record(tmp_path, recipe, result, recalls, level)

    return make


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    """The command in an empty folder, on a wide screen, with one thread."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    return run
