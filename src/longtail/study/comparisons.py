"""Methods of one study against each other, or against one of them, each with a plain sentence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from longtail.study.runs import Cell, Measure, Run, check_same
from longtail.study.stats import Alternative, Comparison, compare, holm, sentence

__all__ = ["SAME_DATA", "Contrast", "compare_cells", "how_tested", "marks"]

SAME_DATA = ("data", "imbalance", "profile", "subset_seed", "validation", "folds", "fold")
"""Settings in which compared methods must agree."""


@dataclass(frozen=True, eq=False)
class Contrast:
    """A cell against a reference."""

    cell: Cell
    reference: Cell
    difference: float
    found: Comparison | None
    """``None`` where there was no test: fewer than two seeds, an undefined value, or no spread."""
    corrected: float | None
    """After Holm's correction, where several were compared."""
    why_not: str
    """Why there was no test."""
    better: Literal["higher", "lower"]

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
            return f"{self.cell.title} is {apart} {self.reference.title}: {self.why_not}, so no test."
        return sentence(self.cell.title, self.reference.title, self.found, corrected=self.corrected, better=self.better)


def compare_cells(
    cells: Sequence[Cell],
    reference: Cell,
    measure: Measure = Run.recall,
    *,
    paired: bool | None = None,
    alternative: Alternative = "two-sided",
    better: Literal["higher", "lower"] = "higher",
) -> list[Contrast]:
    """Compare cells with a reference.

    Args:
        cells: the methods; the reference itself is left out.
        reference: what they are compared with.
        measure: what is compared.
        paired: default: paired where both have the same seeds, which then share draws and subset; Welch's otherwise.
        alternative: ``"two-sided"``, or ``"greater"``, one-sided as in the paper.
        better: whether higher or lower values are better, for the words.

    Returns:
        one a cell, with p-values after Holm's correction where two or more were tested.
    """
    others = [cell for cell in cells if cell is not reference]
    found = []
    for cell in others:
        check_same([reference, cell], SAME_DATA, "compared methods to have")
        found.append(_test(cell, reference, measure, paired, alternative))
    tested = [comparison for comparison, _ in found if comparison is not None]
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
        )
        for cell, (comparison, why_not) in zip(others, found, strict=True)
    ]


def _test(
    cell: Cell, reference: Cell, measure: Measure, paired: bool | None, alternative: Alternative
) -> tuple[Comparison | None, str]:
    ours, theirs = cell.values(measure), reference.values(measure)
    if min(len(ours), len(theirs)) < 2:
        return None, "fewer than two seeds"
    if not all(map(math.isfinite, [*ours, *theirs])):
        return None, "a value is undefined"
    pair = cell.places == reference.places if paired is None else paired
    found = compare(ours, theirs, paired=pair, alternative=alternative)
    if math.isnan(found.p_value):
        return None, "the difference is the same in every seed" if pair else "neither differs between its seeds"
    return found, ""


def marks(tested: Contrast) -> str:
    """Stars for a table: p below 0.05, 0.01, 0.001; nothing where methods are not told apart or not tested."""
    p_value = tested.p_value
    return "".join("*" for bound in (0.05, 0.01, 0.001) if p_value < bound)


def how_tested(all_tested: Sequence[Contrast], against: str = "") -> str:
    """What a caption says of the tests; ``against`` is what the table calls the reference."""
    found = [one for one in all_tested if one.found is not None]
    if not found:
        return f"No tests: {_reasons(all_tested) or 'fewer than two seeds'}."
    tests = sorted((one.found for one in found if one.found is not None), key=lambda one: not one.paired)
    text = f"* p < 0.05, ** p < 0.01, *** p < 0.001 against {against or found[0].reference.title} ({tests[0].test}"
    text += ", or Welch’s where the seeds differ" if tests[0].paired and not tests[-1].paired else ""
    untested = len(all_tested) - len(found)
    text += (
        ", after Holm’s correction over the methods of a data set in each column)"
        if any(one.corrected is not None for one in found)
        else ")"
    )
    return f"{text}; {untested} not tested ({_reasons(all_tested)})." if untested else f"{text}."


def _reasons(all_tested: Sequence[Contrast]) -> str:
    """Why there were no tests, each reason once."""
    return " or ".join(dict.fromkeys(one.why_not for one in all_tested if one.why_not))
