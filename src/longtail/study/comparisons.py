"""Significance tests of methods against a reference, each with a plain sentence."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from longtail._program import count, some_of
from longtail.study.captions import numbers
from longtail.study.runs import Cell, Measure, Run, distinct_titles, find_cell, method_title, same_settings
from longtail.study.stats import Comparison, compare, holm, sentence
from longtail.train.recipe import OPENING

SAME_DATA = (
    *("data", *OPENING, "test", "test_seed", "imbalance", "profile", "subset_seed"),
    *("validation", "folds", "fold", "groups"),
)
"""Settings in which compared methods must agree."""

PAIRS = 3
"""Shared seeds that a paired test needs if not all seeds are shared."""
_NOT_PAIRED = "fewer than three seeds in common"

Reference = str | Callable[[Sequence[Cell]], str]
"""The method that others are tested against, or a function that returns it for cells."""


@dataclass(frozen=True, eq=False)
class Contrast:
    """A method against a reference."""

    cell: Cell
    reference: Cell
    difference: float
    """Between the means of all runs; ``found`` has the difference between the runs that were tested."""
    found: Comparison | None
    """``None`` if there was no test: fewer than two seeds, an undefined value, or no spread."""
    corrected: float | None
    """The p-value after Holm's correction, if several methods were compared."""
    note: str
    """Why there was no test, or which runs are paired if not all are."""
    title: str
    """The name of the method."""
    against: str
    """The name of the reference."""

    @property
    def p_value(self) -> float:
        """The p-value that decides; NaN without a test."""
        if self.found is None:
            return math.nan
        return self.found.p_value if self.corrected is None else self.corrected

    def __str__(self) -> str:
        if self.found is None:
            side = "above" if self.difference > 0 else "below"
            apart = f"{abs(self.difference):.1f} points {side}" if self.difference else "equal to"
            apart = apart if math.isfinite(self.difference) else "not compared with"
            return f"{self.title} is {apart} {self.against}: {self.note}, so no test."
        return sentence(self.title, self.against, self.found, corrected=self.corrected, note=self.note)


@dataclass(frozen=True, eq=False)
class Contrasts:
    """Methods, each tested against the reference that was run with the same settings on the same data."""

    contrasts: tuple[Contrast, ...]
    without: tuple[str, ...]
    """What was not tested because the reference was not run, one sentence each."""

    def __iter__(self) -> Iterator[Contrast]:
        return iter(self.contrasts)

    def __len__(self) -> int:
        return len(self.contrasts)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return "\n".join([*(f"{one.cell.data}: {one}" for one in self.contrasts), *self.without])


def contrasts_of(cells: Sequence[Cell], reference: Reference, measure: Measure = Run.recall) -> Contrasts:
    """Test the cells of one data set against a method; see :meth:`Results.compare <longtail.study.Results.compare>`.

    Runs of the same seed share draws and subset, and are paired. If the seeds differ but three or more are in both,
    these are paired, and the other runs are left out of the test. With fewer shared seeds a paired test has hardly any
    power, and Welch's test of all runs is used. Cells with different settings, such as the epochs, have separate
    references and separate Holm corrections.
    """
    titles = dict(zip(cells, distinct_titles(cells), strict=True))
    contrasts: list[Contrast] = []
    without: list[tuple[str, list[Cell]]] = []
    for alike in same_settings(cells):
        method = reference if isinstance(reference, str) else reference(alike)
        against = find_cell(alike, method)
        if against is None:
            without.append((method_title(method), alike))
            continue
        contrasts += contrasts_with(against, [cell for cell in alike if cell is not against], measure, titles)
    if sum(len(alike) for _, alike in without) == len(cells):
        names = " or ".join(dict.fromkeys(name for name, _ in without))
        notes = [f"{cells[0].data}: not tested, {names} was not run."] if len(cells) > 1 else []
    else:
        notes = [
            f"{some_of([titles[cell] for cell in alike])} on {alike[0].data}: not tested, {name} was not run with "
            "these settings."
            for name, alike in without
        ]
    return Contrasts(tuple(contrasts), tuple(notes))


def contrasts_with(
    against: Cell, cells: Sequence[Cell], measure: Measure, titles: Mapping[Cell, str]
) -> list[Contrast]:
    """Test cells against another cell, with Holm's correction over the cells."""
    found = [_test(cell, against, measure, titles) for cell in cells]
    p_values = [one.p_value for one in found]
    if sum(map(math.isfinite, p_values)) < 2:
        return found
    corrected = [None if math.isnan(p_value) else p_value for p_value in holm(p_values)]
    return [replace(one, corrected=p_value) for one, p_value in zip(found, corrected, strict=True)]


def _test(cell: Cell, reference: Cell, measure: Measure, titles: Mapping[Cell, str]) -> Contrast:
    ours, theirs = (dict(zip(one.places, one.values(measure), strict=True)) for one in (cell, reference))
    both = [place for place in ours if place in theirs]
    left = len(ours) + len(theirs) - 2 * len(both)
    pair = not left or len(both) >= PAIRS
    values = [[one[place] for place in both] if pair else list(one.values()) for one in (ours, theirs)]
    found, note = None, ""
    if min(len(ours), len(theirs)) < 2:
        note = "fewer than two seeds"
    elif not all(math.isfinite(value) for one in values for value in one):
        note = "a value is undefined"
    else:
        found = compare(*values, paired=pair)
    if found is not None and math.isnan(found.p_value):
        found, note = None, "the difference is the same in every seed" if pair else "neither differs between its seeds"
    elif found is not None and left:
        which = f"seeds {numbers([seed for seed, _ in both])}"
        which = f"{len(both)} seeds and folds" if any(fold for _, fold in both) else which
        note = f"paired on {which}; {count(left, 'run')} not paired" if pair else _NOT_PAIRED
    difference = cell.summary(measure).mean - reference.summary(measure).mean
    return Contrast(cell, reference, difference, found, None, note, titles[cell], titles[reference])


def check_reference(reference: str, cells: Sequence[Cell]) -> None:
    """Raise an error if a reference was not run."""
    if find_cell(cells, reference) is None:
        run = dict.fromkeys(cell.method for cell in cells)
        raise ValueError(f"Expected `reference` to be a method that was run ({', '.join(run)}), but got {reference!r}.")


def stars(p_value: float) -> str:
    """Return the stars of a test for a table: p below 0.05, 0.01, 0.001."""
    return "".join("*" for bound in (0.05, 0.01, 0.001) if p_value < bound)


def how_tested(contrasts: Sequence[Contrast]) -> str:
    """Return what a caption says about the tests of a table."""
    found = [(one, one.found) for one in contrasts if one.found is not None]
    if not found:
        return f"No tests: {_reasons(contrasts)}."
    kinds = sorted((test for _, test in found), key=lambda test: not test.paired)
    against = " or ".join(dict.fromkeys(one.against for one, _ in found))
    text = f"* p < 0.05, ** p < 0.01, *** p < 0.001 against {against} ({kinds[0].test}"
    if kinds[0].paired and not kinds[-1].paired:
        text += f", or Welch’s with {_NOT_PAIRED}"
    if any(one.corrected is not None for one, _ in found):
        references = {one.reference for one, _ in found}
        of = "data set" if len(references) == len({cell.data for cell in references}) else "data set and setting"
        text += f", after Holm’s correction over the methods of a {of} in each column"
    parts = [f"{text})"]
    partly_paired: dict[str, dict[str, None]] = {}
    for one, test in found:
        if test.paired and one.note:
            partly_paired.setdefault(one.note, {})[one.title] = None
    parts += [f"{', '.join(titles)}: {note}" for note, titles in partly_paired.items()]
    rows = {one.cell for one, _ in found}
    for missing, where in (
        ([one for one in contrasts if one.cell not in rows], ""),
        ([one for one in contrasts if one.cell in rows and one.found is None], " in some columns"),
    ):
        if missing:
            parts.append(f"{count(len({one.cell for one in missing}), 'row')} not tested{where} ({_reasons(missing)})")
    return "; ".join(parts) + "."


def _reasons(contrasts: Sequence[Contrast]) -> str:
    """Why there were no tests, each reason once."""
    return " or ".join(dict.fromkeys(one.note for one in contrasts if one.found is None))
