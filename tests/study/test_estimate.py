"""How long a plan takes: by the logs of what is finished, by steps that are tried, or not known."""

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


def test_it_goes_by_what_is_finished_or_says_that_it_is_unknown(tmp_path, study):
    runs = plan_in(tmp_path).runs()
    unknown = estimate(runs, str(tmp_path / "nowhere"))
    assert unknown.seconds is None
    assert "6 runs to do; how long that takes is unknown: no run of digits-lt with small-cnn" in str(unknown)
    logged = [sum(line["seconds"] for line in one.log()) for one in read_runs(study)]
    alone, together = estimate(runs, str(study)), estimate(runs, str(study), 3)
    assert alone.seconds == pytest.approx(sum(logged), rel=0.01)
    assert together.seconds == pytest.approx(alone.seconds / 3)
    assert estimate(runs, str(study), 3, [torch.device("cpu")] * 2).seconds == pytest.approx(alone.seconds / 6)
    assert "going by 6 finished runs" in str(alone)
    assert str(estimate(plan_in(study).runs(), str(study))) == "0 runs to do: all are done."


def test_logs_of_another_device_say_nothing(tmp_path, study):
    shutil.copytree(study, tmp_path / "runs")
    for file in (tmp_path / "runs").rglob("environment.json"):
        file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "device": "NVIDIA H200"}), "utf-8")
    assert estimate(plan_in(tmp_path).runs(), str(tmp_path / "runs")).seconds is None


def test_runs_without_their_log_say_nothing(tmp_path, study):
    shutil.copytree(study, tmp_path / "runs")
    logs = sorted((tmp_path / "runs").rglob("log.jsonl"))
    for file in logs[1:]:
        file.unlink()
    found = estimate(plan_in(tmp_path).runs(), str(tmp_path / "runs"))
    assert "going by 1 finished run in" in str(found)
    logs[0].unlink()
    assert estimate(plan_in(tmp_path).runs(), str(tmp_path / "runs")).seconds is None
    assert [one.log() for one in read_runs(tmp_path / "runs")] == [[]] * len(logs)


def test_one_run_is_one_run(tmp_path, study):
    (left, *_) = plan_in(tmp_path).runs()
    assert str(estimate([left], str(study))).startswith("1 run to do, about ")


def test_steps_are_tried_where_nothing_is_finished_and_leave_nothing(tmp_path):
    runs = plan_in(tmp_path, methods=["softmax", "cbs"]).runs()
    found = estimate(runs, str(tmp_path / "nowhere"), together=12, trial=True)
    assert found.seconds > 0
    assert str(found).endswith("going by a few steps tried here, of one run alone.")
    assert list(tmp_path.iterdir()) == []
    two = estimate([*runs, *plan_in(tmp_path, methods=["softmax", "cbs"], seeds=[2, 3]).runs()], "nowhere", trial=True)
    assert two.left == 8


def test_what_was_not_finished_is_tried_beside_what_was(tmp_path, study):
    other = plan_in(tmp_path, methods=["softmax"], recipe={"model": "resnet20"}).runs()
    found = estimate([*plan_in(tmp_path, seeds=[7]).runs(), *other], str(study), trial=True)
    assert "going by 6 finished runs" in str(found)
    assert "and a few steps tried here" in str(found)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_of_a_step_or_two_takes_time_and_is_not_tried_to_its_end(tmp_path, monkeypatch, epochs):
    monkeypatch.setattr(Trainer, "_finish", lambda *_: pytest.fail("The run was measured, which is no step."))
    runs = plan_in(tmp_path, methods=["softmax"], recipe={"epochs": epochs, "batch_size": 1024}).runs()
    assert estimate(runs, str(tmp_path / "nowhere"), trial=True).seconds > 0
