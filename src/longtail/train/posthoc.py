"""A post-hoc step by name and strength: on stored logits, or while they are made."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from longtail._checks import check_choice, check_number
from longtail.classes import Groups
from longtail.metrics import recall
from longtail.posthoc import adjust_logits, tau_normalize_logits

__all__ = ["TAUS", "Classifier", "PostHoc", "Search", "classifier_of"]

Kind = Literal["tau", "adjust"]

TAUS = tuple(tenth / 10 for tenth in range(21))
"""Strengths that are tried: 0 to 2 in steps of 0.1."""


@dataclass(frozen=True, eq=False)
class Classifier:
    """What post-hoc steps need to know of a classifier and its training data."""

    counts: Tensor
    norms: Tensor | None
    """Length of each class's weight; ``None`` where the classifier is not linear."""
    bias: Tensor | None


@dataclass(frozen=True)
class PostHoc:
    """A step after training.

    Args:
        kind: ``"tau"`` divides each class's weight by a power of its length; ``"adjust"`` takes the log prior off.
        strength: tau of either.

    Example:
        >>> PostHoc.parse("tau=0.7")
        PostHoc(kind='tau', strength=0.7)
    """

    kind: Kind
    strength: float

    @classmethod
    def parse(cls, text: str) -> "PostHoc":
        """From ``tau=0.7`` or ``adjust=1``."""
        kind, _, strength = text.partition("=")
        check_choice("posthoc", kind, Kind)
        try:
            number = float(strength)
        except ValueError:
            raise ValueError(f"Expected `posthoc` to be like tau=0.7 or adjust=1, but got {text!r}.") from None
        return cls("tau" if kind == "tau" else "adjust", check_number("posthoc", number))

    def __str__(self) -> str:
        short = f"{self.strength:g}"
        return f"{self.kind}={short if float(short) == self.strength else self.strength}"

    def apply(self, logits: Tensor, classifier: Classifier) -> Tensor:
        """Logits after the step."""
        if self.kind == "adjust":
            return adjust_logits(logits, classifier.counts, self.strength, zero_counts="mask")
        if classifier.norms is None:
            raise ValueError("Expected a linear classifier, which tau-normalisation needs, but the run has another.")
        return tau_normalize_logits(logits, classifier.bias, classifier.norms, self.strength)


class Search:
    """Finds a step's strength on validation data, in one pass over it.

    Args:
        kind: which step.
        classifier: whose logits they are.
        groups: of the classes.
    """

    def __init__(self, kind: Kind, classifier: Classifier, groups: Groups) -> None:
        self.steps = [PostHoc(kind, strength) for strength in TAUS]
        self.classifier, self.groups = classifier, groups
        self._correct = torch.zeros(len(TAUS), groups.num_classes, dtype=torch.int64)
        self._samples = torch.zeros(groups.num_classes, dtype=torch.int64)

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch."""
        self._samples += torch.bincount(labels, minlength=len(self._samples))
        for place, step in enumerate(self.steps):
            right = labels[step.apply(logits, self.classifier).argmax(1) == labels]
            self._correct[place] += torch.bincount(right, minlength=len(self._samples))

    def recalls(self) -> dict[str, float]:
        """Recall over all classes at every strength."""
        found = [recall(correct, self._samples, self.groups).all for correct in self._correct]
        return {str(step): value for step, value in zip(self.steps, found, strict=True)}

    def best(self) -> PostHoc:
        """The strength with the highest recall over all classes; of equals the smallest."""
        recalls = self.recalls()
        return max(self.steps, key=lambda step: (recalls[str(step)], -step.strength))


def classifier_of(weight: Tensor | None, bias: Tensor | None, counts: Tensor) -> Classifier:
    """What post-hoc steps need, from a linear classifier's weight ``(C, D)`` and bias ``(C,)``."""
    norms = None if weight is None else torch.linalg.vector_norm(weight.detach().double().cpu(), dim=1)
    return Classifier(counts.cpu(), norms, None if bias is None else bias.detach().double().cpu())
