"""The help of ``longtail train``, and misspelled names."""

import re

import pytest
from tests.cli.conftest import one_sentence

from longtail.train.recipe import setting_types

pytestmark = pytest.mark.usefixtures("_here")


def test_the_help_has_every_setting_once_and_no_empty_default(run):
    code, out, err = run("train", "--help")
    assert (code, err) == (0, "")
    flags = [f"--{name.replace('_', '-')}" for name in ("out", "together", "resume", *setting_types())]
    assert re.findall(r"(?m)^  (--[a-z-]+)", out) == flags
    assert out.count("usage:") == 1
    assert "None" not in out
    assert "exponent of the class counts" in out


def test_the_help_shows_the_defaults_that_apply(run):
    out = run("train", "--data", "digits-lt", "--help")[1]
    assert "(default: digits-lt)" in out
    assert "(default: cifar10-lt)" not in out


@pytest.mark.parametrize("words", [["--data", "digit-lt"], ["digit-lt"]])
def test_a_misspelled_data_set(run, words):
    code, out, err = run("train", *words)
    assert (code, out) == (2, "")
    assert "got 'digit-lt'; the closest match is digits-lt." in one_sentence(err)


def test_all_commands_parse_settings_alike(run):
    for words in (["train"], ["study", "--methods", "cbs", "--seeds", "1", "--dry-run"]):
        for flag, value in (("--validation", ".1"), ("--nesterov", "True"), ("--weight_decay", "1e-4")):
            if words == ["train"]:
                continue
            assert run(*words, "--data", "digits-lt", flag, value)[0] == 0
        code, _, err = run(*words, "--data", "digits-lt", "--epochs", "2.5")
        assert (code, one_sentence(err)) == (2, "Expected `epochs` to be an integer, but got '2.5'.")
