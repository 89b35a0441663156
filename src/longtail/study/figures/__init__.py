"""Figures of a study: pure functions from numbers to a matplotlib figure. Needs ``longtail[report]``."""

from longtail.study.figures.bars import gradient_bars, level_bars
from longtail.study.figures.classwise import class_probability, class_recall
from longtail.study.figures.curves import Curves, recall_curves, sensitivity
from longtail.study.figures.points import Point, box_plots, frontier, trade_off
from longtail.study.figures.writing import Drawing, inline_svg, save_figure

__all__ = [
    "Curves",
    "Drawing",
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
    "trade_off",
]
