"""`longtail.train.train`: one call for one run or many."""

from dataclasses import replace

import pytest
import torch
from tests.train.conftest import assert_same_run, is_locked, recipe_for, trained

from longtail.data import load
from longtail.methods import METHODS
from longtail.models import HeadSpec
from longtail.train import FailedRunsError, NotFiniteError, RunFolder, StoppedError, Trainer, make_recipe, resume, train


def test_one_recipe_is_trained_in_its_folder(tmp_path):
    lines = []
    recipe = recipe_for("cbs", epochs=1)
    (folder,) = train(recipe, tmp_path / "run", on_log=lambda *given: lines.append(given))
    reference, _ = trained(tmp_path / "reference", "cbs", epochs=1)
    assert folder.path == tmp_path / "run"
    assert_same_run(folder, reference)
    assert [(where.path, line["epoch"]) for where, line in lines] == [(folder.path, 0)]


def test_several_seeds_continue_where_they_were(tmp_path):
    recipes = [recipe_for("cbs", epochs=1, seed=seed) for seed in range(3)]
    steps = []
    with pytest.raises(StoppedError):
        train(recipes, tmp_path, on_step=lambda fleet, _: setattr(fleet.members[1], "stop_requested", True))
    first, second, third = train(recipes, tmp_path, on_step=lambda _, member: steps.append(member.recipe.seed))
    assert [folder.path.name[-5:] for folder in (first, second, third)] == ["seed0", "seed1", "seed2"]
    assert steps == [1] * 5 + [2] * 6  # the first run was finished, the second one stopped after a step
    assert_same_run(second, trained(tmp_path / "reference", "cbs", epochs=1, seed=1)[0])
    assert train(recipes, tmp_path)[0].result_file == first.result_file
    second.result_file.unlink()
    assert resume([second.path], workers=0)[0].done


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"posthoc": "tua"}, "`posthoc` to be one of tau, adjust, but got 'tua'"),
        ({"stages": (replace(METHODS["tau-norm"].stages[0], head=HeadSpec("cosine")),)}, "a linear classifier"),
    ],
)
def test_a_wrong_posthoc_step_is_refused_before_training(tmp_path, changes, message):
    wrong = METHODS.register("wrong", replace(METHODS["tau-norm"], name="wrong", **changes))
    steps = []
    try:
        with pytest.raises(ValueError, match=message):
            train(recipe_for(wrong.name, tau=0.5), tmp_path / "run", on_step=lambda *_: steps.append(1))
    finally:
        METHODS.unregister("wrong")
    assert not steps
    assert not (tmp_path / "run").exists()


def test_a_failed_run_does_not_stop_the_others(tmp_path):
    recipes = [recipe_for("cbs", epochs=1, lr=lr) for lr in (1e30, 0.1)]
    with pytest.raises(FailedRunsError) as caught:
        train(recipes, tmp_path)
    ((folder, error),) = caught.value.failures
    assert isinstance(error, NotFiniteError)
    assert "lr1e+30" in folder.path.name
    assert sum(RunFolder(path).done for path in tmp_path.iterdir()) == 1
    with pytest.raises(NotFiniteError):
        train(recipes[0], tmp_path / "alone")


def test_two_runs_in_one_folder_are_refused(tmp_path):
    recipe = recipe_for("cbs")
    with pytest.raises(ValueError, match="twice"):
        train([recipe, recipe], tmp_path)
    assert not any(RunFolder(path).begun for path in tmp_path.iterdir())


def test_your_own_data_set(tmp_path):
    mine = load("digits-lt", imbalance=10)
    (folder,) = train(recipe_for("cbs", epochs=1).changed(imbalance=None), tmp_path / "run", dataset=mine)
    assert folder.result()["counts"] == mine.counts.tolist()


def test_a_recipe_from_settings():
    recipe = make_recipe({"data": "cifar10-lt", "imbalance": 10.0, "epochs": 3})
    assert (recipe.method, recipe.beta, recipe.epochs) == ("cbs", 1.6, 3)
    with pytest.raises(ValueError, match="cifar10-lt"):
        make_recipe({"data": "cifar10lt"})


def test_a_method_that_chooses_its_strength_holds_out_data_by_itself(tmp_path):
    recipe = recipe_for("tau-norm", epochs=1)
    assert recipe.validation == 0.1
    assert recipe.changed(tau=0.5).validation == 0.0
    assert recipe.changed(method="softmax").validation == 0.0
    assert recipe.changed(method="softmax").changed(method="tau-norm").validation == 0.1
    assert recipe.changed(folds=3).validation == 0.0
    assert recipe.changed(validation=0.2).changed(seed=1).validation == 0.2
    assert recipe.changed(validation=0.0).validation == 0.0
    assert Trainer(recipe, tmp_path / "run").run()["splits"]["val"]["samples"] == 35
    with pytest.raises(ValueError, match="holds out a tenth"):
        Trainer(recipe.changed(validation=0.0), tmp_path / "none")


def test_the_data_sets_parameters_come_with_another_method_and_with_none():
    recipe = make_recipe({"data": "cifar10-lt", "method": "softmax", "imbalance": 100.0})
    assert recipe.changed(method="cbs").beta == 1.8
    assert recipe.changed(method="cbs", imbalance=10.0).beta == 1.6
    assert recipe.changed(method="cbs", beta=1.1).changed(beta=None).beta == 1.8
    assert make_recipe({"data": "inaturalist2018", "method": "tau-norm"}).changed(tau=None).params.tau is None


def test_a_registered_schedule_and_post_hoc_step(tmp_path):
    from longtail.train.measures import POSTHOCS, PostHoc
    from longtail.train.optimizer import SCHEDULES

    SCHEDULES.register("linear", lambda epoch, epochs, milestones, decay: 1 - epoch / epochs)
    POSTHOCS.register("scale", lambda logits, classifier, strength: strength * logits)
    try:
        trainer = Trainer(recipe_for("cbs", schedule="linear", warmup=0, epochs=4), tmp_path / "run")
        rate = trainer.stages.start(trainer.stages.build(), 0).rate
        assert [rate(epoch) for epoch in range(4)] == pytest.approx([0.1, 0.075, 0.05, 0.025])
        assert torch.equal(PostHoc.parse("scale=2").apply(torch.ones(1, 2), None), torch.full((1, 2), 2.0))
    finally:
        SCHEDULES.unregister("linear")
        POSTHOCS.unregister("scale")
    with pytest.raises(ValueError, match="`schedule`"):
        recipe_for("cbs", schedule="linear")


def test_runs_that_wait_are_not_locked(tmp_path):
    """A process may have few open files, and thousands of runs."""
    locked = []

    def on_step(fleet, _):
        locked.append(sum(is_locked(member.folder) for member in fleet.members))

    train([recipe_for("softmax", epochs=1, seed=seed) for seed in range(3)], tmp_path, on_step=on_step)
    assert max(locked) == 1
