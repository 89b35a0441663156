"""What commands show while they read, measure and compare."""

import io
import time

import pytest
from rich.console import Console

from longtail import _progress
from longtail.cli import show
from longtail.cli.study import View


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(show, "_LONG", 0.02)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(console):
    return console.file.getvalue()


def test_a_log_has_a_line_per_long_phase():
    console = Console(file=io.StringIO())
    with show.Phases(console):
        with _progress.phase("quick", 2) as one:
            one.advance(2)
        with _progress.phase("Reading 9 images", 9) as one:
            for _ in range(9):
                time.sleep(0.01)
                one.advance(1)
        with _progress.phase("often", in_logs=False):
            time.sleep(0.05)
        _progress.note("The cache is damaged.")
    assert shown(console) == "Reading 9 images\nThe cache is damaged.\n"


def test_a_log_says_how_far_a_long_phase_is(monkeypatch):
    monkeypatch.setattr(show, "LOG_SECONDS", 0.05)
    console = Console(file=io.StringIO())
    with show.Phases(console), _progress.phase("Reading", 9000) as one:
        for _ in range(3):
            time.sleep(0.07)
            one.advance(3000)
    assert shown(console).splitlines()[0] == "Reading"
    assert "Reading: 6,000 of 9,000" in shown(console)


def test_a_terminal_shows_how_far_it_is():
    console = Console(file=Terminal(), force_terminal=True, color_system=None)
    with show.Phases(console), _progress.phase("Reading", 4) as one:
        one.advance(1)
        time.sleep(0.2)
    assert "Reading: 25%" in shown(console)
    with show.Phases(console):  # nothing stays behind
        pass


def test_inside_a_view_the_phase_is_below_the_bar():
    console = Console(file=Terminal(), force_terminal=True, color_system=None)
    with show.Phases(console), View(console), _progress.phase("Comparing"):
        time.sleep(0.6)
    assert "Comparing" in shown(console)
    assert "starting" in shown(console)


def test_the_library_alone_is_silent(capsys):
    with _progress.phase("Reading", 2) as one:
        one.advance(2)
    _progress.note("hidden")
    assert capsys.readouterr() == ("", "")
