"""Reports of runs: what sentences and captions say about data, β, tests and what is left out."""

import json
import re
import shutil

import pytest
from tests.report.pages import Reader, changed

from longtail.report import report
from longtail.report.build import repeat_command
from longtail.report.data_results import headline_cards, split_by_data
from longtail.report.drawings import beta_drawing
from longtail.study.record import Choice, StudyRecord, write_study
from longtail.study.runs import Run, group_runs, one_cell, read_run, read_runs
from longtail.train import defaults


def test_captions_say_how_many_methods_are_shown(study):
    (part,) = split_by_data(group_runs(read_runs(study)))
    assert part.shown(part.cells) == ""
    others = [cell for cell in part.cells if cell is not part.best]
    assert part.shown([others[0], part.best]) == f" 2 of 3 methods are shown, {part.titles[part.best]} among them."


def test_the_method_to_use_is_named_and_never_underfitted(study, tmp_path):
    for method, level in (("softmax", 40.0), ("cbs", 12.5)):
        folder = changed(study / f"{method}-0", tmp_path / method)
        result = json.loads((folder / "result.json").read_text())
        result["preference_test"]["model_imbalance_level"] = level
        result["splits"]["test"]["unpredicted_classes"] = []
        result["splits"]["test"]["recall"]["all"] = 1 - level / 100
        (folder / "result.json").write_text(json.dumps(result))
    text = " ".join(Reader(report(tmp_path).html).text)
    assert re.search(r"Imbalance level I \(0: groups equal\)\s+12\.5\s+CBS \(β = 1\.5\)", text)
    said = "CBS (β = 1.5) has the highest recall over all classes, 87.5 % on test data, 27.5 points above Softmax, but "
    assert f"{said}there is no test: fewer than two seeds." in text.replace("\xa0", " ")
    result["splits"]["test"]["unpredicted_classes"] = list(range(7))
    result["splits"][f"train{'_paper' * (result['train_stats'] == 'paper')}"]["recall"]["all"] = 0.3
    (folder / "result.json").write_text(json.dumps(result))
    text = " ".join(Reader(report(tmp_path).html).text)
    assert "Use Softmax: it is the only method that is not underfitted" in text
    said = "CBS (β = 1.5) predicts 3 of 10 classes and has 30.0 % recall on training data: underfitted"
    assert said in text.replace("\xa0", " ")


def test_different_data_are_never_put_side_by_side(study, tmp_path):
    changed(study / "cbs-0", tmp_path / "a")
    changed(study / "softmax-0", tmp_path / "b", recipe=[("validation = 0.0", "validation = 0.2")])
    parts = split_by_data(group_runs(read_runs(tmp_path)))
    assert sorted((part.name, *part.titles.values()) for part in parts) == [
        ("digits-lt 50", "CBS (β = 1.5)"),
        ("digits-lt 50, validation 0.2", "Softmax"),
    ]
    text = " ".join(Reader(report(tmp_path).html).text)
    assert "digits-lt 50, validation 0.2: Results" in text


def test_methods_of_the_same_name_differ_in_their_titles(study, tmp_path):
    changed(study / "cbs-0", tmp_path / "a")
    lr = re.search(r"^lr = .*$", (study / "cbs-0" / "recipe.toml").read_text(), re.MULTILINE).group(0)
    changed(study / "cbs-0", tmp_path / "b", recipe=[(lr, "lr = 0.5")])
    (part,) = split_by_data(group_runs(read_runs(tmp_path)))
    assert tuple(part.titles.values()) == (f"CBS (β = 1.5), {lr.replace(' =', '')}", "CBS (β = 1.5), lr 0.5")


def test_without_images_and_predictions_it_says_so(study, tmp_path):
    folder = changed(
        study / "cbs-0",
        tmp_path / "run",
        recipe=[('data = "digits-lt"', 'data = "fashion-mnist-lt"'), ('root = "data"', f'root = "{tmp_path}"')],
    )
    (folder / "predictions.safetensors").unlink()
    page = Reader(report(tmp_path).html)
    text = " ".join(page.text)
    assert not page.all("img")
    assert "There are no example images, because the data is not on this machine: Expected" in text
    assert "these runs did not keep their predictions" in text


def test_a_search_for_beta_is_shown_with_what_was_chosen(study, tmp_path):
    for place, beta in enumerate((1.0, 1.5, 2.0)):
        changed(study / "cbs-0", tmp_path / "search" / str(place), recipe=[("beta = 1.5", f"beta = {beta}")])
    record = {"beta": 1.5, "select_on": "test", "choice": "beta = 1.5"}
    (tmp_path / "search" / "beta.json").write_text(json.dumps(record))
    made = report(tmp_path)
    assert re.findall('<section id="([^"]*)"', made.html) == ["beta", "how"]
    text = " ".join(Reader(made.html).text)
    assert "β chosen on TEST data" in text
    (drawing,) = made.drawings.values()
    assert drawing.caption.endswith(
        "on training data (solid) and test data. 1 run per β. β chosen on TEST data by recall over all classes."
    )


def run_of(study, method, seed, **changes):
    """A run of a method with the results of another."""
    like = read_run(study / "softmax-0")
    return Run(like.path, defaults("digits-lt", method).changed(seed=seed, **changes), like.result)


def test_betas_with_different_numbers_of_runs_are_counted(study):
    def said(*numbers):
        cells = [
            one_cell(run_of(study, "cbs", seed, beta=1.0 + place) for seed in range(number))
            for place, number in enumerate(numbers)
        ]
        return beta_drawing(cells).caption

    assert said(1, 5, 5).endswith(" 1 to 5 runs per β.")
    assert said(3, 3).endswith(" 3 runs per β.")
    assert said(1, 1).endswith(" 1 run per β.")


def test_a_search_on_test_data_draws_test_data_where_there_are_folds_too(study, tmp_path):
    for place, beta in enumerate((1.0, 1.5, 2.0)):
        folder = changed(study / "cbs-0", tmp_path / "search" / str(place), recipe=[("beta = 1.5", f"beta = {beta}")])
        result = json.loads((folder / "result.json").read_text())
        result["splits"]["val"] = result["splits"]["test"]
        (folder / "result.json").write_text(json.dumps(result))
    for on, drawn in (("test", "test data"), ("val", "validation data")):
        (tmp_path / "search" / "beta.json").write_text(json.dumps({"beta": 1.5, "select_on": on}))
        (drawing,) = report(tmp_path).drawings.values()
        assert f"(solid) and {drawn}." in drawing.caption
        assert f"β chosen on {drawn.replace('test', 'TEST')} by recall" in drawing.caption


WAY = Choice("search", "test", runs=2)
ON_TEST = f"{WAY}: CBS (β = 1.5)"


def captions(made):
    """Every caption of a page, by what it is of: figures, and tables but those without a method."""
    found = {f"figure {name}": one.caption for name, one in made.drawings.items() if "curves" not in name}
    text = made.html
    found["curves"] = re.search(r"<p>(Training loss .*?)</p>", text, re.DOTALL)[1]  # one caption for all of them
    for name, note in re.findall(r'<p class="note" id="([^"]*)-note">(.*?)</p>', text, re.DOTALL):
        found[f"table {name}"] = note
    return found


@pytest.mark.parametrize("which", ["a run of it", "it and others"])
def test_every_caption_says_that_beta_was_chosen_on_test_data(study, finished, tmp_path, which):
    folder = tmp_path / "s"
    for name in ("softmax-0", "softmax-1", "cbs-0", "cbs-1"):
        shutil.copytree(study / name, folder / name)
    names = ("softmax-0", "softmax-1", "cbs-0", "cbs-1")
    write_study(folder, StudyRecord("first", "softmax", planned=names, selected={"cbs-0": [WAY], "cbs-1": [WAY]}))
    given = {"cbs-0": [Choice("given")], "cbs-1": [Choice("given")]}
    write_study(folder, StudyRecord("second", "softmax", planned=names, selected=given))  # hides nothing
    shutil.copytree(finished("softmax", seed=2, evaluate_every=1), tmp_path / "other" / "softmax-2")
    paths = {
        "a run of it": [folder / "cbs-0"],
        "it and others": [tmp_path / "other", folder],
    }[which]
    found = captions(report(*paths))
    assert len(found) > 7
    silent = {name for name, caption in found.items() if ON_TEST not in caption}
    assert silent <= {"table settings-0"}, silent


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
    made = report(tmp_path)
    text = " ".join(Reader(made.html).text)
    assert not re.search(r"\bnan\b", text)
    assert "on validation data (there is no test data)" in text
    assert "There is no test data for digits-lt 50: the results are on validation data." in text
    recall = max(
        sum(100 * one["splits"]["val"]["recall"]["all"] for one in pair) / 2 for pair in (results[:2], results[2:])
    )
    assert re.search(rf"Recall over all classes, validation data\s+{recall:.1f} ± ", text)
    wrong = {
        name: caption for name, caption in captions(made).items() if "test data" in caption.replace("no test data", "")
    }
    assert not wrong
    assert "training data (solid) and validation data (dotted)" in captions(made)["curves"]


def test_with_neither_a_page_says_so(study, tmp_path):
    for name in ("softmax-0", "cbs-0"):
        result = without_test(study / name, tmp_path / name)
        del result["splits"]["val"], result["preference_val"]
        (tmp_path / name / "result.json").write_text(json.dumps(result))
    text = " ".join(Reader(report(tmp_path).html).text)
    assert "No method is recommended: there is neither test nor validation data." in text
    assert not re.search(r"\bnan\b", text)


def test_missing_runs_of_a_study_are_counted(study, tmp_path):
    shutil.copytree(study / "cbs-0", tmp_path / "cbs-0")
    write_study(tmp_path, StudyRecord("longtail study x", "softmax", planned=["cbs-0", "cbs-1", "cbs-2"]))
    shutil.copytree(study / "softmax-0", tmp_path / "more" / "softmax-0")
    text = " ".join(Reader(report(tmp_path).html).text)
    assert "2 of 3 planned runs are missing." in text
    assert "longtail study x" in text
    alone = repeat_command(group_runs([read_run(tmp_path / "more" / "softmax-0")])[0])
    assert alone in text  # no study has recorded it


def test_many_methods_without_a_significant_difference_are_counted(study, tmp_path):
    """Seven rows of one method, one of them the reference: six tests, none of which finds anything."""
    for place in range(7):
        for seed in (0, 1):
            folder = changed(
                study / f"cbs-{seed}", tmp_path / f"{place}-{seed}", recipe=[("beta = 1.5", f"beta = {1 + place / 10}")]
            )
            result = json.loads((folder / "result.json").read_text())
            result["splits"]["test"]["recall"]["all"] = 0.5 + 0.01 * ((3 * place + 5 * seed * (place + 1)) % 7)
            (folder / "result.json").write_text(json.dumps(result))
    text = " ".join(Reader(report(tmp_path, reference="cbs").html).text)
    assert "Of the other 6 rows, 0 differ significantly from CBS (β = 1); see the table." in text
    assert "1 method in 7 variants, 14 runs." in text
    assert "CBS on digits-lt 50" in text  # and the heading counts the same


def test_the_reference_is_that_of_the_study(study, tmp_path):
    names = ("softmax-0", "softmax-1", "cbs-0", "cbs-1")
    for name in names:
        shutil.copytree(study / name, tmp_path / name)
    write_study(tmp_path, StudyRecord("longtail study of softmax and cbs", "cbs", names))
    made = report(tmp_path)
    assert "against CBS (β = 1.5) (paired t-test, two-sided)" in captions(made)["table d0-recall"]
    assert "longtail study of softmax and cbs" in made.html
    text = " ".join(Reader(made.html).text)
    assert re.search(r"Softmax (is|and) .*CBS \(β = 1\.5\).*p = [\d.]+ \(paired t-test\)", text)
    given = captions(report(tmp_path, reference="softmax"))["table d0-recall"]
    assert "against Softmax (paired t-test, two-sided)" in given


def test_changes_in_recall_are_between_seeds_that_both_have(study, tmp_path):
    for name, head, tail, over_all in (("softmax-0", 90, 50, 70), ("softmax-1", 94, 80, 72), ("cbs-0", 88, 62, 75)):
        folder = changed(study / name, tmp_path / name)
        result = json.loads((folder / "result.json").read_text())
        recall = {"head": head / 100, "medium": 0.8, "tail": tail / 100, "all": over_all / 100}
        result["splits"]["test"] |= {"recall": recall, "unpredicted_classes": []}
        (folder / "result.json").write_text(json.dumps(result))
    (part,) = split_by_data(group_runs(read_runs(tmp_path)))
    assert part.best.method == "cbs"
    cards = {name: number for number, name, _ in headline_cards(part)}
    assert cards["Change in tail recall"] == "+12.0 points"  # not 62 - 65
    assert cards["Change in head recall"] == "-2.0 points"
