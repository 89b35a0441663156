"""The results of a study in a few numbers and sentences, and what limits them."""

import math
from collections.abc import Sequence
from functools import partial
from statistics import fmean

from longtail._program import count, some_of
from longtail.classes import describe_groups
from longtail.report.data_results import DataResults
from longtail.study.captions import Recorded, measured_on
from longtail.study.comparisons import contrasts_of, how_tested
from longtail.study.runs import Run
from longtail.study.stats import Summary


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
    """Tests of all methods against the reference; of many, the significant ones and the number of others."""
    if not results.measured:
        return []
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
    if once == len(cells) == 1:
        found.append("There is one run: how much another seed changes the numbers is unknown.")
    elif once == len(cells):
        found.append("Every method was run only once, so there are no tests and small differences may be chance.")
    elif once:
        found.append(f"{once} of {len(cells)} rows have only one run: no SD and no test.")
    on = dict.fromkeys(results.on for results in all_results if results.measured and len(results.cells) > 1)
    if on:
        where = " and ".join(on)
        found.append(
            f"Methods are compared on {where} data, so the recall of the one that is chosen is a bit too high."
        )
    tested = [cell for results in all_results if results.measured and results.split == "test" for cell in results.cells]
    if any(len(cell.runs) > 1 and cell.recipe.test_seed != "run" for cell in tested):
        found.append("SDs, intervals and tests are over seeds: what other test images would change is not in them.")
    found += [text for results in all_results if results.measured for text in _never_predicted(results)]
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


def _never_predicted(results: DataResults) -> list[str]:
    cells = {title: cell for cell, title in results.titles.items() if cell.predicts and not cell.underfitted}
    partly = some_of([f"{title} {cell.predicts}" for title, cell in cells.items()], 5)
    return [f"Some classes are never predicted on {measured_on(results.cells)}: {partly}."] if partly else []


def _text(summary: Summary) -> str:
    return f"{summary.mean:.1f}" + ("" if math.isnan(summary.sd) else f" ± {summary.sd:.1f}")
