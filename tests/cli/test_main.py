"""The command itself: what it offers, and that a mistake is one sentence without a traceback."""

import os
import signal
import subprocess
import sys
import threading
from importlib import import_module

import pytest

from longtail import cli


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command_with_its_summary(run, arguments):
    code, out, err = run(*arguments)
    assert code == 0
    assert err == ""
    for name, (summary, _) in cli.COMMANDS.items():
        assert any(line.split() == [name, *summary.split()] for line in out.splitlines())


def test_each_command_is_a_module_that_offers_run(run):
    for name, (_, module) in cli.COMMANDS.items():
        assert callable(import_module(module).run)
        code, out, _ = run(name, "--help")
        assert code == 0
        assert f"longtail {name}" in out


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["Data"], [""], ["[red]"]])
def test_an_unknown_command_is_one_sentence(run, arguments):
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert err == f"longtail: Expected a command that `longtail --help` shows, but got {arguments[0]!r}.\n"


@pytest.mark.parametrize("error", [ValueError, TypeError, OSError, ImportError])
def test_what_a_command_refuses_is_one_sentence(run, monkeypatch, error):
    def refuse(arguments):
        raise error(f"Expected [1] thing, but got {arguments}.")

    monkeypatch.setattr(import_module("longtail.cli.data"), "run", refuse)
    assert run("data", "a", "b") == (2, "", "longtail: Expected [1] thing, but got ['a', 'b'].\n")


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("data", "cli"),
        ("methods", "cli"),
        ("train", "train"),
        ("study", "train"),
        ("evaluate", "train"),
        ("predict", "train"),
        ("report", "report,train"),
        ("diagnose", "report,train"),
    ],
)
def test_a_package_that_is_not_there_is_named_with_how_to_get_it(run, monkeypatch, name, extras):
    assert set(cli._EXTRAS) <= set(cli.COMMANDS)
    monkeypatch.setitem(cli.COMMANDS, name, ("", "a_module_that_is_not_there"))
    code, _, err = run(name)
    assert code == 2
    assert "a_module_that_is_not_there" in err
    assert f"`pip install 'longtail[{extras}]'` brings what `longtail {name}` needs." in err


def test_tyro_is_brought_by_the_extra_cli(run, monkeypatch):
    monkeypatch.delitem(sys.modules, "longtail.cli.data", raising=False)
    monkeypatch.setitem(sys.modules, "tyro", None)
    code, _, err = run("data", "list")
    assert code == 2
    assert "tyro" in err
    assert "pip install 'longtail[cli]'" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_interrupted_says_so(run, monkeypatch, number, code):
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(import_module("longtail.cli.data"), "run", lambda _: os.kill(os.getpid(), number))
    assert run("data") == (code, "", "longtail: Interrupted.\n")
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_interrupted_while_it_is_imported_leaves_at_once(tmp_path, number, code):
    """As torch is for a second or two. An exception there might come out of it as any other."""
    (tmp_path / "slow.py").write_text(
        f"import os\ntry:\n    os.kill(os.getpid(), {int(number)})\nfinally:\n    raise ImportError('broken')\n"
    )
    program = "import sys; from longtail import cli; cli.COMMANDS['data'] = ('', 'slow'); sys.exit(cli.main(['data']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "longtail: Interrupted.\n")


def test_ctrl_c_that_is_ignored_stays_so_while_a_command_is_imported(tmp_path):
    """As `nohup` and a shell's background jobs have it."""
    (tmp_path / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nrun = lambda _: 7\n")
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); from longtail import cli; "
        "cli.COMMANDS['data'] = ('', 'slow'); sys.exit(cli.main(['data']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate"], "RUN"),
        (["predict"], "RUN"),
        (["methods", "--nonsense"], "--nonsense"),
        (["report", "--nonsense"], "--nonsense"),
        (["diagnose", "--test"], "--test"),
        (["data"], "describe"),
        (["data", "check", "digits-lt", "--imbalance", "many"], "many"),
        (["predict", "run", "x.png", "--format", "x" * 200], "x" * 200),
    ],
)
def test_what_is_typed_wrong_is_one_sentence(run, monkeypatch, arguments, said):
    """Whole, however narrow the terminal; and the environment is left as it was."""
    monkeypatch.setenv("COLUMNS", "40")
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("longtail: ")
    assert err.endswith("--help` shows what there is.\n")
    assert err.count("\n") == 1
    assert said in err
    assert not set("│╭╰─\x1b") & set(err)
    assert os.environ["COLUMNS"] == "40"


def test_a_process_that_a_command_forks_is_ended_by_sigterm(run, monkeypatch):
    def fork(_):
        child = os.fork()
        if child == 0:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    monkeypatch.setattr(import_module("longtail.cli.data"), "run", fork)
    assert run("data")[0] == -signal.SIGTERM


def test_a_command_may_run_in_a_thread(run, monkeypatch):
    monkeypatch.setattr(import_module("longtail.cli.data"), "run", lambda _: 7)
    codes = []
    thread = threading.Thread(target=lambda: codes.append(cli.main(["data"])))
    thread.start()
    thread.join()
    assert codes == [7]


def test_help_imports_no_command(tmp_path):
    """`longtail --help` answers at once, and without the extra."""
    code = "import sys; from longtail.cli import main; main([]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stdout.split()
    assert "longtail.cli" in loaded
    assert not {"torch", "tyro", "rich", "longtail.data", "longtail.cli.data"} & set(loaded)


def test_as_a_program(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "longtail", "data", "list"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert "imagenet-lt" in done.stdout
    assert "\x1b" not in done.stdout  # no colours into a pipe


@pytest.fixture
def unread():
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


PRINTING = {
    "rich": ("methods",),
    "usage": ("--help",),
    "tyro": ("predict", "--help"),
    "buffered": ("run = lambda _: print('a line') or 0",),
    "long": ("run = lambda _: [print('a line' * 100) for _ in range(1000)] and 0",),
}


@pytest.mark.parametrize("printing", PRINTING)
def test_a_reader_that_has_left_ends_a_command_quietly(tmp_path, unread, printing):
    """As in `longtail methods | head -1`."""
    words = PRINTING[printing]
    program = "import sys; from longtail import cli; sys.exit(cli.main(sys.argv[1:]))"
    if len(words) == 1 and words[0].startswith("run"):
        (tmp_path / "printing.py").write_text(words[0])
        program = program.replace("sys.exit", "cli.COMMANDS['data'] = ('', 'printing'); sys.exit")
        words = ("data",)
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        stdout=unread,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_connection_that_breaks_is_said(run, monkeypatch):
    def broken(_):
        raise BrokenPipeError("Expected an answer, but the connection broke.")

    monkeypatch.setattr(import_module("longtail.cli.data"), "run", broken)
    assert run("data") == (2, "", "longtail: Expected an answer, but the connection broke.\n")
