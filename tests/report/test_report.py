"""Reports of runs: the content of the page."""

import json
import math
import re
from collections import Counter
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file
from tests.report.pages import Reader, changed

from longtail.cli.train import read_recipes
from longtail.report import page as report_page
from longtail.report import report
from longtail.report.build import repeat_command
from longtail.report.class_results import ClassResults, count_predictions
from longtail.report.mistakes import read_predicted
from longtail.study.runs import group_runs, read_run


@pytest.fixture(scope="module")
def page(made):
    return Reader(made.html)


def test_page_loads_nothing(page, made):
    for _, found in page.elements:
        for name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
            assert found.get(name, "#").startswith(("#", "data:")), found
    assert "@import" not in made.html
    assert not re.search(r"url\((?!#)", made.html)
    policy = next(found["content"] for found in page.all("meta") if found.get("http-equiv"))
    assert policy.startswith("default-src 'none';")


def test_page_is_accessible(page):
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    for _, found in page.elements:
        for name in ("href", "for", "aria-labelledby", "aria-describedby"):
            target = found.get(name, "")
            if target and not target.startswith("data:"):
                assert target.removeprefix("#") in ids, (name, target)
    assert page.all("html")[0]["lang"] == "en"
    assert page.all("img")
    assert all(found["alt"] for found in page.all("img"))
    assert page.all("svg")
    assert all(found["role"] == "img" and len(found["aria-label"]) > 20 for found in page.all("svg"))
    assert {found["id"] for found in page.all("input")} <= {found["for"] for found in page.all("label")}
    assert len(page.all("caption")) == len(page.all("table"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_recall_table_has_the_values_of_the_runs(study, page):
    rows = {row[0]: row[1:] for row in page.tables[0][1:]}
    for method, title in (("softmax", "Softmax"), ("cbs", "CBS (β = 1.5)")):
        results = [json.loads((study / f"{method}-{seed}" / "result.json").read_text()) for seed in (0, 1)]
        recalls = torch.tensor(
            [[r["splits"]["test"]["recall"][g] for g in ("head", "medium", "tail", "all")] for r in results]
        ).double()
        shown = [f"{100 * m:.2f} ± {100 * s:.2f}" for m, s in zip(recalls.mean(0), recalls.std(0), strict=True)]
        assert [re.sub(r"\*+$", "", cell) for cell in rows[title]] == shown


def test_every_class_has_a_row(study, page):
    table = next(table for table in page.tables if table[0][0] == "Class" and "Precision, %" in table[0])
    assert len(table) == 11
    results = [json.loads((study / f"softmax-{seed}" / "result.json").read_text()) for seed in (0, 1)]
    column = table[0].index("Recall, Softmax")
    for c, row in enumerate(table[1:]):
        assert row[0] == str(c)
        expected = sum(result["splits"]["test"]["recall_per_class"][c] for result in results) / 2
        assert row[column] == f"{100 * expected:.1f}"


def class_results(recalls, **options):
    names = [f"c{k}" for k in range(len(recalls))]
    counts = options.pop("counts", [9] * len(recalls))
    return ClassResults(names, counts, {"all": list(range(len(recalls)))}, {"m": recalls}, "m", **options)


def test_mistakes_are_those_of_the_predictions(study):
    stored = load_file(study / "cbs-0" / "predictions.safetensors")
    labels, guesses = stored["test.labels"], stored["test.logits"].argmax(1)
    predicted = read_predicted(read_run(study / "cbs-0"))
    found = class_results([50.0] * 10, predictions=count_predictions([(predicted.labels, predicted.classes)]))
    for c in range(10):
        of_class = guesses[labels == c]
        counts = torch.bincount(of_class[of_class != c], minlength=10)
        assert dict(found.mistaken_for(c)) == {g: 100 * int(n) / len(of_class) for g, n in enumerate(counts) if n}
        shares = [share for _, share in found.mistaken_for(c)]
        assert shares == sorted(shares, reverse=True)


def test_predictions_include_the_posthoc_step(study):
    run = read_run(study / "posthoc")
    assert run.result["posthoc"] is not None
    found = read_predicted(run)
    right = torch.bincount(found.labels[found.labels == found.classes], minlength=10)
    recall = (right / torch.bincount(found.labels, minlength=10)).tolist()
    assert recall == pytest.approx(run.result["splits"]["test"]["recall_per_class"])
    plain = load_file(study / "posthoc" / "predictions.safetensors")["test.logits"].argmax(1)
    assert not torch.equal(plain, found.classes)  # otherwise this test could not fail


def test_images_of_mistakes_show_the_prediction(page):
    images = page.all("img")
    assert all(found["src"].startswith("data:image/png;base64,iVBOR") for found in images)
    assert all(re.fullmatch(r"\d, predicted as \d", found["alt"]) for found in images)
    assert "Most confident mistakes (test images, seed 0) and the predictions:" in page.text


def test_worst_classes_are_below_the_mean_and_at_most_a_third():
    for recalls, worst in (
        ([90, 10, 80, 20, 30, 85, 40, 95, 99], [1, 3, 4]),  # four are below the mean, but three are a third
        ([100, 100, 100, 100, 100, 40, 100, 100, 100], [5]),
        ([70, 70, 70], []),
        ([60, 80], [0]),
        ([math.nan, 90, 50, 90], [2]),
        (list(range(60)), list(range(6))),
    ):
        assert class_results(recalls).worst == worst


def test_confusion_and_most_frequent_mistakes():
    predictions = {0: Counter({0: 8, 2: 2}), 1: Counter({0: 3, 1: 1}), 2: Counter({2: 5})}
    found = class_results([80.0, 25.0, 100.0], counts=[90, 9, 30], predictions=predictions)
    drawing = found.confusion()
    assert sorted(text.get_text() for text in drawing.figure.axes[0].texts) == ["100", "20", "25", "75", "80"]
    pairs = [row[:3] + row[4:] for row in found.pairs_grid("p").rows]
    assert pairs == [["c1", "all", "c0", 3, 75.0], ["c0", "all", "c2", 2, 20.0]]
    many = class_results([50.0] * 51, predictions={c: Counter({(c + 1) % 51: 1, c: 1}) for c in range(51)})
    assert many.confusion() is None
    assert "Most frequent mistakes" in class_text(many)
    assert class_results([50.0]).confusion() is None  # the predictions are unknown


def test_classes_are_in_the_order_of_their_training_images_and_dashes_are_explained():
    found = class_results([0.0, math.nan, 80.0], counts=[1, 40, 30], precision=[math.nan, 1.0, 1.0])
    grid = found.grid("n")
    assert [row[0] for row in grid.rows] == ["c1", "c2", "c0"]
    assert "-: never predicted, so no precision." in grid.caption
    assert "-: no images, so no recall." in grid.caption


def class_text(found):
    macro = report_page.templates().get_template("macros.html").module.class_sections
    return " ".join(" ".join(Reader(macro(found)).text).split())


def test_cards_and_tables_of_classes():
    found = class_results([0.0, 90.0, 80.0], counts=[1, 40, 30], samples=[1, 9, 9])
    text = "Recall 0.0 % on 1 test image. 1 training image: number 3 of 3 by frequency."
    assert text in class_text(found)
    assert [column.name for column in found.grid("n").columns][2:4] == ["Training images", "Test images"]
    for recall, said in ((70.0, "All classes have the same recall."), (100.0, "There are no errors.")):
        assert said in class_text(class_results([recall] * 3))


def test_limits_are_named(page):
    text = " ".join(page.text)
    assert "1 unfinished run left out: begun." in text
    assert "1 of 3 rows have only one run" in text
    assert "Methods are compared on test data" in text
    assert "cover the choice of the seed, not that of the test data" in text
    assert "The imbalance level is undefined for" in text
    assert "paired t-test" in text


def test_command_repeats_the_runs(study):
    runs = [read_run(study / f"cbs-{seed}") for seed in (0, 1)]
    words = repeat_command(group_runs(runs)[0]).split()
    assert words[:2] == ["longtail", "train"]
    for again, run in zip(read_recipes(words[2:])[0], runs, strict=True):
        assert again == run.recipe


def test_text_from_files_is_escaped_and_nothing_is_trained_or_written(study, tmp_path, monkeypatch):
    from longtail.train import Trainer

    evil = "<script>alert(1)</script>"
    result = json.loads((study / "cbs-0" / "result.json").read_text())
    result["classes"] = [f"{evil}{c}" for c in range(10)]
    folder = changed(study / "cbs-0", tmp_path / "run")
    (folder / "result.json").write_text(json.dumps(result))
    monkeypatch.setattr(Trainer, "__init__", None)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    made = report(tmp_path, command=evil)
    assert evil not in made.html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;3" in made.html
    assert made._repr_html_().count("<") == 2  # one iframe, whose document is escaped again
    assert report(tmp_path, command=evil).html == made.html
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_errors_name_the_argument(study, made, tmp_path):
    with pytest.raises(ValueError, match=r"Expected finished runs in .*, but there are none"):
        report(tmp_path)
    with pytest.raises(ValueError, match=r"`out` to end in \.html"):
        made.write(tmp_path / "report.txt")
    assert made.write(tmp_path / "new" / "report.html").exists()  # it creates the folder
    (tmp_path / "study.json").write_text("{")
    changed(study / "cbs-0", tmp_path / "run")
    with pytest.raises(ValueError, match=r"study.json"):
        report(tmp_path)
    with pytest.raises(ValueError, match=r"`reference` .*cbs.*, but got 'cbss'\.$"):
        report(study, reference="cbss")
