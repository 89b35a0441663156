"""The command line of ``longtail train``: its help, and names that are misspelt."""

import re

import pytest
from tests.cli.conftest import one_sentence

from longtail.train.recipe import setting_types

pytestmark = pytest.mark.usefixtures("_here")


def test_the_help_has_every_flag_once_and_no_default_that_is_nothing(run):
    code, out, err = run("train", "--help")
    assert (code, err) == (0, "")
    words = re.findall(r"(?m)^[│ ] (--[a-z-]+)", out)
    flags = [f"--{name.replace('_', '-')}" for name in (*setting_types(), "out", "together", "resume")]
    assert words == flags
    assert out.count("usage:") == 1
    assert "None" not in out
    assert "of cbs: exponent of the class counts" in out  # a text of the recipe's


def test_the_help_tells_the_recipe_of_what_is_given(run):
    out = run("train", "--data", "digits-lt", "--help")[1]
    assert "(default: digits-lt)" in out
    assert "(default: cifar10-lt)" not in out


@pytest.mark.parametrize("arguments", [["--data", "digit-lt"], ["digit-lt"]])
def test_a_data_set_that_is_misspelt(run, arguments):
    code, out, err = run("train", *arguments)
    assert (code, out) == (2, "")
    expected = "Expected a data set that `longtail data list` shows, or a path, but got 'digit-lt'"
    assert one_sentence(err) == f"{expected}; the closest match is digits-lt."


def test_a_flag_of_the_command_itself_that_is_misspelt(run):
    assert run("train", "--togehter", "3")[2].endswith("but got --togehter; the closest match is --together.\n")
