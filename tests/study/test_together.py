"""Studies train as many runs at a time as a fleet takes of them, without being told."""

from queue import SimpleQueue
from types import SimpleNamespace

import pytest
import torch
from tests.study.conftest import plan_in
from tests.train.turns import expected_turns, turns_of

from longtail.study.execute import execute


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def runs_in(folder):
    return plan_in(folder, methods=["cbs"], seeds=4, recipe={"epochs": 1}).runs()


@pytest.mark.parametrize("number", [3, 1])
def test_the_runs_of_a_plan_are_trained_as_many_at_a_time_as_a_device_takes(tmp_path, monkeypatch, number):
    taken, runs = turns_of(monkeypatch, number), runs_in(tmp_path)
    outcome = execute(runs)
    assert len(outcome.done) == 4
    assert taken == expected_turns([run.path.name for run in runs], number)


@pytest.mark.parametrize("number", [3, 1])
def test_a_study_trains_as_many_runs_at_a_time_as_a_device_takes(run, monkeypatch, number):
    taken = turns_of(monkeypatch, number)
    some = ("--data", "digits-lt", "--methods", "cbs", "--seeds", 4, "--epochs", 1, "--evaluate-every", 0)
    code, _, err = run("study", *some, "--device", "cpu", "--out", "out")
    assert code == 0, err
    assert taken == expected_turns([f"digits-lt-50-cbs-beta1.5-seed{seed}" for seed in range(4)], number)


class AtOnce:
    """A process that is none: it has done its work when it was started."""

    def __init__(self, target, args):
        self.target, self.args = target, args

    def start(self):
        self.target(*self.args)

    def is_alive(self):
        return False


@pytest.mark.parametrize("number", [2, 1])
def test_each_of_several_devices_trains_as_many_runs_at_a_time_as_it_takes(tmp_path, monkeypatch, number):
    here = SimpleNamespace(Process=AtOnce, SimpleQueue=SimpleQueue)
    monkeypatch.setattr(torch.multiprocessing, "get_context", lambda _: here)
    taken, runs = turns_of(monkeypatch, number), runs_in(tmp_path)
    outcome = execute(runs, on=[torch.device("cpu"), torch.device("cpu")])
    assert len(outcome.done) == 4
    shares = [[run.path.name for run in runs[device::2]] for device in range(2)]
    assert taken == [name for share in shares for name in expected_turns(share, number)]
