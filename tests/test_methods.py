"""Every method: what it says of itself, that it trains, and that its stages and post-hoc steps do what they say."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import recipe_for, trained

from longtail._program import program
from longtail.cli.train_line import resume_command
from longtail.data import load
from longtail.methods import METHODS, Knob, find_method
from longtail.ranks import Ranks
from longtail.train import RunFolder, Trainer
from longtail.train.evaluation import read_statistics
from longtail.train.recipe import Recipe

TAIL_SEEDS = range(3)
PAPER = {  # the rows of the paper's tables, and what issue 4 names
    *(
        "softmax",
        "focal",
        "tau-norm",
        "logit-adjust",
        "logit-adjust-posthoc",
        "reslt",
        "crt",
        "lws",
        "ldam",
        "ldam-drw",
    ),
    *("balanced-softmax", "cbs", "class-balanced-sampling", "class-balanced-weights", "bcl", "proco"),
}
SHIFTED = ["balanced-softmax", "cbs", "logit-adjust"]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- what a method says of itself


def test_all_methods_are_there():
    assert set(METHODS) >= PAPER


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_a_line_a_reference_and_knobs(name):
    method = METHODS[name]
    assert method.name == name
    assert method.summary
    assert "\n" not in method.summary
    assert method.reference
    for knob, one in method.knobs.items():
        assert one.what
        assert hasattr(Recipe, knob), "a knob is a field of the recipe, and so of the command line"
    assert method.settings({}) == {knob: one.default for knob, one in method.knobs.items()}


def test_longtail_methods_shows_every_method(capsys):
    from longtail import cli

    assert cli.main(["methods"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for name, method in METHODS.items():
        assert name in out
        assert all(f"--{knob.replace('_', '-')}" in out for knob in method.knobs)


def test_a_knob_of_another_method_is_refused():
    with pytest.raises(ValueError, match=r"Expected the knobs of cbs \(`beta`\), but got `gamma`\."):
        find_method("cbs").settings({"gamma": 1.0})
    with pytest.raises(ValueError, match=r"Expected the knobs of softmax \(none\), but got `beta`\."):
        find_method("softmax").settings({"beta": 1.0})


@pytest.mark.parametrize(
    ("name", "knob", "value", "wanted"),
    [
        ("crt", "classifier_epochs", 0, "an integer >= 1"),
        ("crt", "classifier_epochs", -1, "an integer >= 1"),
        ("lws", "classifier_lr", -1.0, "a number > 0"),
        ("lws", "classifier_lr", 0.0, "a number > 0"),
        ("crt", "classifier_lr", float("inf"), "a number > 0"),
        ("bcl", "classifier_weight", -1.0, "a number >= 0"),
        ("proco", "contrast_weight", float("nan"), "a number >= 0"),
        ("bcl", "balance", "cbss", "one of softmax, balanced-softmax, cbs"),
        ("ldam-drw", "defer", 2.0, "a number >= 0 and <= 1"),
        ("class-balanced-weights", "effective_b", 1.0, "a number >= 0 and < 1"),
        ("reslt", "branches", 4, "an integer >= 2 and <= 3"),
        ("tau-norm", "tau", -0.1, "a number >= 0"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_before_anything_starts(name, knob, value, wanted):
    with pytest.raises(ValueError, match=rf"^Expected `{knob}` to be {re.escape(wanted)}, but got {value!r}\.$"):
        recipe_for(name, **{knob: value})


@pytest.mark.parametrize(("name", "knob"), [(name, knob) for name, one in METHODS.items() for knob in one.knobs])
def test_every_knob_has_a_range(name, knob):
    one = METHODS[name].knobs[knob]
    one.check(knob, one.default)
    for wrong in (-1, float("nan"), True, []):
        with pytest.raises(ValueError, match=rf"^Expected `{knob}` to be [^\n]*, but got [^\n]*\.$"):
            METHODS[name].settings({knob: wrong})


def test_a_knob_of_ones_own_takes_anything_unless_it_says_what():
    for value in (-3.5, "adam", None):
        Knob(1.0, "anything").check("mine", value)
    with pytest.raises(ValueError, match=r"^Expected `mine` to be a number < 3, but got inf\.$"):
        Knob(1.0, "something", below=3).check("mine", float("inf"))


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match=r"^Expected `method` to be one of .* the closest match is softmax\.$"):
        find_method("sofmax")
    with pytest.raises(ValueError, match=r"but got 'supcon'; one's own is known to the file that adds it\.$"):
        find_method("supcon")


@pytest.mark.parametrize("name", METHODS)
def test_mixup_is_for_methods_of_single_samples(name):
    if name in {"bcl", "proco"}:
        with pytest.raises(ValueError, match=f"Expected no `mixup` with {name}, which compares images, but got 0.2"):
            recipe_for(name, mixup=0.2)
    else:
        recipe_for(name, mixup=0.2, **({"validation": 0.2} if name == "tau-norm" else {}))


# --- every method trains


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_the_digits(tmp_path, name):
    more = {"validation": 0.2} if name == "tau-norm" else {}
    folder, result = trained(tmp_path / "run", name, epochs=8, evaluate_every=0, **more)
    assert result["method"] == name
    # A tenth is chance; a first look at eight epochs had 0.42 at the least.
    assert result["splits"]["test"]["recall"]["all"] > 0.3
    assert result["splits"]["test"]["recall"]["head"] > 0.6
    assert folder.done


@pytest.fixture(scope="module")
def tail_recalls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tail")
    found = {}
    for name in ["softmax", *SHIFTED]:
        results = [
            trained(folder / f"{name}-{seed}", name, epochs=15, evaluate_every=0, seed=seed)[1] for seed in TAIL_SEEDS
        ]
        found[name] = float(np.mean([result["splits"]["test"]["recall"]["tail"] for result in results]))
    return found


@pytest.mark.parametrize("name", SHIFTED)
def test_shifted_losses_find_more_of_the_tail(tail_recalls, name):
    """Means of three seeds, 15 epochs: softmax 0.14, Balanced Softmax and logit adjustment 0.50, CBS 0.62."""
    assert tail_recalls[name] > tail_recalls["softmax"] + 0.15


# --- the same thing under two names


def same_model(one, other):
    first, second = load_file(one.model_file), load_file(other.model_file)
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    assert one.predictions_file.read_bytes() == other.predictions_file.read_bytes()


def test_cbs_with_beta_1_is_balanced_softmax_and_with_beta_0_softmax(tmp_path):
    for beta, name in ((1.0, "balanced-softmax"), (0.0, "softmax")):
        cbs, _ = trained(tmp_path / f"cbs{beta}", "cbs", beta=beta)
        same_model(cbs, trained(tmp_path / name, name)[0])


def test_bcl_and_proco_take_the_balanced_part(tmp_path):
    for name in ("bcl", "proco"):
        plain, _ = trained(tmp_path / name, name, epochs=1)
        named, _ = trained(tmp_path / f"{name}-cbs", name, epochs=1, balance="cbs", beta=1.0)
        same_model(named, plain)
        other, result = trained(tmp_path / f"{name}-cbs1.2", name, epochs=1, balance="cbs", beta=1.2)
        assert result["knobs"]["beta"] == 1.2
        assert other.predictions_file.read_bytes() != plain.predictions_file.read_bytes()


# --- second stages


def stages_of(tmp_path, name):
    """A run's model after its first stage, after the second's first step, and at the end."""
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


def moved(before, after, part):
    names = [name for name in before if part(name)]
    assert names
    return [name for name in names if not torch.equal(before[name], after[name])], names


def is_statistic(name):
    return "running_" in name or "num_batches" in name


@pytest.mark.parametrize("name", ["crt", "lws"])
def test_a_second_stage_leaves_the_backbone_but_for_its_statistics(tmp_path, name):
    before, _, after = stages_of(tmp_path, name)
    weights, _ = moved(before, after, lambda key: key.startswith("backbone.") and not is_statistic(key))
    assert weights == []
    statistics, all_statistics = moved(before, after, lambda key: key.startswith("backbone.") and is_statistic(key))
    assert statistics == all_statistics


def test_crt_begins_with_a_new_classifier(tmp_path):
    before, first, after = stages_of(tmp_path, "crt")
    old, new, last = (model["head.linear.weight"] for model in (before, first, after))
    assert torch.nn.functional.cosine_similarity(old, new).abs().max() < 0.5  # one step away from a new draw
    assert not torch.equal(new, last)


def test_lws_trains_scales_only(tmp_path):
    before, _, after = stages_of(tmp_path, "lws")
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
    best = taus[int(np.argmax(found))]  # of equals the smallest
    assert result["posthoc"] == f"tau={best:g}"
    np.testing.assert_allclose(list(result["posthoc_chosen_on_val"].values()), found, atol=1e-9)
    assert result["splits"]["test"]["recall"]["all"] == pytest.approx(recall_at(best, "test"), abs=1e-9)


def test_tau_may_be_given(tmp_path):
    _, result = trained(tmp_path / "run", "tau-norm", tau=0.7)
    assert result["posthoc"] == "tau=0.7"


def test_tau_without_validation_data_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Expected `tau` for tau-norm, or validation data to choose it on"):
        Trainer(recipe_for("tau-norm"), RunFolder(tmp_path / "run"))


def test_logit_adjustment_after_training_is_the_papers(tmp_path):
    """z - log N, on a softmax model; what is stored are the plain logits."""
    folder, result = trained(tmp_path / "run", "logit-adjust-posthoc", epochs=6)
    stored, counts = load_file(folder.predictions_file), load("digits-lt").counts.double()
    adjusted = stored["test.logits"].double() - counts.log()
    assert result["splits"]["test"]["recall"]["all"] == pytest.approx(mean_recall(adjusted, stored["test.labels"]))
    assert result["posthoc"] == "adjust=1"
    softmax, plain = trained(tmp_path / "softmax", "softmax", epochs=6)
    same_model(folder, softmax)
    assert plain["splits"]["test"]["recall"] != result["splits"]["test"]["recall"]


def test_the_measured_gradient_is_the_losses(tmp_path):
    """The reward and penalty of a shifted loss are taken from shifted logits, its recalls from plain ones."""
    from longtail.metrics import class_statistics

    folder, _ = trained(tmp_path / "run", "cbs")
    stored = load_file(folder.predictions_file)
    statistics, _ = read_statistics(folder.statistics_file)
    shift = 1.5 * load("digits-lt").counts.double().log()
    expected = class_statistics(stored["test.logits"].double(), stored["test.labels"], shift=shift)
    torch.testing.assert_close(statistics["test"].bias_reward.double(), expected.bias_reward, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(statistics["test"].bias_penalty.double(), expected.bias_penalty, rtol=1e-4, atol=1e-4)


# --- samplers


def test_a_rebalancing_sampler_beside_a_shifted_loss_must_be_asked_for(tmp_path):
    with pytest.raises(ValueError, match="correct"):
        Trainer(recipe_for("cbs", sampler="class-aware"), RunFolder(tmp_path / "a"))
    Trainer(recipe_for("cbs", sampler="class-aware", correct_twice=True), RunFolder(tmp_path / "b"))
    Trainer(recipe_for("softmax", sampler="class-aware"), RunFolder(tmp_path / "c"))


@pytest.mark.parametrize("sampler", ["instance", "class-aware", "square-root", "progressive"])
def test_every_sampler_trains_and_leaves_the_second_stage_its_own(tmp_path, sampler):
    folder, _ = trained(tmp_path / "run", "crt", epochs=2, classifier_epochs=2, sampler=sampler)
    assert folder.done


def test_sampling_by_class_is_class_aware_sampling(tmp_path):
    named, _ = trained(tmp_path / "a", "class-balanced-sampling")
    asked, _ = trained(tmp_path / "b", "softmax", sampler="class-aware")
    same_model(named, asked)


def test_a_printed_command_names_the_file_that_adds_a_method(monkeypatch):
    """``longtail`` alone would not know it."""
    monkeypatch.setattr(sys, "argv", ["my method.py", "study"])
    assert program() == "longtail"
    folder = RunFolder("runs/one")
    assert resume_command([folder], Ranks()) == "`longtail train --resume runs/one`"
    monkeypatch.setitem(METHODS, "mine", METHODS["softmax"])
    assert program() == "python 'my method.py'"
    assert resume_command([folder], Ranks()) == "`python 'my method.py' train --resume runs/one`"
    two = resume_command([folder], SimpleNamespace(world=2))
    assert two == "`torchrun … 'my method.py' train --resume runs/one`, with torchrun's flags as they were,"
    for nothing in ("", "-c", "/opt/site-packages/ipykernel_launcher.py"):
        monkeypatch.setattr(sys, "argv", [nothing])
        assert program() == "python FILE.py"
