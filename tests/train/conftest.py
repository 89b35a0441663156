"""What tests of training share: short runs on the embedded digits."""

import fcntl
import json

import numpy as np
import pytest
import torch
from PIL import Image
from tests.train.emulated_gpu import emulate
from tests.train.feeding import BAD
from tests.train.warm import Warm

from longtail.data import FileImages, Split
from longtail.train import RunFolder, StoppedError, Trainer, defaults


def mostly_slow(values, fast):
    """Values for parametrize: those in ``fast`` always, the others in `make test-slow` only."""
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]


def recipe_for(method, *, imbalance=None, **settings):
    """The digits' recipe, short; without pilots to measure beta unless `beta` is auto."""
    usual = {"epochs": 2, "device": "cpu"} | ({"beta": 1.5} if method == "cbs" else {})
    return defaults("digits-lt", method, imbalance).changed(**usual | settings)


def trained(path, method, **settings):
    """A finished run's folder and its result."""
    folder = RunFolder(path)
    return folder, Trainer(recipe_for(method, **settings), folder).run()


def bytes_left(folder):
    """All that a run leaves and that must not depend on how it came about."""
    names = ("model.safetensors", "predictions.safetensors", "statistics.safetensors", "result.json")
    return {name: (folder.path / name).read_bytes() for name in names}


def logged(folder):
    """The log without what a clock says."""
    lines = [json.loads(line) for line in folder.log_file.read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in {"seconds", "images_per_second"}} for line in lines]


def assert_same_run(folder, reference):
    for name, content in bytes_left(reference).items():
        assert (folder.path / name).read_bytes() == content, name
    assert logged(folder) == logged(reference)
    assert not list(folder.path.rglob("*.part"))


def stop_and_resume(recipe, folder, *after):
    """Train a run that stops after each of these numbers of steps and resumes; return the trainer that ends it."""
    for steps in (*after, None):
        trainer = Trainer(recipe, folder)
        try:
            for number, _ in enumerate(trainer.steps(), 1):
                trainer.stop_requested = number == steps
        except StoppedError:
            continue
    return trainer


def is_locked(folder):
    """As another process finds it, which opens the file anew."""
    with (folder.path / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def one_sentence(text):
    text = text.strip()
    assert text.startswith("longtail: "), text
    assert text.endswith("."), text
    assert "\n" not in text, text
    assert "Traceback" not in text
    return text.removeprefix("longtail: ")


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    """The command, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """Starts processes that run the command at once."""
    one = Warm(tmp_path_factory.mktemp("warm"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Forty JPEGs of ten classes, one of which is none."""
    root = tmp_path_factory.mktemp("photographs")
    names = [f"{number}.jpg" for number in range(40)]
    generator = np.random.default_rng(0)
    for number, name in enumerate(names):
        pixels = generator.integers(0, 256, (4, 5, 3), dtype=np.uint8).repeat(12, axis=0).repeat(10, axis=1)
        Image.fromarray(pixels).save(root / name, quality=95)
        if number == BAD:
            (root / name).write_bytes(b"no picture")
    return Split(FileImages(root, names), torch.arange(40) % 10)


@pytest.fixture
def gpu(monkeypatch):
    """An emulated one."""
    return emulate(monkeypatch)


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums in another order are other sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
