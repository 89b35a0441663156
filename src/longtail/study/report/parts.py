"""Cells of one data set as a part of a report, each with a title of its own."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial

from longtail.study.balanced import balanced_of, balanced_probability
from longtail.study.comparisons import SAME_DATA
from longtail.study.figures.style import Mark, marks_of
from longtail.study.runs import Cell, Run, ordered
from longtail.study.stats import Summary, summarise
from longtail.study.table import Table
from longtail.train.recipe import HOUSEKEEPING, Recipe

__all__ = ["Part", "parts_of"]

_NAMED = {"data", "imbalance", "method", "balance", "beta", "seed"} | HOUSEKEEPING
"""Settings that a title has already, or that make no difference."""


@dataclass(frozen=True, eq=False)
class Part:
    """The methods that were run on one data set."""

    name: str
    cells: tuple[Cell, ...]
    """In the order of the tables."""
    titles: tuple[str, ...]
    """One a cell, all different."""
    balanced: tuple[float, ...] = ()
    """p(y=c) of a model trained on all of the data, on these training images; empty where there is no such model."""

    def recall(self, cell: Cell, group: str = "all") -> Summary:
        """Test recall over a cell's runs, in per cent."""
        return cell.summary(partial(Run.recall, group=group))

    def title(self, cell: Cell) -> str:
        """Its title in this part."""
        return self.titles[self.cells.index(cell)]

    @cached_property
    def best(self) -> Cell:
        """The cell with the highest test recall over all classes."""
        return max(self.cells, key=lambda cell: _or_lowest(self.recall(cell).mean))

    @cached_property
    def fairest(self) -> Cell | None:
        """The cell with the lowest model imbalance level; ``None`` where there are not two to compare."""
        levels = {cell: cell.summary(Run.level).mean for cell in self.cells}
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

    def main(self, most: int = 4) -> list[Cell]:
        """All cells where they are few; otherwise softmax, Balanced Softmax, the best and the fairest."""
        if len(self.cells) <= most:
            return list(self.cells)
        wanted = [self.find("softmax"), self.find("balanced-softmax"), self.best, self.fairest, *self.cells]
        kept = list(dict.fromkeys(cell for cell in wanted if cell is not None))[:most]
        return [cell for cell in self.cells if cell in kept]

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

    def retitled(self, table: Table) -> Table:
        """A table over this part's cells, with the titles that tell them apart."""
        titles, rows = iter(self.titles), []
        for row in table.rows:
            rows.append(replace(row, labels=(self.name, next(titles))) if row.source == "here" else row)
        return replace(table, rows=tuple(replace(row, labels=row.labels[1:]) for row in rows), labels=table.labels[1:])


def _or_lowest(value: float) -> float:
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
        model = balanced_of(group[0].recipe, cells)
        balanced = () if model is None else tuple(balanced_probability(model, name))
        parts.append(Part(name + more, tuple(group), _titles(group), balanced))
    return parts


def _titles(cells: Sequence[Cell]) -> tuple[str, ...]:
    given = [cell.title for cell in cells]
    fields = [name for name in asdict(cells[0].recipe) if name not in _NAMED]
    found: list[str] = []
    for cell, title in zip(cells, given, strict=True):
        alike = [other.recipe for other, name in zip(cells, given, strict=True) if name == title]
        full = title + _differing(cell.recipe, alike, fields)
        same = sum(one == full or one.startswith(f"{full}, no. ") for one in found)
        found.append(f"{full}, no. {same + 1}" if same else full)
    return tuple(found)


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
