"""What a study found, in plain words and a few numbers; and what a reader must know before trusting it."""

import math
from collections.abc import Sequence
from functools import partial

from longtail.report.page import Card, many
from longtail.report.parts import Part, or_lowest
from longtail.study.captions import NO_DATA, measured_on, some_of
from longtail.study.comparisons import Reference, contrasts_of, how_tested
from longtail.study.runs import Cell, Run
from longtail.study.stats import Alternative, Summary

__all__ = ["cards_of", "caveats", "points_of"]


def cards_of(part: Part) -> list[Card]:
    """The numbers that stand out; none where nothing was measured."""
    if not part.measured:
        return []
    best, fairest = part.best, part.fairest
    on = "" if part.split == "test" else f", {part.on} data"
    cards = [Card(f"{_text(part.recall(best))}\u00a0%", f"Highest recall over all classes{on}", part.title(best))]
    names = list(part.groups)
    if len(names) > 1:
        last = max(part.cells, key=lambda cell: or_lowest(part.recall(cell, names[-1]).mean))
        recall = part.recall(last, names[-1])
        known = not math.isnan(recall.mean)
        cards += [Card(f"{_text(recall)}\u00a0%", f"Highest {names[-1]} recall{on}", part.title(last))] if known else []
    if fairest is not None:
        cards.append(Card(_text(part.level(fairest)), f"Lowest imbalance level I{on}", part.title(fairest)))
    baseline = _baseline(part)
    if baseline is not None and len(names) > 1 and baseline is not best:
        paid = part.recall(best, names[0]).mean - part.recall(baseline, names[0]).mean
        note = f"{part.title(best)} against {part.title(baseline)}"
        cards += [Card(f"{paid:+.1f} points", f"Change on the {names[0]}{on}", note)] if not math.isnan(paid) else []
    return cards


def points_of(
    part: Part, reference: Reference = "balanced-softmax", alternative: Alternative = "two-sided"
) -> list[str]:
    """What was found on one data set, a sentence each."""
    found = [_what(part)]
    if not part.measured:
        return [*found, f"{NO_DATA.capitalize()}: nothing is known of how well new images are recognised."]
    best, names = part.best, list(part.groups)
    found.append(
        f"{part.title(best)} has the highest recall over all classes on {measured_on(part.cells)}, "
        f"{_text(part.recall(best))} %" + (f", and {_each(part, best)}." if len(names) > 1 else ".")
    )
    baseline = _baseline(part)
    if baseline is not None and baseline is not best and len(names) > 1:
        gains = {g: part.recall(best, g).mean - part.recall(baseline, g).mean for g in (names[0], names[-1])}
        if not any(map(math.isnan, gains.values())):
            pays = ": that is who pays" if gains[names[-1]] * gains[names[0]] < 0 else ""
            found.append(
                f"Against {part.title(baseline)}, {part.title(best)} {_moves(gains[names[-1]], names[-1])} and "
                f"{_moves(gains[names[0]], names[0])}{pays}."
            )
    found += _compared(part, reference, alternative)
    if part.fairest is not None and len(part.cells) > 1:
        level = _text(part.level(part.fairest))
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
    number = len({cell.method for cell in part.cells})
    methods = f"{number} methods" if number > 1 else "one method"
    methods += f" in {len(part.cells)} rows" if len(part.cells) > number else ""
    return f"{part.name} has {classes}; {methods}, {runs} run{'s' * (runs > 1)}."


def _each(part: Part, cell: Cell) -> str:
    recalls = {name: part.recall(cell, name).mean for name in part.groups}
    return ", ".join(f"{recall:.1f} on the {name}" for name, recall in recalls.items() if not math.isnan(recall))


def _moves(points: float, group: str) -> str:
    if abs(points) < 0.05:
        return f"leaves the {group} where it was"
    return f"{'wins' if points > 0 else 'loses'} {abs(points):.1f} points on the {group}"


def _compared(part: Part, reference: Reference, alternative: Alternative, most: int = 5) -> list[str]:
    """Tests of all against the reference; where there are many, those that tell methods apart, and how many do not."""
    tested = contrasts_of(part.cells, reference, partial(Run.recall, part=part.split), alternative=alternative)
    found = [one for one in tested.contrasts if one.found is not None]
    if not found:
        return [*([how_tested(tested.contrasts)] if tested.contrasts else []), *tested.without]
    if len(found) <= most:
        return [*map(str, found), *tested.without]
    apart = [one for one in found if one.p_value < 0.05]
    against = " or ".join(dict.fromkeys(one.against for one in found))
    if not apart:
        return [f"None of the {len(found)} is told apart from {against}.", *tested.without]
    told = [str(one) for one in apart[:most]]
    more, rest = len(apart) - most, len(found) - len(apart)
    if more > 0:
        told.append(f"{more} more {'are' if more > 1 else 'is'} told apart from {against}; the table has them.")
    told += [f"The other {rest} of {len(found)} are not told apart from {against}."] if rest else []
    return [*told, *tested.without]


def _baseline(part: Part) -> Cell | None:
    return part.beside(part.best, "softmax") or part.beside(part.best, "balanced-softmax")


def caveats(
    parts: Sequence[Part], unfinished: Sequence[str], selected: str, failed: Sequence[str], missing: str = ""
) -> list[str]:
    """What a reader must know before trusting the numbers."""
    found = [f"{missing}."] if missing else []
    few = sum(len(cell.runs) == 1 for part in parts for cell in part.cells)
    total = sum(len(part.cells) for part in parts)
    if few == total:
        found.append("Every method was run once: there is no spread and no test, and small differences may be chance.")
    elif few:
        found.append(f"{few} of {total} rows have one run: they have no spread and were not tested.")
    on = " and ".join(dict.fromkeys(part.on for part in parts if part.measured and len(part.cells) > 1))
    if on:
        found.append(
            f"“Highest” and “fairest” are read off {on} data: they describe these runs, they do not choose a method."
        )
    untested = [part.name for part in parts if part.measured and part.split == "val"]
    if untested:
        found.append(f"There is no test data of {some_of(untested)}: results are on validation data.")
    if selected:
        found.append(f"{selected}.")
    if unfinished:
        found.append(f"{many(len(unfinished), 'run')} not finished and left out: {some_of(unfinished)}.")
    if failed:
        found.append(f"{many(len(failed), 'run')} failed and left out: {some_of(failed)}.")
    undefined = [
        f"{title} on {part.name}"
        for part in parts
        for title, cell in zip(part.titles, part.cells, strict=True)
        if part.measured and math.isnan(part.level(cell).mean)
    ]
    if undefined:
        found.append(
            f"The imbalance level is undefined for {some_of(undefined)}: a group has no recall on training data."
        )
    return found


def _text(summary: Summary) -> str:
    return f"{summary.mean:.1f}" + ("" if math.isnan(summary.sd) else f" ± {summary.sd:.1f}")
