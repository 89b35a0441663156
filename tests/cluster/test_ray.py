"""A real Ray: a worker is killed, or no folder is shared, and the results are those of one process."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.study.test_join import left_in

pytestmark = pytest.mark.slow

PLAN = """data = "digits-lt"
methods = ["softmax", "cbs"]
betas = [1.25]
seeds = 6
out = "study"
[recipe]
epochs = 40
evaluate_every = 0
checkpoint_epochs = 4
device = "cpu"
"""
DRIVER = """import ray
from longtail import Study
from longtail.integrations.ray import run_on_ray
ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
(results,) = run_on_ray([Study.from_toml("plan.toml", command="longtail study study/plan.toml")])
assert len(results.runs) == 12 and not results.outcome.failed
ray.shutdown()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short name, because sockets of Ray are in it, and no process of Ray in it afterwards."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'longtail[ray]'")
    with tempfile.TemporaryDirectory(prefix="lt-ray-", ignore_cleanup_errors=True) as name:
        yield Path(name)
        end = time.monotonic() + 30
        while found := [line for line in commands() if name in line]:
            assert time.monotonic() < end, found
            time.sleep(0.5)


def commands() -> list[str]:
    """Return the command lines of all processes."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it ended
            continue
    return found


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def is_open(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def finish(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said
    return said


def status(folder: Path) -> dict:
    return json.loads(finish(start(folder, "-m", "longtail", "study", "plan.toml", "--status", "--json")))


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict:
    """What one process leaves."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "plan.toml").write_text(PLAN)
    started = time.monotonic()
    finish(start(folder, "-m", "longtail", "study", "plan.toml"))
    print(f"\none process: {time.monotonic() - started:.0f} s")
    return left_in(folder / "study")


def test_a_killed_worker_is_started_again(place, alone):
    (place / "plan.toml").write_text(PLAN)
    started = time.monotonic()
    driver = start(place, "-c", DRIVER, RAY_TMPDIR=str(place))
    while not (running := status(place)["running_runs"]) or not list(place.glob("study/*/checkpoints/*")):
        assert driver.poll() is None, driver.communicate()[0]
    victims = {one["pid"] for one in running.values()}
    assert driver.pid not in victims
    victim = victims.pop()
    os.kill(victim, signal.SIGKILL)
    said = finish(driver)
    print(f"on Ray, one worker killed: {time.monotonic() - started:.0f} s")
    assert f"Worker PID: {victim}" in said  # the log of Ray reaches the driver
    assert "will be retried" in said
    of_python = {name: content for name, content in alone.items() if name != "plan.toml"}  # the command writes that
    assert left_in(place / "study") == of_python


@pytest.mark.skipif(not shutil.which("unshare") or os.geteuid() != 0, reason="needs root, to hide a folder from Ray")
def test_without_a_shared_folder_runs_are_sent_back(place, alone):
    here = place / "driver"
    here.mkdir()
    (here / "plan.toml").write_text(PLAN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    head = f"mount -t tmpfs none {here} && exec {sys.executable} -m ray.scripts.scripts start --head --block"
    head += f" --num-cpus=2 --port={port} --include-dashboard=false --node-ip-address=127.0.0.1 --temp-dir={place}/r"
    ray = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", head],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", **token},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not is_open(port):
            assert ray.poll() is None
            time.sleep(0.5)
        started = time.monotonic()
        words = ("study", "plan.toml", "--on", "ray", "--address", f"127.0.0.1:{port}", "--workers", "2")
        finish(start(here, "-m", "longtail", *words, **token))
        print(f"on Ray, no folder shared: {time.monotonic() - started:.0f} s")
    finally:
        ray.terminate()
        ray.wait(60)
    assert left_in(here / "study") == alone
