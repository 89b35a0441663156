"""Reports of runs: what is in the page."""

import json
import math
import re
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file
from tests.study.pages import Reader, changed

from longtail.cli.train_line import parse
from longtail.report import render, report_of_runs, write_report
from longtail.report.classes import ClassView, class_grid, worst_cards, worst_classes
from longtail.report.predictions import Confusions, predicted_by
from longtail.report.settings import repeat_command
from longtail.study.runs import group_runs, read_run


@pytest.fixture(scope="module")
def study(compared):
    return compared


@pytest.fixture(scope="module")
def text(report):
    return render(report.page)


@pytest.fixture(scope="module")
def page(text):
    return Reader(text)


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


def test_it_says_what_to_be_careful_about(page):
    text = " ".join(page.text)
    assert "1 run not finished and left out: begun." in text
    assert "1 of 3 rows have one run" in text
    assert "read off test data" in text
    assert "is the fairest" not in text  # after three epochs all but one level are undefined
    assert "The imbalance level is undefined for" in text
    assert "paired t-test" in text


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
    assert again.params == run.recipe.params


def test_text_from_files_is_never_markup(study, tmp_path):
    evil = "<script>alert(1)</script>"
    result = json.loads((study / "cbs-0" / "result.json").read_text())
    result["classes"] = [f"{evil}{c}" for c in range(10)]
    folder = changed(study / "cbs-0", tmp_path / "run")
    (folder / "result.json").write_text(json.dumps(result))
    text = render(report_of_runs(tmp_path).page)
    assert evil not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;3" in text


def test_refusals_are_one_sentence(study, report, tmp_path):
    with pytest.raises(ValueError, match=r"Expected finished runs in .*, but there are none"):
        report_of_runs(tmp_path)
    with pytest.raises(ValueError, match=r"Expected `out` to end in \.html, but got"):
        write_report(report, tmp_path / "report.txt")
    with pytest.raises(FileNotFoundError, match="Expected `out` to be in a folder that is there"):
        write_report(report, tmp_path / "no" / "report.html")
    (tmp_path / "study.json").write_text("{")
    changed(study / "cbs-0", tmp_path / "run")
    with pytest.raises(ValueError, match=r"Expected .*study.json to be JSON, but it is damaged"):
        report_of_runs(tmp_path)
    with pytest.raises(
        ValueError, match=r"^Expected `reference` to be a method that was run \(.*cbs.*\), but got 'cbss'\.$"
    ):
        report_of_runs(study, reference="cbss")
