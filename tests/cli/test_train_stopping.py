"""Stopping `longtail train` by signals, and resuming runs."""

import contextlib
import os
import signal

import pytest
from tests.cli.conftest import one_sentence

from longtail.train import RunFolder, Trainer, launch

pytestmark = pytest.mark.usefixtures("_here")


# --- resuming


def test_resumed_run_keeps_its_settings(run):
    assert run("train", "--data", "digits-lt", "--epochs", 1, "--out", "run")[0] == 0
    for more, named in ((["--epochs", 20], "--epochs (1 there, 20 here)"), (["--out", "there"], "--out")):
        code, _, err = run("train", "--resume", "run", *more)
        assert code == 2
        assert named in one_sentence(err)


def test_run_is_not_resumed_twice_at_once(run, tmp_path):
    assert run("train", "--data", "digits-lt", "--epochs", 1, "--out", "run")[0] == 0
    (tmp_path / "run" / "result.json").unlink()
    code, _, err = run("train", "--resume", "run", "./run")
    assert code == 2
    assert "but got run twice." in one_sentence(err)


def test_folder_of_runs_cannot_be_resumed(run):
    assert run("train", "--data", "digits-lt", "--epochs", 1, "--seed", 0, 1, "--out", "several")[0] == 0
    code, _, err = run("train", "--resume", "several")
    assert code == 2
    names = [f"several/digits-lt-50-cbs-beta-auto-seed{seed}" for seed in (0, 1)]
    assert one_sentence(err).endswith(f"the runs are below it: {', '.join(names)}.")  # without their pilots
    assert run("train", "--resume", *names)[0] == 0


def test_device_workers_and_root_of_a_resumed_run_are_not_recorded(run, tmp_path):
    arguments = ("train", "--data", "digits-lt", "--method", "balanced-softmax", "--epochs", 1, "--out", "run")
    assert run(*arguments)[0] == 0
    before = {name: (tmp_path / "run" / name).read_bytes() for name in ("recipe.toml", "result.json")}
    (tmp_path / "run" / "result.json").unlink()
    code, _, err = run("train", "--device", "cpu", "--workers", 0, "--root", "elsewhere", "--resume", "run")
    assert (code, err) == (0, "")
    assert {name: (tmp_path / "run" / name).read_bytes() for name in before} == before
    (tmp_path / "run" / "result.json").unlink()
    code, _, err = run("train", "--resume", "run", "--device", "toaster")
    assert code == 2
    assert "--device" in one_sentence(err)


def test_existing_run_is_not_started_again(run, tmp_path):
    arguments = ("train", "--data", "digits-lt", "--method", "balanced-softmax", "--epochs", 1, "--out", "run")
    assert run(*arguments)[0] == 0
    code, _, err = run(*arguments)
    assert code == 0
    assert err == "run is finished; choose another folder with --out.\n"
    (tmp_path / "run" / "result.json").unlink()
    code, _, err = run(*arguments, "--lr", 0.2)
    assert code == 2
    assert "differs in --lr (0.1 there, 0.2 here)" in one_sentence(err)
    assert run(*arguments)[0] == 0  # the same command continues
    assert RunFolder(tmp_path / "run").done


# --- signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_whose_exception_was_swallowed(run, tmp_path, monkeypatch, number, code):
    """For example by a module during its import: the run must not start."""

    def swallow(*arguments, **settings):
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), number)
        return Trainer(*arguments, **settings)

    monkeypatch.setattr(launch, "Trainer", swallow)
    answer = run("train", "--data", "digits-lt", "--method", "balanced-softmax", "--epochs", 2, "--out", "run")
    assert answer == (code, "", "longtail: Stopped; resume with the same command.\n")
    assert not RunFolder(tmp_path / "run").begun
    monkeypatch.setattr(launch, "Trainer", Trainer)
    assert run("train", "--data", "digits-lt", "--method", "balanced-softmax", "--epochs", 2, "--out", "run")[0] == 0


def test_signal_while_data_are_opened(run, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(launch, "Trainer", interrupt)
    answer = run("train", "--data", "digits-lt", "--out", "run")
    assert answer == (130, "", "longtail: Stopped; resume with the same command.\n")
    assert signal.getsignal(signal.SIGTERM) == before
    assert not RunFolder(tmp_path / "run").begun


def test_signal_handlers_are_restored(run):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert run("train", "--data", "digits-lt", "--epochs", 1, "--out", "run")[0] == 0
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
