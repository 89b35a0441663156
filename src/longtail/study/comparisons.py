"""Methods of one study against each other, or against one of them, each with a plain sentence."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from longtail.study.captions import numbers, some_of
from longtail.study.runs import Cell, Measure, Run, check_same, distinct_titles, method_title, same_settings
from longtail.study.stats import Alternative, Comparison, compare, holm, sentence

__all__ = [
    "PAIRS",
    "SAME_DATA",
    "Contrast",
    "Contrasts",
    "Reference",
    "check_reference",
    "compare_cells",
    "contrasts_of",
    "how_tested",
    "marks",
]

SAME_DATA = ("data", "imbalance", "profile", "subset_seed", "validation", "folds", "fold")
"""Settings in which compared methods must agree."""

PAIRS = 3
"""Seeds that must be shared where not all are."""
_NOT_PAIRED = "fewer than three seeds in common"

Reference = str | Callable[[Sequence[Cell]], str]
"""The method that others are tested against; or what gives that of any cells, such as their study's."""


@dataclass(frozen=True, eq=False)
class Contrast:
    """A cell against a reference."""

    cell: Cell
    reference: Cell
    difference: float
    """Of the means of all runs; ``found`` has that of the runs that were tested."""
    found: Comparison | None
    """``None`` where there was no test: fewer than two seeds, an undefined value, or no spread."""
    corrected: float | None
    """After Holm's correction, where several were compared."""
    why_not: str
    """Why there was no test."""
    better: Literal["higher", "lower"]
    note: str
    """Which runs are paired, where not all are."""
    title: str
    """What the cell is called."""
    against: str
    """What the reference is called."""

    @property
    def p_value(self) -> float:
        """The one that decides; NaN without a test."""
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

    Runs of the same seed share draws and subset, and are paired. Where the seeds are not the same but three or more are
    in both, these are paired, and the other runs are left out of the test; with fewer a paired test could tell hardly
    anything apart, and it is Welch's, of all runs.

    Args:
        cells: the methods; the reference itself is left out.
        reference: what they are compared with.
        measure: what is compared.
        alternative: ``"two-sided"``, or ``"greater"``, one-sided as in the paper.
        better: whether higher or lower values are better, for the words.
        titles: what cells are called; default: the method and its beta.

    Returns:
        one a cell, with p-values after Holm's correction where two or more were tested.
    """
    others = [cell for cell in cells if cell is not reference]
    called = titles or {}
    found = []
    for cell in others:
        check_same([reference, cell], SAME_DATA, "compared methods to have")
        found.append(_test(cell, reference, measure, alternative))
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
            title=called.get(cell, cell.title),
            against=called.get(reference, reference.title),
        )
        for cell, (comparison, why_not, note) in zip(others, found, strict=True)
    ]


def _test(
    cell: Cell, reference: Cell, measure: Measure, alternative: Alternative
) -> tuple[Comparison | None, str, str]:
    """The test, why there is none, and which runs are paired where not all are."""
    ours, theirs = (dict(zip(one.places, one.values(measure), strict=True)) for one in (cell, reference))
    if min(len(ours), len(theirs)) < 2:
        return None, "fewer than two seeds", ""
    both = [place for place in ours if place in theirs]
    left = len(ours) + len(theirs) - 2 * len(both)
    pair = not left or len(both) >= PAIRS
    note = "" if not left else _paired_on(both, left) if pair else _NOT_PAIRED
    first, second = ([one[place] for place in both] if pair else list(one.values()) for one in (ours, theirs))
    if not all(map(math.isfinite, [*first, *second])):
        return None, "a value is undefined", ""
    found = compare(first, second, paired=pair, alternative=alternative)
    if math.isnan(found.p_value):
        return None, "the difference is the same in every seed" if pair else "neither differs between its seeds", ""
    return found, "", note


def _paired_on(places: Sequence[tuple[int, int]], left: int) -> str:
    folds = any(fold for _, fold in places)
    which = f"{len(places)} seeds and folds" if folds else f"seeds {numbers([seed for seed, _ in places])}"
    return f"paired on {which}; {left} run{'s' * (left > 1)} not paired"


@dataclass(frozen=True, eq=False)
class Contrasts:
    """The methods on one data set, each tested against the reference that was run with the same settings."""

    contrasts: tuple[Contrast, ...]
    without: tuple[str, ...]
    """What was not tested for want of a reference, a sentence each."""


def contrasts_of(
    cells: Sequence[Cell],
    reference: Reference,
    measure: Measure = Run.recall,
    *,
    alternative: Alternative = "two-sided",
) -> Contrasts:
    """Test the cells of one data set against a method.

    Args:
        cells: of one data set; those of other settings are apart, each with a reference and a Holm correction of their
            own.
        reference: the method that others are tested against; of all, or of those of a setting.
        measure: what is compared.
        alternative: of the tests.
    """
    titles = dict(zip(cells, distinct_titles(cells), strict=True))
    contrasts: list[Contrast] = []
    without: list[tuple[str, list[Cell]]] = []
    for alike in same_settings(cells):
        method = reference if isinstance(reference, str) else reference(alike)
        against = next((cell for cell in alike if cell.method == method), None)
        if against is None:
            without.append((method_title(method), alike))
        else:
            contrasts += compare_cells(alike, against, measure, alternative=alternative, titles=titles)
    if sum(len(alike) for _, alike in without) == len(cells):
        names = " or ".join(dict.fromkeys(name for name, _ in without))
        told = [f"{cells[0].data}: not tested, {names} was not run."] if len(cells) > 1 else []
    else:
        told = [
            f"{some_of([titles[cell] for cell in alike])} on {alike[0].data}: not tested, {name} was not run with "
            "these settings."
            for name, alike in without
        ]
    return Contrasts(tuple(contrasts), tuple(told))


def check_reference(reference: str, cells: Sequence[Cell]) -> None:
    """Refuse a method to test against that was not run."""
    run = list(dict.fromkeys(cell.method for cell in cells))
    if reference not in run:
        raise ValueError(f"Expected `reference` to be a method that was run ({', '.join(run)}), but got {reference!r}.")


def marks(tested: Contrast) -> str:
    """Stars for a table: p below 0.05, 0.01, 0.001; nothing where methods are not told apart or not tested."""
    p_value = tested.p_value
    return "".join("*" for bound in (0.05, 0.01, 0.001) if p_value < bound)


def how_tested(all_tested: Sequence[Contrast]) -> str:
    """What a caption says of the tests of a table, all columns together."""
    found = [one for one in all_tested if one.found is not None]
    if not found:
        return f"No tests: {_reasons(all_tested)}."
    tests = sorted((one.found for one in found if one.found is not None), key=lambda one: not one.paired)
    against = " or ".join(dict.fromkeys(one.against for one in found))
    text = f"* p < 0.05, ** p < 0.01, *** p < 0.001 against {against} ({tests[0].test}"
    if tests[0].paired and not tests[-1].paired:
        text += f", or Welch’s with {_NOT_PAIRED}"
    if any(one.corrected is not None for one in found):
        families = {one.reference for one in found}
        over = "a data set" if len(families) == len({one.data for one in families}) else "a data set and setting"
        text += f", after Holm’s correction over the methods of {over} in each column"
    parts = [f"{text})"]
    partly_paired: dict[str, dict[str, None]] = {}
    for one in found:
        if one.found is not None and one.found.paired and one.note:
            partly_paired.setdefault(one.note, {})[one.title] = None
    parts += [f"{', '.join(titles)}: {note}" for note, titles in partly_paired.items()]
    rows = {one.cell for one in found}
    never = [one for one in all_tested if one.cell not in rows]
    partly = [one for one in all_tested if one.cell in rows and one.found is None]
    parts += [f"{_rows(never)} not tested ({_reasons(never)})"] if never else []
    parts += [f"{_rows(partly)} not tested in some columns ({_reasons(partly)})"] if partly else []
    return "; ".join(parts) + "."


def _rows(of: Sequence[Contrast]) -> str:
    number = len({one.cell for one in of})
    return f"{number} row{'s' * (number > 1)}"


def _reasons(all_tested: Sequence[Contrast]) -> str:
    """Why there were no tests, each reason once."""
    return " or ".join(dict.fromkeys(one.why_not for one in all_tested if one.why_not))
