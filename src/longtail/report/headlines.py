"""The results of a study in a few numbers and sentences, and what limits them."""

import math
from collections.abc import Sequence
from functools import partial

from longtail.report.data_results import DataResults
from longtail.study.captions import NO_DATA, Recorded, count, measured_on, some_of
from longtail.study.comparisons import contrasts_of, how_tested
from longtail.study.runs import Run
from longtail.study.stats import Summary


def headline_cards(results: DataResults) -> list[tuple[str, str, str]]:
    """Return the most important numbers of one data set, each with its name and a note."""
    if not results.measured:
        return []
    titles, best, names = results.titles, results.best, list(results.groups)
    on = "" if results.split == "test" else f", {results.on} data"
    lowest = "Lowest imbalance" if len(titles) > 1 else "Imbalance"
    found = []
    for group in dict.fromkeys(("all", names[-1])) if len(names) > 1 else ("all",):
        one = results.highest(group)
        several = sum(not math.isnan(results.recall(cell, group).mean) for cell in titles) > 1
        of = "over all classes" if group == "all" else f"of the {group}"
        name = f"{'Highest recall' if several else 'Recall'} {of}{on}"
        found.append((f"{_text(results.recall(one, group))} %", name, titles[one]))
    if results.lowest_level is not None:
        level = _text(results.level(results.lowest_level))
        found.append((level, f"{lowest} level I{on}", titles[results.lowest_level]))
    if results.baseline is not None and len(names) > 1:
        note = f"{titles[best]} compared with {titles[results.baseline]}"
        for group in (names[-1], names[0]):
            gain = results.recall(best, group).mean - results.recall(results.baseline, group).mean
            found.append((f"{gain:+.1f} points", f"Change in {group} recall{on}", note))
    return [card for card in found if "nan" not in card[0]]


def headlines(results: DataResults) -> list[str]:
    """Return the results on one data set in sentences."""
    counts, methods = results.counts, {cell.method for cell in results.cells}
    facts = f"{results.name} has {len(results.class_names):,} classes"
    if any(counts):
        facts += f" and {sum(counts):,} training images: {max(counts):,} in the most frequent class, "
        facts += f"{min(counts):,} in the rarest"
    variants = f" in {len(results.cells)} variants" if len(results.cells) > len(methods) else ""
    runs = count(sum(len(cell.runs) for cell in results.cells), "run")
    found = [f"{facts}. The report compares {count(len(methods), 'method')}{variants} in {runs}."]
    if not results.measured:
        return [*found, f"{NO_DATA.capitalize()}, so nothing is known about new images."]
    best, names = results.best, list(results.groups)
    recalls = {name: results.recall(best, name).mean for name in names if len(names) > 1}
    each = ", ".join(f"{name} {recall:.1f}" for name, recall in recalls.items() if not math.isnan(recall))
    has = "has the highest recall" if len(results.cells) > 1 else "has the recall"
    text = f"{results.titles[best]} {has} over all classes on {measured_on(results.cells)}: "
    found.append(f"{text}{_text(results.recall(best))} %" + (f" ({each})." if each else "."))
    partly = [f"{title} {cell.predicts}" for cell, title in results.titles.items() if cell.predicts]
    if partly:
        found.append(f"Some classes are never predicted on {measured_on(results.cells)}: {some_of(partly, 5)}.")
    return [*found, *_tests(results)]


def _tests(results: DataResults, most: int = 5) -> list[str]:
    """Tests of all methods against the reference; of many, the significant ones and the number of others."""
    tested = contrasts_of(results.cells, results.record.reference, partial(Run.recall, part=results.split))
    found = [one for one in tested.contrasts if one.found is not None]
    if not found:
        return [*([how_tested(tested.contrasts)] if tested.contrasts else []), *tested.without]
    if len(found) <= most:
        return [*map(str, found), *tested.without]
    significant = [one for one in found if one.p_value < 0.05]
    against = " or ".join(dict.fromkeys(one.against for one in found))
    lines = [str(one) for one in significant[:most]]
    if len(significant) > most:
        lines.append(f"{len(significant) - most} more differ significantly from {against}; see the table.")
    if len(significant) < len(found):
        rest = f"The other {len(found) - len(significant)}" if significant else f"All {len(found)} others"
        lines.append(f"{rest} show no significant difference from {against}.")
    return [*lines, *tested.without]


def limits(all_results: Sequence[DataResults], record: Recorded, unfinished: Sequence[str]) -> list[str]:
    """Return what a reader must know before trusting the numbers."""
    cells = [cell for results in all_results for cell in results.cells]
    found = [f"{record.missing}."] if record.missing else []
    once = sum(len(cell.runs) == 1 for cell in cells)
    if once == len(cells):
        found.append("Every method was run only once, so there are no tests and small differences may be chance.")
    elif once:
        found.append(f"{once} of {len(cells)} rows have only one run: no SD and no test.")
    on = dict.fromkeys(results.on for results in all_results if results.measured and len(results.cells) > 1)
    if on:
        found.append(
            f"The highest and lowest values were found on {' and '.join(on)} data. They describe these runs; choose a "
            "method on other data, or expect slightly lower values."
        )
    untested = [results.name for results in all_results if results.measured and results.split == "val"]
    if untested:
        found.append(f"There is no test data for {some_of(untested)}: the results are on validation data.")
    selected = record.selected(cells)
    if selected:
        found.append(f"{selected}.")
    for word, names in (("unfinished", unfinished), ("failed", record.failed)):
        if names:
            found.append(f"{count(len(names), f'{word} run')} left out: {some_of(names)}.")
    undefined: dict[str, list[str]] = {}
    for results in (one for one in all_results if one.measured):
        for cell, title in results.titles.items():
            for why in dict.fromkeys(run.why_no_level(results.split) for run in cell.runs):
                undefined.setdefault(why, []).append(f"{title} on {results.name}")
    found += [f"The imbalance level is undefined for {some_of(of)}: {why}." for why, of in undefined.items() if why]
    return found


def _text(summary: Summary) -> str:
    return f"{summary.mean:.1f}" + ("" if math.isnan(summary.sd) else f" ± {summary.sd:.1f}")
