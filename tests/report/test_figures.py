"""Figures: what they show, that grey print keeps it, and that they are the same every time."""

import math
import re
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy import stats

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
from longtail.study.figures.style import GROUPS, INK, SPLITS, inline_svg, marks_of, save_figure, wrapped
from longtail.study.stats import Summary
from reproduction.plots import box_plots, gradient_bars, recall_curves

CURVES = Curves(
    [1, 2, 3],
    {"head": [70, 80, 90], "medium": [50, 60, 70], "tail": [10, 20, 30]},
    {"head": [60, 70, 80], "medium": [40, 50, 55], "tail": [5, 6, 7]},
)
LEVELS = {"Softmax": Summary(40, 1.0, 5), "CBS": Summary(12, math.nan, 1)}
RUNS = {"A": {"Balanced Softmax": [78.3, 78.5, 79.1], "CBS": [81.6, 81.1, 81.4]}}


def point(head, tail, sd=math.nan):
    return Summary(head, sd, 2), Summary(tail, sd, 2)


COUNTS = [50, 500, 5]
VALUES = {"Softmax": [0.1, 0.88, 0.02], "CBS": [0.15, 0.75, 0.10]}
GRADIENTS = {"A": {"Softmax": {"head": 5.0, "medium": -3.0, "tail": -900.0}, "CBS": {"head": 1.0, "tail": -5e7}}}
RECALLS = {"train": {"head": [90, 80], "tail": [50, 60]}, "test": {"head": [80, 70], "tail": [20, 40]}}
POINTS = {"Softmax": point(94, 55), "CBS": point(88, 81, 0.5), "Focal": point(93, 51)}
ROLES = ["Softmax", "Balanced Softmax", "CBS (β = 1.5)", "ProCo + CBS (β = 1.8)"]

DRAW = {
    "curves": lambda: recall_curves({"Softmax": CURVES, "CBS": CURVES}),
    "levels": lambda: level_bars(LEVELS),
    "boxes": lambda: box_plots({"A": {"few": [1.0, 2.0], "many": [1.0, 2.0, 2.5, 3.0, 2.2]}}),
    "probability": lambda: class_probability(COUNTS, VALUES, names=["a", "b", "c"]),
    "recall": lambda: class_recall(COUNTS, VALUES, low=[0, 0, 0], high=[1, 1, 1]),
    "confusion": lambda: confusion(np.eye(3) * 100, COUNTS, ["a", "b", "c"]),
    "learning": lambda: learning_curves([[3.0, 2.0, 1.0]], CURVES),
    "gradients": lambda: gradient_bars(GRADIENTS),
    "beta traces": lambda: beta_traces([((1, 2, 3), (1.0, 1.5, 1.6), (0.2, 0.1, 0.1))]),
    "sensitivity": lambda: sensitivity([1.0, 1.5], RECALLS, chosen=1.5),
    "trade-off": lambda: trade_off(POINTS),
}
LONG = {
    "levels": lambda: level_bars({f"A method with a long name, no. {k}": Summary(40, 1, 5) for k in range(9)}),
    "probability": lambda: class_probability([3, 2, 1], {ROLES[1]: [0.4, 0.3, 0.3]}, names=["automobile"] * 3),
    "recall": lambda: class_recall([3, 2, 1], {"m": [1, 1, 1]}, names=["a rather long name"] * 3),
    "confusion": lambda: confusion(np.eye(30) * 100, range(30), ["a class with a rather long name"] * 30),
    "gradients": lambda: gradient_bars({"A": {"ProCo + Balanced Softmax": GRADIENTS["A"]["Softmax"]}}),
    "trade-off": lambda: trade_off({f"{name}, variant {k}": point(k, k) for k in range(3) for name in ROLES}),
}


@pytest.fixture(scope="module")
def figures():
    """All figures, drawn once, with the settings of the program before and after."""
    before = dict(mpl.rcParams)
    drawn = {name: draw() for name, draw in {**DRAW, **{f"long {name}": draw for name, draw in LONG.items()}}.items()}
    assert dict(mpl.rcParams) == before
    return drawn


def texts(figure):
    return [text.get_text() for text in figure.findobj(mpl.text.Text) if text.get_text()]


def drawn_boxes(figure, found):
    """Where texts are, in pixels of the drawn figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return [text.get_window_extent(canvas.get_renderer()) for text in found if text.get_text().strip()]


def test_files_are_vector_and_pixels_and_the_same_every_time(tmp_path):
    first, second = (save_figure(DRAW["gradients"](), tmp_path / run / "deep" / "figure") for run in ("one", "two"))
    assert [path.suffix for path in first] == [".svg", ".pdf", ".png"]
    for one, other, start in zip(first, second, (b"<?xml", b"%PDF", b"\x89PNG"), strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert one.read_bytes().startswith(start)


def test_in_a_page_text_is_text_and_ids_and_colours_are_those_of_the_page(figures):
    for name, figure in figures.items():
        svg = inline_svg(figure, "my-figure", 'what "it" shows & more')
        root = ET.fromstring(svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == 'what "it" shows & more'
        assert root.get("width") is None
        assert root.get("viewBox")
        ids = re.findall(r'\bid="([^"]*)"', svg)
        assert all(one.startswith("my-figure-") for one in ids)
        assert len(ids) == len(set(ids)), name
        for used in re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', svg):
            assert "".join(used) in ids
        assert "<text" in svg
        assert "var(--fig-ink)" in svg
        assert not re.search(f"{INK}|<metadata|font-family|DejaVu", svg, re.IGNORECASE)


def test_no_text_is_cut_off(figures):
    for name, figure in figures.items():
        shown = [text for legend in figure.legends for text in legend.get_texts()]
        for axes in figure.axes:
            shown += [*axes.texts, axes.xaxis.label, axes.yaxis.label, axes.title]
        width, height = figure.bbox.size
        for box in drawn_boxes(figure, shown):
            assert min(box.x0, box.y0) > -2, name
            assert box.x1 < width + 2, name
            assert box.y1 < height + 2, name


def test_series_differ_without_colour():
    marks = list(marks_of([f"m{k}" for k in range(14)]).values())
    assert len({mark.marker for mark in marks}) == 14

    def grey(colour):
        return np.dot(mpl.colors.to_rgb(colour), (0.299, 0.587, 0.114))

    assert all(abs(grey(one.color) - grey(other.color)) > 0.04 for one, other in pairwise(marks[:7]))
    assert len(set(SPLITS.values())) == 3


def test_training_is_solid_and_test_is_dashed():
    figure = recall_curves({"CBS": CURVES})
    by_values = {tuple(line.get_ydata()): line for line in figure.axes[0].lines}
    assert len(by_values) == 6
    for group in CURVES.train:
        assert by_values[tuple(CURVES.train[group])].get_linestyle() == "-"
        assert by_values[tuple(CURVES.test[group])].get_linestyle() == "--"
    listed = [text.get_text() for text in figure.legends[0].get_texts()]
    assert listed == ["head", "medium", "tail", " ", "training", "test"]  # splits have a column of their own


def test_four_panels_are_two_rows_of_two(tmp_path):
    figure = recall_curves(dict.fromkeys(ROLES, CURVES))
    boxes = [axes.get_position() for axes in figure.axes]
    assert len({round(box.x0, 3) for box in boxes}) == len({round(box.y0, 3) for box in boxes}) == 2
    assert [axes.get_ylabel() for axes in figure.axes] == ["recall, %", "", "recall, %", ""]
    (file,) = save_figure(figure, tmp_path / "curves", ["png"])
    assert mpl.image.imread(file).shape[1] < 1300  # a page is not wider


def test_levels_are_named_and_in_order_and_undefined_is_not_zero():
    axes = level_bars(LEVELS | {"None": Summary(math.nan, math.nan, 1)}).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["None", "Softmax", "CBS"]
    assert {"40.0", "12.0", "undefined"} <= set(texts(axes.figure))
    assert all(box.y0 > axes.bbox.y0 for box in drawn_boxes(axes.figure, axes.texts))


def test_long_names_under_boxes_do_not_overlap():
    figure = box_plots({"A": {f"{name}{' ' * k}": [1.0 + k, 2.0] for k, name in enumerate(ROLES * 2)}})
    boxes = drawn_boxes(figure, figure.axes[0].get_xticklabels())
    assert len(boxes) == 8
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


def test_text_is_wrapped_by_words_and_cut_if_too_long():
    assert wrapped("Class-balanced sampling", 14) == "Class-balanced\nsampling"
    assert wrapped("ProCo + CBS (β = 1.8)", 11) == "ProCo + CBS\n(β = 1.8)"
    assert wrapped("one two three", 5, most=2) == "one\ntwo…"


def test_boxes_say_p_difference_and_d():
    def title(runs, **options):
        return box_plots(runs, **options).axes[0].get_title()

    ours, theirs = RUNS["A"]["CBS"], RUNS["A"]["Balanced Softmax"]
    welch, paired = stats.ttest_ind(ours, theirs, equal_var=False).pvalue, stats.ttest_rel(ours, theirs).pvalue
    pooled = math.sqrt((np.var(ours, ddof=1) + np.var(theirs, ddof=1)) / 2)
    difference = np.mean(ours) - np.mean(theirs)
    assert title(RUNS) == f"p = {welch:.2g}, n = 3\nΔμ = {difference:+.2f}, d = {difference / pooled:.2f}"
    assert title(RUNS, alternative="greater").startswith(f"p = {welch / 2:.4f} (one-sided)")
    assert title(RUNS, paired={"A": True}).startswith(f"p = {paired:.2g}, n = 3\n")
    assert title({"A": {"a": [1.0], "b": [2.0]}}) == "Δμ = +1.00; no test with fewer than two runs"
    more = {"A": {"Softmax": [70.0, 70.5, 71.0]} | RUNS["A"]}
    assert title(more, against="Softmax").startswith("CBS against Softmax\np ")


def test_classes_go_from_frequent_to_rare():
    axes = class_probability(COUNTS, VALUES, names=["a", "b", "c"]).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["b", "a", "c"]
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert lines["Softmax"] == [0.88, 0.1, 0.02]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([500 / 555, 50 / 555, 5 / 555])
    assert axes.get_yscale() == "log"
    assert "logarithmic" in axes.get_ylabel()


@pytest.mark.parametrize("rarest", [25, 1])
def test_a_logarithmic_axis_has_three_numbers_or_more(rarest):
    figure = class_probability([250, 100, rarest], {"Softmax": [0.6, 0.3, 0.1]})
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
    shown = [tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high]
    assert len([text for text in shown if text]) >= 3


@pytest.mark.parametrize(
    ("names", "slanted"),
    [
        ([str(c) for c in range(10)], False),
        (["a class with a name that is long", "internationalization_of_things", *"abcdefgh"], True),
    ],
)
def test_only_long_names_are_slanted(names, slanted):
    figure = class_recall(list(range(len(names), 0, -1)), {"m": [50.0] * len(names)}, names=names)
    labels = figure.axes[0].get_xticklabels()
    assert len(labels) == len(names)
    assert all((label.get_rotation() > 0) == slanted for label in labels)
    boxes = drawn_boxes(figure, labels)
    assert slanted or all(one.x1 < other.x0 for one, other in pairwise(boxes))
    assert figure.axes[0].get_position().height * figure.get_figheight() > 1.4  # the figure grows with the names


def test_a_dollar_in_a_name_is_a_dollar():
    figure = class_recall(COUNTS, {"$a_m$": [1, 2, 3]}, low=[0] * 3, high=[9] * 3, names=["$x^$", "\\$", "$y$"])
    assert {"$x^$", "\\$", "$y$"} <= set(texts(figure))
    drawn_boxes(figure, figure.axes[0].get_xticklabels())


def test_many_classes_are_means_of_neighbours():
    axes = class_recall(list(range(600, 0, -1)), {"m": np.linspace(1, 0, 600).tolist()}).axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    assert len(heights) == 60
    assert heights[0] == pytest.approx(np.linspace(1, 0, 600)[:10].mean())


def test_bars_have_the_colours_of_groups_and_absent_classes_are_grey():
    figure = class_recall(COUNTS, {"a": [10, 90, math.nan], "b": [0, 80, 5]}, groups={"head": [1], "tail": [0, 2]})
    first, second = figure.axes
    assert [bar.get_height() for bar in second.patches] == [80, 0, 5]  # most frequent first
    head, tail = (mpl.colors.to_rgba(GROUPS[name].color) for name in ("head", "tail"))
    assert [bar.get_facecolor() for bar in second.patches] == [head, tail, tail]
    grey = [bar for bar in first.patches if bar.get_height() == 100]
    assert [bar.get_center()[0] for bar in grey] == [3]


def test_a_confusion_has_a_cell_per_prediction_and_mistakes_are_red():
    shares = [[75, 0, 25], [0.0, 100, 0], [math.nan] * 3]
    (axes,) = confusion(shares, [5, 500, 50], ["rare", "common", "medium"]).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["common", "medium", "rare"]
    assert sorted((*text.get_position(), text.get_text()) for text in axes.texts) == [
        (0.5, 0.5, "100"),
        (1.5, 2.5, "25"),
        (2.5, 2.5, "75"),
    ]
    colours = {mpl.colors.to_hex(face) for face in axes.collections[0].get_facecolor()}
    assert colours == {"#0072b2", "#d55e00"}


def test_names_of_similar_classes_stay_different():
    names = ["Tomato leaf", "Tomato leaf bacterial spot", "Tomato leaf late blight", "Tomato leaf mosaic virus"]
    names += ["Bell_pepper leaf", "Bell_pepper leaf spot", "Tomato two spotted spider mites leaf", *"abcdefgh"]
    counts = range(len(names), 0, -1)
    for figure in (
        class_recall(counts, {"softmax": [50.0] * 15}, names=names),
        confusion(np.eye(15) * 100, counts, names),
    ):
        shown = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
        assert shown[:6] == names[:6]
        assert shown[6] == "Tomato two spotted spider…"
        assert len(set(shown)) == 15


def test_epochs_are_whole_numbers():
    for figure in (
        learning_curves([[3.0, 2.0, 1.0]], None),
        beta_traces([((10, 20, 30), (1.0, 1.5, 1.6), (0.2, 0.1, 0.1))]),
        beta_traces([((1, 2), (1.0, 1.5), (0.2, 0.1))]),
    ):
        ticks = figure.axes[-1].get_xticks()
        assert len(ticks) > 1
        assert all(tick == round(tick) for tick in ticks)


def test_learning_curves_show_every_run_and_the_mean():
    figure = learning_curves([[3.0, 2.0, 1.0], [5.0, 4.0, 1.0]], CURVES)
    loss, recall = figure.axes
    assert [list(line.get_ydata()) for line in loss.lines] == [[3, 2, 1], [5, 4, 1], [4, 3, 1]]
    assert len(recall.lines) == 6
    assert loss.get_xlim() == recall.get_xlim()
    assert len(learning_curves([[3.0, 2.0]], None).axes[0].lines) == 1


def test_gradients_far_off_are_cut_and_have_their_number():
    axes = gradient_bars(GRADIENTS).axes[0]
    widths = [bar.get_width() for bars in axes.containers for bar in bars]
    assert min(width for width in widths if not math.isnan(width)) == -1000
    assert {"−5e7", "−900"} <= set(texts(axes.figure))
    assert axes.get_xscale() == "symlog"
    assert axes.get_xlabel() == "(reward − penalty) / reward, %\nlogarithmic beyond ±20\nbars cut at ±1,000"
    near = gradient_bars({"A": {"CBS": {"head": 5.0, "tail": -3.0}}}).axes[0]
    assert (near.get_xscale(), near.get_xlabel()) == ("linear", "(reward − penalty) / reward, %")


def test_numbers_and_ticks_of_gradients_are_readable():
    sizes = {"a": -27_431.0, "b": 3144.2, "c": -0.48, "d": 9.6e9, "e": -math.inf, "f": 999_999.0, "g": -0.01, "h": 5}
    figure = gradient_bars({"A": {name: {"head": size} for name, size in sizes.items()}})
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown == ["−27,431", "3,144", "−0.5", "1e10", "−∞", "999,999", "0.0", "5.0"]
    boxes = drawn_boxes(figure, figure.axes[0].get_xticklabels())
    assert len(boxes) == 5
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))
    near = gradient_bars({"A": {"CBS": {"head": -6.0, "medium": 21.34, "tail": -0.02}}})
    assert [text.get_text() for text in near.axes[0].texts] == ["−6.0", "21.3", "0.0"]


def test_the_chosen_beta_says_on_what_it_was_chosen():
    figure = sensitivity([1.0, 1.5], RECALLS, chosen=1.5, chosen_on="TEST data")
    assert figure.axes[0].get_title() == "line: β = 1.5, chosen on TEST data"
    assert not any("chosen" in text for text in texts(sensitivity([1.0, 1.5], RECALLS)))


def test_the_frontier_has_those_that_none_beats_in_both():
    points = POINTS | {"twin": point(88, 81), "lost": point(math.nan, 99)}
    assert frontier(points) == ["CBS", "twin", "Softmax"]
    figure = trade_off(points)
    line = next(line for line in figure.axes[0].lines if line.get_label() == "frontier")
    assert list(line.get_xdata()) == [88, 88, 94]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(names) == sorted([*POINTS, "twin", "frontier"])
    for one, other in combinations(drawn_boxes(figure, figure.legends[0].get_texts()), 2):
        assert not one.overlaps(other)


@pytest.mark.parametrize("points", [POINTS, {"a": point(100, 0), "b": point(99, 2, 3)}])
def test_axes_of_recall_stay_within_0_and_100(points):
    (axes,) = trade_off(points).axes
    for low, high in (axes.get_xlim(), axes.get_ylim()):
        assert 0 <= low < high <= 100


def test_a_character_that_the_font_lacks_is_a_warning_in_files_and_text_in_a_page(tmp_path, recwarn):
    figure = class_recall(COUNTS, VALUES, names=["日", "b", "c"])
    assert "日" in inline_svg(figure, "figure", "")
    assert [str(one.message) for one in recwarn] == []
    with pytest.warns(UserWarning, match="Glyph"):
        save_figure(figure, tmp_path / "figure", ["png"])
