"""The command ``longtail``: help, errors, signals and pipes."""

import io
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from tests.cli.conftest import one_sentence

import longtail
from longtail import cli
from longtail._io import write_text

PROGRAM = "import sys; from longtail import cli; sys.exit(cli.main(sys.argv[1:]))"
PLUGGED = PROGRAM.replace("sys.exit", "cli.COMMANDS['mine'] = ''; cli.__path__.append('.'); sys.exit")
"""The program with a command `mine`, from a file mine.py in the working directory."""


def start(program, *words, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.run([sys.executable, "-c", program, *words], timeout=60, check=False, **options)


# --- help


def test_help_lists_every_command_on_one_screen(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert run() == run("-h") == (0, out, "")
    assert len(out.splitlines()) <= 24
    assert max(map(len, out.splitlines())) <= 80
    for name, summary in cli.COMMANDS.items():
        assert any(line.split() == [name, *summary.split()] for line in out.splitlines())


def test_every_command_has_help_without_empty_defaults(run):
    for words in (*([name] for name in cli.COMMANDS), ["data", "check"], ["study", "beta"], ["study", "table"]):
        code, out, err = run(*words, "--help")
        assert (code, err) == (0, "")
        assert f"usage: longtail {' '.join(words)}" in out
        for empty in ("default: None", "default: )", "default: ''", "--no-no-"):
            assert empty not in out
    assert "(default: diagnosis.html)" in run("diagnose", "--help")[1]


def test_version(run):
    assert run("--version") == run("-V") == (0, f"longtail {longtail.__version__}\n", "")


def test_help_imports_no_command():
    """`longtail --help` is fast and needs no extra."""
    code = "import sys; from longtail.cli import main; main([]); main(['--version']); print(*sys.modules)"
    loaded = start(code).stdout.split()
    assert "longtail.cli" in loaded
    assert not {"torch", "rich", "longtail.data", "longtail.cli.data"} & set(loaded)


# --- encodings


def printed(monkeypatch, words, errors):
    """Return what a command prints to an ASCII stream."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=errors)
    monkeypatch.setattr(sys, "stdout", stream)
    assert cli.main(words) == 0
    return stream.buffer.getvalue().decode("ascii")


def test_characters_that_the_encoding_lacks_become_question_marks(monkeypatch):
    assert printed(monkeypatch, ["--help"], "strict").startswith("usage: longtail COMMAND ?\n")
    assert "cbs" in printed(monkeypatch, ["methods"], "strict")


def test_error_handler_of_the_environment_is_kept(monkeypatch):
    assert printed(monkeypatch, [], "xmlcharrefreplace").startswith("usage: longtail COMMAND &#8230;\n")


def test_python_m_longtail():
    done = subprocess.run([sys.executable, "-m", "longtail", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"longtail {longtail.__version__}\n")


# --- mistakes


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trian", "but got 'trian'; the closest match is train."),
        ("[red]", "but got '[red]'."),
        ("predict run", "IMAGES"),
        ("diagnose", "--test"),
        ("diagnose --test", "a value after --test"),
        ("methods cbs", "'cbs'"),
        ("data gett", "the closest match is get."),
        ("data list --rot x", "the closest match is --root."),
        ("train --learning-rate 1", "but got --learning-rate; the closest match is --lr."),
        ("train --weights nowhere.pt", "weights in nowhere.pt"),
        ("predict run x.png --devise=cpu", "but got --devise; the closest match is --device."),
        ("predict run x.png --format xml", "--format to be one of csv, json, but got xml."),
        ("predict run x.png --top 0", "--top to be an integer >= 1, but got 0."),
        ("predict run x.png --workers all", "--workers to be an integer, but got all."),
        ("predict run x.png --top 1 --top 2", "--top once"),
        ("report runs --no-figures=yes", "no value after --no-figures"),
        ("data check digits-lt --imbalance many", "--imbalance to be a number, but got many."),
        ("data list --plugin", "a file after --plugin"),
    ],
)
def test_wrong_command_line_is_one_sentence(run, monkeypatch, line, message):
    monkeypatch.setenv("COLUMNS", "40")
    code, out, err = run(*line.split())
    assert (code, out) == (2, "")
    assert message in one_sentence(err)


@pytest.mark.parametrize("error", [ValueError, OSError, BrokenPipeError])
def test_error_of_a_command_is_one_sentence(run, monkeypatch, error):
    def fail(words):
        raise error(f"Expected [1] thing, but got {words}.")

    monkeypatch.setattr(import_module("longtail.cli.data"), "run", fail)
    assert run("data", "a", "b") == (2, "", "longtail: Expected [1] thing, but got ['a', 'b'].\n")


PLUGIN = """
def run(words):
    return len(words) + words
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A plugin file whose function is used as the command `data`."""
    file = tmp_path / "plugin.py"
    file.write_text(PLUGIN)
    monkeypatch.setenv("LONGTAIL_PLUGINS", str(file))
    namespace = {}
    exec(compile(PLUGIN, file, "exec"), namespace)
    monkeypatch.setattr(import_module("longtail.cli.data"), "run", namespace["run"])
    return file


def test_error_in_a_plugin_names_its_file_and_line(run, plugin):
    code, out, err = run("data", "list")
    assert (code, out) == (2, "")
    assert f"TypeError in {plugin}:3: unsupported operand" in one_sentence(err)
    assert "--debug" in err


@pytest.mark.parametrize(("code", "said"), [("{}['a']", "KeyError in {}:1: 'a'"), ("def", "SyntaxError in {}:1: ")])
def test_every_error_of_a_plugin_is_one_sentence(run, tmp_path, code, said):
    file = tmp_path / "broken.py"
    file.write_text(code + "\n")
    status, _, err = run("methods", "--plugin", file)
    assert status == 2
    assert said.format(file) in one_sentence(err)


def test_debug_shows_the_traceback(capsys, plugin):
    assert cli.main(["data", "--debug", "list"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert f'"{plugin}", line 3, in run' in err
    assert err.splitlines()[-1].startswith("longtail: TypeError in ")


@pytest.mark.parametrize("name", ["x.md", "x.1.part"])
def test_file_that_cannot_be_written_is_named_as_given(run, tmp_path, monkeypatch, name):
    """The message does not have the name of the temporary file that is written first."""
    path = tmp_path / "nodir" / name
    monkeypatch.setattr(import_module("longtail.cli.data"), "run", lambda _: write_text(path, "text"))
    assert one_sentence(run("data")[2]) == f"Expected access to {path}, but got: no such file or directory."


def test_line_ends_in_a_file_name_are_escaped(run):
    assert r"two\nlines" in one_sentence(run("evaluate", "two\nlines")[2])


def test_system_errors():
    error = IsADirectoryError(21, "Is a directory", b"here")
    assert cli.sentence_of(error) == "Expected access to here, but got: is a directory."
    assert cli.sentence_of(OSError(9, "Bad file descriptor", 7)) == "[Errno 9] Bad file descriptor: 7."


@pytest.mark.parametrize(
    ("name", "missing", "extras"), [("data", "rich.table", "cli"), ("predict", "rich.progress", "train")]
)
def test_message_about_a_missing_package_says_how_to_install_it(run, monkeypatch, name, missing, extras):
    assert set(cli._EXTRAS) <= set(cli.COMMANDS)
    monkeypatch.delitem(sys.modules, f"longtail.cli.{name}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    code, _, err = run(name)
    assert code == 2
    assert "rich" in err
    assert f"`longtail {name}` needs with `pip install 'longtail[{extras}]'`." in one_sentence(err)


@pytest.mark.parametrize(
    ("name", "missing"),
    [("report", "jinja2"), ("diagnose", "matplotlib"), ("data", "PIL"), ("study", "scipy"), ("predict", "pyarrow")],
)
def test_the_extras_in_the_message_install_what_is_missing(run, monkeypatch, name, missing):
    """By the metadata of the package, whose extras may contain other extras."""

    def fail(_):
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(import_module(f"longtail.cli.{name}"), "run", fail)
    given = re.search(r"longtail\[(.*)\]", run(name)[2])[1].split(",")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    needs = project["optional-dependencies"]
    for _ in range(3):
        inner = [re.findall(r"[a-z]+", one.partition("[")[2]) for extra in given for one in needs[extra] if "[" in one]
        given = list({*given, *(extra for extras in inner for extra in extras)})
    installed = {re.match(r"[a-z0-9-]+", one)[0] for extra in given for one in needs[extra]}
    assert {"PIL": "pillow"}.get(missing, missing) in installed


# --- signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_command(run, monkeypatch, number, code):
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(import_module("longtail.cli.data"), "run", lambda _: os.kill(os.getpid(), number))
    assert run("data") == (code, "", "longtail: Interrupted.\n")
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_during_the_import_of_a_command_ends_the_process_at_once(tmp_path, number, code):
    """An exception might be swallowed or replaced inside the import of torch."""
    (tmp_path / "mine.py").write_text(
        f"import os\ntry:\n    os.kill(os.getpid(), {int(number)})\nfinally:\n    raise ImportError('broken')\n"
    )
    done = start(PLUGGED, "mine", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "longtail: Interrupted.\n")


def test_ignored_signal_stays_ignored(tmp_path):
    """For example with `nohup`, and in background jobs of a shell."""
    (tmp_path / "mine.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nrun = lambda _: 7\n")
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {PLUGGED}"
    assert start(ignoring, "mine", cwd=tmp_path).returncode == 7


def test_sigterm_ends_a_forked_process(run, monkeypatch):
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


def test_command_runs_in_a_thread(monkeypatch):
    monkeypatch.setattr(import_module("longtail.cli.data"), "run", lambda _: 7)
    codes = []
    thread = threading.Thread(target=lambda: codes.append(cli.main(["data"])))
    thread.start()
    thread.join()
    assert codes == [7]


# --- pipes

PRINTING = {
    "rich": "from rich.console import Console\nrun = lambda _: Console().print('a line') or 0",
    "usage": ["--help"],
    "argparse": ["predict", "--help"],
    "buffered": "run = lambda _: print('a line') or 0",
    "long": "run = lambda _: [print('a line' * 100) for _ in range(1000)] and 0",
}


@pytest.mark.parametrize("printing", PRINTING)
def test_closed_pipe_ends_a_command_without_a_message(tmp_path, printing):
    """For example `longtail methods | head -1`."""
    words = PRINTING[printing]
    if isinstance(words, str):
        (tmp_path / "mine.py").write_text(words)
        words = ["mine"]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = start(PLUGGED, *words, stdout=writing, cwd=tmp_path)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_modules_that_windows_lacks_are_not_needed():
    code = "import select, signal, sys; del select.poll, signal.SIGPIPE, signal.SIGHUP; sys.modules['fcntl'] = None"
    done = start(f"{code}; {PROGRAM}", "methods")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"(?m)^cbs ", done.stdout)
