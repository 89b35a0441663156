"""weight_decay = "auto": pilots with several weight decays, and the one with the highest recall on held-out data."""

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.metrics import balanced_accuracy_score
from tests.train.conftest import assert_same_run, stop_and_resume

from longtail.train import RunFolder, Trainer, defaults
from longtail.train.pilots import DECAYS


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Write three overlapping classes of 60 features, most of them noise, so that the weight decay matters."""
    generator = np.random.default_rng(1)
    labels = np.repeat(np.arange(3), (200, 60, 20))
    vectors = generator.normal(size=(280, 60))
    vectors[:, :3] += 1.2 * np.eye(3)[labels]
    path = tmp_path_factory.mktemp("features") / "noisy.npz"
    np.savez(path, features=vectors, labels=labels)
    return path


def recipe(path, method="balanced-softmax", **settings):
    usual = {"device": "cpu", "epochs": 40, "evaluate_every": 0, "batch_size": 32}
    return defaults(str(path), method).changed(**usual | settings)


def best_of(pilots):
    """The weight decay of the pilot whose stored logits of validation data have the highest balanced accuracy."""
    found = {}
    for pilot in pilots:
        stored = load_file(pilot.predictions_file)
        decay = pilot.recipe().weight_decay
        found[decay] = balanced_accuracy_score(stored["val.labels"], stored["val.logits"].argmax(1))
    return max(DECAYS, key=found.__getitem__), found


@pytest.mark.parametrize("validation", [0.2, 0.0])
def test_the_best_pilot_on_held_out_data_sets_the_weight_decay(features, tmp_path, validation):
    folder = RunFolder(tmp_path / "auto")
    result = Trainer(recipe(features, validation=validation), folder).run()
    chosen, recalls = best_of(folder.pilots)
    assert result["auto_weight_decay"]["chosen"] == chosen
    assert result["auto_weight_decay"]["recall"] == {f"{one:g}": pytest.approx(recalls[one]) for one in sorted(DECAYS)}
    assert len(set(recalls.values())) > 1
    other = RunFolder(tmp_path / "given")
    Trainer(recipe(features, validation=validation, weight_decay=chosen), other).run()
    assert folder.model_file.read_bytes() == other.model_file.read_bytes()
    held_out = [len(load_file(one.predictions_file)["val.labels"]) for one in folder.pilots]
    assert held_out == [56 if validation else 28] * len(DECAYS)


def test_pilots_of_beta_have_the_chosen_weight_decay(features, tmp_path):
    folder = RunFolder(tmp_path)
    result = Trainer(recipe(features, "cbs", validation=0.0, epochs=2), folder).run()
    tries, others = folder.pilots[: len(DECAYS)], folder.pilots[len(DECAYS) :]
    assert [one.recipe().beta for one in tries] == [1.0] * len(DECAYS)
    assert len(others) == result["auto_beta"]["pilots"] > 0
    assert {one.recipe().weight_decay for one in others} == {best_of(tries)[0]}
    assert [one.recipe().fold for one in others] == list(range(len(others)))


def test_a_run_that_is_stopped_in_its_pilots_ends_like_an_undisturbed_one(features, tmp_path):
    reference, folder = RunFolder(tmp_path / "reference"), RunFolder(tmp_path / "stopped")
    settings = {"epochs": 3, "validation": 0.2}
    Trainer(recipe(features, **settings), reference).run()
    trainer = stop_and_resume(recipe(features, **settings), folder, 5, 20, 30)
    assert_same_run(folder, reference)
    assert trainer.steps_done == trainer.steps_total


def test_auto_is_the_default_of_features_only(features, tmp_path):
    assert recipe(features).weight_decay == "auto"
    assert defaults("digits-lt", "softmax").weight_decay != "auto"
    with pytest.raises(ValueError, match="`weight_decay`"):
        recipe(features, weight_decay="best")
