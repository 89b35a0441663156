"""What a search for beta looks at in a run: recall over all classes, the imbalance level, or weighted groups."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from longtail._checks import told
from longtail.study.beta import Score
from longtail.study.runs import Run

__all__ = ["Criterion"]

_GROUPS = ("head", "medium", "tail", "all")  # of every data set by name and of one's own


@dataclass(frozen=True)
class Criterion:
    """A criterion, higher is better.

    Args:
        weights: of groups (``all`` is recall over all classes); empty: minus the model imbalance level.
    """

    weights: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> "Criterion":
        """A criterion in words.

        Example:
            >>> Criterion.parse("all").weights, Criterion.parse("head=1,tail=2").weights
            ({'all': 1.0}, {'head': 1.0, 'tail': 2.0})
        """
        if not isinstance(text, str):
            raise TypeError(f"Expected `criterion` to be all, level, or weights in words, but got {told(text)}.")
        if text == "level":
            return cls({})
        if text == "all":
            return cls({"all": 1.0})
        weights: dict[str, float] = {}
        for part in text.split(","):
            name, _, number = part.partition("=")
            try:
                weights[name.strip()] = float(number)
            except ValueError:
                raise ValueError(
                    f"Expected `criterion` to be all, level, or weights as in head=1,tail=2, but got {text!r}."
                ) from None
        unknown = [name for name in weights if name not in _GROUPS]
        if unknown:
            raise ValueError(f"Expected `criterion` to weigh {', '.join(_GROUPS)}, but got {unknown[0]!r}.")
        if any(not 0 <= weight < math.inf for weight in weights.values()) or not sum(weights.values()):
            raise ValueError(f"Expected `criterion` to have weights >= 0, not all zero, but got {text!r}.")
        return cls(weights)

    def __str__(self) -> str:
        if not self.weights:
            return "model imbalance level"
        if set(self.weights) == {"all"}:
            return "recall over all classes"
        return "recall weighted " + ", ".join(f"{name} {weight:g}" for name, weight in self.weights.items())

    def score(self, run: Run, part: Literal["val", "test"]) -> Score:
        """What a run says: recall in per cent, or minus the imbalance level."""
        level = run.level(part)
        if not self.weights:
            return Score(-level, level)
        total = sum(self.weights.values())
        return Score(sum(w * run.recall(group, part) for group, w in self.weights.items()) / total, level)
