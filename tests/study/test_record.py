"""The record of studies: later commands add to it, and never hide an entry."""

import json
import shutil
from dataclasses import asdict, replace

import pytest

from longtail.study.captions import recorded_for
from longtail.study.record import Choice, StudyRecord, missing_of, read_studies, write_study
from longtail.study.runs import group_runs, read_runs

ON_TEST = Choice("search", "test", runs=2)
SEARCHED, GIVEN = Choice("search", "val", folds=3, runs=3), Choice("given")
TITLE = "CBS (β = 1.5)"
CBS = "digits-lt-50-cbs-beta1.5-seed"


@pytest.fixture
def folder(study, tmp_path):
    shutil.copytree(study, tmp_path / "s")
    return tmp_path / "s"


def names(folder):
    return sorted(run.path.name for run in read_runs(folder))


def test_a_study_replaces_what_it_covers_and_hides_nothing_else(tmp_path):
    begun = StudyRecord("longtail study a", "softmax", planned=["x"], searches={"d cbs": None})
    write_study(tmp_path, begun)
    assert read_studies(tmp_path) == [begun]
    found = replace(begun, planned=["x", "y"], selected={"y": [SEARCHED]}, searches={"d cbs": 1.5})
    ended = replace(found, ended="2026-01-03", failed={"y": "why"})
    write_study(tmp_path, ended)
    assert read_studies(tmp_path) == [ended]
    write_study(tmp_path, begun)  # the same command once more, stopped before its search: what was found stays
    assert [one.searches["d cbs"] for one in read_studies(tmp_path)] == [1.5, None]
    write_study(tmp_path, replace(found, selected={"y": [GIVEN]}))  # a plan of the same name that was changed
    assert [one.selected for one in read_studies(tmp_path)] == [{"y": [SEARCHED]}, {"y": [GIVEN]}]
    write_study(tmp_path, StudyRecord("longtail study b", "cbs"))
    assert [one.command[-1] for one in read_studies(tmp_path)] == ["a", "a", "b"]
    write_study(tmp_path, replace(found, command="longtail study c", selected={"y": [SEARCHED, GIVEN]}))
    assert [one.command[-1] for one in read_studies(tmp_path)] == ["b", "c"]
    assert not list(tmp_path.glob(".*"))


def test_an_empty_command_keeps_the_recorded_one(tmp_path):
    write_study(tmp_path, StudyRecord("longtail study a", "softmax"))
    write_study(tmp_path, StudyRecord("", "softmax", planned=["x"]))
    assert [one.command for one in read_studies(tmp_path)] == ["longtail study a"]


def test_a_file_of_another_version_is_refused(tmp_path):
    whole = {**asdict(StudyRecord("x", "softmax")), "selected": {"y": [asdict(GIVEN)]}}
    wrong = [{"planned": 3}, {"planned": [3]}, {"selected": {"y": [{"by": "luck"}]}}, {"searches": {"y": "x"}}]
    contents = ['{"command": "x"}', "[]", '{"studies": [{"command": "x"}]}', '{"studies": 3}', "[" * 100_000]
    for content in [*contents, *(json.dumps({"studies": [whole | one]}) for one in wrong)]:
        (tmp_path / "study.json").write_text(content)
        with pytest.raises(ValueError, match=r"study\.json.*; move the file away and run"):
            read_studies(tmp_path)


def test_a_choice_on_test_data_is_not_hidden_by_a_later_command(folder):
    runs = read_runs(folder)
    cells = group_runs(runs)
    first = StudyRecord("first", "softmax", names(folder), {f"{CBS}{n}": [ON_TEST] for n in (0, 1)})
    write_study(folder, first)
    given = {f"{CBS}{n}": [GIVEN] for n in (0, 1)}
    write_study(folder, StudyRecord("second --betas 1.5", "cbs", planned=list(given), selected=given))
    recorded = recorded_for([folder], runs)
    assert recorded.selected(cells) == f"{ON_TEST}: {TITLE}; β as given: {TITLE}"
    assert recorded.selected([cell for cell in cells if cell.method != "cbs"]) == ""
    assert recorded.commands == ("first", "second --betas 1.5")
    assert recorded.reference(cells) == "softmax"  # of more of the runs
    assert recorded.reference([cell for cell in cells if cell.method == "cbs"]) == "cbs"  # the other was not run there
    for methods, reference in (
        (("softmax", "balanced-softmax", "cbs"), "balanced-softmax"),
        (("cbs", "softmax"), "softmax"),
        (("cbs",), "cbs"),
    ):
        some = [run for run in runs if run.method in methods]
        shutil.copy(folder / "study.json", folder / "other.json")
        (folder / "study.json").unlink()
        assert recorded_for([folder], some).reference(group_runs(some)) == reference  # without a record
        (folder / "other.json").rename(folder / "study.json")
    softmax = [run for run in runs if run.method == "softmax"]
    assert recorded_for([folder], softmax).commands == ("first",)  # only what covers the rows
    write_study(folder, replace(first, command="third", reference="balanced-softmax"))
    assert recorded_for([folder], runs).reference(cells) == "balanced-softmax"  # in a tie, the latest


def test_the_search_of_a_stopped_study_is_used(folder):
    place = folder / "search" / "digits-lt-50-cbs"
    place.mkdir(parents=True)
    record = {"beta": 1.5, "data": "digits-lt 50", "method": "cbs", "select_on": "test", "points": [{"scores": [1, 2]}]}
    for changes, way in (
        ({}, f"{ON_TEST}: {TITLE}"),
        ({"beta": 1.2}, ""),
        ({"data": "digits-lt 10"}, ""),
    ):
        (place / "beta.json").write_text(json.dumps(record | changes))
        runs = read_runs(folder)
        assert recorded_for([folder], runs).selected(group_runs(runs)) == way


def test_missing_and_failed_runs_are_named(folder):
    planned = [*names(folder), "a", "b"]
    write_study(folder, StudyRecord("x", "softmax", planned=planned, searches={"d cbs": None}, failed={"a": "why"}))
    recorded = recorded_for([folder], read_runs(folder))
    assert recorded.missing == "2 of 8 planned runs are missing; 1 search for β and the runs with that β are missing"
    assert recorded.failed == ("a",)
    assert recorded_for([folder / f"{CBS}0"], read_runs(folder / f"{CBS}0")).missing == ""  # one run alone
    assert missing_of(folder, [StudyRecord("y", "softmax", planned=names(folder))]) == ""


def test_runs_without_a_study_are_distinguished(study, tmp_path):
    for name in ("a", "b", "c"):
        shutil.copytree(study / f"{CBS}0", tmp_path / name / f"{CBS}0")
    for name, choice in (("a", SEARCHED), ("b", GIVEN)):
        record = StudyRecord(name, "softmax", planned=[f"{CBS}0"], selected={f"{CBS}0": [choice]})
        write_study(tmp_path / name, record)
    runs = read_runs(tmp_path)
    recorded, (cell, *_) = recorded_for([tmp_path], runs), group_runs(runs[:1])
    assert [path.parent.name for path in recorded.unrecorded] == ["c"]
    assert recorded.commands == ("a", "b")  # in the order of the runs, in every process
    several = [cell, *group_runs(runs[1:2]), *group_runs(runs[2:])]
    assert recorded.selected(several) == (
        f"{SEARCHED}: {TITLE}; β as given: {TITLE}; how β was chosen is not recorded: {TITLE}"
    )
    assert recorded_for([tmp_path / "c"], read_runs(tmp_path / "c")).selected([cell]) == ""
