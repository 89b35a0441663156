"""`longtail train`: with no more than a folder, with a recipe's file, with any field; mistakes are one sentence."""

import json
import tomllib

import pytest
from PIL import Image
from tests.cli.conftest import COLOURS, one_sentence, pictures

from longtail.cli import train
from longtail.cli.train import read_recipes
from longtail.data import CATALOG
from longtail.methods import METHODS
from longtail.ranks import Ranks
from longtail.train import RunFolder, defaults, write_recipe

pytestmark = pytest.mark.usefixtures("_here")


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
@pytest.mark.parametrize("bad", ["blue/0.jpg", "red/3.jpg"])  # the first of all, and another
def test_an_image_that_cannot_be_read(run, tmp_path, loading, bad):
    pictures(tmp_path / "photos", COLOURS, lambda _: (80, 70), "jpg")
    (tmp_path / "photos" / bad).write_bytes(b"not a picture")
    settings = ["--model", "timm:resnet10t", "--image-size", 32, "--epochs", 1, "--batch-size", 16, "--workers", 0]
    settings += ["--loading", loading]
    code, _, err = run("train", "photos", "--method", "cbs", *settings, "--out", "a", "--validation", 0)
    assert code == 2
    assert f"photos/{bad}" in one_sentence(err)
    assert "`--bad-images skip` leaves out" in err
    code, _, err = run("train", "photos", "--method", "cbs", *settings, "--bad-images", "skip", "--out", "b")
    assert code == 0
    assert one_sentence(err).startswith(f"Left out 1 image that could not be read (photos/{bad})")
    listed = json.loads((tmp_path / "b" / "unreadable.json").read_text())
    assert list(listed) == [f"photos/{bad}"]
    assert "cannot identify" in listed[f"photos/{bad}"]
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
    assert err == f"{folder.path} is finished; choose another folder with --out.\n"
    assert "recall %" in out
    assert folder.result_file.stat().st_mtime_ns == before


@pytest.mark.parametrize("data", [*CATALOG, "photos"])
def test_a_resolved_recipe_is_the_same_recipe_whatever_the_data_sets_says(tmp_path, data):
    """Of every method on every data set; also with all of what may be left open left open."""
    pictures(tmp_path / "photos", COLOURS, lambda _: (16, 16), "png")
    for method in METHODS:
        asked = read_recipes(["--data", data, "--method", method])[0][0]
        none = dict.fromkeys(("imbalance", "weights", "head", "sampler", "image_size"))
        for recipe in (asked, asked.changed(**none)):
            path = tmp_path / "recipe.toml"
            path.write_text(write_recipe(recipe))
            assert read_recipes([str(path)])[0][0] == recipe


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--data inaturalist2018 --method tau-norm --tau none --validation 0.1", "tau"),
        ("--data imagenet-lt --method proco --head none", "head"),
    ],
)
def test_what_was_set_to_none_stays_none(tmp_path, words, name):
    path = tmp_path / "recipe.toml"
    path.write_text(write_recipe(read_recipes(words.split())[0][0]))
    data, method = words.split()[1:4:2]
    assert getattr(defaults(data, method), name) is not None  # what would fill it in
    assert getattr(read_recipes([str(path)])[0][0], name) is None
    # Of another method nothing was said: there the data set's recipe counts.
    assert read_recipes([str(path), "--method", "bcl"])[0][0].head == "cosine"


@pytest.mark.parametrize("flag", ["--weights", "--beta"])
def test_none_is_no_text(flag):
    assert getattr(read_recipes(["--data", "digits-lt", "--method", "bcl", flag, "none"])[0][0], flag[2:]) is None


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
    recipes, notes = read_recipes(words.split())
    assert [recipe.validation for recipe in recipes] == [share]
    assert len(notes) == (share == 0.1)


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
    for name in ("beta", "batch-size", "checkpoint-minutes", "train-stats"):
        assert f"--{name}" in out


def test_no_method_is_the_papers(run, tmp_path):
    assert run("train", "--data", "digits-lt", "--epochs", 1)[0] == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == "digits-lt-50-cbs-beta1.5-seed0"
    assert json.loads((folder / "result.json").read_text())["params"] == {"beta": 1.5}


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
            "Expected the parameters of cbs (`beta`), but got `gamma`",
        ),
        (["--data", "digits-lt", "--method", "bcl", "--mixup", "0.2"], "Expected no `mixup` with bcl"),
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
        ('data = "digits-lt"\nmethod = "cbs"\ngamma = 2.0', "Expected the parameters of cbs"),
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
            "Expected a flag that `longtail train --help` shows, but got --metod; the closest match is --method.",
        ),
        (["--xyzzy=1"], "Expected a flag that `longtail train --help` shows, but got --xyzzy."),
        (["-b", "1"], "Expected a flag that `longtail train --help` shows, but got -b"),
        (["--no-epochs"], "but got --no-epochs"),
        (["--epochs", "two"], "Expected `epochs` to be an integer, but got 'two'."),
        (["--epochs", "2.5"], "Expected `epochs` to be an integer, but got '2.5'."),
        (["--lr", "fast"], "Expected `lr` to be a number, but got 'fast'."),
        (["--lr"], "Expected a value after --lr, but got none."),
        (["--beta", "1,2"], "but got '1,2'; separate several values by spaces."),
        (["--milestones", "x"], "Expected `milestones` to be a list of"),
        (["--subset-seed", "mine"], "Expected `subset_seed` to be an integer or one of run, but got 'mine'."),
        (["--schedule", "linear"], "Expected `schedule` to be one of steps, cosine, constant, but got 'linear'."),
        (["--pretrained", "perhaps"], "Expected `pretrained` to be true or false, but got 'perhaps'."),
        (["--pretrained=perhaps"], "Expected `pretrained` to be true or false, but got 'perhaps'."),
        (["--out", "a", "b", "c"], "Expected flags, but got 'c'."),
        (["--seed", "0", "--seed", "1"], "Expected --seed once, with all its values"),
        (["--together", "0"], "Expected --together to be a integer, but got 0."),
        (["--beta", "1", "1.0"], "Expected different runs, but got runs/digits-lt-50-cbs-beta1-seed0 twice."),
    ],
)
def test_a_flag_that_is_wrong_is_one_sentence(run, arguments, said):
    code, out, err = run("train", "--data", "digits-lt", *arguments)
    assert (code, out) == (2, "")
    assert said in one_sentence(err)


def test_two_sources_are_refused(run):
    code, _, err = run("train", "a.toml", "--epochs", 1, "--nesterov", "b.toml")
    assert code == 2
    assert "b.toml" in one_sentence(err)


def test_methods_are_listed_where_one_is_mistaken(run):
    _, _, err = run("train", "--data", "digits-lt", "--method", "x")
    assert all(name in err for name in METHODS)


# --- the command line


def test_values_have_the_types_of_their_fields():
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
    assert [(one.beta, one.seed, one.nesterov) for one in recipes] == [
        (beta, seed, nesterov) for beta in (1.0, 1.5) for seed in (0, 1) for nesterov in (True, False)
    ]


def test_data_comes_before_the_flags(run, tmp_path):
    pictures(tmp_path / "photos", COLOURS, lambda _: (16, 16), "png")
    for words in (["photos", "--epochs", "2"], ["--out", "x", "photos", "--epochs", "2"]):
        assert read_recipes(words)[0][0].data == "photos"
    for words in (["--method", "cbs", "photos"], ["--model", "resnet20", "photos"]):
        assert "Expected data before the flags, but got photos" in one_sentence(run("train", *words)[2])
    assert "data comes before the flags" in one_sentence(run("train", "--epochs", "2", "photos")[2])


def test_knobs_of_a_files_method_are_left_out_for_another(run, tmp_path):
    (tmp_path / "mine.toml").write_text('data = "digits-lt"\nmethod = "cbs"\nepochs = 1\nbeta = 1.2\n')
    code, _, err = run("train", "mine.toml", "--method", "softmax", "--out", "run")
    assert code == 0
    assert one_sentence(err) == "Ignored `beta` of mine.toml: softmax has no such parameter."
    assert RunFolder("run").recipe().method == "softmax"
    code, _, err = run("train", "mine.toml", "--method", "softmax", "--beta", 1.2)
    assert code == 2
    assert "Expected the parameters of softmax (none), but got `beta`" in one_sentence(err)


def folders_of(words):
    given = train._parser().read(words)
    return train._new(given, train.read_settings(given), Ranks())


def test_runs_are_named_by_what_tells_them_apart(tmp_path):
    """Methods whose recipes differ in much need no more than their names; settings show where names are the same."""
    words = ["--data", "cifar10-lt", "--method", "softmax", "reslt", "--out", str(tmp_path)]
    runs = folders_of(words)
    assert [folder.path.name for _, folder in runs] == ["cifar10-lt-100-softmax-seed0", "cifar10-lt-100-reslt-seed0"]
    words = ["--data", "digits-lt", "--method", "softmax", "--lr", "0.1", "0.2", "--out", str(tmp_path)]
    runs = folders_of(words)
    assert [folder.path.name for _, folder in runs] == [f"digits-lt-50-softmax-seed0-lr{lr}" for lr in (0.1, 0.2)]
    words = ["--data", "digits-lt", "--beta", "1", "1.00000001", "--out", str(tmp_path)]
    runs = folders_of(words)
    assert len({folder.path for _, folder in runs}) == 2


def test_data_of_one_name_in_two_places_need_folders_of_their_own(tmp_path):
    for place in ("here", "there"):
        for name in ("a", "b"):
            (tmp_path / place / "pets" / name).mkdir(parents=True)
            Image.new("RGB", (16, 16)).save(tmp_path / place / "pets" / name / "0.png")
    places = [str(tmp_path / place / "pets") for place in ("here", "there")]
    with pytest.raises(ValueError, match="a folder for each run, but two different runs would go to runs/"):
        folders_of(["--data", *places])
