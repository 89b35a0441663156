"""Plans: what they run, and what is refused before the first run."""

import pytest
import torch
from PIL import Image

from longtail.study.planning import make_plan, read_plan
from longtail.train import defaults
from longtail.train.folder import RunFolder

GOOD = {"data": "digits-lt", "methods": ["softmax", "cbs"], "seeds": 2}


def test_a_plan_is_every_combination_once(tmp_path):
    plan = make_plan(
        {
            "data": ["digits-lt", "digits"],
            "imbalance": [10, 50],
            "methods": ["softmax", "cbs", "bcl"],
            "betas": [1.0, "recipe", "auto"],
            "seeds": [3, 4],
            "out": str(tmp_path),
            "recipe": {"epochs": 3, "subset_seed": "run"},
        }
    )
    runs = plan.runs()
    # digits-lt with two factors, and digits; softmax, cbs (the recipe's beta is auto), bcl (the recipe's beta is 1)
    assert len(runs) == 3 * (1 + 2 + 2) * 2
    assert len({run.path for run in runs}) == len(runs)
    assert {run.recipe.epochs for run in runs} == {3}
    assert {run.recipe.seed for run in runs} == {3, 4}
    assert {run.recipe.imbalance for run in runs} == {10.0, 50.0, None}
    for method in ("cbs", "bcl"):
        assert {run.recipe.params.beta for run in runs if run.recipe.method == method} == {1.0, "auto"}
    assert {run.recipe.subset_seed for run in runs} == {"run"}


def test_methods_take_parameters(tmp_path):
    methods = ["focal:gamma=1", "focal:gamma=2.5", "cbs:beta=1.1", "bcl:beta=1.8,temperature=0.2"]
    plan = make_plan({**GOOD, "methods": methods, "seeds": [1]})
    assert [(run.path.name, run.recipe.settings().get("gamma"), run.recipe.beta) for run in plan.runs()] == [
        ("digits-lt-50-focal-gamma1-seed1", 1.0, None),
        ("digits-lt-50-focal-gamma2.5-seed1", 2.5, None),
        ("digits-lt-50-cbs-beta1.1-seed1", None, 1.1),
        ("digits-lt-50-bcl-beta1.8-temperature0.2-seed1", None, 1.8),
    ]
    searching = make_plan({**GOOD, "methods": ["bcl:temperature=0.2", "cbs:beta=1.1"], "betas": ["search"]})
    (key,) = searching.searches
    assert key == ("digits-lt", None, "bcl:temperature=0.2")
    assert searching.search_folder(key).name == "digits-lt-bcl-temperature0.2"


def test_a_setting_of_some_methods_goes_to_those_that_take_it():
    plan = make_plan({**GOOD, "methods": ["softmax", "focal"], "seeds": 1, "recipe": {"gamma": 1.0}})
    assert [run.recipe.settings().get("gamma") for run in plan.runs()] == [None, 1.0]


def test_a_beta_that_is_searched_for_comes_later():
    plan = make_plan({**GOOD, "betas": ["search", 1.4]})
    key = ("digits-lt", None, "cbs")
    assert plan.searches == [key]
    assert {run.recipe.beta for run in plan.runs()} == {None, 1.4}
    assert {run.recipe.beta for run in plan.runs({key: 1.7})} == {None, 1.4, 1.7}


def test_two_data_sets_of_one_name_are_refused(tmp_path):
    for place in ("here", "there"):
        for name in "ab":
            (tmp_path / place / "images" / name).mkdir(parents=True)
            Image.new("RGB", (16, 16)).save(tmp_path / place / "images" / name / "1.png")
    data = [str(tmp_path / place / "images") for place in ("here", "there")]
    with pytest.raises(ValueError, match=r"`data` .* but got .*here/images and .*there/images"):
        make_plan({**GOOD, "data": data})
    assert len(make_plan({**GOOD, "data": data[:1]}).runs()) == 4


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"seeds": -1}, "`seeds` to be an integer >= 0, but got -1"),
        ({"seeds": []}, "`seeds` to have at least one value"),
        ({"colour": "red"}, "`colour`"),
        ({"data": "nonsense"}, "'nonsense'"),
        ({"data": "imagenet-lt", "recipe": {"root": "nowhere"}}, "for imagenet-lt, but it does not exist"),
        ({"imbalance": [0.5]}, "`imbalance` to be a number >= 1, but got 0.5"),
        ({"methods": ["cbss"]}, "'cbss'"),
        ({"methods": ["softmax:gamma=1"]}, "the parameters of softmax (none), but got `gamma`"),
        ({"methods": ["focal:gamma=-1"]}, "`gamma` to be a number >= 0, but got -1"),
        ({"methods": ["focal:gamma"]}, "'focal:gamma'"),
        ({"betas": [-1]}, "`betas` to be a number >= 0, but got -1"),
        ({"betas": [float("nan")]}, "but got nan"),
        ({"betas": ["serch"]}, "'serch'"),
        ({"reference": "bob"}, "'bob'"),
        ({"recipe": {"epochs": 0}}, "`epochs` to be an integer >= 1, but got 0"),
        ({"recipe": {"speed": 9}}, "`speed`"),
        ({"recipe": {"seed": 3}}, "`seed`, which the plan itself sets"),
        ({"recipe": {"beta": 3}}, "`beta`, which the plan itself sets"),
        ({"recipe": {"device": "cuda:9"}}, "cuda:9"),
        ({"recipe": {"model": "resnet9999"}}, "'resnet9999'"),
        ({"recipe": {"defer": 2}}, "a method that has `defer`"),
        ({"search": {"foldz": 3}}, "`foldz`"),
        ({"seeds": [0, 0]}, "`seeds`"),
        ({"data": []}, "`data`"),
        ({"imbalance": [1000]}, "`imbalance` to leave digits-lt an image of each class, but got 1000"),
        ({"methods": []}, "`methods`"),
        ({"betas": []}, "`betas`"),
        ({"methods": ["softmax"], "betas": [1.2]}, "`betas` with a method that has a beta"),
        ({"data": "digits", "imbalance": [10]}, "`imbalance`"),
        ({"methods": ["crt"], "recipe": {"classifier_epochs": 0}}, "`classifier_epochs` to be an integer >= 1"),
        ({"betas": ["search"], "search": {"bounds": [2.0, 3.0]}}, "`start` to be betas in 2…3, but got ()"),
        ({"search": {"step": 0}}, "`step` to be a number > 0, but got 0"),  # though nothing is searched for
    ],
)
def test_a_wrong_plan_is_refused_in_one_sentence(change, part):
    with pytest.raises((TypeError, ValueError)) as error:
        make_plan({**GOOD, **change})
    assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_the_default_start_is_cut_to_the_bounds():
    assert make_plan({**GOOD, "search": {"bounds": [0.5, 1.2]}}).search.start == (1.0, 1.1, 1.2)
    assert make_plan({**GOOD, "search": {"bounds": [0.5, 1.2], "start": [0.7]}}).search.start == (0.7,)


def test_a_network_is_looked_up_and_not_built(monkeypatch):
    for name in ("get_model", "resnet50"):
        monkeypatch.setattr(f"torchvision.models.{name}", lambda *_, **__: pytest.fail("A network was built."))
    assert make_plan({**GOOD, "recipe": {"model": "resnet50"}}).runs()[0].recipe.model == "resnet50"


def test_a_run_folder_is_refused_as_that_of_a_study(tmp_path):
    RunFolder(tmp_path).begin(defaults("digits-lt", "softmax"), torch.device("cpu"), 1)
    with pytest.raises(ValueError, match=r"`out`.*run folder"):
        make_plan({**GOOD, "out": str(tmp_path)})


def test_a_folder_that_holds_another_run_is_refused_before_the_first(tmp_path):
    path = tmp_path / "digits-lt-50-softmax-seed0"
    RunFolder(path).begin(defaults("digits-lt", "softmax"), torch.device("cpu"), 1)
    plan = {**GOOD, "out": str(tmp_path)}
    make_plan({**plan, "recipe": {"epochs": 7}})  # nothing was trained yet
    RunFolder(path).log({"loss": 1.0})
    make_plan({**plan, "recipe": {"workers": 1}})  # not a setting of what is trained
    with pytest.raises(ValueError, match=r"differs in `epochs` \(40 there, 7 here\); choose another folder"):
        make_plan({**plan, "recipe": {"epochs": 7}})


def test_a_file_and_settings_beside_it(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(
        'data = ["digits-lt"]\nmethods = ["softmax"]\nseeds = 3\n[recipe]\nepochs = 5\nmilestones = [2, 3]\n', "utf-8"
    )
    (run,) = read_plan(file, {"seeds": 1, "recipe": {"lr": 0.2}, "search": {}}).runs()
    assert (run.recipe.epochs, run.recipe.lr, run.recipe.milestones) == (5, 0.2, (2, 3))
    file.write_text("data = [", "utf-8")
    with pytest.raises(ValueError, match=r"plan\.toml to be TOML"):
        read_plan(file)


def test_the_default_reference():
    references = {
        tuple(methods): make_plan({**GOOD, "methods": methods}).reference
        for methods in (["cbs", "softmax"], ["cbs", "softmax", "balanced-softmax"], ["focal", "cbs"])
    }
    assert list(references.values()) == ["softmax", "balanced-softmax", "focal"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("methods = 3", "'3'"),
        ("seeds = 300000000", "at most 10,000 seeds"),
        ("recipe = 3", "`recipe` to be a table"),
        ("search = [1]", "`search` to be a table"),
        ("a = " + "[" * 50_000, "RecursionError"),
    ],
)
def test_a_plan_that_holds_something_else_is_one_sentence_with_its_name(tmp_path, changes, said):
    plan = {
        "data": 'data = "digits-lt"',
        "methods": 'methods = "cbs"',
        "seeds": "seeds = 1",
        "recipe": "",
        "search": "",
    }
    path = tmp_path / "plan.toml"
    path.write_text("\n".join((plan | {changes.split()[0]: changes}).values()))
    with pytest.raises(ValueError, match=rf"plan\.toml.*{said}"):
        read_plan(path)
