"""Classes one by one: a table with search, the worst of them, and what tail classes are taken for."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from longtail.report.page import (
    Block,
    Cell,
    ClassCard,
    ClassCards,
    Column,
    Example,
    Folded,
    Grid,
    Prose,
    many,
    number,
)
from longtail.report.predictions import Confusions

__all__ = ["ClassView", "class_grid", "confusion_grid", "worst_cards", "worst_classes"]

Examples = Callable[[int], tuple[str, list[Example]]]
"""Gives a title and images of a class."""


@dataclass(frozen=True)
class ClassView:
    """What is known of the classes of one data set, under one model or several."""

    names: Sequence[str]
    counts: Sequence[int]
    """Training images."""
    groups: Mapping[str, Sequence[int]]
    recalls: Mapping[str, Sequence[float]]
    """Recall of each class, in per cent, by the models' titles; NaN for a class without an image there."""
    focus: str
    """The model that is looked at closely."""
    samples: Sequence[int] = ()
    """Images of each class that recall was measured on."""
    precision: Sequence[float] = ()
    """Of those predicted to be of a class under the model in focus, the per cent that are."""
    unit: str = "image"
    split: str = "test"
    """The data that recall was measured on."""
    compare: bool = True
    """Whether the best of a row is marked."""
    group_of: Mapping[int, str] = field(init=False)

    def __post_init__(self) -> None:
        places = {c: name for name, members in self.groups.items() for c in members}
        object.__setattr__(self, "group_of", places)


def class_grid(view: ClassView, name: str, title: str, caption: str) -> Grid:
    """One row a class."""
    columns = [Column("Class", numeric=False), Column("Group", numeric=False), Column(f"Training {view.unit}s")]
    columns += [Column(f"{view.split.capitalize()} {view.unit}s")] if view.samples else []
    columns += [Column(f"Recall, {model}" if len(view.recalls) > 1 else "Recall, %") for model in view.recalls]
    columns += [Column("Precision, %", title="Of all that is taken for this class, how much of it is")] * bool(
        view.precision
    )
    rows = []
    for c, class_name in enumerate(view.names):
        cells = [Cell(class_name, class_name), Cell(view.group_of[c], view.group_of[c]), _count(view.counts[c])]
        cells += [_count(view.samples[c])] if view.samples else []
        values = [recalls[c] for recalls in view.recalls.values()]
        top = max((v for v in values if not math.isnan(v)), default=math.nan)
        cells += [number(v, bar=True, best=view.compare and len(values) > 1 and v == top) for v in values]
        cells += [number(view.precision[c])] if view.precision else []
        rows.append(cells)
    return Grid(name, title, columns, rows, caption, search="Search classes or groups")


def _count(value: int) -> Cell:
    return Cell(f"{value:,}", float(value))


def worst_classes(view: ClassView, most: int = 6) -> list[int]:
    """The classes with the lowest recall under the model in focus; of equals the rarer.

    Only those below the mean over classes, and at most a third of all: the rest are not the worst of anything.
    """
    recalls = view.recalls[view.focus]
    known = [c for c in range(len(view.names)) if not math.isnan(recalls[c])]
    mean = math.fsum(recalls[c] for c in known) / max(1, len(known))
    below = [c for c in known if recalls[c] < mean - 1e-9]
    return sorted(below, key=lambda c: (recalls[c], view.counts[c], c))[: min(most, max(1, len(known) // 3))]


def worst_cards(view: ClassView, taken: Confusions | None, examples: Examples, most: int = 6) -> Block:
    """The worst classes, with what they are taken for, and images where there are any."""
    cards = []
    for c in worst_classes(view, most):
        title, images = examples(c)
        rank = 1 + sum(count > view.counts[c] for count in view.counts)
        tested = f" of {many(view.samples[c], f'{view.split} {view.unit}')}" if view.samples else ""
        facts = f"Recall {view.recalls[view.focus][c]:.1f} %{tested}; "
        facts += f"{many(view.counts[c], f'training {view.unit}')}, no. {rank} of {len(view.names)} by frequency."
        pairs = [] if taken is None else [(view.names[guess], share) for guess, share in taken.of(c)]
        cards.append(
            ClassCard(view.names[c], view.group_of[c], facts, view.recalls[view.focus][c], pairs, images, title)
        )
    if cards:
        return ClassCards(cards)
    errors = any(recall < 100 for recall in view.recalls[view.focus])
    return Prose(["All classes have the same recall." if errors else "No class has an error."])


def confusion_grid(view: ClassView, taken: Confusions, name: str, title: str, caption: str) -> list[Block]:
    """What the classes of the last group, the rarest, are taken for; and the same for all others, folded."""
    names = list(view.groups)
    tail = list(view.groups[names[-1]]) if names else []
    rest = sorted(set(range(len(view.names))) - set(tail))
    blocks: list[Block] = [_confusions(view, taken, tail, name=name, title=title, caption=caption)]
    if rest and len(view.names) <= 2000:
        blocks.append(
            Folded(
                "The same for all other classes",
                [_confusions(view, taken, rest, name=f"{name}-rest", title="Other classes", caption=caption)],
            )
        )
    return blocks


def _confusions(
    view: ClassView, taken: Confusions, classes: Sequence[int], *, name: str, title: str, caption: str
) -> Grid:
    columns = [Column("Class", numeric=False), Column("Group", numeric=False), Column("Recall, %")]
    columns += [Column(f"Taken for, {word}", numeric=False) for word in ("most", "then", "then")]
    columns += [
        Column(
            "To commoner classes, %",
            title="Per cent of its samples that were taken for a class with more training data",
        )
    ]
    rows = []
    for c in classes:
        found = taken.of(c, most=len(view.names))
        shown = [f"{view.names[guess]} ({share:.0f} %)" for guess, share in found[:3]]
        upwards = sum(share for guess, share in found if view.counts[guess] > view.counts[c])
        cells = [Cell(view.names[c], view.names[c]), Cell(view.group_of[c], view.group_of[c])]
        cells += [number(view.recalls[view.focus][c], bar=True)]
        cells += [Cell(text, text) for text in [*shown, *["–"] * (3 - len(shown))]]
        cells += [number(upwards, bar=True) if taken.samples(c) else Cell("–", "")]
        rows.append(cells)
    return Grid(name, title, columns, rows, caption, search="Search classes" if len(rows) > 12 else "")
