"""What tests of the command share."""

import pytest

from longtail import cli


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs the command as a person would; gives its exit code, and what it printed to either stream."""
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
