"""The flags of ``longtail study``: those that are known, and those that are not."""

import pytest

from longtail.cli.study_flags import plan_content, split_flags


@pytest.mark.parametrize(
    ("flag", "near"),
    [("--dataa", "--data"), ("--seds=3", "--seeds"), ("--together-with", "--together"), ("--qqq", None)],
)
def test_a_flag_that_is_not_known_is_told_with_the_nearest(flag, near):
    _, found = split_flags(["--methods", "cbs", flag, "1"])
    with pytest.raises(ValueError, match=r"^Expected a flag that `longtail study --help` shows, but got --") as told:
        plan_content(found)
    hint = f"; the closest match is {near}." if near else "."
    assert str(told.value).endswith(f"but got {flag.partition('=')[0]}{hint}")


def test_flags_of_plans_searches_and_recipes_are_known():
    _, found = split_flags(["--data", "digits-lt", "--step", "0.2", "--no-nesterov", "--weight-decay", "0.1"])
    assert plan_content(found) == {
        "data": ["digits-lt"],
        "search": {"step": 0.2},
        "recipe": {"nesterov": False, "weight_decay": 0.1},
    }
