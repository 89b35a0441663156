"""The results of a study in a few numbers and sentences, with what limits them."""

import math
from collections.abc import Sequence
from functools import partial

from longtail.report.page import Card
from longtail.report.parts import Part
from longtail.study.captions import NO_DATA, count, measured_on, some_of
from longtail.study.comparisons import Reference, contrasts_of, how_tested
from longtail.study.runs import Cell, Run
from longtail.study.stats import Alternative, Summary


def cards_of(part: Part) -> list[Card]:
    """Return the most important numbers of one data set; none if nothing was measured."""
    if not part.measured:
        return []
    best, names, several = part.best, list(part.groups), len(part.cells) > 1
    on = "" if part.split == "test" else f", {part.on} data"
    highest, lowest = ("Highest recall", "Lowest imbalance level I") if several else ("Recall", "Imbalance level I")
    cards = [Card(f"{_text(part.recall(best))}\u00a0%", f"{highest} over all classes{on}", part.title(best))]
    if len(names) > 1:
        last = part.highest(names[-1])
        recall = part.recall(last, names[-1])
        if not math.isnan(recall.mean):
            label = f"{highest} of the {names[-1]}{on}"
            cards.append(Card(f"{_text(recall)}\u00a0%", label, part.title(last)))
    if part.lowest_level is not None:
        cards.append(Card(_text(part.level(part.lowest_level)), f"{lowest}{on}", part.title(part.lowest_level)))
    baseline = _baseline(part)
    if baseline is not None and len(names) > 1:
        change = _gain(part, best, baseline, names[0])
        note = f"{part.title(best)} compared with {part.title(baseline)}"
        if not math.isnan(change):
            cards.append(Card(f"{change:+.1f} points", f"Change in {names[0]} recall{on}", note))
    return cards


def points_of(
    part: Part, reference: Reference = "balanced-softmax", alternative: Alternative = "two-sided"
) -> list[str]:
    """Return the results on one data set in sentences."""
    found = [_facts(part)]
    if not part.measured:
        return [*found, f"{NO_DATA.capitalize()}, so nothing is known about new images."]
    best, names = part.best, list(part.groups)
    recalls = {name: part.recall(best, name).mean for name in names if len(names) > 1}
    each = ", ".join(f"{name} {recall:.1f}" for name, recall in recalls.items() if not math.isnan(recall))
    has = "has the highest recall" if len(part.cells) > 1 else "has the recall"
    text = f"{part.title(best)} {has} over all classes on {measured_on(part.cells)}: {_text(part.recall(best))} %"
    found.append(f"{text} ({each})." if each else f"{text}.")
    baseline = _baseline(part)
    if baseline is not None and len(names) > 1:
        gains = {group: _gain(part, best, baseline, group) for group in (names[-1], names[0])}
        if not any(map(math.isnan, gains.values())):
            changes = " and ".join(f"{group} recall by {points:+.1f} points" for group, points in gains.items())
            found.append(f"Compared with {part.title(baseline)}, {part.title(best)} changes {changes}.")
    found += _compared(part, reference, alternative)
    if part.lowest_level is not None and len(part.cells) > 1:
        level = _text(part.level(part.lowest_level))
        found.append(f"{part.title(part.lowest_level)} has the lowest model imbalance level: {level}.")
    return found


def _facts(part: Part) -> str:
    counts, runs = part.counts, sum(len(cell.runs) for cell in part.cells)
    classes = f"{len(part.class_names):,} classes"
    if any(counts):
        classes += f" and {sum(counts):,} training images: {max(counts):,} in the most frequent class, "
        classes += f"{min(counts):,} in the rarest"
    methods = count(len({cell.method for cell in part.cells}), "method")
    rows = f" in {len(part.cells)} variants" if len(part.cells) > len({cell.method for cell in part.cells}) else ""
    return f"{part.name} has {classes}. The report compares {methods}{rows} in {count(runs, 'run')}."


def _gain(part: Part, cell: Cell, baseline: Cell, group: str) -> float:
    return part.recall(cell, group).mean - part.recall(baseline, group).mean


def _compared(part: Part, reference: Reference, alternative: Alternative, most: int = 5) -> list[str]:
    """Tests of all methods against the reference; of many, the significant ones and the number of others."""
    tested = contrasts_of(part.cells, reference, partial(Run.recall, part=part.split), alternative=alternative)
    found = [one for one in tested.contrasts if one.found is not None]
    if not found:
        return [*([how_tested(tested.contrasts)] if tested.contrasts else []), *tested.without]
    if len(found) <= most:
        return [*map(str, found), *tested.without]
    apart = [one for one in found if one.p_value < 0.05]
    against = " or ".join(dict.fromkeys(one.against for one in found))
    lines = [str(one) for one in apart[:most]]
    if len(apart) > most:
        lines.append(f"{len(apart) - most} more differ significantly from {against}; see the table.")
    if len(apart) < len(found):
        some = f"The other {len(found) - len(apart)}" if apart else f"All {len(found)} others"
        lines.append(f"{some} show no significant difference from {against}.")
    return [*lines, *tested.without]


def _baseline(part: Part) -> Cell | None:
    """Softmax or Balanced Softmax with the settings of the best method, unless it is the best."""
    found = part.beside(part.best, "softmax") or part.beside(part.best, "balanced-softmax")
    return None if found is part.best else found


def limits(
    parts: Sequence[Part], unfinished: Sequence[str], selected: str, failed: Sequence[str], missing: str = ""
) -> list[str]:
    """Return what a reader must know before trusting the numbers."""
    found = [f"{missing}."] if missing else []
    few = sum(len(cell.runs) == 1 for part in parts for cell in part.cells)
    total = sum(len(part.cells) for part in parts)
    if few == total:
        found.append("Every method was run only once, so there are no tests and small differences may be chance.")
    elif few:
        found.append(f"{few} of {total} rows have only one run: no SD and no test.")
    on = " and ".join(dict.fromkeys(part.on for part in parts if part.measured and len(part.cells) > 1))
    if on:
        found.append(
            f"The highest and lowest values were found on {on} data. They describe these runs; choose a method on "
            "other data, or expect slightly lower values."
        )
    untested = [part.name for part in parts if part.measured and part.split == "val"]
    if untested:
        found.append(f"There is no test data for {some_of(untested)}: the results are on validation data.")
    if selected:
        found.append(f"{selected}.")
    if unfinished:
        found.append(f"{count(len(unfinished), 'unfinished run')} left out: {some_of(unfinished)}.")
    if failed:
        found.append(f"{count(len(failed), 'failed run')} left out: {some_of(failed)}.")
    undefined = [
        f"{title} on {part.name}"
        for part in parts
        for title, cell in zip(part.titles, part.cells, strict=True)
        if part.measured and math.isnan(part.level(cell).mean)
    ]
    if undefined:
        found.append(
            f"The imbalance level is undefined for {some_of(undefined)}: in one group, no training image is recognised."
        )
    return found


def _text(summary: Summary) -> str:
    return f"{summary.mean:.1f}" + ("" if math.isnan(summary.sd) else f" ± {summary.sd:.1f}")
