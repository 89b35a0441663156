"""The command itself: what it offers, and that a mistake is one sentence without a traceback."""

import os
import re
import signal
import subprocess
import sys
import threading
from importlib import import_module

import pytest

import longtail
from longtail import cli
from longtail._io import write_text


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


@pytest.mark.parametrize(
    ("word", "near"),
    [("nonsense", ""), ("--nonsense", ""), ("", ""), ("[red]", ""), ("Data", "data"), ("trian", "train")],
)
def test_an_unknown_command_is_one_sentence(run, word, near):
    code, out, err = run(word)
    assert code == 2
    assert out == ""
    hint = f"; the closest match is {near}" if near else ""
    assert err == f"longtail: Expected a command that `longtail --help` shows, but got {word!r}{hint}.\n"


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_the_version(run, word):
    assert run(word) == (0, f"longtail {longtail.__version__}\n", "")
    assert "longtail --version\n" in run("--help")[1]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("words", [["--help"], ["methods"], ["data", "list"], ["predict", "--help"]])
def test_what_an_encoding_lacks_is_a_question_mark(words, encoding):
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-m", "longtail", *words], capture_output=True, env=environment, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    if words == ["--help"]:
        assert done.stdout.startswith(b"usage: longtail COMMAND ?\n")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_what_is_typed_wrong_is_the_same_sentence_in_every_encoding(encoding):
    """Boxes, which it is taken from, are not."""
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-m", "longtail", "data", "--nonsense"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    said = "longtail: Unrecognized options: --nonsense; `longtail data --help` shows what there is.\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_how_the_environment_wants_what_an_encoding_lacks_is_kept():
    environment = os.environ | {"PYTHONIOENCODING": "ascii:xmlcharrefreplace"}
    done = subprocess.run([sys.executable, "-m", "longtail"], capture_output=True, env=environment, check=True)
    assert done.stdout.startswith(b"usage: longtail COMMAND &#8230;\n")


@pytest.mark.parametrize("error", [ValueError, TypeError, OSError, ImportError])
def test_what_a_command_refuses_is_one_sentence(run, monkeypatch, error):
    def refuse(arguments):
        raise error(f"Expected [1] thing, but got {arguments}.")

    monkeypatch.setattr(import_module("longtail.cli.data"), "run", refuse)
    assert run("data", "a", "b") == (2, "", "longtail: Expected [1] thing, but got ['a', 'b'].\n")


@pytest.mark.parametrize("name", ["x.md", "a.b", ".hidden", "x.1.part"])
def test_a_file_that_cannot_be_written_is_named_as_it_was_given(run, tmp_path, monkeypatch, name):
    """Not as the temporary file that is written to first."""
    path = tmp_path / "nodir" / name
    monkeypatch.setattr(import_module("longtail.cli.data"), "run", lambda _: write_text(path, "text"))
    said = f"longtail: Expected access to {path}, but the system says: no such file or directory.\n"
    assert run("data") == (2, "", said)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PermissionError(13, "Permission denied", "ro/run"),
            "access to ro/run, but the system says: permission denied.",
        ),
        (IsADirectoryError(21, "Is a directory", b"here"), "access to here, but the system says: is a directory."),
        (OSError(5, "Input/output error"), "[Errno 5] Input/output error"),
        (OSError(9, "Bad file descriptor", 7), "[Errno 9] Bad file descriptor: 7"),
    ],
)
def test_what_the_system_refuses_is_one_sentence(run, monkeypatch, error, said):
    def refuse(_):
        raise error

    monkeypatch.setattr(import_module("longtail.cli.data"), "run", refuse)
    code, out, err = run("data")
    assert (code, out) == (2, "")
    assert err in {f"longtail: {said}\n", f"longtail: Expected {said}\n"}


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


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["data", "gett"], "get"),
        (["data", "list", "--rot", "x"], "--root"),
        (["data", "list", "--imbalanse", "3"], None),  # which is another command's
        (["data", "check", "digits-lt", "--imbalanse=3"], "--imbalance"),
        (["predict", "run", "x.png", "--devise", "cpu"], "--device"),
        (["report", "runs", "--figurs", "x"], "--figures"),
        (["evaluate", "run", "--nonsense"], None),
    ],
)
def test_a_misspelt_word_is_told_with_the_nearest(run, arguments, near):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("longtail: Unrecognized options: ")
    assert re.findall(r"; the closest match is ([^;]+); `longtail ", err) == ([] if near is None else [near])


@pytest.mark.parametrize("words", [["report"], ["diagnose"], ["predict"], ["evaluate"], ["data", "check"]])
def test_helps_tell_no_default_that_is_nothing(run, words):
    code, out, _ = run(*words, "--help")
    assert code == 0
    assert "usage: longtail" in out
    for odd in ("(default: None)", "(default: )", "(default: '')", "{None}", "--no-no-"):
        assert odd not in out


def test_helps_tell_other_defaults_and_both_ways_of_a_switch(run):
    assert "(default: diagnosis.html)" in run("diagnose", "--help")[1]
    out = run("data", "describe", "--help")[1]
    assert "--read-images, --no-read-images" in out
    assert "(default: True)" in out


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
    code = "import sys; from longtail.cli import main; main([]); main(['--version']); print(*sys.modules)"
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
