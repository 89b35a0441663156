"""Plans carried out together: all searches and runs with known betas in one fleet, with the results of each alone."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from tests.study.conftest import plan_in

from longtail.study.conduct import conduct, describe_plans
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


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A plan with two searches, carried out: its folder, what was trained, the rounds, the searches, the outcome."""
    torch.set_num_threads(1)
    out, train, rounds = tmp_path_factory.mktemp("searched"), Trains(), []
    (found,), outcome = conduct(
        [searching_plan(out)], train, on_round=lambda place, betas: rounds.append((place, betas))
    )
    return SimpleNamespace(out=out, train=train, rounds=rounds, found=found, outcome=outcome)


def records(found):
    return {place: one.record() for place, one in found.items()}


def test_the_first_round_of_all_searches_goes_with_the_known_runs(searched):
    assert searched.rounds[:2] == [(place, [1.0, 1.1]) for place in PLACES]
    first = searched.train.calls[0]
    known = [run for run in first if not run.recipe.folds]
    trials = [run for run in first if run.recipe.folds]
    assert [run.recipe.imbalance for run in known] == [10, 50]
    assert first[: len(trials)] == trials  # others wait for them
    assert len(trials) == 2 * 2 * 2  # data sets, betas, folds
    assert len(searched.train.calls) < len(searched.rounds)  # later rounds joined what was under way
    assert list(searched.found) == PLACES
    done = searched.outcome.done
    for place, one in searched.found.items():
        kept = json.loads((searching_plan(searched.out).search_folder(place) / "beta.json").read_text("utf-8"))
        assert kept["beta"] == one.beta
        assert any(run.recipe.beta == one.beta and run.recipe.imbalance == place[1] for run in done)
    assert not any(run.recipe.folds for run in done if run.path.parent == searched.out)


def test_a_search_finds_the_same_alone_and_with_others(tmp_path, searched):
    (alone,), outcome = conduct([searching_plan(tmp_path, imbalance=[10])], train_all, searches_only=True)
    assert alone[PLACES[0]].record() == searched.found[PLACES[0]].record()
    assert all(run.recipe.folds for run in outcome.done)


def test_finished_runs_are_followed_without_training(searched):
    train = Trains()
    (again,), outcome = conduct([searching_plan(searched.out)], train)
    assert train.calls == [[]]
    assert records(again) == records(searched.found)
    assert set(outcome.done) == set(searched.outcome.done)


def files_below(folder):
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in folder.rglob("*")}


def test_a_description_follows_finished_runs_and_changes_nothing(tmp_path, searched):
    plan = searching_plan(tmp_path / "out")
    fresh = describe_plans([plan]).splitlines()
    assert list(tmp_path.iterdir()) == []
    assert fresh[0] == "10 runs, 0 done:"  # two of the plan, and two betas on two folds of two data sets
    name = "  search for the beta of cbs on digits-lt"
    assert fresh[-2:] == [f"{name} {place[1]}: not done, more runs will follow" for place in PLACES]
    assert describe_plans([plan], searches_only=True).startswith("8 runs, 0 done:")
    shutil.copytree(searched.out, tmp_path / "out")
    before = files_below(tmp_path)
    ended = describe_plans([plan]).splitlines()
    number = len(searched.outcome.done)
    assert ended[0] == f"{number} runs, {number} done:"
    assert ended[-2:] == [f"{name} {place[1]}: beta = {one.beta:g}" for place, one in searched.found.items()]
    assert files_below(tmp_path) == before
    lost = plan.search_folder(PLACES[1]) / "digits-lt-50-cbs-beta1.1-seed0-fold1of2"
    shutil.rmtree(lost)
    before = files_below(tmp_path)
    lines = describe_plans([plan]).splitlines()
    assert [line for line in lines if line.startswith("  to do")] == [f"  to do    {lost}"]
    assert files_below(tmp_path) == before


def test_runs_with_the_found_beta_join_the_runs_under_way(tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.study.execute._WATCH_SECONDS", 0.0)
    long = plan_in(tmp_path / "long", methods=["softmax"], seeds=1, recipe={"epochs": 15})
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


def test_a_search_over_runs_of_other_settings_is_refused_before_anything_is_trained(searched):
    other = plan_in(
        searched.out, imbalance=[10], methods=["cbs"], betas=["search"], seeds=1, search=SEARCH, recipe={"epochs": 2}
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
    for look in (describe_plans, lambda plans: conduct(plans, train_all)):
        with pytest.raises(ValueError, match=r"to have one run in .* but they have two different ones"):
            look(plans)
