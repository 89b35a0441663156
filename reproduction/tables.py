"""Our numbers beside the paper's, as tables: recall, imbalance level, class probability and gradient balance."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isnan, nan

from longtail.study.captions import caption_of, how_measured, numbers
from longtail.study.rendering import Row, Table, Value
from longtail.study.runs import Cell, Run, by_data, distinct_titles, groups_of, method_title, ordered
from longtail.study.stats import Summary, format_p
from longtail.study.tables import measured_and_levels, measures_table
from reproduction import paper
from reproduction.measure import REDRAWN_FILE, is_measured, redrawn_shift, untrained_gradients
from reproduction.significance import compare_summaries

__all__ = [
    "QUOTED_SIGN",
    "balanced_shift_table",
    "gradient_table",
    "in_rows",
    "level_table_beside_authors",
    "paper_table",
    "published_table",
    "recall_as_published",
    "redrawn_shift_table",
    "shift_table",
    "untrained_gradient_table",
]

QUOTED_SIGN = "‡"
"""Marks rows that are from the paper."""
_GROUPS = ("head", "medium", "tail")
_FAR = 2.0  # points, from what other papers report
_Rows = tuple[tuple[str, str], Sequence[Summary], Sequence[float | None]]
"""Labels, our values, the authors' values."""


def in_rows(cells: Sequence[Cell]) -> list[Cell]:
    """Cells in the order of a table's rows."""
    return [cell for of_data in by_data(cells).values() for cell in of_data]


def recall_as_published(run: Run, group: str = "all") -> float:
    """Test recall in per cent, with classes without test samples counted as the paper counts them."""
    name = "recall_absent_as_zero" if run.data in paper.ABSENT_AS_ZERO else "recall"
    return 100 * float(run.result["splits"]["test"].get(name, {}).get(group, nan))


def paper_table(cells: Sequence[Cell], *, selected: str = "") -> Table:
    """Our recall beside the paper's, per group and over all classes.

    A difference of more than two of the paper's SDs has an exclamation mark. p is from Welch's two-sided t-test on both
    means and SDs.
    """
    rows = []
    for cell in ordered(cells):
        theirs = paper.recalls_of(cell)
        for group in (*cell.groups, "all"):
            published = theirs.get(group)
            if published is None:
                continue
            ours = cell.summary(partial(recall_as_published, group=group))
            off = (ours.mean - published.mean) / published.sd if published.sd > 0 else nan
            p_value = compare_summaries(ours, published).p_value if min(ours.runs, published.runs) > 1 else nan
            values = (
                Value(ours),
                Value(published),
                _number(ours.mean - published.mean),
                replace(_number(off), mark="!" if abs(off) > 2 else ""),
                replace(_number(p_value), shown="" if isnan(p_value) else format_p(p_value).removeprefix("= ")),
            )
            rows.append(Row((cell.data, cell.title, group), values))
    if not rows:
        raise ValueError("Expected runs of data sets and methods that the paper has, but got none.")
    notes = [
        f"{data}: a class without a test sample counts as 0 here, as in the paper."
        for data in by_data(cells)
        if data in paper.ABSENT_AS_ZERO
    ]
    caption = "Δ: here minus paper, in points and in the paper's SDs; ! marks more than two SDs. p: Welch's t-test, "
    caption += "two-sided, not corrected."
    return Table(
        "Recall on test data beside the paper's, per cent",
        ("Data", "Method", "Group"),
        ("Here", "Paper", "Δ", "in SDs", "p"),
        tuple(rows),
        " ".join([caption, *notes, caption_of(cells, selected=selected)]),
    )


def level_table_beside_authors(cells: Sequence[Cell], *, selected: str = "") -> Table:
    """The model imbalance level of each method, with a column for the authors' values where they have any."""
    where, notes = measured_and_levels(cells)
    table = replace(
        measures_table(cells),
        title=f"Model imbalance level on {where}",
        columns=("I",),
        caption=" ".join([*notes, "Lower is better.", caption_of(cells, selected=selected)]),
    )
    table = replace(table, rows=tuple(replace(row, values=row.values[-1:]) for row in table.rows))
    if not any(paper.imbalance_level(cell.data) for cell in cells):
        return table
    authors = [paper.imbalance_level(cell.data).get(cell.method) for cell in in_rows(cells)]
    rows = tuple(
        replace(row, values=(*row.values, None if value is None else _number(value)))
        for row, value in zip(table.rows, authors, strict=True)
    )
    caption = " ".join([*_short_of_images(cells), table.caption])
    return replace(table, columns=(*table.columns, "I, the authors’"), rows=rows, caption=caption)


def _short_of_images(cells: Sequence[Cell]) -> list[str]:
    """A sentence about runs whose training recall, which I depends on, was not measured on all training images."""
    found = []
    for cell in cells:
        for run in cell.runs:
            splits = run.result["splits"]
            seen, there = (splits.get(name, {}).get("samples") for name in (run.trained, "train"))
            if seen is not None and there is not None and seen < there:
                found.append(f"{cell.title}, seed {run.recipe.seed} ({seen:,} of {there:,} images)")
    if not found:
        return []
    return [f"Training recall measured without the last, incomplete batch: {'; '.join(found)}."]


def published_table(data: str, cells: Sequence[Cell]) -> list[str]:
    """Our recall beside what other papers report, as blocks of Markdown; empty if nothing is known for a data set."""
    published = paper.other_papers()
    if published["data"] != data:
        return []
    lines = ["| Method | runs | here | published | difference | source |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    notes = []
    for cell in cells:
        known = published["methods"].get(paper.method_key(cell))
        if known is None:
            continue
        ours = cell.summary(Run.recall)
        low, high = known["low"], known["high"]
        difference = ours.mean - min(max(ours.mean, low), high)
        span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        lines.append(
            f"| {cell.title} | {ours.runs} | {ours.mean:.2f} | {span} | {difference:+.2f} | {known['source']} |"
        )
        if abs(difference) > _FAR:
            notes.append(f"- **{cell.title}**: {known.get('note', 'the cause is unknown.')}")
    return [
        f"**Recall over all classes beside other papers**\n\n{published['what']}.",
        "\n".join(lines),
        f"Differences are to the nearer end of the range. Differences of more than {_FAR:g} points:\n\n"
        + ("\n".join(notes) or "none."),
    ]


def gradient_table(cells: Sequence[Cell], *, selected: str = "") -> Table:
    """Balance of the classifier's gradient, (reward - penalty) / reward, per group, beside the authors'."""
    groups, titles = groups_of(cells), _titles(cells)
    rows = [
        (
            (cell.data, titles[cell]),
            [cell.summary(partial(Run.gradient_balance, group=group)) for group in groups],
            [paper.gradient_balance(cell.data).get(cell.method, {}).get(group) for group in groups],
        )
        for cell in ordered(cells)
    ]
    notes = []
    if any(all(isnan(one.mean) for one in ours) for _, ours, _ in rows):
        notes.append(
            "A row without values: the loss is not a cross entropy of shifted logits, or nothing was measured on "
            "training data."
        )
    if any(abs(one.mean) >= 1e6 for _, ours, _ in rows for one in ours):
        notes.append("Above a million per cent there is almost no reward, and the size of the ratio means little.")
    caption = " ".join([*notes, caption_of(cells, selected=selected)])
    return _beside("Balance of the gradient of the weight, per cent", groups, rows, caption)


def shift_table(cells: Sequence[Cell], *, selected: str = "") -> Table:
    """Δp̂ of models on the imbalanced data that they were trained on, beside the paper's (softmax only)."""
    groups, titles = groups_of(cells), _titles(cells)
    published = paper.tables()["probability_shift_softmax"]
    rows = [
        (
            (cell.data, titles[cell]),
            [cell.summary(partial(Run.shift, group=group)) for group in groups],
            [published.get(cell.data, {}).get(group) if cell.method == "softmax" else None for group in groups],
        )
        for cell in ordered(cells)
    ]
    title = "Δp̂: class probability against class frequency, per cent"
    return _beside(title, groups, rows, caption_of(cells, selected=selected))


def redrawn_shift_table(cells: Sequence[Cell]) -> Table:
    """Δp̂ of softmax models on another draw of their long-tailed subset, beside the paper's."""
    published = paper.tables()["probability_shift_softmax"]
    groups, titles = groups_of(cells), _titles(cells)
    rows = []
    for cell in ordered(cells):
        found, theirs = redrawn_shift(cell), published.get(cell.data, {})
        rows.append(
            ((cell.data, titles[cell]), [found[name] for name in groups], [theirs.get(name) for name in groups])
        )
    measured = [Cell(tuple(run for run in cell.runs if is_measured(run, REDRAWN_FILE))) for cell in ordered(cells)]
    each = [f"{one.data} {len(one.runs)} (seed{'s' * (len(one.runs) > 1)} {numbers(one.seeds)})" for one in measured]
    caption = "Each model is evaluated on the subset that the next seed draws. It contains all images of the largest "
    caption += f"class that the model was trained on and almost none of the rarest. Models: {', '.join(each)}. "
    title = "Δp̂ on another draw of the subset: class probability against class frequency, per cent"
    return _beside(title, groups, rows, caption + caption_of(measured))


def balanced_shift_table(values: Mapping[str, Mapping[str, Summary]], cells: Sequence[Cell]) -> Table:
    """Δp of a balanced model on long-tailed training data, beside the paper's.

    Args:
        values: Δp per group for each data set, from :func:`reproduction.measure.balanced_shift`.
        cells: the balanced model's runs, for the caption.
    """
    published = paper.tables()["probability_shift_balanced_model"]
    groups = [group for group in _GROUPS if any(group in row for row in values.values())]
    rows = [
        (
            (data, "balanced model"),
            [row[group] for group in groups],
            [published.get(data, {}).get(group) for group in groups],
        )
        for data, row in values.items()
    ]
    caption = "The balanced models were trained on all of the data and evaluated on the long-tailed subset of their "
    title = "Δp: class probability of a balanced model against class frequency, per cent"
    return _beside(title, groups, rows, f"{caption}seed. {caption_of(cells)}")


def untrained_gradient_table(cells: Sequence[Cell]) -> Table:
    """Balance of the gradient before the first step, for each loss, beside the authors'."""
    groups = groups_of(cells)
    rows: list[_Rows] = []
    for cell in ordered(cells):
        found, chance = untrained_gradients(cell), untrained_gradients(cell, "at_chance")
        for method, ours in found.items():
            theirs = paper.gradient_balance(cell.data).get(method, {})
            loss = f"untrained, loss of {method_title(method)}"
            equal = [Summary(chance[method][group].mean, nan, 1) for group in groups]
            rows += [
                ((cell.data, f"{loss}, all logits equal"), equal, [None for _ in groups]),
                ((cell.data, loss), [ours[group] for group in groups], [theirs.get(group) for group in groups]),
            ]
    each = ", ".join(f"{cell.data} {untrained_gradients(cell)['softmax'][groups[0]].runs}" for cell in ordered(cells))
    caption = (
        f"Mean ± SD over untrained networks, one per seed: {each}; CBS with the authors’ β; {how_measured(cells)}."
    )
    return _beside("Balance of the gradient of the weight before the first step, per cent", groups, rows, caption)


def _titles(cells: Sequence[Cell]) -> dict[Cell, str]:
    return {
        cell: title
        for of_data in by_data(cells).values()
        for cell, title in zip(of_data, distinct_titles(of_data), strict=True)
    }


def _number(value: float) -> Value:
    return Value(Summary(value, nan, 1))


def _beside(title: str, groups: Sequence[str], rows: Sequence[_Rows], caption: str) -> Table:
    """Our rows, each followed by the authors' where they have one."""
    found, quoted = [], False
    for (data, method), ours, theirs in rows:
        found.append(Row((data, method), tuple(map(Value, ours))))
        if any(value is not None for value in theirs):
            values = tuple(None if value is None else _number(value) for value in theirs)
            found.append(Row((data, f"{method} {QUOTED_SIGN}"), values))
            quoted = True
    columns = tuple(name.capitalize() for name in groups)
    caption += f" {QUOTED_SIGN} from the paper, not run here." if quoted else ""
    return Table(title, ("Data", "Method"), columns, tuple(found), caption)
