"""What a study found, in plain words and a few numbers; and what a reader must know before trusting it."""

import math
from collections.abc import Sequence

from longtail.study.comparisons import compare_cells
from longtail.study.report.page import Card, many
from longtail.study.report.parts import Part
from longtail.study.runs import Cell, Run
from longtail.study.stats import Alternative, Summary

__all__ = ["cards_of", "caveats", "points_of"]


def cards_of(part: Part) -> list[Card]:
    """The numbers that stand out."""
    best, fairest = part.best, part.fairest
    cards = [Card(f"{_text(part.recall(best))}\u00a0%", "Highest recall over all classes", part.title(best))]
    names = list(part.groups)
    if len(names) > 1:
        last = max(part.cells, key=lambda cell: _low(part.recall(cell, names[-1]).mean))
        cards.append(
            Card(f"{_text(part.recall(last, names[-1]))}\u00a0%", f"Highest {names[-1]} recall", part.title(last))
        )
    if fairest is not None:
        cards.append(Card(_text(fairest.summary(Run.level)), "Lowest imbalance level I", part.title(fairest)))
    baseline = _baseline(part)
    if baseline is not None and len(names) > 1 and baseline is not best:
        paid = part.recall(best, names[0]).mean - part.recall(baseline, names[0]).mean
        note = f"{part.title(best)} against {part.title(baseline)}"
        cards.append(Card(f"{paid:+.1f} points", f"Change on the {names[0]}", note))
    return cards


def points_of(part: Part, reference: str = "balanced-softmax", alternative: Alternative = "two-sided") -> list[str]:
    """What was found on one data set, a sentence each."""
    best, names = part.best, list(part.groups)
    found = [_what(part)]
    found.append(
        f"{part.title(best)} has the highest recall over all classes on test data, {_text(part.recall(best))} %"
        + (f", and {_each(part, best)}." if len(names) > 1 else ".")
    )
    baseline = _baseline(part)
    if baseline is not None and baseline is not best and len(names) > 1:
        gains = {g: part.recall(best, g).mean - part.recall(baseline, g).mean for g in (names[0], names[-1])}
        found.append(
            f"Against {part.title(baseline)}, {part.title(best)} {_moves(gains[names[-1]], names[-1])} and "
            f"{_moves(gains[names[0]], names[0])}: that is who pays."
        )
    found += _compared(part, reference, alternative)
    if part.fairest is not None and len(part.cells) > 1:
        level = _text(part.fairest.summary(Run.level))
        same = " too" if part.fairest is best else ""
        found.append(
            f"{part.title(part.fairest)} is the fairest{same}: model imbalance level {level}, the lowest here."
        )
    return found


def _what(part: Part) -> str:
    counts, runs = part.counts, sum(len(cell.runs) for cell in part.cells)
    classes = f"{len(part.class_names):,} classes"
    if any(counts):
        classes += f", {sum(counts):,} training images, {max(counts):,} of the most frequent class and "
        classes += f"{min(counts):,} of the rarest"
    methods = (
        f"{len(part.cells)} methods, {runs} runs"
        if len(part.cells) > 1
        else f"one method, {runs} run{'s' * (runs > 1)}"
    )
    return f"{part.name} has {classes}; {methods}."


def _each(part: Part, cell: Cell) -> str:
    return ", ".join(f"{part.recall(cell, name).mean:.1f} on the {name}" for name in part.groups)


def _moves(points: float, group: str) -> str:
    if abs(points) < 0.05:
        return f"leaves the {group} where it was"
    return f"{'wins' if points > 0 else 'loses'} {abs(points):.1f} points on the {group}"


def _compared(part: Part, reference: str, alternative: Alternative) -> list[str]:
    """Tests of all against the reference; where there are many, only those that tell methods apart."""
    against = part.find(reference)
    if against is None or len(part.cells) < 2:
        return []
    tested = compare_cells(part.cells, against, alternative=alternative)
    with_test = [one for one in tested if one.found is not None]
    if not with_test:
        return []
    shown = with_test if len(with_test) <= 5 else [one for one in with_test if one.p_value < 0.05][:5]
    return [_retitled(part, one.cell, str(one)) for one in shown]


def _retitled(part: Part, cell: Cell, text: str) -> str:
    return text.replace(cell.title, part.title(cell), 1)


def _baseline(part: Part) -> Cell | None:
    return part.find("softmax") or part.find("balanced-softmax")


def caveats(parts: Sequence[Part], unfinished: Sequence[str], selected: str, failed: Sequence[str]) -> list[str]:
    """What a reader must know before trusting the numbers."""
    found = []
    few = sum(len(cell.runs) == 1 for part in parts for cell in part.cells)
    total = sum(len(part.cells) for part in parts)
    if few == total:
        found.append("Every method was run once: there is no spread and no test, and small differences may be chance.")
    elif few:
        found.append(f"{few} of {total} rows have one run: they have no spread and were not tested.")
    if any(len(part.cells) > 1 for part in parts):
        found.append(
            "“Highest” and “fairest” are read off test data: they describe these runs, they do not choose a method."
        )
    if selected:
        found.append(f"{selected}.")
    if unfinished:
        found.append(f"{many(len(unfinished), 'run')} not finished and left out: {_some(unfinished)}.")
    if failed:
        found.append(f"{many(len(failed), 'run')} failed and left out: {_some(failed)}.")
    undefined = [
        f"{title} on {part.name}"
        for part in parts
        for title, cell in zip(part.titles, part.cells, strict=True)
        if math.isnan(cell.summary(Run.level).mean)
    ]
    if undefined:
        found.append(
            f"The imbalance level is undefined for {_some(undefined)}: a group has no recall on training data."
        )
    return found


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _text(summary: Summary) -> str:
    return f"{summary.mean:.1f}" + ("" if math.isnan(summary.sd) else f" ± {summary.sd:.1f}")


def _low(value: float) -> float:
    return -math.inf if math.isnan(value) else value
