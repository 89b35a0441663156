"""`longtail train`: with no more than a folder, with a recipe's file, with any field; mistakes are one sentence."""

import contextlib
import io
import json
import os
import signal
import tomllib
from dataclasses import replace
from types import NoneType, SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from longtail.cli import show, train, train_line
from longtail.data import CATALOG
from longtail.methods import METHODS
from longtail.ranks import Ranks
from longtail.train import RunFolder, Trainer, defaults, write_recipe
from longtail.train.recipe import resolved


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def one_sentence(text):
    text = text.strip()
    assert text.startswith("longtail: ")
    assert text.endswith(".")
    assert "\n" not in text
    return text.removeprefix("longtail: ")


def pictures(folder, counts, size, suffix):
    """A folder for each class, with pictures in its colour."""
    generator = np.random.default_rng(0)
    for name, (number, colour) in counts.items():
        (folder / name).mkdir(parents=True)
        for one in range(number):
            height, width = size(generator)
            pixels = generator.integers(0, 90, (height, width, 3)) + np.array(colour)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{one}.{suffix}")


COLOURS = {"red": (40, (160, 0, 0)), "green": (20, (0, 160, 0)), "blue": (10, (0, 0, 160))}


# --- anybody's own images


def test_a_folder_of_small_images_and_a_method(run, tmp_path):
    """No other argument than these, but for the epochs, which would be CIFAR's 200."""
    pictures(tmp_path / "photos", COLOURS, lambda _: (16, 16), "png")
    code, out, err = run("train", "photos", "--method", "cbs", "--epochs", 3)
    assert (code, err) == (0, "")
    assert "photos-cbs" in out
    (folder,) = (RunFolder(path) for path in (tmp_path / "runs").iterdir())
    recipe, result = folder.recipe(), folder.result()
    assert (recipe.model, recipe.augment, recipe.validation) == ("resnet32", "cifar", 0.1)
    assert recipe.milestones == (0.8, 0.9)
    assert result["classes"] == ["blue", "green", "red"]
    assert result["counts"] == [9, 18, 36]
    assert result["splits"]["val"]["samples"] == 7
    assert "test" not in result["splits"]


def test_a_folder_of_small_images_with_a_method_of_each_kind(run, tmp_path):
    pictures(tmp_path / "photos", COLOURS, lambda _: (8, 8), "png")
    for method, more in (("reslt", ["--branches", 2]), ("crt", ["--classifier-epochs", 1]), ("tau-norm", [])):
        arguments = ["--model", "resnet20", "--epochs", 1, "--out", method]
        code, _, err = run("train", "photos", "--method", method, *arguments, *more)
        assert (code, err) == (0, "")
        assert RunFolder(tmp_path / method).done


@pytest.mark.parametrize("loading", ["streaming", "resident"])
def test_a_folder_of_larger_images(run, tmp_path, loading):
    pictures(tmp_path / "photos", COLOURS, lambda g: (int(g.integers(70, 90)), int(g.integers(66, 99))), "jpg")
    settings = ["--model", "timm:resnet10t", "--image-size", 32, "--epochs", 2, "--batch-size", 16, "--workers", 0]
    code, _, err = run("train", "photos", "--method", "cbs", *settings, "--loading", loading, "--out", "run")
    assert (code, err) == (0, "")
    folder = RunFolder(tmp_path / "run")
    assert (folder.recipe().augment, folder.recipe().schedule) == ("imagenet", "cosine")
    assert folder.result()["splits"]["val"]["samples"] == 7
    assert folder.result()["counts"] == [9, 18, 36]


@pytest.mark.parametrize("loading", ["streaming", "resident"])
def test_an_image_that_cannot_be_read(run, tmp_path, loading):
    pictures(tmp_path / "photos", COLOURS, lambda _: (80, 70), "jpg")
    (tmp_path / "photos" / "red" / "3.jpg").write_bytes(b"not a picture")
    settings = ["--model", "timm:resnet10t", "--image-size", 32, "--epochs", 1, "--batch-size", 16, "--workers", 0]
    settings += ["--loading", loading]
    code, _, err = run("train", "photos", "--method", "cbs", *settings, "--out", "a", "--validation", 0)
    assert code == 2
    assert "3.jpg" in one_sentence(err)
    code, _, err = run("train", "photos", "--method", "cbs", *settings, "--bad-images", "skip", "--out", "b")
    assert code == 0
    assert one_sentence(err).startswith("Left out 1 images that could not be read (photos/red/3.jpg)")
    listed = json.loads((tmp_path / "b" / "unreadable.json").read_text())
    assert list(listed) == ["photos/red/3.jpg"]
    assert "cannot identify" in listed["photos/red/3.jpg"]
    assert sum(RunFolder(tmp_path / "b").result()["counts"]) in {62, 63}  # it may be among those held out


# --- recipes and fields


def test_a_recipe_file_repeats_its_run(run, tmp_path):
    assert run("train", "--data", "digits-lt", "--method", "cbs", "--epochs", 2, "--out", "first")[0] == 0
    assert run("train", tmp_path / "first" / "recipe.toml", "--out", "again")[0] == 0
    for name in ("result.json", "model.safetensors", "predictions.safetensors", "recipe.toml"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_recipe_file_at_its_own_place_says_how_to_repeat_it(run):
    assert run("train", "--data", "digits-lt", "--method", "softmax", "--epochs", 1)[0] == 0
    folder = RunFolder("runs/digits-lt-50-softmax-seed0")
    before = folder.result_file.stat().st_mtime_ns
    code, out, err = run("train", folder.recipe_file)
    assert code == 0
    assert err == f"{folder.path} is done already; `--out FOLDER` repeats it elsewhere.\n"
    assert "recall %" in out
    assert folder.result_file.stat().st_mtime_ns == before


@pytest.mark.parametrize("data", [*CATALOG, "photos"])
def test_a_resolved_recipe_is_the_same_recipe_whatever_the_data_sets_says(tmp_path, data):
    """Of every method on every data set; also with all of what may be left open left open."""
    pictures(tmp_path / "photos", COLOURS, lambda _: (16, 16), "png")
    for method in METHODS:
        asked = train_line.parse(["--data", data, "--method", method])
        none = {name: None for name, hint in train_line._HINTS.items() if NoneType in get_args(hint)}
        for recipe in (asked, replace(asked, **none)):
            path = tmp_path / "recipe.toml"
            path.write_text(write_recipe(recipe))
            assert train_line.parse([str(path)]) == resolved(recipe)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--data inaturalist2018 --method tau-norm --tau none --validation 0.1", "tau"),
        ("--data imagenet-lt --method proco --head none", "head"),
    ],
)
def test_what_was_set_to_none_stays_none(tmp_path, words, name):
    path = tmp_path / "recipe.toml"
    path.write_text(write_recipe(train_line.parse(words.split())))
    data, method = words.split()[1:4:2]
    assert getattr(defaults(data, method), name) is not None  # what would fill it in
    assert getattr(train_line.parse([str(path)]), name) is None
    # Of another method nothing was said: there the data set's recipe counts.
    assert train_line.parse([str(path), "--method", "bcl"]).head == "cosine"


@pytest.mark.parametrize("flag", ["--weights", "--balance"])
def test_none_is_no_text(flag):
    assert getattr(train_line.parse(["--data", "digits-lt", "--method", "bcl", flag, "none"]), flag[2:]) is None


def test_a_tenth_is_held_out_to_choose_a_strength_on_where_nothing_is_said(run, tmp_path):
    code, _, err = run("train", "--data", "digits-lt", "--method", "tau-norm", "--epochs", 2, "--out", "run")
    assert (code, err) == (
        0,
        "longtail: Held out 10% of digits-lt's training data to choose `tau` of tau-norm on; "
        "--validation or --tau says otherwise.\n",
    )
    result = RunFolder(tmp_path / "run").result()
    assert RunFolder(tmp_path / "run").recipe().validation == 0.1
    assert result["splits"]["val"]["samples"] == 35
    assert len(result["posthoc_chosen_on_val"]) == 21


@pytest.mark.parametrize(
    ("words", "share"),
    [
        ("--data cifar10-lt --method tau-norm", 0.1),
        ("--data cifar10-lt --method tau-norm --tau 0.7", 0.0),
        ("--data cifar10-lt --method tau-norm --validation 0.2", 0.2),
        ("--data cifar10-lt --method tau-norm --validation 0", 0.0),  # which is refused when it is to begin
        ("--data cifar10-lt --method tau-norm --folds 5", 0.0),
        ("--data cifar10-lt --method logit-adjust-posthoc", 0.0),
        ("--data cifar10-lt --method softmax", 0.0),
        ("--data imagenet-lt --method tau-norm", 0.0),  # has validation data
        ("--data inaturalist2018 --method tau-norm", 0.0),  # its recipe has a tau
        ("--data inaturalist2018 --method tau-norm --tau none", 0.1),
    ],
)
def test_what_is_held_out(words, share):
    recipes, told = train_line.recipes_of(train_line.read_line(words.split()))
    assert [recipe.validation for recipe in recipes] == [share]
    assert len(told) == (share == 0.1)


def test_fields_override_a_file_and_a_file_the_shipped_recipe(run, tmp_path):
    (tmp_path / "mine.toml").write_text('data = "digits-lt"\nmethod = "focal"\nepochs = 1\nlr = 0.05\ngamma = 1.0\n')
    code, _, _ = run("train", "mine.toml", "--gamma", 1.5, "--out", "run")
    assert code == 0
    found = tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())
    assert (found["gamma"], found["lr"], found["epochs"], found["batch_size"]) == (1.5, 0.05, 1, 64)


def test_every_setting_is_in_the_help(run):
    code, out, _ = run("train", "--help")
    assert code == 0
    assert "--resume RUN" in out
    for name in ("beta", "balance", "batch-size", "checkpoint-minutes", "train-stats"):
        assert f"--{name}" in out


def test_what_is_printed(run):
    code, out, err = run("train", "--data", "digits-lt", "--method", "cbs", "--epochs", 1, "--out", "run")
    assert (code, err) == (0, "")
    assert "run: cbs on digits-lt" in out
    assert "model imbalance level I" in out
    assert "\x1b" not in out


def test_no_method_is_the_papers(run, tmp_path):
    assert run("train", "--data", "digits-lt", "--epochs", 1)[0] == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == "digits-lt-50-cbs-seed0"
    assert json.loads((folder / "result.json").read_text())["knobs"] == {"beta": 1.5}


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "nowhere"], "nowhere"),
        (["nowhere"], "nowhere"),
        (["nowhere.toml"], "nowhere.toml"),
        (["--data", "digits-lt", "--method", "sbc"], "Expected `method` to be one of softmax"),
        (
            ["--data", "digits-lt", "--method", "cbs", "--gamma", "1"],
            "Expected the knobs of cbs (`beta`), but got `gamma`",
        ),
        (["--data", "digits-lt", "--method", "bcl", "--mixup", "0.2"], "Expected no `mixup` with bcl"),
        (["--data", "digits-lt", "--method", "bcl", "--beta", "1.2"], "Expected `beta` beside balance 'cbs' only"),
        (["--data", "digits-lt", "--method", "bcl", "--balance", "x"], "Expected `balance` to be one of"),
        (["--data", "digits-lt", "--imbalance", "much"], "Expected `imbalance` to be a number, but got 'much'"),
        (["--data", "digits-lt", "--epochs", "0"], "`epochs`"),
        (["--data", "digits-lt", "--model", "resnot"], "resnot"),
        (["--data", "digits-lt", "--beta", "-1"], "`beta`"),
        (
            ["--data", "digits-lt", "--method", "tau-norm", "--validation", "0"],
            "Expected `tau` for tau-norm, or validation data",
        ),
        (["--data", "digits-lt", "--method", "logit-adjust", "--tau", "nan"], "`tau`"),
        (["--data", "digits-lt", "--device", "toaster"], "`device`"),
        (["--data", "digits-lt", "--method", "reslt", "--branches", "4"], "`branches`"),
        (["--data", "cifar10-lt", "--root", "nothing"], "cifar10"),
    ],
)
def test_a_mistake_is_one_sentence(run, arguments, said):
    code, out, err = run("train", *arguments, "--out", "run")
    assert code == 2
    assert out == ""
    assert said in one_sentence(err)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("epochs = = 3", "to be TOML, but it is not"),
        ('data = "digits-lt"\nepoch = 3', "`epoch`"),
        ('data = "digits-lt"\nepochs = "3"', "Expected `epochs` to be an integer, but got '3'"),
        ('data = "digits-lt"\nmethod = "cbs"\ngamma = 2.0', "Expected the knobs of cbs"),
        ('data = "digits-lt"\nschedule = "line"', "Expected `schedule` to be one of steps, cosine, constant"),
        ('data = "digits-lt"\nmethod = ["cbs"]', "`method`"),
        ("data = 3", "`data`"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence(run, tmp_path, content, said):
    (tmp_path / "mine.toml").write_text(content)
    code, out, err = run("train", "mine.toml", "--out", "run")
    assert code == 2
    assert out == ""
    assert said in one_sentence(err)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--metod", "cbs"],
            "Expected a flag that `longtail train --help` shows, but got --metod; the nearest is --method.",
        ),
        (["--xyzzy=1"], "Expected a flag that `longtail train --help` shows, but got --xyzzy."),
        (["-b", "1"], "Expected a flag that `longtail train --help` shows, but got -b"),
        (["--no-epochs"], "but got --no-epochs"),
        (["--epochs", "two"], "Expected `epochs` to be an integer, but got 'two'."),
        (["--epochs", "2.5"], "Expected `epochs` to be an integer, but got '2.5'."),
        (["--lr", "fast"], "Expected `lr` to be a number, but got 'fast'."),
        (["--lr"], "Expected a value after --lr, but got none."),
        (["--beta", "1,2"], "but got '1,2'; several values have a space between them, as in --beta 1 2."),
        (["--milestones", "x"], "Expected `milestones` to be a list of"),
        (["--subset-seed", "mine"], "Expected `subset_seed` to be an integer or one of run, but got 'mine'."),
        (["--schedule", "linear"], "Expected `schedule` to be one of steps, cosine, constant, but got 'linear'."),
        (["--pretrained", "perhaps"], "Expected one data set, but got perhaps and --data digits-lt."),
        (["--pretrained=perhaps"], "Expected `pretrained` to be true or false, but got 'perhaps'."),
        (["--out", "a", "b", "c"], "Expected one value after --out, but got a, b."),
        (["--beta", "1", "1.0"], "Expected runs that differ, but got runs/digits-lt-50-cbs-beta1-seed0 twice."),
    ],
)
def test_a_flag_that_is_wrong_is_one_sentence(run, arguments, said):
    code, out, err = run("train", "--data", "digits-lt", *arguments)
    assert (code, out) == (2, "")
    assert said in one_sentence(err)


def test_two_sources_are_refused(run):
    code, _, err = run("train", "a.toml", "--epochs", 1, "--nesterov", "b.toml")
    assert code == 2
    assert one_sentence(err) == "Expected one recipe, folder or list, but got a.toml and b.toml."


# --- the command line


def test_values_have_the_types_of_their_fields():
    words = "--data digits-lt --imbalance 10 --batch_size 32 --lr=0.2 --milestones 3 4 --nesterov --no-pretrained"
    recipe = train_line.parse([*words.split(), "--subset-seed", "run", "--image-size", "none", "--seed", "3"])
    assert (recipe.imbalance, recipe.batch_size, recipe.lr, recipe.milestones) == (10.0, 32, 0.2, (3, 4))
    assert (recipe.nesterov, recipe.pretrained, recipe.subset_seed, recipe.seed) == (True, False, "run", 3)
    assert recipe.image_size is None
    assert train_line.parse(["--data", "digits-lt", "--subset-seed", "7"]).subset_seed == 7


def test_several_values_are_several_recipes():
    words = "--data digits-lt --beta 1 1.5 --seed 0 1 --nesterov true false"
    line = train_line.read_line(words.split())
    recipes, left_out = train_line.recipes_of(line)
    assert left_out == []
    assert [(one.beta, one.seed, one.nesterov) for one in recipes] == [
        (beta, seed, nesterov) for beta in (1.0, 1.5) for seed in (0, 1) for nesterov in (True, False)
    ]


@pytest.mark.parametrize(
    ("words", "source", "settings"),
    [
        (["--method", "cbs", "x.toml"], "x.toml", {"method": ["cbs"]}),
        (["--method", "cbs", "photos"], "photos", {"method": ["cbs"]}),
        (["--method", "cbs", "digits-lt"], "digits-lt", {"method": ["cbs"]}),
        (["--method", "cbs", "softmax"], None, {"method": ["cbs", "softmax"]}),
        (["--method", "cbs", "nowhere"], None, {"method": ["cbs", "nowhere"]}),
        (["--epochs", "2", "photos"], "photos", {"epochs": [2]}),
        (["--epochs", "2", "3", "photos"], "photos", {"epochs": [2, 3]}),
        (["--seed", "1", "2"], None, {"seed": [1, 2]}),  # a folder is named 2
        (["--model", "resnet20", "photos"], "photos", {"model": ["resnet20"]}),
        (["--data", "photos", "2"], None, {"data": ["photos", "2"]}),
        (["--nesterov", "photos"], "photos", {"nesterov": [True]}),
        (["--lr=0.1", "photos"], "photos", {"lr": [0.1]}),
        (["--out", "run", "photos"], "photos", {}),
        (["photos", "--method", "cbs"], "photos", {"method": ["cbs"]}),
    ],
)
def test_the_recipe_or_data_may_come_later(tmp_path, words, source, settings):
    (tmp_path / "photos").mkdir()
    (tmp_path / "2").mkdir()
    line = train_line.read_line(words)
    assert (line.source, line.settings) == (source, settings)


def test_knobs_of_a_files_method_are_left_out_for_another(run, tmp_path):
    (tmp_path / "mine.toml").write_text('data = "digits-lt"\nmethod = "cbs"\nepochs = 1\nbeta = 1.2\n')
    code, _, err = run("train", "mine.toml", "--method", "softmax", "--out", "run")
    assert code == 0
    assert one_sentence(err) == "Left out `beta` of mine.toml, which softmax does not take."
    assert RunFolder("run").recipe().given == {}
    code, _, err = run("train", "mine.toml", "--method", "softmax", "--beta", 1.2)
    assert code == 2
    assert "Expected the knobs of softmax (none), but got `beta`" in one_sentence(err)


@pytest.mark.parametrize(
    ("chosen", "left"),
    [({"method": "bcl"}, ["beta"]), ({"method": "bcl", "balance": "cbs"}, []), ({"method": "cbs"}, []), ({}, [])],
)
def test_beta_is_kept_where_it_means_the_same(chosen, left):
    assert train_line.unfit({"method": "cbs", "beta": 1.2}, chosen) == left


# --- going on


@pytest.mark.parametrize("more", [["--epochs", "20"], ["--out", "there"], ["--no-nesterov"]])
def test_a_run_goes_on_with_its_own_settings(run, more):
    code, _, err = run("train", "--resume", "run", *more)
    assert code == 2
    assert one_sentence(err).startswith("Expected no more than run folders, --device")
    assert err.endswith(f"but got {more[0].replace('--no-', '--')}.\n")


def test_a_run_is_resumed_once(run):
    assert run("train", "--data", "digits-lt", "--epochs", 1, "--out", "run")[0] == 0
    code, _, err = run("train", "--resume", "run", "./run")
    assert code == 2
    assert one_sentence(err) == "Expected runs that differ, but got run twice."


def test_what_another_machine_has_otherwise_is_not_written_down(run, tmp_path):
    arguments = ("train", "--data", "digits-lt", "--method", "cbs", "--epochs", 1, "--out", "run")
    assert run(*arguments)[0] == 0
    before = {name: (tmp_path / "run" / name).read_bytes() for name in ("recipe.toml", "result.json")}
    (tmp_path / "run" / "result.json").unlink()
    code, _, err = run("train", "--device", "cpu", "--workers", 0, "--root", "elsewhere", "--resume", "run")
    assert (code, err) == (0, "")
    assert {name: (tmp_path / "run" / name).read_bytes() for name in before} == before
    (tmp_path / "run" / "result.json").unlink()
    code, _, err = run("train", "--resume", "run", "--device", "toaster")
    assert code == 2
    assert "`device`" in one_sentence(err)


# --- while it goes


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_where_something_catches_everything(run, tmp_path, monkeypatch, number, code):
    """As a module may that is imported on the way: the run must not begin as if nothing had been said."""

    def swallow(*arguments, **settings):
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), number)
        return Trainer(*arguments, **settings)

    monkeypatch.setattr(train, "Trainer", swallow)
    answer = run("train", "--data", "digits-lt", "--method", "cbs", "--epochs", 2, "--out", "run")
    assert answer == (code, "", "longtail: Interrupted.\n")
    assert not RunFolder(tmp_path / "run").begun
    monkeypatch.setattr(train, "Trainer", Trainer)
    assert run("train", "--data", "digits-lt", "--method", "cbs", "--epochs", 2, "--out", "run")[0] == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_while_data_are_opened(run, tmp_path, monkeypatch, number, code):
    def asked(*_, **__):
        os.kill(os.getpid(), number)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(train, "Trainer", asked)
    assert run("train", "--data", "digits-lt", "--out", "run") == (code, "", "longtail: Interrupted.\n")
    assert signal.getsignal(signal.SIGTERM) == before
    assert not RunFolder(tmp_path / "run").begun


def member(done, live=(), label="cifar100-lt-100-balanced-softmax-tau1.5-seed12345"):
    """What a status sees of a trainer: 200 epochs of 100 steps."""
    return SimpleNamespace(
        recipe=SimpleNamespace(label=label),
        folder=SimpleNamespace(done=False),
        epochs=[150, 50],
        steps_total=20_000,
        steps_done=done,
        epochs_done=done // 100,
        live=dict(live),
    )


def lines(status):
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=True, color_system=None).print(status)
    found = file.getvalue().splitlines()
    assert len(found) == 2
    assert all(len(line) <= 80 for line in found)
    return [line.rstrip() for line in found]


LIVE = {"epoch": 122, "loss": 123.45678, "lr": 0.000123456, "images_per_second": 123456.7}


def test_the_status_fits_into_80_columns(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    one = member(12_249)
    status = show.Status(SimpleNamespace(members=[one], failures=[]))
    assert lines(status)[0].endswith("61% -:--:-- left")
    assert lines(status)[1] == "starting"
    for _ in range(3):  # an epoch takes fifty minutes: time left is there after two steps
        now[0] += 30.0
        one.steps_done += 1
        status.step(one)
    first, second = lines(status)
    assert first.startswith("cifar100-lt-100-balanced-softmax-ta… ")
    assert first.endswith(" 61% 64:34:00 left")
    assert second == "epoch 123/200"
    one.live = {**LIVE, "loss": None}
    assert lines(status)[1] == "epoch 123/200  lr 0.000123  123,457 images/s"
    one.live = LIVE
    assert lines(status)[1] == "epoch 123/200  loss 123.457  lr 0.000123  123,457 images/s"
    one.steps_done, one.epochs_done = 20_000, 200
    assert lines(status)[0].endswith("100% 0:00:00 left")
    assert lines(status)[1] == "measuring"


def test_the_status_of_several(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    members = [member(20_000), member(5_000, LIVE), member(0, LIVE), member(0)]
    members[0].folder.done = True
    fleet = SimpleNamespace(members=members, failures=[])
    status = show.Status(fleet)
    for _ in range(2_000):  # what was done before is no pace
        now[0] += 1.0
        for one in members[1:3]:
            one.steps_done += 1
            status.step(one)
    first, second = lines(status)
    assert first.startswith("4 runs ")
    assert first.endswith(" 36% 7:05:00 left")
    assert second == "1 of 4 done  epoch 51/200  loss 123.457  lr 0.000123  246,913 images/s"
    fleet.failures.append((members[1], ValueError()))  # it takes no further step, and nobody waits for those
    members[2].epochs_done = 20
    first, second = lines(status)
    assert first.endswith(" 36% 5:16:40 left")
    assert second == "1 of 4 done  1 failed  epoch 21/200  loss 123.457  lr 0.000123  123,457 images/s"


def test_the_status_is_shown_on_a_terminal_only(tmp_path):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for file in (io.StringIO(), Terminal()):
        recipe = train_line.parse(["--data", "digits-lt", "--epochs", "1"])
        folder = RunFolder(tmp_path / type(file).__name__)
        console = Console(file=file, width=80, force_terminal=True, color_system=None)
        train._drive(train.Fleet([train.Trainer(recipe, folder)]), console)
        assert folder.done
        assert ("digits-lt-50-cbs" in file.getvalue()) == isinstance(file, Terminal)


# --- what is printed at the end


def test_scores_are_on_validation_data_where_there_is_no_test(run, tmp_path):
    pictures(tmp_path / "photos", COLOURS | {"[odd]": (3, (90, 90, 90))}, lambda _: (8, 8), "png")
    code, out, _ = run("train", "photos", "--model", "resnet20", "--epochs", 1, "--out", "run")
    assert code == 0
    assert "preference P on val" in out
    assert "model imbalance level I on val" in out
    absent = RunFolder("run").result()["splits"]["val"]["absent_classes"]
    assert ("val: all is over 3 of 4 classes, without [odd]" in out) == (absent != [])


def test_absent_classes_are_named(capsys):
    split = {"recall": {"all": 0.5, "head": 0.5}, "absent_classes": [1, 2, 3, 4, 5, 6]}
    result = {"groups": {"head": [0]}, "splits": {"test": split, "val": split | {"absent_classes": []}}}
    show.show_measures(result | {"classes": list("abcdefgh")})
    out = capsys.readouterr().out
    assert "test: all is over 2 of 8 classes, without b, c, d, e, f and 1 more" in out
    assert "val: " not in out


def test_a_run_that_is_there_is_not_begun_again(run, tmp_path):
    arguments = ("train", "--data", "digits-lt", "--method", "cbs", "--epochs", 1, "--out", "run")
    assert run(*arguments)[0] == 0
    code, _, err = run(*arguments)
    assert code == 0
    assert err == "run is done already; `--out FOLDER` repeats it elsewhere.\n"
    (tmp_path / "run" / "result.json").unlink()
    code, _, err = run(*arguments)
    assert code == 2
    assert "`longtail train --resume run` goes on with it" in one_sentence(err)
    assert run("train", "--resume", "run")[0] == 0


def test_signals_are_given_back(run):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert run("train", "--data", "digits-lt", "--epochs", 1, "--out", "run")[0] == 0
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_methods_are_listed_where_one_is_mistaken(run):
    _, _, err = run("train", "--data", "digits-lt", "--method", "x")
    assert all(name in err for name in METHODS)


def asked_for(words):
    return train_line.asked_for(train_line.read_line(words), Ranks())


def test_runs_are_named_by_what_tells_them_apart(tmp_path):
    """Methods whose recipes differ in much need no more than their names; settings show where names are the same."""
    words = ["--data", "cifar10-lt", "--method", "softmax", "reslt", "--out", str(tmp_path)]
    runs = asked_for(words)
    assert [folder.path.name for _, folder in runs] == ["cifar10-lt-100-softmax-seed0", "cifar10-lt-100-reslt-seed0"]
    words = ["--data", "digits-lt", "--method", "softmax", "--lr", "0.1", "0.2", "--out", str(tmp_path)]
    runs = asked_for(words)
    assert [folder.path.name for _, folder in runs] == [f"digits-lt-50-softmax-seed0-lr{lr}" for lr in (0.1, 0.2)]
    words = ["--data", "digits-lt", "--beta", "1", "1.00000001", "--out", str(tmp_path)]
    runs = asked_for(words)
    assert len({folder.path for _, folder in runs}) == 2


def test_data_of_one_name_in_two_places_need_folders_of_their_own(tmp_path):
    for place in ("here", "there"):
        for name in ("a", "b"):
            (tmp_path / place / "pets" / name).mkdir(parents=True)
            Image.new("RGB", (16, 16)).save(tmp_path / place / "pets" / name / "0.png")
    places = [str(tmp_path / place / "pets") for place in ("here", "there")]
    with pytest.raises(ValueError, match="a folder for each run, but two of them would go to runs/"):
        asked_for(["--data", *places])
