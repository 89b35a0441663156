"""The search for beta with real runs on folds."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from longtail.study.execute import execute
from longtail.study.runs import Run, read_runs
from longtail.study.search import fold_recipes, folds_of, search_runs, trace_table
from longtail.study.search_rule import SearchPlan
from longtail.train import defaults
from longtail.train.dataset import open_data


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


BASE = defaults("digits-lt", "cbs").changed(epochs=1, evaluate_every=0, checkpoint_epochs=0, device="cpu")


def search(base, plan, out, rounds=None):
    """Run a search alone, each round trained when it is yielded."""
    needed = search_runs(base, plan, out, "longtail study beta")
    while True:
        try:
            runs = next(needed)
        except StopIteration as end:
            return end.value
        if rounds is not None:
            rounds.append(tuple(dict.fromkeys(run.recipe.beta for run in runs)))
        execute(runs)


def test_runs_on_folds_are_scored_on_what_they_did_not_see(tmp_path):
    rounds, plan = [], SearchPlan(bounds=(1.0, 1.1), start=(1.0, 1.1), folds=2, seeds=2)
    found = search(BASE, plan, tmp_path, rounds)
    assert rounds == [(1.0, 1.1)]
    assert found.folds == 2
    for point, cell in zip(found.trials, found.cells, strict=True):
        assert cell.places == ((0, 0), (0, 1), (1, 0), (1, 1))
        assert [score.value for score in point.scores] == [run.recall("all", "val") for run in cell.runs]
        assert [score.level for score in point.scores] == pytest.approx(
            [run.level("val") for run in cell.runs], nan_ok=True
        )
    kept = json.loads((tmp_path / "beta.json").read_text("utf-8"))
    assert kept["beta"] == found.beta
    assert (kept["select_on"], kept["command"]) == ("val", "longtail study beta")
    assert (kept["data"], kept["method"]) == ("digits-lt 50", "cbs")
    assert len(kept["points"]) == 2
    assert read_runs(tmp_path) == []  # runs of a cross-validation are not results
    assert len(read_runs(tmp_path, searches=True)) == 8
    caption = found.sensitivity("longtail study beta").caption
    assert "2-fold cross-validation within training data by recall over all classes, 4 runs per β" in caption
    assert "test recall is shown, not used; each model saw 1 of 2 folds" in caption
    trace = trace_table(found)
    assert [row.labels[0] for row in trace.rows] == ["1"] * 2
    assert sum("chosen" in row.labels[1] for row in trace.rows) == 1
    assert "TEST" not in trace.caption
    assert f"Standard error: {found.choice.standard_error:.2f}." in trace.caption
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert search(BASE, plan, tmp_path).record() == found.record()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == before


def test_choosing_on_test_is_in_every_caption_and_other_data_need_another_folder(tmp_path):
    plan = SearchPlan(select_on="test", bounds=(1.0, 1.1), start=(1.0, 1.1))
    found = search(BASE, plan, tmp_path)
    assert found.folds == 0
    assert [p.scores[0].value for p in found.trials] == [c.runs[0].recall() for c in found.cells]
    for caption in (trace_table(found).caption, found.sensitivity().caption, str(found.selected)):
        assert "TEST data" in caption
    assert "not used" not in found.sensitivity().caption
    assert "Standard error: undefined." in trace_table(found).caption  # one run per beta
    assert read_runs(tmp_path) == []  # runs of a search are not results, on folds or not
    kept = (tmp_path / "beta.json").read_text("utf-8")
    with pytest.raises(ValueError, match="`select_on` val, but it is of one with test; choose another folder"):
        next(search_runs(BASE, replace(plan, select_on="val", folds=2), tmp_path))
    assert (tmp_path / "beta.json").read_text("utf-8") == kept
    for _ in search_runs(BASE, plan, tmp_path):  # reading it again, as a page does, loses nothing
        pass
    assert (tmp_path / "beta.json").read_text("utf-8") == kept


def test_if_every_score_is_undefined_the_search_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "recall", lambda run, group="all", part="test": float("nan"))
    plan = SearchPlan(select_on="test", bounds=(1.0, 1.1), start=(1.0, 1.1))
    with pytest.raises(ValueError, match=r"recall is defined .* none among 1, 1\.1\.$"):
        search(BASE, plan, tmp_path)


def test_the_number_of_folds(tmp_path):
    assert folds_of(BASE, SearchPlan()) == 5
    assert folds_of(replace(BASE, validation=0.2), SearchPlan()) == 0
    assert folds_of(replace(BASE, data="imagenet-lt"), SearchPlan()) == 0
    assert folds_of(BASE, SearchPlan(folds=3)) == 3
    assert folds_of(BASE, SearchPlan(select_on="test")) == 0
    for part in ("train", "val"):
        for name, number in {"a": 20, "b": 6}.items():
            (tmp_path / "split" / part / name).mkdir(parents=True)
            for place in range(number):
                Image.new("RGB", (8, 8), (place, 9, 9)).save(tmp_path / "split" / part / name / f"{place}.png")
    own = defaults(str(tmp_path / "split" / "train"), "cbs")
    assert own.validation == 0.1  # the default share is too small to choose on
    assert folds_of(own, SearchPlan()) == 5
    assert folds_of(replace(own, validation=0.2), SearchPlan()) == 0
    assert folds_of(defaults(str(tmp_path / "split"), "cbs"), SearchPlan()) == 0  # it has a validation split


def test_folds_share_seed_and_subset_over_betas():
    one, other = (fold_recipes(BASE, beta, 3, [0, 1]) for beta in (1.0, 1.2))
    assert len(one) == 6
    for a, b in zip(one, other, strict=True):
        assert a.changed(beta=1.2) == b
        assert open_data(a).val.labels.equal(open_data(b).val.labels)
    assert len(open_data(one[0]).val) > 0
    assert open_data(one[0]).counts.sum() < open_data(BASE).counts.sum()
