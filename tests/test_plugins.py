"""Methods, losses and heads from a file outside the package: the examples work like built-in methods."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import longtail
from longtail import ClassBalancedSoftmaxLoss, _registry, cli
from longtail._program import sentence_of
from longtail.methods import METHODS, SupervisedLoss, Task, param, register_loss
from longtail.models import HEADS, Outputs
from longtail.train import RunFolder, Trainer, defaults

EXAMPLES = Path(__file__).parents[1] / "examples"
SHORT = {"epochs": 2, "device": "cpu", "evaluate_every": 0}
FLAGS = ("--epochs", "2", "--device", "cpu", "--evaluate-every", "0")


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    """Return a function that loads an example as `--plugin` does, and remove what it registers after the test."""
    monkeypatch.setenv("LONGTAIL_PLUGINS", "")
    monkeypatch.chdir(tmp_path)
    before = [(registry, set(registry)) for registry in (METHODS, HEADS)]
    loaded = set(_registry._loaded)
    yield lambda name: _registry.load_plugin(EXAMPLES / name)
    for registry, names in before:
        for name in set(registry) - names:
            registry.unregister(name)
    _registry._loaded &= loaded


def run(*arguments):
    return cli.main([str(one) for one in arguments])


def test_vs_loss_follows_the_formula(plugin):
    plugin("vs_loss.py")
    counts, method = torch.tensor([100, 20, 5]), METHODS["vs"]
    params = method.make_params({"gamma": 0.3, "vs_tau": 0.8, "vs_power": 0.5})
    objective = method.stages[0].objective(Task(counts, None, 1, params))
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(6, 3, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])
    n = counts.double()
    scaled = (n / 100) ** 0.3 * logits + 0.8 * (n / 125).log()
    weights = n**-0.5 / (n**-0.5).mean()
    each = weights[labels] * F.cross_entropy(scaled, labels, reduction="none")
    outputs = Outputs(logits, logits, {})
    torch.testing.assert_close(objective(outputs, labels)["loss"].double(), each.sum(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(objective.denominators(labels)["loss"].double(), weights[labels].sum())


def test_vs_loss_trains_and_gets_no_gradient_balance(plugin, tmp_path):
    """It scales logits, so it is not a pure shift, although it has an attribute `shift`."""
    plugin("vs_loss.py")
    recipe = defaults("digits-lt", "vs").changed(**SHORT, vs_tau=1.0)
    result = Trainer(recipe, tmp_path / "run").run()
    assert result["params"] == {"gamma": 0.15, "vs_tau": 1.0, "vs_power": 0.0}
    assert not any("gradient_balance" in split for split in result["splits"].values())
    assert (recipe.beta, recipe.spec.label(recipe.params)) == (1.0, "VS loss (β = 1)")
    with pytest.raises(ValueError, match="corrects for class counts"):
        Trainer(recipe.changed(sampler="class-aware"), tmp_path / "other")


def test_method_with_its_own_head_from_the_command_line(plugin, tmp_path):
    file = EXAMPLES / "own_method.py"
    words = ("train", "--plugin", file, "--data", "digits-lt", "--method", "cbs-mlp", "--mlp-width", 16, *FLAGS)
    assert run(*words, "--out", "run") == 0
    folder = RunFolder(tmp_path / "run")
    assert folder.recipe().params.mlp_width == 16
    assert folder.recipe().label == "digits-lt-50-cbs-mlp-beta1.5-mlp_width16-seed0"
    result = json.loads(folder.result_file.read_text())
    assert result["params"] == {"beta": 1.5, "mlp_width": 16, "mlp_slope": 0.01}
    assert "gradient_balance" in result["splits"]["test"]  # its loss is a pure shift
    loaded = longtail.load(folder.path)
    assert loaded.model.head.hidden.out_features == 16
    assert run(*words[:-2], "--mlp-width", 0) == 2
    assert run("evaluate", "run") == 0


def test_head_can_be_chosen_for_other_methods_and_for_a_second_stage(plugin, tmp_path):
    plugin("own_method.py")
    Trainer(defaults("digits-lt", "cbs").changed(**SHORT, head="mlp"), tmp_path / "one").run()
    assert longtail.load(tmp_path / "one").model.head.hidden.out_features == 32
    from longtail.methods import Method, Stage, register_method

    own = METHODS["cbs-mlp"]
    second = Stage(own.stages[0].objective, own.stages[0].head, train="classifier", reinit=True)
    register_method(
        Method("two-mlp", "Two", "", "", (Stage(METHODS["softmax"].stages[0].objective), second), own.params)
    )
    Trainer(defaults("digits-lt", "two-mlp").changed(**SHORT, mlp_width=24), tmp_path / "two").run()
    assert longtail.load(tmp_path / "two").model.head.hidden.out_features == 24


def test_run_is_resumed_with_the_plugin(plugin, tmp_path):
    plugin("own_method.py")
    recipe = defaults("digits-lt", "cbs-mlp").changed(**SHORT)
    trainer = Trainer(recipe, tmp_path / "run")
    for _ in trainer.steps():
        trainer.stop_requested = True
        break
    whole = Trainer(recipe, tmp_path / "whole").run()
    assert Trainer(recipe, tmp_path / "run").run() == whole


def test_entry_points_are_loaded_on_any_use(plugin, monkeypatch):
    """By iteration and by a look-up, not only by `find`."""
    loads = []

    class Point:
        value = "my_package.plugin"

        def load(self):
            loads.append(self.value)
            plugin("vs_loss.py")

    monkeypatch.setattr(_registry, "_installed", lambda: [Point()])
    assert "vs" in METHODS
    assert loads == ["my_package.plugin"]
    METHODS.unregister("vs")
    _registry._loaded -= {"my_package.plugin", str(EXAMPLES / "vs_loss.py")}
    assert "vs" in list(METHODS)


def test_a_failed_plugin_leaves_nothing_behind(plugin, monkeypatch, tmp_path):
    """The second use fails in the same way, for a file and for an installed package."""
    broken = tmp_path / "broken_plugin.py"
    broken.write_text("value = 1\nraise RuntimeError('broken')\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            _registry.load_plugin(broken)
        assert "broken_plugin" not in sys.modules

    def load():
        raise ImportError("absent")

    with monkeypatch.context() as patch:
        patch.setattr(_registry, "_installed", lambda: [SimpleNamespace(value="absent.plugin", load=load)])
        for _ in range(2):
            with pytest.raises(ImportError, match="absent"):
                list(METHODS)


def test_a_syntax_error_in_a_plugin_names_file_and_line(plugin, tmp_path):
    broken = tmp_path / "broken_plugin.py"
    broken.write_text("value = 1\ndef f(:\n")
    with pytest.raises(SyntaxError) as caught:
        _registry.load_plugin(broken)
    assert sentence_of(caught.value) == f"SyntaxError in {broken}:2: invalid syntax"


def test_a_mistake_in_a_plugin_is_not_called_ours(plugin, tmp_path, monkeypatch, capsys):
    broken = tmp_path / "broken_plugin.py"
    broken.write_text("from longtail.methods import register_loss\nregister_loss('mine', None)\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["methods", "--plugin", "broken_plugin.py"]) == 2
    message = capsys.readouterr().err
    assert f"TypeError in {broken}:2: register_loss() missing" in message
    assert message.endswith("'title'; --debug shows the traceback.\n")


def test_a_wrong_signature_in_a_plugin_may_be_the_plugins(plugin, tmp_path, monkeypatch, capsys):
    """PyTorch calls forward, so the traceback has no line of the plugin."""
    code = "from longtail.losses import Loss\nfrom longtail.methods import register_loss\nclass Mine(Loss):\n"
    code += "    def forward(self, logits): ...\n"
    (tmp_path / "short.py").write_text(code + "register_loss('short', lambda task: Mine(**task.options), title='S')\n")
    monkeypatch.chdir(tmp_path)
    words = "train --plugin short.py --data digits-lt --method short --epochs 1 --out run"
    assert cli.main(words.split()) == 2
    message = capsys.readouterr().err
    assert "Mine.forward() takes 2 positional arguments" in message
    assert message.endswith("; if your plugin is right, this is a mistake in longtail; --debug shows the traceback.\n")


def test_a_plugin_file_may_be_imported_twice(plugin, example):
    example("vs_loss")
    plugin("vs_loss.py")
    assert METHODS["vs"].title == "VS loss"


def test_the_error_for_a_head_of_a_plugin_says_how_to_load_it():
    with pytest.raises(ValueError, match=r"`head` to be one of linear, .*'mlp'; if a plugin registers .* --plugin"):
        HEADS.find("mlp")


def test_register_loss_declares_the_shift(plugin):
    @dataclass(frozen=True)
    class Params:
        strength: float = param(0.7, "of the shift")

    def make(task):
        return ClassBalancedSoftmaxLoss(task.counts, beta=task.params.strength, **task.options)

    method = register_loss("shifted", make, title="Shifted", params=Params, beta="strength", shift="strength")
    assert method.shift_factor(Params()) == method.beta_of(Params()) == 0.7


def test_supervised_loss_refuses_a_loss_that_averages(plugin):
    plugin("vs_loss.py")
    import vs_loss

    with pytest.raises(ValueError, match="reduction='none'"):
        SupervisedLoss(vs_loss.VSLoss(torch.tensor([3, 1]), gamma=0.1, tau=1.0))


@pytest.mark.parametrize(
    ("file", "method", "beta"),
    [("vs_loss.py", "vs", "vs_tau"), pytest.param("own_method.py", "cbs-mlp", "beta", marks=pytest.mark.slow)],
)
def test_plugin_works_in_study_and_report(plugin, capsys, file, method, beta):
    words = ("--data", "digits-lt", "--methods", method, "--betas", 1, 1.5, "--seeds", 1, "--epochs", 1, *FLAGS[2:])
    assert run("study", "--plugin", EXAMPLES / file, *words, "--out", "study") == 0
    runs = {path.parent.name for path in Path("study").glob("*/result.json")}
    assert runs == {f"digits-lt-50-{method}-{beta}{value}-seed0" for value in ("1", "1.5")}
    assert f"{METHODS[method].title} (β = 1.5)" in capsys.readouterr().out
    METHODS.unregister(method)  # a report reads files only
    assert run("report", "study", "--no-figures", "--out", "report.html") == 0
    assert method in Path("report.html").read_text(encoding="utf-8")
