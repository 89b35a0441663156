"""The figures of a report with their captions, from the runs of one data set."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from longtail.report.page import slug
from longtail.report.parts import Part, mean_of
from longtail.study.captions import count
from longtail.study.comparisons import PAIRS
from longtail.study.figures import (
    Curves,
    Drawing,
    box_plots,
    class_probability,
    class_recall,
    gradient_bars,
    level_bars,
    recall_curves,
    sensitivity,
    trade_off,
)
from longtail.study.figures.plots import FEW
from longtail.study.runs import Cell, Held, Run, same_settings
from longtail.study.stats import Alternative

_OFF_SCALE = 10_000
"""Gradient balances beyond this, in per cent, are not drawn."""


def part_drawings(
    part: Part,
    *,
    reference: str = "balanced-softmax",
    alternative: Alternative = "two-sided",
    selected: str = "",
) -> list[Drawing]:
    """Return the figures of one data set; those whose numbers are missing are left out."""
    found = [_trade_off(part), _level(part), _boxes(part, reference, alternative), _recalls(part), _gradients(part)]
    found.append(_probability(part))
    return [_with_warning(one, part.cells, selected) for one in found if one is not None]


def _with_warning(drawing: Drawing, cells: Sequence[Cell], selected: str) -> Drawing:
    """Add how beta was chosen to a caption if that was on test data, and a method that is shown has a beta."""
    if "TEST" not in selected or all(cell.recipe.beta is None for cell in cells):
        return drawing
    return replace(drawing, caption=f"{drawing.caption} {selected}.")


def _level(part: Part) -> Drawing | None:
    levels = {title: part.level(cell) for title, cell in zip(part.titles, part.cells, strict=True)}
    if all(math.isnan(one.mean) for one in levels.values()):
        return None
    caption = "How unequally a model treats the groups: the range of their preference scores. Lower is fairer."
    figure = level_bars(levels, marks=part.marks)
    return Drawing("imbalance-level", "Model imbalance level", figure, caption)


def _trade_off(part: Part) -> Drawing | None:
    names = list(part.groups)
    if len(part.cells) < 2 or len(names) < 2 or not part.measured:
        return None
    first, last = names[0], names[-1]
    points = {}
    for title, cell in zip(part.titles, part.cells, strict=True):
        points[title] = part.recall(cell, first), part.recall(cell, last)
    if all(math.isnan(head.mean) or math.isnan(tail.mean) for head, tail in points.values()):
        return None
    caption = (
        f"Each point is a method; up and right is better. No method beats the frontier on both {first} and {last}."
    )
    caption += " Bars show the SD over runs." if any(len(cell.runs) > 1 for cell in part.cells) else ""
    figure = trade_off(points, head=first, tail=last, split=part.on, marks=part.marks)
    return Drawing("trade-off", f"{last.capitalize()} against {first} recall", figure, caption)


def _boxes(part: Part, method: str, alternative: Alternative) -> Drawing | None:
    cells = [cell for cell in part.main() if len(cell.runs) > 1]
    reference = part.find(method)
    reference = reference if reference in cells else (cells[0] if cells else None)
    if reference is None or not part.measured:
        return None
    alike = next(group for group in same_settings(part.cells) if reference in group)
    cells = [cell for cell in cells if cell in alike]
    others = [cell for cell in cells if cell is not reference]
    if not others:
        return None
    last = part.best if part.best in others else others[-1]
    drawn = [*(cell for cell in cells if cell is not last), last]
    paired = reference.places == last.places
    runs = {part.title(cell): cell.values(partial(Run.recall, part=part.split)) for cell in drawn}
    against = part.title(reference)
    figure = box_plots({part.name: runs}, against=against, paired=paired, alternative=alternative, marks=part.marks)
    side = "one-sided" if alternative == "greater" else "two-sided"
    caption = f"Recall over all classes on {part.on} data in each run, with the mean. p, Δμ and d compare "
    caption += f"{part.title(last)} with {against} ({'paired' if paired else 'Welch’s'} t-test, {side}, not corrected)."
    caption += part.shown(drawn)
    if not paired and len(set(reference.places) & set(last.places)) >= PAIRS:
        caption += " This test uses all runs; the table pairs the seeds that both have."
    return Drawing("boxes", "Single runs", figure, caption)


def _of_classes(part: Part, split: str | None, name: str) -> dict[str, list[float]]:
    """A measure of each class for the main methods; on training data if ``split`` is ``None``."""
    found = {part.title(cell): mean_of(cell, split or cell.runs[0].trained, name) for cell in part.main()}
    return {title: values for title, values in found.items() if values}


def _end(part: Part, drawn: Mapping[str, object]) -> str:
    means = "; means over neighbouring classes." if len(part.counts) > FEW else "."
    return means + part.shown([cell for cell in part.cells if part.title(cell) in drawn])


def _recalls(part: Part) -> Drawing | None:
    values = _of_classes(part, part.split, "recall_per_class")
    if not values:
        return None
    per_cent = {title: [100 * v for v in numbers] for title, numbers in values.items()}
    figure = class_recall(part.counts, per_cent, names=part.class_names, split=part.on, marks=part.marks)
    caption = f"Recall of each class on {part.on} data, the most frequent class first{_end(part, values)}"
    return Drawing("class-recall", "Recall per class", figure, caption)


def _probability(part: Part) -> Drawing | None:
    values = _of_classes(part, None, "probability")
    if not values or not any(part.counts):
        return None
    caption = "Mean predicted probability of each class on training data (lines) and its frequency there (bars)"
    figure = class_probability(part.counts, values, names=part.class_names, marks=part.marks)
    return Drawing("class-probability", "Predicted class frequencies", figure, caption + _end(part, values))


def _gradients(part: Part) -> Drawing | None:
    """Only methods with a value in every group, since a missing bar looks like 0."""
    means = {
        title: {group: cell.summary(partial(Run.gradient_balance, group=group)).mean for group in part.groups}
        for title, cell in zip(part.titles, part.cells, strict=True)
    }
    measured = {title: found for title, found in means.items() if not all(map(math.isnan, found.values()))}
    drawn = {title: found for title, found in measured.items() if all(abs(v) <= _OFF_SCALE for v in found.values())}
    if not drawn:
        return None
    caption = (
        "Net gradient of the weights of the classifier on training data, (reward − penalty) / reward, mean over the "
        "classes of a group. Below zero, training pushes the group down more than up."
    )
    left_out = [title for title in measured if title not in drawn]
    if left_out:
        caption += f" Left out, because a group has no or almost no reward: {', '.join(left_out)}."
    return Drawing("gradients", "Net gradient per group", gradient_bars({part.name: drawn}), caption)


def curve_drawings(part: Part, selected: str = "") -> list[Drawing]:
    """Return recall over epochs, a figure per method; methods whose runs logged no recall are left out."""
    found: list[Drawing] = []
    for title, cell in zip(part.titles, part.cells, strict=True):
        curves = curves_of(cell, part.split)
        if curves is not None:
            line = "dashed" if part.split == "test" else "dotted"
            runs = f"; mean over {len(cell.runs)} runs" if len(cell.runs) > 1 else ""
            caption = f"Training data (solid) and {part.on} data ({line}){runs}."
            drawing = Drawing(f"curves-{slug(title)}", title, recall_curves({title: curves}, split=part.on), caption)
            found.append(_with_warning(drawing, [cell], selected))
    return found


def curves_of(cell: Cell, split: Held = "test") -> Curves | None:
    """Return recall over epochs as the mean over the runs of a cell; ``None`` without two epochs that all logged."""
    logs = [{epoch: line["recall"] for epoch, line in enumerate(run.log(), 1) if "recall" in line} for run in cell.runs]
    epochs = sorted(set.intersection(*(set(log) for log in logs)))
    if len(epochs) < 2:
        return None

    def mean(split: str) -> Mapping[str, list[float]]:
        groups = [g for g in logs[0][epochs[0]].get(split, {}) if g != "all"]
        return {g: [100 * _mean([log[e][split].get(g) for log in logs]) for e in epochs] for g in groups}

    return Curves(epochs, mean("train"), mean(split))


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else math.nan


def beta_drawing(
    cells: Sequence[Cell], *, chosen: float | None = None, chosen_on: str = "validation data", selected: str = ""
) -> Drawing:
    """Return the recall of each group over beta."""
    ordered = sorted(cells, key=lambda cell: cell.recipe.beta or 0.0)
    betas = [cell.recipe.beta or 0.0 for cell in ordered]
    has_val = all("val" in run.result["splits"] for cell in ordered for run in cell.runs) and chosen_on != "TEST data"
    held: Held = "val" if has_val else "test"

    def recalls(cell: Cell, split: str, group: str) -> float:
        part = cell.runs[0].trained if split == "train" else held
        return cell.summary(partial(Run.recall, group=group, part=part)).mean

    groups = (*ordered[0].groups, "all")
    values = {
        split: {group: [recalls(cell, split, group) for cell in ordered] for group in groups}
        for split in ("train", held)
    }
    figure = sensitivity(betas, values, chosen=chosen, chosen_on=chosen_on)
    fewest, most = (found(len(cell.runs) for cell in cells) for found in (min, max))
    runs = f"{fewest} to {most} runs" if fewest < most else count(most, "run")
    caption = f"Recall of each group on training data (solid) and {'validation' if has_val else 'test'} data. "
    caption += f"{runs} per β." + (f" {selected}." if selected else "")
    return Drawing("beta", "Sensitivity to β", figure, caption)
