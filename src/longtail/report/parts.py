"""The methods that were run on one data set, as a part of a report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from longtail.study.comparisons import SAME_DATA
from longtail.study.figures.style import Mark, marks_of
from longtail.study.rendering import Table
from longtail.study.runs import HELD_WORDS, Cell, Held, Run, distinct_titles, held_out, ordered, same_settings
from longtail.study.stats import Summary, summarise


@dataclass(frozen=True, eq=False)
class Part:
    """The methods that were run on one data set."""

    name: str
    cells: tuple[Cell, ...]
    """In the order of the tables."""
    titles: tuple[str, ...]
    """One per cell, all different."""

    @property
    def split(self) -> Held:
        """The split of the results: test, or validation if no run has test data."""
        return held_out(self.cells) or "test"

    @property
    def on(self) -> str:
        """The same as a word: ``test`` or ``validation``."""
        return HELD_WORDS[self.split].removesuffix(" data")

    @property
    def measured(self) -> bool:
        """Whether there is such data at all."""
        return held_out(self.cells) is not None

    def recall(self, cell: Cell, group: str = "all") -> Summary:
        """Return the recall over the runs of a cell, in per cent."""
        return cell.summary(partial(Run.recall, group=group, part=self.split))

    def level(self, cell: Cell) -> Summary:
        """Return the model imbalance level over the runs of a cell."""
        return cell.summary(partial(Run.level, part=self.split))

    def title(self, cell: Cell) -> str:
        """Return the title of a cell."""
        return self.titles[self.cells.index(cell)]

    def highest(self, group: str = "all") -> Cell:
        """Return the cell with the highest recall of a group; undefined values come last."""
        means = {cell: self.recall(cell, group).mean for cell in self.cells}
        return max(self.cells, key=lambda cell: -math.inf if math.isnan(means[cell]) else means[cell])

    @cached_property
    def best(self) -> Cell:
        """The cell with the highest recall over all classes."""
        return self.highest()

    @cached_property
    def lowest_level(self) -> Cell | None:
        """The cell with the lowest model imbalance level; ``None`` if fewer than two are defined."""
        levels = {cell: self.level(cell).mean for cell in self.cells}
        known = [cell for cell in self.cells if not math.isnan(levels[cell])]
        return min(known, key=lambda cell: levels[cell]) if len(known) > min(1, len(self.cells) - 1) else None

    @cached_property
    def marks(self) -> dict[str, Mark]:
        """How methods are drawn in all figures of this part; the main ones come first."""
        main = [self.title(cell) for cell in self.main()]
        return marks_of([*main, *(title for title in self.titles if title not in main)])

    def find(self, method: str) -> Cell | None:
        """Return the first cell of a method."""
        return next((cell for cell in self.cells if cell.method == method), None)

    def beside(self, cell: Cell, method: str) -> Cell | None:
        """Return the first cell of a method that was run with the same settings as ``cell``."""
        alike = next(group for group in same_settings(self.cells) if cell in group)
        return next((one for one in alike if one.method == method), None)

    def main(self, most: int = 4) -> list[Cell]:
        """Return all cells if they are few, otherwise softmax, Balanced Softmax, and those with the best values."""
        if len(self.cells) <= most:
            return list(self.cells)
        wanted = [self.find("softmax"), self.find("balanced-softmax"), self.best, self.lowest_level, *self.cells]
        kept = list(dict.fromkeys(cell for cell in wanted if cell is not None))[:most]
        return [cell for cell in self.cells if cell in kept]

    def shown(self, cells: Sequence[Cell]) -> str:
        """Return the end of a caption that says how many methods are shown; empty if all are."""
        if len(cells) == len(self.cells):
            return ""
        best = "highest recall" + ("" if self.lowest_level is None else " and the lowest imbalance level")
        return f" {len(cells)} of {len(self.cells)} methods are shown, with those of the {best}."

    @property
    def class_names(self) -> list[str]:
        """Names of the classes."""
        return [str(name) for name in self.cells[0].runs[0].result["classes"]]

    @property
    def counts(self) -> list[int]:
        """Training images per class in the first run; 0 if unknown."""
        return list(self.cells[0].runs[0].result.get("counts") or [0] * len(self.class_names))

    @property
    def groups(self) -> dict[str, list[int]]:
        """The classes of each group that has any."""
        return {name: list(members) for name, members in self.cells[0].runs[0].result["groups"].items() if members}

    def without_data(self, table: Table) -> Table:
        """Return a table without its first column, which names the data set."""
        rows = tuple(replace(row, labels=row.labels[1:]) for row in table.rows)
        return replace(table, rows=rows, labels=table.labels[1:])


def parts_of(cells: Sequence[Cell]) -> list[Part]:
    """Return cells by the data that they were trained and tested on; results on different data are never compared."""
    found: dict[tuple[object, ...], list[Cell]] = {}
    for cell in ordered(cells):
        found.setdefault(tuple(getattr(cell.recipe, name) for name in SAME_DATA), []).append(cell)
    parts = []
    for group in found.values():
        recipe, data = group[0].recipe, group[0].data
        alike = [others[0].recipe for others in found.values() if others[0].data == data]
        values = {name: getattr(recipe, name) for name in SAME_DATA if name != "imbalance"}
        more = [
            f", {name} {value}"
            for name, value in values.items()
            if value not in {None, 0, ""} and len({getattr(one, name) for one in alike}) > 1
        ]
        parts.append(Part(data + "".join(more), tuple(group), tuple(distinct_titles(group))))
    return parts


def mean_of(cell: Cell, split: str, name: str) -> list[float]:
    """Return a measure of each class as its mean over the runs of a cell; empty if a run does not have it."""
    rows = []
    for run in cell.runs:
        values = run.result["splits"].get(split, {}).get(name)
        if values is None:
            return []
        rows.append([math.nan if value is None else float(value) for value in values])
    return [summarise(column).mean for column in zip(*rows, strict=True)]
