"""The sections of the page, each from what is there; one without runs says so."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import nan

from longtail.study.comparisons import contrasts_of
from longtail.study.figures.drawing import Drawing
from longtail.study.rendering import Table, Value, to_markdown
from longtail.study.runs import Cell, Run, by_data
from longtail.study.search import trace_table
from longtail.study.search_rule import START
from longtail.study.stats import Summary
from longtail.study.tables import recall_table
from reproduction import paper
from reproduction.balanced import balanced_of, balanced_shift
from reproduction.drawings import (
    beta_drawings,
    box_drawing,
    curve_drawing,
    gradient_drawing,
    level_drawing,
    probability_drawings,
    trade_offs,
)
from reproduction.material import Material
from reproduction.mechanism import (
    balanced_shift_table,
    gradient_table,
    redrawn_shift_table,
    shift_table,
    untrained_gradient_table,
)
from reproduction.published import beside_published
from reproduction.redrawn import redrawn_shift
from reproduction.tables import level_table_beside_authors, paper_table
from reproduction.untrained import untrained_gradients
from reproduction.verdicts import agreement, far_off, level_orders

__all__ = ["Section", "sections_of"]

Section = tuple[str, list[str], list[Drawing]]
"""Title, blocks of Markdown, figures."""

_NONE = "No runs yet."
_NO_PLAN = "§"

_QUOTED = f"""Of the methods in the paper's ImageNet-LT table {" and ".join(paper.QUOTED)} were not run here: `longtail`
does not have them, and the paper, too, quotes their rows from their own publications."""

_RULE = f"""The rule is fixed:

1. Begin with {", ".join(f"{beta:g}" for beta in START)}, or the β that the plan says.
2. The value of a β is the mean of the criterion over folds and seeds, on validation data. Test data is never looked at,
   unless `--select-on test` says so, and then every caption does too.
3. Go on outwards, a step at a time, on each side of the best mean, below 1 too, until a value there is lower than the
   best by more than one standard error, or two β lie there, or the bound is reached.
4. Smooth: a least-squares quadratic through the means within three steps of the best, if it has a maximum; otherwise
   the means themselves.
5. Choose among the β tried: of those whose smoothed value is within one standard error of the highest, the one with the
   lowest mean imbalance level; of equals the smaller β.

The standard error is that of a mean over folds and seeds after each fold's and seed's own level is taken off."""

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
    in_rows = iter(_in_rows(cells))
    rows = []
    for row in table.rows:
        number = len(next(in_rows).runs) if row.source == "here" else None
        value = None if number is None else Value(Summary(number, nan, number), shown=str(number))
        rows.append(replace(row, values=(value, *row.values)))
    return replace(table, columns=("Runs", *table.columns), rows=tuple(rows))


def _with_plans(table: Table, cells: Sequence[Cell], material: Material) -> Table:
    """A table with a row a cell, in which those that come from no plan have a sign."""
    signs = ["" if material.is_planned(cell) else f" {_NO_PLAN}" for cell in _in_rows(cells)]
    if not any(signs):
        return table
    rows = tuple(
        replace(row, labels=(*row.labels[:-1], row.labels[-1] + sign))
        for row, sign in zip(table.rows, signs, strict=True)
    )
    return replace(table, rows=rows, caption=f"{table.caption} {_NO_PLAN} from no plan, but in a plan's folder.")


def _in_rows(cells: Sequence[Cell]) -> list[Cell]:
    """Cells in the order of a table's rows."""
    return [cell for of_data in by_data(cells).values() for cell in of_data]


def _sentences(cells: Sequence[Cell]) -> list[str]:
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
                    reasons.setdefault(one.why_not, {})[one.title] = None
            without |= dict.fromkeys(tested.without)
        found += [f"{data}, {', '.join(titles)}: {reason}, so no test." for reason, titles in reasons.items()]
        found += without
    return found


def _recalls(material: Material) -> Section:
    cells = material.main
    if not cells:
        return "The paper's table", [_NONE], []
    selected = material.selected(cells)
    table = recall_table(cells, selected=selected)
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
    table = level_table_beside_authors(material.main, selected=material.selected(material.main))
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
    blocks = [_RULE]
    for one in material.searches:
        trace = trace_table(one)
        blocks.append(_shown(replace(trace, title=f"{trace.title} on {one.cells[0].data}")))
        blocks.append(_shown(one.sensitivity()))
    return title, blocks, beta_drawings(material)


def _others(material: Material, data: str, cells: Sequence[Cell]) -> Section:
    selected = material.selected(cells)
    recalls, levels = recall_table(cells, selected=selected), level_table_beside_authors(cells, selected=selected)
    recalls, levels = (_with_plans(_with_runs(one, cells), cells, material) for one in (recalls, levels))
    blocks = [_shown(recalls), _QUOTED, _points(_sentences(cells)), *beside_published(data, cells), _shown(levels)]
    drawings = [one for one in trade_offs(material) if one.caption.startswith(f"{data}.")]
    return f"All methods on {data}", blocks, drawings


def _rest(material: Material) -> Section:
    title = "Rows for a CPU"
    if not material.rest:
        return title, [_NONE], []
    selected = material.selected(material.rest)
    blocks = ["Not in the paper; minutes on two cores."]
    blocks.append(_shown(recall_table(material.rest, selected=selected)))
    blocks.append(_points(_sentences(material.rest)))
    blocks.append(_shown(level_table_beside_authors(material.rest, selected=selected)))
    return title, blocks, []
