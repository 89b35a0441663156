"""A real Slurm: workers are stopped, cancelled and queued again; the results are those of one process."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster.slurm_here import said_by, slurm, until, why_not
from tests.study.test_join import left_in

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]

PLAN = """data = "digits-lt"
methods = ["softmax", "cbs"]
betas = [1.25]
seeds = 6
out = "it's 100% of $HOME"
[recipe]
epochs = 150
evaluate_every = 0
checkpoint_epochs = 4
device = "cpu"
"""
ON_SLURM = ("--on", "slurm", "--gpus", "0", "--workers")


def longtail(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "longtail", "study", "my plan.toml", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def jobs(job: str) -> dict[str, dict[str, str]]:
    """Return what Slurm knows about the tasks of an array."""
    text = said_by("scontrol", "show", "job", job)
    fields = [dict(re.findall(r"(\w+)=(\S*)", block)) for block in text.split("\n\n") if "ArrayTaskId" in block]
    return {one["ArrayTaskId"]: one for one in fields}


def training(folder: Path) -> int:
    """How many workers train a run."""
    return sum(bool(json.loads(file.read_text())["runs"]) for file in folder.glob("*/workers/*.json"))


def logs(folder: Path, job: str) -> str:
    return "\n".join(file.read_text() for file in sorted(folder.glob(f"*/slurm/{job}_*.log")))


def test_an_array_that_is_disturbed_leaves_what_one_process_leaves(tmp_path):
    one, many = tmp_path / "one", tmp_path / "many"
    for folder in (one, many):
        folder.mkdir()
        (folder / "my plan.toml").write_text(PLAN)
    started = time.monotonic()
    longtail(one)
    print(f"\none process: {time.monotonic() - started:.0f} s")
    with slurm():
        started = time.monotonic()
        said = longtail(many, *ON_SLURM, "4", "--time", "30", "--sbatch", "--comment=a_test")
        job = re.findall(r"Slurm job (\d+): 4 workers", said)[0]
        assert next(iter(jobs(job).values()))["Comment"] == "a_test"
        until(lambda: training(many) == 4, 240, "four workers that train")
        assert longtail(many, "--status").count("worker  ") == 4
        said_by("scancel", f"{job}_2")  # for good
        # As Slurm does before the time limit. The number of the last task is that of the array, too.
        said_by("scancel", "--signal=USR1", "--batch", f"{job}_4")
        until(lambda: jobs(job)["4"]["JobState"] == "PENDING", 120, "the requeue")
        # Slurm would wait for two minutes. In the second of the requeue its node refuses a new start of the task,
        # because credentials have times in whole seconds, and Slurm then ends the task as FAILED.
        time.sleep(2)
        said_by("scontrol", "update", f"JobId={job}_4", "StartTime=now")
        until(lambda: not said_by("squeue", "--noheader").strip(), 300, "the end of all workers")
        ended, text = jobs(job), logs(many, job)
        print(f"four workers, of which one was cancelled and one queued again: {time.monotonic() - started:.0f} s")
        assert {task: about["JobState"] for task, about in ended.items()} == {
            "1": "COMPLETED",
            "2": "CANCELLED",
            "3": "COMPLETED",
            "4": "COMPLETED",
        }, f"{ended}\n{text}"
        assert {task: about["Restarts"] for task, about in ended.items()} == {"1": "0", "2": "0", "3": "0", "4": "1"}
        assert text.count("Stopped; the same command continues.") == 2
        assert "Traceback" not in text
        expected = left_in(one / "it's 100% of $HOME")
        assert len([name for name in expected if name.endswith("result.json")]) == 12
        found = left_in(many / "it's 100% of $HOME")
        assert {name: found[name] for name in found if not name.startswith("slurm/")} == expected


def test_a_time_limit_queues_workers_again(tmp_path):
    (tmp_path / "my plan.toml").write_text(
        PLAN.replace("epochs = 150", "epochs = 30000").replace("seeds = 6", "seeds = 1")
    )
    with slurm():
        said = longtail(tmp_path, *ON_SLURM, "2", "--time", "2:00")
        job = re.findall(r"Slurm job (\d+)", said)[0]
        started = time.monotonic()
        until(lambda: all(one.get("Restarts") == "1" for one in jobs(job).values()), 120, "Slurm's signal")
        print(f"\nqueued again after {time.monotonic() - started:.0f} s of 120 s")
        assert logs(tmp_path, job).count("Stopped; the same command continues.") == 2
        assert "TIME LIMIT" not in logs(tmp_path, job)
        assert "2 stopped" in longtail(tmp_path, "--status")


def test_what_slurm_refuses_is_one_sentence(tmp_path):
    (tmp_path / "my plan.toml").write_text(PLAN)
    with slurm():
        words = [*ON_SLURM, "2", "--sbatch", "--partition=none"]
        done = subprocess.run(
            [sys.executable, "-m", "longtail", "study", "my plan.toml", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert re.fullmatch(r"longtail: Expected sbatch to accept .*Invalid partition.*\n", done.stderr)
