"""The sections of the page of results."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import nan

from longtail.study.comparisons import contrasts_of
from longtail.study.figures.style import Drawing
from longtail.study.rendering import Table, Value, to_markdown
from longtail.study.runs import Cell, Run, by_data
from longtail.study.search import trace_table
from longtail.study.search_rule import START
from longtail.study.stats import Summary
from longtail.study.tables import recall_table
from reproduction import paper
from reproduction.agreement import agreement, far_off, level_orders
from reproduction.collection import Collection
from reproduction.figures import (
    beta_drawings,
    box_drawing,
    curve_drawing,
    gradient_drawing,
    level_drawing,
    probability_drawings,
    trade_offs,
)
from reproduction.measure import balanced_of, balanced_shift, redrawn_shift, untrained_gradients
from reproduction.tables import (
    QUOTED_SIGN,
    balanced_shift_table,
    gradient_table,
    in_rows,
    level_table_beside_authors,
    paper_table,
    published_table,
    redrawn_shift_table,
    shift_table,
    untrained_gradient_table,
)

__all__ = ["Section", "sections_of"]

Section = tuple[str, list[str], list[Drawing]]
"""Title, blocks of Markdown, figures."""

_NONE = "No runs yet."
_NO_PLAN = "§"

_QUOTED = f"""{" and ".join(paper.QUOTED)} from the paper's ImageNet-LT table were not run: `longtail` does not have
them. The paper, too, quotes their rows from their publications."""

_RULE = f"""The rule is fixed:

1. Start with {", ".join(f"{beta:g}" for beta in START)}, or with the values of the plan.
2. The value of a β is its recall over all classes on validation data, as a mean over folds and seeds. Test data is
   not used, except with `--select-on test`, which every caption then states.
3. Try further values, one step at a time, on each side of the best mean (also below 1), until a value there is lower
   than the best by more than one standard error, or there are two values on that side, or the bound is reached.
4. Fit a least-squares quadratic to the means within three steps of the best. If it has no maximum, use the means.
5. Choose among the tried β: of those whose smoothed value is within one standard error of the highest, take the one
   with the lowest mean imbalance level; in a tie, the smaller β.

The standard error is that of a mean over folds and seeds after subtracting the mean of each fold and seed."""

_UNTRAINED = """For a trained model the balance is near zero on its own training data, because the gradient is zero at a
minimum. The authors' numbers are near zero on balanced data, but not on the long-tailed sets. Those probably belong to
networks before their first step, which the paper's theorem is about. On ImageNet-1K, whose classes have almost equal
sizes, the authors' values for the three losses are almost equal (head 6.15, 6.53, 6.58), which is unlikely for three
trained models. The 27 numbers on C10-LT10, C10-LT50 and C10-LT100 are close to those of one network that gives every
image the same ten probabilities, with 0.8 for one class of the tail (see the notes below). Therefore we also measured
networks before their first step. They assign most images to one class, too. Which class that is depends on the seed,
so the SDs over seeds are large. With equal logits, the sign of each group is what the theorem says."""

_REDRAWN = """On the images that a model was trained on, Δp̂ is nearly zero, unlike in the paper. Its authors draw the
subset from a seed in every pass, so a later pass sees other images. The next table shows softmax on another draw."""


def sections_of(runs: Collection) -> list[Section]:
    """All sections, in the order of the page."""
    return [
        _recalls(runs),
        _levels(runs),
        _shifts(runs),
        _gradients(runs),
        _searches(runs),
        *(_all_methods(runs, data, cells) for data, cells in runs.others.items()),
        _rest(runs),
    ]


def _points(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _markdown(table: Table) -> str:
    return to_markdown(table).rstrip()


def _with_runs(table: Table, cells: Sequence[Cell]) -> Table:
    """A table with one row per cell, plus a column with the number of runs."""
    in_table = iter(in_rows(cells))
    rows = []
    for row in table.rows:
        number = len(next(in_table).runs) if not row.labels[-1].endswith(QUOTED_SIGN) else None
        value = None if number is None else Value(Summary(number, nan, number), shown=str(number))
        rows.append(replace(row, values=(value, *row.values)))
    return replace(table, columns=("Runs", *table.columns), rows=tuple(rows))


def _with_plans(table: Table, cells: Sequence[Cell], runs: Collection) -> Table:
    """A table with one row per cell, with a sign on rows that are in no plan."""
    signs = ["" if runs.is_planned(cell) else f" {_NO_PLAN}" for cell in in_rows(cells)]
    if not any(signs):
        return table
    rows = tuple(
        replace(row, labels=(*row.labels[:-1], row.labels[-1] + sign))
        for row, sign in zip(table.rows, signs, strict=True)
    )
    return replace(table, rows=rows, caption=f"{table.caption} {_NO_PLAN}: in the folder of a plan, but not planned.")


def _comparisons(cells: Sequence[Cell]) -> str:
    """Each method against Balanced Softmax on the same data, over all classes and in the tail; or why not."""
    found = []
    for data, of_data in by_data(cells).items():
        reasons: dict[str, dict[str, None]] = {}
        without: dict[str, None] = {}
        for group, words in {"all": "recall over all classes", "tail": "recall of the tail"}.items():
            tested = contrasts_of(of_data, "balanced-softmax", partial(Run.recall, group=group))
            found += [f"{data}, {words}: {one}" for one in tested.contrasts if one.found is not None]
            for one in tested.contrasts:
                if one.found is None:
                    reasons.setdefault(one.note, {})[one.title] = None
            without |= dict.fromkeys(tested.without)
        found += [f"{data}, {', '.join(titles)}: {reason}, so no test." for reason, titles in reasons.items()]
        found += without
    return _points(found)


def _recalls(runs: Collection) -> Section:
    title, cells = "The paper's table", runs.main
    if not cells:
        return title, [_NONE], []
    selected = runs.selected(cells)
    blocks = [
        _markdown(_with_runs(recall_table(cells, reference="balanced-softmax", selected=selected), cells)),
        _comparisons(cells),
    ]
    in_paper = [cell for cell in cells if paper.recalls_of(cell)]
    if in_paper:
        off, fewest = far_off(cells), min(len(cell.runs) for cell in in_paper)
        few = f" (as few as {fewest} runs here, {paper.AUTHORS_RUNS} there)" if fewest < paper.AUTHORS_RUNS else ""
        blocks.append(_markdown(paper_table(cells, selected=selected)))
        blocks.append(
            f"Differences of more than two of the paper's SDs{few}:" + (f"\n\n{_points(off)}" if off else " none.")
        )
    return title, blocks, [*box_drawing(runs), *curve_drawing(runs)]


def _levels(runs: Collection) -> Section:
    title, cells = "Model imbalance level", runs.main
    if not cells:
        return title, [_NONE], []
    table = level_table_beside_authors(cells, selected=runs.selected(cells))
    question = "Is CBS lower than Balanced Softmax, and Balanced Softmax lower than softmax, as in the paper?"
    answers = _points(level_orders(cells)) or "Unknown: runs of one of the three are missing."
    return title, [_markdown(_with_runs(table, cells)), question, answers], level_drawing(runs)


def _shifts(runs: Collection) -> Section:
    """Δp of the balanced model and Δp̂ of softmax, and whether signs and order agree with the paper's."""
    title = "Class probability against class frequency: Δp and Δp̂"
    softmax = [cell for cell in runs.main if cell.method == "softmax"]
    if not softmax:
        return title, [_NONE], []
    lines, measured = [], {}
    for cell in softmax:
        balanced = balanced_of(cell.recipe, runs.balanced)
        found = {} if balanced is None else balanced_shift(balanced, cell.data)
        theirs = paper.tables()["probability_shift_balanced_model"].get(cell.data)
        if found:
            measured[cell.data] = found
        if found and theirs:
            lines.append(agreement(f"{cell.data}, Δp", found, theirs))
    if measured:
        blocks = [_markdown(balanced_shift_table(measured, runs.balanced)), _points(lines)]
    else:
        blocks = ["Δp: no balanced model was measured yet."]
    published, lines = paper.tables()["probability_shift_softmax"], []
    for cell in softmax:
        if cell.data in published:
            ours = {group: cell.summary(partial(Run.shift, group=group)) for group in published[cell.data]}
            lines.append(agreement(f"{cell.data}, Δp̂", ours, published[cell.data]))
    table = shift_table(runs.main, selected=runs.selected(runs.main))
    blocks += [_markdown(_with_runs(table, runs.main)), _points(lines)]
    redrawn = [cell for cell in softmax if redrawn_shift(cell)]
    if redrawn:
        lines = [
            agreement(f"{cell.data}, Δp̂ on another draw", redrawn_shift(cell), published[cell.data]) for cell in redrawn
        ]
        blocks += [_REDRAWN, _markdown(redrawn_shift_table(redrawn)), _points(lines)]
    return title, blocks, probability_drawings(runs)


def _gradients(runs: Collection) -> Section:
    title, cells = "Balance of the gradient", [*runs.balanced, *runs.main]
    if not cells:
        return title, [_NONE], []
    blocks = ["(reward - penalty) / reward of the classifier's weights, mean over the classes of a group."]
    blocks.append(_markdown(_with_runs(gradient_table(cells, selected=runs.selected(cells)), cells)))
    lines = []
    for cell in runs.main:
        theirs = paper.gradient_balance(cell.data).get(cell.method)
        if theirs:
            ours = {group: cell.summary(partial(Run.gradient_balance, group=group)) for group in theirs}
            lines.append(agreement(f"{cell.data}, {cell.title}", ours, theirs))
    blocks.append(_points(lines))
    measured = [cell for cell in runs.main if cell.method == "softmax" and untrained_gradients(cell)]
    if measured:
        blocks += [_UNTRAINED, _markdown(untrained_gradient_table(measured))]
    return title, blocks, gradient_drawing(runs)


def _searches(runs: Collection) -> Section:
    title = "The search for β"
    if not runs.searches:
        return title, ["No search is finished yet."], []
    blocks = [_RULE]
    for one in runs.searches:
        trace = trace_table(one)
        blocks.append(_markdown(replace(trace, title=f"{trace.title} on {one.cells[0].data}")))
        blocks.append(_markdown(one.sensitivity()))
    return title, blocks, beta_drawings(runs)


def _all_methods(runs: Collection, data: str, cells: Sequence[Cell]) -> Section:
    selected = runs.selected(cells)
    recalls, levels = (
        recall_table(cells, reference="balanced-softmax", selected=selected),
        level_table_beside_authors(cells, selected=selected),
    )
    recalls, levels = (_with_plans(_with_runs(one, cells), cells, runs) for one in (recalls, levels))
    blocks = [_markdown(recalls), _QUOTED, _comparisons(cells), *published_table(data, cells), _markdown(levels)]
    return f"All methods on {data}", blocks, trade_offs(data, cells)


def _rest(runs: Collection) -> Section:
    title, cells = "Rows for a CPU", runs.rest
    if not cells:
        return title, [_NONE], []
    selected = runs.selected(cells)
    blocks = ["Not in the paper; these runs take minutes on two cores."]
    blocks += [_markdown(recall_table(cells, reference="balanced-softmax", selected=selected)), _comparisons(cells)]
    return title, [*blocks, _markdown(level_table_beside_authors(cells, selected=selected))], []
