"""The command line of ``longtail study``: flags as any of its commands reads them, and as the content of a plan."""

import tomllib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from longtail._checks import nearest
from longtail.study.plan import SearchPlan
from longtail.train.recipe import setting_types

__all__ = ["is_given", "number_after", "one_of", "plan_content", "split_flags"]

_PLAN = {
    "data": "data sets",
    "imbalance": "imbalance factors",
    "methods": "methods",
    "betas": "betas",
    "seeds": "how many seeds, or which,",
    "out": "a folder",
    "reference": "a method",
}
"""Flags of a plan, and what is expected after them."""
_ONE = {"out", "reference"}
_LISTS = {"data", "imbalance", "methods", "betas", "start", "bounds", "milestones"}
_SEARCH = {field.name: field.name for field in fields(SearchPlan)} | {"search_seeds": "seeds"}
del _SEARCH["seeds"]
_VALUED = {*_PLAN, *_SEARCH, *(name for name, kind in setting_types().items() if kind is not bool)}
"""Flags that need a value."""
_KNOWN = {*_PLAN, *_SEARCH, *setting_types(), "together", "dry_run", "one_sided"}


def split_flags(given: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """What stands alone, and each flag with its values."""
    alone: list[str] = []
    found: dict[str, list[str]] = {}
    values = alone
    for word in given:
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            if name.replace("-", "_") in found:
                raise ValueError(f"Expected --{name} once, with all its values, but it was given twice.")
            values = found[name.replace("-", "_")] = []
            if sign:
                values.append(value)
        else:
            values.append(word)
    return alone, found


def _value(text: str) -> Any:
    """A value as TOML has it; anything else is a word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _check_known(name: str) -> None:
    if name not in _KNOWN and name.removeprefix("no_") not in _KNOWN:
        flag, *flags = (f"--{one.replace('_', '-')}" for one in (name, *sorted(_KNOWN)))
        near = nearest(flag, flags)
        raise ValueError(f"Expected a flag that `longtail study --help` shows, but got {flag}{near}.")


def _check_values(name: str, texts: Sequence[str]) -> None:
    if (not texts and name in _VALUED) or (len(texts) > 1 and name in _ONE):
        expected, got = _PLAN.get(name, "a value"), " ".join(texts) or "nothing"
        raise ValueError(f"Expected {expected} after --{name.replace('_', '-')}, but got {got}.")


def _values(name: str, texts: Sequence[str]) -> Any:
    if not texts:
        return True
    found = [_value(text) for text in texts]
    return found if len(found) > 1 or name in _LISTS else found[0]


def plan_content(found: dict[str, list[str]]) -> dict[str, Any]:
    """Flags as the content of a plan."""
    content: dict[str, Any] = {"recipe": {}, "search": {}}
    for name, texts in found.items():
        _check_known(name)
        _check_values(name, texts)
        if name in _PLAN:
            content[name] = list(texts) if name in {"data", "methods"} else _values(name, texts)
        elif name in _SEARCH:
            content["search"][_SEARCH[name]] = _values(name, texts)
        elif name.startswith("no_") and not texts:
            content["recipe"][name.removeprefix("no_")] = False
        else:
            content["recipe"][name] = _values(name, texts)
    return content


def number_after(flag: str, found: dict[str, list[str]]) -> int | None:
    """Take a flag with a whole number out of those found; ``None`` where it was not given."""
    texts = found.pop(flag, None)
    if texts is None:
        return None
    if len(texts) != 1 or not texts[0].isdecimal() or not int(texts[0]):
        raise ValueError(f"Expected a whole number > 0 after --{flag}, but got {' '.join(texts) or 'nothing'}.")
    return int(texts[0])


def one_of(flag: str, found: dict[str, list[str]], choices: Sequence[str]) -> str:
    """Take a flag with one of several words out of those found; the first word where it was not given."""
    texts = found.pop(flag, [choices[0]])
    if len(texts) != 1 or texts[0] not in choices:
        raise ValueError(
            f"Expected --{flag} to be one of {', '.join(choices)}, but got {' '.join(texts) or 'nothing'}."
        )
    return texts[0]


def is_given(flag: str, found: dict[str, list[str]]) -> bool:
    """Take a flag without a value out of those found."""
    texts = found.pop(flag, None)
    if texts:
        raise ValueError(f"Expected nothing after --{flag.replace('_', '-')}, but got {texts[0]!r}.")
    return texts is not None
