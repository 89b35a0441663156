"""The results of single classes: which are worst, what they are mistaken for, and a table of all."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from longtail.report.page import Column, Grid, GridCell
from longtail.study.figures.plots import MOST_NAMES, confusion
from longtail.study.figures.style import Drawing

Example = tuple[str, str, float]
"""An image as a data URI, the name of the predicted class, and its probability in per cent."""


def count_predictions(pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[int, Counter[int]]:
    """Return how often each class is predicted as which class, from labels and predicted classes of some runs.

    Example:
        >>> import torch
        >>> count_predictions([(torch.tensor([0, 0, 0, 1, -100]), torch.tensor([0, 2, 2, 1, 0]))])
        {0: Counter({2: 2, 0: 1}), 1: Counter({1: 1})}
    """
    found: dict[int, Counter[int]] = {}
    for labels, predicted in pairs:
        for label, guess in zip(labels.tolist(), predicted.tolist(), strict=True):
            if label >= 0:
                found.setdefault(label, Counter())[guess] += 1
    return found


@dataclass(frozen=True, eq=False)
class ClassResults:
    """The results of the classes of one data set with one or more models."""

    names: Sequence[str]
    counts: Sequence[int]
    """Training samples per class."""
    groups: Mapping[str, Sequence[int]]
    """The classes of each group, the most frequent group first."""
    recalls: Mapping[str, Sequence[float]]
    """Recall per class in per cent, by the titles of the models; NaN for a class without samples."""
    focus: str
    """The title of the model whose errors are shown."""
    predictions: Mapping[int, Counter[int]] | None = None
    """How often that model predicts which class for the samples of a class; ``None`` if unknown."""
    samples: Sequence[int] = ()
    """Evaluated samples per class."""
    precision: Sequence[float] = ()
    """Precision per class in per cent."""
    runs: int = 1
    """Runs of that model, over which recall is the mean."""
    unit: str = "image"
    split: str = "test"
    mark_best: bool = True
    """Whether the best recall of each class is bold."""
    caption: str = ""
    """Of the table of all classes."""
    mistakes_caption: str = ""
    """Of the tables of mistakes."""
    examples: Mapping[int, Sequence[Example]] = field(default_factory=dict)
    """Images of mistakes, by class."""
    examples_title: str = ""
    no_examples: str = ""
    """Why there are no images."""

    @property
    def recall(self) -> Sequence[float]:
        """Recall per class of the model in focus."""
        return self.recalls[self.focus]

    @cached_property
    def group_of(self) -> dict[int, str]:
        """The group of each class."""
        return {c: name for name, members in self.groups.items() for c in members}

    @property
    def rarest(self) -> str:
        """The group of the rarest classes."""
        return list(self.groups)[-1]

    @property
    def others(self) -> list[int]:
        """The classes of all other groups; none if there are too many for a table."""
        return [c for c in range(len(self.names)) if self.group_of[c] != self.rarest] if len(self.names) <= 2000 else []

    @property
    def has_errors(self) -> bool:
        """Whether the model in focus makes mistakes."""
        return any(recall < 100 for recall in self.recall)

    @cached_property
    def worst(self) -> list[int]:
        """The classes with the lowest recall, the rarer first if equal: below the mean, at most six or a third."""
        recall = self.recall
        known = [c for c in range(len(self.names)) if not math.isnan(recall[c])]
        mean = math.fsum(recall[c] for c in known) / max(1, len(known))
        below = [c for c in known if recall[c] < mean - 1e-9]
        return sorted(below, key=lambda c: (recall[c], self.counts[c], c))[: min(6, max(1, len(known) // 3))]

    @property
    def worst_text(self) -> str:
        """Which classes are the worst."""
        model = "" if self.focus == f"{self.split} data" else f" with {self.focus}"
        return (
            f"{len(self.worst)} of {len(self.names):,} classes: the lowest recalls on {self.split} data{model}, all "
            "below the mean over the classes. Of classes with the same recall, the rarer come first."
        )

    def rank(self, c: int) -> int:
        """Return the place of a class by frequency; 1 is the most frequent."""
        return 1 + sum(count > self.counts[c] for count in self.counts)

    def mistaken_for(self, c: int) -> list[tuple[int, float]]:
        """Return the classes that a class is mistaken for with the per cent of its samples, the largest first."""
        found = (self.predictions or {}).get(c, Counter())
        pairs = sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
        return [(guess, 100 * number / found.total()) for guess, number in pairs if guess != c]

    @property
    def many(self) -> bool:
        """Whether there are too many classes for a heat map."""
        return len(self.names) > MOST_NAMES

    def confusion(self) -> Drawing | None:
        """Return a heat map of predictions; ``None`` if these are unknown or there are too many classes for one."""
        size = len(self.names)
        if self.predictions is None or self.many:
            return None
        shares = [[math.nan] * size for _ in range(size)]
        for c, found in self.predictions.items():
            shares[c] = [100 * found[guess] / found.total() for guess in range(size)]
        caption = f"{self.mistakes_caption} A row per class, a column per predicted class, frequent ones first. Blue: "
        caption += "correct, red: wrong; red below the diagonal: a class is mistaken for a more frequent one."
        return Drawing("confusion", "Predictions of each class", confusion(shares, self.counts, self.names), caption)

    def pairs_grid(self, name: str, most: int = 25) -> Grid:
        """Return a table of the classes that are most often mistaken for each other."""
        found = [
            (number / of_class.total(), number, c, guess)
            for c, of_class in (self.predictions or {}).items()
            for guess, number in of_class.items()
            if guess != c
        ]
        found.sort(key=lambda pair: (-pair[0], -pair[1], pair[2:]))
        rows: list[list[GridCell]] = [
            [self.names[c], self.group_of[c], self.names[guess], self.group_of[guess], number, 100 * share]
            for share, number, c, guess in found[:most]
        ]
        columns = [Column("Class"), Column("Group"), Column("Predicted as"), Column("Its group")]
        columns += [Column(f"{self.unit.capitalize()}s", 0), Column("Of the class, %", 1, bar=True)]
        return Grid(name, "Most frequent mistakes", columns, rows, self.mistakes_caption)

    def _frequent_first(self, classes: Iterable[int]) -> list[int]:
        return sorted(classes, key=lambda c: -self.counts[c])

    def grid(self, name: str) -> Grid:
        """Return a table with a row per class."""
        columns = [Column("Class"), Column("Group"), Column(f"Training {self.unit}s", 0)]
        columns += [Column(f"{self.split.capitalize()} {self.unit}s", 0)] if self.samples else []
        several = len(self.recalls) > 1
        columns += [Column(f"Recall, {model}" if several else "Recall, %", 1, bar=True) for model in self.recalls]
        about = f"Of the {self.unit}s predicted as this class, the share that belongs to it"
        columns += [Column("Precision, %", 1, title=about)] if self.precision else []
        rows: list[list[GridCell]] = []
        for c in self._frequent_first(range(len(self.names))):
            recalls = [of_model[c] for of_model in self.recalls.values()]
            known = [v for v in recalls if not math.isnan(v)]
            best = max(known) if several and len(set(known)) > 1 else math.nan
            rows.append(
                [
                    self.names[c],
                    self.group_of[c],
                    self.counts[c],
                    *self.samples[c : c + 1],
                    *((f"{v:.1f}", v, self.mark_best and v == best) for v in recalls),
                    *self.precision[c : c + 1],
                ]
            )
        caption = self.caption
        caption += " -: never predicted, so no precision." if any(map(math.isnan, self.precision)) else ""
        unknown = any(math.isnan(value) for values in self.recalls.values() for value in values)
        caption += f" -: no {self.unit}s, so no recall." if unknown else ""
        return Grid(name, "", columns, rows, caption, "Search classes or groups")

    def mistakes_grid(self, name: str, classes: Sequence[int]) -> Grid:
        """Return a table of what classes are mistaken for."""
        about = f"Share of its {self.unit}s that were predicted as a class with more training {self.unit}s"
        columns = [Column("Class"), Column("Group"), Column("Recall, %", 1, bar=True)]
        columns += [Column("Mistaken for"), Column("Second"), Column("Third")]
        columns += [Column("As a more frequent class, %", 1, bar=True, title=about)]
        rows: list[list[GridCell]] = []
        for c in self._frequent_first(classes):
            found = self.mistaken_for(c)
            rounded = ((guess, f"{share:.0f}" if share >= 0.5 else "<1") for guess, share in found[:3])
            shown = [f"{self.names[guess]} ({share} %)" for guess, share in rounded]
            upwards = sum(share for guess, share in found if self.counts[guess] > self.counts[c])
            known = self.predictions is not None and c in self.predictions
            rows.append(
                [
                    self.names[c],
                    self.group_of[c],
                    self.recall[c],
                    *shown,
                    *["-"] * (3 - len(shown)),
                    float(upwards) if known else math.nan,
                ]
            )
        caption = f"{self.mistakes_caption} -: no other mistake."
        return Grid(name, "", columns, rows, caption, "Search classes" if len(rows) > 12 else "")
