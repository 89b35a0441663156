"""Figures: what they show, that grey print keeps it, and that they are the same every time."""

import math
import re
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from scipy import stats

from longtail.study.figures import (
    Curves,
    Point,
    box_plots,
    class_probability,
    class_recall,
    frontier,
    gradient_bars,
    inline_svg,
    level_bars,
    recall_curves,
    save_figure,
    sensitivity,
    style,
    target_probability,
    trade_off,
)
from longtail.study.figures.style import GROUPS, INK, SPLITS, marks_of, wrapped
from longtail.study.figures.writing import undrawn_in
from longtail.study.stats import Summary

CURVES = Curves(
    [1, 2, 3],
    {"head": [70, 80, 90], "medium": [50, 60, 70], "tail": [10, 20, 30]},
    {"head": [60, 70, 80], "medium": [40, 50, 55], "tail": [5, 6, 7]},
)
LEVELS = {"A": {"Softmax": Summary(40, 1.0, 5), "CBS": Summary(12, math.nan, 1)}}
RUNS = {"A": {"Balanced Softmax": [78.3, 78.5, 79.1], "CBS": [81.6, 81.1, 81.4]}}
COUNTS = [50, 500, 5]
VALUES = {"Softmax": [0.1, 0.88, 0.02], "CBS": [0.15, 0.75, 0.10]}
GRADIENTS = {"A": {"Softmax": {"head": 5.0, "medium": -3.0, "tail": -900.0}, "CBS": {"head": 1.0, "tail": -5e7}}}
RECALLS = {"train": {"head": [90, 80], "tail": [50, 60]}, "test": {"head": [80, 70], "tail": [20, 40]}}
POINTS = {"Softmax": Point(94, 55), "CBS": Point(88, 81, 0.5, 0.5), "Focal": Point(93, 51)}

DRAW = {
    "curves": lambda: recall_curves({"Softmax": CURVES, "CBS": CURVES}),
    "levels": lambda: level_bars(LEVELS),
    "levels of two": lambda: level_bars({**LEVELS, "B": LEVELS["A"]}),
    "boxes": lambda: box_plots(RUNS),
    "probability": lambda: class_probability(COUNTS, VALUES, names=["a", "b", "c"]),
    "target": lambda: target_probability(COUNTS, VALUES),
    "recall": lambda: class_recall(COUNTS, VALUES, low=[0, 0, 0], high=[1, 1, 1]),
    "gradients": lambda: gradient_bars(GRADIENTS),
    "sensitivity": lambda: sensitivity([1.0, 1.5], RECALLS, chosen=1.5),
    "trade-off": lambda: trade_off(POINTS),
}


def texts(figure):
    return [text.get_text() for text in figure.findobj(mpl.text.Text) if text.get_text()]


@pytest.mark.parametrize("name", DRAW)
def test_files_are_vector_and_pixels_and_the_same_every_time(name, tmp_path):
    first, second = (save_figure(DRAW[name](), tmp_path / run / "deep" / "figure") for run in ("one", "two"))
    assert [path.suffix for path in first] == [".svg", ".pdf", ".png"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert first[0].read_text().startswith("<?xml")
    assert first[1].read_bytes().startswith(b"%PDF")
    assert first[2].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", DRAW)
def test_in_a_page_text_is_text_and_names_and_colours_are_the_pages(name):
    svg = inline_svg(DRAW[name](), "my-figure", 'what "it" shows & more')
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'what "it" shows & more'
    assert root.get("width") is None
    assert root.get("viewBox")
    ids = re.findall(r'\bid="([^"]*)"', svg)
    assert all(one.startswith("my-figure-") for one in ids)
    assert len(ids) == len(set(ids))
    for used in re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', svg):
        assert "".join(used) in ids
    assert "<text" in svg
    assert "var(--fig-ink)" in svg
    assert INK not in svg.lower()
    assert "<metadata" not in svg
    assert "font-family" not in svg
    assert "DejaVu" not in svg


ROLES = ["Softmax", "Balanced Softmax", "CBS (β = 1.5)", "CBS, β searched"]
LONG = {
    "four levels": lambda: level_bars({data: {name: Summary(40, 1, 5) for name in ROLES} for data in "AB"}),
    "levels": lambda: level_bars({"A": {f"A method with a long name, no. {k}": Summary(40, 1, 5) for k in range(9)}}),
    "target": lambda: target_probability([3, 2, 1], {"ProCo + Balanced Softmax": [1, 1, 1]}, names=["automobile"] * 3),
    "recall": lambda: class_recall([3, 2, 1], {"m": [1, 1, 1]}, names=["a rather long name"] * 3),
    "gradients": lambda: gradient_bars({"A": {"ProCo + Balanced Softmax": GRADIENTS["A"]["Softmax"]}}),
}


@pytest.mark.parametrize("draw", [*DRAW.values(), *LONG.values()], ids=[*DRAW, *(f"long {name}" for name in LONG)])
def test_no_text_is_cut_off(draw):
    figure = draw()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = figure.bbox.size
    for text in _labels(figure):
        if text.get_visible() and text.get_text().strip():
            box = text.get_window_extent(canvas.get_renderer())
            assert box.x0 > -2, text
            assert box.y0 > -2, text
            assert box.x1 < width + 2, text
            assert box.y1 < height + 2, text


def _labels(figure):
    yield from (text for legend in figure.legends for text in legend.get_texts())
    for axes in figure.axes:
        yield from axes.texts
        yield from (axes.xaxis.label, axes.yaxis.label, axes.title)


def test_drawing_leaves_the_settings_of_the_program_alone():
    before = dict(mpl.rcParams)
    for draw in DRAW.values():
        draw()
    assert dict(mpl.rcParams) == before


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Expected `formats` to be some of svg, pdf, png, but got 'gif'"):
        save_figure(DRAW["levels"](), tmp_path / "x", ["gif"])


def test_series_are_told_apart_without_colour():
    marks = list(marks_of([str(place) for place in range(14)]).values())
    assert len({mark.marker for mark in marks}) == 14
    more = marks_of([str(place) for place in range(28)]).values()
    assert len({(mark.marker, mark.colour) for mark in more}) == 28
    assert len({mark.hatch for mark in marks[:10]}) == 10
    assert len({(mark.marker, str(mark.line)) for mark in GROUPS.values()}) == len(GROUPS)
    assert all(one.line != other.line and one.hatch != other.hatch for one, other in pairwise(marks))
    for name in ("levels of two", "gradients"):
        containers = DRAW[name]().axes[0].containers
        bars = [c for c in containers if isinstance(c, mpl.container.BarContainer)]
        assert len({bar.patches[0].get_hatch() for bar in bars}) == len(bars) > 1


def test_neighbours_differ_in_grey():
    def grey(colour):
        red, green, blue = (value / 255 for value in bytes.fromhex(to_hex(colour)[1:]))
        return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2

    marks = list(marks_of([str(place) for place in range(7)]).values())
    assert all(abs(grey(one.colour) - grey(other.colour)) > 0.04 for one, other in pairwise(marks))


def test_training_is_solid_and_test_is_dashed():
    figure = recall_curves({"CBS": CURVES})
    lines = figure.axes[0].lines
    assert len(lines) == 6
    by_values = {tuple(line.get_ydata()): line for line in lines}
    for group in CURVES.train:
        assert by_values[tuple(CURVES.train[group])].get_linestyle() == "-"
        assert by_values[tuple(CURVES.test[group])].get_linestyle() == "--"
    listed = [text.get_text() for text in figure.legends[0].get_texts()]
    assert listed == ["head", "medium", "tail", " ", "training", "test"]  # in three columns, the last of data alone


def test_four_panels_are_two_rows_of_two_and_each_row_says_what_it_shows(tmp_path):
    figure = recall_curves(dict.fromkeys(ROLES, CURVES))
    boxes = [axes.get_position() for axes in figure.axes]
    assert len({round(box.x0, 3) for box in boxes}) == len({round(box.y0, 3) for box in boxes}) == 2
    assert [axes.get_ylabel() for axes in figure.axes] == ["recall, %", "", "recall, %", ""]
    many = box_plots(dict.fromkeys("ABCD", RUNS["A"]))
    assert [bool(axes.get_ylabel()) for axes in many.axes] == [True, False, True, False]
    (file,) = save_figure(figure, tmp_path / "curves", ["png"])
    assert mpl.image.imread(file).shape[1] < 1300  # a page is not wider, and the file is not large


def test_levels_of_one_data_set_are_named_and_in_order():
    axes = level_bars({"A": LEVELS["A"] | {"None": Summary(math.nan, math.nan, 1)}}).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["None", "Softmax", "CBS"]
    assert {"40.0", "12.0", "undefined"} <= set(texts(axes.figure))


def drawn_boxes(figure, found):
    """Where texts are, in pixels of the drawn figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    size = mpl.text.Text.get_window_extent  # without the line from a name to its point
    return [size(text, canvas.get_renderer()) for text in found if text.get_text()]


def test_an_undefined_level_is_not_struck_through_by_the_axis():
    figure = level_bars({"A": {name: Summary(math.nan, math.nan, 1) for name in "abc"} | LEVELS["A"]})
    axes = figure.axes[0]
    for box in drawn_boxes(figure, axes.texts):
        assert box.y0 > axes.bbox.y0


def test_an_undefined_level_beside_others_is_not_taken_for_zero():
    missing = {"A": LEVELS["A"], "B": {"Softmax": Summary(math.nan, math.nan, 1)}}
    assert texts(level_bars(missing)).count("undefined") == 1  # CBS was not run on B


METHODS = ["Softmax", "Balanced Softmax", "Class-balanced sampling", "ProCo + CBS (β = 1.8)"]


@pytest.mark.parametrize("names", [METHODS, METHODS * 2], ids=["four", "eight"])
def test_long_names_under_boxes_do_not_overlap(names):
    figure = box_plots({"A": {f"{name}{' ' * k}": [1.0 + k, 2.0] for k, name in enumerate(names)}})
    boxes = drawn_boxes(figure, figure.axes[0].get_xticklabels())
    assert len(boxes) == len(names)
    for one, other in pairwise(boxes):
        assert one.x1 < other.x0


def test_of_more_than_two_boxes_it_is_said_which_are_compared():
    more = {"A": {"Softmax": [70.0, 70.5, 71.0]} | RUNS["A"]}
    assert box_plots(more, against="Softmax").axes[0].get_title().startswith("CBS against Softmax\np ")


def test_text_is_wrapped_by_words_and_what_is_too_long_is_cut():
    assert wrapped("Class-balanced sampling", 14) == "Class-balanced\nsampling"
    assert wrapped("ProCo + CBS (β = 1.8)", 11) == "ProCo + CBS\n(β = 1.8)"
    assert wrapped("one two three", 5, most=2) == "one\ntwo…"


def test_boxes_say_p_difference_and_d():
    ours, theirs = RUNS["A"]["CBS"], RUNS["A"]["Balanced Softmax"]
    welch = stats.ttest_ind(ours, theirs, equal_var=False).pvalue
    pooled = math.sqrt((np.var(ours, ddof=1) + np.var(theirs, ddof=1)) / 2)
    difference = np.mean(ours) - np.mean(theirs)
    title = box_plots(RUNS).axes[0].get_title()
    assert title == f"p = {welch:.2g}, n = 3\nΔμ = {difference:+.2f}, d = {difference / pooled:.2f}"
    one_sided = box_plots(RUNS, alternative="greater").axes[0].get_title()
    assert one_sided.startswith(f"p = {welch / 2:.4f} (one-sided)")
    paired = stats.ttest_rel(ours, theirs).pvalue
    assert box_plots(RUNS, paired=True).axes[0].get_title().startswith(f"p = {paired:.2g}, n = 3\n")
    assert (
        box_plots(RUNS, paired=dict.fromkeys(RUNS, True)).axes[0].get_title().startswith(f"p = {paired:.2g}, n = 3\n")
    )
    once = box_plots({"A": {"a": [1.0], "b": [2.0]}}).axes[0].get_title()
    assert once == "Δμ = +1.00; fewer than two runs, no test"


def test_classes_go_from_frequent_to_rare():
    axes = class_probability(COUNTS, VALUES, names=["a", "b", "c"]).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["b", "a", "c"]
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert lines["Softmax"] == [0.88, 0.1, 0.02]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([500 / 555, 50 / 555, 5 / 555])
    assert axes.get_yscale() == "log"
    assert "logarithmic" in axes.get_ylabel()


@pytest.mark.parametrize("rarest", [25, 5, 1])
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
        ([f"class {c}" for c in range(6)], False),
        (["aeroplane", "automobile", *"abcdefgh"], True),
        (["a class with a name that is long", "internationalization_of_things", *"abcdefgh"], True),
    ],
)
def test_only_names_that_need_it_are_slanted(names, slanted):
    figure = class_recall(list(range(len(names), 0, -1)), {"m": [50.0] * len(names)}, names=names)
    labels = figure.axes[0].get_xticklabels()
    assert len(labels) == len(names)
    assert all((label.get_rotation() > 0) == slanted for label in labels)
    if not slanted:
        for one, other in pairwise(drawn_boxes(figure, labels)):
            assert one.x1 < other.x0
    else:
        assert max(len(line) for label in labels for line in label.get_text().split("\n")) <= 14
    assert figure.axes[0].get_position().height * figure.get_figheight() > 1.4  # names take no room from the lines


def test_a_dollar_in_a_name_is_a_dollar():
    figure = class_recall(COUNTS, {"$a_m$": [1, 2, 3]}, low=[0] * 3, high=[9] * 3, names=["$x^$", "\\$", "$y$"])
    assert {"$x^$", "\\$", "$y$"} <= set(texts(figure))
    drawn_boxes(figure, figure.axes[0].get_xticklabels())


def test_a_split_is_drawn_alike_in_all_figures():
    recalls = {"test": [1, 2, 3], "training": [2, 3, 4]}
    targets = {"training": [0.1, 0.2, 0.3], "test": [0.2, 0.3, 0.4]}
    for figure in (class_recall(COUNTS, recalls, split=""), target_probability(COUNTS, targets, split="")):
        lines = {line.get_label(): line for line in figure.axes[0].lines}
        for split in ("training", "test"):
            assert lines[split].get_color() == SPLITS[split].colour
            assert lines[split].get_marker() == SPLITS[split].marker
    assert not {mark.colour for mark in SPLITS.values()} & {GROUPS[g].colour for g in ("head", "medium", "tail")}
    assert len({str(mark.line) for mark in SPLITS.values()}) == 3


def test_many_classes_are_means_of_neighbours():
    axes = target_probability(list(range(600, 0, -1)), {"m": np.linspace(1, 0, 600).tolist()}).axes[0]
    assert len(axes.lines[0].get_ydata()) == 60
    assert axes.lines[0].get_ydata()[0] == pytest.approx(np.linspace(1, 0, 600)[:10].mean())


def test_gradients_far_off_are_cut_and_have_their_number():
    axes = gradient_bars(GRADIENTS).axes[0]
    widths = [bar.get_width() for bars in axes.containers for bar in bars]
    assert min(width for width in widths if not math.isnan(width)) == -1000
    assert {"−5×10⁷", "−900"} <= set(texts(axes.figure))
    assert axes.get_xscale() == "symlog"
    assert axes.get_xlabel() == "(reward − penalty) / reward, %\nlogarithmic beyond ±20\nbars cut at ±1,000"
    near = gradient_bars({"A": {"CBS": {"head": 5.0, "tail": -3.0}}}).axes[0]
    assert (near.get_xscale(), near.get_xlabel()) == ("linear", "(reward − penalty) / reward, %")


def test_numbers_of_gradients_are_readable():
    sizes = {"a": -27_431.0, "b": 3144.2, "c": -0.48, "d": 9.6e9, "e": -math.inf, "f": 999_999.0, "g": -0.01, "h": 5}
    figure = gradient_bars({"A": {name: {"head": size} for name, size in sizes.items()}})
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown == ["−27,000", "3,144", "−0.5", "1×10¹⁰", "−∞", "1×10⁶", "0.0", "5.0"]


def test_gradients_near_zero_all_have_one_decimal():
    figure = gradient_bars({"A": {"CBS": {"head": -6.0, "medium": 21.34, "tail": -0.02}}})
    assert [text.get_text() for text in figure.axes[0].texts] == ["−6.0", "21.3", "0.0"]


def test_ticks_of_gradients_do_not_overlap():
    names = {"ProCo + Balanced Softmax": {"head": 5000.0, "tail": -4000.0}, "b": {"head": 1.0, "tail": 2.0}}
    names |= {name: {"head": 3.0, "tail": -3.0} for name in "cde"}
    figure = gradient_bars({"A": names})
    boxes = drawn_boxes(figure, figure.axes[0].get_xticklabels())
    assert len(boxes) == 5
    for one, other in pairwise(boxes):
        assert one.x1 < other.x0


def test_the_chosen_beta_is_drawn_and_says_on_what_it_was_chosen():
    figure = sensitivity([1.0, 1.5], RECALLS, chosen=1.5, chosen_on="TEST data")
    assert figure.axes[0].get_title() == "line: β = 1.5, chosen on TEST data"
    assert not any("chosen" in text for text in texts(sensitivity([1.0, 1.5], RECALLS)))


def test_the_frontier_has_those_that_none_beats_in_both():
    points = POINTS | {"twin": Point(88, 81), "lost": Point(math.nan, 99)}
    assert frontier(points) == ["CBS", "twin", "Softmax"]
    axes = trade_off(points).axes[0]
    line = next(line for line in axes.lines if line.get_label() == "frontier")
    assert list(line.get_xdata()) == [88, 88, 94]
    assert {"Softmax", "CBS", "Focal", "twin"} <= set(texts(axes.figure))


PILE = {"cRT": Point(86, 47, 11, 14), "CBS (β = 1.5)": Point(38, 16, 3, 15), "LDAM-DRW": Point(57, 6, 15, 1)}
PILE |= {
    name: Point(at, tail, 7, 0.5)
    for name, at, tail in [
        *(("Softmax", 84, 0), ("Focal loss", 82, 0), ("Logit adjustment", 75, 1), ("Adjust logit", 76.7, 0)),
        *(("ResLT", 67.7, 0), ("LWS", 83.3, 0.25), ("Balanced Softmax", 75, 1)),
    ]
}


def test_a_pile_of_points_has_numbers_and_a_key():
    figure = trade_off(PILE)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [f"{place}  {name}" for place, name in enumerate(PILE, 1)]
    (axes,) = figure.axes
    assert sorted(text.get_text() for text in axes.texts) == sorted(str(place) for place in range(1, len(PILE) + 1))
    for one, other in combinations(drawn_boxes(figure, axes.texts), 2):
        assert not one.overlaps(other)


def test_points_with_room_have_their_names():
    (axes,) = trade_off(POINTS).axes
    assert {text.get_text() for text in axes.texts} == set(POINTS)


@pytest.mark.parametrize("points", [PILE, POINTS, {"a": Point(100, 0), "b": Point(99, 2, 3, 3)}])
def test_no_axis_of_recall_runs_beyond_what_there_can_be(points):
    (axes,) = trade_off(points).axes
    for low, high in (axes.get_xlim(), axes.get_ylim()):
        assert 0 <= low < high <= 100


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (lambda: recall_curves({}), "Expected curves of a method or more to draw, but got none."),
        (lambda: level_bars({}), "Expected the imbalance level of a method or more to draw, but got none."),
        (lambda: box_plots({}), "Expected runs of a method or more to draw, but got none."),
        (lambda: class_recall([1, 2], {}), "Expected values of a model or more to draw, but got none."),
        (lambda: class_recall([1, 2], {"m": [1]}), "Expected a value of each of 2 classes for m, but got 1."),
        (lambda: gradient_bars({}), "Expected the gradient balance of a method or more to draw, but got none."),
        (lambda: sensitivity([1.0], RECALLS), "Expected recalls of two strengths or more to draw, but got 1."),
        (lambda: trade_off({}), "Expected head and tail recall of a method or more to draw, but got none."),
    ],
)
def test_nothing_to_draw_is_one_sentence(draw, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        draw()


# Characters that our font has not


def _named(name):
    return class_recall(COUNTS, VALUES, names=[name, "b", "c"])


def test_what_no_font_has_is_one_sentence_and_no_warning(tmp_path, recwarn, monkeypatch):
    monkeypatch.setattr(style, "_FALLBACKS", ())  # which some systems have
    figure = _named("日本🐶 on\nédition")
    save_figure(figure, tmp_path / "figure")
    assert "日本🐶" in inline_svg(figure, "figure", "")
    assert [str(one.message) for one in recwarn] == []
    assert undrawn_in([_named("ascii"), figure]) == (
        "Files of figures show boxes in place of 日本🐶: no font is installed that has them; the page shows them."
    )
    assert "in place of 一丁七万丈三上下…: no font" in undrawn_in([_named("一丁七万丈三上下不与")])
    assert undrawn_in([draw() for draw in DRAW.values()]) == ""


def test_what_our_font_lacks_is_drawn_by_another_that_is_installed(tmp_path, monkeypatch):
    arc = "⌒"  # which STIX has, and DejaVu has not
    monkeypatch.setattr(style, "_FALLBACKS", ())
    before = inline_svg(_named("plain"), "figure", "")
    (box,) = save_figure(_named(arc), tmp_path / "box", ["png"])
    assert undrawn_in([_named(arc)]) != ""
    monkeypatch.setattr(style, "_FALLBACKS", ("Not Installed", "DejaVu Serif", "STIXGeneral"))
    figure = _named(arc)
    assert undrawn_in([figure]) == ""
    (drawn,) = save_figure(figure, tmp_path / "drawn", ["png"])
    assert drawn.read_bytes() != box.read_bytes()
    assert inline_svg(_named("plain"), "figure", "") == before
