"""Flags of `longtail study` for clusters: what is refused, and the script for Slurm."""

import shlex
import subprocess
import sys

import pytest

from longtail.integrations.ray import _room
from longtail.integrations.slurm import _seconds

STUDY = ("study", "--data", "digits-lt", "--methods", "softmax", "--seeds", "1", "--epochs", "1")
SLURM = (*STUDY, "--on", "slurm")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((*SLURM, "--workers", "0"), "--workers to be an integer >= 1, but got '0'"),
        (SLURM, "--workers N with --on slurm"),
        ((*SLURM, "--workers", "2", "--time", "4h"), "time limit such as 90"),
        ((*SLURM, "--workers", "2", "--gpus", "0.5"), "--gpus to be an integer >= 0"),
        ((*SLURM, "--workers", "2", "--dry-run"), "--on or --dry-run, but got both"),
        ((*SLURM, "--workers", "2", "--status"), "--on or --status, but got both"),
        ((*SLURM, "--workers", "2", "--join"), "--on or --join, but got both"),
        ((*SLURM, "--workers", "2", "--address", "auto"), "--address with --on ray"),
        ((*SLURM, "--workers", "2", "--sbatch=--comment='a"), "options of sbatch"),
        ((*STUDY, "--on", "ray", "--print"), "--print with --on slurm"),
        ((*STUDY, "--on", "moon"), "one of slurm, ray, but got moon"),
        ((*STUDY, "--print"), "--on slurm or --on ray with --print"),
        ((*STUDY, "--gpus", "2"), "--on slurm or --on ray with --gpus"),
    ],
)
def test_what_is_refused(run, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    code, out, said = run(*words)
    assert (code, out) == (2, "")
    assert named in said
    assert said.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_without_slurm_or_ray(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    code, _, said = run(*SLURM, "--workers", "2")
    assert code == 2
    assert "no command sbatch; run this on a login node" in said
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, said = run(*STUDY, "--on", "ray")
    assert code == 2
    assert "Expected ray to be installed: pip install 'longtail[ray]'" in said
    assert said.count("\n") == 1


def test_the_script_is_printed_and_is_valid_bash(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = 'a "b" it\'s $HOME'
    code, script, _ = run(
        *SLURM, "--workers", "8", "--time", "4:00:00", "--sbatch", "--account=my_team -p a_b", "--print", "--out", out
    )
    assert code == 0
    (plan,) = (file for file in tmp_path.rglob("*") if file.is_file())
    assert plan == tmp_path / out / "plan.toml"
    subprocess.run(["bash", "-n", "-c", script], check=True)
    options = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]
    words = [word for line in options for word in shlex.split(line)]
    assert {"--array=1-8", "--gres=gpu:1", "--time=4:00:00", "--signal=B:USR1@120", "--requeue"} <= set(words)
    assert words[-3:] == ["--account=my_team", "-p", "a_b"]
    assert f"--output={tmp_path / out}/slurm/%A_%a.log" in words
    worker = next(line for line in script.splitlines() if line.endswith(" &"))
    assert shlex.split(worker) == [sys.executable, "-m", "longtail", "study", f"{out}/plan.toml", "--join", "&"]


def test_times_of_slurm():
    times = {"90": 5400, "90:30": 5430, "4:00:00": 14400, "1-0": 86400, "1-12:30": 131400, "2-00:00:01": 172801}
    assert {text: _seconds(text) for text in times} == times


def test_workers_that_fit_into_a_ray_cluster():
    assert _room({"CPU": 16.0, "GPU": 4.0}, None, given=False) == (4, 1.0)
    assert _room({"CPU": 16.0, "GPU": 4.0}, 0.5, given=False) == (8, 0.5)
    assert _room({"CPU": 16.0}, None, given=False) == (16, 0.0)
    with pytest.raises(ValueError, match="--gpus-per-worker"):
        _room({"CPU": 16.0}, 1, given=False)
    assert _room({"CPU": 16.0}, 1, given=True) == (0, 1.0)
