"""How long a plan takes, from a few steps."""

import pytest
import torch
from tests.study.conftest import plan_in

from longtail.study.estimate import estimate
from longtail.train.trainer import Trainer


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def test_the_time_is_that_of_a_few_steps_and_they_leave_nothing(tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr("longtail.study.estimate._try", lambda recipe: tried.append(recipe.method) or 60.0)
    runs = plan_in(tmp_path, methods=["softmax", "cbs"], seeds=[0, 1], recipe={"epochs": 3}).runs()
    assert estimate(runs) == "4 runs to do, about 12 min one after the other, from a few training steps."
    assert tried == ["softmax", "cbs"]
    monkeypatch.setattr("longtail.study.estimate.devices", lambda _: ["cuda:0", "cuda:1"])
    assert "about 6 min" in estimate(runs)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_tried_if_all_are_done(study):
    assert estimate(plan_in(study).runs()) == "0 runs to do: all are done."


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_of_a_step_or_two_is_not_tried_to_its_end(tmp_path, monkeypatch, epochs):
    monkeypatch.setattr(Trainer, "_finish", lambda *_: pytest.fail("The run was evaluated."))
    runs = plan_in(tmp_path, methods=["softmax"], recipe={"epochs": epochs, "batch_size": 1024}).runs()
    assert estimate(runs).startswith("2 runs to do, about ")
    assert list(tmp_path.iterdir()) == []
