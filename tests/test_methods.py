"""Every method: what it declares, that it trains, and that its stages and post-hoc steps do what they say."""

import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import mostly_slow, recipe_for, trained

from longtail._program import program
from longtail.classes import Groups
from longtail.data import load
from longtail.losses import class_shift
from longtail.methods import METHODS, Method, Stage, Task, base, find_method, param, parse_method, register_method
from longtail.methods.base import reserve_settings
from longtail.methods.softmax import SOFTMAX, softmax
from longtail.train import Recipe, RunFolder, Trainer, defaults
from longtail.train.stored import read_statistics

PAPER = {  # the rows of the paper's tables, and what issue 4 names
    *("softmax", "focal", "tau-norm", "logit-adjust", "logit-adjust-posthoc", "reslt", "crt", "lws", "ldam"),
    *("ldam-drw", "balanced-softmax", "cbs", "class-balanced-sampling", "class-balanced-weights", "bcl", "proco"),
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def registered():
    """Registers a method for one test."""
    names = []

    def register(method):
        names.append(register_method(method).name)
        return method

    yield register
    for name in set(names):
        METHODS.unregister(name)


# --- what a method declares


def test_all_methods_are_registered_with_title_summary_and_reference():
    assert set(METHODS) >= PAPER
    for name, method in METHODS.items():
        assert method.name == name
        assert method.title
        assert method.reference
        assert method.summary
        assert "\n" not in method.summary
        for parameter in method.parameters.values():
            assert parameter.help
            parameter.check(parameter.default)
            for wrong in (-1, float("nan"), True, []):
                with pytest.raises(ValueError, match=rf"^Expected `{parameter.name}` to be [^\n]*, but got [^\n]*\.$"):
                    parameter.check(wrong)


def test_labels_say_beta():
    def label(name, **given):
        return METHODS[name].label(METHODS[name].make_params(given))

    assert label("cbs") == "CBS (β auto)"
    assert label("cbs", beta=1.8) == "CBS (β = 1.8)"
    assert label("softmax") == "Softmax"
    assert label("logit-adjust", tau=2.0) == "Logit adjustment"
    assert label("bcl") == "BCL + Balanced Softmax"
    assert label("bcl", beta=1.8) == "BCL + CBS (β = 1.8)"
    assert label("bcl", beta="auto") == "BCL + CBS (β auto)"
    assert label("proco", beta=0) == "ProCo + Softmax"


def test_declared_shift_is_that_of_the_loss():
    counts, groups = torch.tensor([100, 10, 1]), Groups.from_indices(head=[0], medium=[1], tail=[2])
    for name, given, factor in [
        ("cbs", {"beta": 1.2}, 1.2),
        ("balanced-softmax", {}, 1.0),
        ("logit-adjust", {"tau": 0.5}, 0.5),
        ("bcl", {}, 1.0),
    ]:
        method = METHODS[name]
        params = method.make_params(given)
        assert method.shift_factor(params) == factor
        objective = method.stages[0].objective(Task(counts, groups, 1, params))
        assert torch.equal(objective.logit_shift, class_shift(counts, factor))
    assert SOFTMAX.shift_factor(SOFTMAX.params()) is None


def test_parameter_of_another_method_is_refused():
    with pytest.raises(ValueError, match=r"parameters of cbs \(`beta`\), but got `gamma`"):
        find_method("cbs").make_params({"gamma": 1.0})
    with pytest.raises(ValueError, match=r"parameters of softmax \(none\), but got `beta`"):
        find_method("softmax").make_params({"beta": 1.0})


@pytest.mark.parametrize(
    ("name", "parameter", "value", "wanted"),
    [
        ("crt", "classifier_epochs", 0, "an integer >= 1"),
        ("lws", "classifier_lr", 0.0, "a number > 0"),
        ("crt", "classifier_lr", float("inf"), "a number > 0"),
        ("ldam-drw", "defer", 2.0, "a number >= 0 and <= 1"),
        ("class-balanced-weights", "effective_b", 1.0, "a number >= 0 and < 1"),
        ("reslt", "branches", 4, "an integer >= 2 and <= 3"),
        ("tau-norm", "tau", "much", "a number >= 0"),
    ],
)
def test_value_out_of_range_is_refused_by_the_recipe(name, parameter, value, wanted):
    with pytest.raises(ValueError, match=rf"^Expected `{parameter}` to be {re.escape(wanted)}, but got {value!r}\.$"):
        recipe_for(name, **{parameter: value})


def test_unknown_method_is_refused():
    with pytest.raises(ValueError, match=r"^Expected `method` to be one of .* the closest match is softmax\.$"):
        find_method("sofmax")


def test_method_with_parameters_as_text():
    method, given = parse_method("reslt:alpha=0.9,tail_from=none,branches=2")
    assert method is METHODS["reslt"]
    assert given == {"alpha": 0.9, "tail_from": None, "branches": 2}
    assert parse_method("softmax") == (SOFTMAX, {})
    for wrong, said in [
        ("softmax:beta=1", "`beta`"),
        ("cbs:beta", "NAME:PARAMETER=VALUE"),
        ("cbs:beta=1,beta=2", "NAME:PARAMETER=VALUE"),
        ("cbs:beta=x", "`beta` to be a number >= 0 or one of auto, but got 'x'"),
        ("bcl+cbs", "`method`"),
    ]:
        with pytest.raises(ValueError, match=said):
            parse_method(wrong)


@dataclass(frozen=True)
class OneParams:
    one: int = param(1, "of a test")


SOFTMAX_TWO = Method("softmax-two", "Softmax", "", "", (Stage(softmax),))


def test_registered_method_must_have_the_parameters_that_it_uses():
    with pytest.raises(ValueError, match="parameter `beta`, which its `beta` uses"):
        Method("mine", "Mine", "", "", (Stage(softmax),), beta="beta")
    with pytest.raises(ValueError, match="parameter `tau`, which its `tau` uses"):
        Method("mine", "Mine", "", "", (Stage(softmax),), posthoc="tau", tau="tau")
    with pytest.raises(ValueError, match="`posthoc` and `tau`"):
        Method("mine", "Mine", "", "", (Stage(softmax),), posthoc="tau")
    with pytest.raises(ValueError, match="parameter `two`, which its `stages` uses"):  # every stage is checked
        Method("mine", "Mine", "", "", (Stage(softmax), Stage(softmax, epochs="one", lr="two")), OneParams)


def test_parameter_cannot_have_the_name_of_a_setting():
    @dataclass(frozen=True)
    class Taken:
        epochs: int = param(3, "a name that a recipe has")

    with pytest.raises(ValueError, match="not named like a setting, but got `epochs`"):
        register_method(Method("mine", "Mine", "", "", (Stage(softmax),), Taken))
    assert "mine" not in METHODS


def test_settings_of_a_recipe_cannot_have_the_name_of_a_parameter(monkeypatch):
    monkeypatch.setattr(base, "_SETTINGS", set(base._SETTINGS))
    with pytest.raises(ValueError, match="parameters of cbs not named like a setting, but got `beta`"):
        reserve_settings(["beta"])


def test_method_of_the_same_name_is_refused_unless_the_same_statement_registers_it(registered):
    for _ in range(2):  # as when a plugin file is imported twice
        registered(SOFTMAX_TWO)
    with pytest.raises(ValueError, match=r"'softmax-two' is already registered by .*test_methods"):
        register_method(SOFTMAX_TWO)


def test_mixup_and_micro_batches_are_for_methods_of_single_samples():
    for name in ("bcl", "proco"):
        with pytest.raises(ValueError, match=f"`mixup` .*with {name}"):
            recipe_for(name, mixup=0.2)
    recipe_for("cbs", mixup=0.2)


def test_run_of_a_method_that_is_not_registered_can_be_read():
    settings = defaults("digits-lt", "cbs").settings() | {"method": "theirs", "beta": 1.2, "other": "x"}
    with pytest.raises(ValueError, match="`method`"):
        Recipe.from_settings(settings)
    recipe = Recipe.from_settings(settings, unknown_methods=True)
    assert (recipe.params.beta, recipe.params.other, recipe.spec.label(recipe.params)) == (1.2, "x", "theirs")
    assert recipe.beta is None  # only the method itself can say which parameter is its beta
    assert recipe.settings() == settings
    assert recipe == Recipe.from_settings(settings, unknown_methods=True)
    assert recipe.changed(epochs=3).settings() == settings | {"epochs": 3}


def test_run_name_has_the_settings_that_differ():
    assert defaults("digits-lt", "cbs").label == "digits-lt-50-cbs-beta-auto-seed0"
    assert defaults("cifar10-lt", "cbs", 100).label == "cifar10-lt-100-cbs-beta1.8-seed0"
    assert defaults("cifar10-lt", "bcl", 100).changed(seed=2).label == "cifar10-lt-100-bcl-beta1-seed2"
    reslt = defaults("cifar10-lt", "reslt", 100)
    assert reslt.label == "cifar10-lt-100-reslt-seed0"
    assert reslt.changed(alpha=0.9).label == "cifar10-lt-100-reslt-alpha0.9-seed0"
    assert defaults("some/pets", "logit-adjust", small=False).label == "pets-logit-adjust-tau1-seed0"


# --- every method trains


FAST = {"reslt", "proco"}  # other kinds are trained below and in tests/train


@pytest.mark.parametrize("name", mostly_slow(METHODS, FAST))
def test_every_method_learns_the_digits(tmp_path, name):
    more = {"validation": 0.2} if name == "tau-norm" else {}
    folder, result = trained(tmp_path / "run", name, epochs=8, evaluate_every=0, **more)
    assert result["method"] == name
    # A tenth is chance; a first look at eight epochs had 0.42 at the least.
    assert result["splits"]["test"]["recall"]["all"] > 0.3
    assert result["splits"]["test"]["recall"]["head"] > 0.6
    assert folder.done


def test_shifted_losses_find_more_of_the_tail(tmp_path):
    """Means of three seeds, 15 epochs: softmax 0.14, CBS 0.62."""
    results = [trained(tmp_path / name, name, epochs=15, evaluate_every=0)[1] for name in ("softmax", "cbs")]
    softmax, cbs = (result["splits"]["test"]["recall"]["tail"] for result in results)
    assert cbs > softmax + 0.15


# --- the same thing under two names


def same_model(one, other):
    first, second = load_file(one.model_file), load_file(other.model_file)
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    assert one.predictions_file.read_bytes() == other.predictions_file.read_bytes()


def test_cbs_with_beta_1_equals_balanced_softmax_and_with_beta_0_softmax(tmp_path):
    for beta, name in ((1.0, "balanced-softmax"), (0.0, "softmax")):
        cbs, _ = trained(tmp_path / f"cbs{beta}", "cbs", beta=beta)
        same_model(cbs, trained(tmp_path / name, name)[0])


def test_beta_of_bcl_and_proco_is_used(tmp_path):
    for name in ("bcl", "proco"):
        plain, _ = trained(tmp_path / name, name, epochs=1)
        other, result = trained(tmp_path / f"{name}1.2", name, epochs=1, beta=1.2)
        assert result["params"]["beta"] == 1.2
        assert other.predictions_file.read_bytes() != plain.predictions_file.read_bytes()


# --- second stages


def stages_of(tmp_path, name):
    """A run's model after its first stage, after the first step of the second, and at the end."""
    folder = RunFolder(tmp_path / name)
    recipe = recipe_for(name, epochs=3, classifier_epochs=2, checkpoint_minutes=0.0, keep=1000)
    Trainer(recipe, folder).run()
    files = sorted(folder.checkpoints.iterdir())

    def model(path):
        tensors = load_file(path)
        return {key.removeprefix("model."): value for key, value in tensors.items() if key.startswith("model.")}

    first, second = ([path for path in files if path.name.startswith(f"{stage}-")] for stage in (0, 1))
    assert first[-1].name.startswith("0-00003")
    assert second[0].name.startswith("1-00000-0000001")
    return model(first[-1]), model(second[0]), load_file(folder.model_file)


def changed(before, after, part):
    names = [name for name in before if part(name)]
    assert names
    return [name for name in names if not torch.equal(before[name], after[name])], names


def is_statistic(name):
    return "running_" in name or "num_batches" in name


@pytest.mark.parametrize("name", ["crt", "lws"])
def test_second_stage_trains_the_classifier(tmp_path, name):
    before, first, after = stages_of(tmp_path, name)
    weights, _ = changed(before, after, lambda key: key.startswith("backbone.") and not is_statistic(key))
    assert weights == []
    statistics, all_statistics = changed(before, after, lambda key: key.startswith("backbone.") and is_statistic(key))
    assert statistics == all_statistics
    if name == "crt":  # a new classifier
        old, new, last = (model["head.linear.weight"] for model in (before, first, after))
        assert torch.nn.functional.cosine_similarity(old, new).abs().max() < 0.5  # one step away from a new draw
        assert not torch.equal(new, last)
    else:  # scales only
        assert torch.equal(before["head.linear.weight"], after["head.linear.weight"])
        assert torch.equal(before["head.linear.bias"], after["head.linear.bias"])
        assert after["head.scales"].shape == (10,)
        assert bool((after["head.scales"] != 1).all())


# --- after training


def mean_recall(logits, labels):
    right = logits.argmax(1) == labels
    return float(np.mean([right[labels == c].double().mean().item() for c in range(10)]))


def test_tau_is_chosen_on_validation_data_as_by_brute_force(tmp_path):
    folder, result = trained(tmp_path / "run", "tau-norm", epochs=6, validation=0.2)
    stored = load_file(folder.predictions_file)
    model = load_file(folder.model_file)
    weight, bias = (model[f"head.linear.{name}"].double() for name in ("weight", "bias"))

    def recall_at(tau, split):
        logits = (stored[f"{split}.logits"].double() - bias) / weight.norm(dim=1) ** tau
        return mean_recall(logits, stored[f"{split}.labels"])

    taus = [round(0.1 * step, 1) for step in range(21)]
    found = [recall_at(tau, "val") for tau in taus]
    best = taus[int(np.argmax(found))]  # the smallest of equals
    assert result["posthoc"] == f"tau={best:g}"
    np.testing.assert_allclose(list(result["posthoc_chosen_on_val"].values()), found, atol=1e-9)
    assert result["splits"]["test"]["recall"]["all"] == pytest.approx(recall_at(best, "test"), abs=1e-9)


def test_tau_may_be_given_but_needs_validation_data_otherwise(tmp_path):
    _, result = trained(tmp_path / "run", "tau-norm", tau=0.7)
    assert result["posthoc"] == "tau=0.7"
    with pytest.raises(ValueError, match="Expected `tau` for tau-norm, or validation data"):
        Trainer(recipe_for("tau-norm", validation=0.0), RunFolder(tmp_path / "other"))


def test_logit_adjustment_after_training_follows_the_paper(tmp_path):
    """z - log N, on a softmax model; what is stored are the plain logits."""
    folder, result = trained(tmp_path / "run", "logit-adjust-posthoc", epochs=6)
    stored, counts = load_file(folder.predictions_file), load("digits-lt").counts.double()
    adjusted = stored["test.logits"].double() - counts.log()
    assert result["splits"]["test"]["recall"]["all"] == pytest.approx(mean_recall(adjusted, stored["test.labels"]))
    assert result["posthoc"] == "adjust=1"
    plain_folder, plain = trained(tmp_path / "softmax", "softmax", epochs=6)
    same_model(folder, plain_folder)
    assert plain["splits"]["test"]["recall"] != result["splits"]["test"]["recall"]


def test_measured_gradient_is_that_of_the_loss(tmp_path):
    """The reward and penalty of a shifted loss come from shifted logits, its recalls from plain ones."""
    from longtail.metrics import class_statistics

    folder, _ = trained(tmp_path / "run", "cbs")
    stored = load_file(folder.predictions_file)
    statistics, _ = read_statistics(folder.statistics_file)
    shift = 1.5 * load("digits-lt").counts.double().log()
    expected = class_statistics(stored["test.logits"].double(), stored["test.labels"], shift=shift)
    torch.testing.assert_close(statistics["test"].bias_reward.double(), expected.bias_reward, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(statistics["test"].bias_penalty.double(), expected.bias_penalty, rtol=1e-4, atol=1e-4)


# --- samplers


def test_rebalancing_sampler_with_a_rebalancing_loss_needs_permission(tmp_path):
    with pytest.raises(ValueError, match="correct"):
        Trainer(recipe_for("cbs", sampler="class-aware"), RunFolder(tmp_path / "a"))
    Trainer(recipe_for("cbs", sampler="class-aware", correct_twice=True), RunFolder(tmp_path / "b"))
    Trainer(recipe_for("softmax", sampler="class-aware"), RunFolder(tmp_path / "c"))


@pytest.mark.parametrize("sampler", ["instance", "class-aware", "square-root", "progressive"])
def test_every_sampler_trains_and_the_second_stage_keeps_its_own(tmp_path, sampler):
    folder, _ = trained(tmp_path / "run", "crt", epochs=2, classifier_epochs=2, sampler=sampler)
    assert folder.done


def test_class_balanced_sampling_is_class_aware_sampling(tmp_path):
    named, _ = trained(tmp_path / "a", "class-balanced-sampling")
    chosen, _ = trained(tmp_path / "b", "softmax", sampler="class-aware")
    same_model(named, chosen)


def test_printed_command_names_the_plugin_file(monkeypatch):
    assert program() == "longtail"
    monkeypatch.setenv("LONGTAIL_PLUGINS", "/x/my method.py")
    assert program() == "longtail --plugin '/x/my method.py'"
