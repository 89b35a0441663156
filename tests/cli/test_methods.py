"""``longtail methods``: every method with its parameters."""

from longtail.methods import METHODS


def test_every_method_with_its_parameters(run):
    code, out, err = run("methods")
    assert (code, err) == (0, "")
    names = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert names == list(METHODS)
    flags = [line.split()[0] for line in out.splitlines() if line.startswith("    --")]
    assert flags == [f"--{name.replace('_', '-')}" for method in METHODS.values() for name in method.parameters]


def test_long_lines_are_wrapped_between_words(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    wide = run("methods")[1]
    monkeypatch.setenv("COLUMNS", "50")
    narrow = run("methods")[1]
    assert max(map(len, narrow.splitlines())) <= 50 < max(map(len, wide.splitlines()))
    assert narrow.split() == wide.split()
    more = [line for line in narrow.splitlines() if line not in wide.splitlines() and line.startswith(" " * 8)]
    assert len(narrow.splitlines()) - len(wide.splitlines()) == len(more)
