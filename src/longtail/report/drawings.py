"""The figures of a report with their captions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from longtail._program import count
from longtail.report.data_results import DataResults, mean_over_runs, mean_per_class
from longtail.report.page import slug
from longtail.study.figures.plots import (
    FEW,
    MOST_BARS,
    Curves,
    beta_traces,
    class_probability,
    class_recall,
    learning_curves,
    level_bars,
    sensitivity,
    trade_off,
)
from longtail.study.figures.style import Drawing
from longtail.study.runs import Cell, Held, Run


def method_drawings(results: DataResults) -> list[Drawing]:
    """Return the figures of one data set; those whose numbers are missing are left out."""
    drawings = (_trade_off, _level, _recalls, _probability)
    found = [drawing for draw in drawings if (drawing := draw(results)) is not None]
    return [replace(one, caption=one.caption + results.warning()) for one in found]


def _level(results: DataResults) -> Drawing | None:
    levels = {title: results.level(cell) for cell, title in results.titles.items()}
    if all(math.isnan(one.mean) for one in levels.values()):
        return None
    caption = "How unequally a model treats the groups: the range of their preference scores. Lower is better."
    figure = level_bars(levels, marks=results.marks)
    return Drawing("imbalance-level", "Model imbalance level", figure, caption)


def _trade_off(results: DataResults) -> Drawing | None:
    names = list(results.groups)
    if len(results.cells) < 2 or len(names) < 2 or not results.measured:
        return None
    first, last = names[0], names[-1]
    points = {}
    for cell, title in results.titles.items():
        points[title] = results.recall(cell, first), results.recall(cell, last)
    if all(math.isnan(head.mean) or math.isnan(tail.mean) for head, tail in points.values()):
        return None
    caption = "Each point is a method; up and right is better. The line connects methods that no other beats on both."
    caption += " Bars show the SD over runs." if any(len(cell.runs) > 1 for cell in results.cells) else ""
    figure = trade_off(points, head=first, tail=last, split=results.on, marks=results.marks)
    return Drawing("trade-off", f"{last.capitalize()} against {first} recall", figure, caption)


def _per_class(results: DataResults, split: str | None, name: str) -> dict[str, list[float]]:
    """A measure of each class for the main methods; on training data if ``split`` is ``None``."""
    found = {results.titles[cell]: mean_per_class(cell, split or cell.runs[0].trained, name) for cell in results.main}
    return {title: values for title, values in found.items() if values}


def _end(results: DataResults, drawn: Mapping[str, object], few: int) -> str:
    means = "; means over neighbouring classes." if len(results.counts) > few else "."
    return means + results.shown([cell for cell in results.cells if results.titles[cell] in drawn])


def _recalls(results: DataResults) -> Drawing | None:
    values = _per_class(results, results.split, "recall_per_class")
    if not values:
        return None
    per_cent = {title: [100 * v for v in numbers] for title, numbers in values.items()}
    figure = class_recall(results.counts, per_cent, groups=results.groups, names=results.class_names)
    caption = f"Recall of each class on {results.on} data, the most frequent class first"
    if len(results.counts) <= MOST_BARS and any(math.isnan(value) for numbers in values.values() for value in numbers):
        caption += f"; grey: no {results.on} data"
    caption += _end(results, values, MOST_BARS)
    return Drawing("class-recall", "Recall per class", figure, caption)


def _probability(results: DataResults) -> Drawing | None:
    values = _per_class(results, None, "probability")
    if not values or not any(results.counts):
        return None
    caption = "Mean predicted probability of each class on training data (lines) and its frequency there (bars)"
    figure = class_probability(results.counts, values, names=results.class_names, marks=results.marks)
    return Drawing("class-probability", "Predicted class frequencies", figure, caption + _end(results, values, FEW))


def curve_drawings(results: DataResults) -> list[Drawing]:
    """Return loss and recall over epochs, a figure per method; methods whose log was not kept are left out."""
    found: list[Drawing] = []
    for cell, title in results.titles.items():
        rows = [[math.nan if (loss := line.get("loss")) is None else loss for line in run.log()] for run in cell.runs]
        longest = max(map(len, rows))
        if longest < 2:
            continue
        rows = [[*row, *[math.nan] * (longest - len(row))] for row in rows]  # some may have stopped early
        figure = learning_curves(rows, recall_over_epochs(cell, results.split), split=results.on)
        found.append(Drawing(f"curves-{slug(title)}", title, figure, curves_caption(results)))
    return found


def curves_caption(results: DataResults) -> str:
    """Return what the figures of :func:`curve_drawings` show."""
    several = any(len(cell.runs) > 1 for cell in results.cells)
    text = "Training loss after each epoch" + ("; a thin line per run and their mean" if several else "")
    if any(recall_over_epochs(cell, results.split) is not None for cell in results.cells):
        line = "dashed" if results.split == "test" else "dotted"
        text += f". Recall on training data (solid) and {results.on} data ({line})" + ", mean over runs" * several
        text += ", before the post-hoc step; tables are after it" * any(
            run.result["posthoc"] for cell in results.cells for run in cell.runs
        )
    else:
        text += ". Recall was logged at fewer than two epochs; a smaller --evaluate-every logs more"
    return f"{text}. Losses of different methods cannot be compared."


def measured_beta_drawings(results: DataResults) -> list[Drawing]:
    """Return the measured beta over epochs, a figure per method with beta = auto."""
    found: list[Drawing] = []
    for cell, title in results.titles.items():
        measured = [run.result["auto_beta"] for run in cell.runs if "auto_beta" in run.result]
        usable = [[point for point in one["trace"] if "std_error" in point] for one in measured]
        names = ("epoch", "measured", "std_error")
        traces = [tuple([point[name] for point in trace] for name in names) for trace in usable if len(trace) > 1]
        if traces:
            during = {"the validation split" if one["validation"] else "the first pilot" for one in measured}
            after = ["the validation split"] if any(one["validation"] for one in measured) else []
            after += ["the held-out data of the pilots"] if any(one["pilots"] for one in measured) else []
            used = ", ".join(f"{one['beta']:.2f}" for one in measured)
            caption = (
                f"The β that held-out data needs, measured during training on {' or '.join(sorted(during))}; a line "
                "per run with its standard error. After training, the β in use was measured on "
                f"{' and '.join(after)}, and shrunk towards 1: {used}."
            )
            found.append(Drawing(f"beta-{slug(title)}", f"Measured β of {title}", beta_traces(traces), caption))
    return found


def recall_over_epochs(cell: Cell, split: Held = "test") -> Curves | None:
    """Return recall per group, the mean over the runs of a cell; ``None`` without two epochs that all runs logged."""
    logs = [{epoch: line["recall"] for epoch, line in enumerate(run.log(), 1) if "recall" in line} for run in cell.runs]
    epochs = sorted(set.intersection(*(set(log) for log in logs)))
    if len(epochs) < 2:
        return None

    def mean(split: str) -> dict[str, list[float]]:
        groups = [group for group in logs[0][epochs[0]].get(split, {}) if group != "all"]
        values = {
            group: [[log[epoch].get(split, {}).get(group) for epoch in epochs] for log in logs] for group in groups
        }
        return {group: [100 * recall for recall in mean_over_runs(rows)] for group, rows in values.items()}

    return Curves(epochs, mean("train"), mean(split))


def beta_drawing(
    cells: Sequence[Cell], *, chosen: float | None = None, select_on: Held = "val", selected: str = ""
) -> Drawing:
    """Return the recall of each group over beta, on training data and on validation data, or else test data.

    The cells are of one method; ``selected``, how the beta was chosen, is the end of the caption.
    """
    ordered = sorted(cells, key=lambda cell: cell.beta or 0.0)
    has_val = all("val" in run.result["splits"] for cell in ordered for run in cell.runs) and select_on == "val"
    held: Held = "val" if has_val else "test"
    groups = (*ordered[0].groups, "all")
    recalls: dict[str, dict[str, list[float]]] = {
        split: {
            group: [cell.summary(partial(Run.recall, group=group, part=part)).mean for cell in ordered]
            for group in groups
        }
        for split, part in (("train", ordered[0].runs[0].trained), (held, held))
    }
    on = "TEST data" if select_on == "test" else "validation data"
    figure = sensitivity([cell.beta or 0.0 for cell in ordered], recalls, chosen=chosen, chosen_on=on)
    fewest, most = (found(len(cell.runs) for cell in cells) for found in (min, max))
    runs = f"{fewest} to {most} runs" if fewest < most else count(most, "run")
    caption = f"Recall of each group on training data (solid) and {'validation' if has_val else 'test'} data. "
    caption += f"{runs} per β." + (f" {selected}." if selected else "")
    return Drawing("beta", "Sensitivity to β", figure, caption)
