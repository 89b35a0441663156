"""Reports of runs: what is in the page, and how it behaves in a real browser."""

import copy
import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations, pairwise

import pytest
import torch
from safetensors.torch import load_file
from tests.browser import browser, find_browser

from longtail.cli.train_line import parse
from longtail.study.record import StudyRecord, write_study
from longtail.study.report import render, report_of_runs, write_report
from longtail.study.report.classes import ClassView, class_grid, worst_cards, worst_classes
from longtail.study.report.drawings import beta_drawing, overview_drawings, part_drawings
from longtail.study.report.page import Cell, Column, Gallery, Grid, Page, Picture, Section
from longtail.study.report.parts import parts_of
from longtail.study.report.predictions import Confusions, predicted_by
from longtail.study.report.settings import repeat_command
from longtail.study.runs import Run, group_runs, one_cell, read_run, read_runs
from longtail.train import defaults


class Reader(HTMLParser):
    """All that tests ask of a page: elements with their attributes, and tables as text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.tables, self.text = [], [], []
        self._cell = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.elements.append((tag, found))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self._cell = []

    def handle_endtag(self, tag):
        if tag in {"td", "th"}:
            self.tables[-1][-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data):
        self.text.append(data)
        if self._cell is not None:
            self._cell.append(data)

    def all(self, name):
        return [found for tag, found in self.elements if tag == name]


@pytest.fixture(scope="module")
def study(finished, tmp_path_factory):
    """Three methods, two seeds, as a study's folder has them; one run is not finished."""
    folder = tmp_path_factory.mktemp("study")
    for method in ("softmax", "cbs"):
        for seed in (0, 1):
            shutil.copytree(finished(method, seed=seed, evaluate_every=1), folder / f"{method}-{seed}")
    shutil.copytree(finished("logit-adjust-posthoc", evaluate_every=1), folder / "posthoc")
    (folder / "begun").mkdir()
    shutil.copy(folder / "cbs-0" / "recipe.toml", folder / "begun")
    return folder


@pytest.fixture(scope="module")
def made(study):
    return report_of_runs(study, reference="softmax", command="longtail report study")


@pytest.fixture(scope="module")
def text(made):
    return render(made.page)


@pytest.fixture(scope="module")
def page(text):
    return Reader(text)


# What is in it


def test_it_loads_nothing(page, text):
    for _, found in page.elements:
        for name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
            assert found.get(name, "#").startswith(("#", "data:")), found
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    policy = next(found["content"] for found in page.all("meta") if found.get("http-equiv"))
    assert policy.startswith("default-src 'none';")


def test_it_is_the_same_every_time(study, text):
    assert render(report_of_runs(study, reference="softmax", command="longtail report study").page) == text


def test_names_are_unique_and_links_lead_somewhere(page):
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    for _, found in page.elements:
        for name in ("href", "for", "aria-labelledby", "aria-describedby"):
            target = found.get(name, "")
            if target and not target.startswith("data:"):
                assert target.removeprefix("#") in ids, (name, target)


def test_everything_has_words_for_those_who_do_not_see_it(page):
    assert page.all("html")[0]["lang"] == "en"
    assert page.all("img")
    assert all(found["alt"] for found in page.all("img"))
    drawings = page.all("svg")
    assert drawings
    assert all(found["role"] == "img" and len(found["aria-label"]) > 20 for found in drawings)
    labelled = {found["for"] for found in page.all("label")}
    assert {found["id"] for found in page.all("input")} <= labelled
    assert len(page.all("caption")) == len(page.all("table"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_recalls_are_those_of_the_runs(study, page):
    rows = {row[0]: row[1:] for row in page.tables[0][1:]}
    for method, title in (("softmax", "Softmax"), ("cbs", "CBS (β = 1.5)")):
        results = [json.loads((study / f"{method}-{seed}" / "result.json").read_text()) for seed in (0, 1)]
        recalls = torch.tensor(
            [[r["splits"]["test"]["recall"][g] for g in ("head", "medium", "tail", "all")] for r in results]
        )
        shown = [
            f"{100 * m:.2f} ± {100 * s:.2f}"
            for m, s in zip(recalls.double().mean(0), recalls.double().std(0), strict=True)
        ]
        assert [re.sub(r"\*+$", "", cell) for cell in rows[title]] == shown


def test_every_class_has_its_row(study, page):
    table = next(table for table in page.tables if table[0][0] == "Class" and "Precision, %" in table[0])
    assert len(table) == 11
    results = [json.loads((study / f"softmax-{seed}" / "result.json").read_text()) for seed in (0, 1)]
    column = table[0].index("Recall, Softmax")
    for c, row in enumerate(table[1:]):
        assert row[0] == str(c)
        expected = sum(result["splits"]["test"]["recall_per_class"][c] for result in results) / 2
        assert row[column] == f"{100 * expected:.1f}"


def test_confusions_are_those_of_the_predictions(study):
    stored = load_file(study / "cbs-0" / "predictions.safetensors")
    labels, guesses = stored["test.labels"], stored["test.logits"].argmax(1)
    taken = Confusions(10, [predicted_by(read_run(study / "cbs-0"))])
    for c in range(10):
        of_class = guesses[labels == c]
        counts = torch.bincount(of_class[of_class != c], minlength=10)
        found = dict(taken.of(c, most=10))
        assert found == {g: 100 * int(n) / len(of_class) for g, n in enumerate(counts) if n}
        assert [share for _, share in taken.of(c)] == sorted(found.values(), reverse=True)[:3]


def test_predictions_are_those_after_the_runs_step(study):
    run = read_run(study / "posthoc")
    assert run.result["posthoc"] is not None
    found = predicted_by(run)
    right = torch.bincount(found.labels[found.labels == found.classes], minlength=10)
    recall = (right / torch.bincount(found.labels, minlength=10)).tolist()
    assert recall == pytest.approx(run.result["splits"]["test"]["recall_per_class"])
    plain = load_file(study / "posthoc" / "predictions.safetensors")["test.logits"].argmax(1)
    assert not torch.equal(plain, found.classes)  # otherwise this test could not fail


def test_the_surest_mistakes_are_shown_with_what_they_were_taken_for(page):
    images = page.all("img")
    assert all(found["src"].startswith("data:image/png;base64,iVBOR") for found in images)
    assert all(re.fullmatch(r"\d, taken for \d", found["alt"]) for found in images)
    titles = [line for line in page.text if line.startswith("Surest mistakes")]
    assert titles
    assert set(titles) == {"Surest mistakes of the run with seed 0 on test images, with what they were taken for:"}


def view_of(recalls):
    return ClassView([f"c{k}" for k in range(len(recalls))], [9] * len(recalls), {}, {"m": recalls}, "m")


@pytest.mark.parametrize(
    ("recalls", "worst"),
    [
        ([90, 10, 80, 20, 30, 85, 40, 95, 99], [1, 3, 4]),  # a third of them, though four are below the mean
        ([100, 100, 100, 100, 100, 40, 100, 100, 100], [5]),
        ([70, 70, 70], []),
        ([60, 80], [0]),
        ([math.nan, 90, 50, 90], [2]),
        (list(range(60)), list(range(6))),
    ],
)
def test_the_worst_classes_are_below_the_mean_and_at_most_a_third(recalls, worst):
    assert worst_classes(view_of(recalls)) == worst


def test_one_image_is_one_image():
    view = ClassView(["ant", "bee", "cow"], [1, 40, 30], {"all": [0, 1, 2]}, {"m": [0.0, 90.0, 80.0]}, "m", [1, 9, 9])
    (card,) = worst_cards(view, None, lambda _: ("", [])).cards
    assert card.facts == "Recall 0.0 % of 1 test image; 1 training image, no. 3 of 3 by frequency."
    assert [column.name for column in class_grid(view, "n", "t", "c").columns][2:4] == [
        "Training images",
        "Test images",
    ]


def test_without_a_worst_class_it_says_why():
    for recall, said in ((70.0, "All classes have the same recall."), (100.0, "No class has an error.")):
        assert worst_cards(view_of([recall] * 3), None, lambda _: ("", [])).lines == [said]


def test_captions_say_which_methods_are_shown_and_why(study):
    (part,) = parts_of(group_runs(read_runs(study)))
    assert part.shown(part.cells) == ""
    others = [cell for cell in part.cells if cell is not part.best]
    said = part.shown([others[0], part.best])
    assert said.startswith(f" 2 of 3 methods are shown: {part.title(part.best)} (the highest recall")
    assert said.endswith(f"for comparison {part.title(others[0])}.")


def test_it_says_what_to_be_careful_about(page):
    text = " ".join(page.text)
    assert "1 run not finished and left out: begun." in text
    assert "1 of 3 rows have one run" in text
    assert "read off test data" in text
    assert "is the fairest" not in text  # after three epochs all but one level are undefined
    assert "The imbalance level is undefined for" in text
    assert "paired t-test" in text


def test_the_fairest_is_named_where_levels_are_known(study, tmp_path):
    for method, level in (("softmax", 40.0), ("cbs", 12.5)):
        folder = changed(study / f"{method}-0", tmp_path / method)
        result = json.loads((folder / "result.json").read_text())
        result["preference_test"]["model_imbalance_level"] = level
        (folder / "result.json").write_text(json.dumps(result))
    text = " ".join(Reader(render(report_of_runs(tmp_path).page)).text)
    assert "CBS (β = 1.5) is the fairest" in text
    assert "model imbalance level 12.5, the lowest here" in text


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("cbs", {"evaluate_every": 1}),
        ("softmax", {"lr": 0.03, "milestones": (1, 2), "nesterov": True, "schedule": "steps"}),
    ],
)
def test_the_commands_repeat_the_runs(finished, method, changes):
    run = read_run(finished(method, **changes))
    words = repeat_command(group_runs([run])[0]).split()
    assert words[:2] == ["longtail", "train"]
    again = parse(words[2:])
    for name in (
        "data",
        "method",
        "imbalance",
        "epochs",
        "lr",
        "milestones",
        "nesterov",
        "schedule",
        "seed",
        "subset_seed",
    ):
        assert getattr(again, name) == getattr(run.recipe, name), name
    assert again.knobs == run.recipe.knobs


def changed(source, folder, recipe=(), result=()):
    """A copy of a run, with some text of its files replaced."""
    shutil.copytree(source, folder)
    for name, changes in (("recipe.toml", recipe), ("result.json", result)):
        text = (folder / name).read_text()
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        (folder / name).write_text(text)
    return folder


def test_text_from_files_is_never_markup(study, tmp_path):
    evil = "<script>alert(1)</script>"
    result = json.loads((study / "cbs-0" / "result.json").read_text())
    result["classes"] = [f"{evil}{c}" for c in range(10)]
    folder = changed(study / "cbs-0", tmp_path / "run")
    (folder / "result.json").write_text(json.dumps(result))
    text = render(report_of_runs(tmp_path).page)
    assert evil not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;3" in text


def test_different_data_are_never_put_side_by_side(study, tmp_path):
    changed(study / "cbs-0", tmp_path / "a")
    changed(study / "softmax-0", tmp_path / "b", recipe=[("validation = 0.0", "validation = 0.2")])
    parts = parts_of(group_runs(read_runs(tmp_path)))
    assert sorted((part.name, part.titles) for part in parts) == [
        ("digits-lt 50", ("CBS (β = 1.5)",)),
        ("digits-lt 50, validation 0.2", ("Softmax",)),
    ]
    text = " ".join(Reader(render(report_of_runs(tmp_path).page)).text)
    assert "digits-lt 50, validation 0.2: Methods" in text


def test_methods_of_the_same_name_are_told_apart_by_what_differs(study, tmp_path):
    changed(study / "cbs-0", tmp_path / "a")
    lr = re.search(r"^lr = .*$", (study / "cbs-0" / "recipe.toml").read_text(), re.MULTILINE).group(0)
    changed(study / "cbs-0", tmp_path / "b", recipe=[(lr, "lr = 0.5")])
    (part,) = parts_of(group_runs(read_runs(tmp_path)))
    assert part.titles == (f"CBS (β = 1.5), {lr.replace(' =', '')}", "CBS (β = 1.5), lr 0.5")


def test_levels_over_data_sets_say_what_they_leave_out(study, tmp_path):
    for held in ("0.0", "0.2"):
        for name, method, beta in (("s", "softmax", None), ("c", "cbs", "1.5"), ("d", "cbs", "1.6")):
            if (held, name) == ("0.2", "d"):
                continue
            recipe = [("validation = 0.0", f"validation = {held}")]
            recipe += [("beta = 1.5", f"beta = {beta}")] if beta else []
            folder = changed(study / f"{method}-0", tmp_path / f"{name}{held}", recipe=recipe)
            result = json.loads((folder / "result.json").read_text())
            result["preference_test"]["model_imbalance_level"] = 20.0
            (folder / "result.json").write_text(json.dumps(result))
    (drawing,) = overview_drawings(parts_of(group_runs(read_runs(tmp_path))))
    assert [text.get_text() for text in drawing.figure.legends[0].get_texts()] == ["Softmax", "CBS (β = 1.5)"]
    heights = [bar.get_height() for bars in drawing.figure.axes[0].containers for bar in bars]
    assert heights == [20.0] * 4  # on both data sets, though one of them has another beta too
    assert "Left out, because they are on one data set only: CBS (β = 1.6)." in drawing.caption


def test_without_images_and_predictions_it_says_so(study, tmp_path):
    folder = changed(
        study / "cbs-0",
        tmp_path / "run",
        recipe=[('data = "digits-lt"', 'data = "fashion-mnist-lt"'), ('root = "data"', f'root = "{tmp_path}"')],
    )
    (folder / "predictions.safetensors").unlink()
    page = Reader(render(report_of_runs(tmp_path).page))
    text = " ".join(page.text)
    assert not page.all("img")
    assert "Example images are left out, because the data is not here: Expected" in text
    assert "these runs did not keep their predictions" in text


def test_a_search_for_beta_is_shown_with_what_was_chosen(study, tmp_path):
    for place, beta in enumerate((1.0, 1.5, 2.0)):
        changed(study / "cbs-0", tmp_path / "search" / str(place), recipe=[("beta = 1.5", f"beta = {beta}")])
    record = {"beta": 1.5, "select_on": "test", "selected": "β chosen on TEST data", "choice": "beta = 1.5"}
    (tmp_path / "search" / "beta.json").write_text(json.dumps(record))
    made = report_of_runs(tmp_path)
    assert [section.name for section in made.page.sections] == ["beta", "how"]
    text = " ".join(Reader(render(made.page)).text)
    assert "β chosen on TEST data" in text
    (drawing,) = made.drawings.values()
    assert drawing.caption.endswith("on training data (solid) and test data. One run a β. β chosen on TEST data.")


def run_of(study, method, seed, *, balance=None, **changes):
    """A record made by hand: a run of a method, with the balance of its gradient in each group."""
    like = read_run(study / "softmax-0")
    recipe = replace(defaults("digits-lt", method), seed=seed, **changes)
    result = copy.deepcopy(like.result)
    if balance is not None:
        result["splits"][like.trained]["gradient_balance"]["weight"] = dict(
            zip(like.result["groups"], balance, strict=True)
        )
    return Run(like.path, replace(recipe, **recipe.knobs), result)


def test_betas_with_different_numbers_of_runs_are_told_as_they_are(study):
    def said(*numbers):
        cells = [
            one_cell(run_of(study, "cbs", seed, beta=1.0 + place) for seed in range(number))
            for place, number in enumerate(numbers)
        ]
        return beta_drawing(cells).caption

    assert said(1, 5, 5).endswith(" 1 to 5 runs a β.")
    assert said(3, 3).endswith(" 3 runs a β.")
    assert said(1, 1).endswith(" One run a β.")


def test_gradients_that_are_undefined_or_off_the_scale_are_left_out_and_named(study):
    def cell(method, *balances):
        return one_cell(run_of(study, method, seed, balance=found) for seed, found in enumerate(balances))

    near = cell("softmax", (10.0, -20.0, -300.0), (20.0, -10.0, -200.0))
    off = cell("crt", (80.0, -2_000.0, -1e7), (90.0, -3_000.0, -2e7))
    lost = cell("ldam", (5.0, 1.0, 2.0), (None, 1.0, 2.0))

    def drawn(*cells):
        (part,) = parts_of(cells)
        return next((one for one in part_drawings(part) if one.name == "gradients"), None)

    figure = drawn(near, off, lost)
    assert [label.get_text() for label in figure.figure.axes[0].get_yticklabels()] == ["Softmax"]
    assert "undefined in a run, without any reward: LDAM (head). " in figure.caption
    assert figure.caption.endswith(
        "beyond ±10,000 %, where there is next to no reward and the size of the ratio says little: cRT (tail)."
    )
    assert "left out" not in drawn(near).caption
    assert drawn(off, lost) is None


def test_a_search_on_test_data_draws_test_data_where_there_are_folds_too(study, tmp_path):
    for place, beta in enumerate((1.0, 1.5, 2.0)):
        folder = changed(study / "cbs-0", tmp_path / "search" / str(place), recipe=[("beta = 1.5", f"beta = {beta}")])
        result = json.loads((folder / "result.json").read_text())
        result["splits"]["val"] = result["splits"]["test"]
        (folder / "result.json").write_text(json.dumps(result))
    for on, drawn in (("test", "test data"), ("val", "validation data")):
        (tmp_path / "search" / "beta.json").write_text(json.dumps({"beta": 1.5, "select_on": on}))
        (drawing,) = report_of_runs(tmp_path).drawings.values()
        assert f"(solid) and {drawn}." in drawing.caption
        assert f"β chosen on {drawn.replace('test', 'TEST')}." in drawing.caption


WAY = "β chosen on TEST data by recall over all classes, 2 runs a β"
ON_TEST = f"{WAY}: digits-lt 50 1.5"


def captions(made):
    """Every caption of a page, by what it is of: figures, and tables but those without a method."""
    found = {f"figure {name}": drawing.caption for name, drawing in made.drawings.items()}
    text = render(made.page)
    for name, note in re.findall(r'<p class="note" id="([^"]*)-note">(.*?)</p>', text, re.DOTALL):
        found[f"table {name}"] = note
    assert len(re.findall("<figcaption>", text)) >= len(made.drawings)
    return found


@pytest.mark.parametrize("which", ["the study", "a run of it", "its parent", "it and others"])
def test_every_caption_says_that_beta_was_chosen_on_test_data(study, finished, tmp_path, which):
    folder = tmp_path / "s"
    for name in ("softmax-0", "softmax-1", "cbs-0", "cbs-1"):
        shutil.copytree(study / name, folder / name)
    names = ("softmax-0", "softmax-1", "cbs-0", "cbs-1")
    write_study(folder, StudyRecord("first", "softmax", planned=names, selected={"cbs-0": [WAY], "cbs-1": [WAY]}))
    given = {"cbs-0": ["β as given"], "cbs-1": ["β as given"]}
    write_study(folder, StudyRecord("second", "softmax", planned=names, selected=given))  # hides nothing
    shutil.copytree(finished("softmax", seed=2, evaluate_every=1), tmp_path / "other" / "softmax-2")
    paths = {
        "the study": [folder],
        "a run of it": [folder / "cbs-0"],
        "its parent": [tmp_path],
        "it and others": [tmp_path / "other", folder],
    }[which]
    found = captions(report_of_runs(*paths))
    assert len(found) > 9
    silent = {name for name, caption in found.items() if ON_TEST not in caption}
    assert silent <= {"figure digits-lt-50-curves-softmax"}, silent  # it has no beta


def without_test(source, folder):
    """A copy of a run whose data had no test split."""
    changed(source, folder)
    result = json.loads((folder / "result.json").read_text())
    result["splits"]["val"] = result["splits"].pop("test")
    result["preference_val"] = result.pop("preference_test")
    (folder / "result.json").write_text(json.dumps(result))
    log = (folder / "log.jsonl").read_text().replace('"test"', '"val"')
    (folder / "log.jsonl").write_text(log)
    return result


def test_without_test_data_a_page_is_about_validation_data(study, tmp_path):
    results = [without_test(study / name, tmp_path / name) for name in ("softmax-0", "softmax-1", "cbs-0", "cbs-1")]
    made = report_of_runs(tmp_path)
    text = " ".join(Reader(render(made.page)).text)
    assert not re.search(r"\bnan\b", text)
    assert "on validation data (there is no test data)" in text
    assert "There is no test data of digits-lt 50: results are on validation data." in text
    recall = max(
        sum(100 * one["splits"]["val"]["recall"]["all"] for one in pair) / 2 for pair in (results[:2], results[2:])
    )
    assert f"Highest recall over all classes on validation data (there is no test data), {recall:.1f} " in text.replace(
        "has the h", "H"
    )
    told = {
        name: caption for name, caption in captions(made).items() if "test data" in caption.replace("no test data", "")
    }
    assert not told
    assert "Solid: training data. Dotted: validation data." in made.drawings["digits-lt-50-curves-softmax"].caption


def test_with_neither_a_page_says_so(study, tmp_path):
    for name in ("softmax-0", "cbs-0"):
        result = without_test(study / name, tmp_path / name)
        del result["splits"]["val"], result["preference_val"]
        (tmp_path / name / "result.json").write_text(json.dumps(result))
    text = " ".join(Reader(render(report_of_runs(tmp_path).page)).text)
    assert "There is neither test nor validation data: nothing is known of how well new images are recognised." in text
    assert not re.search(r"\bnan\b", text)


def test_what_a_study_did_not_get_to_is_told(study, tmp_path):
    shutil.copytree(study / "cbs-0", tmp_path / "cbs-0")
    write_study(tmp_path, StudyRecord("longtail study x", "softmax", planned=["cbs-0", "cbs-1", "cbs-2"]))
    shutil.copytree(study / "softmax-0", tmp_path / "more" / "softmax-0")
    text = " ".join(Reader(render(report_of_runs(tmp_path).page)).text)
    assert "2 of 3 planned runs are missing." in text
    assert "longtail study x" in text
    alone = repeat_command(group_runs([read_run(tmp_path / "more" / "softmax-0")])[0])
    assert alone.endswith(f"--out {tmp_path / 'more' / 'softmax-0'}")
    assert alone in text  # no study tells of it


def test_many_methods_that_are_not_told_apart_are_counted(study, tmp_path):
    """Seven rows of one method, one of them the reference: six tests, none of which finds anything."""
    for place in range(7):
        for seed in (0, 1):
            folder = changed(
                study / f"cbs-{seed}", tmp_path / f"{place}-{seed}", recipe=[("beta = 1.5", f"beta = {1 + place / 10}")]
            )
            result = json.loads((folder / "result.json").read_text())
            result["splits"]["test"]["recall"]["all"] = 0.5 + 0.01 * ((3 * place + 5 * seed * (place + 1)) % 7)
            (folder / "result.json").write_text(json.dumps(result))
    text = " ".join(Reader(render(report_of_runs(tmp_path, reference="cbs").page)).text)
    assert "None of the 6 is told apart from CBS (β = 1)." in text
    assert "; one method in 7 rows, 14 runs." in text
    assert "CBS on digits-lt 50" in text  # and the heading counts the same


@pytest.mark.parametrize(
    ("alternative", "said", "not_said"),
    [("greater", "one-sided", "two-sided"), ("two-sided", "two-sided", "one-sided")],
)
def test_tests_are_those_of_the_study(study, tmp_path, alternative, said, not_said):
    for name in ("softmax-0", "softmax-1", "cbs-0", "cbs-1"):
        shutil.copytree(study / name, tmp_path / name)
    names = ("softmax-0", "softmax-1", "cbs-0", "cbs-1")
    write_study(tmp_path, StudyRecord("longtail study of softmax and cbs", "cbs", alternative, names))
    made = report_of_runs(tmp_path)
    found = captions(made)
    assert f"against CBS (β = 1.5) (paired t-test, {said})" in found["table d0-recall"]
    assert "longtail study of softmax and cbs" in render(made.page)
    boxes = made.drawings["digits-lt-50-boxes"]
    assert f"compare Softmax with CBS (β = 1.5) (paired t-test, {said}, not corrected)" in boxes.caption
    assert ("(one-sided)" in boxes.figure.axes[0].get_title()) == (alternative == "greater")
    text = " ".join(Reader(render(made.page)).text)
    assert not_said not in text
    assert re.search(
        r"Softmax (is|and) .*CBS \(β = 1\.5\).*p = [\d.]+ \(paired t-test" + r", one-sided\)" * (said == "one-sided"),
        text,
    )
    given = captions(report_of_runs(tmp_path, reference="softmax"))["table d0-recall"]
    assert f"against Softmax (paired t-test, {said})" in given


def test_refusals_are_one_sentence(study, made, tmp_path):
    with pytest.raises(ValueError, match=r"Expected finished runs in .*, but there are none"):
        report_of_runs(tmp_path)
    with pytest.raises(ValueError, match=r"Expected `out` to end in \.html, but got"):
        write_report(made, tmp_path / "report.txt")
    with pytest.raises(FileNotFoundError, match="Expected `out` to be in a folder that is there"):
        write_report(made, tmp_path / "no" / "report.html")
    (tmp_path / "study.json").write_text("{")
    changed(study / "cbs-0", tmp_path / "run")
    with pytest.raises(ValueError, match=r"Expected .*study.json to be JSON, but it is damaged"):
        report_of_runs(tmp_path)
    with pytest.raises(
        ValueError, match=r"^Expected `reference` to be a method that was run \(.*cbs.*\), but got 'cbss'\.$"
    ):
        report_of_runs(study, reference="cbss")


# In a browser

needs_browser = pytest.mark.skipif(
    find_browser() is None,
    reason="there is no Chromium or Chrome here (Debian: apt install chromium; LONGTAIL_BROWSER)",
)


@pytest.fixture(scope="module")
def file(made, tmp_path_factory):
    return write_report(made, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def tab():
    with browser() as opened:
        yield opened


LUMINANCE = """(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!colour.includes("rgba(0, 0, 0, 0)")) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  let worst = [99, ""];
  const all = "p, li, h1, h2, h3, td, th, dt, strong, a, button, figcaption, summary, code, .chip, svg text";
  for (const element of document.querySelectorAll(all)) {
    if (!element.textContent.trim() || element.className === "skip") continue;
    const style = getComputedStyle(element);
    const a = light(element.closest("svg") ? style.fill : style.color), b = light(behind(element));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, element.tagName + " " + element.textContent.trim().slice(0, 40)];
  }
  return worst;
})()"""


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_it_is_readable_and_quiet(tab, file, width, dark):
    page, complaints = tab
    page.size(width, dark=dark)
    page.open(file)
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.run("document.documentElement.scrollWidth") <= width
    ratio, where = page.run(LUMINANCE)
    assert ratio >= 4.5, where
    smallest = page.run(
        "Math.min(...[...document.querySelectorAll('svg text')].map((one) => parseFloat(getComputedStyle(one).fontSize)"
        " * one.ownerSVGElement.getBoundingClientRect().width / one.ownerSVGElement.viewBox.baseVal.width))"
    )
    assert smallest >= 8.0
    sizes = page.run("[...document.querySelectorAll('p, td, li')].map((one) => getComputedStyle(one).fontSize)")
    assert min(float(size.removesuffix("px")) for size in sizes) >= 13
    assert page.run("[...document.images].every((one) => one.complete && one.naturalWidth > 0)")
    ink = page.run("getComputedStyle(document.body).backgroundColor")
    assert (ink == "rgb(255, 255, 255)") != dark
    assert complaints == []


def focused(page):
    return page.run("document.activeElement.textContent.trim().slice(0, 60) || document.activeElement.id")


@needs_browser
def test_it_is_usable_by_keyboard(tab, file):
    page, complaints = tab
    page.size(1440)
    page.open(file)
    page.press("Tab")
    assert focused(page) == "Skip to the report"
    assert page.run("document.activeElement.getBoundingClientRect().left") >= 0
    page.press("Enter")
    assert page.run("document.activeElement.id") == "content"
    page.press("Tab")  # the table's scrolling region, then its first column
    page.press("Tab")
    assert focused(page) == "Method"
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    column = "[...document.querySelectorAll('#d0-recall-table tbody tr')].map((row) => row.cells[4].dataset.v)"
    for _ in range(4):
        page.press("Tab")
    assert focused(page) == "All"
    page.press("Enter")
    values = [float(value) for value in page.run(column)]
    assert values == sorted(values, reverse=True)
    assert page.run("document.activeElement.parentElement.getAttribute('aria-sort')") == "descending"
    page.press(" ")
    values = [float(value) for value in page.run(column)]
    assert values == sorted(values)
    assert page.run("document.querySelectorAll('#d0-recall-table [aria-sort]').length") == 1
    page.press("Tab")
    assert page.run("document.activeElement.tagName") == "SUMMARY"
    page.press("Enter")
    assert page.run("document.activeElement.parentElement.open")
    page.run("document.querySelector('#d0-classes-table-search').focus()")
    page.type("tail")
    assert page.run("document.querySelector('#d0-classes-table .found').textContent") == "4 of 10 rows"
    assert (
        page.run("[...document.querySelectorAll('#d0-classes-table tbody tr')].filter((row) => !row.hidden).length")
        == 4
    )
    assert complaints == []


SEEN = """[...document.querySelectorAll('#d0-recall-table thead th')]
  .every((cell) => cell.getBoundingClientRect().right <= innerWidth)"""


@needs_browser
def test_on_a_phone_the_tail_is_seen_and_what_goes_on_says_so(tab, file):
    page, _ = tab
    frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    page.size(390)
    page.open(file)
    page.run(frame)
    assert page.run(SEEN)
    assert page.run("document.querySelector('nav').classList.contains('more')")
    wide = "document.querySelector('#d0-classes-table .edge')"
    shade = f"getComputedStyle({wide}, '::after').opacity"
    hint = f"getComputedStyle({wide}.nextElementSibling).display"
    assert (page.run(shade), page.run(hint)) == ("1", "block")
    page.run(f"{wide}.firstElementChild.scrollLeft = 9999")
    page.run(frame)
    first = f"{wide}.querySelector('tbody th').getBoundingClientRect()"
    assert page.run(f"{first}.left >= 0 && {first}.width < 150")  # which class it is stays in view
    assert (page.run(shade), page.run(hint)) == ("0", "block")
    page.size(1440)
    page.run(frame)
    assert page.run("document.querySelectorAll('.more, .wide').length") == 0


@needs_browser
@pytest.mark.parametrize("width", [390, 1440])
def test_long_names_are_wrapped(tab, tmp_path, width):
    page, _ = tab
    name = "internationalization_of_things_without_any_space_between_them_at_all"
    rows = [[Cell(text, text) for text in (name, "a class whose name has words " * 3, f"{name} (20 %)")]]
    grid = Grid("t", "T", [Column(column, numeric=False) for column in ("Class", "Taken for", "Then")], rows)
    file = tmp_path / "page.html"
    file.write_text(render(Page("T", "", [Section("s", "S", [grid])])), encoding="utf-8")
    page.size(width)
    page.open(file)
    assert page.run("document.querySelector('.scroll').scrollWidth <= document.querySelector('.scroll').clientWidth")
    assert page.run("document.querySelector('tbody th').getBoundingClientRect().height") > 30


@needs_browser
@pytest.mark.parametrize(("number", "columns"), [(1, 1), (2, 2), (7, 3)])
def test_figures_fill_the_page_and_none_lies_over_another(tab, tmp_path, number, columns):
    page, _ = tab
    heights = (200, 300, 200, 500, 250, 200, 300)
    pictures = [Picture(f'<svg viewBox="0 0 300 {h}"></svg>', "A caption.", "T") for h in heights[:number]]
    file = tmp_path / "page.html"
    file.write_text(render(Page("T", "", [Section("s", "S", [Gallery(pictures)])])), encoding="utf-8")
    page.size(1440)
    page.open(file)
    page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    boxes = page.run(
        "[...document.querySelectorAll('.gallery > figure')].map((one) => one.getBoundingClientRect())"
        ".map((box) => [box.left, box.top, box.right, box.bottom])"
    )
    assert len(boxes) == number
    assert len({round(box[0]) for box in boxes}) == columns
    inner = page.run("document.querySelector('.gallery').getBoundingClientRect().right")
    assert max(box[2] for box in boxes) == pytest.approx(inner, abs=10)
    for one, other in combinations(boxes, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    for one, other in pairwise(sorted(boxes, key=lambda box: (box[0], box[1]))):
        assert one[0] != other[0] or 10 < other[1] - one[3] < 30  # no hole between two of a column


@needs_browser
def test_words_and_gaps_sort_too(tab, tmp_path):
    page, _ = tab
    rows = [[Cell("b", "b"), Cell("2", 2.0)], [Cell("c10", "c10"), Cell("–", "")], [Cell("c9", "c9"), Cell("10", 10.0)]]
    grid = Grid("t", "T", [Column("Name", numeric=False), Column("Value")], rows)
    file = tmp_path / "page.html"
    file.write_text(render(Page("T", "", [Section("s", "S", [grid])])), encoding="utf-8")
    page.open(file)
    names = "[...document.querySelectorAll('tbody th')].map((cell) => cell.textContent).join(' ')"
    page.run("document.querySelectorAll('thead button')[1].click()")
    assert page.run(names) == "c9 b c10"
    page.run("document.querySelectorAll('thead button')[1].click()")
    assert page.run(names) == "b c9 c10"  # what has no value stays last
    page.run("document.querySelectorAll('thead button')[0].click()")
    assert page.run(names) == "b c9 c10"
    page.run("document.querySelectorAll('thead button')[0].click()")
    assert page.run(names) == "c10 c9 b"


@needs_browser
def test_the_browser_does_complain(tmp_path):
    (tmp_path / "bad.html").write_text(
        "<!doctype html><script>console.error('one')</script><script>throw new Error('two')</script>"
        "<img src='http://127.0.0.1:9/three.png'>"
    )
    with browser() as (page, complaints):
        page.open(tmp_path / "bad.html")
        page.run("1")
        seen = " ".join(complaints)
    assert "one" in seen
    assert "Uncaught" in seen
    assert "asked for http://127.0.0.1:9/three.png" in seen
