"""Leases: one owner at a time, free when the owner is gone or silent, whatever the clocks say."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from longtail import _claims
from longtail._claims import LEASE_FILE, LostClaimError, claim, claim_kind, owner_of
from longtail._io import write_text
from longtail.train import RunFolder

ELSEWHERE = {"host": "elsewhere", "pid": 1, "start": "1", "boot": "x", "token": "theirs"}


@pytest.fixture(autouse=True)
def _leases(monkeypatch):
    monkeypatch.setenv("LONGTAIL_CLAIMS", "lease")
    monkeypatch.setattr(_claims, "HEARTBEAT", 0.05)
    monkeypatch.setattr(_claims, "STALE", 0.5)
    monkeypatch.setattr(_claims, "_seen", {})


def taken(folder):
    with claim(folder, "in use"):
        return owner_of(folder)


def test_a_lease_names_its_owner_and_ends_with_the_block(tmp_path):
    with claim(tmp_path, "in use"):
        with claim(tmp_path, "in use"):  # again
            pass
        assert owner_of(tmp_path)["pid"] == os.getpid()
        assert owner_of(tmp_path)["host"] == socket.gethostname()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_live_lease_is_not_taken_and_a_silent_one_is_whatever_the_clocks_say(tmp_path, hours):
    file = tmp_path / LEASE_FILE
    file.write_text(json.dumps(ELSEWHERE))
    beginning = time.monotonic()
    for beat in range(12):  # longer than STALE
        moment = time.time() + 3600 * hours + beat
        os.utime(file, (moment, moment))
        with pytest.raises(BlockingIOError, match="in use"):
            taken(tmp_path)
        time.sleep(0.1)
    assert time.monotonic() - beginning > 2 * _claims.STALE
    time.sleep(0.6)
    assert taken(tmp_path)["pid"] == os.getpid()


def test_a_process_that_ended_on_this_host_frees_its_lease_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(_claims, "STALE", 60.0)
    code = f"""
from pathlib import Path
from longtail._claims import claim
with claim(Path({str(tmp_path)!r}), "in use"):
    print("held", flush=True)
    input()
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, env=dict(os.environ)
    )
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(BlockingIOError):
        taken(tmp_path)
    holder.kill()
    holder.communicate()
    assert taken(tmp_path)["pid"] == os.getpid()


def test_an_owner_keeps_its_lease_by_signs_of_life(tmp_path):
    with claim(tmp_path, "in use"):
        signs = set()
        for _ in range(20):
            signs.add((tmp_path / LEASE_FILE).stat().st_mtime_ns)
            time.sleep(0.05)
        assert len(signs) > 5


def test_an_owner_that_lost_its_lease_writes_nothing_more(tmp_path):
    run = RunFolder(tmp_path / "run")
    with run.lock():
        write_text(run.path / "a.txt", "ours")
        run.log({"loss": 1.0})
        (run.path / LEASE_FILE).write_text(json.dumps(ELSEWHERE))  # it was silent, and another host took over
        for attempt in (
            lambda: write_text(run.path / "a.txt", "late"),
            lambda: write_text(run.checkpoints / "b.txt", "late"),
            lambda: run.log({"loss": 2.0}),
        ):
            run.checkpoints.mkdir(exist_ok=True)
            with pytest.raises(LostClaimError, match="took it over"):
                attempt()
        write_text(tmp_path / "beside.txt", "other folders are free")
    assert (run.path / "a.txt").read_text() == "ours"
    assert [line["loss"] for line in run.log_lines()] == [1.0]
    assert owner_of(run.path) == ELSEWHERE  # and the lease of the other one stays
    assert not list(run.path.rglob("*.part"))


def test_of_many_processes_one_takes_a_stale_lease(tmp_path):
    (tmp_path / LEASE_FILE).write_text(json.dumps({**_claims.this_process(), "start": "0", "token": "dead"}))
    code = f"""
import sys
from pathlib import Path
from longtail._claims import claim
print("ready", flush=True)
sys.stdin.readline()
try:
    with claim(Path({str(tmp_path)!r}), "in use"):
        print("held", flush=True)
        sys.stdin.readline()
except BlockingIOError:
    print("busy", flush=True)
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    assert {process.stdout.readline() for process in processes} == {"ready\n"}
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.stdout.readline().strip() for process in processes]  # the one that holds it waits for the others
    for process in processes:
        process.communicate(timeout=60)
    assert sorted(said) == ["busy"] * 5 + ["held"]
    assert not list(tmp_path.iterdir())


def test_network_file_systems_have_leases(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGTAIL_CLAIMS", "auto")
    for kind, expected in (("ext4", "lock"), ("nfs4", "lease"), ("lustre", "lease"), ("fuse.sshfs", "lease")):
        monkeypatch.setattr(_claims, "_file_system", lambda _, kind=kind: kind)
        assert claim_kind(tmp_path) == expected
    monkeypatch.setenv("LONGTAIL_CLAIMS", "maybe")
    with pytest.raises(ValueError, match="LONGTAIL_CLAIMS"):
        claim_kind(tmp_path)


def test_the_file_system_of_a_folder_is_that_of_its_innermost_mount():
    found = subprocess.run(["stat", "-f", "-c", "%T", "/proc"], capture_output=True, text=True, check=True)
    assert (_claims._file_system("/proc"), found.stdout.strip()) == ("proc", "proc")


def test_without_hard_links_a_new_lease_is_not_lost_with_the_stale_one(tmp_path, monkeypatch):
    """Two processes find the same stale lease; the slower one takes the new lease of the faster one for the stale."""

    def no_links(*_):
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(_claims.os, "link", no_links)
    file, rename = tmp_path / LEASE_FILE, type(tmp_path).rename
    file.write_text(json.dumps({**_claims.this_process(), "start": "0", "token": "dead"}))

    def rename_later(path, target):
        file.write_text(json.dumps(ELSEWHERE))  # the other process is faster
        return rename(path, target)

    monkeypatch.setattr(type(tmp_path), "rename", rename_later)
    with pytest.raises(BlockingIOError):
        taken(tmp_path)
    assert owner_of(tmp_path) == ELSEWHERE
    monkeypatch.undo()
    assert [one.name for one in tmp_path.iterdir()] == [LEASE_FILE]
