"""Atomic writes, locks and signals."""

import csv
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from longtail import _io
from longtail._io import NUMBER, file_lock, new_file, read_json, reading, stop_signals, write_json, write_text


def test_failed_write_keeps_the_old_file_and_no_temporary_file(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old\n")
    with pytest.raises(FileNotFoundError), new_file(path) as temporary:
        (temporary.write_text("half"), (tmp_path / "missing").stat())
    assert path.read_bytes() == b"old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_disk_before_the_rename(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(_io.os, "fsync", lambda _: calls.append(sorted(file.name for file in tmp_path.iterdir())))
    write_text(tmp_path / "a.txt", "x")
    assert calls == [[f".a.txt.{_io.process_name()}.part"], ["a.txt"]]  # the file, then the folder


def test_what_a_killed_process_left_is_removed_and_what_is_being_written_stays(tmp_path):
    code = """
import pathlib, sys, time
from longtail._io import new_file
with new_file(pathlib.Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""
    path = tmp_path / "a [1].txt"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"ready\n"
        write_text(path, "whole")
        assert len(list(tmp_path.iterdir())) == 2
        writer.kill()
        writer.wait()
    assert len(list(tmp_path.iterdir())) == 2
    write_text(path, "whole again")
    assert list(tmp_path.iterdir()) == [path]


def test_nan_and_infinity_become_null(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"x": [math.nan, math.inf, -math.inf, 1.5], "t": torch.tensor([[1, 2]]), 3: (True, None, "é")})
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "x": [None, None, None, 1.5],
        "t": [[1, 2]],
        "3": [True, None, "é"],
    }
    assert read_json(path)["t"] == [[1, 2]]


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_damaged_json_names_the_file(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json"):
        read_json(tmp_path / "a.json")


def test_json_of_another_shape_names_the_file_and_the_place(tmp_path):
    shape = {"runs": [{"name": str, "recall": {str: NUMBER}, "kind?": {"a", "b"}}]}
    good = {"name": "x", "recall": {"all": 0.5, "tail": None}}
    path = tmp_path / "a.json"
    write_json(path, {"runs": [good, good | {"kind": "a"}]})
    assert len(read_json(path, shape)["runs"]) == 2
    for wrong, named in [
        ({"name": 3}, "`name`"),
        ({"recall": {"all": "x"}}, "`all` in `recall`"),
        ({"kind": 1}, "a, b"),
    ]:
        write_json(path, {"runs": [good | wrong]})
        with pytest.raises(ValueError, match=rf"a\.json: Expected .*{named}.*, but got"):
            read_json(path, shape)
    write_json(path, {})
    with pytest.raises(ValueError, match=r"a\.json: .* to have `runs`"):
        read_json(path, shape)


def test_errors_of_reading_name_the_file_and_hide_pythons_words(tmp_path):
    for broken, said in [
        (lambda: list(zip([1], [], strict=True)), r"damaged \(ValueError\)"),
        (lambda: {}["data"], "it has no 'data'"),
        (lambda: json.loads("{"), "damaged: Expecting property name"),
        (lambda: list(csv.reader(["x" * 140_000])), "field larger"),
    ]:
        with (
            pytest.raises(ValueError, match=rf"^Expected a\.csv to be a table, but .*{said}"),
            reading("a.csv", "a table"),
        ):
            broken()
    with pytest.raises(FileNotFoundError), reading("a.csv", "a table"):
        (tmp_path / "missing").read_text()


def test_a_closed_terminal_does_not_disturb_saving(tmp_path):
    """The system sends SIGHUP, and every write to the terminal fails."""
    code = """
import sys, time
from pathlib import Path
from longtail._io import stop_signals
saved = []
def save(number):
    print("saving", flush=True)
    Path(sys.argv[1]).write_text(str(number))
    saved.append(number)
with stop_signals(save):
    print("ready", flush=True)
    while not saved:
        time.sleep(0.01)
"""
    process, terminal = pytest.importorskip("pty").fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-c", code, str(tmp_path / "saved")])
    assert os.read(terminal, 100).startswith(b"ready")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert (tmp_path / "saved").read_text() == str(int(signal.SIGHUP))


def is_free(path):
    """Return whether another process could take the lock."""
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_lock_excludes_other_processes_and_is_reentrant(tmp_path):
    path = tmp_path / ".lock"
    with file_lock(path, "in use"):
        with file_lock(path, "in use"):
            pass
        assert not is_free(path)
    assert is_free(path)
    with path.open("r+") as other:
        fcntl.flock(other, 2)  # LOCK_EX
        with pytest.raises(BlockingIOError, match="in use"), file_lock(path, "in use"):
            pass
    with file_lock(path, "in use"):
        pass


def test_forked_child_does_not_keep_the_lock(tmp_path):
    path = tmp_path / ".lock"
    ready, release = os.pipe(), os.pipe()
    with file_lock(path, "in use"):
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"x")
            os.read(release[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
    assert is_free(path)  # while the child lives
    os.write(release[1], b"x")
    os.waitpid(child, 0)


def test_deleted_lock_file_is_not_used(tmp_path, monkeypatch):
    path = tmp_path / ".lock"
    lock, opened = _io._lock_descriptor, []

    def delete_first(descriptor):
        if not opened:
            path.unlink()  # as the previous holder does at its end
        opened.append(descriptor)
        lock(descriptor)

    monkeypatch.setattr(_io, "_lock_descriptor", delete_first)
    with file_lock(path, "in use", remove=True):
        assert len(opened) == 2
        assert path.exists()
    assert not path.exists()


def test_file_system_without_locks(tmp_path, monkeypatch):
    def fail(_):
        raise OSError("No locks available")

    monkeypatch.setattr(_io, "_lock_descriptor", fail)
    with pytest.raises(OSError, match="No locks"), file_lock(tmp_path / ".lock", "in use"):
        pass
    with file_lock(tmp_path / ".lock", "in use", required=False):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_callback_and_handlers_are_restored(number):
    seen, before = [], signal.getsignal(number)
    with stop_signals(seen.append):
        os.kill(os.getpid(), number)
        time.sleep(0)
    assert seen == [number]
    assert signal.getsignal(number) == before


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(lambda number: pytest.fail(f"got signal {number}")):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("in_children", [False, True])
def test_forked_children_ignore_signals_or_end(in_children):
    def fail(number):
        pytest.fail(f"the callback ran in the parent for signal {number}")

    with stop_signals(fail, in_children=in_children):
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            os._exit(7)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (-signal.SIGTERM if in_children else 7)


def test_signal_handlers_are_not_set_in_threads():
    seen = []

    def run():
        before = signal.getsignal(signal.SIGINT)
        with stop_signals(print):
            seen.append(signal.getsignal(signal.SIGINT) == before)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [True]
