"""Reports of runs: what is in the page, and how it behaves in a real browser."""

import json
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file
from tests.browser import browser, find_browser

from longtail.cli.train_line import parse
from longtail.study.captions import Told, told_of
from longtail.study.report import render, report_of_runs, write_report
from longtail.study.report.page import Cell, Column, Grid, Page, Section
from longtail.study.report.parts import parts_of
from longtail.study.report.predictions import Confusions, predicted_by
from longtail.study.report.settings import repeat_command
from longtail.study.runs import group_runs, read_run, read_runs


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


ON_TEST = "β chosen on TEST data by recall over all classes, 2 runs a β: digits-lt 50 1.5"


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
    (folder / "study.json").write_text(json.dumps({"selected": ON_TEST}))
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


def test_other_runs_beside_a_study_are_not_told_of_as_its_own(study, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(study / "cbs-0", tmp_path / name / "same" / "cbs-0")
        (tmp_path / name / "same" / "study.json").write_text(json.dumps({"selected": f"β chosen on {name}"}))
    shutil.copytree(study / "cbs-1", tmp_path / "c" / "cbs-1")
    told = told_of([tmp_path], read_runs(tmp_path)).selected
    other = "how β was chosen is not recorded with the other runs"
    assert told == f"β chosen on a (same); β chosen on b (same); {other}"
    assert told_of([tmp_path / "c"], read_runs(tmp_path / "c")) == Told("balanced-softmax", "two-sided", "")


@pytest.mark.parametrize(
    ("alternative", "said", "not_said"),
    [("greater", "one-sided", "two-sided"), ("two-sided", "two-sided", "one-sided")],
)
def test_tests_are_those_of_the_study(study, tmp_path, alternative, said, not_said):
    for name in ("softmax-0", "softmax-1", "cbs-0", "cbs-1"):
        shutil.copytree(study / name, tmp_path / name)
    cbs = {"reference": "cbs", "alternative": alternative}
    (tmp_path / "study.json").write_text(json.dumps(cbs))
    made = report_of_runs(tmp_path)
    found = captions(made)
    assert f"against CBS (β = 1.5) (paired t-test, {said})" in found["table d0-recall"]
    boxes = made.drawings["digits-lt-50-boxes"]
    assert f"compare Softmax with CBS (β = 1.5) (paired t-test, {said}, not corrected)" in boxes.caption
    assert ("(one-sided)" in boxes.figure.axes[0].get_title()) == (alternative == "greater")
    text = " ".join(Reader(render(made.page)).text)
    assert not_said not in text
    assert re.search(
        r"Softmax (is|and) .*CBS \(β = 1\.5\).*p = [\d.]+" + r" \(one-sided\)" * (said == "one-sided"), text
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
