"""The results of all methods on one data set, in numbers and sentences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean

import numpy as np

from longtail._program import count, some_of
from longtail.classes import describe_groups
from longtail.methods import METHODS, default_reference
from longtail.study.captions import Recorded, measured_on
from longtail.study.comparisons import SAME_DATA, contrasts_of, how_tested
from longtail.study.decision import Decision, decide
from longtail.study.figures.style import Mark, marks_of
from longtail.study.runs import (
    HELD_WORDS,
    Cell,
    Held,
    Run,
    distinct_titles,
    find_cell,
    held_out,
    ordered,
    same_settings,
)
from longtail.study.stats import SIGNIFICANT, Summary


@dataclass(frozen=True, eq=False)
class DataResults:
    """The results of all methods on one data set."""

    name: str
    titles: Mapping[Cell, str]
    """The title of each cell, all different, in the order of the tables."""
    record: Recorded
    """How the methods are compared, and how beta was chosen."""

    @property
    def cells(self) -> list[Cell]:
        """The runs of each method."""
        return list(self.titles)

    @property
    def measured(self) -> bool:
        """Whether there is test or validation data."""
        return held_out(self.cells) is not None

    @property
    def split(self) -> Held:
        """The split of the results: test, or validation if no run has test data."""
        return held_out(self.cells) or "test"

    @property
    def on(self) -> str:
        """The split as a word: ``test`` or ``validation``."""
        return HELD_WORDS[self.split].removesuffix(" data")

    @property
    def reference(self) -> str:
        """The method that others are tested against."""
        return self.record.reference(self.cells)

    def warning(self) -> str:
        """Return how beta was chosen, for a caption, if that was on test data and a method has a beta."""
        has_beta = any(cell.beta is not None for cell in self.cells)
        return f" {self.record.selected(self.cells)}." if has_beta and self.record.on_test(self.cells) else ""

    def recall(self, cell: Cell, group: str = "all") -> Summary:
        """Return the recall over the runs of a cell, in per cent."""
        return cell.summary(partial(Run.recall, group=group, part=self.split))

    def level(self, cell: Cell) -> Summary:
        """Return the model imbalance level over the runs of a cell."""
        return cell.summary(partial(Run.level, part=self.split))

    @cached_property
    def decision(self) -> Decision:
        """Which method to use, and why."""
        return decide(self.cells, self.record.reference)

    @cached_property
    def best(self) -> Cell:
        """The cell to use; if none is recommended, the one with the highest recall over all classes."""
        means = {cell: self.recall(cell).mean for cell in self.cells}
        highest = max(self.cells, key=lambda cell: -math.inf if math.isnan(means[cell]) else means[cell])
        return self.decision.cell or highest

    @cached_property
    def lowest_level(self) -> Cell | None:
        """The cell with the lowest model imbalance level; ``None`` if there are several but fewer than two levels.

        A model that is underfitted may treat all groups equally badly, so it is left out.
        """
        levels = {cell: self.level(cell).mean for cell in self.cells}
        known = [cell for cell in self.cells if not math.isnan(levels[cell]) and not cell.underfitted]
        return min(known, key=lambda cell: levels[cell]) if len(known) > min(1, len(self.cells) - 1) else None

    @cached_property
    def baseline(self) -> Cell | None:
        """The first registered method or else the reference, with the settings of the best; ``None`` if it is best."""
        alike = next(cells for cells in same_settings(self.cells) if self.best in cells)
        found = find_cell(alike, next(iter(METHODS))) or find_cell(alike, self.reference)
        return None if found is self.best else found

    @cached_property
    def main(self) -> list[Cell]:
        """Up to four cells for figures: the baseline, the reference, those with the best values, then the others."""
        wanted = [self.baseline, find_cell(self.cells, self.reference), self.best, self.lowest_level, *self.cells]
        kept = list(dict.fromkeys(cell for cell in wanted if cell is not None))[:4]
        return [cell for cell in self.cells if cell in kept]

    @cached_property
    def marks(self) -> dict[str, Mark]:
        """How methods are drawn in all figures; the main ones come first."""
        return marks_of([self.titles[cell] for cell in dict.fromkeys([*self.main, *self.cells])])

    def shown(self, cells: Sequence[Cell]) -> str:
        """Return the end of a caption that says how many methods are shown; empty if all are."""
        if len(cells) == len(self.cells):
            return ""
        return f" {len(cells)} of {len(self.cells)} methods are shown, {self.titles[self.best]} among them."

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


def split_by_data(cells: Sequence[Cell], record: Recorded | None = None) -> list[DataResults]:
    """Return cells by the data that they were trained and tested on; results on different data are never compared."""
    found: dict[tuple[object, ...], list[Cell]] = {}
    for cell in ordered(cells):
        found.setdefault(tuple(getattr(cell.recipe, name) for name in SAME_DATA), []).append(cell)
    record = record or Recorded(default_reference(cell.method for cell in cells))
    results = []
    for same in found.values():
        recipe, data = same[0].recipe, same[0].data
        alike = [others[0].recipe for others in found.values() if others[0].data == data]
        values = {name: getattr(recipe, name) for name in SAME_DATA if name != "imbalance"}
        name = data + "".join(
            f", {name} {value}"
            for name, value in values.items()
            if value not in {None, 0, ""} and len({getattr(one, name) for one in alike}) > 1
        )
        results.append(DataResults(name, dict(zip(same, distinct_titles(same), strict=True)), record))
    return results


def mean_per_class(cell: Cell, split: str, name: str) -> list[float]:
    """Return a measure of each class as its mean over the runs of a cell; empty if a run does not have it."""
    rows = [run.result["splits"].get(split, {}).get(name) for run in cell.runs]
    return [] if any(row is None for row in rows) else mean_over_runs(rows)


def mean_over_runs(rows: Sequence[Sequence[float | None]]) -> list[float]:
    """Return the mean of each column; NaN if a value is missing."""
    return list(map(float, np.array(rows, dtype=np.float64).mean(0)))


def headline_cards(results: DataResults) -> list[tuple[str, str, str]]:
    """Return the most important numbers of the method to use on one data set, each with its name and a note."""
    if not results.measured:
        return []
    best, names = results.best, list(results.groups)
    title, on = results.titles[best], f"{results.on} data"
    title += " (no recommendation)" if results.decision.cell is None else ""
    found = []
    for group in dict.fromkeys(("all", names[-1])) if len(names) > 1 else ("all",):
        of = "over all classes" if group == "all" else f"of the {group}"
        found.append((f"{_text(results.recall(best, group))} %", f"Recall {of}, {on}", title))
    found.append((_text(results.level(best)), "Imbalance level I (0: groups equal)", title))
    if results.baseline is not None and len(names) > 1:
        note = f"{title} compared with {results.titles[results.baseline]}, {on}"
        for group in (names[-1], names[0]):
            found.append((f"{_gain(results, group):+.1f} points", f"Change in {group} recall", note))
    return [card for card in found if "nan" not in card[0]]


def _gain(results: DataResults, group: str) -> float:
    """Return the mean difference in recall of the best method from the baseline, over the seeds that both have."""
    assert results.baseline is not None
    recall = partial(Run.recall, group=group, part=results.split)
    pair = results.best, results.baseline
    best, baseline = (dict(zip(one.places, one.values(recall), strict=True)) for one in pair)
    both = [best[place] - baseline[place] for place in best.keys() & baseline.keys()]
    return fmean(both) if both else math.nan


def facts(results: DataResults) -> str:
    """Return what the data is, what the groups are, and what was run on it."""
    counts, methods, first = results.counts, {cell.method for cell in results.cells}, results.cells[0].runs[0]
    text = f"The data has {count(len(results.class_names), 'class')}"
    if any(counts):
        text += f" and {sum(counts):,} training samples: {max(counts):,} in the most frequent class, "
        text += f"{min(counts):,} in the rarest. Groups: {describe_groups(results.groups, counts)}"
        text += f" ({made})" if (made := first.result.get("groups_from")) else ""
    variants = f" in {len(results.cells)} variants" if len(results.cells) > len(methods) else ""
    runs = count(sum(len(cell.runs) for cell in results.cells), "run")
    return f"{text}. {count(len(methods), 'method')}{variants}, {runs}."


def comparisons(results: DataResults, most: int = 5) -> list[str]:
    """Return the tests of all methods against the reference; of many, the significant ones and the number of others."""
    if not results.measured:
        return []
    tested = contrasts_of(results.cells, results.record.reference, partial(Run.recall, part=results.split))
    found = [one for one in tested.contrasts if one.found is not None]
    if not found:
        return [*([how_tested(tested.contrasts)] if tested.contrasts else []), *tested.without]
    shown = found if len(found) <= most else [one for one in found if one.p_value < SIGNIFICANT][:most]
    lines, rest = [*map(str, shown)], [one for one in found if one not in shown]
    if rest:
        against = " or ".join(dict.fromkeys(one.against for one in rest))
        clear = sum(one.p_value < SIGNIFICANT for one in rest)
        lines.append(f"Of the other {len(rest)} rows, {clear} differ significantly from {against}; see the table.")
    return [*lines, *tested.without]


def limits(all_results: Sequence[DataResults], record: Recorded, unfinished: Sequence[str]) -> list[str]:
    """Return what a reader must know before trusting the numbers."""
    cells = [cell for results in all_results for cell in results.cells]
    measured = [results for results in all_results if results.measured]
    found = [f"{record.missing}."] if record.missing else []
    once = sum(len(cell.runs) == 1 for cell in cells)
    if once:
        found.append(f"{once} of {len(cells)} rows have only one run: no SD, no test, and differences may be chance.")
    on = dict.fromkeys(results.on for results in measured if len(results.cells) > 1)
    if on:
        where = " and ".join(on)
        found.append(f"Methods are compared on {where} data, so the recall of the chosen one is a bit too high.")
    tested = [cell for results in measured if results.split == "test" for cell in results.cells]
    if any(len(cell.runs) > 1 and cell.recipe.test_seed != "run" for cell in tested):
        found.append("SDs, intervals and tests cover the choice of the seed, not that of the test data.")
    for results in measured:
        partly = [cell for cell in results.cells if cell.predicts and not cell.underfitted]
        if partly:
            never = some_of([f"{results.titles[cell]} {cell.predicts}" for cell in partly], 5)
            found.append(f"Some classes are never predicted on {measured_on(results.cells)}: {never}.")
    untested = [results.name for results in measured if results.split == "val"]
    if untested:
        found.append(f"There is no test data for {some_of(untested)}: the results are on validation data.")
    selected = record.selected(cells)
    if selected:
        found.append(f"{selected}.")
    for word, names in (("unfinished", unfinished), ("failed", record.failed)):
        if names:
            found.append(f"{count(len(names), f'{word} run')} left out: {some_of(names)}.")
    undefined: dict[str, list[str]] = {}
    for results in measured:
        for cell, title in results.titles.items():
            for why in dict.fromkeys(run.why_no_level(results.split) for run in cell.runs):
                undefined.setdefault(why, []).append(f"{title} on {results.name}")
    found += [f"The imbalance level is undefined for {some_of(of)}: {why}." for why, of in undefined.items() if why]
    return found


def _text(summary: Summary) -> str:
    return f"{summary.mean:.1f}" + ("" if math.isnan(summary.sd) else f" ± {summary.sd:.1f}")
