"""Examples per class, and the head / medium / tail groups made from them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from longtail._checks import Vector, as_counts, as_tensor, check_integer, check_number, describe, positive_counts, shown
from longtail._io import read_json

__all__ = ["GroupValues", "Groups", "class_counts", "cut_groups", "describe_groups", "group_bounds", "imbalance_factor"]


def class_counts(labels: Vector, num_classes: int, *, ignore_index: int | None = None) -> Tensor:
    r"""Return the number of examples per class, :math:`N_c = |\{n : y_n = c\}|`.

    Args:
        labels: class indices, shape ``(N,)``: a tensor, an array or a sequence of integers. Flatten dense labels.
        num_classes: how many classes there are; a class without a label has a count of 0.
        ignore_index: a label that is not counted, like the option of the losses; default: none.

    Returns:
        int64 counts of shape ``(num_classes,)``.

    Example:
        >>> class_counts([0, 0, 0, 2], num_classes=3)
        tensor([3, 0, 1])
        >>> pixels = torch.tensor([[0, 2], [-100, 0]])
        >>> class_counts(pixels.flatten(), num_classes=3, ignore_index=-100)
        tensor([2, 0, 1])
    """
    num_classes = check_integer("num_classes", num_classes, minimum=1)
    if ignore_index is not None:
        ignore_index = check_integer("ignore_index", ignore_index)
    labels = as_tensor("labels", labels, what="class indices")
    if labels.ndim != 1:
        raise ValueError(
            f"Expected `labels` to be one-dimensional class indices, but got shape {tuple(labels.shape)}; use "
            "argmax(1) of one-hot labels or probabilities, and flatten() of dense labels."
        )
    if labels.numel() == 0:
        return torch.zeros(num_classes, dtype=torch.int64, device=labels.device)
    if labels.is_floating_point():
        raise TypeError(f"Expected `labels` to hold class indices, but got dtype {labels.dtype}.")
    labels = labels.to(torch.int64)
    if ignore_index is not None:
        labels = labels[labels != ignore_index]
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        found = sorted(set(labels[outside].tolist()))
        advice = "; ignore_index=-100 skips the labels that the losses ignore by default" if -100 in found else ""
        raise ValueError(f"Expected `labels` to be in 0…{num_classes - 1}, but got {shown(found)}{advice}.")
    return torch.bincount(labels, minlength=num_classes)


def imbalance_factor(counts: Vector) -> float:
    r"""Return how imbalanced the *data* are: the largest class over the smallest, :math:`\max_c N_c / \min_c N_c`.

    For the imbalance of a *model* see ``level`` in :func:`longtail.metrics.preference_scores`.

    Args:
        counts: examples per class, shape ``(C,)``, above 0.

    Example:
        >>> imbalance_factor([5000, 500, 50])
        100.0
    """
    counts = positive_counts(counts)
    return counts.max().item() / counts.min().item()


class GroupValues(dict[str, float]):
    """One value per group that has a class; ``skipped`` has the names of the others.

    Example:
        >>> means = Groups.from_indices(head=[0], medium=[], tail=[1, 2]).means([0.9, 0.5, 0.3])
        >>> means
        {'head': 0.9, 'tail': 0.4} (skipped: medium)
        >>> means.skipped
        ('medium',)
    """

    def __init__(self, values: dict[str, float], skipped: tuple[str, ...] = ()) -> None:
        super().__init__(values)
        self.skipped = skipped

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict):
            return NotImplemented
        return dict(self) == dict(other) and self.skipped == getattr(other, "skipped", self.skipped)

    __hash__ = None

    def __repr__(self) -> str:
        return super().__repr__() + (f" (skipped: {', '.join(self.skipped)})" if self.skipped else "")


@dataclass(frozen=True)
class Groups:
    """Classes in named groups: one group index per class.

    Args:
        names: names of the groups, most frequent first.
        index: for each class the position of its group in ``names``.

    Example:
        >>> groups = Groups.from_counts([500, 101, 100, 20, 19, 1])
        >>> groups.sizes
        {'head': 2, 'medium': 2, 'tail': 2}
        >>> groups.members("tail")
        (4, 5)
        >>> groups.means([0.9, 0.7, 0.6, 0.4, 0.2, 0.0])
        {'head': 0.8, 'medium': 0.5, 'tail': 0.1}
    """

    names: tuple[str, ...]
    index: tuple[int, ...]

    def __post_init__(self) -> None:
        names = tuple(self.names)
        if not names or len(set(names)) != len(names):
            raise ValueError(f"Expected `names` to be one or more different names, but got {names!r}.")
        if "all" in names:
            raise ValueError("Expected groups with other names than 'all', the name of the mean over all classes.")
        index = as_tensor("index", self.index, what="one group per class")
        if index.ndim != 1 or not index.numel():
            raise ValueError(f"Expected `index` to hold one group per class, but got shape {tuple(index.shape)}.")
        wrong = sorted({group for group in index.tolist() if group not in range(len(names))})
        if wrong:
            raise ValueError(f"Expected `index` to hold groups in 0…{len(names) - 1}, but got {shown(wrong)}.")
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "index", tuple(index.to(torch.int64).tolist()))

    @classmethod
    def from_counts(cls, counts: Vector, head_over: float = 100, tail_under: float = 20) -> Self:
        """Group by training examples per class: head > ``head_over``, tail < ``tail_under``, medium between.

        The defaults are those of ImageNet-LT, Places-LT and iNaturalist2018: > 100, 20…100, < 20.

        Example:
            >>> Groups.from_counts([5000, 60, 5]).index
            (0, 1, 2)
        """
        check_number("head_over", head_over)
        check_number("tail_under", tail_under)
        if tail_under > head_over + 1:
            raise ValueError(
                f"Expected `tail_under` to be at most `head_over` + 1, but got {tail_under} and {head_over}."
            )
        index = [
            0 if count > head_over else 2 if count < tail_under else 1
            for count in as_counts(counts, fractions=True).tolist()
        ]
        return cls(("head", "medium", "tail"), tuple(index))

    @classmethod
    def from_quantiles(cls, counts: Vector) -> Self:
        """Group by rank: the third of the classes with the most examples is head, the next third medium, the rest tail.

        Classes with the same count share a group, by their mean rank. If counts differ, the classes with the largest
        count are head and those with the smallest are tail; if all are equal, all are medium.

        Example:
            >>> Groups.from_quantiles([900, 800, 700, 600, 500, 500]).index
            (0, 0, 1, 1, 2, 2)
        """
        counts = as_counts(counts, fractions=True).to("cpu", torch.float64)
        ordered, third = counts.sort().values, counts.numel() // 3
        fewer, not_more = (torch.searchsorted(ordered, counts, right=right) for right in (False, True))
        rank = counts.numel() - (fewer + not_more) / 2  # 0.5 for the most frequent class; ties have their mean
        head = (rank < third) | (counts == ordered[-1])
        tail = (rank >= 2 * third) | (counts == ordered[0])
        index = torch.where(head, 0, torch.where(tail, 2, 1)) if ordered[0] < ordered[-1] else torch.ones_like(fewer)
        return cls(("head", "medium", "tail"), tuple(index.tolist()))

    @classmethod
    def from_file(cls, path: Path | str, class_names: Sequence[str]) -> Self:
        """Read a JSON file with the classes of each group, by name or index: ``{"head": ["cat"], "tail": ["fox"]}``.

        Args:
            path: the file; its groups are in its order, the most frequent first.
            class_names: names of all classes. Each of them is in one group.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"Expected `groups` to be an existing file, but there is no {path}.")
        found, places = read_json(Path(path)), {name: c for c, name in enumerate(class_names)}
        if not isinstance(found, dict) or not all(isinstance(one, list) for one in found.values()) or "all" in found:
            wanted = 'lists of classes by group, like {"head": ["cat"], "tail": ["fox"]}, and no group "all"'
            raise ValueError(f"Expected {path} to hold {wanted}, but it does not.")
        index: dict[int, int] = {}
        for place, one in ((place, one) for place, members in enumerate(found.values()) for one in members):
            c = places.get(one) if isinstance(one, str) else one
            if type(c) is not int or not 0 <= c < len(class_names):
                raise ValueError(f"Expected names or indices of classes in {path}, but got {one!r}.")
            if c in index:
                raise ValueError(f"Expected every class in one group of {path}, but {class_names[c]!r} is there twice.")
            index[c] = place
        missing = [name for c, name in enumerate(class_names) if c not in index]
        if missing:
            raise ValueError(f"Expected every class in one group of {path}, but {missing[0]!r} is in none.")
        return cls(tuple(found), tuple(index[c] for c in range(len(class_names))))

    @classmethod
    def from_indices(cls, **groups: Vector) -> Self:
        """Group by explicit lists of classes, which together name every class 0…C-1 exactly once.

        Example:
            >>> Groups.from_indices(head=range(3), medium=range(3, 6), tail=range(6, 10)).sizes  # CIFAR-10 in the paper
            {'head': 3, 'medium': 3, 'tail': 4}
        """
        members = {}
        for name, classes in groups.items():
            indices = as_tensor(name, list(classes) if isinstance(classes, Iterable) else classes, what="classes")
            if indices.ndim != 1 or (indices.is_floating_point() and indices.numel()):
                raise TypeError(f"Expected `{name}` to hold classes, but got {describe(classes)}.")
            members[name] = indices.tolist()
        named = Counter(c for classes in members.values() for c in classes)
        num_classes = max(named, default=0) + 1
        wrong = sorted(c for c in {*range(num_classes), *named} if c < 0 or named[c] != 1)
        if wrong:
            raise ValueError(
                "Expected the groups to name every class 0…C-1 exactly once, but got "
                + ", ".join(f"class {c} {named[c]} times" for c in wrong[:3])
                + "."
            )
        index = [0] * num_classes
        for position, classes in enumerate(members.values()):
            for c in classes:
                index[c] = position
        return cls(tuple(members), tuple(index))

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.index)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of classes per group, empty groups included."""
        return dict(zip(self.names, torch.bincount(self._index, minlength=len(self.names)).tolist(), strict=True))

    def members(self, name: str) -> tuple[int, ...]:
        """Return the classes of one group."""
        if name not in self.names:
            raise ValueError(f"Expected `name` to be one of {', '.join(self.names)}, but got {name!r}.")
        group = self.names.index(name)
        return tuple(c for c, g in enumerate(self.index) if g == group)

    def sums(self, values: Vector) -> Tensor:
        """Return the sums of ``values`` (classes in dimension 0) per group, float64, 0 for empty groups."""
        values = as_tensor("values", values).to("cpu", torch.float64)
        self._check_classes("values", values)
        sums = torch.zeros(len(self.names), *values.shape[1:], dtype=torch.float64, device="cpu")
        return sums.index_add_(0, self._index, values)

    def means(self, values: Vector, where: Vector | None = None, *, weights: Vector | None = None) -> GroupValues:
        """Return the means of ``values`` over the classes of each group.

        Args:
            values: one number per class.
            where: which classes to average over (default: all).
            weights: weight per class (default: all the same).

        Returns:
            A dictionary from name to mean. Groups without a class to average are in its ``skipped``.
        """
        values = as_tensor("values", values).to("cpu", torch.float64)
        weight = torch.ones_like(values) if weights is None else as_tensor("weights", weights).to(values)
        counted = torch.ones_like(values) if where is None else torch.as_tensor(where, device="cpu")
        for name, given in (("values", values), ("where", counted), ("weights", weight)):
            self._check_classes(name, given, rows=False)
        counted = counted.bool()
        values, weight = values.where(counted, 0.0), weight.where(counted, 0.0)
        totals, sums = self.sums(weight).tolist(), self.sums(values * weight).tolist()
        kept = {name: s / w for name, s, w in zip(self.names, sums, totals, strict=True) if w > 0}
        return GroupValues(kept, tuple(name for name in self.names if name not in kept))

    def _check_classes(self, name: str, values: Tensor, *, rows: bool = True) -> None:
        if values.ndim == 0 or values.shape[0] != self.num_classes or (values.ndim > 1 and not rows):
            wanted = "in dimension 0" if rows else "and one number each"
            raise ValueError(
                f"Expected `{name}` to have {self.num_classes} classes {wanted}, but got shape {tuple(values.shape)}."
            )

    @cached_property
    def _index(self) -> Tensor:
        return torch.tensor(self.index, device="cpu")


def group_bounds(groups: str) -> tuple[float, float] | None:
    """Return the numbers in ``"100,20"``; ``None`` for ``"auto"``, ``"quantiles"`` and the name of a JSON file.

    Example:
        >>> group_bounds("100,20")
        (100.0, 20.0)
    """
    if groups in {"auto", "quantiles"} or groups.endswith(".json"):
        return None
    try:
        head_over, tail_under = map(float, groups.split(","))
        Groups.from_counts([1], head_over, tail_under)
    except ValueError:
        wanted = "auto, quantiles, two numbers such as 100,20 (head has more, tail has fewer), or a .json file"
        raise ValueError(f"Expected `groups` to be {wanted}, but got {groups!r}.") from None
    return head_over, tail_under


def cut_groups(
    groups: str, counts: Vector, class_names: Sequence[str], tested: Collection[int] | None = None
) -> tuple[Groups, str]:
    """Return groups by the setting ``groups`` of a recipe, and how they were made, in words.

    Args:
        groups: ``"100,20"``: head has more than 100 training examples per class, tail fewer than 20; ``"quantiles"``:
            thirds of the classes (:meth:`Groups.from_quantiles`); the name of a JSON file (:meth:`Groups.from_file`);
            or ``"auto"``: 100 and 20, but thirds of the classes if counts differ and that gives no head or no tail, or
            one without test data, whose recall would be unknown.
        counts: training examples per class.
        class_names: names of the classes.
        tested: the classes with test data; default: all.

    Example:
        >>> cut_groups("auto", [5000, 500, 50], ["cat", "dog", "fox"])[1]
        'thirds of the classes by training samples, because 100 and 20 samples per class give no tail'
    """
    bounds, why = group_bounds(groups), ""
    if groups.endswith(".json"):
        return Groups.from_file(groups, class_names), f"those in {groups}"
    if groups == "auto":
        bounds, counts = (100, 20), as_counts(counts, fractions=True)
        usual = Groups.from_counts(counts)
        empty = [name for name in ("head", "tail") if not usual.sizes[name]]
        if not empty and tested is not None:
            found = [name for name in ("head", "tail") if not set(usual.members(name)) & set(tested)]
            empty = [f"{name} with test data" for name in found]
        if empty and bool(counts.min() < counts.max()):
            bounds, why = None, f", because 100 and 20 samples per class give no {' and no '.join(empty)}"
    if bounds is None:
        return Groups.from_quantiles(counts), f"thirds of the classes by training samples{why}"
    return Groups.from_counts(
        counts, *bounds
    ), "head has more than {:g} training samples per class, tail fewer than {:g}".format(*bounds)


def describe_groups(groups: Mapping[str, Sequence[int]], counts: Sequence[int] | None) -> str:
    """Return how many training samples the classes of each group have, in words.

    Example:
        >>> describe_groups({"head": [0, 1], "medium": [], "tail": [2]}, [90, 130, 7])
        'head: 90 to 130 training samples per class, tail: 7'
    """
    found: list[str] = []
    for name, members in groups.items():
        of_group = [counts[c] for c in members] if counts else []
        if of_group:
            low, high = min(of_group), max(of_group)
            text = f"{name}: {low:,} to {high:,}" if high > low else f"{name}: {low:,}"
            found.append(text if found else f"{text} training samples per class")
    return ", ".join(found) or "training samples per class unknown"
