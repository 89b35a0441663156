"""Figures of a study: pure functions from data to a matplotlib figure. Needs ``longtail[report]``."""

from longtail.study.figures.boxes import box_plots
from longtail.study.figures.classwise import class_probability, class_recall, target_probability
from longtail.study.figures.curves import Curves, recall_curves
from longtail.study.figures.gradients import gradient_bars
from longtail.study.figures.levels import level_bars
from longtail.study.figures.sensitivity import sensitivity
from longtail.study.figures.tradeoff import Point, frontier, trade_off
from longtail.study.figures.writing import inline_svg, save_figure

__all__ = [
    "Curves",
    "Point",
    "box_plots",
    "class_probability",
    "class_recall",
    "frontier",
    "gradient_bars",
    "inline_svg",
    "level_bars",
    "recall_curves",
    "save_figure",
    "sensitivity",
    "target_probability",
    "trade_off",
]
