"""How long a plan takes: from the logs of finished runs, from a few steps, or unknown."""

import json
import shutil

import pytest
import torch
from tests.study.conftest import plan_in

from longtail.study.estimate import estimate
from longtail.study.runs import read_runs
from longtail.train.trainer import Trainer


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def test_the_time_is_that_of_finished_runs_or_unknown(tmp_path, study):
    runs = plan_in(tmp_path).runs()
    unknown = estimate(runs, str(tmp_path / "nowhere"))
    assert unknown.seconds is None
    assert "6 runs to do, time unknown: " in str(unknown)
    logged = [sum(line["seconds"] for line in one.log()) for one in read_runs(study)]
    alone, together = estimate(runs, str(study)), estimate(runs, str(study), 3)
    assert alone.seconds == pytest.approx(sum(logged), rel=0.01)
    assert together.seconds == pytest.approx(alone.seconds / 3)
    assert estimate(runs, str(study), 3, [torch.device("cpu")] * 2).seconds == pytest.approx(alone.seconds / 6)
    assert "based on 6 finished runs" in str(alone)
    assert str(estimate(plan_in(study).runs(), str(study))) == "0 runs to do: all are done."


def test_logs_of_another_device_and_missing_logs_are_not_used(tmp_path, study):
    shutil.copytree(study, tmp_path / "runs")
    logs = sorted((tmp_path / "runs").rglob("log.jsonl"))
    for file in logs[1:]:
        file.unlink()
    runs = plan_in(tmp_path).runs()
    assert "based on 1 finished run in" in str(estimate(runs, str(tmp_path / "runs")))
    assert str(estimate(runs[:1], str(study))).startswith("1 run to do, about ")
    for file in (tmp_path / "runs").rglob("environment.json"):
        file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "device": "NVIDIA H200"}), "utf-8")
    assert estimate(runs, str(tmp_path / "runs")).seconds is None
    logs[0].unlink()
    assert [one.log() for one in read_runs(tmp_path / "runs")] == [[]] * len(logs)


def test_a_few_steps_are_tried_if_nothing_is_finished_and_leave_nothing(tmp_path):
    runs = plan_in(tmp_path, methods=["softmax", "cbs"]).runs()
    found = estimate(runs, str(tmp_path / "nowhere"), together=12, trial=True)
    assert found.seconds > 0
    assert str(found).endswith("based on a few steps of one run alone.")
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_finished_is_tried_beside_what_was(tmp_path, study):
    other = plan_in(tmp_path, methods=["softmax"], recipe={"model": "resnet20"}).runs()
    found = estimate([*plan_in(tmp_path, seeds=[7]).runs(), *other], str(study), trial=True)
    assert "based on 6 finished runs" in str(found)
    assert "and a few steps of one run alone" in str(found)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_of_a_step_or_two_is_not_tried_to_its_end(tmp_path, monkeypatch, epochs):
    monkeypatch.setattr(Trainer, "_finish", lambda *_: pytest.fail("The run was evaluated."))
    runs = plan_in(tmp_path, methods=["softmax"], recipe={"epochs": epochs, "batch_size": 1024}).runs()
    assert estimate(runs, str(tmp_path / "nowhere"), trial=True).seconds > 0
