"""The sections of the page, each from what is there; one without runs says so."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import nan

from longtail.study import paper
from longtail.study.balanced import balanced_of, balanced_shift
from longtail.study.comparisons import SAME_DATA, compare_cells
from longtail.study.figures.drawing import Drawing
from longtail.study.redrawn import redrawn_shift
from longtail.study.reproduction.drawings import (
    beta_drawings,
    box_drawing,
    curve_drawing,
    gradient_drawing,
    level_drawing,
    probability_drawings,
    trade_offs,
)
from longtail.study.reproduction.material import Material
from longtail.study.reproduction.published import beside_published
from longtail.study.reproduction.verdicts import agreement, far_off, level_orders
from longtail.study.runs import Cell, Run
from longtail.study.searching import trace_table
from longtail.study.stats import Summary
from longtail.study.table import Table, Value, to_markdown
from longtail.study.tables import (
    balanced_shift_table,
    by_data,
    find_cell,
    gradient_table,
    level_table,
    paper_table,
    recall_table,
    redrawn_shift_table,
    shift_table,
    untrained_gradient_table,
)
from longtail.study.untrained import untrained_gradients

__all__ = ["Section", "sections_of"]

Section = tuple[str, list[str], list[Drawing]]
"""Title, blocks of Markdown, figures."""

_NONE = "No runs yet."

_UNTRAINED = """Of a trained model this must be near zero on its own data: at a minimum the gradient is. The
authors' numbers on balanced data are, those on the long-tailed sets are not, and as far as they tell they are of
networks before their first step, of which the paper's theorem speaks. On ImageNet-1K, whose classes are not quite
of one size, they nearly agree under the three losses (head 6.15, 6.53, 6.58), as three trained models would
hardly. The 27 numbers on C10-LT10, C10-LT50 and C10-LT100 are about those of one network that gives every image
the same ten probabilities, 0.8 to one class of the tail (notes below). So networks are asked before their first
step. Ours too give most images to one class; which one is chance, and that is what such a table shows: SDs are
over seeds. At equal logits the sign of each group is what the theorem says."""

_REDRAWN = """On the images that a model was trained on Δp̂ is nearly zero; the paper's is not. Its authors draw the
subset anew from a seed, and a pass that draws once more sees other images. So softmax is asked about another draw."""


def sections_of(material: Material) -> list[Section]:
    """All sections, in the order of the page."""
    return [
        _recalls(material),
        _levels(material),
        _shifts(material),
        _gradients(material),
        _searches(material),
        *(_others(material, data, cells) for data, cells in material.others.items()),
        _rest(material),
    ]


def _points(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _shown(table: Table) -> str:
    return to_markdown(table).rstrip()


def _with_runs(table: Table, cells: Sequence[Cell]) -> Table:
    """A table with a row a cell, and how many runs each has; rows from elsewhere have none."""
    numbers = iter(len(cell.runs) for of_data in by_data(cells).values() for cell in of_data)
    rows = []
    for row in table.rows:
        number = next(numbers) if row.source == "here" else None
        value = None if number is None else Value(Summary(number, nan, number), shown=str(number))
        rows.append(replace(row, values=(value, *row.values)))
    return replace(table, columns=("Runs", *table.columns), rows=tuple(rows))


def _sentences(cells: Sequence[Cell]) -> list[str]:
    """Each method against Balanced Softmax on the same data, over all classes and in the tail, where it was tested."""
    found = []
    for data, of_data in by_data(cells).items():
        against = find_cell(of_data, "balanced-softmax")
        if against is None:
            continue
        same = [one for one in of_data if all(_same(one, against, name) for name in SAME_DATA)]
        for group, words in {"all": "recall over all classes", "tail": "recall of the tail"}.items():
            tested = compare_cells(same, against, partial(Run.recall, group=group))
            found += [f"{data}, {words}: {one}" for one in tested if one.found is not None]
    return found


def _same(one: Cell, other: Cell, name: str) -> bool:
    return bool(getattr(one.recipe, name) == getattr(other.recipe, name))


def _recalls(material: Material) -> Section:
    cells = material.main
    if not cells:
        return "The paper's table", [_NONE], []
    selected = material.selected(cells)
    table = recall_table(cells, beside="nothing", selected=selected)
    blocks = [_shown(_with_runs(table, cells)), _points(_sentences(cells))]
    if any(cell.method in paper.recalls(cell.data) for cell in cells):
        blocks.append(_shown(paper_table(cells, selected=selected)))
        off = far_off(cells)
        fewest = min(len(cell.runs) for cell in cells if cell.method in paper.recalls(cell.data))
        words = "Off by more than two of the paper's SDs"
        words += f" (as few as {fewest} here, {paper.AUTHORS_RUNS} there)" if fewest < paper.AUTHORS_RUNS else ""
        words += ":"
        blocks.append(f"{words}\n\n{_points(off)}" if off else f"{words} nothing.")
    return "The paper's table", blocks, [*_drawn(box_drawing(material)), *_drawn(curve_drawing(material))]


def _drawn(drawing: Drawing | None) -> list[Drawing]:
    return [] if drawing is None else [drawing]


def _levels(material: Material) -> Section:
    title = "Model imbalance level"
    if not material.main:
        return title, [_NONE], []
    table = level_table(material.main, selected=material.selected(material.main))
    blocks = [_shown(_with_runs(table, material.main))]
    blocks.append("CBS lower than Balanced Softmax, that lower than softmax, as the authors found on all of them?")
    blocks.append(_points(level_orders(material.main)) or "Cannot be said yet: one of the three is missing.")
    return title, blocks, _drawn(level_drawing(material))


def _shifts(material: Material) -> Section:
    """Δp of the balanced model and Δp̂ of softmax, with whether signs and order agree."""
    title = "Class probability against class frequency: Δp and Δp̂"
    softmax = [cell for cell in material.main if cell.method == "softmax"]
    if not softmax:
        return title, [_NONE], []
    lines, asked = [], {}
    for cell in softmax:
        balanced = balanced_of(cell.recipe, material.balanced)
        found = {} if balanced is None else balanced_shift(balanced, cell.data)
        theirs = paper.tables()["probability_shift_balanced_model"].get(cell.data)
        if found:
            asked[cell.data] = found
        if found and theirs:
            lines.append(agreement(f"{cell.data}, Δp", found, theirs))
    if asked:
        table = balanced_shift_table(asked, material.balanced)
        note = "The balanced model's runs on all of the data; it is asked about the long-tailed subset of its seed."
        blocks = [_shown(replace(table, caption=f"{note} {table.caption}")), _points(lines)]
    else:
        blocks = ["Δp: no balanced model was asked yet."]
    published, lines = paper.tables()["probability_shift_softmax"], []
    for cell in softmax:
        if cell.data in published:
            ours = {group: cell.summary(partial(Run.shift, group=group)) for group in published[cell.data]}
            lines.append(agreement(f"{cell.data}, Δp̂", ours, published[cell.data]))
    table = shift_table(material.main, selected=material.selected(material.main))
    blocks += [_shown(_with_runs(table, material.main)), _points(lines)]
    redrawn = [cell for cell in softmax if redrawn_shift(cell)]
    if redrawn:
        lines = [
            agreement(f"{cell.data}, Δp̂ on another draw", redrawn_shift(cell), published[cell.data]) for cell in redrawn
        ]
        blocks += [_REDRAWN, _shown(redrawn_shift_table(redrawn)), _points(lines)]
    return title, blocks, probability_drawings(material)


def _gradients(material: Material) -> Section:
    title = "Balance of the gradient"
    cells = [*material.balanced, *material.main]
    if not cells:
        return title, [_NONE], []
    blocks = ["(reward - penalty) / reward of the classifier's weights, mean over the classes of a group."]
    blocks.append(_shown(_with_runs(gradient_table(cells, selected=material.selected(cells)), cells)))
    lines = []
    for cell in material.main:
        theirs = paper.gradient_balance(cell.data).get(cell.method)
        if theirs:
            ours = {group: cell.summary(partial(Run.gradient_balance, group=group)) for group in theirs}
            lines.append(agreement(f"{cell.data}, {cell.title}", ours, theirs))
    blocks.append(_points(lines))
    asked = [cell for cell in material.main if cell.method == "softmax" and untrained_gradients(cell)]
    if asked:
        blocks += [_UNTRAINED, _shown(untrained_gradient_table(asked))]
    return title, blocks, _drawn(gradient_drawing(material))


def _searches(material: Material) -> Section:
    title = "The search for β"
    if not material.searches:
        return title, ["No search is done yet."], []
    blocks = []
    for one in material.searches:
        trace = trace_table(one)
        blocks.append(_shown(replace(trace, title=f"{trace.title} on {one.cells[0].data}")))
        blocks.append(_shown(one.sensitivity()))
    return title, blocks, beta_drawings(material)


def _others(material: Material, data: str, cells: Sequence[Cell]) -> Section:
    table = recall_table(cells, reference=None, beside="nothing", selected=material.selected(cells))
    blocks = [_shown(_with_runs(table, cells)), _points(_sentences(cells)), *beside_published(data, cells)]
    blocks.append(_shown(_with_runs(level_table(cells, selected=material.selected(cells)), cells)))
    drawings = [one for one in trade_offs(material) if one.caption.startswith(f"{data}.")]
    return f"All methods on {data}", blocks, drawings


def _rest(material: Material) -> Section:
    title = "Rows for a CPU"
    if not material.rest:
        return title, [_NONE], []
    selected = material.selected(material.rest)
    blocks = ["Not in the paper; minutes on two cores."]
    blocks.append(_shown(recall_table(material.rest, beside="nothing", selected=selected)))
    blocks.append(_points(_sentences(material.rest)))
    blocks.append(_shown(level_table(material.rest, selected=selected)))
    return title, blocks, []
