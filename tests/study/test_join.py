"""Several workers on one study, started and killed at any time: the folder is the one that a single process leaves."""

import json
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.study.conftest import plan_in
from tests.train.warm import Warm, until

from longtail.study import Study
from longtail.study import study as of_study
from longtail.study.conduct import known_runs
from longtail.study.study import run_studies
from longtail.study.workers import _identity, describe_status, status
from longtail.train import RunFolder

KEPT = ("model.safetensors", "predictions.safetensors", "statistics.safetensors", "result.json")
PLAN = """data = "digits-lt"
methods = ["softmax", "cbs"]
betas = {betas}
seeds = {seeds}
out = "study"
[recipe]
epochs = {epochs}
batch_size = 256
evaluate_every = 0
checkpoint_epochs = 2
device = "cpu"
[search]
start = [0.5, 1.5]
bounds = [0.5, 1.5]
folds = 2
"""
KILLS = 8


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    one = Warm(tmp_path_factory.mktemp("warm"))
    yield one
    one.close()


@pytest.fixture
def planned(tmp_path):
    """Return a function that makes a folder with a plan."""

    def make(name, *, betas="[1.25]", seeds=3, epochs=15):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.toml").write_text(PLAN.format(betas=betas, seeds=seeds, epochs=epochs))
        return tmp_path / name

    return make


def join(warm, folder, *, host="", hours=0.0, **options):
    """Start a worker; with a host, it seems to be another machine, with another clock and short signs of life."""
    hook = f"""
import os, socket, time
from longtail import _claims
now, touch = time.time, os.utime
time.time = lambda: now() + 3600 * {hours}
os.utime = lambda path, times=None: touch(path, times or (time.time(),) * 2)  # the server takes the client's time
socket.gethostname = lambda: {host!r}
_claims.HEARTBEAT, _claims.STALE = 0.2, 2.0
"""
    return warm.start("study", "plan.toml", "--join", cwd=folder, hook=hook if host else "", **options)


def left_in(out: Path) -> dict[str, str | bytes]:
    """Everything that must not depend on who trained what and when."""
    found: dict[str, str | bytes] = {}
    for file in sorted(path for path in out.rglob("*") if path.is_file()):
        name = file.relative_to(out).as_posix()
        if file.name in KEPT or "tables" in name or file.suffix in {".csv", ".md", ".tex", ".toml"}:
            found[name] = file.read_bytes()
        elif file.name in {"study.json", "beta.json"}:
            found[name] = re.sub(r'"ended": "[^"]+"', '"ended": "then"', file.read_text())
        elif file.name == "log.jsonl":
            found[name] = str(len(file.read_text().splitlines()))
        elif file.name not in {".lock", "environment.json"} and "checkpoints" not in name:
            found[name] = "there"
        assert not name.endswith((".part", ".lease")), name
    return found


def finished_by(*workers) -> list[str]:
    """The runs that workers say they finished."""
    return [name for one in workers for name in re.findall(r"^\d+/\d+ (\S+): recall", one.said, re.M)]


def assert_ended(*workers):
    for one in workers:
        assert one.wait().code == 0, one.said
        assert "Traceback" not in one.said


@pytest.mark.parametrize("case", ["plain", "search", pytest.param("pilots", marks=pytest.mark.slow), "lease"])
def test_four_workers_that_are_killed_leave_what_one_process_leaves(planned, warm, case):
    betas = {"search": '["search", 1.25]', "pilots": '["auto"]'}.get(case, "[1.25]")
    size = {"pilots": {"seeds": 2, "epochs": 8}, "search": {}}.get(case, {"epochs": 40})
    claims = {"environment": {"LONGTAIL_CLAIMS": "lease" if case == "lease" else "lock"}}
    one, many = (planned(name, betas=betas, **size) for name in ("one", "many"))
    assert_ended(warm.run("study", "plan.toml", cwd=one))
    draw = random.Random(case)
    workers = [join(warm, many, **claims) for _ in range(4)]
    killed = []
    for _ in range(KILLS):
        time.sleep(draw.uniform(0.05, 0.3))
        place = draw.randrange(4)
        workers[place].send(signal.SIGKILL)
        killed.append(workers[place].wait())
        workers[place] = join(warm, many, **claims)
    assert_ended(*workers)
    assert sum(one.code == -signal.SIGKILL for one in killed) >= 3
    expected = left_in(one / "study")
    assert any(name.startswith("search/") for name in expected) == (case == "search")
    assert any("pilot0" in name for name in expected) == (case == "pilots")
    assert left_in(many / "study") == expected
    found = finished_by(*workers, *killed)
    assert len(found) == len(set(found))  # nothing twice


def test_machines_whose_clocks_are_an_hour_apart_share_a_study(planned, warm):
    one, many = planned("one", seeds=4), planned("many", seeds=4)
    assert_ended(warm.run("study", "plan.toml", cwd=one))
    lease = {"environment": {"LONGTAIL_CLAIMS": "lease"}}
    early, late = (join(warm, many, host=f"host{hours:+}", hours=hours, **lease) for hours in (-0.5, 0.5))
    lost = join(warm, many, host="lost", **lease)
    until(
        lambda: any(json.loads(file.read_text())["host"] == "lost" for file in many.glob("study/*/.lease")), pause=0.01
    )
    lost.send(signal.SIGKILL)  # no other machine can see that it is gone
    assert_ended(early, late)
    for file in many.glob("study/workers/lost*"):  # the others may have ended before they took it for dead
        file.unlink()
        file.parent.rmdir()
    assert left_in(many / "study") == left_in(one / "study")
    found = finished_by(early, late, lost)
    assert len(found) == len(set(found))
    assert finished_by(early)
    assert finished_by(late)


def test_a_stalled_owner_gives_up_what_another_machine_took(planned, warm):
    one, many = (
        planned("one", betas='["auto"]', seeds=1, epochs=8),
        planned("many", betas='["auto"]', seeds=1, epochs=8),
    )
    assert_ended(warm.run("study", "plan.toml", cwd=one))
    lease = {"environment": {"LONGTAIL_CLAIMS": "lease"}}
    stalled = join(warm, many, host="stalled", **lease)
    until(lambda: list(many.glob("study/*/pilot1/.lease")), pause=0.01)  # in the middle of a run with pilots
    stalled.send(signal.SIGSTOP)
    other = join(warm, many, host="other", **lease)
    assert_ended(other)
    stalled.send(signal.SIGCONT)
    assert_ended(stalled)
    assert left_in(many / "study") == left_in(one / "study")


def test_a_worker_with_a_full_disk_does_not_stop_the_others(planned, warm):
    folder = planned("study", epochs=5)
    broken, good = join(warm, folder, largest_file=20_000), join(warm, folder)
    assert_ended(good)
    assert broken.wait().code in {0, 1, 2}
    assert "Traceback" not in broken.said
    assert len(list(folder.glob("study/*/result.json"))) == 6
    assert not [file for file in left_in(folder / "study") if "failed.json" in file]
    assert json.loads((folder / "study" / "study.json").read_text())["studies"][0]["failed"] == {}


def test_a_folder_that_cannot_be_written_is_one_sentence(planned, warm):
    folder = planned("study")
    (folder / "study").write_text("not a folder")
    worker = join(warm, folder).wait()
    assert worker.code == 2
    assert re.search(r"^.*Expected .*study.*\n$", worker.said)


def test_workers_must_share_plan_and_version(tmp_path, study):
    shutil.copytree(study, tmp_path / "study")
    out = tmp_path / "study"
    others = out / "workers"
    others.mkdir()
    plan = plan_in(out)
    refused = {"longtail": "0.0.0", "seeds": "(0, 1, 2)", "recipe.epochs": "7", "LONGTAIL_CLAIMS": "lease"}
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
    return _identity(plan) | {"longtail": metadata.version("longtail")}


def test_the_last_worker_writes_the_tables_once(tmp_path, study):
    shutil.copytree(study, tmp_path / "study")
    first = Study(plan_in(tmp_path / "study")).work()
    tables = tmp_path / "study" / "tables"
    written = {file: file.stat().st_mtime_ns for file in tables.iterdir()}
    again = Study(plan_in(tmp_path / "study")).work()
    assert {file: file.stat().st_mtime_ns for file in tables.iterdir()} == written
    assert len(again.runs) == len(first.runs) == 6


def test_a_worker_looks_once_at_a_run_that_is_done(tmp_path, study, monkeypatch):
    shutil.copytree(study, tmp_path / "out")
    joined = Study(plan_in(tmp_path / "out"))
    joined.work()  # writes the tables, for which it reads all results
    looks, done = Counter(), RunFolder.done.fget

    def look(folder):
        found = done(folder)
        looks[folder.path.name] += found
        return found

    monkeypatch.setattr(RunFolder, "done", property(look))
    (results,) = run_studies([joined], join=True, read=False)
    assert len(results.outcome.done) == 6
    assert set(looks.values()) == {1}


def test_workers_do_not_queue_for_tables_that_one_of_them_writes(tmp_path, study, monkeypatch):
    shutil.copytree(study, tmp_path / "out")
    joined, tables = Study(plan_in(tmp_path / "out")), tmp_path / "out" / "tables"
    joined.work()
    tables.rename(tmp_path / "later")
    pauses = []

    def held_by_another(*_):
        raise BlockingIOError

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            (tmp_path / "later").rename(tables)

    monkeypatch.setattr(of_study, "claim", held_by_another)
    monkeypatch.setattr(of_study, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
    (results,) = run_studies([joined], join=True, read=False)
    assert len(results.outcome.done) == 6
    assert pauses == [0.2, 0.4, 0.8]


def test_status_says_what_is_done_failed_and_left(tmp_path):
    plan = plan_in(tmp_path, methods=["softmax"], seeds=3, recipe={"lr": 1e30})
    assert describe_status(status([plan], known_runs([plan]))) == "3 runs: 0 done, 3 waiting"
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
    (tmp_path / "plan.toml").write_text(
        PLAN.format(betas="[1.5]", seeds=3, epochs=2).replace("batch_size = 256", 'precision = "auto"')
    )
    code, out, _ = run("study", "plan.toml", "--commands")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == 6
    assert run("study", "plan.toml", "--dry-run")[1].count("  to do ") == 6
    words = lines[0].split()
    assert run(*words[words.index("train") :])[0] == 0
    folder = RunFolder(tmp_path / "study" / "digits-lt-50-softmax-seed0")
    assert folder.done
    assert len(run("study", "plan.toml", "--commands")[1].splitlines()) == 5
    whole = RunFolder(study / folder.path.name)
    assert folder.recipe().precision == whole.recipe().precision != "auto"
    assert (folder.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
