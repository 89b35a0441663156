"""Fixtures for tests of commands and of finished runs."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Return a function that trains a run on the digits for three epochs, once per session, and returns its folder.

    CBS has beta 1.5, because ``auto`` trains pilots.
    """
    from longtail.train import RunFolder, Trainer, defaults  # not needed by tests of losses and metrics

    known = {}

    def run(method, **changes):
        key = (method, tuple(sorted(changes.items())))
        if key not in known:
            folder = RunFolder(tmp_path_factory.mktemp("run") / method)
            settings = {"epochs": 3, "evaluate_every": 0, "device": "cpu"} | ({"beta": 1.5} if method == "cbs" else {})
            Trainer(defaults("digits-lt", method).changed(**settings | changes), folder).run()
            known[key] = folder.path
        return known[key]

    return run


@pytest.fixture(scope="session")
def example():
    """Return a function that imports a script of examples/."""

    def load(name):
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "examples" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def run(capsys, monkeypatch):
    """Return a function that runs the command; it returns the exit code, stdout and stderr."""
    from longtail import cli

    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return code, printed.out, printed.err

    return call
