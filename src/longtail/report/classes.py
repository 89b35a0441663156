"""Single classes: a table of all, cards of the worst, and what classes are mistaken for."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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
    number,
)
from longtail.report.predictions import Confusions
from longtail.study.captions import count


@dataclass(frozen=True)
class ClassView:
    """What is known about the classes of one data set under one or more models."""

    names: Sequence[str]
    counts: Sequence[int]
    """Training images per class."""
    groups: Mapping[str, Sequence[int]]
    recalls: Mapping[str, Sequence[float]]
    """Recall of each class in per cent, by the titles of the models; NaN for a class without images."""
    focus: str
    """The model whose errors are shown."""
    samples: Sequence[int] = ()
    """Evaluated images per class."""
    precision: Sequence[float] = ()
    """Precision of each class in per cent under the model in focus."""
    unit: str = "image"
    split: str = "test"
    mark_best: bool = True

    @cached_property
    def group_of(self) -> dict[int, str]:
        """The group of each class."""
        return {c: name for name, members in self.groups.items() for c in members}


def _words(*texts: str) -> list[Cell]:
    return [Cell(text, text) for text in texts]


def class_grid(view: ClassView, name: str, caption: str) -> Grid:
    """Return a table with a row per class."""
    columns = [Column("Class", numeric=False), Column("Group", numeric=False), Column(f"Training {view.unit}s")]
    columns += [Column(f"{view.split.capitalize()} {view.unit}s")] if view.samples else []
    columns += [Column(f"Recall, {model}" if len(view.recalls) > 1 else "Recall, %") for model in view.recalls]
    about = f"Of the {view.unit}s predicted as this class, the share that belongs to it"
    columns += [Column("Precision, %", title=about)] if view.precision else []
    rows = []
    for c, class_name in enumerate(view.names):
        cells = [*_words(class_name, view.group_of[c]), number(view.counts[c], 0)]
        cells += [number(view.samples[c], 0)] if view.samples else []
        values = [recalls[c] for recalls in view.recalls.values()]
        top = max((v for v in values if not math.isnan(v)), default=math.nan)
        cells += [number(v, bar=True, best=view.mark_best and len(values) > 1 and v == top) for v in values]
        cells += [number(view.precision[c])] if view.precision else []
        rows.append(cells)
    return Grid(name, "", columns, rows, caption, search="Search classes or groups")


def worst_classes(view: ClassView, most: int = 6) -> list[int]:
    """Return the classes with the lowest recall, of equals the rarer: below the mean, and at most a third of all."""
    recalls = view.recalls[view.focus]
    known = [c for c in range(len(view.names)) if not math.isnan(recalls[c])]
    mean = math.fsum(recalls[c] for c in known) / max(1, len(known))
    below = [c for c in known if recalls[c] < mean - 1e-9]
    return sorted(below, key=lambda c: (recalls[c], view.counts[c], c))[: min(most, max(1, len(known) // 3))]


def worst_cards(
    view: ClassView,
    confusions: Confusions | None,
    examples: Callable[[int], tuple[str, list[Example]]] = lambda _: ("", []),
) -> Block:
    """Return cards of the worst classes with what they are mistaken for, and the title and images of ``examples``."""
    cards = []
    for c in worst_classes(view):
        title, images = examples(c)
        recall, rank = view.recalls[view.focus][c], 1 + sum(one > view.counts[c] for one in view.counts)
        tested = f" on {count(view.samples[c], f'{view.split} {view.unit}')}" if view.samples else ""
        facts = f"Recall {recall:.1f} %{tested}. {count(view.counts[c], f'training {view.unit}')}: "
        facts += f"number {rank} of {len(view.names)} by frequency."
        pairs = [] if confusions is None else [(view.names[guess], share) for guess, share in confusions.of(c)]
        cards.append(ClassCard(view.names[c], view.group_of[c], facts, recall, pairs, images, title))
    if cards:
        return ClassCards(cards)
    errors = any(recall < 100 for recall in view.recalls[view.focus])
    return Prose(["All classes have the same recall." if errors else "There are no errors."])


def confusion_blocks(view: ClassView, confusions: Confusions, name: str, caption: str) -> list[Block]:
    """Return what the classes of the last (rarest) group are mistaken for, and folded the same for all others."""
    tail = list(view.groups)[-1]
    rest = [c for c in range(len(view.names)) if view.group_of[c] != tail]
    blocks: list[Block] = [_confusion_grid(view, confusions, view.groups[tail], name, caption)]
    if rest and len(view.names) <= 2000:
        blocks.append(Folded("All other classes", [_confusion_grid(view, confusions, rest, f"{name}-rest", caption)]))
    return blocks


def _confusion_grid(view: ClassView, confusions: Confusions, classes: Sequence[int], name: str, caption: str) -> Grid:
    columns = [Column("Class", numeric=False), Column("Group", numeric=False), Column("Recall, %")]
    columns += [Column(word, numeric=False) for word in ("Mistaken for", "Second", "Third")]
    about = f"Share of its {view.unit}s that were predicted as a class with more training {view.unit}s"
    columns += [Column("As a more frequent class, %", title=about)]
    rows = []
    for c in classes:
        found = confusions.of(c, most=len(view.names))
        shown = [f"{view.names[guess]} ({share:.0f} %)" for guess, share in found[:3]]
        upwards = sum(share for guess, share in found if view.counts[guess] > view.counts[c])
        cells = [*_words(view.names[c], view.group_of[c]), number(view.recalls[view.focus][c], bar=True)]
        cells += _words(*shown, *["–"] * (3 - len(shown)))
        cells += [number(upwards if confusions.samples(c) else math.nan, bar=True)]
        rows.append(cells)
    return Grid(name, "", columns, rows, caption, search="Search classes" if len(rows) > 12 else "")
