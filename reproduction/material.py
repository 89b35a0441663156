"""The runs of a page, sorted: the paper's three methods, the balanced model, other methods, other data sets."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longtail.study.runs import Cell, Run, by_data, find_cell, group_runs, ordered
from longtail.study.search import SearchResult
from longtail.train.recipe import defaults
from reproduction import paper
from reproduction.balanced import is_balanced
from reproduction.standing import Standing, all_runs

__all__ = ["MAIN", "Material", "material_of"]

MAIN = ("softmax", "balanced-softmax", "cbs")
"""The methods of the paper's CIFAR table; softmax is in its figures."""


@dataclass(frozen=True, eq=False)
class Material:
    """What a page is about."""

    main: tuple[Cell, ...]
    """Plans' runs of the three methods on the paper's data sets."""
    others: dict[str, list[Cell]]
    """All methods on the paper's data sets where there are more than those three."""
    balanced: tuple[Cell, ...]
    rest: tuple[Cell, ...]
    """On data sets that the paper does not have."""
    searches: tuple[SearchResult, ...]
    planned: frozenset[Path]
    """The plans' runs; what else is there comes from no plan."""

    def is_planned(self, cell: Cell) -> bool:
        """Whether any of a cell's runs is a plan's."""
        return any(run.path in self.planned for run in cell.runs)

    def roles(self, data: str) -> dict[str, Cell]:
        """The main cells of a data set under titles that are the same on all: CBS by how its beta was found."""
        cells = self.main_data[data]
        searched = {one.beta for one in self.searches if one.cells[0].data == data}
        found = {cell.title: cell for cell in cells if cell.method != "cbs"}
        for title, betas in (("CBS, the authors’ β", {paper.beta(data)}), ("CBS, β searched", searched)):
            cell = next((one for one in cells if one.method == "cbs" and one.recipe.beta in betas), None)
            found |= {} if cell is None else {title: cell}
        return found

    @property
    def main_data(self) -> dict[str, list[Cell]]:
        """The main cells of each data set."""
        return by_data(self.main)

    def authors_cbs(self, data: str) -> Cell | None:
        """CBS with the authors' beta; with another where that was not run."""
        cells = [cell for cell in self.main_data.get(data, []) if cell.method == "cbs"]
        return next((cell for cell in cells if cell.recipe.beta == paper.beta(data)), find_cell(cells, "cbs"))

    def selected(self, cells: Sequence[Cell]) -> str:
        """How betas were chosen, for captions."""
        data = {cell.data for cell in cells if cell.recipe.beta is not None}
        theirs = [f"{name} {beta:g}" for name in by_data(cells) if name in data and (beta := paper.beta(name))]
        parts = [f"the authors’ β: {', '.join(theirs)}"] if theirs else []
        usual = dict.fromkeys(f"{cell.data} {cell.recipe.beta:g}" for cell in ordered(cells) if _is_usual(cell))
        parts += [f"β of the data set's recipe: {', '.join(usual)}"] if usual else []
        of_data = [one for one in self.searches if one.cells[0].data in data]
        if of_data:
            betas = ", ".join(f"{one.cells[0].data} {one.beta:g}" for one in of_data)
            parts.append(f"{of_data[0].selected}: {betas}")
        return "; ".join(parts)


def material_of(standings: Sequence[Standing]) -> Material:
    """Sort what is there."""
    planned = [run for one in standings for run in one.runs]
    everything = all_runs(standings)
    others = {
        data: cells
        for data, cells in by_data(group_runs(run for run in everything if _known(run))).items()
        if any(cell.method not in MAIN for cell in cells)
    }
    return Material(
        tuple(ordered(group_runs(run for run in planned if _known(run) and run.method in MAIN))),
        others,
        tuple(ordered(group_runs(run for run in everything if is_balanced(run.recipe)))),
        tuple(ordered(group_runs(run for run in planned if not _known(run) and not is_balanced(run.recipe)))),
        tuple(one.found[place] for one in standings for place in one.plan.searches if place in one.found),
        frozenset(run.path for run in planned),
    )


def _is_usual(cell: Cell) -> bool:
    """Whether a cell's beta is that of its data set's recipe, and not the authors'."""
    recipe = cell.recipe
    if recipe.beta is None or paper.beta(cell.data) is not None:
        return False
    return bool(recipe.beta == defaults(recipe.data, "cbs", recipe.imbalance).beta)


def _known(run: Run) -> bool:
    """Whether the paper has the data set, long-tailed."""
    return bool(paper.imbalance_level(run.data))
