"""`longtail train`, stopped and gone on with: signals, a run resumed with its own settings, and none begun twice."""

import contextlib
import os
import signal

import pytest
from tests.cli.conftest import one_sentence

from longtail.cli import train
from longtail.train import RunFolder, Trainer

pytestmark = pytest.mark.usefixtures("_here")


# --- going on


@pytest.mark.parametrize("more", [["--epochs", "20"], ["--out", "there"], ["--no-nesterov"]])
def test_a_run_goes_on_with_its_own_settings(run, more):
    code, _, err = run("train", "--resume", "run", *more)
    assert code == 2
    assert f"but got {more[0].replace('--no-', '--')}." in one_sentence(err)


def test_a_run_is_resumed_once(run):
    assert run("train", "--data", "digits-lt", "--epochs", 1, "--out", "run")[0] == 0
    code, _, err = run("train", "--resume", "run", "./run")
    assert code == 2
    assert "but got run twice." in one_sentence(err)


def test_a_folder_of_runs_is_no_run(run):
    assert run("train", "--data", "digits-lt", "--epochs", 1, "--seed", 0, 1, "--out", "several")[0] == 0
    code, _, err = run("train", "--resume", "several")
    assert code == 2
    names = [f"several/digits-lt-50-cbs-beta1.5-seed{seed}" for seed in (0, 1)]
    assert one_sentence(err).endswith(f"the runs are below it: {', '.join(names)}.")
    assert run("train", "--resume", *names)[0] == 0


def test_what_another_machine_has_otherwise_is_not_written_down(run, tmp_path):
    arguments = ("train", "--data", "digits-lt", "--method", "cbs", "--epochs", 1, "--out", "run")
    assert run(*arguments)[0] == 0
    before = {name: (tmp_path / "run" / name).read_bytes() for name in ("recipe.toml", "result.json")}
    (tmp_path / "run" / "result.json").unlink()
    code, _, err = run("train", "--device", "cpu", "--workers", 0, "--root", "elsewhere", "--resume", "run")
    assert (code, err) == (0, "")
    assert {name: (tmp_path / "run" / name).read_bytes() for name in before} == before
    (tmp_path / "run" / "result.json").unlink()
    code, _, err = run("train", "--resume", "run", "--device", "toaster")
    assert code == 2
    assert "`device`" in one_sentence(err)


def test_a_run_that_is_there_is_not_begun_again(run, tmp_path):
    arguments = ("train", "--data", "digits-lt", "--method", "cbs", "--epochs", 1, "--out", "run")
    assert run(*arguments)[0] == 0
    code, _, err = run(*arguments)
    assert code == 0
    assert err == "run is finished; choose another folder with --out.\n"
    (tmp_path / "run" / "result.json").unlink()
    code, _, err = run(*arguments)
    assert code == 2
    assert "resume it with `longtail train --resume run`" in one_sentence(err)
    code, _, err = run(*arguments, "--lr", 0.2)  # which would not be what goes on
    assert code == 2
    assert "differs in `lr` (0.1 there, 0.2 here)" in one_sentence(err)
    assert run("train", "--resume", "run")[0] == 0


# --- signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_where_something_catches_everything(run, tmp_path, monkeypatch, number, code):
    """As a module may that is imported on the way: the run must not begin as if nothing had been said."""

    def swallow(*arguments, **settings):
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), number)
        return Trainer(*arguments, **settings)

    monkeypatch.setattr(train, "Trainer", swallow)
    answer = run("train", "--data", "digits-lt", "--method", "cbs", "--epochs", 2, "--out", "run")
    assert answer == (code, "", "longtail: Interrupted.\n")
    assert not RunFolder(tmp_path / "run").begun
    monkeypatch.setattr(train, "Trainer", Trainer)
    assert run("train", "--data", "digits-lt", "--method", "cbs", "--epochs", 2, "--out", "run")[0] == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_while_data_are_opened(run, tmp_path, monkeypatch, number, code):
    def asked(*_, **__):
        os.kill(os.getpid(), number)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(train, "Trainer", asked)
    assert run("train", "--data", "digits-lt", "--out", "run") == (code, "", "longtail: Interrupted.\n")
    assert signal.getsignal(signal.SIGTERM) == before
    assert not RunFolder(tmp_path / "run").begun


def test_signals_are_given_back(run):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert run("train", "--data", "digits-lt", "--epochs", 1, "--out", "run")[0] == 0
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
