"""The settings of a method, and what each may be."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

__all__ = ["Knob"]


@dataclass(frozen=True)
class Knob:
    """A setting of a method, and what it may be: one of ``choices``, a finite number within bounds, else anything."""

    default: Any
    what: str
    _: KW_ONLY
    whole: bool = False
    """Whether the number is an integer."""
    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Refuse a value that makes no sense, in one sentence; ``None`` stands for the default."""
        bounds = {">=": self.at_least, ">": self.above, "<=": self.at_most, "<": self.below}
        told = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds.items() if math.isfinite(bound))
        if value is None or not (told or self.choices):
            return
        if self.choices:
            fits, wanted = value in self.choices, f"one of {', '.join(self.choices)}"
        else:
            number = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
            fits = number and self.at_least <= value <= self.at_most and self.above < value < self.below
            wanted = f"{'an integer' if self.whole else 'a number'} {told}"
        if not fits:
            raise ValueError(f"Expected `{name}` to be {wanted}, but got {value!r}.")
