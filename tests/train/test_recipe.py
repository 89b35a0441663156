"""Recipes: those that ship, what overrides them, and that a resolved one repeats its run."""

import math
import tomllib
from dataclasses import replace
from importlib import resources
from itertools import product

import pytest
import torch
from tests.train.conftest import assert_same_run, recipe_for, trained

from longtail.data import CATALOG
from longtail.methods import METHODS
from longtail.train import NotFiniteError, RunFolder, Trainer, defaults, read_recipe, write_recipe
from longtail.train.optimizer import learning_rate
from longtail.train.recipe import Recipe, differing_settings, settings_of, with_precision

NAMED = {"finetune", "probe", "lora"}
SHIPPED = sorted(
    file.name.removesuffix(".toml")
    for file in resources.files("longtail").joinpath("recipes").iterdir()
    if file.name.endswith(".toml") and file.name.removesuffix(".toml") not in NAMED
)


# --- what ships


def test_every_data_set_has_a_recipe_and_own_data_three():
    shared = {"digits-lt", "fashion-mnist-lt", "tiny-imagenet-lt"}  # with the whole that they are made of
    fitted = {name for name, entry in CATALOG.items() if entry.image_size or entry.texts}
    assert set(SHIPPED) == {*CATALOG, "own", "own-small", "features"} - shared - fitted
    for name in shared:
        assert defaults(name, "cbs").epochs == defaults(name.removesuffix("-lt"), "cbs").epochs


def test_every_recipe_resolves_for_every_method(tmp_path):
    for data, method in product(SHIPPED, METHODS):
        small = data == "own-small"
        name = "some/folder" if data.startswith("own") else data
        recipe = defaults(name, method, small=small)
        assert (recipe.data, recipe.method) == (name, method)
        assert recipe.settings().keys() >= METHODS[method].parameters.keys()
        path = tmp_path / "recipe.toml"
        path.write_text(write_recipe(recipe))
        assert Recipe.from_settings(read_recipe(path)) == recipe


@pytest.mark.parametrize(
    ("settings", "precision"),
    [
        ({}, "bf16"),
        ({"model": "resnet20"}, "bf16"),
        ({"model": "small-cnn"}, "fp32"),
        ({"model": "timm:resnet10t"}, "fp32"),
        ({"compile": True}, "fp32"),
        ({"kernels": "torch"}, "fp32"),
        ({"precision": "fp32"}, "fp32"),
    ],
)
def test_a_precision_that_is_left_to_the_device(monkeypatch, settings, precision):
    """It is bfloat16 where our kernels will run."""
    monkeypatch.setattr("longtail.kernels.is_checked", lambda device: device.type == "cuda")
    recipe = replace(defaults("cifar10-lt", "cbs", 100), **settings)
    found = with_precision(recipe, torch.device("cuda"))
    assert (found.precision, found.channels_last) == (precision, precision == "bf16")
    assert with_precision(found, torch.device("cpu")) == found
    on_cpu = with_precision(recipe, torch.device("cpu"))
    assert (on_cpu.precision, on_cpu.channels_last) == ("fp32", recipe.precision == "auto")
    assert not differing_settings(settings_of(found), settings_of(recipe)) or recipe.precision != "auto"


def test_a_run_goes_on_in_the_precision_that_it_began_with(tmp_path):
    """Which a run writes down; a command that leaves it open repeats the run anywhere."""
    asked = recipe_for("cbs", precision="auto")
    for precision in ("bf16", "fp32"):
        folder = RunFolder(tmp_path / precision)
        folder.begin(replace(asked, precision=precision, channels_last=True), torch.device("cpu"), 1)
        folder.log({"loss": 1.0})
        trainer = Trainer(asked, folder)
        assert (trainer.recipe.precision, trainer.recipe.channels_last) == (precision, True)
        folder.check(asked)
        folder.check(trainer.recipe)
        other = "fp32" if precision == "bf16" else "bf16"
        with pytest.raises(ValueError, match="differs in `precision`"):
            folder.check(replace(asked, precision=other, channels_last=True))
    new = RunFolder(tmp_path / "new")
    Trainer(asked, new).run()
    assert new.recipe().precision == "fp32"


def test_recipes_name_registered_methods_only():
    for data in SHIPPED:
        content = tomllib.loads(resources.files("longtail").joinpath("recipes", f"{data}.toml").read_text())
        assert content.get("method", {}).keys() <= METHODS.keys()


@pytest.mark.parametrize(("imbalance", "beta"), [(10, 1.6), (50, 1.5), (100, 1.8), (20, "auto")])
def test_the_authors_betas_on_cifar_10(imbalance, beta):
    assert defaults("cifar10-lt", "cbs", imbalance).params.beta == beta


@pytest.mark.parametrize("data", ["cifar10-lt", "cifar100-lt"])
def test_the_authors_recipe_for_cifar(data):
    """The table of recipes.md, first column."""
    recipe = defaults(data, "softmax", 100)
    wanted = {
        **{"epochs": 200, "batch_size": 128, "lr": 0.1, "schedule": "steps", "milestones": (0.8, 0.9), "decay": 0.1},
        **{"warmup": 5, "momentum": 0.9, "nesterov": False, "weight_decay": 5e-4, "model": "resnet32"},
        **{"augment": "cifar", "drop_last": False, "subset_seed": "run", "train_stats": "paper"},
    }
    assert {name: getattr(recipe, name) for name in wanted} == wanted


def test_the_papers_data_sets_are_measured_as_the_paper_did_and_cifars_subset_drawn_so():
    """The rest of the literature has subset 0 and evaluation mode, and so have the data sets that are ours."""
    paper = {"cifar10", "cifar10-lt", "cifar100", "cifar100-lt", "imagenet", "imagenet-lt", "places-lt"}
    paper |= {"inaturalist2018"}
    images = [name for name, entry in CATALOG.items() if not entry.texts]
    found = {name: defaults(name, "cbs") for name in images} | {"own": defaults("own", "cbs", small=False)}
    assert {name for name, recipe in found.items() if recipe.train_stats == "paper"} == paper
    assert {name for name, recipe in found.items() if recipe.subset_seed == "run"} == {"cifar10-lt", "cifar100-lt"}


@pytest.mark.parametrize(
    ("data", "method", "imbalance", "wanted"),
    [
        ("cifar10-lt", "reslt", 100, {"nesterov": True, "drop_last": True, "alpha": 0.998, "medium_from": 2}),
        ("cifar100-lt", "reslt", 10, {"alpha": 0.72, "medium_from": 35, "tail_from": 70}),
        ("cifar10-lt", "ldam-drw", 100, {"weight_decay": 2e-4, "decay": 0.01, "max_margin": 0.5}),
        ("cifar10-lt", "proco", 100, {"batch_size": 256, "lr": 0.3, "weight_decay": 2e-4}),
        ("imagenet-lt", "softmax", None, {"epochs": 200, "schedule": "cosine", "warmup": 0, "weight_decay": 5e-4}),
        ("imagenet-lt", "bcl", None, {"epochs": 90, "temperature": 0.07, "contrast_weight": 0.35, "head": "cosine"}),
        ("imagenet-lt", "ldam-drw", None, {"max_margin": 0.3}),
        # The paper: 256 in all, 128 with BCL and ProCo.
        ("places-lt", "softmax", None, {"batch_size": 256, "model": "resnet152", "weight_decay": 5e-4}),
        ("places-lt", "proco", None, {"batch_size": 128, "model": "resnet152", "projection": 1024}),
        ("inaturalist2018", "proco", None, {"lr": 0.2, "weight_decay": 1e-4, "augment": "imagenet-plain"}),
        ("inaturalist2018", "reslt", None, {"branches": 2, "alpha": 0.85}),
    ],
)
def test_what_the_literature_has_otherwise(data, method, imbalance, wanted):
    settings = defaults(data, method, imbalance).settings()
    assert {name: settings[name] for name in wanted} == wanted


# --- schedules


@pytest.mark.parametrize(
    ("epoch", "rate"),
    [
        *((0, 0.02), (1, 0.04), (2, 0.06), (3, 0.08), (4, 0.1), (5, 0.1), (100, 0.1), (159, 0.1)),
        *((160, 0.01), (179, 0.01), (180, 0.001), (199, 0.001)),
    ],
)
def test_the_authors_schedule(epoch, rate):
    """0.1 (e + 1) / 5 for e = 0…4, then times 0.1 at 160 and at 180."""
    recipe = defaults("cifar10-lt", "cbs", 100)
    names = ("lr", "epochs", "schedule", "milestones", "decay", "warmup")
    found = learning_rate(epoch, **{name: getattr(recipe, name) for name in names})
    assert found == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(("epoch", "rate"), [(0, 0.2), (45, 0.1), (30, 0.15), (60, 0.05)])
def test_the_cosine(epoch, rate):
    """Down to zero over 90 epochs: cos 60° is a half."""
    assert learning_rate(epoch, lr=0.2, epochs=90, schedule="cosine") == pytest.approx(rate, rel=1e-12)


def test_the_cosine_after_a_warm_up_and_its_last_epoch():
    found = [learning_rate(e, lr=0.1, epochs=40, schedule="cosine", warmup=2) for e in (0, 1, 2, 39)]
    assert found[:2] == [0.05, 0.1]
    assert found[2] == pytest.approx(0.05 * (1 + math.cos(math.pi / 20)))
    assert 0 < found[3] < 0.0002


def test_a_constant_rate():
    assert {learning_rate(e, lr=0.3, epochs=5, schedule="constant") for e in range(5)} == {0.3}


# --- a resolved recipe repeats its run


@pytest.mark.parametrize("method", ["cbs", "proco", "lws"])
def test_a_resolved_recipe_repeats_its_run_bit_for_bit(tmp_path, method):
    settings = {"classifier_epochs": 1} if method == "lws" else {}
    first, _ = trained(tmp_path / "first", method, label_smoothing=0.1, evaluate_every=1, **settings)
    settings = read_recipe(first.recipe_file)
    assert settings.keys() >= METHODS[method].parameters.keys()  # defaults of the method are written out
    again = RunFolder(tmp_path / "again")
    Trainer(Recipe.from_settings(settings), again).run()
    assert_same_run(again, first)
    assert again.recipe_file.read_bytes() == first.recipe_file.read_bytes()


def test_all_settings_are_in_the_recipe_that_is_written(tmp_path):
    folder, _ = trained(tmp_path / "run", "cbs", epochs=1)
    content = tomllib.loads(folder.recipe_file.read_text())
    assert content.keys() == Recipe().settings().keys()
    assert (content["beta"], content["head"]) == (1.5, "none")


# --- mistakes


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epochs": 0}, "`epochs` to be an integer >= 1, but got 0"),
        ({"epochs": 1.5}, "`epochs` to be an integer .*but got 1.5"),
        ({"epochs": "many"}, "`epochs` to be an integer"),
        ({"lr": "fast"}, "`lr` to be a number"),
        ({"lr": -1.0}, "`lr`"),
        ({"lr": float("nan")}, "`lr`"),
        ({"lr": 1e308}, r"`lr` to be a number <= 3.4e\+38"),
        ({"epochs": 10**400}, "`epochs`"),
        ({"seed": 2**32}, "`seed` to be an integer >= 0 and < 4294967296"),
        ({"subset_seed": -1}, "`subset_seed`"),
        ({"nesterov": "yes"}, "`nesterov` to be true or false, but got 'yes'"),
        ({"seed": True}, "`seed` to be an integer"),
        ({"milestones": 160}, "`milestones` to be a list of numbers, but got 160"),
        ({"schedule": "linear"}, "`schedule` to be one of steps, cosine, constant, but got 'linear'"),
        ({"sampler": "random"}, "`sampler` to be one of instance, class-aware, square-root, progressive"),
        ({"model": 18}, "`model` to be a text, but got 18"),
        ({"subset_seed": "mine"}, "`subset_seed` to be an integer .* or one of run, but got 'mine'"),
        ({"momentum": 1.0}, "`momentum`"),
        ({"validation": 1.0}, "`validation`"),
        ({"batch_size": 10, "accumulate": 3}, "`accumulate` to divide `batch_size` = 10, but got 3"),
        ({"pretrained": True, "weights": "x"}, "`pretrained` or `weights`, not both"),
        ({"method": "csb"}, "`method` to be one of softmax"),
        ({"gamma": 1.0}, r"Expected the parameters of cbs \(`beta`\), but got `gamma`"),
        ({"method": "bcl", "mixup": 0.1}, "`mixup` = 0 with bcl"),
    ],
)
def test_a_wrong_setting_is_one_sentence(settings, said):
    with pytest.raises((ValueError, TypeError), match=said) as caught:
        Recipe.from_settings({"method": "cbs", **settings})
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("epochs = ", "to be TOML, but it is damaged"),
        ("epoch = 3", "but got `epoch`"),
        ("[method]\nname = 3", "`method`"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path, content, said):
    path = tmp_path / "recipe.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=said):
        Recipe.from_settings(read_recipe(path))


def test_a_large_integer_is_a_learning_rate(tmp_path):
    with pytest.raises(NotFiniteError):
        Trainer(recipe_for("softmax", lr=10**30), RunFolder(tmp_path / "run")).run()


def test_more_than_the_images_where_the_last_batch_is_dropped(tmp_path):
    with pytest.raises(ValueError, match="Expected `batch_size` to be at most the 342 training images"):
        Trainer(recipe_for("cbs", batch_size=1024, drop_last=True), RunFolder(tmp_path / "run")).run()


@pytest.mark.parametrize(
    ("method", "setting", "sentence"),
    [
        ("bcl", {"accumulate": 2}, "compares the images of a batch"),
        ("ldam", {"head": "linear"}, "no `head` with ldam"),
        ("lws", {"head": "cosine"}, "no `head` with lws"),
        ("tau-norm", {"head": "cosine", "tau": 1.0}, "no `head` with tau-norm"),
        ("class-balanced-sampling", {"sampler": "instance"}, "no `sampler` with class-balanced-sampling"),
        ("cbs", {"label_smoothing": 1.5}, r"`label_smoothing` to be a number"),
    ],
)
def test_settings_that_would_do_nothing_or_fail_late_are_refused_at_once(method, setting, sentence):
    with pytest.raises(ValueError, match=sentence):
        defaults("cifar10-lt", method).changed(**setting)


def test_folds_replace_a_validation_split():
    recipe = defaults("mine", "softmax", small=True)
    assert recipe.validation == 0.1
    assert recipe.changed(folds=5, fold=1).validation == 0
    with pytest.raises(ValueError, match="not both"):
        recipe.changed(folds=5, validation=0.2)


def test_recipes_that_differ_in_the_seed_are_read_as_written(tmp_path):
    folder = RunFolder(tmp_path)
    for method in ("cbs", "bcl"):
        for seed in (0, 7, 2**32 - 1):
            recipe = defaults("digits-lt", method).changed(seed=seed, lr=0.03)
            assert recipe.with_seed(3) == recipe.changed(seed=3)
            folder.recipe_file.write_text(write_recipe(recipe))
            assert folder.recipe() == recipe
            assert folder.recipe().settings() == recipe.settings()
    text = folder.recipe_file.read_text()
    for wrong, name in (("seed = -1", "seed"), ("seed = 4294967296", "seed"), ("seed = 1\nlr = 'x'", "recipe.toml")):
        folder.recipe_file.write_text(text.replace(f"seed = {2**32 - 1}", wrong))
        with pytest.raises(ValueError, match=name):
            folder.recipe()
