"""The search for beta with real runs on folds."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from longtail.study.beta import BetaSearch, Point, Score, Settings, choose
from longtail.study.criteria import Criterion
from longtail.study.execute import execute
from longtail.study.plan import SearchPlan
from longtail.study.runs import Run, read_runs
from longtail.study.searching import Searched, fold_recipes, folds_of, searching, trace_table
from longtail.train import defaults
from longtail.train.loading import open_data


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


BASE = replace(defaults("digits-lt", "cbs"), epochs=2, evaluate_every=0, checkpoint_epochs=0, device="cpu")
NARROW = {"bounds": (1.0, 1.3), "folds": 2}


def search(base, plan, out, rounds=None):
    """A search alone, each round trained as it is asked for."""
    asked = searching(base, plan, out, "longtail study beta")
    while True:
        try:
            runs = next(asked)
        except StopIteration as end:
            return end.value
        if rounds is not None:
            rounds.append(tuple(dict.fromkeys(run.recipe.beta for run in runs)))
        execute(runs)


def test_runs_on_folds_are_scored_on_what_they_did_not_see(tmp_path):
    rounds = []
    found = search(BASE, SearchPlan(**NARROW, seeds=2), tmp_path, rounds)
    assert rounds[0] == (1.0, 1.1, 1.2, 1.3)
    assert found.folds == 2
    for point, cell in zip(found.found.points, found.cells, strict=True):
        assert cell.places == ((0, 0), (0, 1), (1, 0), (1, 1))
        assert [score.value for score in point.scores] == [run.recall("all", "val") for run in cell.runs]
        assert [score.level for score in point.scores] == pytest.approx(
            [run.level("val") for run in cell.runs], nan_ok=True
        )
    kept = json.loads((tmp_path / "beta.json").read_text("utf-8"))
    assert kept["beta"] == found.beta
    assert (kept["select_on"], kept["criterion"], kept["command"]) == ("val", "all", "longtail study beta")
    assert (kept["data"], kept["method"]) == ("digits-lt 50", "cbs")
    assert len(kept["points"]) == 4
    assert read_runs(tmp_path) == []  # runs of a cross-validation are not results
    assert len(read_runs(tmp_path, searches=True)) == 16
    sensitivity = found.sensitivity("longtail study beta")
    assert "2-fold cross-validation within training data by recall over all classes, 4 runs a β" in sensitivity.caption
    assert "test recall is shown, not used; each model saw 1 of 2 folds" in sensitivity.caption
    trace = trace_table(found)
    assert [row.labels[0] for row in trace.rows] == ["1"] * 4
    assert sum("chosen" in row.labels[1] for row in trace.rows) == 1
    assert "TEST" not in trace.caption
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    again = search(BASE, SearchPlan(**NARROW, seeds=2), tmp_path)
    assert again.record() == found.record()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == before


def test_choosing_on_test_is_written_into_every_caption(tmp_path):
    plan = SearchPlan(select_on="test", bounds=(1.0, 1.2), start=(1.0, 1.1, 1.2))
    found = search(BASE, plan, tmp_path)
    assert found.folds == 0
    assert [p.scores[0].value for p in found.found.points] == [c.runs[0].recall() for c in found.cells]
    for caption in (trace_table(found).caption, found.sensitivity().caption, found.selected):
        assert "TEST data" in caption
    assert "not used" not in found.sensitivity().caption
    assert read_runs(tmp_path) == []  # runs of a search are not results, on folds or not


def test_the_trace_says_why_there_is_no_standard_error():
    def caption(*levels):
        """Of betas with a level a run each."""
        points = [
            Point(1.0 + 0.1 * place, tuple(Score(-level, level) for level in of_beta))
            for place, of_beta in enumerate(levels)
        ]
        tried = tuple(point.beta for point in points)
        found = BetaSearch(tuple(points), (tried,), choose(points, Settings()))
        return trace_table(Searched(found, (), SearchPlan(criterion="level"), 0)).caption

    assert " One run a β: no standard error." in caption((5.0,), (6.0,))
    nan = float("nan")
    some = caption((5.0, 6.0), (5.0, nan))
    assert " Fewer than two β have a defined value: no standard error." in some
    assert "One run" not in some
    assert " Standard error " in caption((5.0, 6.0), (7.0, 9.0))


def test_where_every_level_is_undefined_the_search_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "level", lambda run, part="test": float("nan"))
    plan = SearchPlan(select_on="test", criterion="level", bounds=(1.0, 1.1), start=(1.0, 1.1))
    with pytest.raises(ValueError, match=r"^Expected a beta whose criterion is defined .* none among 1, 1\.1\.$"):
        search(replace(BASE, epochs=1), plan, tmp_path)


def test_without_held_out_data_there_is_no_search(tmp_path):
    with pytest.raises(ValueError, match="validation data to choose beta on, but digits-lt has none"):
        search(BASE, SearchPlan(folds=0, start=(1.0,)), tmp_path)


def test_how_many_folds():
    assert folds_of(BASE, SearchPlan()) == 5
    assert folds_of(replace(BASE, validation=0.2), SearchPlan()) == 0
    assert folds_of(replace(BASE, data="imagenet-lt"), SearchPlan()) == 0
    assert folds_of(BASE, SearchPlan(folds=3)) == 3
    assert folds_of(BASE, SearchPlan(select_on="test")) == 0


def test_the_tenth_that_own_images_hold_out_by_themselves_is_not_searched_on(tmp_path):
    for part in ("train", "val"):
        for name, number in {"a": 20, "b": 6}.items():
            (tmp_path / "split" / part / name).mkdir(parents=True)
            for place in range(number):
                Image.new("RGB", (8, 8), (place, 9, 9)).save(tmp_path / "split" / part / name / f"{place}.png")
    own = defaults(str(tmp_path / "split" / "train"), "cbs")
    assert own.validation == 0.1
    assert folds_of(own, SearchPlan()) == 5
    assert folds_of(replace(own, validation=0.2), SearchPlan()) == 0  # asked for
    assert folds_of(defaults(str(tmp_path / "split"), "cbs"), SearchPlan()) == 0  # brought along


def test_folds_share_seed_and_subset_over_betas():
    one, other = (fold_recipes(BASE, beta, 3, [0, 1]) for beta in (1.0, 1.2))
    assert len(one) == 6
    for a, b in zip(one, other, strict=True):
        assert a.changed(beta=1.2) == b
        assert open_data(a).val.labels.equal(open_data(b).val.labels)
    assert len(open_data(one[0]).val) > 0
    assert open_data(one[0]).counts.sum() < open_data(BASE).counts.sum()


def test_criteria(made):
    run = made("cbs", 0, (90.0, 80.0, 60.0, 75.0), level=12.0)
    assert Criterion.parse("all").score(run, "test").value == pytest.approx(75.0)
    assert Criterion.parse("head=1,tail=2").score(run, "test").value == pytest.approx(70.0)
    level = Criterion.parse("level").score(run, "test")
    assert (level.value, level.level) == (-12.0, 12.0)
    assert str(Criterion.parse("tail=1")) == "recall weighted tail 1"
    for wrong in ("", "best", "head=-1", "head=0", "head=x"):
        with pytest.raises(ValueError, match=r"^Expected `criterion` .*\.$"):
            Criterion.parse(wrong)


def test_a_search_with_another_criterion_does_not_write_over_the_first(tmp_path):
    plan = SearchPlan(select_on="test", bounds=(1.0, 1.1), start=(1.0, 1.1))
    search(BASE, plan, tmp_path)
    kept = (tmp_path / "beta.json").read_text("utf-8")
    for changes, part in (
        ({"criterion": "level"}, "a search with `criterion` level to have a folder of its own, but .* `criterion` all"),
        ({"select_on": "val", "folds": 2}, "`select_on` val to have a folder of its own, but .* `select_on` test"),
    ):
        with pytest.raises(ValueError, match=rf"^Expected .*{part}; --out names another\.$"):
            next(searching(BASE, replace(plan, **changes), tmp_path))
        assert (tmp_path / "beta.json").read_text("utf-8") == kept
    for _ in searching(BASE, plan, tmp_path):  # to look at it, as a page does, loses nothing
        pass
    assert (tmp_path / "beta.json").read_text("utf-8") == kept


def test_the_trace_says_why_there_is_no_quadratic():
    def caption(*values):
        points = [Point(1.0 + 0.1 * place, (Score(value, 10.0),)) for place, value in enumerate(values)]
        found = BetaSearch(tuple(points), (tuple(p.beta for p in points),), choose(points, Settings()))
        cells = tuple(None for _ in points)
        return trace_table(Searched(found, cells, SearchPlan(), 2)).caption

    assert "No quadratic: it needs 4 β within 3 steps of the best, and there are 3." in caption(1.0, 3.0, 2.0)
    assert "No quadratic: that through the means around the best has no maximum." in caption(9.0, 2.0, 1.0, 4.0)
    assert "quadratic" not in caption(1.0, 2.0, 3.0, 2.0)
