"""`longtail train`: with no more than a folder, with a recipe's file, with any field; mistakes are one sentence."""

import json
import tomllib

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.methods import METHODS
from longtail.train import RunFolder


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
    assert recipe.milestones == (160, 180)
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


def test_an_image_that_cannot_be_read(run, tmp_path):
    pictures(tmp_path / "photos", COLOURS, lambda _: (80, 70), "jpg")
    (tmp_path / "photos" / "red" / "3.jpg").write_bytes(b"not a picture")
    settings = ["--model", "timm:resnet10t", "--image-size", 32, "--epochs", 1, "--batch-size", 16, "--workers", 0]
    code, _, err = run("train", "photos", "--method", "cbs", *settings, "--out", "a", "--validation", 0)
    assert code == 2
    assert "3.jpg" in one_sentence(err)
    code, _, err = run("train", "photos", "--method", "cbs", *settings, "--bad-images", "skip", "--out", "b")
    assert code == 0
    assert sum(RunFolder(tmp_path / "b").result()["counts"]) in {62, 63}  # it may be among those held out


# --- recipes and fields


def test_a_recipe_file_repeats_its_run(run, tmp_path):
    assert run("train", "--data", "digits-lt", "--method", "cbs", "--epochs", 2, "--out", "first")[0] == 0
    assert run("train", tmp_path / "first" / "recipe.toml", "--out", "again")[0] == 0
    for name in ("result.json", "model.safetensors", "predictions.safetensors", "recipe.toml"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


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
        (["--data", "digits-lt", "--method", "tau-norm"], "Expected `tau` for tau-norm, or validation data"),
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
    "arguments", [["--nonsense", "1"], ["--lr", "fast"], ["--schedule", "linear"], ["--pretrained", "perhaps"]]
)
def test_what_is_no_setting_exits_with_2(run, arguments):
    code, _, err = run("train", "--data", "digits-lt", *arguments)
    assert code == 2
    assert err.strip()


def test_a_run_that_is_there_is_not_begun_again(run, tmp_path):
    arguments = ("train", "--data", "digits-lt", "--method", "cbs", "--epochs", 1, "--out", "run")
    assert run(*arguments)[0] == 0
    code, _, err = run(*arguments)
    assert code == 0
    assert "done already" in err
    (tmp_path / "run" / "result.json").unlink()
    code, _, err = run(*arguments)
    assert code == 2
    assert "`longtail train --resume run` goes on with it" in one_sentence(err)
    assert run("train", "--resume", "run")[0] == 0


def test_signals_are_given_back(run):
    import signal

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert run("train", "--data", "digits-lt", "--epochs", 1, "--out", "run")[0] == 0
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_methods_are_listed_where_one_is_mistaken(run):
    _, _, err = run("train", "--data", "digits-lt", "--method", "x")
    assert all(name in err for name in METHODS)
