"""Cells of one data set as a part of a report, each with a title of its own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from longtail.study.comparisons import SAME_DATA
from longtail.study.figures.style import Mark, marks_of
from longtail.study.rendering import Table
from longtail.study.runs import HELD_WORDS, Cell, Held, Run, distinct_titles, held_out, ordered, same_settings
from longtail.study.stats import Summary, summarise
from longtail.train.recipe import Recipe

__all__ = ["Part", "or_lowest", "parts_of"]


@dataclass(frozen=True, eq=False)
class Part:
    """The methods that were run on one data set."""

    name: str
    cells: tuple[Cell, ...]
    """In the order of the tables."""
    titles: tuple[str, ...]
    """One a cell, all different."""

    @property
    def split(self) -> Held:
        """The data that results are told of: test data, or where no run has any, validation data."""
        return held_out(self.cells) or "test"

    @property
    def on(self) -> str:
        """The same in a word: ``test`` or ``validation``."""
        return HELD_WORDS[self.split].removesuffix(" data")

    @property
    def measured(self) -> bool:
        """Whether there is such data at all."""
        return held_out(self.cells) is not None

    def recall(self, cell: Cell, group: str = "all") -> Summary:
        """Recall over a cell's runs, in per cent."""
        return cell.summary(partial(Run.recall, group=group, part=self.split))

    def level(self, cell: Cell) -> Summary:
        """Model imbalance level over a cell's runs."""
        return cell.summary(partial(Run.level, part=self.split))

    def title(self, cell: Cell) -> str:
        """Its title in this part."""
        return self.titles[self.cells.index(cell)]

    @cached_property
    def best(self) -> Cell:
        """The cell with the highest recall over all classes."""
        return max(self.cells, key=lambda cell: or_lowest(self.recall(cell).mean))

    @cached_property
    def fairest(self) -> Cell | None:
        """The cell with the lowest model imbalance level; ``None`` where there are not two to compare."""
        levels = {cell: self.level(cell).mean for cell in self.cells}
        known = [cell for cell in self.cells if not math.isnan(levels[cell])]
        return min(known, key=lambda cell: levels[cell]) if len(known) > min(1, len(self.cells) - 1) else None

    @cached_property
    def marks(self) -> dict[str, Mark]:
        """How methods are drawn, in all figures of this part; the main ones are told apart best."""
        main = [self.title(cell) for cell in self.main()]
        return marks_of([*main, *(title for title in self.titles if title not in main)])

    def find(self, method: str) -> Cell | None:
        """The first cell of a method."""
        return next((cell for cell in self.cells if cell.method == method), None)

    def beside(self, cell: Cell, method: str) -> Cell | None:
        """The first cell of a method that was run with the settings of another."""
        alike = next(group for group in same_settings(self.cells) if cell in group)
        return next((one for one in alike if one.method == method), None)

    def main(self, most: int = 4) -> list[Cell]:
        """All cells where they are few; otherwise softmax, Balanced Softmax, the best and the fairest."""
        if len(self.cells) <= most:
            return list(self.cells)
        wanted = [self.find("softmax"), self.find("balanced-softmax"), self.best, self.fairest, *self.cells]
        kept = list(dict.fromkeys(cell for cell in wanted if cell is not None))[:most]
        return [cell for cell in self.cells if cell in kept]

    def shown(self, cells: Sequence[Cell]) -> str:
        """Which of the methods are shown, and why, as the end of a caption; empty where all are."""
        if len(cells) == len(self.cells):
            return ""
        why = {self.best: "the highest recall"}
        if self.fairest is not None:
            more = "the lowest imbalance level"
            why[self.fairest] = f"{why[self.best]} and {more}" if self.fairest is self.best else more
        listed = [f"{self.title(cell)} ({why[cell]})" for cell in why if cell in cells]
        others = [self.title(cell) for cell in cells if cell not in why]
        listed += [f"for comparison {' and '.join(others)}"] if others else []
        return f" {len(cells)} of {len(self.cells)} methods are shown: {', '.join(listed)}."

    @property
    def class_names(self) -> list[str]:
        """Of the classes."""
        return [str(name) for name in self.cells[0].runs[0].result["classes"]]

    @property
    def counts(self) -> list[int]:
        """Training images of each class, in the first run; NaN-free, 0 where it is not known."""
        result = self.cells[0].runs[0].result
        return list(result.get("counts") or [0] * len(self.class_names))

    @property
    def groups(self) -> dict[str, list[int]]:
        """Classes of the groups that have one."""
        return {name: list(members) for name, members in self.cells[0].runs[0].result["groups"].items() if members}

    def alone(self, table: Table) -> Table:
        """A table over this part's cells, which need not say what data they are of."""
        rows = tuple(replace(row, labels=row.labels[1:]) for row in table.rows)
        return replace(table, rows=rows, labels=table.labels[1:])


def or_lowest(value: float) -> float:
    """A value by which the highest is found; what is undefined is never it."""
    return -math.inf if math.isnan(value) else value


def parts_of(cells: Sequence[Cell]) -> list[Part]:
    """Cells by what they were trained and tested on; methods on different data are never put side by side."""
    found: dict[tuple[object, ...], list[Cell]] = {}
    for cell in ordered(cells):
        found.setdefault(tuple(getattr(cell.recipe, name) for name in SAME_DATA), []).append(cell)
    names = [group[0].data for group in found.values()]
    parts = []
    for name, group in zip(names, found.values(), strict=True):
        alike = [others[0].recipe for others, other in zip(found.values(), names, strict=True) if other == name]
        more = _differing(group[0].recipe, alike, [field for field in SAME_DATA if field != "imbalance"])
        parts.append(Part(name + more, tuple(group), tuple(distinct_titles(group))))
    return parts


def _differing(recipe: Recipe, alike: Sequence[Recipe], fields: Sequence[str]) -> str:
    """What tells a recipe from others that go by the same name."""
    different = [name for name in fields if len({repr(getattr(one, name)) for one in alike}) > 1]
    return "".join(f", {name} {value}" for name in different if (value := getattr(recipe, name)) not in {None, 0, ""})


def mean_of(cell: Cell, split: str, name: str) -> list[float]:
    """A measure of each class, as its mean over the cell's runs; NaN where a run has none."""
    rows = []
    for run in cell.runs:
        values = run.result["splits"].get(split, {}).get(name)
        if values is None:
            return []
        rows.append([math.nan if value is None else float(value) for value in values])
    return [summarise(column).mean for column in zip(*rows, strict=True)]
