"""Plans: what they run, and that everything wrong with one is found at once."""

import pytest
from PIL import Image

from longtail.study.plan_reading import PlanError, make_plan, read_plan
from longtail.train import defaults
from longtail.train.folder import RunFolder

GOOD = {"data": "digits-lt", "methods": ["softmax", "cbs"], "seeds": 2}


def test_a_plan_is_every_combination_once(tmp_path):
    plan = make_plan(
        {
            "data": ["digits-lt", "digits"],
            "imbalance": [10, 50],
            "methods": ["softmax", "cbs", "bcl"],
            "betas": [1.2, "recipe", 1.5],
            "seeds": [3, 4],
            "out": str(tmp_path),
            "recipe": {"epochs": 3, "subset_seed": "run"},
        }
    )
    runs = plan.runs()
    # digits-lt at two factors and digits as it is; softmax, two betas of CBS (1.5 is the recipe's too), three of BCL
    assert len(runs) == 3 * (1 + 2 + 3) * 2
    assert len({run.path for run in runs}) == len(runs)
    assert {run.recipe.epochs for run in runs} == {3}
    assert {run.recipe.seed for run in runs} == {3, 4}
    assert {run.recipe.imbalance for run in runs} == {10.0, 50.0, None}
    assert {run.recipe.beta for run in runs if run.recipe.method == "bcl"} == {1.0, 1.2, 1.5}
    assert {run.recipe.subset_seed for run in runs} == {"run"}


def test_two_data_sets_of_one_name_are_refused(tmp_path):
    """One would take the other's place."""
    for place in ("here", "there"):
        for name in "ab":
            (tmp_path / place / "images" / name).mkdir(parents=True)
            Image.new("RGB", (16, 16)).save(tmp_path / place / "images" / name / "1.png")
    data = [str(tmp_path / place / "images") for place in ("here", "there")]
    with pytest.raises(
        ValueError, match=r"whose names differ, .* but got .*here/images and .*there/images: rename one"
    ):
        make_plan({**GOOD, "data": data})
    assert len(make_plan({**GOOD, "data": data[:1]}).runs()) == 4


def test_a_knob_goes_to_the_methods_that_take_it():
    plan = make_plan({**GOOD, "methods": ["softmax", "focal"], "seeds": 1, "recipe": {"gamma": 1.0}})
    assert [run.recipe.settings().get("gamma") for run in plan.runs()] == [None, 1.0]


def test_a_beta_that_is_searched_for_comes_later():
    plan = make_plan({**GOOD, "betas": ["search", 1.4]})
    assert plan.searches == [("digits-lt", None, "cbs")]
    assert {run.recipe.beta for run in plan.runs()} == {None, 1.4}
    after = plan.runs({("digits-lt", None, "cbs"): 1.7})
    assert {run.recipe.beta for run in after} == {None, 1.4, 1.7}


def test_everything_wrong_is_found_and_listed_at_once(tmp_path):
    with pytest.raises(PlanError) as error:
        make_plan(
            {
                "data": ["nonsense", "imagenet-lt"],
                "imbalance": [0.5],
                "methods": ["cbss", "softmax:beta=1", "tau-norm"],
                "betas": [-1, float("nan"), "serch"],
                "seeds": [],
                "reference": "bob",
                "colour": "red",
                "recipe": {
                    "epochs": 0,
                    "lr": -3,
                    "speed": 9,
                    "seed": 3,
                    "device": "cuda:9",
                    "root": str(tmp_path),
                    "model": "resnet9999",
                },
                "search": {"foldz": 3, "step": 0, "bounds": [2, 1], "folds": 1},
            }
        )
    told = str(error.value)
    for part in (
        "'nonsense'",
        "imagenet-lt",
        "`imbalance` to be a number >= 1, but got 0.5",
        "'cbss'",
        "`beta`",
        "`betas` to be numbers >= 0, but got -1",
        "but got nan",
        "'serch'",
        "at least one seed",
        "'bob'",
        "`colour`",
        "`epochs` to be an integer >= 1, but got 0",
        "`lr` to be a number >= 0, but got -3",
        "`speed`, which no recipe has",
        "`seed`, which the plan itself says",
        "device",
        "`foldz`",
        "`tau` for tau-norm",
        "'resnet9999'",
        "`step` to be a number > 0",
        "`bounds` to be a smaller and a larger beta, but got 2 and 1",
        "`folds` of the search",
    ):
        assert part in told, part
    assert len(error.value.problems) == told.count("\n")
    assert all(problem.startswith("Expected ") and problem.endswith(".") for problem in error.value.problems)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"seeds": 0}, "at least one seed"),
        ({"seeds": -1}, "`seeds` to be integers >= 0, but got -1"),
        ({"seeds": [0, 0]}, "each seed once"),
        ({"seeds": [0.5]}, "integers >= 0"),
        ({"data": []}, "a data set, but got none"),
        ({"imbalance": [1000]}, "to leave digits-lt an image of each class, but got 1000"),
        ({"methods": []}, "a method, but got none"),
        ({"betas": []}, "empty list"),
        ({"methods": ["softmax"], "betas": [1.2]}, "a method that takes one"),
        ({"data": "digits", "imbalance": [10]}, "made long-tailed here, but got digits"),
        ({"recipe": {"gamma": 2.0}}, "a method that takes `gamma`, but none of softmax, cbs does"),
        ({"methods": ["crt"], "recipe": {"classifier_epochs": 0}}, "`classifier_epochs` to be an integer >= 1"),
        ({"betas": ["search"], "search": {"folds": 1}}, "`folds` of the search"),
        ({"betas": ["search"], "search": {"criterion": "best"}}, "`criterion`"),
        ({"betas": ["search"], "search": {"select_on": "train"}}, "`select_on`"),
        ({"betas": ["search"], "search": {"bounds": [2.0, 3.0]}}, "`start` to have betas in 2…3, but got 1."),
        ({"betas": ["search"], "search": {"bounds": [0.5, 1.2], "start": [1.0, 1.3]}}, "`start`"),
        ({"search": {"step": 0}}, "`step` to be a number > 0, but got 0"),  # though nothing is searched for
        ({"search": {"bounds": [1.0]}}, "`bounds` to be a smaller and a larger beta"),
        ({"search": {"start": 1.0}}, "`start` to be several betas"),
        ({"search": {"criterion": 3}}, "`criterion`"),
        ({"recipe": {"model": "resnet9999"}}, "`model` to be a backbone"),
        ({"recipe": {"model": "other:resnet50"}}, "`model` to have 'torchvision' or 'timm' before its colon"),
        ({"betas": ["search"], "search": {"seeds": 0}}, "`seeds` of the search"),
    ],
)
def test_one_thing_wrong_is_one_sentence(change, part):
    with pytest.raises(PlanError) as error:
        make_plan({**GOOD, **change})
    assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_the_usual_start_is_cut_to_the_bounds():
    plan = make_plan({**GOOD, "betas": ["search"], "search": {"bounds": [0.5, 1.2]}})
    assert plan.search.start == plan.search.settings.start == (1.0, 1.1, 1.2)
    assert make_plan({**GOOD, "search": {"bounds": [1.2, 3.0]}}).search.start == (1.2, 1.3)
    assert make_plan({**GOOD, "search": {"bounds": [0.5, 1.2], "start": [0.7]}}).search.start == (0.7,)


def test_a_network_is_looked_up_and_not_built(monkeypatch):
    def build(*arguments, **options):
        raise AssertionError("a network was built")

    for name in ("get_model", "resnet50"):
        monkeypatch.setattr(f"torchvision.models.{name}", build)
    assert make_plan({**GOOD, "recipe": {"model": "resnet50"}}).runs()[0].recipe.model == "resnet50"


def test_all_knobs_that_make_no_sense_are_told_at_once():
    with pytest.raises(PlanError) as error:
        make_plan(
            {
                **GOOD,
                "methods": ["crt", "lws", "ldam-drw", "bcl"],
                "recipe": {"classifier_epochs": -1, "classifier_lr": -1, "defer": 2, "classifier_weight": "much"},
            }
        )
    assert error.value.problems == (
        "Expected `classifier_epochs` to be an integer >= 1, but got -1.",
        "Expected `classifier_lr` to be a number > 0, but got -1.",
        "Expected `defer` to be a number >= 0 and <= 1, but got 2.",
        "Expected `classifier_weight` to be a number >= 0, but got 'much'.",
    )


def test_a_folder_that_holds_another_run_is_refused_before_the_first(tmp_path):
    import torch

    path = tmp_path / "digits-lt-50-softmax-seed0"
    RunFolder(path).begin(defaults("digits-lt", "softmax"), torch.device("cpu"), 1)
    plan = {**GOOD, "out": str(tmp_path)}
    make_plan({**plan, "recipe": {"workers": 1}})  # it is this one
    why = r"to hold this run, but it differs in `epochs` \(40 there, 7 here\); --out names another folder\.$"
    with pytest.raises(PlanError, match=why):
        make_plan({**plan, "recipe": {"epochs": 7}})


def test_a_file_and_flags_beside_it(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(
        'data = ["digits-lt"]\nmethods = ["softmax"]\nseeds = 3\n[recipe]\nepochs = 5\nmilestones = [2, 3]\n', "utf-8"
    )
    plan = read_plan(file, {"seeds": 1, "recipe": {"lr": 0.2}, "search": {}})
    (run,) = plan.runs()
    assert (run.recipe.epochs, run.recipe.lr, run.recipe.milestones) == (5, 0.2, (2, 3))
    file.write_text("data = [", "utf-8")
    with pytest.raises(ValueError, match=r"^Expected .*plan\.toml to be TOML"):
        read_plan(file)
