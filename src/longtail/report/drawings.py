"""The figures of a study: which there are for the runs at hand, with captions, from cells of runs."""

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial

from longtail.report.page import slug
from longtail.report.parts import Part, mean_of
from longtail.study.captions import with_selected
from longtail.study.comparisons import PAIRS
from longtail.study.figures.boxes import box_plots
from longtail.study.figures.classwise import class_probability, class_recall, target_probability
from longtail.study.figures.curves import Curves, recall_curves
from longtail.study.figures.drawing import Drawing
from longtail.study.figures.gradients import gradient_bars
from longtail.study.figures.levels import level_bars
from longtail.study.figures.sensitivity import sensitivity
from longtail.study.figures.tradeoff import Point, trade_off
from longtail.study.runs import Cell, Held, Run, method_title, same_settings
from longtail.study.stats import Alternative, Summary

__all__ = [
    "beta_drawing",
    "curve_drawings",
    "curves_of",
    "overview_drawings",
    "part_drawings",
]

_OFF_SCALE = 10_000
"""Per cent: beyond it the balance of a gradient is not drawn."""


def overview_drawings(parts: Sequence[Part], selected: str = "") -> list[Drawing]:
    """Figures over several data sets."""
    twice = {one for part in parts for one, times in Counter(cell.method for cell in part.cells).items() if times > 1}
    everything = {part.name: _levels_by_method(part, twice) for part in parts}
    often = Counter(title for found in everything.values() for title in found)
    levels = {
        name: {title: one for title, one in found.items() if often[title] > 1} for name, found in everything.items()
    }
    levels = {name: found for name, found in levels.items() if found}
    once = [title for title, times in often.items() if times == 1]
    if len(levels) < 2:
        return []
    caption = (
        "The range of preference scores over head, medium and tail: the lower, the more evenly a model serves them."
    )
    caption += f" Left out, because they are on one data set only: {', '.join(once)}." if once else ""
    caption = with_selected(caption, [cell for part in parts for cell in part.cells], selected)
    return [Drawing("imbalance-level", "Model imbalance level", level_bars(levels), caption)]


def part_drawings(
    part: Part,
    *,
    reference: str = "balanced-softmax",
    alternative: Alternative = "two-sided",
    selected: str = "",
) -> list[Drawing]:
    """Figures of one data set; those that its runs do not have the numbers for are left out.

    Args:
        part: the data set's.
        reference: the method that the best is tested against.
        alternative: of that test.
        selected: how beta was chosen, for the captions.
    """
    found = [_trade_off(part), _level(part), _boxes(part, reference, alternative), _recalls(part), _gradients(part)]
    found += [_probability(part), _target(part)]
    return [_said(one, part.cells, selected) for one in found if one is not None]


def _said(drawing: Drawing, cells: Sequence[Cell], selected: str) -> Drawing:
    return replace(drawing, caption=with_selected(drawing.caption, cells, selected))


def _levels(part: Part) -> dict[str, Summary]:
    found = {title: part.level(cell) for title, cell in zip(part.titles, part.cells, strict=True)}
    return found if any(not math.isnan(one.mean) for one in found.values()) else {}


def _levels_by_method(part: Part, twice: Container[str]) -> dict[str, Summary]:
    """Levels under the methods' names, without betas, which differ between data sets, but for methods there twice."""
    names = {
        title: title if cell.method in twice else method_title(cell.method)
        for title, cell in zip(part.titles, part.cells, strict=True)
    }
    return {names[title]: one for title, one in _levels(part).items()}


def _level(part: Part) -> Drawing | None:
    levels = _levels(part)
    caption = (
        "How unevenly a model serves head, medium and tail: the range of their preference scores. Lower is fairer."
    )
    return (
        Drawing("imbalance-level", "Model imbalance level", level_bars({part.name: levels}, marks=part.marks), caption)
        if levels
        else None
    )


def _trade_off(part: Part) -> Drawing | None:
    names = list(part.groups)
    if len(part.cells) < 2 or len(names) < 2 or not part.measured:
        return None
    first, last = names[0], names[-1]
    points = {}
    for title, cell in zip(part.titles, part.cells, strict=True):
        head, tail = part.recall(cell, first), part.recall(cell, last)
        points[title] = Point(head.mean, tail.mean, head.sd, tail.sd)
    if all(math.isnan(point.head) or math.isnan(point.tail) for point in points.values()):
        return None
    caption = f"Who pays for the {last}: each point is a method, up and right is better. No method is above and to the "
    caption += "right of the frontier." + (" Bars: SD over runs." if any(len(c.runs) > 1 for c in part.cells) else "")
    title = f"{last.capitalize()} against {first}"
    return Drawing(
        "trade-off", title, trade_off(points, head=first, tail=last, split=part.on, marks=part.marks), caption
    )


def _boxes(part: Part, method: str, alternative: Alternative) -> Drawing | None:
    cells = [cell for cell in part.main() if len(cell.runs) > 1]
    reference = part.find(method)
    reference = reference if reference in cells else (cells[0] if cells else None)
    if reference is None or not part.measured:
        return None
    alike = next(group for group in same_settings(part.cells) if reference in group)
    cells = [cell for cell in cells if cell in alike]
    if len(cells) < 2:
        return None
    last = (
        part.best
        if part.best is not reference and part.best in cells
        else next(cell for cell in reversed(cells) if cell is not reference)
    )
    drawn = [*(cell for cell in cells if cell is not last), last]
    paired = reference.places == last.places
    runs = {part.title(cell): cell.values(partial(Run.recall, part=part.split)) for cell in drawn}
    against = part.title(reference)
    figure = box_plots({part.name: runs}, against=against, paired=paired, alternative=alternative, marks=part.marks)
    side = "one-sided" if alternative == "greater" else "two-sided"
    caption = f"Recall over all classes on {part.on} data in every run. p, Δμ and d compare {part.title(last)} with "
    caption += f"{against} ({'paired' if paired else 'Welch’s'} t-test, {side}, not corrected)." + part.shown(drawn)
    if not paired and len(set(reference.places) & set(last.places)) >= PAIRS:
        caption += " It is of all runs; the table pairs the seeds that both have."
    if any(len(cell.runs) == 1 for cell in part.cells):
        caption += " Methods with a single run have no box."
    return Drawing("boxes", "Runs", figure, caption)


def _main(part: Part, split: str | None, name: str) -> dict[str, list[float]]:
    """A measure of each class for the main methods; training data as each run's ``train_stats`` says."""
    found = {}
    for cell in part.main():
        values = mean_of(cell, split or cell.runs[0].trained, name)
        if values:
            found[part.title(cell)] = values
    return found


def _recalls(part: Part) -> Drawing | None:
    values = _main(part, part.split, "recall_per_class")
    if not values:
        return None
    per_cent = {title: [100 * v for v in numbers] for title, numbers in values.items()}
    figure = class_recall(part.counts, per_cent, names=part.class_names, split=part.on, marks=part.marks)
    caption = f"Recall of each class on {part.on} data, the most frequent class first" + _means(part, values)
    return Drawing("class-recall", "Recall over classes", figure, caption)


def _means(part: Part, drawn: Mapping[str, object]) -> str:
    more = "; means over neighbouring classes." if len(part.counts) > 120 else "."
    return more + part.shown([cell for cell in part.cells if part.title(cell) in drawn])


def _gradients(part: Part) -> Drawing | None:
    """Of methods with a value in every group, none off the scale: where a bar is missing it looks like 0."""
    means = {
        title: {group: cell.summary(partial(Run.gradient_balance, group=group)).mean for group in part.groups}
        for title, cell in zip(part.titles, part.cells, strict=True)
    }
    measured = {title: found for title, found in means.items() if not all(map(math.isnan, found.values()))}
    undefined = _groups_where(measured, math.isnan)
    beyond = _groups_where(measured, lambda mean: abs(mean) > _OFF_SCALE)
    drawn = {title: found for title, found in measured.items() if title not in undefined | beyond}
    if not drawn:
        return None
    caption = (
        "Reward less penalty over reward in the gradient of the classifier’s weight, on training data, mean over the "
        "classes of a group. Below zero, the gradient pushes a group down more than up."
    )
    if undefined:
        caption += f" Methods left out because it is undefined in a run, without any reward: {_listed(undefined)}."
    if beyond:
        caption += f" Methods left out because it is beyond ±{_OFF_SCALE:,} %, where there is next to no reward "
        caption += f"and the size of the ratio says little: {_listed(beyond)}."
    return Drawing("gradients", "Whom the gradient works for", gradient_bars({part.name: drawn}), caption)


def _groups_where(found: Mapping[str, Mapping[str, float]], is_so: Callable[[float], bool]) -> dict[str, list[str]]:
    """Methods with those of their groups whose value is so; those without one are left out."""
    groups = {title: [group for group, value in values.items() if is_so(value)] for title, values in found.items()}
    return {title: names for title, names in groups.items() if names}


def _listed(groups: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{title} ({' and '.join(names)})" for title, names in groups.items())


def _probability(part: Part) -> Drawing | None:
    values = _main(part, None, "probability")
    if not values or not any(part.counts):
        return None
    caption = "Mean predicted probability of each class on training data (lines) against its frequency there (bars)"
    figure = class_probability(part.counts, values, names=part.class_names, marks=part.marks)
    return Drawing("class-probability", "Class probability", figure, caption + _means(part, values))


def _target(part: Part) -> Drawing | None:
    values = _main(part, part.split, "target_probability_per_class")
    if not values:
        return None
    caption = f"How much probability the true class gets, over the {part.on} images of each class"
    caption += _means(part, values)
    figure = target_probability(part.counts, values, names=part.class_names, marks=part.marks, split=part.on)
    return Drawing("target-probability", "Target probability", figure, caption)


def curve_drawings(part: Part, selected: str = "") -> list[Drawing]:
    """Recall over epochs, a figure a method; methods whose runs logged no recall are left out."""
    found: list[Drawing] = []
    for title, cell in zip(part.titles, part.cells, strict=True):
        curves = curves_of(cell, part.split)
        if curves is not None:
            line = "Dashed" if part.split == "test" else "Dotted"
            caption = f"Solid: training data. {line}: {part.on} data." + (
                f" Mean over {len(cell.runs)} runs." if len(cell.runs) > 1 else ""
            )
            drawing = Drawing(f"curves-{slug(title)}", title, recall_curves({title: curves}, split=part.on), caption)
            found.append(_said(drawing, [cell], selected))
    return found


def curves_of(cell: Cell, split: Held = "test") -> Curves | None:
    """Recall over epochs on training data and a split, as its mean over a cell's runs.

    ``None`` where a run did not log it at two epochs or more.
    """
    logs = []
    for run in cell.runs:
        lines = [(place, line["recall"]) for place, line in enumerate(run.log(), 1) if "recall" in line]
        if len(lines) < 2:
            return None
        logs.append(dict(lines))
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
    """Recall of each group over beta.

    Args:
        cells: of one method, a beta each.
        chosen: the beta that was chosen.
        chosen_on: the data that it was chosen on, which is drawn where the runs have it.
        selected: how it was chosen, for the caption.
    """
    ordered = sorted(cells, key=lambda cell: cell.recipe.beta or 0.0)
    has_val = all("val" in run.result["splits"] for cell in ordered for run in cell.runs) and chosen_on != "TEST data"
    recalls: dict[str, dict[str, list[float]]] = {}
    for split in ("train", "val" if has_val else "test"):
        for group in (*ordered[0].groups, "all"):
            parts = [cell.runs[0].trained if split == "train" else split for cell in ordered]
            recalls.setdefault(split, {})[group] = [
                cell.summary(partial(Run.recall, group=group, part=part)).mean
                for cell, part in zip(ordered, parts, strict=True)
            ]
    figure = sensitivity([cell.recipe.beta or 0.0 for cell in ordered], recalls, chosen=chosen, chosen_on=chosen_on)
    data = "validation" if has_val else "test"
    caption = f"Recall of each group for each β, on training data (solid) and {data} data. "
    caption += _runs_a_beta(ordered)
    return _said(Drawing("beta", "Sensitivity to β", figure, caption), cells, selected)


def _runs_a_beta(cells: Sequence[Cell]) -> str:
    fewest, most = (found(len(cell.runs) for cell in cells) for found in (min, max))
    if fewest < most:
        return f"{fewest} to {most} runs a β."
    return f"{most} runs a β." if most > 1 else "One run a β."
