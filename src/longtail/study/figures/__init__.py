"""Figures of a study: pure functions from numbers to a matplotlib figure. Needs ``longtail[report]``."""

from longtail.study.figures.plots import (
    Curves,
    beta_traces,
    class_probability,
    class_recall,
    confusion,
    frontier,
    learning_curves,
    level_bars,
    sensitivity,
    trade_off,
)
from longtail.study.figures.style import Drawing, inline_svg, save_figure

__all__ = [
    "Curves",
    "Drawing",
    "beta_traces",
    "class_probability",
    "class_recall",
    "confusion",
    "frontier",
    "inline_svg",
    "learning_curves",
    "level_bars",
    "save_figure",
    "sensitivity",
    "trade_off",
]
