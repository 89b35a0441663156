"""Two workers on one GPU: both train, and every run is bit for bit the one that a single process trains.

python -m pytest -m gpu -s tests/cluster/test_gpu.py
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.study.test_join import left_in

DATA = """import torch
from longtail.data import ArrayImages, DataSet, Split, register_dataset

def load(root):
    draw = torch.Generator().manual_seed(0)
    def split(number):
        images = torch.randint(256, (number, 3, 32, 32), dtype=torch.uint8, generator=draw)
        return Split(ArrayImages(images), torch.arange(number) % 10)
    return DataSet("noise", tuple("abcdefghij"), split(2000), split(500))

sizes = {"train": 2000, "test": 500}
register_dataset("noise", load, num_classes=10, sizes=sizes, train_range=(200, 200), imbalance=10)
"""
# Our kernels add in one order; cuDNN does not, and so gives other bits every time.
PLAN = """data = "noise"
methods = ["softmax", "cbs:beta=1.5"]
seeds = 12
out = "study"
[recipe]
model = "resnet32"
augment = "cifar"
precision = "bf16"
channels_last = true
kernels = "triton"
epochs = 20
batch_size = 128
lr = 0.01
warmup = 0
validation = 0.0
evaluate_every = 10
device = "cuda"
"""


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "longtail", "study", "plan.toml", "--together", "4", *words],
        cwd=folder,
        env={**os.environ, "LONGTAIL_PLUGINS": str(folder.parent / "noise.py")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*workers: subprocess.Popen[str]) -> list[set[str]]:
    """Wait for workers, and return the runs that each of them finished."""
    said = [one.communicate(timeout=300)[0] for one in workers]
    for one, text in zip(workers, said, strict=True):
        assert one.returncode == 0, text
    return [set(re.findall(r"^\d+/\d+ (\S+): recall", text, re.M)) for text in said]


@pytest.mark.gpu
def test_two_workers_on_a_gpu_leave_what_one_process_leaves(tmp_path):
    (tmp_path / "noise.py").write_text(DATA)
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        (folder / "plan.toml").write_text(PLAN)
    began = time.monotonic()
    (every,) = finish(start(one))
    middle = time.monotonic()
    first, second = finish(start(two, "--join"), start(two, "--join"))
    print(f"\none process {middle - began:.0f} s, two workers {time.monotonic() - middle:.0f} s")
    print(f"{len(first)} and {len(second)} of {len(every)} runs")
    assert len(every) == 24
    assert first | second == every
    assert first
    assert second
    assert not first & second
    assert left_in(two / "study") == left_in(one / "study")
