"""Training the runs of a plan: nothing twice, continued after a stop, on several devices, despite failures."""

import fcntl
import os
import shutil
import signal

import pytest
import torch
from tests.study.conftest import SHORT, plan_in
from tests.train.conftest import is_locked

from longtail.study import Study
from longtail.study.execute import devices, execute
from longtail.train import RunFolder, StoppedError


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def test_finished_runs_are_not_run_again(study):
    runs = plan_in(study).runs()
    before = {run.path: run.folder.result_file.stat().st_mtime_ns for run in runs}
    outcome = execute(runs)
    assert len(outcome.done) == 6
    assert outcome.failed == {}
    assert {run.path: run.folder.result_file.stat().st_mtime_ns for run in runs} == before
    assert {run.folder.epochs_logged for run in runs} == {SHORT["epochs"]}


def test_after_a_stop_the_results_are_the_same(tmp_path, study, monkeypatch):
    monkeypatch.setattr("longtail.study.execute._WATCH_SECONDS", 0.0)
    runs = plan_in(tmp_path, methods=["softmax", "cbs:beta=1.5"]).runs()
    sent = []

    def watch():
        if runs[1].folder.epochs_logged and not sent:
            sent.append(True)
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


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stop_reports_what_had_failed_by_then(tmp_path, number):
    (bad,) = plan_in(tmp_path / "bad", methods=["softmax"], seeds=1, recipe={"lr": 1e30, "epochs": 5}).runs()
    good = plan_in(tmp_path / "good", methods=["softmax"], seeds=3, recipe={"epochs": 5000}).runs()

    def watch():
        if (bad.path / "not_finite.json").exists() and all(run.folder.epochs_logged for run in good[: 2 * number - 1]):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError) as stopped:
        execute([bad, *good], together=4, on=[torch.device("cpu")] * number, watch=watch)
    assert list(stopped.value.failed) == [str(bad.path)]
    assert "finite loss" in stopped.value.failed[str(bad.path)]
    assert not any(run.folder.done for run in good)
    assert list(good[0].folder.checkpoints.iterdir())  # they saved where they were


def test_a_run_that_cannot_continue_does_not_stop_the_others(tmp_path):
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


def test_a_run_that_another_process_trains_is_skipped(tmp_path):
    runs = plan_in(tmp_path, methods=["softmax"]).runs()
    runs[0].path.mkdir()
    with (runs[0].path / ".lock").open("w") as elsewhere:
        fcntl.flock(elsewhere, fcntl.LOCK_EX)  # a new open file, as in another process
        outcome = execute(runs)
    assert [run.path for run in outcome.done] == [runs[1].path]
    assert [run.path for run in outcome.elsewhere] == [runs[0].path]


def test_only_the_run_that_is_trained_is_locked(tmp_path, monkeypatch):
    """A process that holds a file per waiting run cannot have thousands of them."""
    monkeypatch.setattr("longtail.study.execute._WATCH_SECONDS", 0.0)
    runs = plan_in(tmp_path, methods=["softmax"], seeds=4, recipe={"epochs": 1}).runs()
    locked = []

    def watch():
        locked.append(sum(is_locked(run.folder) for run in runs if run.path.exists()))

    assert len(execute(runs, watch=watch).done) == 4
    assert max(locked) == 1


def test_a_run_that_another_process_finished_meanwhile_is_not_run_again(tmp_path, study, monkeypatch):
    monkeypatch.setattr("longtail.study.execute._WATCH_SECONDS", 0.0)
    runs = plan_in(tmp_path, methods=["softmax"], seeds=2).runs()

    def watch():
        if not runs[1].path.exists():
            shutil.copytree(study / runs[1].path.name, runs[1].path)

    assert len(execute(runs, watch=watch).done) == 2
    assert (
        runs[1].folder.result_file.stat().st_mtime_ns == (study / runs[1].path.name / "result.json").stat().st_mtime_ns
    )


@pytest.fixture
def _two_devices(monkeypatch):
    for place in ("execute", "study"):
        monkeypatch.setattr(f"longtail.study.{place}.devices", lambda _: [torch.device("cpu")] * 2)


@pytest.mark.usefixtures("_two_devices")
def test_several_devices_have_a_worker_each(tmp_path, study):
    """They train the rounds of a search, too, and report failures; the folder is that of one process."""
    seen = []

    def on_progress(progress):
        seen.append((len(progress.finished), len(progress.runs)))
        assert {file.stem.rpartition("-")[2] for file in tmp_path.glob("workers/*.json")} != {str(os.getpid())}

    betas = {"betas": ["search"], "methods": ["softmax", "cbs", "balanced-softmax"]}
    search = {"folds": 2, "start": [1.0, 1.1], "bounds": [1.0, 1.1]}
    results = Study(plan_in(tmp_path, **betas, search=search), command="longtail study x").run(on_progress=on_progress)
    assert (len(results.runs), results.outcome.failed) == (6, {})
    assert seen[-1] == (10, 10)
    for run in results.runs:
        if run.method != "cbs":
            whole = RunFolder(study / run.path.name)
            assert (run.path / "result.json").read_bytes() == whole.result_file.read_bytes()
    assert not (tmp_path / "workers").exists()
    assert (tmp_path / "tables" / "recall.csv").exists()
    bad = plan_in(tmp_path / "bad", methods=["softmax"], recipe={"lr": 1e30})
    assert set(Study(bad).run().outcome.failed) == {str(run.path) for run in bad.runs()}


@pytest.mark.usefixtures("_two_devices")
def test_on_several_devices_a_mistake_is_one_error(tmp_path, capfd):
    plan = plan_in(tmp_path, recipe={"best_epoch": True})
    with pytest.raises(ValueError, match=r"^Expected .*\.$"):
        Study(plan).run()
    assert "Traceback" not in capfd.readouterr().err


def test_runs_for_different_devices_are_refused(tmp_path):
    one = plan_in(tmp_path, methods=["softmax"]).runs()
    other = plan_in(tmp_path, methods=["balanced-softmax"], recipe={"device": "auto"}).runs()
    assert devices(one) == [torch.device("cpu")]
    with pytest.raises(ValueError, match="`device`"):
        execute([*one, *other])
