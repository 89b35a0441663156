"""Hold-outs that keep groups together: all images of a patient, a video or a writer are on one side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

_PASSES = 10  # over all groups, at most, to improve a choice

Pairs = Sequence[tuple[int, int]]
"""The classes of a group, and its number of images of each."""


@dataclass(frozen=True, eq=False)
class GroupTable:
    """Images per group and class."""

    pairs: list[Pairs]
    """One entry per group."""
    counts: list[int]
    """Images per class."""
    smallest: list[int]
    """Per class, the images in the group that has the fewest of them; 0 if all are in one group."""
    member: np.ndarray
    """The group of each image."""

    @classmethod
    def of(cls, labels: Tensor, groups: Tensor, num_classes: int) -> "GroupTable":
        """Count the images of each group and class."""
        names, member = np.unique(groups.numpy(), return_inverse=True)
        places, images = np.unique(member * num_classes + labels.numpy(), return_counts=True)
        of_group, of_class = np.divmod(places, num_classes)
        smallest = np.full(num_classes, len(labels))
        np.minimum.at(smallest, of_class, images)
        smallest[np.bincount(of_class, minlength=num_classes) < 2] = 0
        pairs: list[list[tuple[int, int]]] = [[] for _ in names]
        for group, c, number in zip(of_group.tolist(), of_class.tolist(), images.tolist(), strict=True):
            pairs[group].append((c, number))
        counts = np.bincount(labels.numpy(), minlength=num_classes)
        return cls(list(pairs), counts.tolist(), smallest.tolist(), member)

    def quotas(self, fraction: float) -> list[int]:
        """The images of each class to hold out: its fraction, or its smallest group; 0 if it is in one group."""
        pairs = zip(self.counts, self.smallest, strict=True)
        return [max(round(fraction * count), least) if least else 0 for count, least in pairs]


class _Choice:
    """Groups that are held out. Its cost is the squared error relative to the quota, summed over classes."""

    def __init__(self, table: GroupTable, quotas: Sequence[int]) -> None:
        self.table, self.quotas = table, quotas
        self.held = [0] * len(table.counts)
        self.groups: set[int] = set()

    def can_add(self, group: int) -> bool:
        """Whether every class of a group keeps a training image without it."""
        held, counts, quotas = self.held, self.table.counts, self.quotas
        return all(quotas[c] and held[c] + number < counts[c] for c, number in self.table.pairs[group])

    def cost(self, group: int, sign: int = 1) -> float:
        """The change of the cost if a group is added (1) or removed (-1)."""
        held, quotas = self.held, self.quotas
        pairs = self.table.pairs[group]
        return sum(number * (2 * sign * (held[c] - quotas[c]) + number) / quotas[c] ** 2 for c, number in pairs)

    def fits(self, group: int) -> bool:
        """Whether no class exceeds its quota with a group."""
        return all(self.held[c] + number <= self.quotas[c] for c, number in self.table.pairs[group])

    def change(self, group: int) -> None:
        """Add a group, or remove it if it is held out."""
        sign = -1 if group in self.groups else 1
        for c, number in self.table.pairs[group]:
            self.held[c] += sign * number
        self.groups ^= {group}

    def images(self) -> np.ndarray:
        """Whether each image is in one of these groups."""
        return np.isin(self.table.member, list(self.groups))


def choose_groups(table: GroupTable, fraction: float, generator: np.random.Generator) -> np.ndarray:
    """Return whether to hold out each image, in whole groups that together have about a fraction of each class.

    Groups are visited in random order. First those are taken with which no class exceeds its quota; then groups are
    added and removed as long as this brings the classes nearer to their quotas. A class keeps at least one image.
    """
    choice = _Choice(table, table.quotas(fraction))
    order = generator.permutation(len(table.pairs)).tolist()
    for group in order:
        if choice.can_add(group) and choice.fits(group):
            choice.change(group)
    for _ in range(_PASSES):
        before = set(choice.groups)
        for group in order:
            taken = group in choice.groups
            if (taken or choice.can_add(group)) and choice.cost(group, -1 if taken else 1) < -1e-9:
                choice.change(group)
        if choice.groups == before:
            break
    return choice.images()


def deal_groups(table: GroupTable, fold: int, folds: int, generator: np.random.Generator) -> np.ndarray:
    """Return whether each image is in one of several folds; every group that can be held out is dealt to one fold.

    Groups are dealt from the largest to the smallest, each to the fold in which its classes are rarest. If a class is
    missing in the fold, a group of it is held out again, if this brings the classes nearer to their quotas.
    """
    quotas = table.quotas(1 / folds)
    order = generator.permutation(len(table.pairs)).tolist()
    dealt = [_Choice(table, quotas) for _ in range(folds)]
    for place, group in enumerate(sorted(order, key=lambda one: -sum(number for _, number in table.pairs[one]))):
        turn = [dealt[(place + k) % folds] for k in range(folds)]  # otherwise the first folds would get all ties
        open_to = [choice for choice in turn if choice.can_add(group)]
        if open_to:
            min(open_to, key=lambda one: one.cost(group)).change(group)
    choice = dealt[fold]
    for group in order:
        lacks = any(choice.held[c] == 0 for c, _ in table.pairs[group])
        if lacks and choice.can_add(group) and choice.cost(group) < -1e-9:
            choice.change(group)
    return choice.images()
