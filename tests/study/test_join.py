"""Several workers on one study, started and killed at any time: the folder is the one that a single process leaves."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
import torch
from tests.study.conftest import plan_in

from longtail.study import Study
from longtail.study.conduct import known_runs
from longtail.study.workers import describe_status, status
from longtail.train import RunFolder

KEPT = ("model.safetensors", "predictions.safetensors", "statistics.safetensors", "result.json")
PLAN = """data = "digits-lt"
methods = ["softmax", "cbs"]
betas = {betas}
seeds = 3
out = "study"
[recipe]
epochs = 40
evaluate_every = 0
checkpoint_epochs = 4
device = "cpu"
[search]
start = [0.5, 1.5]
bounds = [0.5, 1.5]
folds = 2
"""


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def worker(folder: Path, *flags: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "longtail", "study", "plan.toml", "--join", *flags],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_in(out: Path) -> dict[str, str | bytes]:
    """Everything that must not depend on who trained what and when."""
    found: dict[str, str | bytes] = {}
    for file in sorted(path for path in out.rglob("*") if path.is_file()):
        name = file.relative_to(out).as_posix()
        if file.name in KEPT or "tables" in name or file.suffix in {".csv", ".md", ".tex", ".toml"}:
            found[name] = file.read_bytes()
        elif file.name in {"study.json", "beta.json"}:
            found[name] = re.sub(r'"ended": "[^"]+"', '"ended": "then"', file.read_text())
        elif file.name not in {".lock", "environment.json", "log.jsonl"} and "checkpoints" not in name:
            found[name] = "there"
    return found


def test_workers_that_are_killed_leave_what_one_process_leaves(tmp_path):
    draw = random.Random(0)
    for case, betas, claims in (("lock", '["search", 1.25]', "lock"), ("lease", "[1.25]", "lease")):
        one, many = tmp_path / case / "one", tmp_path / case / "many"
        for folder in (one, many):
            folder.mkdir(parents=True)
            (folder / "plan.toml").write_text(PLAN.format(betas=betas))
        alone = worker(one)
        said, _ = alone.communicate(timeout=120)
        assert alone.returncode == 0, said
        workers = [worker(many, LONGTAIL_CLAIMS=claims) for _ in range(3)]
        for _ in range(4):
            time.sleep(draw.uniform(1.5, 4.0))
            victim = draw.randrange(3)
            workers[victim].send_signal(signal.SIGKILL)
            workers[victim].communicate()
            workers[victim] = worker(many, LONGTAIL_CLAIMS=claims)
        for process in workers:
            said, _ = process.communicate(timeout=180)
            assert process.returncode == 0, said
        expected = left_in(one / "study")
        assert any(name.startswith("search/") for name in expected) == ("search" in betas)
        assert left_in(many / "study") == expected


def test_a_worker_with_a_full_disk_does_not_stop_the_others(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN.format(betas="[1.25]").replace("epochs = 40", "epochs = 5"))
    limited = f"ulimit -f 20; exec {sys.executable} -m longtail study plan.toml --join"
    broken = subprocess.Popen(["bash", "-c", limited], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    good = worker(tmp_path)
    said, _ = good.communicate(timeout=120)
    assert good.returncode == 0, said
    _, errors = broken.communicate(timeout=120)
    assert broken.returncode in {0, 1, 2}
    assert "Traceback" not in errors
    assert len(list((tmp_path / "study").glob("*/result.json"))) == 6
    assert not list((tmp_path / "study").rglob("*.part"))
    assert not list((tmp_path / "study").rglob("failed.json"))


def test_workers_must_share_plan_and_version(tmp_path, study):
    shutil.copytree(study, tmp_path / "study")
    out = tmp_path / "study"
    others = out / "workers"
    others.mkdir()
    plan = plan_in(out)
    refused = {"longtail": "0.0.0", "seeds": "(0, 1, 2)"}
    for name, value in refused.items():
        about = {"host": "elsewhere", "pid": 1, "start": "", "boot": "", "since": "2026-01-01T00:00:00", "runs": {}}
        (others / "elsewhere-1.json").write_text(json.dumps({**about, "joins": {**identity(plan), name: value}}))
        with pytest.raises(ValueError, match=r"elsewhere.*" + re.escape(value)):
            Study(plan).work()
    (others / "elsewhere-1.json").write_text(json.dumps({**about, "joins": identity(plan)}))
    assert len(Study(plan).work().runs) == 6
    os.utime(others / "elsewhere-1.json", (time.time() - 600,) * 2)  # silent for ten minutes
    Study(plan).work()
    assert not others.exists()


def identity(plan):
    from longtail.study.workers import _identity

    return _identity(plan) | {"longtail": metadata.version("longtail")}


def test_the_last_worker_writes_the_tables_once(tmp_path, study):
    shutil.copytree(study, tmp_path / "study")
    first = Study(plan_in(tmp_path / "study")).work()
    tables = tmp_path / "study" / "tables"
    written = {file: file.stat().st_mtime_ns for file in tables.iterdir()}
    again = Study(plan_in(tmp_path / "study")).work()
    assert {file: file.stat().st_mtime_ns for file in tables.iterdir()} == written
    assert len(again.runs) == len(first.runs) == 6


def test_status_says_what_is_done_failed_and_left(tmp_path):
    plan = plan_in(tmp_path, methods=["softmax"], seeds=3, recipe={"lr": 1e30})
    assert describe_status(status([plan], known_runs([plan]))) == "0 done, 3 waiting"
    results = Study(plan).work()
    found = status([plan], known_runs([plan]))
    assert (found["done"], found["failed"], found["waiting"]) == (0, 3, 0)
    assert found["failed_runs"] == results.outcome.failed
    assert "finite loss" in describe_status(found)
    good = plan_in(tmp_path / "good", methods=["softmax"], seeds=2)
    seen = []
    Study(good).work(on_progress=lambda _: seen.append(status([good], known_runs([good]))))
    assert any(one["running"] == 1 and one["workers"][0]["pid"] == os.getpid() for one in seen)
    assert seen[-1]["done"] == 2


def test_commands_train_the_runs_of_a_plan(tmp_path, monkeypatch, run, study):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN.format(betas="[1.5]").replace("epochs = 40", "epochs = 2"))
    code, out, _ = run("study", "plan.toml", "--commands")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == 6
    words = lines[0].split()
    assert run(*words[words.index("train") :])[0] == 0
    folder = RunFolder(tmp_path / "study" / "digits-lt-50-softmax-seed0")
    assert folder.done
    assert len(run("study", "plan.toml", "--commands")[1].splitlines()) == 5
    whole = RunFolder(study / folder.path.name)
    assert (folder.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
