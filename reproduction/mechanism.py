"""Tables of what lies behind recall, class probabilities and the gradient's balance, beside the authors'."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import isnan, nan
from typing import Literal

from longtail.study.captions import caption_of, how_measured, numbers
from longtail.study.rendering import Row, Table, Value, is_huge
from longtail.study.runs import Cell, Run, by_data, distinct_titles, groups_of, method_title, ordered
from longtail.study.stats import Summary
from reproduction import paper
from reproduction.asking import answers_in
from reproduction.redrawn import REDRAWN_FILE, redrawn_shift
from reproduction.untrained import untrained_gradients

__all__ = [
    "balanced_shift_table",
    "gradient_table",
    "redrawn_shift_table",
    "shift_table",
    "untrained_gradient_table",
]

_GROUPS = ("head", "medium", "tail")
_Rows = tuple[tuple[str, str], Sequence[Summary], Sequence[float | None]]
"""Labels, our values, the authors'."""


def _beside(
    title: str,
    columns: tuple[str, ...],
    rows: Sequence[_Rows],
    caption: str,
    command: str,
) -> Table:
    """Our rows, each followed by the authors' where they have one."""
    found = []
    for labels, ours, theirs in rows:
        found.append(Row(labels, tuple(map(Value, ours))))
        if any(value is not None for value in theirs):
            values = tuple(None if v is None else Value(Summary(v, nan, 1)) for v in theirs)
            found.append(Row(labels, values, "paper"))
    return Table(title, ("Data", "Method"), columns, tuple(found), caption, command=command)


def _called(cells: Sequence[Cell]) -> dict[Cell, str]:
    """What each cell is called among those of its data set."""
    return {
        cell: title
        for of_data in by_data(cells).values()
        for cell, title in zip(of_data, distinct_titles(of_data), strict=True)
    }


def gradient_table(
    cells: Sequence[Cell], *, form: Literal["bias", "weight"] = "weight", selected: str = "", command: str = ""
) -> Table:
    """Balance of the classifier's gradient, (reward - penalty) / reward, in each group, beside the authors'."""
    groups, called = groups_of(cells), _called(cells)
    rows = [
        (
            (cell.data, called[cell]),
            [cell.summary(partial(Run.gradient_balance, group=group, form=form)) for group in groups],
            [paper.gradient_balance(cell.data).get(cell.method, {}).get(group) for group in groups],
        )
        for cell in ordered(cells)
    ]
    caption = caption_of(cells, selected=selected)
    if any(is_huge(one.mean) for _, ours, _ in rows for one in ours):
        caption = (
            f"From a million per cent on there is next to no reward, and the size of the ratio says little. {caption}"
        )
    if any(all(isnan(one.mean) for one in ours) for _, ours, _ in rows):
        caption = (
            "A row without values: the loss is not a cross entropy of shifted logits over all images alike, whose "
            f"gradient class statistics have, or nothing was measured on training data. {caption}"
        )
    return _beside(f"Balance of the gradient of the {form}, per cent", _titles(groups), rows, caption, command)


def shift_table(cells: Sequence[Cell], *, selected: str = "", command: str = "") -> Table:
    """Δp̂ of models trained on imbalanced data, on that data, beside the paper's (softmax)."""
    groups, called = groups_of(cells), _called(cells)
    published = paper.tables()["probability_shift_softmax"]
    rows = [
        (
            (cell.data, called[cell]),
            [cell.summary(partial(Run.shift, group=group)) for group in groups],
            [published.get(cell.data, {}).get(group) if cell.method == "softmax" else None for group in groups],
        )
        for cell in ordered(cells)
    ]
    caption = caption_of(cells, selected=selected)
    return _beside("Δp̂: class probability against class frequency, per cent", _titles(groups), rows, caption, command)


def redrawn_shift_table(cells: Sequence[Cell], *, command: str = "") -> Table:
    """Δp̂ of softmax models on another draw of their long-tailed subset, beside the paper's.

    Args:
        cells: softmax's, of which a model or more was asked.
        command: what repeats it.
    """
    published = paper.tables()["probability_shift_softmax"]
    groups, called = groups_of(cells), _called(cells)
    rows = []
    for cell in ordered(cells):
        found, theirs = redrawn_shift(cell), published.get(cell.data, {})
        ours, authors = [found[name] for name in groups], [theirs.get(name) for name in groups]
        rows.append(((cell.data, called[cell]), ours, authors))
    asked = [Cell(tuple(run for run in cell.runs if answers_in(run, REDRAWN_FILE))) for cell in ordered(cells)]
    caption = "Each model is asked about the subset that the next seed draws, of which it has seen all of the largest "
    caption += f"class and hardly any of the rarest; models asked: {', '.join(map(_numbered, asked))}. "
    title = "Δp̂ on another draw of the subset: class probability against class frequency, per cent"
    return _beside(title, _titles(groups), rows, caption + caption_of(asked), command)


def _numbered(cell: Cell) -> str:
    """A data set and how many runs there are on it, with their seeds."""
    return f"{cell.data} {len(cell.runs)} (seed{'s' * (len(cell.runs) > 1)} {numbers(cell.seeds)})"


def balanced_shift_table(
    values: Mapping[str, Mapping[str, Summary]], cells: Sequence[Cell], *, command: str = ""
) -> Table:
    """Δp of a balanced model on long-tailed training data, beside the paper's.

    Args:
        values: for each data set (``"C10-LT100"``) what :func:`reproduction.balanced.balanced_shift` found.
        cells: the balanced model's runs, for the caption.
        command: what repeats it.
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
    caption = caption_of(cells)
    title = "Δp: class probability of a balanced model against class frequency, per cent"
    return _beside(title, _titles(groups), rows, caption, command)


def untrained_gradient_table(cells: Sequence[Cell], *, command: str = "") -> Table:
    """Balance of the gradient of networks before their first step, under each loss, beside the authors'.

    Args:
        cells: softmax's, of which a run or more was asked.
        command: what repeats it.
    """
    groups = groups_of(cells)
    rows: list[_Rows] = []
    for cell in ordered(cells):
        found, chance = untrained_gradients(cell), untrained_gradients(cell, "at_chance")
        for method, ours in found.items():
            theirs = paper.gradient_balance(cell.data).get(method, {})
            loss = f"untrained, loss of {method_title(method)}"
            known = [Summary(chance[method][group].mean, nan, 1) for group in groups]
            published = [theirs.get(group) for group in groups]
            rows += [
                ((cell.data, f"{loss}, all logits the same"), known, [None for _ in groups]),
                ((cell.data, loss), [ours[group] for group in groups], published),
            ]
    asked = ", ".join(f"{cell.data} {untrained_gradients(cell)['softmax'][groups[0]].runs}" for cell in ordered(cells))
    caption = f"Mean ± SD over networks that no step was taken with, one a seed: {asked}; CBS with the authors’ β; "
    caption += f"{how_measured(cells)}."
    title = "Balance of the gradient of the weight before the first step, per cent"
    return _beside(title, _titles(groups), rows, caption, command)


def _titles(groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.capitalize() for name in groups)
