"""The figures of the page, from what is there."""

from collections.abc import Sequence
from functools import partial

from longtail.report.drawings import beta_drawing, curves_of, part_drawings
from longtail.report.page import slug
from longtail.report.parts import Part, mean_of, parts_of
from longtail.study.figures.boxes import box_plots
from longtail.study.figures.classwise import class_probability
from longtail.study.figures.curves import recall_curves
from longtail.study.figures.drawing import Drawing
from longtail.study.figures.gradients import gradient_bars
from longtail.study.figures.levels import level_bars
from longtail.study.figures.style import INK, Mark, marks_of
from longtail.study.runs import Cell, Run, distinct_titles, find_cell
from reproduction.balanced import balanced_of, balanced_probability
from reproduction.material import MAIN, Material

__all__ = [
    "beta_drawings",
    "box_drawing",
    "curve_drawing",
    "gradient_drawing",
    "level_drawing",
    "probability_drawings",
    "trade_offs",
]


BALANCED = "balanced model"
"""The name of a model that was trained on all of the data, in legends."""
BALANCED_MARK = Mark(INK, "x", (0, (1, 1.2)), "")


def level_drawing(material: Material) -> Drawing | None:
    """Model imbalance level over the data sets."""
    levels = {
        data: {title: cell.summary(Run.level) for title, cell in material.roles(data).items()}
        for data in material.main_data
    }
    if not levels:
        return None
    caption = "Model imbalance level I on test data, lower is fairer; bars: SD over runs."
    return Drawing("imbalance-level", "Model imbalance level", level_bars(levels), caption)


def box_drawing(material: Material) -> Drawing | None:
    """Balanced Softmax against CBS with the authors' beta, every run, where both have two or more."""
    runs: dict[str, dict[str, list[float]]] = {}
    marks: dict[str, Mark] = {}
    paired: dict[str, bool] = {}
    for data, cells in material.main_data.items():
        balanced, cbs = find_cell(cells, "balanced-softmax"), material.authors_cbs(data)
        if balanced is not None and cbs is not None and min(len(balanced.runs), len(cbs.runs)) > 1:
            runs[data] = {one.title: one.values(Run.recall) for one in (balanced, cbs)}
            marks |= zip(runs[data], marks_of(MAIN[1:]).values(), strict=True)
            paired[data] = balanced.places == cbs.places
    if not runs:
        return None
    test = "paired" if any(paired.values()) else "Welch’s"
    test += " t-test" + (", or Welch’s where the seeds differ" if len(set(paired.values())) > 1 else "")
    caption = (
        f"Recall over all classes on test data in every run; p ({test}, two-sided, not corrected), the difference "
    )
    caption += "of means Δμ and Cohen’s d."
    if sum(cell.method == "cbs" for data in runs for cell in material.main_data[data]) > len(runs):
        caption += " Of CBS one β is drawn, the authors’ where it was run."
    return Drawing("boxes", "Runs", box_plots(runs, paired=paired, marks=marks), caption)


def curve_drawing(material: Material) -> Drawing | None:
    """Recall over epochs on the most imbalanced data set whose runs logged it, a panel a method, as in the paper."""
    for data in reversed(material.main_data):
        roles = material.roles(data)
        curves = {title: found for title, cell in roles.items() if (found := curves_of(cell)) is not None}
        if not curves:
            continue
        numbers = {title: len(roles[title].runs) for title in curves}
        runs = "; ".join(f"{title} ({number})" for title, number in numbers.items())
        caption = f"{data}: recall of head, medium and tail over epochs, on training data (solid; in training mode, "
        caption += f"augmented, as the authors took it) and on test data (dashed). Mean over runs: {runs}."
        name = f"{slug(data)}-curves"
        return Drawing(name, f"Recall over epochs, {data}", recall_curves(curves), caption)
    return None


def gradient_drawing(material: Material) -> Drawing | None:
    """Balance of the classifier's gradient over data sets and methods."""
    values = {
        data: {
            title: {group: cell.summary(partial(Run.gradient_balance, group=group)).mean for group in cell.groups}
            for title, cell in material.roles(data).items()
        }
        for data in material.main_data
    }
    if not values:
        return None
    caption = "Reward less penalty over reward in the gradient of the classifier’s weights, on training data, per cent."
    caption += " Means over runs; the table has their SDs, which are not drawn."
    return Drawing("gradients", "Balance of the gradient", gradient_bars(values), caption)


def probability_drawings(material: Material) -> list[Drawing]:
    """Class probability of the balanced model and of softmax, where the balanced model was asked."""
    found = []
    for data, cells in material.main_data.items():
        softmax = find_cell(cells, "softmax")
        balanced = None if softmax is None else balanced_of(softmax.recipe, material.balanced)
        values = [] if balanced is None else balanced_probability(balanced, data)
        if softmax is None or not values:
            continue
        models = {"Softmax": mean_of(softmax, softmax.runs[0].trained, "probability"), BALANCED: values}
        result = softmax.runs[0].result
        marks = {**marks_of(["Softmax"]), BALANCED: BALANCED_MARK}
        figure = class_probability(result["counts"], models, names=result["classes"], marks=marks)
        caption = f"{data}: mean predicted probability of each class on the training data (lines) against its "
        caption += "frequency (bars)."
        found.append(Drawing(f"{slug(data)}-class-probability", f"Class probability, {data}", figure, caption))
    return found


def beta_drawings(material: Material) -> list[Drawing]:
    """Recall of each group over the betas of each search."""
    found = []
    for one in material.searches:
        on = "TEST data" if one.plan.select_on == "test" else "validation data"
        drawing = beta_drawing(one.cells, chosen=one.beta, chosen_on=on)
        data = one.cells[0].data
        caption = f"{data}: {drawing.caption}"
        found.append(Drawing(f"{slug(data)}-beta", f"Sensitivity to β, {data}", drawing.figure, caption))
    return found


def trade_offs(material: Material) -> list[Drawing]:
    """Tail recall against head recall where there are many methods, and recall over classes."""
    found = []
    for data, cells in material.others.items():
        part = max(parts_of(cells), key=lambda one: len(one.cells))
        once = " A point without bars is one run." if any(len(cell.runs) == 1 for cell in part.cells) else ""
        more = {"trade-off": once, "class-recall": ""}
        for drawing in part_drawings(part):
            if drawing.name in more:
                caption = f"{data}. {drawing.caption}{more[drawing.name]}{_left_out(part, cells)}"
                found.append(Drawing(f"{slug(data)}-{drawing.name}", drawing.title, drawing.figure, caption))
    return found


def _left_out(part: Part, cells: Sequence[Cell]) -> str:
    """Which methods of a data set are in no figure, as the end of a caption."""
    titles = dict(zip(cells, distinct_titles(cells), strict=True))
    left = [titles[cell] for cell in cells if cell not in part.cells]
    if not left:
        return ""
    return f" Not among these methods, as not trained on the same images: {', '.join(left)}."
