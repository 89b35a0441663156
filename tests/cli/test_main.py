"""The command itself: what it offers, and that a mistake is one sentence without a traceback."""

import subprocess
import sys
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


def test_a_package_that_is_not_there_is_named_with_how_to_get_it(run, monkeypatch):
    monkeypatch.delitem(sys.modules, "longtail.cli.data", raising=False)
    monkeypatch.setitem(sys.modules, "tyro", None)
    code, _, err = run("data", "list")
    assert code == 2
    assert "tyro" in err
    assert "pip install 'longtail[cli]'" in err


def test_help_imports_no_command(tmp_path):
    """`longtail --help` answers at once, and without the extra."""
    code = "import sys; from longtail.cli import main; main([]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stdout.split()
    assert "longtail.cli" in loaded
    assert not {"tyro", "rich", "longtail.data", "longtail.cli.data"} & set(loaded)


def test_as_a_program(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "longtail.cli", "data", "list"],
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
