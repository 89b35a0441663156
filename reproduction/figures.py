"""The figures of the page from our runs, and the paper's figures from the authors' numbers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from longtail.report.data_results import DataResults, mean_per_class, split_by_data
from longtail.report.drawings import beta_drawing, method_drawings, recall_over_epochs
from longtail.report.page import slug
from longtail.study.figures.plots import class_probability, level_bars, sensitivity, trade_off
from longtail.study.figures.style import INK, WIDTH, Drawing, Mark, legend_below, marks_of, new_figure, style
from longtail.study.runs import Cell, Run, distinct_titles, find_cell
from longtail.study.stats import Summary
from reproduction import paper
from reproduction.collection import MAIN, Collection
from reproduction.measure import balanced_of, balanced_probability
from reproduction.plots import box_plots, gradient_bars, recall_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "beta_drawings",
    "box_drawing",
    "curve_drawing",
    "gradient_drawing",
    "level_drawing",
    "paper_drawings",
    "probability_drawings",
    "trade_offs",
]

_BALANCED = "balanced model"
_BALANCED_MARK = Mark(INK, "x", (0, (1, 1.2)))


def level_drawing(runs: Collection) -> list[Drawing]:
    """Model imbalance level over data sets."""
    levels = {
        data: {title: cell.summary(Run.level) for title, cell in runs.roles(data).items()} for data in runs.main_data
    }
    caption = "Model imbalance level I on test data; lower is better. Error bars: SD over runs."
    return [Drawing("imbalance-level", "Model imbalance level", _levels(levels), caption)] if levels else []


def _levels(levels: Mapping[str, Mapping[str, Summary]]) -> "Figure":
    return level_bars(next(iter(levels.values()))) if len(levels) == 1 else _grouped_levels(levels)


@style()
def _grouped_levels(levels: Mapping[str, Mapping[str, Summary]]) -> "Figure":
    """Bars of the level of each method, data set by data set."""
    methods = list(dict.fromkeys(name for of_data in levels.values() for name in of_data))
    marks = marks_of(methods)
    figure, axes = new_figure(width=max(WIDTH, 0.75 * len(levels) + 0.8))
    for place, method in enumerate(methods):
        found = [of_data.get(method) for of_data in levels.values()]
        spots = [row + (place - (len(methods) - 1) / 2) * 0.8 / len(methods) for row in range(len(levels))]
        means = [math.nan if one is None else one.mean for one in found]
        errors = [0.0 if one is None or math.isnan(one.sd) else one.sd for one in found]
        looks: dict[str, Any] = {"color": marks[method].color, "edgecolor": "#ffffff", "linewidth": 0.5}
        bars: dict[str, Any] = {"yerr": errors if any(errors) else None, "error_kw": {"elinewidth": 0.9, "ecolor": INK}}
        axes.bar(spots, means, 0.8 / len(methods), label=method, **bars, **looks)
        for spot, one in zip(spots, found, strict=True):
            if one is not None and math.isnan(one.mean):
                axes.annotate("undefined", (spot, 0), (0, 3), textcoords="offset points", ha="center", rotation=90)
    few = len(levels) < 4
    axes.set_xticks(range(len(levels)), list(levels), rotation=0 if few else 30, ha="center" if few else "right")
    axes.set_ylabel("model imbalance level I")
    axes.set_ylim(bottom=0)
    axes.grid(visible=False, axis="x")
    legend_below(figure, axes)
    return figure


def box_drawing(runs: Collection) -> list[Drawing]:
    """Every run of Balanced Softmax and of CBS with the authors' beta, where both have two runs or more."""
    values: dict[str, dict[str, list[float]]] = {}
    marks: dict[str, Mark] = {}
    paired: dict[str, bool] = {}
    for data, cells in runs.main_data.items():
        balanced, cbs = find_cell(cells, "balanced-softmax"), runs.authors_cbs(data)
        if balanced is not None and cbs is not None and min(len(balanced.runs), len(cbs.runs)) > 1:
            values[data] = {one.title: one.values(Run.recall) for one in (balanced, cbs)}
            marks |= zip(values[data], marks_of(MAIN[1:]).values(), strict=True)
            paired[data] = balanced.places == cbs.places
    if not values:
        return []
    test = "paired" if any(paired.values()) else "Welch’s"
    test += " t-test" + (", or Welch’s where the seeds differ" if len(set(paired.values())) > 1 else "")
    caption = f"Recall over all classes on test data in every run; p ({test}, two-sided, not corrected), the "
    caption += "difference of means Δμ and Cohen’s d."
    if sum(cell.method == "cbs" for data in values for cell in runs.main_data[data]) > len(values):
        caption += " CBS is shown with one β, the authors’ where it was run."
    return [Drawing("boxes", "Runs", box_plots(values, paired=paired, marks=marks), caption)]


def curve_drawing(runs: Collection) -> list[Drawing]:
    """Recall over epochs on the most imbalanced data set whose runs logged it, one panel per method."""
    for data in reversed(runs.main_data):
        roles = runs.roles(data)
        curves = {title: found for title, cell in roles.items() if (found := recall_over_epochs(cell)) is not None}
        if not curves:
            continue
        counted = "; ".join(f"{title} ({len(roles[title].runs)})" for title in curves)
        caption = f"{data}: recall of head, medium and tail over epochs, on training data (solid; in training mode, "
        caption += f"augmented, as the authors measured it) and on test data (dashed). Mean over runs: {counted}."
        return [Drawing(f"{slug(data)}-curves", f"Recall over epochs, {data}", recall_curves(curves), caption)]
    return []


def gradient_drawing(runs: Collection) -> list[Drawing]:
    """Balance of the classifier's gradient over data sets and methods."""
    values = {
        data: {
            title: {group: cell.summary(partial(Run.gradient_balance, group=group)).mean for group in cell.groups}
            for title, cell in runs.roles(data).items()
        }
        for data in runs.main_data
    }
    caption = "(reward - penalty) / reward in the gradient of the classifier’s weights, on training data, per cent. "
    caption += "Means over runs; the table has the SDs."
    return [Drawing("gradients", "Balance of the gradient", gradient_bars(values), caption)] if values else []


def probability_drawings(runs: Collection) -> list[Drawing]:
    """Class probability of the balanced model and of softmax, where the balanced model was measured."""
    found = []
    for data, cells in runs.main_data.items():
        softmax = find_cell(cells, "softmax")
        balanced = None if softmax is None else balanced_of(softmax.recipe, runs.balanced)
        values = [] if balanced is None else balanced_probability(balanced, data)
        if softmax is None or not values:
            continue
        models = {"Softmax": mean_per_class(softmax, softmax.runs[0].trained, "probability"), _BALANCED: values}
        result = softmax.runs[0].result
        marks = {**marks_of(["Softmax"]), _BALANCED: _BALANCED_MARK}
        figure = class_probability(result["counts"], models, names=result["classes"], marks=marks)
        caption = f"{data}: mean predicted probability per class on the training data (lines) and class frequency "
        title = f"Class probability, {data}"
        found.append(Drawing(f"{slug(data)}-class-probability", title, figure, f"{caption}(bars)."))
    return found


def beta_drawings(runs: Collection) -> list[Drawing]:
    """Recall per group over the betas of each search."""
    found = []
    for one in runs.searches:
        drawing = beta_drawing(one.cells, chosen=one.beta, select_on=one.plan.select_on)
        data = one.cells[0].data
        title, caption = f"Sensitivity to β, {data}", f"{data}: {drawing.caption}"
        found.append(Drawing(f"{slug(data)}-beta", title, drawing.figure, caption))
    return found


def trade_offs(data: str, cells: Sequence[Cell]) -> list[Drawing]:
    """Tail recall against head recall, and recall over classes, of all methods on a data set."""
    part = max(split_by_data(cells), key=lambda one: len(one.cells))
    once = " A point without error bars is one run." if any(len(cell.runs) == 1 for cell in part.cells) else ""
    more = {"trade-off": once, "class-recall": ""}
    found = []
    for drawing in method_drawings(part):
        if drawing.name in more:
            caption = f"{data}. {drawing.caption}{more[drawing.name]}{_left_out(part, cells)}"
            found.append(Drawing(f"{slug(data)}-{drawing.name}", drawing.title, drawing.figure, caption))
    return found


def _left_out(part: DataResults, cells: Sequence[Cell]) -> str:
    titles = zip(cells, distinct_titles(cells), strict=True)
    left = [title for cell, title in titles if cell not in part.cells]
    return f" Not shown, because trained on other images: {', '.join(left)}." if left else ""


# --- The paper's figures

_BOXES = {
    "imagenet-places": ("ImageNet-LT", "Places-LT"),
    "inaturalist-lvis": ("iNaturalist2018", "LVIS"),
    "cifar": ("C10-LT10", "C10-LT50", "C10-LT100", "C100-LT10", "C100-LT50", "C100-LT100"),
}
"""Data sets of the paper's three figures of box plots."""


def paper_drawings() -> Iterable[Drawing]:
    """The paper's figures that the published numbers suffice for.

    Recall over epochs and the probabilities per class need the authors' models.
    """
    yield _paper_levels()
    yield from _paper_boxes()
    yield _paper_gradients()
    yield _paper_sensitivity()
    for data in ("ImageNet-LT", "Places-LT", "iNaturalist2018", "LVIS"):
        yield _paper_trade_off(data)


def _paper_levels() -> Drawing:
    levels = {
        data: {
            paper.title(name): Summary(value, float("nan"), 1) for name, value in paper.imbalance_level(data).items()
        }
        for data in paper.figures()["imbalance_level_I"]["datasets"]
    }
    caption = "Model imbalance level I; the authors' numbers, means of five runs, except for softmax (one run)."
    return Drawing("paper-imbalance-level", "Model imbalance level", _levels(levels), caption)


def _paper_boxes() -> Iterable[Drawing]:
    found = paper.five_runs()
    caption = "Test recall over all classes in the authors' five runs; Welch's t-test, one-sided as in the paper."
    for name, datasets in _BOXES.items():
        runs = {data: {paper.title(m): found[data][m] for m in MAIN[1:]} for data in datasets}
        yield Drawing(f"paper-boxes-{name}", "Runs", box_plots(runs, alternative="greater"), caption)


def _paper_gradients() -> Drawing:
    values = {
        data: {
            paper.title(method): {group: value for group, value in groups.items() if value is not None}
            for method, groups in paper.gradient_balance(data).items()
        }
        for data in paper.figures()["gradient_balance_percent"]["datasets"]
    }
    caption = "(reward - penalty) / reward in the classifier's gradient, per cent; the authors' numbers."
    return Drawing("paper-gradients", "Balance of the gradient", gradient_bars(values), caption)


def _paper_sensitivity() -> Drawing:
    rows = paper.tables()["sensitivity_places_lt"]
    betas = sorted(rows, key=float)
    recalls = {
        split: {group: [rows[beta][split][group] for beta in betas] for group in ("head", "medium", "tail", "all")}
        for split in ("train", "test")
    }
    figure = sensitivity([float(beta) for beta in betas], recalls)
    return Drawing(
        "paper-beta-places", "Sensitivity to β", figure, "Recall on Places-LT per β, from the paper's table."
    )


def _paper_trade_off(data: str) -> Drawing:
    points = {}
    for method, row in paper.recalls(data).items():
        head, tail = row.get("head"), row.get("tail")
        if head is not None and tail is not None and method not in paper.QUOTED:
            points[paper.title(method)] = (head, tail)
    caption = f"Tail recall against head recall on {data}, from the paper's table; the frontier is ours."
    if any(method in paper.QUOTED for method in paper.recalls(data)):
        caption += " CAL and DisA are left out: the paper quotes them, with other groups."
    return Drawing(f"paper-trade-off-{data.lower()}", f"Tail against head, {data}", trade_off(points), caption)
