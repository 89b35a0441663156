"""Which method to use, in plain words, from the same tests as the tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from longtail._program import count, some_of
from longtail.methods import METHODS
from longtail.study.captions import NO_DATA, measured_on
from longtail.study.comparisons import Contrast, Reference, contrasts_with
from longtail.study.runs import Cell, Held, Run, distinct_titles, find_cell, held_out, same_settings
from longtail.study.stats import SIGNIFICANT, format_p

ENOUGH_SEEDS = 5
"""Fewer seeds than these rarely show a difference of a point or two."""


@dataclass(frozen=True, eq=False)
class Decision:
    """The method to use, and why."""

    cell: Cell | None
    """``None`` if no method is recommended."""
    text: str

    def __str__(self) -> str:
        return self.text


def decide(cells: Sequence[Cell], reference: Reference) -> Decision:
    """Return which method to use on one data set, by recall over all classes.

    The reference is kept unless another method is significantly better (two-sided t-tests, paired by seed, with Holm's
    correction, as in the tables). Of several methods that are better the highest is used. Of two without a significant
    difference the simpler is used, if it is the reference or not lower than it: fewer stages, additional networks,
    post-hoc steps and parameters; of equally simple ones that of a plugin comes last. A method of which more than half
    of the runs are underfitted is never recommended.
    """
    split = held_out(cells)
    if split is None:
        return Decision(None, f"No method is recommended: {NO_DATA}.")
    measure, on = partial(Run.recall, part=split), measured_on(cells)
    titles = dict(zip(cells, distinct_titles(cells), strict=True))
    means = {cell: cell.summary(measure).mean for cell in cells}
    usable = [cell for cell in cells if not cell.underfitted and math.isfinite(means[cell])]
    weak = [f"{titles[cell]} {cell.predicts}" for cell in cells if cell.underfitted]
    if not usable:
        why = "; ".join(weak) if len(weak) < 3 else f"all {len(weak)} are underfitted: {some_of(weak, 1)}"
        return Decision(None, f"No method is recommended: {why or 'recall is undefined'}. Train for more epochs.")
    left = f" Left out, because most runs are underfitted: {'; '.join(weak)}; train for more epochs." if weak else ""
    alike = max(same_settings(usable), key=len)
    other = [titles[cell] for cell in usable if cell not in alike]
    left += f" Not compared, because settings differ: {some_of(other)}." if other else ""
    if len(alike) == 1:
        text = f"recall over all classes {means[alike[0]]:.1f} % on {on}"
        if weak and not other:
            only = "it is the only method that is not underfitted"
            seeds = len({run.recipe.seed for run in alike[0].runs})
            left += (
                f" {count(seeds, 'seed')}: run at least {ENOUGH_SEEDS} before choosing." if seeds < ENOUGH_SEEDS else ""
            )
            return Decision(alike[0], f"Use {titles[alike[0]]}: {only}; {text}.{_some_underfitted(alike[0])}{left}")
        hint = "Run another method with the same settings to compare it with."
        what = "was run" if len(cells) == 1 else "can be judged"
        return Decision(alike[0], f"Only {titles[alike[0]]} {what}: {text}.{_some_underfitted(alike[0])}{left} {hint}")

    def test(against: Cell) -> list[Contrast]:
        return contrasts_with(against, [cell for cell in alike if cell is not against], measure, titles)

    method = reference if isinstance(reference, str) else reference(alike)
    first = kept = find_cell(alike, method) or min(alike, key=_complexity)
    tests = test(first)
    if all(one.found is None for one in tests):
        best, second = sorted(alike, key=lambda cell: -means[cell])[:2]
        text = f"{titles[best]} has the highest recall over all classes, {means[best]:.1f} % on {on}, "
        text += f"{means[best] - means[second]:.1f} points above {titles[second]}, but"
        if means[best] == means[second]:
            text = f"{titles[best]} and {titles[second]} have the same recall over all classes, {means[best]:.1f} % on "
            text += f"{on};"
        text += f" there is no test: {' or '.join(dict.fromkeys(one.note for one in tests))}."
        return Decision(None, f"{text}{left} Run at least {ENOUGH_SEEDS} seeds before choosing.")
    better = [one.cell for one in tests if one.p_value < SIGNIFICANT and one.difference > 0]
    if better:
        kept = max(better, key=lambda cell: means[cell])
        near = [one.cell for one in test(kept) if one.cell in better and not one.p_value < SIGNIFICANT]
    else:
        same = [one for one in tests if not one.p_value < SIGNIFICANT and (one.found is not None or not one.difference)]
        near = [one.cell for one in same if one.difference >= 0]
    kept = min([kept, *near], key=_complexity)  # the first of equally simple ones
    decided = {one.cell: one.p_value for one in tests}.get(kept)  # the test that decided, with its own correction
    shown = [replace(one, corrected=decided) if one.cell is first else one for one in test(kept)]
    text = _text(kept, shown, means[kept], on) + _less_accurate(kept, alike, split, titles)
    return Decision(kept, text + _some_underfitted(kept) + left)


def _less_accurate(kept: Cell, cells: Sequence[Cell], split: Held, titles: Mapping[Cell, str]) -> str:
    """A sentence if the accuracy of another method is higher by a point or more: that is what rare classes cost."""
    found = {cell: cell.summary(partial(Run.share, name="accuracy", part=split)).mean for cell in cells}
    best = max(found, key=lambda cell: (not math.isnan(found[cell]), found[cell]))
    if not found[best] - found[kept] >= 1:
        return ""
    return f" Its accuracy is {found[kept]:.1f} %, that of {titles[best]} {found[best]:.1f} %."


def _some_underfitted(cell: Cell) -> str:
    """A sentence if some runs of a recommended method are underfitted."""
    found = cell.underfitted_runs
    are = "is" if found == 1 else "are"
    return f" {found} of its {len(cell.runs)} runs {are} underfitted; the mean includes all runs." if found else ""


def _complexity(cell: Cell) -> tuple[float, ...]:
    """Sorts methods from simple to complex; one that is not registered here comes last."""
    method = cell.recipe.spec
    if method.name not in METHODS:
        return (math.inf,)
    networks = (method.projection is not None) + method.prototypes
    place = list(METHODS).index(method.name)  # softmax is the first, those of plugins are the last
    return len(method.stages), networks, method.posthoc is not None, len(method.parameters), place


def _text(kept: Cell, tests: Sequence[Contrast], mean: float, on: str) -> str:
    worse = [one for one in tests if one.p_value < SIGNIFICANT and one.difference < 0]
    close = [one for one in tests if one.found is not None and one not in worse]
    untested = [one for one in tests if one.found is None]
    title, higher = tests[0].against, [one for one in close if one.difference > 0]
    runs = min((min(one.found.runs) for one in close if one.found is not None), default=ENOUGH_SEEDS)
    start = f"Keep {title} for now" if higher and runs < ENOUGH_SEEDS else f"Use {title}"
    text = f"{start}: recall over all classes {mean:.1f} % on {on}"
    above = sorted(worse, key=lambda one: -one.difference)
    text += "".join(f", {-one.difference:.1f} points above {one.title} ({_interval(one, -1)})" for one in above[:2])
    text += f", and above {some_of([one.title for one in above[2:]])}" if above[2:] else ""
    text += "."
    if close:
        close.sort(key=lambda one: -one.difference)
        apart = [f"{one.title} ({one.difference:+.1f} points, {_interval(one)})" for one in close]
        text += f" No clear difference from {' and '.join(apart) if len(apart) < 3 else some_of(apart)}"
        if higher:
            simpler = all(_complexity(kept) < _complexity(one.cell) for one in higher)
            than = f"simpler than {some_of([one.title for one in higher])}" if simpler else "the reference"
            text += f"; {title} is {than}"
        text += f". {runs} seeds: run at least {ENOUGH_SEEDS} to separate them." if runs < ENOUGH_SEEDS else "."
    return " ".join([text, *map(str, untested)])


def _interval(one: Contrast, sign: int = 1) -> str:
    """The interval of a difference; with ``sign`` -1 seen from the reference."""
    assert one.found is not None
    low, high = sorted((sign * one.found.low, sign * one.found.high))
    corrected = f", but p {format_p(one.p_value)} after Holm" if low * high > 0 and one.p_value >= SIGNIFICANT else ""
    return f"95 % interval {low:.1f} to {high:.1f}{corrected}"
