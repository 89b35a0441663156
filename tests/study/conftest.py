"""What tests of studies share: one small study on the embedded digits, run once, and records made by hand."""

import copy
import json
import shutil

import numpy as np
import pytest
import torch

from longtail.study.execute import execute
from longtail.study.plan import make_plan
from longtail.study.runs import Run
from longtail.train import defaults

SHORT = {"epochs": 2, "evaluate_every": 0, "checkpoint_epochs": 0, "device": "cpu"}


def plan_in(out, **content):
    """A plan of short runs on the digits."""
    base = {"data": "digits-lt", "methods": ["softmax", "balanced-softmax", "cbs"], "seeds": 2, "out": str(out)}
    return make_plan({**base, **content, "recipe": {**SHORT, **content.get("recipe", {})}})


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
    """Makes records of runs without running them."""

    def make(method="cbs", seed=0, recalls=(90.0, 80.0, 70.0, 79.0), *, level=10.0, data="cifar10-lt", **more):
        imbalance = more.pop("imbalance", 100)
        recipe = defaults(data, method, imbalance).changed(seed=seed, **more)
        result = copy.deepcopy(a_result) | {"train_stats": recipe.train_stats, "epochs": [recipe.epochs]}
        values = dict(zip(("head", "medium", "tail", "all"), (value / 100 for value in recalls), strict=True))
        for split in result["splits"].values():
            split["recall"] = dict(values)
        result["preference_test"]["model_imbalance_level"] = level
        return Run(tmp_path / recipe.label, recipe, result)

    return make


@pytest.fixture(scope="module")
def compared(finished, tmp_path_factory):
    """Three methods, two seeds, as a study's folder has them; one run is not finished."""
    folder = tmp_path_factory.mktemp("study")
    for method in ("softmax", "cbs"):
        for seed in (0, 1):
            shutil.copytree(finished(method, seed=seed, evaluate_every=1), folder / f"{method}-{seed}")
    shutil.copytree(finished("logit-adjust-posthoc", evaluate_every=1), folder / "posthoc")
    (folder / "begun").mkdir()
    shutil.copy(folder / "cbs-0" / "recipe.toml", folder / "begun")
    return folder


@pytest.fixture(scope="module")
def report(compared):
    from longtail.report import report_of_runs

    return report_of_runs(compared, reference="softmax", command="longtail report study")


@pytest.fixture
def files(tmp_path):
    """train, val and test as npz, and counts."""
    from tests.study.predictions import COUNTS, NAMES, make

    found = {}
    for place, (name, samples) in enumerate({"train": 60, "val": 400, "test": 400}.items()):
        labels, logits = make(place, samples, separation=9.0 if name == "train" else 2.2)
        found[name] = tmp_path / f"{name}.npz"
        np.savez(found[name], labels=labels, logits=logits)
    found["counts"] = tmp_path / "counts.json"
    found["counts"].write_text(json.dumps(dict(zip(NAMES, COUNTS, strict=True))))
    return found


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    """The command in a folder of its own, on a wide screen, with one thread."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    return run
