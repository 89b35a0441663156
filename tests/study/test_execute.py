"""Carrying out a plan: nothing twice, on after a stop, in several processes, and what fails does not stop the rest."""

import fcntl
import os
import signal

import pytest
import torch
from tests.study.conftest import SHORT, plan_in

from longtail.study.execute import devices, epochs_done, execute
from longtail.train import RunFolder, StoppedError


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def test_what_is_done_is_not_run_again(study):
    runs = plan_in(study).runs()
    before = {run.path: run.folder.result_file.stat().st_mtime_ns for run in runs}
    outcome = execute(runs)
    assert len(outcome.done) == 6
    assert outcome.failed == {}
    assert {run.path: run.folder.result_file.stat().st_mtime_ns for run in runs} == before


def test_after_a_stop_it_goes_on_to_the_same_results(tmp_path, study, monkeypatch):
    monkeypatch.setattr("longtail.study.execute._WATCH_SECONDS", 0.0)
    runs = plan_in(tmp_path, methods=["softmax", "cbs"]).runs()
    asked = []

    def watch():
        if epochs_done(runs[1]) and not asked:
            asked.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoppedError):
        execute(runs, watch=watch)
    assert signal.getsignal(signal.SIGTERM) == before
    assert [run.folder.done for run in runs] == [True, False, False, False]
    assert list(runs[1].folder.checkpoints.iterdir())  # in the middle of it
    outcome = execute(runs)
    assert len(outcome.done) == 4
    for run in runs:
        whole = RunFolder(study / run.path.name)
        assert run.folder.result_file.read_bytes() == whole.result_file.read_bytes()


def test_a_run_that_fails_does_not_stop_the_others(tmp_path):
    good = plan_in(tmp_path / "good", methods=["softmax"], seeds=2).runs()
    (bad,) = plan_in(tmp_path / "bad", methods=["softmax"], seeds=1, recipe={"lr": 1e30, "epochs": 5}).runs()
    outcome = execute([bad, *good], together=3)
    assert [run.path for run in outcome.done] == [run.path for run in good]
    assert list(outcome.failed) == [str(bad.path)]
    assert "finite loss" in outcome.failed[str(bad.path)]


@pytest.mark.parametrize("devices_", [1, 2])
def test_a_stop_tells_what_had_failed_by_then(tmp_path, devices_):
    (bad,) = plan_in(tmp_path / "bad", methods=["softmax"], seeds=1, recipe={"lr": 1e30, "epochs": 5}).runs()
    good = plan_in(tmp_path / "good", methods=["softmax"], seeds=3, recipe={"epochs": 5000}).runs()

    def watch():
        if (bad.path / "not_finite.json").exists() and all(epochs_done(run) for run in good[: 2 * devices_ - 1]):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError) as stopped:
        execute([bad, *good], together=4, on=[torch.device("cpu")] * devices_, watch=watch)
    assert list(stopped.value.failed) == [str(bad.path)]
    assert "finite loss" in stopped.value.failed[str(bad.path)]


def test_a_run_that_cannot_go_on_does_not_stop_the_others_either(tmp_path):
    runs = plan_in(tmp_path, methods=["softmax"], seeds=4).runs()
    execute(runs[1:2])
    runs[1].folder.result_file.unlink()
    (checkpoint,) = runs[1].folder.checkpoints.glob("*.safetensors")
    checkpoint.write_bytes(b"cut short")
    outcome = execute(runs, together=2)
    assert [run.path for run in outcome.done] == [runs[0].path, runs[2].path, runs[3].path]
    assert list(outcome.failed) == [str(runs[1].path)]
    assert checkpoint.name in outcome.failed[str(runs[1].path)]
    with pytest.raises(ValueError, match="together"):
        execute(runs, together=0)


def test_a_run_that_another_process_trains_is_left_to_it(tmp_path):
    runs = plan_in(tmp_path, methods=["softmax"]).runs()
    runs[0].path.mkdir()
    with (runs[0].path / ".lock").open("w") as elsewhere:
        fcntl.flock(elsewhere, fcntl.LOCK_EX)  # opened anew, as another process has it
        outcome = execute(runs)
    assert [run.path for run in outcome.done] == [runs[1].path]
    assert [run.path for run in outcome.elsewhere] == [runs[0].path]


def test_several_devices_share_the_runs(tmp_path, study):
    runs = plan_in(tmp_path, methods=["softmax"]).runs()
    outcome = execute(runs, on=[torch.device("cpu"), torch.device("cpu")])
    assert len(outcome.done) == 2
    for run in runs:
        assert run.folder.result_file.read_bytes() == RunFolder(study / run.path.name).result_file.read_bytes()


def test_epochs_are_counted_in_the_log(study, tmp_path):
    assert {epochs_done(run) for run in plan_in(study).runs()} == {SHORT["epochs"]}
    assert {epochs_done(run) for run in plan_in(tmp_path).runs()} == {0}
    assert devices(plan_in(tmp_path).runs()) == [torch.device("cpu")]


def test_runs_for_different_devices_are_not_trained_together(tmp_path):
    one = plan_in(tmp_path, methods=["softmax"]).runs()
    other = plan_in(tmp_path, methods=["cbs"], recipe={"device": "auto"}).runs()
    with pytest.raises(ValueError, match="runs for one device to train together, but got runs for auto and cpu"):
        execute([*one, *other])


def test_several_processes_are_stopped_together(tmp_path):
    runs = plan_in(tmp_path, methods=["softmax"], recipe={"epochs": 5000}).runs()

    def watch():
        if all(epochs_done(run) for run in runs):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError):
        execute(runs, on=[torch.device("cpu"), torch.device("cpu")], watch=watch)
    assert not any(run.folder.done for run in runs)
    assert all(list(run.folder.checkpoints.iterdir()) for run in runs)  # they saved where they were
