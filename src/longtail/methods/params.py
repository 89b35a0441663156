"""Parameters of methods and settings of recipes: their types, their bounds, and how to read them from text."""

import math
import operator
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_KEY = "longtail"  # in the metadata of a dataclass field
_LARGEST = 3.4e38  # that float32 holds
_COMPARE = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
_SWITCH = {"true": True, "false": False}


@dataclass(frozen=True)
class NoParams:
    """The parameters of a method that has none."""


@dataclass(frozen=True)
class UnknownParams:
    """Base of the parameters of a method that is not registered here; they are kept as they were written."""


def param(
    default: Any,
    help: str,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
) -> Any:
    """A field of a dataclass of settings, with its default, help text and bounds.

    The type comes from the annotation: ``int``, ``float``, ``str``, ``bool``, ``Literal``, or one of them ``| None``.

    Example:
        >>> @dataclass(frozen=True)
        ... class MyParams:
        ...     beta: float = param(1.5, "exponent of the class counts", at_least=0)
        >>> MyParams().beta
        1.5
    """
    bounds = {">=": at_least, ">": above, "<=": at_most, "<": below}
    return field(default=default, metadata={_KEY: {"help": help, "bounds": bounds}})


@dataclass(frozen=True)
class Parameter:
    """One parameter of a method."""

    name: str
    hint: Any
    """Its type."""
    default: Any
    help: str = ""
    bounds: Mapping[str, float] = field(default_factory=dict)

    @property
    def may_be_none(self) -> bool:
        """Whether ``None`` is a value; otherwise it stands for the default."""
        return NoneType in _kinds(self.hint)

    def check(self, value: Any) -> None:
        """Raise an error unless the value has the right type and is in range."""
        if value is None and self.may_be_none:
            return
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = any(_is(value, kind) for kind in _kinds(self.hint))
        if fits and number:
            fits = abs(value) <= _LARGEST and all(_COMPARE[sign](value, bound) for sign, bound in self.bounds.items())
        if not fits:
            bounds = {sign: bound for sign, bound in self.bounds.items() if math.isfinite(bound)}
            bounds = {"<=": _LARGEST} | bounds if number and _LARGEST < value < math.inf else bounds
            range_ = " and ".join(f"{sign} {bound:.10g}" for sign, bound in bounds.items())
            raise ValueError(f"Expected `{self.name}` to be {_described(self.hint, range_)}, but got {value!r}.")


def parameters_of(kind: type) -> dict[str, Parameter]:
    """The parameters that a dataclass declares, by name."""
    hints = get_type_hints(kind)
    found = {}
    for one in fields(kind):
        if one.default is MISSING:
            raise ValueError(f"Expected a default for every parameter, but `{one.name}` of {kind.__name__} has none.")
        found[one.name] = Parameter(one.name, hints[one.name], one.default, **one.metadata.get(_KEY, {}))
    return found


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raise an error unless a setting has the type of its annotation; a file may hold anything."""
    Parameter(name, hint, None).check(value)


def parse_setting(text: str, hint: Any) -> Any:
    """A value of type ``hint`` from text; text that does not fit is returned as it is, for :func:`check_type`.

    Example:
        >>> parse_setting("1.5", float | None), parse_setting("none", float | None), parse_setting("true", bool)
        (1.5, None, True)
    """
    for kind in sorted(_kinds(hint), key=lambda kind: kind is not NoneType):  # a text may be anything but none
        try:
            return _parse(get_args(kind)[0] if get_origin(kind) is tuple else kind, text)
        except (ValueError, KeyError):
            continue
    return text


def _parse(kind: Any, text: str) -> Any:
    if get_origin(kind) is Literal:
        return {str(one): one for one in get_args(kind)}[text]
    if kind is NoneType:
        return {"none": None}[text.lower()]
    return _SWITCH[text.lower()] if kind is bool else kind(text)


@cache
def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)


def _is(value: Any, kind: Any) -> bool:
    if kind is Any or type(value) is kind:
        return True
    origin = get_origin(kind)
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is(one, get_args(kind)[0]) for one in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def _described(hint: Any, range_: str) -> str:
    names = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
    found = []
    for kind in _kinds(hint):
        if get_origin(kind) is Literal:
            found.append(f"one of {', '.join(get_args(kind))}")
        elif kind is not NoneType:
            name = "a list of numbers" if get_origin(kind) is tuple else names.get(kind, str(kind))
            found.append(f"{name} {range_}".rstrip())
    return " or ".join(found)
