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
    correction, as in the tables). If several methods are better, the one with the highest recall is used. If two do not
    differ significantly, the simpler one is used, unless its recall is lower than the reference's: the one with fewer
    stages, additional networks, post-hoc steps and parameters; methods of plugins come last. A method with more than
    half of its runs underfitted is never recommended.
    """
    split = held_out(cells)
    if split is None:
        return Decision(None, f"No method is recommended: {NO_DATA}.")
    facts = _Facts.of(cells, split)
    if not facts.usable:
        many = f"all {len(facts.weak)} are underfitted: {some_of(facts.weak, 1)}"
        why = many if len(facts.weak) > 2 else "; ".join(facts.weak)
        return Decision(None, f"No method is recommended: {why or 'recall is undefined'}. Train for more epochs.")
    if len(facts.alike) == 1:
        return _without_comparison(facts, facts.alike[0])
    first = find_cell(facts.alike, reference if isinstance(reference, str) else reference(facts.alike))
    first = first or min(facts.alike, key=_complexity)
    tests = facts.test(first)
    if all(one.found is None for one in tests):
        return _without_tests(facts, tests)
    kept = _choose(facts, first, tests)
    decided = {one.cell: one.p_value for one in tests}.get(kept)  # the test that decided, with its own correction
    shown = [replace(one, corrected=decided) if one.cell is first else one for one in facts.test(kept)]
    text = _text(kept, shown, facts.means[kept], facts.on)
    parts = [text, _better_in_tail(kept, facts), _less_accurate(kept, facts), _some_underfitted(kept)]
    return Decision(kept, "".join([*parts, facts.left]))


@dataclass(frozen=True, eq=False)
class _Facts:
    """What is known about the methods on one data set."""

    cells: Sequence[Cell]
    split: Held
    on: str
    """The data of the split, in words."""
    titles: Mapping[Cell, str]
    means: Mapping[Cell, float]
    """Recall over all classes."""
    usable: Sequence[Cell]
    """Those that are not underfitted."""
    alike: Sequence[Cell]
    """The usable ones that may be compared, because they have the same settings."""
    weak: Sequence[str]
    """A sentence for each that is underfitted."""

    @classmethod
    def of(cls, cells: Sequence[Cell], split: Held) -> "_Facts":
        titles = dict(zip(cells, distinct_titles(cells), strict=True))
        means = {cell: cell.summary(partial(Run.recall, part=split)).mean for cell in cells}
        usable = [cell for cell in cells if not cell.underfitted and math.isfinite(means[cell])]
        alike = max(same_settings(usable), key=len, default=[])
        weak = [f"{titles[cell]} {cell.predicts}" for cell in cells if cell.underfitted]
        return cls(cells, split, measured_on(cells), titles, means, usable, alike, weak)

    @property
    def other(self) -> list[str]:
        """The usable methods with other settings."""
        return [self.titles[cell] for cell in self.usable if cell not in self.alike]

    @property
    def left(self) -> str:
        """Sentences about the methods that were left out."""
        weak = f" Left out, because most runs are underfitted: {'; '.join(self.weak)}; train for more epochs."
        other = f" Not compared, because settings differ: {some_of(self.other)}."
        return weak * bool(self.weak) + other * bool(self.other)

    def test(self, against: Cell) -> list[Contrast]:
        """Test the other methods against one."""
        others = [cell for cell in self.alike if cell is not against]
        return contrasts_with(against, others, partial(Run.recall, part=self.split), self.titles)


def _without_comparison(facts: _Facts, cell: Cell) -> Decision:
    title, only = facts.titles[cell], facts.weak and not facts.other
    text = f"recall over all classes {facts.means[cell]:.1f} % on {facts.on}.{_some_underfitted(cell)}{facts.left}"
    if not only:
        what = "was run" if len(facts.cells) == 1 else "can be judged"
        hint = "Run another method with the same settings to compare it with."
        return Decision(cell, f"Only {title} {what}: {text} {hint}")
    seeds = len(set(cell.seeds))
    hint = f" {count(seeds, 'seed')}: run at least {ENOUGH_SEEDS} before choosing." if seeds < ENOUGH_SEEDS else ""
    return Decision(cell, f"Use {title}: it is the only method that is not underfitted; {text}{hint}")


def _without_tests(facts: _Facts, tests: Sequence[Contrast]) -> Decision:
    best, second = sorted(facts.alike, key=lambda cell: -facts.means[cell])[:2]
    names, highest = (facts.titles[best], facts.titles[second]), f"{facts.means[best]:.1f} % on {facts.on}"
    apart = facts.means[best] - facts.means[second]
    text = f"{names[0]} and {names[1]} have the same recall over all classes, {highest}; there is no test"
    if apart:
        text = f"{names[0]} has the highest recall over all classes, {highest}, {apart:.1f} points above {names[1]}, "
        text += "but there is no test"
    why = " or ".join(dict.fromkeys(one.note for one in tests))
    return Decision(None, f"{text}: {why}.{facts.left} Run at least {ENOUGH_SEEDS} seeds before choosing.")


def _choose(facts: _Facts, reference: Cell, tests: Sequence[Contrast]) -> Cell:
    """Return the best of the methods that are significantly better, or a simpler one that is as good."""
    better = [one.cell for one in tests if one.p_value < SIGNIFICANT and one.difference > 0]
    if better:
        best = max(better, key=lambda cell: facts.means[cell])
        near = [one.cell for one in facts.test(best) if one.cell in better and not one.p_value < SIGNIFICANT]
        return min([best, *near], key=_complexity)  # the first of equally simple ones
    same = [one for one in tests if not one.p_value < SIGNIFICANT and (one.found is not None or not one.difference)]
    return min([reference, *(one.cell for one in same if one.difference >= 0)], key=_complexity)


def _better_in_tail(kept: Cell, facts: _Facts) -> str:
    """A sentence if another method is significantly better in the last group, the tail."""
    tail = list(kept.runs[0].result["groups"])[-1]
    recall = partial(Run.recall, part=facts.split, group=tail)
    others = [cell for cell in facts.alike if cell is not kept]
    better = [
        one
        for one in contrasts_with(kept, others, recall, facts.titles)
        if one.found is not None and one.p_value < SIGNIFICANT and one.difference > 0
    ]
    if not better:
        return ""
    best = max(better, key=lambda one: one.difference)
    return f" In the {tail}, {best.title} is better by {best.difference:.1f} points ({_interval(best)})."


def _less_accurate(kept: Cell, facts: _Facts) -> str:
    """A sentence if the accuracy of another method is higher by a point or more: that is what rare classes cost."""
    found = {cell: cell.summary(partial(Run.share, name="accuracy", part=facts.split)).mean for cell in facts.alike}
    best = max(found, key=lambda cell: (not math.isnan(found[cell]), found[cell]))
    if not found[best] - found[kept] >= 1:
        return ""
    return f" Its accuracy is {found[kept]:.1f} %, that of {facts.titles[best]} {found[best]:.1f} %."


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
        apart = [f"{one.title} ({one.difference:+z.1f} points, {_interval(one)})" for one in close]
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
    return f"95 % interval {low:z.1f} to {high:z.1f}{corrected}"
