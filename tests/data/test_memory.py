"""Memory of streaming does not grow from epoch to epoch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EPOCHS = 10
BYTES_OF_AN_EPOCH = 96 * 3 * 64 * 64 * 4  # float32 batches, 4.7 MB; decoded before that 5 MB

CASES = {"device": ("device", 2), "worker": ("workers", 1), "leak": ("device", 2)}
SCRIPT = """
import ctypes, gc, json, os, sys
from pathlib import Path
import torch
from longtail.data import FileImages, BatchPlan, Split, Streaming
from longtail.data.augment import Compose, Normalise, RandomFlip, RandomResizedCrop

root, epochs, cases = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
labels = torch.zeros(96, dtype=torch.int64)
view = Compose((RandomResizedCrop(64), RandomFlip(), Normalise((0.5,) * 3, (0.5,) * 3)))
split = Split(FileImages(root, [f"{i}.jpg" for i in range(96)]), labels)
resident = {}
for name, (decode_in, workers) in cases.items():
    loader = Streaming(split, BatchPlan(labels, (view,), 16), workers=workers, decode_in=decode_in)
    kept, resident[name] = [], []
    for epoch in range(epochs):
        for batch in loader.training(0, epoch):
            if name == "leak":
                kept.append(batch)
        del batch
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # memory that is free, but kept for later, is no leak
        with open("/proc/self/statm") as file:
            resident[name].append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
print(json.dumps(resident))
"""


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs")
    generator = np.random.default_rng(0)
    for i in range(96):
        coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        size = tuple(int(side) for side in generator.integers(100, 160, 2))  # not all of one: heaps love sameness
        coarse.resize(size, Image.Resampling.BICUBIC).save(root / f"{i}.jpg", quality=90)
    return root


def growth(root, cases=CASES):
    """Bytes by which the process has grown from its first epochs to its last, per case; of each the least."""
    command = [sys.executable, "-c", SCRIPT, str(root), str(EPOCHS), json.dumps(cases)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240, env=environment)
    return {name: min(bytes_[-4:]) - min(bytes_[1:4]) for name, bytes_ in json.loads(done.stdout).items()}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells")
def test_memory_of_streaming_does_not_grow_and_a_leak_is_detected(photographs):
    # Five epochs or more lie between: a leak of the batches alone would be 23 MB, every time; a heap may grow by half
    # of that once, on a busy machine.
    found = growth(photographs)
    assert found.pop("leak") > 4 * BYTES_OF_AN_EPOCH
    for name, grown in found.items():
        again = (growth(photographs, {name: CASES[name]})[name] for _ in range(2))
        assert grown < 3 * BYTES_OF_AN_EPOCH or any(more < 3 * BYTES_OF_AN_EPOCH for more in again), name
