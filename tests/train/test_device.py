"""Which device a name stands for."""

import os
import subprocess
import sys

import pytest
import torch

from longtail.train.recipe import pick_device

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


@pytest.mark.parametrize(("cuda", "expected"), [(True, torch.device("cuda", 3)), (False, torch.device("cpu"))])
def test_auto_is_cuda_or_the_cpu_and_never_mps(monkeypatch, cuda, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("auto", local_rank=3) == expected


@pytest.mark.parametrize("name", ["mps", "mps:0", "meta", "gpu", ""])
def test_other_devices_are_refused_in_one_sentence(name):
    why = ", which has no float64" if name.startswith("mps") else ""
    with pytest.raises(ValueError, match=f"^Expected `device` to be auto, cpu or cuda, but got '{name}'{why}\\.$"):
        pick_device(name)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^Expected a GPU for `device` = cuda:1, but torch finds none\.$"):
        pick_device("cuda:1")


def test_commands_refuse_it_in_one_sentence(run, tmp_path, finished):
    (tmp_path / "a.png").touch()
    for words in (
        ("train", "--data", "digits-lt", "--device", "mps", "--out", tmp_path / "run"),
        ("predict", finished("cbs"), tmp_path / "a.png", "--device", "mps"),
        ("study", "--data", "digits-lt", "--methods", "softmax", "--seeds", 1, "--device", "mps"),
    ):
        code, out, error = run(*words)
        sentence = "longtail: Expected --device to be auto, cpu or cuda, but got 'mps', which has no float64.\n"
        assert (code, out, error) == (2, "", sentence)


@pytest.mark.parametrize(("chosen", "expected"), [(None, "32"), ("4", "4")])
def test_choosing_a_device_gives_streams_their_own_queues(monkeypatch, chosen, expected):
    if chosen is None:
        monkeypatch.setenv(QUEUES, "1")  # restored afterwards
        monkeypatch.delenv(QUEUES)
    else:
        monkeypatch.setenv(QUEUES, chosen)
    pick_device("cpu")
    assert os.environ[QUEUES] == expected


@pytest.mark.slow
def test_importing_does_not_change_the_environment():
    program = "import os; before = dict(os.environ); import longtail.train; assert dict(os.environ) == before"
    subprocess.run([sys.executable, "-c", program], check=True)
