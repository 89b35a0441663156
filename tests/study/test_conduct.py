"""Plans carried out together: all searches and runs with known betas in one fleet, with the results of each alone."""

import json
import re
import shutil

import pytest
import torch
from tests.study.conftest import plan_in

from longtail.study.conduct import conduct, preview
from longtail.study.execute import execute


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


SEARCH = {"folds": 2, "start": [1.0, 1.1], "bounds": [0.9, 1.2]}
PLACES = [("digits-lt", 10, "cbs"), ("digits-lt", 50, "cbs")]


def searching_plan(out, **content):
    given = {"imbalance": [10, 50], "methods": ["cbs"], "betas": ["recipe", "search"], "seeds": 1, "search": SEARCH}
    return plan_in(out, **{**given, **content, "recipe": {"epochs": 1}})


class Trains:
    """Trains what it is given, and remembers what was not done before."""

    def __init__(self, together=None):
        self.calls, self.together = [], together

    def __call__(self, runs, more):
        self.calls.append([run for run in runs if not run.folder.done])
        return execute(runs, together=self.together, more=more)


def train_all(runs, more):
    return execute(runs, more=more)


def test_the_first_round_of_all_searches_goes_with_the_known_runs(tmp_path):
    train, rounds = Trains(), []
    (found,), outcome = conduct(
        [searching_plan(tmp_path)], train, on_round=lambda place, betas: rounds.append((place, betas))
    )
    assert rounds[:2] == [(place, [1.0, 1.1]) for place in PLACES]
    first = train.calls[0]
    known = [run for run in first if not run.recipe.folds]
    trials = [run for run in first if run.recipe.folds]
    assert [run.recipe.imbalance for run in known] == [10, 50]
    assert first[: len(trials)] == trials  # others wait for them
    assert len(trials) == 2 * 2 * 2  # data sets, betas, folds
    assert len(train.calls) < len(rounds)  # later rounds joined what was under way
    assert list(found) == PLACES
    for place, one in found.items():
        kept = json.loads((searching_plan(tmp_path).search_folder(place) / "beta.json").read_text("utf-8"))
        assert kept["beta"] == one.beta
        assert any(run.recipe.beta == one.beta and run.recipe.imbalance == place[1] for run in outcome.done)
    assert not any(run.recipe.folds for run in outcome.done if run.path.parent == tmp_path)


def test_a_search_finds_the_same_alone_and_with_others(tmp_path):
    (together,), _ = conduct([searching_plan(tmp_path / "a")], train_all, searches_only=True)
    for place in PLACES:
        plan = searching_plan(tmp_path / "b", imbalance=[place[1]])
        (alone,), outcome = conduct([plan], train_all, searches_only=True)
        assert alone[place].record() == together[place].record()
        assert all(run.recipe.folds for run in outcome.done)


def test_finished_runs_are_followed_without_training(tmp_path):
    plans = [searching_plan(tmp_path / "a"), plan_in(tmp_path / "b", methods=["softmax"], seeds=1)]
    first, _ = conduct(plans, train_all)
    train = Trains()
    again, outcome = conduct(plans, train)
    assert train.calls == [[]]
    assert [{p: one.record() for p, one in found.items()} for found in again] == [
        {p: one.record() for p, one in found.items()} for found in first
    ]
    assert len({run.path.parent for run in outcome.done}) == 2


def files_below(folder):
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in folder.rglob("*")}


def test_a_preview_follows_finished_runs_and_changes_nothing(tmp_path):
    plan = searching_plan(tmp_path / "out")
    (fresh,) = preview([plan])
    assert list(tmp_path.iterdir()) == []
    assert ([run.recipe.imbalance for run in fresh.runs], fresh.betas) == ([10, 50], {})
    assert {place: len(runs) for place, runs in fresh.rounds.items()} == dict.fromkeys(PLACES, 4)
    (found,), outcome = conduct([plan], train_all)
    before = files_below(tmp_path)
    (ended,) = preview([plan])
    assert ended.betas == {place: one.beta for place, one in found.items()}
    assert (set(ended.runs), ended.rounds) == (set(outcome.done), {})
    assert preview([plan], searches_only=True)[0].runs == ()
    assert files_below(tmp_path) == before
    folder = plan.search_folder(PLACES[1])
    lost = folder / "digits-lt-50-cbs-beta1.1-seed0-fold1of2"
    shutil.rmtree(lost)
    before = files_below(tmp_path)
    (open_,) = preview([plan])
    assert list(open_.betas) == PLACES[:1]
    assert list(open_.rounds) == PLACES[1:]
    assert [run.path for run in open_.rounds[PLACES[1]] if not run.folder.done] == [lost]
    assert files_below(tmp_path) == before


def test_runs_with_the_found_beta_join_the_runs_under_way(tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.study.execute._WATCH_SECONDS", 0.0)
    long = plan_in(tmp_path / "long", methods=["softmax"], seeds=1, recipe={"epochs": 60})
    train = Trains(together=64)
    (_, found), outcome = conduct([long, searching_plan(tmp_path / "search", imbalance=[10])], train)
    assert len(train.calls) == 1
    (place,) = found
    chosen = [run for run in outcome.done if run.path.parent.name == "search" and run.recipe.beta == found[place].beta]
    (slow,) = long.runs()
    assert chosen[-1].folder.result_file.stat().st_mtime_ns < slow.folder.result_file.stat().st_mtime_ns


def test_a_failed_search_lets_the_others_finish(tmp_path):
    bad = plan_in(
        tmp_path / "bad", methods=["cbs"], betas=["search"], seeds=1, search=SEARCH, recipe={"lr": 1e30, "epochs": 5}
    )
    good = searching_plan(tmp_path / "good", imbalance=[10])
    (lost, found), outcome = conduct([bad, good], train_all)
    assert (lost, list(found)) == ({}, PLACES[:1])
    (sentence,) = outcome.unfinished
    assert re.search(r"all runs of a search to finish, but .*fold0of2 did not: Expected a finite", sentence)
    assert len(outcome.done) == 2  # the good plan's own, with the recipe's beta and with what was found
    kept = json.loads((good.search_folder(PLACES[0]) / "beta.json").read_text("utf-8"))
    assert kept["beta"] is not None


def test_runs_are_ordered_by_started_and_seed(tmp_path):
    plan = plan_in(tmp_path, methods=["softmax", "balanced-softmax"], seeds=2)
    last = plan.runs()[-1]
    last.path.mkdir()
    last.folder.recipe_file.write_text("", "utf-8")  # begun
    trained = []

    def train(runs, _):
        trained.extend((run.recipe.seed, run.recipe.method) for run in runs)
        return execute([])

    conduct([plan], train)
    assert trained == [(1, "balanced-softmax"), (0, "softmax"), (0, "balanced-softmax"), (1, "softmax")]


def test_a_search_over_runs_of_other_settings_is_refused_before_anything_is_trained(tmp_path):
    conduct([searching_plan(tmp_path, imbalance=[10], betas=["search"])], train_all, searches_only=True)
    other = plan_in(
        tmp_path, imbalance=[10, 50], methods=["cbs"], betas=["search"], seeds=1, search=SEARCH, recipe={"epochs": 2}
    )
    train = Trains()
    with pytest.raises(
        ValueError, match=r"to hold this run, but its recipe.toml differs in `epochs` \(1 there, 2 here"
    ):
        conduct([other], train)
    assert train.calls == []


def test_a_search_with_nothing_to_choose_on_is_refused_before_anything_is_trained(tmp_path):
    plan = searching_plan(tmp_path, imbalance=[10], search={**SEARCH, "folds": 0})
    train = Trains()
    with pytest.raises(ValueError, match="Expected validation data to choose beta on, but digits-lt has none"):
        conduct([plan], train)
    assert train.calls == []


def test_two_plans_with_different_runs_in_one_folder_are_refused(tmp_path):
    plans = [plan_in(tmp_path, recipe={"epochs": epochs}) for epochs in (1, 2)]
    for look in (preview, lambda plans: conduct(plans, train_all)):
        with pytest.raises(ValueError, match=r"to have one run in .* but they have two different ones"):
            look(plans)
