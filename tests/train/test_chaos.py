"""Commands that are killed again and again, at any moment of their lives, and then run to the end.

What they leave must be what an undisturbed command leaves, bit for bit, and nothing else. ``LONGTAIL_CHAOS`` is the
number of kills in total; `make chaos` has many, the test suite a few. Most processes are forked from one that has
imported torch, because importing it takes longer than everything else; some are started anew.
"""

import fcntl
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file
from tests.train.warm import ROOT, Warm

CHAOS = int(os.environ.get("LONGTAIL_CHAOS", "0"))
KILLS = CHAOS or 6
PART = 50  # kills of one test
PER_LIFE = 8  # kills of one command before it is run to the end
COLD = 0.04  # of the processes are started anew

OFTEN = ("--evaluate-every", 3, "--checkpoint-epochs", 2, "--checkpoint-minutes", 0.05 / 60, "--device", "cpu")
DIGITS = ("--data", "digits-lt")
SEARCH = ("--start", 1, 2, "--folds", 2, "--step", 1, "--bounds", 0, 3, "--epochs", 2, "--batch-size", 256)
COMMANDS = {
    # ProCo's objective has state; cRT has two stages; beta of CBS is measured by pilots.
    "proco": ("train", *DIGITS, "--method", "proco", "--epochs", 6, *OFTEN, "--out", "out"),
    "crt": ("train", *DIGITS, "--method", "crt", "--epochs", 6, "--classifier-epochs", 2, *OFTEN, "--out", "out"),
    "cbs": ("train", *DIGITS, "--method", "cbs", "--epochs", 3, *OFTEN, "--out", "out"),
    "sweep": ("train", *DIGITS, "--method", "softmax", "--seed", 0, 1, 2, "--epochs", 3, *OFTEN, "--out", "out"),
    "study": ("study", *DIGITS, "--methods", "softmax", "cbs", "--betas", 1, "--seeds", 2, "--epochs", 3, *OFTEN,
              "--out", "out"),
    "beta": ("study", "beta", *DIGITS, *SEARCH, *OFTEN, "--out", "out"),
    "report": ("report", "finished", "--out", "out/page.html", "--figures", "out/figures"),
    "get": ("data", "get", "pets", "--plugin", "pets.py", "--root", "out"),
}  # fmt: skip

NAMES = list(COMMANDS) if CHAOS else ["cbs", "study", "get"]

PLUGIN = """
from functools import partial
from longtail.data import open_path, register_dataset
from longtail.data.datasets.fetch import fetch_archive

register_dataset(
    "pets", lambda root: open_path(root / "pets"), num_classes=2, sizes={{"train": 400}}, files=("pets",),
    fetch=partial(fetch_archive, "{url}", "{md5}", "pets"),
)
"""


@dataclass
class Shared:
    """What all lives start from."""

    folder: Path
    """Has the data set that ``get`` downloads, and the study that ``report`` reads."""
    undisturbed: dict[str, dict[str, str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@pytest.fixture(scope="module")
def shared(warm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chaos")
    for number in range(400):
        place = folder / "made" / "pets" / ("cat" if number % 3 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40, 40), number).save(place / f"{number}.png")
    with tarfile.open(folder / "pets.tar.gz", "w:gz") as archive:
        archive.add(folder / "made" / "pets", "pets")
    md5 = hashlib.md5((folder / "pets.tar.gz").read_bytes()).hexdigest()
    (folder / "pets.py").write_text(PLUGIN.format(url=(folder / "pets.tar.gz").as_uri(), md5=md5))
    if "report" in NAMES:
        some = ("--methods", "softmax", "balanced-softmax", "--seeds", 2, "--epochs", 1)
        assert warm.run("study", *DIGITS, *some, "--out", folder / "finished").code == 0
    found = Shared(folder)
    for name in NAMES:
        began = time.monotonic()
        run = warm.run(*COMMANDS[name], cwd=prepared(found, folder / f"undisturbed-{name}"))
        assert run.code == 0, run.said
        found.seconds[name] = time.monotonic() - began
        found.undisturbed[name] = snapshot(folder / f"undisturbed-{name}" / "out")
    return found


def prepared(shared, folder):
    folder.mkdir()
    shutil.copy(shared.folder / "pets.py", folder)
    (folder / "finished").symlink_to(shared.folder / "finished")
    (folder / "out").mkdir()
    return folder


def snapshot(folder):
    """What a command left, by file, without what a clock or a path says; of checkpoints the tensors of the last."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or path.name == "environment.json" or path.parent.name == "checkpoints":
            found |= {name: "folder"} if path.is_dir() else {}
            continue
        content = path.read_bytes()
        if path.name == "log.jsonl":
            lines = [json.loads(line) for line in content.splitlines()]
            clock = ("seconds", "images_per_second")
            content = json.dumps([{k: v for k, v in line.items() if k not in clock} for line in lines]).encode()
        if path.name == "study.json":
            content = re.sub(rb'"ended": "[^"]+"', b"", content)
        if path.suffix == ".lock":
            with path.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds it
        found[name] = hashlib.sha256(content).hexdigest()
    for folder_of in folder.rglob("checkpoints"):
        last = load_file(max(folder_of.iterdir()))
        digest = hashlib.sha256(b"".join(last[key].numpy().tobytes() for key in sorted(last))).hexdigest()
        found[f"{folder_of.relative_to(folder).as_posix()}/last"] = digest
    return found


class Cold:
    """A process that is started anew, with the methods of `warm.Run` that are needed here."""

    def __init__(self, words, cwd):
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        self.err = cwd / "cold.err"
        with self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "longtail", *map(str, words)],
                cwd=cwd,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
                stdout=subprocess.DEVNULL,
                stderr=err,
            )

    def send(self, number):
        self.process.send_signal(number)

    def wait(self):
        self.code = self.process.wait()
        return self

    @property
    def said(self):
        return self.err.read_text()


def live(warm, shared, number, folder, most):
    """Run a command, kill it up to ``most`` times, run it to the end, compare; return the number of kills."""
    name, rng = NAMES[number % len(NAMES)], random.Random(number)
    words, seconds = COMMANDS[name], shared.seconds[name]
    prepared(shared, folder)
    killed = 0
    for _ in range(most):
        cold = rng.random() < COLD
        process = Cold(words, folder) if cold else warm.start(*words, cwd=folder)
        time.sleep(rng.uniform(0, seconds) + (rng.uniform(0, 5) if cold else 0))
        process.send(signal.SIGKILL)
        code = process.wait().code
        assert code in (0, -signal.SIGKILL), f"{name} after {killed} kills: exit code {code}, {process.said}"
        killed += code != 0
        if code == 0:
            break
    last = warm.run(*words, cwd=folder)
    assert last.code == 0, f"{name} after {killed} kills: {last.said}"
    found, expected = snapshot(folder / "out"), shared.undisturbed[name]
    differing = {file for file in found.keys() | expected.keys() if found.get(file) != expected.get(file)}
    assert not differing, f"{name} after {killed} kills: {sorted(differing)[:8]} differ or are left over"
    shutil.rmtree(folder)
    return killed


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two servers that start processes: a server waits for one process at a time."""
    found = [Warm(tmp_path_factory.mktemp("warm")) for _ in range(2)]
    yield found
    for one in found:
        one.close()


@pytest.mark.parametrize("part", range(math.ceil(KILLS / PART)))
def test_killed_again_and_again(shared, two, tmp_path, part):
    """Two commands at a time; the seed of a life is its number, so that a failure can be repeated."""
    kills: Counter[str] = Counter()
    failed: list[bool] = []
    most, began = min(PART, KILLS - PART * part), time.monotonic()

    def lives(slot):
        try:
            for number in range(10_000 * part + slot, 10_000 * (part + 1), 2):
                if kills.total() >= most or failed:
                    return
                name = NAMES[number % len(NAMES)]
                per_life = min(PER_LIFE, 1 + KILLS // len(NAMES))
                kills[name] += live(two[slot], shared, number, tmp_path / str(number), per_life)
        except BaseException:
            failed.append(True)
            raise

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lives, range(2)))
    print(f"{kills.total()} kills in {time.monotonic() - began:.0f} s: {dict(kills)}")
