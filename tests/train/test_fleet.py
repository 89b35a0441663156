"""Many runs at once: on disk each is a separate run, however it was trained."""

import json
import os
import signal
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.train.conftest import assert_same_run, bytes_left, logged, one_sentence, recipe_for, trained
from tests.train.turns import expected_turns, turns_of

from longtail.classes import Groups
from longtail.data import ArrayImages, DataSet, FileImages, Split
from longtail.train import Fleet, NotFiniteError, RunFolder, StoppedError, Trainer, defaults, stages
from longtail.train import fleet as fleets
from longtail.train.dataset import open_data
from longtail.train.drivers import Eager
from longtail.train.fleet import ROUNDS, at_a_time, keep_in_step
from longtail.train.graphs import stream_for

MEMBERS = {"a": ("cbs", 0), "b": ("cbs", 1), "c": ("proco", 0), "d": ("lws", 2)}
SETTINGS = {"epochs": 2, "evaluate_every": 2}
UNLIKE = {
    "beta": {"beta": 0.5},
    "other beta": {"beta": 1.5},
    "lr": {"lr": 0.05},
    "weight decay": {"weight_decay": 0.05},
    "subset": {"subset_seed": "run", "seed": 3},
    "imbalance": {"imbalance": 10.0},
    "fold": {"folds": 3, "fold": 1, "epochs": 1},
    "validation": {"validation": 0.2},
}


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


def members(folder, **more):
    return {
        name: Trainer(recipe_for(method, seed=seed, **settings_of(method), **more), RunFolder(folder / name))
        for name, (method, seed) in MEMBERS.items()
    }


@pytest.fixture(scope="module")
def unlike_alone(tmp_path_factory):
    """The same for members that differ in a setting each."""
    folder = tmp_path_factory.mktemp("unlike")
    return {name: trained(folder / name, "cbs", **settings)[0] for name, settings in UNLIKE.items()}


def unlike_members(folder, names=tuple(UNLIKE)):
    return {name: Trainer(recipe_for("cbs", **UNLIKE[name]), RunFolder(folder / name)) for name in names}


def stop_after(number, fleet, asked):
    """Take some steps, then ask some members to stop."""
    steps = fleet.steps()
    for _ in range(number):
        next(steps)
    for member in asked:
        member.stop_requested = True
    with pytest.raises(StoppedError):
        list(steps)


@pytest.mark.gpu
def test_together_as_alone_on_a_gpu(tmp_path):
    """Side by side on their own streams; roundings may differ, and so may a few of the 500 test images."""
    recalls = {}
    for kind in ("together", "alone"):
        team = list(members(tmp_path / kind, device="cuda").values())
        fleet = Fleet(team) if kind == "together" else Fleet(team, together=1)
        taken = [member.folder.path.name for member in fleet.steps()]
        assert (len(set(taken[: len(team)])) == len(team)) == (kind == "together")
        recalls[kind] = [member.folder.result()["splits"]["test"]["recall"]["all"] for member in team]
    assert recalls["together"] == pytest.approx(recalls["alone"], abs=0.05)


@pytest.mark.parametrize("together", [None, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_together_as_alone(tmp_path, alone, together):
    team = members(tmp_path)
    taken = [member.folder.path.name for member in Fleet(list(team.values()), together).steps()]
    turns = [now != then for now, then in zip(taken[1:], taken, strict=False)]
    assert (sum(turns) > len(team)) == (together is not None)  # by turns, or one after the other
    for name, reference in alone.items():
        assert_same_run(RunFolder(tmp_path / name), reference)


@pytest.mark.slow
def test_members_that_differ_in_a_setting_each_are_trained_together_as_alone(tmp_path, unlike_alone):
    assert len({bytes_left(reference)["model.safetensors"] for reference in unlike_alone.values()}) == len(UNLIKE)
    team = unlike_members(tmp_path)
    taken = [member.folder.path.name for member in Fleet(list(team.values()), together=7).steps()]
    assert taken[:7] == list(UNLIKE)[:7]
    assert taken.index("validation") < 42  # in the sixth round, beside the others: the fold takes four steps
    for name, reference in unlike_alone.items():
        assert_same_run(RunFolder(tmp_path / name), reference)


def test_members_wait_for_each_other_after_some_rounds(tmp_path, monkeypatch):
    met, taken = [], []

    def record(some):
        met.append((len(taken) + 1, {member.folder.path.name for member in some}))

    monkeypatch.setattr(fleets, "keep_in_step", record)
    team = list(members(tmp_path).values())
    for member in Fleet(team, together=3).steps():
        taken.append(member.folder.path.name)
    assert met[:2] == [(3 * ROUNDS, {"a", "b", "c"}), (6 * ROUNDS, {"a", "b", "c"})]
    assert all(len(some) <= 3 and now - before <= 3 * ROUNDS for (before, _), (now, some) in pairwise(met))
    assert "d" not in met[0][1]  # it has to wait for its turn
    assert "d" in met[-1][1]


def test_members_without_a_stream_or_on_another_gpu_do_not_wait(monkeypatch):
    met = []
    monkeypatch.setattr(fleets, "join_streams", met.append)
    first, second, elsewhere = (SimpleNamespace(device=torch.device("cuda", number)) for number in (0, 0, 1))
    keep_in_step(SimpleNamespace(stream=stream) for stream in (first, None, elsewhere, second))
    assert met == [[first, second], [elsewhere]]


def test_what_a_stage_is_replayed_on_meets(tmp_path, monkeypatch):
    """Of a method with two stages, and no more when it is done."""
    met, made = [], []

    class Streamed(Eager):
        def __init__(self, *given, **more):
            super().__init__(*given, **more)
            self.stream = SimpleNamespace(device=torch.device("cuda", 0))
            made.append(self.stream)

    monkeypatch.setattr(stages, "Eager", Streamed)
    monkeypatch.setattr(fleets, "join_streams", met.append)
    team = [members(tmp_path)[name] for name in ("a", "d")]
    for _ in Fleet(team, together=2).steps():
        pass
    assert len(made) == 3
    assert {id(stream) for streams in met for stream in streams} == {id(stream) for stream in made}
    assert met[0] == made[:2]
    assert [member.stream for member in team] == [None, None]


def test_an_error_that_shows_at_a_meeting_is_a_members(tmp_path, monkeypatch):
    def fails(streams):
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(fleets, "keep_in_step", fails)
    team = [members(tmp_path)[name] for name in ("a", "b")]
    fleet = Fleet(team, together=2)
    fleet.run()
    assert all(member.folder.done for member in team)


class Member:
    """As much of a trainer as is kept in step."""

    def __init__(self, device):
        self.stream = stream_for(self, device)


@pytest.mark.gpu
def test_what_follows_a_meeting_comes_after_all_before_it():
    device = torch.device("cuda", torch.cuda.current_device())
    some = [Member(device) for _ in range(3)]
    value = torch.zeros((), device=device)
    torch.cuda.synchronize()
    with torch.cuda.stream(some[1].stream):
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        value.fill_(1)
    keep_in_step([SimpleNamespace(stream=None), *some])
    found = []
    for one in some:
        with torch.cuda.stream(one.stream):
            found.append(value.clone())
    torch.cuda.synchronize()
    assert [float(one) for one in found] == [1, 1, 1]


def resnets(folder, device):
    """Three ResNet-32, trained on noise as CIFAR's recipe says."""
    draw = torch.Generator().manual_seed(0)
    splits = [
        Split(
            ArrayImages(torch.randint(256, (500, 3, 32, 32), dtype=torch.uint8, generator=draw)),
            torch.arange(500) % 10,
        )
        for _ in range(2)
    ]
    data = DataSet("noise", tuple("abcdefghij"), *splits, cut=Groups.from_indices(head=range(5), tail=range(5, 10)))
    recipe = replace(defaults("cifar10-lt", "cbs", 10), epochs=3, warmup=0, lr=0.01, evaluate_every=2, device=device)
    return [Trainer(replace(recipe, seed=seed), RunFolder(folder / str(seed)), dataset=data) for seed in range(3)]


@pytest.mark.gpu
def test_our_own_kernels_give_a_member_the_run_that_it_would_be_alone(tmp_path):
    """Bit for bit: they add in one order, whoever runs beside them, and so whenever they are stopped."""
    for kind, together in (("together", 3), ("alone", 1)):
        Fleet(resnets(tmp_path / kind, "cuda"), together).run()
    team = resnets(tmp_path / "stopped", "cuda")
    stop_after(17, Fleet(team, together=3), team)
    assert {member.steps_done for member in team} <= {5, 6, 7}  # in the second epoch: they have four steps
    Fleet(resnets(tmp_path / "stopped", "cuda")[::-1], together=2).run()
    for seed in range(3):
        reference = RunFolder(tmp_path / "alone" / str(seed))
        assert len(logged(reference)) == 3
        for kind in ("together", "stopped"):
            assert_same_run(RunFolder(tmp_path / kind / str(seed)), reference)


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


def test_a_stopped_fleet_is_finished_in_other_company(tmp_path, unlike_alone):
    """In another order and fewer at a time; by then one is done, one has just begun, and two have not."""
    order = ["beta", "imbalance", "fold", "subset", "lr", "validation", "weight decay", "other beta"]
    team = unlike_members(tmp_path, order)
    stop_after(23, Fleet(list(team.values()), together=5), team.values())
    before = {name: member.steps_done for name, member in team.items()}
    assert list(before.values()) == [6, 6, 4, 6, 5, 1, 0, 0]
    assert [name for name, member in team.items() if member.folder.done] == ["fold"]
    team = unlike_members(tmp_path, reversed(order))
    taken = Counter(member.folder.path.name for member in Fleet(list(team.values()), together=3).steps())
    assert {name: before[name] + taken[name] for name in order} == {name: team[name].steps_total for name in order}
    for name, reference in unlike_alone.items():
        assert_same_run(RunFolder(tmp_path / name), reference)


def test_a_member_that_stops_stops_the_others(tmp_path):
    """Those that are under way save at their next step, and the one that waits does not begin."""
    team = members(tmp_path)
    stop_after(7, Fleet(list(team.values()), together=3), [team["a"]])
    assert {name: member.steps_done for name, member in team.items()} == {"a": 4, "b": 4, "c": 4, "d": 0}
    assert all(list((tmp_path / name / "checkpoints").iterdir()) for name in "abc")
    assert not any(member.folder.done for member in team.values())
    assert not (tmp_path / "d").exists()


def test_whatever_goes_wrong_with_members_the_others_are_finished(tmp_path, alone):
    """Not a number, a damaged checkpoint, a file in the way: each is kept with its member, the first is raised."""
    team = members(tmp_path)
    stop_after(6, Fleet([team["b"]]), [team["b"]])
    (checkpoint,) = (tmp_path / "b" / "checkpoints").glob("*.safetensors")
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    (tmp_path / "c").write_text("a file")
    bad = Trainer(recipe_for("cbs", lr=1e30), RunFolder(tmp_path / "bad"))
    team = members(tmp_path)
    fleet = Fleet([team["a"], bad, team["b"], team["c"], team["d"]], together=3)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - which of them is compared
        fleet.run()
    assert {member.folder.path.name: type(error) for member, error in fleet.failures} == {
        "bad": NotFiniteError,
        "b": ValueError,
        "c": FileExistsError,
    }
    assert raised.value is fleet.failures[0][1]
    for name in "ad":
        assert_same_run(RunFolder(tmp_path / name), alone[name])


def test_an_error_of_one_of_several_processes_is_raised_at_once(tmp_path):
    """The others wait for it at the same member, and would wait forever if it went on to the next."""
    team = members(tmp_path)
    team["a"].ranks = replace(team["a"].ranks, world=2)

    def steps():
        raise OSError("the disk is gone")
        yield

    team["a"].steps = steps
    with pytest.raises(OSError, match="the disk is gone"):
        Fleet(list(team.values())).run()
    assert not (tmp_path / "b").exists()


def test_one_folder_for_two_members_is_refused(tmp_path):
    recipe = recipe_for("cbs")
    (tmp_path / "there").mkdir()
    one, same = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "there" / ".." / "run")
    with pytest.raises(ValueError, match=r"a folder for each run, but got .*run twice"):
        Fleet([Trainer(recipe, one), Trainer(recipe, same)])
    fleet = Fleet([Trainer(recipe, one)])
    with pytest.raises(ValueError, match="twice"):
        fleet.add([Trainer(recipe, same)])
    assert len(fleet.members) == 1


def test_small_models_whose_images_a_gpu_holds_are_trained_together():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    small = recipe_for("cbs")
    held = open_data(small)
    pixels = FileImages(Path(), ("a.png",) * len(held.train))
    streamed = replace(held, train=replace(held.train, images=pixels))
    assert at_a_time(small, held, gpu) == 12
    assert at_a_time(small, held, cpu) == 1
    assert at_a_time(small, streamed, gpu) == 1
    assert at_a_time(replace(small, model="resnet50"), held, gpu) == 1
    assert at_a_time(replace(small, accumulate=2), held, gpu) == 1


def test_a_fleet_takes_as_many_at_a_time_as_may_be_of_each_member(tmp_path, monkeypatch):
    team = members(tmp_path)
    numbers = {("cbs", 0): 5, ("cbs", 1): 3, ("proco", 0): 2, ("lws", 2): 4}
    monkeypatch.setattr(fleets, "at_a_time", lambda recipe, dataset, device: numbers[recipe.method, recipe.seed])
    assert Fleet(list(team.values())).together == 2
    assert Fleet([team["a"], team["b"]]).together == 3
    assert Fleet([team["a"], team["b"]], together=1).together == 1
    assert Fleet([]).together == 1
    joined, given = Fleet([team["a"], team["b"]]), Fleet([team["a"], team["b"]], together=3)
    for fleet in (joined, given):
        fleet.add([team["c"]])
    assert (joined.together, given.together) == (2, 3)


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
    assert err.count("is finished.") == 4


@pytest.mark.parametrize("number", [3, 1])
def test_several_values_are_trained_as_many_at_a_time_as_a_device_takes(run, monkeypatch, number):
    taken = turns_of(monkeypatch, number)
    some = ("--data", "digits-lt", "--method", "cbs", "--epochs", 1, "--beta", 1.0, 1.5, "--seed", 0, 1)
    assert run("train", *some, "--device", "cpu", "--out", "all")[0] == 0
    names = [f"digits-lt-50-cbs-beta{beta}-seed{seed}" for beta in ("1", "1.5") for seed in (0, 1)]
    assert taken == expected_turns(names, number)


def test_the_same_command_continues_unfinished_runs(run, tmp_path):
    some = ("--data", "digits-lt", "--method", "balanced-softmax", "--epochs", 2, "--seed", 0, 1, "--out", "all")
    assert run("train", *some)[0] == 0
    (first,) = (path for path in (tmp_path / "all").iterdir() if path.name.endswith("seed1"))
    result = (first / "result.json").read_bytes()
    (first / "result.json").unlink()
    assert run("train", *some)[0] == 0
    assert (first / "result.json").read_bytes() == result


def test_a_folder_of_another_run_is_refused(run, tmp_path):
    some = ("--data", "digits-lt", "--epochs", 1, "--out", "run")
    assert run("train", *some, "--method", "balanced-softmax")[0] == 0
    code, _, err = run("train", *some, "--method", "balanced-softmax", "--lr", 0.2)
    assert code == 2
    assert "its recipe.toml differs in --lr (0.1 there, 0.2 here)" in one_sentence(err)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["method"] == "balanced-softmax"


@pytest.mark.parametrize("number", ["0", "-1", "some"])
def test_a_wrong_number_together_is_refused(run, tmp_path, number):
    code, _, err = run("train", "--data", "digits-lt", "--together", number)
    assert code == 2
    one_sentence(err)
    assert not list(tmp_path.iterdir())


def test_all_failures_and_results_are_shown(run):
    some = ("--data", "digits-lt", "--method", "balanced-softmax", "--epochs", 2, "--out", "all")
    code, out, err = run("train", *some, "--lr", 0.1, 1e25, 0.05, 1e26)
    assert code == 1
    assert out.count("recall %") == 2
    lines = err.strip().split("\n")
    assert len(lines) == 2
    assert all("finite loss" in one_sentence(line) for line in lines)
    assert ["lr1e+25" in lines[0], "lr1e+26" in lines[1]] == [True, True]


def test_resume_continues_the_others_if_one_run_is_damaged(run, tmp_path):
    some = ("--data", "digits-lt", "--method", "balanced-softmax", "--epochs", 2, "--seed", 0, 1, "--out", "all")
    assert run("train", *some)[0] == 0
    one, other = sorted((tmp_path / "all").iterdir())
    for folder in (one, other):
        (folder / "result.json").unlink()
    (checkpoint,) = (one / "checkpoints").glob("*.safetensors")
    checkpoint.write_bytes(b"cut short")
    code, out, err = run("train", "--resume", one, other)
    assert code == 1
    assert (other / "result.json").exists()
    assert out.count("recall %") == 1
    assert str(one) in one_sentence(err)


def test_a_stop_is_reported_though_a_member_failed_with_an_unexpected_error(run, tmp_path, monkeypatch):
    steps = Trainer.steps

    def some(self):
        if self.recipe.seed == 1:
            raise RuntimeError("out of memory")
        for taken, _ in enumerate(steps(self)):
            if taken == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            yield

    monkeypatch.setattr(Trainer, "steps", some)
    code, _, err = run(
        "train", "--data", "digits-lt", "--method", "balanced-softmax", "--seed", 1, 0, "--together", 2, "--out", "all"
    )
    assert code == 143
    failed, stopped = err.strip().split("\n")
    assert failed.endswith("seed1 failed: out of memory")
    assert stopped.startswith("longtail: Stopped; ")
