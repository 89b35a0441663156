"""The paper's figures, drawn from the numbers that its authors publish and from its tables."""

from longtail.study.figures.boxes import box_plots
from longtail.study.figures.drawing import Drawing
from longtail.study.figures.gradients import gradient_bars
from longtail.study.figures.levels import level_bars
from longtail.study.figures.sensitivity import sensitivity
from longtail.study.figures.tradeoff import Point, trade_off
from longtail.study.runs import method_title
from longtail.study.stats import Summary
from reproduction import paper

__all__ = ["paper_drawings"]

_BOXES = {
    "imagenet-places": ("ImageNet-LT", "Places-LT"),
    "inaturalist-lvis": ("iNaturalist2018", "LVIS"),
    "cifar": ("C10-LT10", "C10-LT50", "C10-LT100", "C100-LT10", "C100-LT50", "C100-LT100"),
}
"""Data sets of the paper's three figures of box plots."""


def paper_drawings() -> list[Drawing]:
    """All figures that the published numbers suffice for.

    What needs the authors' models is not among them: recall over epochs, class probabilities and target probabilities
    of each class are drawn from runs.
    """
    return [_levels(), *_boxes(), _gradients(), _sensitivity(), *_trade_offs()]


def _levels() -> Drawing:
    found = paper.figures()["imbalance_level_I"]
    levels = {
        data: {
            method_title(name): Summary(value, float("nan"), 1) for name, value in paper.imbalance_level(data).items()
        }
        for data in found["datasets"]
    }
    caption = "Model imbalance level I; the authors' numbers, means of five runs, but one run of softmax."
    return Drawing("paper-imbalance-level", "Model imbalance level", level_bars(levels), caption)


def _boxes() -> list[Drawing]:
    found = paper.five_runs()
    drawings = []
    for name, datasets in _BOXES.items():
        runs = {data: {method_title(m): found[data][m] for m in ("balanced-softmax", "cbs")} for data in datasets}
        figure = box_plots(runs, alternative="greater", columns=3)
        caption = "Test recall over all classes in the authors' five runs; Welch's t-test, one-sided as in the paper."
        drawings.append(Drawing(f"paper-boxes-{name}", "Runs", figure, caption))
    return drawings


def _gradients() -> Drawing:
    values = {
        data: {method_title(m): dict(groups) for m, groups in paper.gradient_balance(data).items()}
        for data in paper.figures()["gradient_balance_percent"]["datasets"]
    }
    values = {
        data: {m: {g: v for g, v in groups.items() if v is not None} for m, groups in rows.items()}
        for data, rows in values.items()
    }
    caption = "Reward less penalty over reward in the classifier's gradient, per cent; the authors' numbers."
    return Drawing("paper-gradients", "Whom the gradient works for", gradient_bars(values, columns=3), caption)


def _sensitivity() -> Drawing:
    rows = paper.tables()["sensitivity_places_lt"]
    betas = sorted(rows, key=float)
    recalls = {
        split: {group: [rows[beta][split][group] for beta in betas] for group in ("head", "medium", "tail", "all")}
        for split in ("train", "test")
    }
    figure = sensitivity([float(beta) for beta in betas], recalls)
    return Drawing(
        "paper-beta-places", "Sensitivity to β", figure, "Recall on Places-LT for each β, from the paper's table."
    )


def _trade_offs() -> list[Drawing]:
    drawings = []
    for data in ("ImageNet-LT", "Places-LT", "iNaturalist2018", "LVIS"):
        points = {}
        for method, row in paper.recalls(data).items():
            head, tail = row.get("head"), row.get("tail")
            if head is not None and tail is not None and method not in paper.QUOTED:
                points[method_title(method)] = Point(head.mean, tail.mean, head.sd, tail.sd)
        caption = f"Tail against head recall on {data}, from the paper's table; the frontier is ours."
        if any(method in paper.QUOTED for method in paper.recalls(data)):
            caption += " CAL and DisA, which it quotes, with another cut of the groups, are left out."
        name = f"paper-trade-off-{data.lower()}"
        drawings.append(Drawing(name, f"Tail against head, {data}", trade_off(points), caption))
    return drawings
