"""Significance tests of methods against a reference, each with a plain sentence."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from longtail.study.captions import count, numbers, some_of
from longtail.study.runs import Cell, Measure, Run, distinct_titles, find_cell, method_title, same_settings
from longtail.study.stats import Alternative, Comparison, compare, holm, sentence

SAME_DATA = ("data", "imbalance", "profile", "subset_seed", "validation", "folds", "fold")
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
    why_not: str
    """Why there was no test."""
    better: Literal["higher", "lower"]
    note: str
    """Which runs are paired, if not all are."""
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
            return f"{self.title} is {apart} {self.against}: {self.why_not}, so no test."
        return sentence(
            self.title, self.against, self.found, corrected=self.corrected, better=self.better, note=self.note
        )


def compare_cells(
    cells: Sequence[Cell],
    reference: Cell,
    measure: Measure = Run.recall,
    *,
    alternative: Alternative = "two-sided",
    better: Literal["higher", "lower"] = "higher",
    titles: Mapping[Cell, str] | None = None,
) -> list[Contrast]:
    """Compare cells with a reference.

    Runs of the same seed share draws and subset, and are paired. If the seeds differ but three or more are in both,
    these are paired, and the other runs are left out of the test. With fewer shared seeds a paired test has hardly any
    power, and Welch's test of all runs is used.

    Args:
        cells: the methods; the reference itself is skipped.
        reference: what they are compared with.
        measure: what is compared.
        alternative: ``"two-sided"``, or ``"greater"``, one-sided as in the paper.
        better: whether higher or lower values are better.
        titles: the names of cells; default: the method and its beta.

    Returns:
        one contrast per cell, with p-values after Holm's correction if two or more were tested.
    """
    others, names = [cell for cell in cells if cell is not reference], titles or {}
    found = [_test(cell, reference, measure, alternative) for cell in others]
    tested = [comparison for comparison, _, _ in found if comparison is not None]
    corrected = iter(holm([comparison.p_value for comparison in tested]) if len(tested) > 1 else [])
    return [
        Contrast(
            cell=cell,
            reference=reference,
            difference=cell.summary(measure).mean - reference.summary(measure).mean,
            found=comparison,
            corrected=next(corrected, None) if comparison is not None else None,
            why_not=why_not,
            better=better,
            note=note,
            title=names.get(cell, cell.title),
            against=names.get(reference, reference.title),
        )
        for cell, (comparison, why_not, note) in zip(others, found, strict=True)
    ]


def _test(
    cell: Cell, reference: Cell, measure: Measure, alternative: Alternative
) -> tuple[Comparison | None, str, str]:
    """The test, why there is none, and which runs are paired if not all are."""
    first, second = cell.recipe.settings(), reference.recipe.settings()
    for name in SAME_DATA:
        if first[name] != second[name]:
            raise ValueError(
                f"Expected compared methods to have the same data, but {cell.runs[0].path} and "
                f"{reference.runs[0].path} differ in `{name}` ({first[name]} and {second[name]})."
            )
    ours, theirs = (dict(zip(one.places, one.values(measure), strict=True)) for one in (cell, reference))
    if min(len(ours), len(theirs)) < 2:
        return None, "fewer than two seeds", ""
    both = [place for place in ours if place in theirs]
    left = len(ours) + len(theirs) - 2 * len(both)
    pair = not left or len(both) >= PAIRS
    note = ""
    if left and pair:
        which = f"seeds {numbers([seed for seed, _ in both])}"
        which = f"{len(both)} seeds and folds" if any(fold for _, fold in both) else which
        note = f"paired on {which}; {count(left, 'run')} not paired"
    elif left:
        note = _NOT_PAIRED
    values = [[one[place] for place in both] if pair else list(one.values()) for one in (ours, theirs)]
    if not all(math.isfinite(value) for one in values for value in one):
        return None, "a value is undefined", ""
    found = compare(*values, paired=pair, alternative=alternative)
    if math.isnan(found.p_value):
        return None, "the difference is the same in every seed" if pair else "neither differs between its seeds", ""
    return found, "", note


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

    def __str__(self) -> str:
        return "\n".join([*(f"{one.cell.data}: {one}" for one in self.contrasts), *self.without])


def contrasts_of(
    cells: Sequence[Cell],
    reference: Reference,
    measure: Measure = Run.recall,
    *,
    alternative: Alternative = "two-sided",
    better: Literal["higher", "lower"] = "higher",
) -> Contrasts:
    """Test the cells of one data set against a method.

    Cells with different settings, such as the epochs, have separate references and separate Holm corrections.
    """
    titles = dict(zip(cells, distinct_titles(cells), strict=True))
    contrasts: list[Contrast] = []
    without: list[tuple[str, list[Cell]]] = []
    for alike in same_settings(cells):
        method = reference if isinstance(reference, str) else reference(alike)
        against = find_cell(alike, method)
        if against is None:
            without.append((method_title(method), alike))
        else:
            contrasts += compare_cells(alike, against, measure, alternative=alternative, better=better, titles=titles)
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
    return " or ".join(dict.fromkeys(one.why_not for one in contrasts if one.why_not))
