"""Many runs at once: on disk each is a run of its own, however it was trained."""

import json

import pytest
from tests.train.conftest import assert_same_run, one_sentence, recipe_for, trained

from longtail.train import Fleet, NotFiniteError, RunFolder, StoppedError, Trainer

MEMBERS = {"a": ("cbs", 0), "b": ("cbs", 1), "c": ("proco", 0), "d": ("lws", 2)}
SETTINGS = {"epochs": 3, "evaluate_every": 2}


def settings_of(method):
    return SETTINGS | ({"classifier_epochs": 1} if method == "lws" else {})


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each member, trained by itself."""
    folder = tmp_path_factory.mktemp("alone")
    return {
        name: trained(folder / name, method, seed=seed, **settings_of(method))[0]
        for name, (method, seed) in MEMBERS.items()
    }


def members(folder):
    return {
        name: Trainer(recipe_for(method, seed=seed, **settings_of(method)), RunFolder(folder / name))
        for name, (method, seed) in MEMBERS.items()
    }


def stop_after(number, fleet, asked):
    """Take some steps, then ask some members to stop."""
    steps = fleet.steps()
    for _ in range(number):
        next(steps)
    for member in asked:
        member.stop_asked = True
    with pytest.raises(StoppedError):
        list(steps)


@pytest.mark.parametrize("together", [None, 2, 4])
def test_together_as_alone(tmp_path, alone, together):
    team = members(tmp_path)
    taken = [member.folder.path.name for member in Fleet(list(team.values()), together).steps()]
    turns = [now != then for now, then in zip(taken[1:], taken, strict=False)]
    assert (sum(turns) > len(team)) == (together is not None)  # by turns, or one after the other
    for name, reference in alone.items():
        assert_same_run(RunFolder(tmp_path / name), reference)


def test_those_that_join_begin_before_those_that_wait(tmp_path, alone):
    team = members(tmp_path)
    fleet = Fleet([team["a"], team["b"]], together=1)
    taken = []
    for member in fleet.steps():
        if not taken:
            fleet.add([team["c"], team["d"]])
        if member.folder.path.name not in taken:
            taken.append(member.folder.path.name)
    assert taken == ["a", "c", "d", "b"]
    for name, reference in alone.items():
        assert_same_run(RunFolder(tmp_path / name), reference)


def test_a_stopped_fleet_is_finished_apart(tmp_path, alone):
    team = members(tmp_path)
    stop_after(10, Fleet(list(team.values()), together=3), team.values())
    for name in "abc":
        assert list((tmp_path / name / "checkpoints").iterdir())
        assert not RunFolder(tmp_path / name).done
    assert not (tmp_path / "d").exists()  # its turn had not come
    for name, member in members(tmp_path).items():
        member.run()
        assert_same_run(RunFolder(tmp_path / name), alone[name])


def test_a_member_that_is_asked_to_stop_stops_the_others(tmp_path):
    team = members(tmp_path)
    stop_after(7, Fleet(list(team.values()), together=4), [team["a"]])
    assert all(list((tmp_path / name / "checkpoints").iterdir()) for name in MEMBERS)


def test_a_member_that_fails_does_not_take_the_others_down(tmp_path, alone):
    bad = Trainer(recipe_for("cbs", lr=1e30), RunFolder(tmp_path / "bad"))
    team = members(tmp_path)
    with pytest.raises(NotFiniteError):
        Fleet([bad, *team.values()], together=5).run()
    for name, reference in alone.items():
        assert_same_run(RunFolder(tmp_path / name), reference)


def test_a_finished_member_takes_no_step(tmp_path):
    folder, _ = trained(tmp_path / "run", "cbs")
    assert list(Fleet([Trainer(recipe_for("cbs"), folder)]).steps()) == []


# --- the same on the command line


def test_several_values_are_several_runs(run, tmp_path):
    some = ("--data", "digits-lt", "--method", "cbs", "--epochs", 1, "--beta", 1.0, 1.5, "--seed", 0, 1)
    code, out, err = run("train", *some, "--out", "all")
    assert (code, err) == (0, "")
    names = sorted(path.name for path in (tmp_path / "all").iterdir())
    assert names == sorted(f"digits-lt-50-cbs-beta{beta}-seed{seed}" for beta in ("1", "1.5") for seed in (0, 1))
    assert out.count("recall %") == 4
    recipes = [RunFolder(tmp_path / "all" / name).recipe() for name in names]
    assert {(recipe.beta, recipe.seed) for recipe in recipes} == {(1.0, 0), (1.0, 1), (1.5, 0), (1.5, 1)}
    code, _, err = run("train", *some, "--out", "all")
    assert code == 0
    assert err.count("is done already.") == 4


def test_the_same_command_goes_on_with_what_is_left(run, tmp_path):
    some = ("--data", "digits-lt", "--method", "cbs", "--epochs", 2, "--seed", 0, 1, "--out", "all")
    assert run("train", *some)[0] == 0
    (first,) = (path for path in (tmp_path / "all").iterdir() if path.name.endswith("seed1"))
    result = (first / "result.json").read_bytes()
    (first / "result.json").unlink()
    assert run("train", *some)[0] == 0
    assert (first / "result.json").read_bytes() == result


def test_a_folder_of_another_run_is_refused(run, tmp_path):
    some = ("--data", "digits-lt", "--epochs", 1, "--out", "run")
    assert run("train", *some, "--method", "cbs")[0] == 0
    code, _, err = run("train", *some, "--method", "cbs", "--lr", 0.2)
    assert code == 2
    assert "its recipe.toml differs in `lr` (0.1 there, 0.2 here)" in one_sentence(err)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["method"] == "cbs"


@pytest.mark.parametrize("number", ["0", "-1", "some"])
def test_a_wrong_number_together_is_refused(run, number):
    code, _, err = run("train", "--data", "digits-lt", "--together", number)
    assert code == 2
    one_sentence(err)
