"""`longtail train`: your own images, recipes, settings and mistakes."""

import json
import re
import sys
import tomllib
from itertools import product
from pathlib import Path

import pytest
from PIL import Image
from tests.cli.conftest import COLOURS, one_sentence, pictures

from longtail.cli.train import make_recipes, read_recipes
from longtail.data import CATALOG
from longtail.methods import METHODS
from longtail.train import RunFolder, defaults, own, write_recipe
from longtail.train.launch import run_folders
from longtail.train.recipe import setting_types

pytestmark = pytest.mark.usefixtures("_here")


# --- your own images


def test_folder_of_small_images(run, tmp_path):
    pictures(tmp_path / "photos", COLOURS, lambda _: (16, 16), "png")
    code, out, err = run("train", "photos", "--method", "balanced-softmax", "--epochs", 3)
    assert (code, err) == (0, "")
    assert "photos-balanced-softmax" in out
    assert len(list((tmp_path / "runs" / "image-cache").iterdir())) == 1
    assert "63 training images of 16 x 16 pixels, 3 classes: resnet32, 3 epochs of 4 steps" in out
    (folder,) = (RunFolder(path) for path in (tmp_path / "runs").glob("photos-*"))
    recipe, result = folder.recipe(), folder.result()
    assert (recipe.model, recipe.augment, recipe.validation) == ("resnet32", "cifar", 0.1)
    assert recipe.milestones == (0.8, 0.9)
    assert result["classes"] == ["blue", "green", "red"]
    assert result["counts"] == [9, 18, 36]
    assert result["splits"]["val"]["samples"] == 7
    assert "test" not in result["splits"]


def test_list_with_groups_and_test_data_held_out(run, tmp_path):
    pictures(tmp_path / "photos", COLOURS, lambda _: (8, 8), "png")
    rows = [f"{name}/{one}.png,{name},{one % 10}" for name, (number, _) in COLOURS.items() for one in range(number)]
    (tmp_path / "list.csv").write_text("\n".join(["file,colour,day", *rows]))
    flags = ["--image-root", "photos", "--path-column", "file", "--label-column", "colour", "--split-by", "day"]
    words = ["train", "list.csv", *flags, "--test", 0.2, "--method", "softmax", "--model", "resnet20", "--epochs", 1]
    code, out, err = run(*words, "--out", "run")
    assert code == 0
    held = "Held out about 20 % of each class of list as test data, the same for every seed: 14 samples."
    assert err == f"longtail: {held}\n"
    assert "test: 20 % of each class held out as test, 14 samples" in out
    result = RunFolder(tmp_path / "run").result()
    assert result["splits"]["test"]["samples"] == 14  # two of ten days
    assert result["splits"]["val"]["samples"] == 7  # one of the other eight
    assert result["counts"] == [7, 14, 28]
    code, _, err = run("train", "photos", "--split-by", "day")
    assert one_sentence(err).startswith("Expected --split-by for ")


def test_ignored_files_are_said_once(run, tmp_path):
    pictures(tmp_path / "photos", COLOURS, lambda _: (8, 8), "png")
    (tmp_path / "photos" / "red" / "notes.pdf").touch()
    flags = ["--method", "softmax", "--model", "resnet20", "--epochs", 1, "--seed", 0, 1]
    code, _, err = run("train", "photos", *flags)
    assert (code, err) == (0, "longtail: Ignored 1 file in photos: 1 .pdf.\n")
    assert run("train", "photos", *flags)[2].count("Ignored") == 0  # the runs are finished


def test_folder_of_small_images_with_a_method_of_each_kind(run, tmp_path):
    pictures(tmp_path / "photos", COLOURS, lambda _: (8, 8), "png")
    for method, more in (("reslt", ["--branches", 2]), ("crt", ["--classifier-epochs", 1]), ("tau-norm", [])):
        arguments = ["--model", "resnet20", "--epochs", 1, "--out", method, "--no-cache"]
        code, _, err = run("train", "photos", "--method", method, *arguments, *more)
        assert (code, err) == (0, "")
        assert RunFolder(tmp_path / method).done
        assert not (tmp_path / method / "image-cache").exists()


@pytest.mark.parametrize("bad", ["blue/0.jpg", "red/3.jpg"])
def test_folder_of_larger_images_with_an_unreadable_one(run, tmp_path, bad):
    pictures(tmp_path / "photos", COLOURS, lambda g: (int(g.integers(70, 90)), int(g.integers(66, 99))), "jpg")
    (tmp_path / "photos" / bad).write_bytes(b"not a picture")
    settings = ["--model", "timm:resnet10t", "--image-size", 32, "--epochs", 1, "--batch-size", 16, "--workers", 0]
    settings += ["--method", "balanced-softmax"]
    code, _, err = run("train", "photos", *settings, "--out", "a", "--validation", 0)
    assert code == 2
    assert f"photos/{bad}" in one_sentence(err)
    assert "--bad-images skip" in err
    code, _, err = run("train", "photos", *settings, "--bad-images", "skip", "--out", "b")
    assert code == 0
    assert f"1 image that could not be read (photos/{bad})" in one_sentence(err)
    listed = json.loads((tmp_path / "b" / "unreadable.json").read_text())
    assert list(listed) == [f"photos/{bad}"]
    assert "cannot identify" in listed[f"photos/{bad}"]
    folder = RunFolder(tmp_path / "b")
    assert (folder.recipe().augment, folder.recipe().schedule) == ("imagenet", "cosine")
    assert sum(folder.result()["counts"]) in {62, 63}  # it may be in the validation split


# --- recipes and settings


def test_recipe_file_repeats_its_run(run, tmp_path):
    assert run("train", "--data", "digits-lt", "--method", "balanced-softmax", "--epochs", 2, "--out", "first")[0] == 0
    assert run("train", tmp_path / "first" / "recipe.toml", "--out", "again")[0] == 0
    for name in ("result.json", "model.safetensors", "predictions.safetensors", "recipe.toml"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_finished_run_is_not_repeated_in_its_folder(run):
    assert run("train", "--data", "digits-lt", "--method", "softmax", "--epochs", 1)[0] == 0
    folder = RunFolder("runs/digits-lt-50-softmax-seed0")
    before = folder.result_file.stat().st_mtime_ns
    code, out, err = run("train", folder.recipe_file)
    assert code == 0
    assert err == f"{folder.path} is finished; choose another folder with --out.\n"
    assert "recall %" in out
    assert folder.result_file.stat().st_mtime_ns == before


def test_written_recipe_is_read_as_the_same_recipe(tmp_path):
    pictures(tmp_path / "photos", COLOURS, lambda _: (16, 16), "png")
    none = dict.fromkeys(("imbalance", "weights", "head", "sampler", "image_size"))
    path = tmp_path / "recipe.toml"
    named = [name for name, entry in CATALOG.items() if not entry.texts]
    for data in (*named, "photos"):
        for method in METHODS:
            made = make_recipes(None, {"data": [data], "method": [method]})[0][0]
            for recipe in (made, made.changed(**none)):
                path.write_text(write_recipe(recipe))
                assert make_recipes(str(path), {})[0][0] == recipe


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--data inaturalist2018 --method tau-norm --tau none --validation 0.1", "tau"),
        ("--data imagenet-lt --method proco --head none", "head"),
    ],
)
def test_none_in_a_file_stays_none(tmp_path, words, name):
    path = tmp_path / "recipe.toml"
    path.write_text(write_recipe(read_recipes(words.split())[0][0]))
    data, method = words.split()[1:4:2]
    assert defaults(data, method).settings()[name] is not None
    assert read_recipes([str(path)])[0][0].settings()[name] is None
    # With another method, the data set's recipe applies.
    assert read_recipes([str(path), "--method", "bcl"])[0][0].head == "cosine"


def test_none_unsets_a_setting():
    assert read_recipes(["--data", "digits-lt", "--weights", "none"])[0][0].weights is None
    assert read_recipes(["--data", "digits-lt", "--method", "bcl", "--beta", "none"])[0][0].beta == 1


def test_tenth_is_held_out_to_choose_tau(run, tmp_path):
    code, _, err = run("train", "--data", "digits-lt", "--method", "tau-norm", "--epochs", 2, "--out", "run")
    assert code == 0
    assert "10%" in one_sentence(err)
    assert "--validation or --tau" in err
    result = RunFolder(tmp_path / "run").result()
    assert RunFolder(tmp_path / "run").recipe().validation == 0.1
    assert result["splits"]["val"]["samples"] == 35
    assert len(result["posthoc_chosen_on_val"]) == 21


def test_held_out_share():
    for words, share in {
        "--data cifar10-lt --method tau-norm": 0.1,
        "--data cifar10-lt --method tau-norm --tau 0.7": 0.0,
        "--data cifar10-lt --method tau-norm --validation 0.2": 0.2,
        "--data cifar10-lt --method tau-norm --validation 0": 0.0,
        "--data cifar10-lt --method tau-norm --folds 5": 0.0,
        "--data cifar10-lt --method logit-adjust-posthoc": 0.0,
        "--data cifar10-lt --method softmax": 0.0,
        "--data imagenet-lt --method tau-norm": 0.0,  # has a validation split
        "--data inaturalist2018 --method tau-norm": 0.0,  # its recipe has a tau
        "--data inaturalist2018 --method tau-norm --tau none": 0.1,
    }.items():
        recipes, notes = read_recipes(words.split())
        assert [recipe.validation for recipe in recipes] == [share], words
        assert len(notes) == (share == 0.1)


def test_flags_override_a_file_which_overrides_the_recipe(run, tmp_path):
    (tmp_path / "mine.toml").write_text('data = "digits-lt"\nmethod = "focal"\nepochs = 1\nlr = 0.05\ngamma = 1.0\n')
    code, _, _ = run("train", "mine.toml", "--gamma", 1.5, "--out", "run")
    assert code == 0
    found = tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())
    assert (found["gamma"], found["lr"], found["epochs"], found["batch_size"]) == (1.5, 0.05, 1, 64)


def test_default_method_is_cbs(run, tmp_path):
    code, out, _ = run("train", "--data", "digits-lt", "--epochs", 1)
    assert code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == "digits-lt-50-cbs-beta-auto-seed0"
    assert 'beta = "auto"' in (folder / "recipe.toml").read_text()
    found = json.loads((folder / "result.json").read_text())
    assert (found["params"], found["label"]) == ({"beta": "auto"}, "CBS (β auto)")
    beta, measured, error, pilots = (found["auto_beta"][n] for n in ("beta", "measured", "std_error", "pilots"))
    by = f"measured on the held-out samples of {pilots} pilot run"
    assert f"beta = {beta:.2f}, shrunk towards 1 from {measured:.2f} ± {error:.2f} {by}" in out
    assert len(list(folder.glob("pilot*"))) == pilots
    name, _, delta = found["posthoc"].partition("=")
    assert (name, 1 + float(delta)) == ("adjust", pytest.approx(beta, abs=1e-9))


# --- mistakes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digit-lt"], "'digit-lt' does not exist; the closest match is digits-lt."),
        (["nowhere.toml"], "nowhere.toml"),
        (["--data", "digits-lt", "--method", "sbc"], "--method to be one of softmax"),
        (["--data", "digits-lt", "--gamma", "1"], "the parameters of cbs (--beta), but got --gamma"),
        (["--data", "digits-lt", "--method", "bcl", "--mixup", "0.2"], "--mixup"),
        (
            ["--data", "digits-lt", "--model", "resnot"],
            "--model to be a backbone of",
        ),
        (["--data", "digits-lt", "--method", "tau-norm", "--validation", "0"], "--validation 0.1 holds out a tenth"),
        (["--data", "digits-lt", "--device", "toaster"], "--device"),
        (["--data", "cifar10-lt", "--root", "nothing"], "cifar10"),
    ],
)
def test_wrong_settings(run, words, message):
    code, out, err = run("train", *words, "--out", "run")
    assert (code, out) == (2, "")
    assert message in one_sentence(err)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epochs = = 3", "TOML"),
        ('data = "digits-lt"\nepoch = 3', "`epoch`"),
        ('data = "digits-lt"\nepochs = "3"', "`epochs` to be an integer, but got '3'"),
        ('data = "digits-lt"\nmethod = ["cbs"]', "`method`"),
    ],
)
def test_wrong_recipe_files(run, tmp_path, content, message):
    (tmp_path / "mine.toml").write_text(content)
    code, out, err = run("train", "mine.toml", "--out", "run")
    assert (code, out) == (2, "")
    assert message in one_sentence(err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metod", "cbs"], "but got --metod; the closest match is --method."),
        (["--no-epochs"], "but got --no-epochs"),
        (["--nesterov", "--no-nesterov"], "--nesterov or --no-nesterov"),
        (["--epochs", "2.5"], "--epochs to be an integer, but got '2.5'."),
        (["--lr"], "a value after --lr, but got none."),
        (["--beta", "1,2"], "but got '1,2'; separate several values by spaces."),
        (["--milestones", "1,2"], "--milestones to be a list of numbers, but got '1,2'; separate"),
        (["--schedule", "linear"], "--schedule to be one of steps, cosine, constant"),
        (["--pretrained=perhaps"], "--pretrained to be true or false"),
        (["--out", "a", "b", "c"], "'c'"),
        (["--seed", "0", "--seed", "1"], "--seed once"),
        (["--together", "0"], "--together to be an integer >= 1, but got 0."),
        (["--beta", "1", "1.0"], "runs/digits-lt-50-cbs-beta1-seed0 twice."),
    ],
)
def test_wrong_flags(run, words, message):
    code, out, err = run("train", "--data", "digits-lt", *words)
    assert (code, out) == (2, "")
    assert message in one_sentence(err)


def test_two_data_sources_are_refused(run):
    code, _, err = run("train", "a.toml", "--epochs", 1, "--nesterov", "b.toml")
    assert code == 2
    assert "b.toml" in one_sentence(err)


# --- the command line


def test_values_have_the_types_of_their_settings():
    words = "--data digits-lt --imbalance 10 --batch_size 32 --lr=0.2 --milestones 3 4 --nesterov --no-pretrained"
    recipe = read_recipes([*words.split(), "--subset-seed", "run", "--image-size", "none", "--seed", "3"])[0][0]
    assert (recipe.imbalance, recipe.batch_size, recipe.lr, recipe.milestones) == (10.0, 32, 0.2, (3, 4))
    assert (recipe.nesterov, recipe.pretrained, recipe.subset_seed, recipe.seed) == (True, False, "run", 3)
    assert recipe.image_size is None
    assert read_recipes(["--data", "digits-lt", "--subset-seed", "7"])[0][0].subset_seed == 7


def test_several_values_are_several_recipes():
    words = "--data digits-lt --beta 1 1.5 --seed 0 1 --nesterov true false"
    recipes, notes = read_recipes(words.split())
    assert notes == []
    found = [(one.beta, one.nesterov, one.seed) for one in recipes]
    assert found == list(product((1.0, 1.5), (True, False), (0, 1)))


def test_data_comes_before_the_flags(run, tmp_path):
    pictures(tmp_path / "photos", COLOURS, lambda _: (16, 16), "png")
    for words in (["photos", "--epochs", "2"], ["--out", "x", "photos", "--epochs", "2"]):
        assert read_recipes(words)[0][0].data == "photos"
    (tmp_path / "1").mkdir()  # not a data set here
    assert len(read_recipes(["--data", "digits-lt", "--seed", "0", "1"])[0]) == 2
    for words in (["--method", "balanced-softmax", "photos"], ["--model", "resnet20", "photos"]):
        assert "Expected data before the flags, but got photos" in one_sentence(run("train", *words)[2])
    assert "data comes before the flags" in one_sentence(run("train", "--epochs", "2", "photos")[2])


def test_parameters_of_another_method_in_a_file_are_ignored(run, tmp_path):
    (tmp_path / "mine.toml").write_text('data = "digits-lt"\nmethod = "cbs"\nepochs = 1\nbeta = 1.2\n')
    code, _, err = run("train", "mine.toml", "--method", "softmax", "--out", "run")
    assert code == 0
    assert "`beta` of mine.toml" in one_sentence(err)
    assert RunFolder("run").recipe().method == "softmax"
    code, _, err = run("train", "mine.toml", "--method", "softmax", "--beta", 1.2)
    assert code == 2
    assert "but got `beta`" in one_sentence(err)


def folders_of(words):
    *words, out = words
    return [folder.path.name for folder in run_folders(read_recipes(words)[0], out)]


def test_run_folders_are_named_by_what_differs(tmp_path):
    words = ["--data", "cifar10-lt", "--method", "softmax", "reslt", tmp_path]
    assert folders_of(words) == ["cifar10-lt-100-softmax-seed0", "cifar10-lt-100-reslt-seed0"]
    words = ["--data", "digits-lt", "--method", "softmax", "--lr", "0.1", "0.2", tmp_path]
    assert folders_of(words) == [f"digits-lt-50-softmax-seed0-lr{lr}" for lr in (0.1, 0.2)]
    words = ["--data", "digits-lt", "--beta", "1", "1.00000001", tmp_path]
    assert len(set(folders_of(words))) == 2


def test_two_runs_need_two_folders(run, tmp_path):
    for place in ("here", "there"):
        for name in ("a", "b"):
            (tmp_path / place / "pets" / name).mkdir(parents=True)
            Image.new("RGB", (16, 16)).save(tmp_path / place / "pets" / name / "0.png")
    code, _, err = run("train", "--data", *(tmp_path / place / "pets" for place in ("here", "there")))
    assert code == 2
    assert "a folder for each run" in one_sentence(err)


# --- help


def test_help_has_every_setting_once_and_no_empty_default(run):
    code, out, err = run("train", "--help")
    assert (code, err) == (0, "")
    flags = [f"--{name.replace('_', '-')}" for name in ("out", "together", "resume", *setting_types())]
    shown = re.findall(r"(?m)^  (--[a-z-]+)", out)
    assert sorted(shown) == sorted(flags)
    assert {"--out", "--data", "--method", "--model", "--epochs"} <= set(shown[:9])
    assert "`longtail train DATA --help`" in out
    assert "(default: resnet32)" not in out  # of which data set?
    assert out.count("usage:") == 1
    assert "None" not in out
    assert "exponent of the class counts" in out


def test_help_for_a_folder_opens_few_images_and_decodes_none(run, tmp_path, monkeypatch):
    pictures(tmp_path / "photos", {"a": (200, (0, 0, 0)), "b": (100, (9, 9, 9))}, lambda _: (40, 40), "png")
    opened = []
    monkeypatch.setattr(own, "image_size", lambda path: opened.append(path) or (40, 40))
    monkeypatch.setattr(own, "_decoded", None)
    out = " ".join(run("train", "photos", "--epochs", 9, "--help")[1].split())
    assert "Defaults are those of cbs on photos." in out
    assert "passes over the training data (default: 9)" in out
    assert "(default: resnet32)" in out
    assert 0 < len(opened) < 100


def test_help_shows_the_defaults_that_apply(run):
    out = " ".join(run("train", "--data", "digits-lt", "--method", "focal", "--help")[1].split())
    assert "(default: digits-lt)" in out
    assert "(default: cifar10-lt)" not in out
    assert "(focal) (default: 2.0)" in out


def test_help_needs_no_optional_package(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    code, out, err = run("train", "--data", "cifar10-lt", "--model", "resnet50", "--help")
    assert (code, err) == (0, "")
    assert "`longtail train DATA --help`" in out


def test_train_and_study_parse_settings_alike(run):
    settings = ["--validation", ".1", "--nesterov", "True", "--weight_decay", "1e-4"]
    recipe = read_recipes(["--data", "digits-lt", *settings])[0][0]
    assert (recipe.validation, recipe.nesterov, recipe.weight_decay) == (0.1, True, 1e-4)
    study = ["study", "--methods", "cbs", "--seeds", "1", "--dry-run"]
    assert run(*study, "--data", "digits-lt", *settings)[0] == 0
    for words in (["train"], study):
        code, _, err = run(*words, "--data", "digits-lt", "--epochs", "2.5")
        assert code == 2
        assert "--epochs to be an integer, but got '2.5'." in one_sentence(err)
